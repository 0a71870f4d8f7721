"""An element of a tensor as a term: reads at symbolic places, functions, reductions, guards.

    Call("add", (Read("a", (i, k)), Read("b", (k, j))))        indices are terms of Z3
    Guard(0 <= i - p, Read("x", (i - p,)), Number(0.0))        a read that may lie outside
    Reduce("max", ((k, 3),), body)                             k runs over [0, 3)

Two elements are the same in one of two ways:

``same``: whatever the functions compute. Guards are decided, or both of their cases looked at;
reads are of one place (by Z3); functions and reductions are equal where their arguments are, the
bounds of a reduction and its body, one iterator for one iterator. Operands that commute may be
swapped, and so may those few functions of which the same bits come out (``relu(relu(x))``). So what
is the same is the same in each dtype and to the last bit.

``equal``: as polynomials over a commutative ring, with sums taken apart; the other functions are
unknown, and finite (:data:`FINITE`), since 0 * inf is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Any, Final, TypeAlias

import z3

from eqsynth.ir.functions import COMMUTATIVE, FUNCTIONS, REDUCERS
from eqsynth.verify.integers import Integers
from eqsynth.verify.verdict import Left

Value: TypeAlias = "Read | Number | Call | Guard | Reduce"


@dataclass(frozen=True, eq=False)
class Read:
    """An element of a tensor; ``flat``: by its one row-major position."""

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
    """A number, or the name of an attribute that is one."""

    value: float | str


@dataclass(frozen=True, eq=False)
class Call:
    """A function of values. Its name says in which dtypes it computes, where they differ."""

    name: str
    args: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Guard:
    """``inside`` where a condition on indices holds, else ``outside``."""

    condition: Any
    inside: Value
    outside: Value


@dataclass(frozen=True, eq=False)
class Reduce:
    """A reduction over iterators; of an unknown kind it is any functional of the body."""

    reducer: str
    iterators: tuple[tuple[Any, Any], ...]
    body: Value


Iterators: TypeAlias = Sequence[tuple[Any, Any]]
Names: TypeAlias = Sequence[tuple[Any, Any]]
_Aligned: TypeAlias = tuple[Names, Names, tuple[Any, ...]]

_RING: Final = frozenset({"add", "sub", "mul", "neg"})

FINITE: Final = frozenset({
    "points", "relu", "exp", "abs", "sign", "floor", "ceil", "trunc", "sin", "cos", "tanh", "erf",
    "sigmoid", "silu", "gelu", "gelu_tanh", "max", "min", "expm1", "exp2",
})  # fmt: skip
"""Functions that are finite on all finite numbers, as real numbers; of the points of a window
there is at least one."""

_COMMUTATIVE: Final = COMMUTATIVE | {"add", "mul"}
_MOST_SPLITS: Final = 64
# Integers below are numbers of every integer dtype.
_MOST_WHOLE: Final = 128


def row_major(index: Sequence[Any], extents: Sequence[Any]) -> Any:
    at: Any = 0
    for i, extent in zip(index, extents, strict=True):
        at = at * extent + i
    return at


def guarded(condition: Any, inside: Value, outside: Value) -> Value:
    if isinstance(condition, bool):
        return inside if condition else outside
    return Guard(condition, inside, outside)


class Comparison:
    """Compares values, given what is known of the integers in them."""

    def __init__(self, ints: Integers, *, bitwise: bool = True, whole: bool = False) -> None:
        """
        Args:
            bitwise: no digit may differ.
            whole: of integers modulo their size, where no other number is a factor.
        """
        self.ints = ints
        self.bitwise = bitwise
        self.whole = whole
        self.splits = 0

    # ---- whatever the functions compute ----------------------------------------------

    def same(self, a: Value, b: Value, given: tuple[Any, ...] = ()) -> bool:
        condition = next(_conditions(a), None)
        if condition is None:
            condition = next(_conditions(b), None)
        if condition is not None:
            for known in (condition, z3.Not(condition)):
                if self.ints.holds(known, given):
                    taken = known is condition
                    return self.same(
                        _decided(a, condition, taken), _decided(b, condition, taken), given
                    )
            self.splits += 1
            if self.splits > _MOST_SPLITS:
                raise Left("more cases of guards than are looked at")
            return all(
                self.same(_decided(a, condition, taken), _decided(b, condition, taken),
                          (*given, condition if taken else z3.Not(condition)))
                for taken in (True, False)
            )  # fmt: skip
        a, b = self._simpler(a, given), self._simpler(b, given)
        return self._same(a, b, given)

    def _same(self, a: Value, b: Value, given: tuple[Any, ...]) -> bool:
        if isinstance(a, Read) and isinstance(b, Read):
            return self._same_place(a, b, given)
        if isinstance(a, Number) and isinstance(b, Number):
            return a.value == b.value
        if isinstance(a, Call) and isinstance(b, Call):
            if a.name != b.name or len(a.args) != len(b.args):
                return False
            pairs = [list(zip(a.args, b.args, strict=True))]
            if _function(a.name) in _COMMUTATIVE:
                pairs.append(list(zip(a.args, reversed(b.args), strict=True)))
            return any(all(self.same(x, y, given) for x, y in pair) for pair in pairs)
        if isinstance(a, Reduce) and isinstance(b, Reduce) and a.reducer == b.reducer:
            return any(
                self.same(substituted(a.body, one), substituted(b.body, two), (*given, *ranges))
                for one, two, ranges in self._aligned(a.iterators, b.iterators, given)
            )
        return False

    def _aligned(self, a: Iterators, b: Iterators, given: tuple[Any, ...]) -> Iterator[_Aligned]:
        """New names for the iterators of both, the same for two of one extent, in each order that
        fits. New ones, since a name of one side may be bound within the other."""
        if len(a) != len(b):
            return
        for order in permutations(b):
            pairs = list(zip(a, order, strict=True))
            if all(self.ints.holds(z3.IntVal(0) + e == f, given) for (_, e), (_, f) in pairs):
                new = [z3.FreshInt("k") for _ in pairs]
                yield (
                    [(i, k) for (i, _), k in zip(a, new, strict=True)],
                    [(i, k) for (i, _), k in zip(order, new, strict=True)],
                    _bounds([(k, e) for (_, e), k in zip(a, new, strict=True)]),
                )

    def _same_place(self, a: Read, b: Read, given: tuple[Any, ...]) -> bool:
        if a.name != b.name:
            return False
        if not a.flat and not b.flat and all(
            self.ints.holds(z3.IntVal(0) + i == j, given)
            for i, j in zip(a.index, b.index, strict=True)
        ):  # fmt: skip
            return True
        if not a.flat and not b.flat:
            return False
        return self.ints.holds(z3.IntVal(0) + a.position == b.position, given)

    def _simpler(self, value: Value, given: tuple[Any, ...]) -> Value:
        """Functions of functions that give the same bits without one of them, in each dtype."""
        if not isinstance(value, Call):
            return value
        args = tuple(self._simpler(arg, given) for arg in value.args)
        name = _function(value.name)
        if name in ("relu", "abs") and isinstance(args[0], Call):
            inner = _function(args[0].name)
            if (name, inner) in (("relu", "relu"), ("abs", "relu"), ("abs", "abs")):
                return args[0]
        if name == "neg" and isinstance(args[0], Call) and _function(args[0].name) == "neg":
            return args[0].args[0]
        if name == "max" and any(isinstance(arg, Number) and arg.value == 0 for arg in args):
            zero = 0 if isinstance(args[0], Number) and args[0].value == 0 else 1
            return self._simpler(Call("relu", (args[1 - zero],)), given)
        if name == "reciprocal" and isinstance(args[0], Call) and not self.bitwise:
            if _function(args[0].name) == "sqrt":
                return Call("rsqrt", args[0].args)
        if name in ("max", "min") and self.same(args[0], args[1], given):
            return args[0]
        increasing = len(args) == 1 and name in FUNCTIONS and FUNCTIONS[name].increasing
        if increasing and isinstance(args[0], Reduce) and args[0].reducer in ("max", "min"):
            # f(max_k g) = max_k f(g), k not empty: relu takes one of two, others may round.
            inner_reduce = args[0]
            full = [self.ints.holds(z3.IntVal(0) + e >= 1, given)
                    for _, e in inner_reduce.iterators]  # fmt: skip
            if all(full) and (name == "relu" or not self.bitwise):
                body = Call(value.name, (inner_reduce.body,))
                return Reduce(inner_reduce.reducer, inner_reduce.iterators, body)
        return Call(value.name, args)

    # ---- as polynomials ---------------------------------------------------------------

    def equal(self, a: Value, b: Value, given: tuple[Any, ...] = ()) -> bool:
        """Whether two values are the same polynomial, sums taken apart."""
        left = list(_terms(a))
        right = [t.times(Fraction(-1)) for t in _terms(b)]
        rest = [*left, *right]
        if self.whole and not all(n in range(_MOST_WHOLE) for v in (a, b) for n in _numbers(v)):
            raise Left("a number that isn't one of each integer dtype")
        while rest:
            term = rest.pop()
            for n, other in enumerate(rest):
                if self._alike(term, other, given):
                    rest[n] = other.with_factor(term.factor + other.factor)
                    break
            else:
                if term.factor != 0 and not self._never(term, given):
                    return False
            rest = [t for t in rest if t.factor != 0]
        return True

    def _never(self, term: _Term, given: tuple[Any, ...]) -> bool:
        return bool(term.conditions) and self.ints.holds(
            z3.Not(z3.And(*term.conditions)), (*given, *_bounds(term.iterators))
        )

    def _alike(self, a: _Term, b: _Term, given: tuple[Any, ...]) -> bool:
        if a.names != b.names or len(a.iterators) != len(b.iterators):
            return False
        for one, two, ranges in self._aligned(a.iterators, b.iterators, given):
            where, there = (
                _renamed(z3.And(*term.conditions, True), names)
                for term, names in ((a, one), (b, two))
            )
            if not self.ints.holds(where == there, (*given, *ranges)):
                continue
            mine, other = ([substituted(atom, names) for atom in term.atoms]
                           for term, names in ((a, one), (b, two)))  # fmt: skip
            if self._matched(mine, other, (*given, *ranges, where)):
                return True
        return False

    def _matched(self, a: list[Value], b: list[Value], given: tuple[Any, ...]) -> bool:
        if not a:
            return not b
        for n, other in enumerate(b):
            if self._same_atom(a[0], other, given) and self._matched(
                a[1:], [*b[:n], *b[n + 1 :]], given
            ):
                return True
        return False

    def _same_atom(self, a: Value, b: Value, given: tuple[Any, ...]) -> bool:
        if isinstance(a, Call) and isinstance(b, Call) and a.name == b.name:
            if all(self.equal(x, y, given) for x, y in zip(a.args, b.args, strict=True)):
                return True
        if isinstance(a, Reduce) and isinstance(b, Reduce) and a.reducer == b.reducer:
            return any(
                self.equal(substituted(a.body, one), substituted(b.body, two), (*given, *ranges))
                for one, two, ranges in self._aligned(a.iterators, b.iterators, given)
            )
        return self.same(a, b, given)


def _numbers(value: Value) -> Iterator[float | str]:
    """The numbers in a value; what integers make of others depends on their size."""
    match value:
        case Number():
            yield value.value
        case Call():
            for arg in value.args:
                yield from _numbers(arg)
        case Guard():
            yield from _numbers(value.inside)
            yield from _numbers(value.outside)
        case Reduce():
            yield from _numbers(value.body)


def _function(name: str) -> str:
    """The function's own name, without the dtypes that it computes in."""
    return name.partition(":")[0]


