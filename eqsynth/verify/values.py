"""An element of a tensor as a term: reads at symbolic indices, functions, reductions, guards.

    Call("add", (Read("a", (i, k)), Read("b", (k, j))))        indices are terms of Z3
    Guard(0 <= i - p, Read("x", (i - p,)), Number(0.0))        a read that may be out of range
    Reduce("max", ((k, 3),), body)                             k runs over [0, 3)

Not here: the comparison of two values (``comparing.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import z3

Value: TypeAlias = "Read | Number | Call | Guard | Reduce"


@dataclass(frozen=True, eq=False)
class Read:
    """An element of a tensor. If ``flat``, ``index`` is one row-major position."""

    name: str
    index: tuple[Any, ...]
    extents: tuple[Any, ...]
    flat: bool = False

    @property
    def position(self) -> Any:
        if self.flat:
            return self.index[0]
        return row_major(self.index, self.extents)


@dataclass(frozen=True, eq=False)
class Number:
    """A number, or the name of an attribute whose value is a number."""

    value: float | str


@dataclass(frozen=True, eq=False)
class Call:
    """A function of values. The name may carry a dtype: ``to:int64`` is a conversion."""

    name: str
    args: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Guard:
    """``inside`` if a condition on indices holds, else ``outside``."""

    condition: Any
    inside: Value
    outside: Value


@dataclass(frozen=True, eq=False)
class Reduce:
    """A reduction of ``body`` over iterators. A reducer that isn't known (``row`` of a layer norm)
    stands for any function of all the values of the body."""

    reducer: str
    iterators: tuple[tuple[Any, Any], ...]
    body: Value


Iterators: TypeAlias = Sequence[tuple[Any, Any]]
Names: TypeAlias = Sequence[tuple[Any, Any]]


def row_major(index: Sequence[Any], extents: Sequence[Any]) -> Any:
    """The row-major position of an index: (i, j) in (n, m) -> i * m + j."""
    at: Any = 0
    for i, extent in zip(index, extents, strict=True):
        at = at * extent + i
    return at


def guarded(condition: Any, inside: Value, outside: Value) -> Value:
    """A guard, or one of its cases if the condition is a bool of Python."""
    if isinstance(condition, bool):
        return inside if condition else outside
    return Guard(condition, inside, outside)


def numbers(value: Value) -> Iterator[float | str]:
    """The numbers in a value, and the names of attributes that stand for numbers."""
    match value:
        case Number():
            yield value.value
        case Call():
            for arg in value.args:
                yield from numbers(arg)
        case Guard():
            yield from numbers(value.inside)
            yield from numbers(value.outside)
        case Reduce():
            yield from numbers(value.body)


def function_of(name: str) -> str:
    """The name of a function without its dtype: ``to:int64 -> to``."""
    return name.partition(":")[0]


def bounds(iterators: Iterators) -> tuple[Any, ...]:
    """The ranges of iterators as formulas: (k, n) -> 0 <= k, k < n."""
    return tuple(bound for i, extent in iterators for bound in (i >= 0, i < extent))


def conditions(value: Value) -> Iterator[Any]:
    """The conditions of the guards in a value, except those inside reductions, which may depend on
    the reduction's iterators."""
    if isinstance(value, Guard):
        yield value.condition
        yield from conditions(value.inside)
        yield from conditions(value.outside)
    elif isinstance(value, Call):
        for arg in value.args:
            yield from conditions(arg)


def decided(value: Value, condition: Any, holds: bool) -> Value:
    """Replace the guards with this condition, outside of reductions, by one of their cases."""
    if isinstance(value, Guard):
        if value.condition.eq(condition):
            return decided(value.inside if holds else value.outside, condition, holds)
        return Guard(value.condition, decided(value.inside, condition, holds),
                     decided(value.outside, condition, holds))  # fmt: skip
    if isinstance(value, Call):
        return Call(value.name, tuple(decided(arg, condition, holds) for arg in value.args))
    return value


def renamed(x: Any, names: Names) -> Any:
    """Substitute iterators in a term or formula of Z3; other values stay."""
    return z3.substitute(x, *names) if z3.is_expr(x) and names else x


def substituted(value: Value, names: Names) -> Value:
    """Substitute the free iterators of a value; iterators that a reduction in it binds stay."""
    match value:
        case Read():
            index = tuple(renamed(i, names) for i in value.index)
            return Read(value.name, index, value.extents, value.flat)
        case Call():
            return Call(value.name, tuple(substituted(arg, names) for arg in value.args))
        case Guard():
            return Guard(renamed(value.condition, names), substituted(value.inside, names),
                         substituted(value.outside, names))  # fmt: skip
        case Reduce():
            iterators = tuple((i, renamed(extent, names)) for i, extent in value.iterators)
            bound = [i for i, _ in value.iterators]
            inner = [(i, k) for i, k in names if not any(i.eq(b) for b in bound)]
            return Reduce(value.reducer, iterators, substituted(value.body, inner))
    return value