def _bounds(iterators: Iterators) -> tuple[Any, ...]:
    return tuple(bound for i, extent in iterators for bound in (i >= 0, i < extent))


def _conditions(value: Value) -> Iterator[Any]:
    """The guards of a value that no iterator inside of it takes part in."""
    if isinstance(value, Guard):
        yield value.condition
        yield from _conditions(value.inside)
        yield from _conditions(value.outside)
    elif isinstance(value, Call):
        for arg in value.args:
            yield from _conditions(arg)


def _decided(value: Value, condition: Any, holds: bool) -> Value:
    if isinstance(value, Guard):
        if value.condition.eq(condition):
            return _decided(value.inside if holds else value.outside, condition, holds)
        return Guard(value.condition, _decided(value.inside, condition, holds),
                     _decided(value.outside, condition, holds))  # fmt: skip
    if isinstance(value, Call):
        return Call(value.name, tuple(_decided(arg, condition, holds) for arg in value.args))
    return value


def _renamed(x: Any, names: Names) -> Any:
    return z3.substitute(x, *names) if z3.is_expr(x) and names else x


def substituted(value: Value, names: Names) -> Value:
    """The value with iterators renamed that aren't bound within it."""
    match value:
        case Read():
            index = tuple(_renamed(i, names) for i in value.index)
            return Read(value.name, index, value.extents, value.flat)
        case Call():
            return Call(value.name, tuple(substituted(arg, names) for arg in value.args))
        case Guard():
            return Guard(_renamed(value.condition, names), substituted(value.inside, names),
                         substituted(value.outside, names))  # fmt: skip
        case Reduce():
            iterators = tuple((i, _renamed(extent, names)) for i, extent in value.iterators)
            bound = [i for i, _ in value.iterators]
            inner = [(i, k) for i, k in names if not any(i.eq(b) for b in bound)]
            return Reduce(value.reducer, iterators, substituted(value.body, inner))
    return value


@dataclass(frozen=True, eq=False)
class _Term:
    """``factor * sum over iterators of (conditions hold) * atoms``."""

    factor: Fraction
    iterators: tuple[tuple[Any, Any], ...] = ()
    conditions: tuple[Any, ...] = ()
    atoms: tuple[Value, ...] = ()

    def times(self, factor: Fraction) -> _Term:
        return self.with_factor(self.factor * factor)

    def with_factor(self, factor: Fraction) -> _Term:
        return _Term(factor, self.iterators, self.conditions, self.atoms)

    @property
    def names(self) -> tuple[str, ...]:
        """What the atoms are: terms that are alike have the same."""
        return tuple(sorted(
            f"{type(a).__name__} {getattr(a, 'name', '') or getattr(a, 'reducer', '')}"
            for a in self.atoms
        ))  # fmt: skip


def _terms(value: Value) -> Iterator[_Term]:
    """A value as a sum of terms.

    Raises:
        Left: a number or a function that may not be finite.
    """
    match value:
        case Number(value=float() as n) if math.isfinite(n):
            yield _Term(Fraction(n))
        case Guard():
            yield from (_with(t, value.condition) for t in _terms(value.inside))
            for term in _terms(value.outside):
                yield term
                yield _with(term.times(Fraction(-1)), value.condition)
        case Call(name="add" | "sub"):
            yield from _terms(value.args[0])
            sign = Fraction(1 if value.name == "add" else -1)
            yield from (term.times(sign) for term in _terms(value.args[1]))
        case Call(name="neg"):
            yield from (term.times(Fraction(-1)) for term in _terms(value.args[0]))
        case Call(name="mul"):
            for one in _terms(value.args[0]):
                for two in _terms(value.args[1]):
                    yield _product(one, two)
        case Reduce(reducer="sum"):
            for term in _terms(value.body):
                yield _Term(term.factor, (*value.iterators, *term.iterators), term.conditions,
                            term.atoms)  # fmt: skip
        case _ if not _finite(value):
            name = getattr(value, "name", "") or getattr(value, "reducer", "a number")
            raise Left(f"{name} takes part in a sum or product, and may be infinite")
        case _:
            yield _Term(Fraction(1), (), (), (value,))


def _finite(value: Value) -> bool:
    """Whether a value is a finite real number, as elements of tensors are. A maximum over padding
    alone is not, nor a number that a rule only names."""
    match value:
        case Number():
            return isinstance(value.value, float) and math.isfinite(value.value)
        case Call():
            return value.name in FINITE | _RING and all(map(_finite, value.args))
        case Guard():
            return _finite(value.inside) and _finite(value.outside)
        case Reduce():
            return value.reducer in REDUCERS and _finite(value.body)
    return True


def _with(term: _Term, condition: Any) -> _Term:
    return _Term(term.factor, term.iterators, (*term.conditions, condition), term.atoms)


def _product(one: _Term, two: _Term) -> _Term:
    # Iterators of the second get names of their own: a sum may be multiplied by itself.
    named = [(i, z3.FreshInt("k")) for i, _ in two.iterators]
    iterators = tuple((k, e) for (_, k), (_, e) in zip(named, two.iterators, strict=True))
    conditions = tuple(_renamed(c, named) for c in two.conditions)
    atoms = tuple(substituted(atom, named) for atom in two.atoms)
    return _Term(one.factor * two.factor, (*one.iterators, *iterators),
                 (*one.conditions, *conditions), (*one.atoms, *atoms))  # fmt: skip
