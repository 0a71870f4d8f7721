"""The syntax tree of a rule of scopes: two sides, and conditions.

    [*x] = sum(k, *y) F(k) * [k == E]  =>  [*x] = sum(*y) F(E)   if 0 <= E < #k, k not in E

``k`` is an iterator, ``*x`` a group of any number of axes, ``F`` a variable for a body (``F(k)``
may depend on k), ``E`` a variable for an index. The tree is plain data; ``parser.py`` has checked
that each name is defined where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

ANY: Final = "reduce"
"""The name that matches any reducer."""

# ---- indices ------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """An integer."""

    value: int


@dataclass(frozen=True)
class Named:
    """An iterator, or a variable for an index."""

    name: str


@dataclass(frozen=True)
class Extent:
    """``#k``: the extent of an iterator."""

    name: str


@dataclass(frozen=True)
class Arithmetic:
    """``+ - * // %`` of two indices. The right operand of ``//`` and ``%``, and one operand of
    ``*``, must be a number once the iterators' extents are known."""

    sign: Literal["+", "-", "*", "//", "%"]
    left: Place
    right: Place


Place = Whole | Named | Extent | Arithmetic

# ---- bodies -------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A number of the body."""

    value: float


@dataclass(frozen=True)
class Variable:
    """``F(k)``: any body. On the left, the arguments are the named iterators that the body may use;
    on the right, the indices that replace these iterators."""

    name: str
    args: tuple[Place, ...]


@dataclass(frozen=True)
class Equals:
    """``[a == b]``: 1 if the indices are equal, otherwise 0."""

    left: Place
    right: Place


@dataclass(frozen=True)
class AtMost:
    """``[a <= b]``: 1 if the condition holds, otherwise 0."""

    left: Place
    right: Place


@dataclass(frozen=True)
class Within:
    """``[low <= value < high]``: 1 if the condition holds, otherwise 0."""

    low: Place
    value: Place
    high: Place


@dataclass(frozen=True)
class Apply:
    """A scalar function."""

    fn: str
    args: tuple[Body, ...]


@dataclass(frozen=True)
class Plus:
    """A sum of two or more terms, in any order."""

    parts: tuple[Body, ...]


@dataclass(frozen=True)
class Times:
    """A product of two or more factors, in any order."""

    parts: tuple[Body, ...]


@dataclass(frozen=True)
class Axis:
    """An iterator, or a group of them.

    Attributes:
        extent: the extent of an iterator that the right side introduces: ``q < #k // 2``.
    """

    name: str
    group: bool = False
    extent: Place | None = None


@dataclass(frozen=True)
class Inner:
    """``{sum(*y) F}``: an inner scope, traversed over the outer iterators that its body uses."""

    reducer: str
    axes: tuple[Axis, ...]
    body: Body


Body = Number | Variable | Equals | AtMost | Within | Apply | Plus | Times | Inner

# ---- rules --------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """``[head] = reducer(axes) body``.

    Attributes:
        reducer: empty without a reduction; ``reduce`` for any reducer, the same on both sides.
    """

    head: tuple[Axis, ...]
    reducer: str
    axes: tuple[Axis, ...]
    body: Body


@dataclass(frozen=True)
class Compare:
    """``left <= right``, ``<`` or ``==``, for all values of the iterators."""

    left: Place
    sign: Literal["<=", "<", "=="]
    right: Place


@dataclass(frozen=True)
class Divides:
    """``divisor divides value``; both must be numbers once extents are known."""

    divisor: Place
    value: Place


@dataclass(frozen=True)
class Has:
    """``finite F``, ``constant F``, ``float F``, ``summed F``."""

    what: Literal["finite", "constant", "float", "summed"]
    variable: str


@dataclass(frozen=True)
class Absent:
    """``k not in E``: the variable uses neither the iterator nor any iterator of the group."""

    axis: str
    variable: str


@dataclass(frozen=True)
class Broadcasts:
    """``F broadcasts over *x``: F doesn't depend on the iterator, or on one of the group."""

    variable: str
    axis: str


Condition = Compare | Divides | Has | Absent | Broadcasts


@dataclass(frozen=True)
class ScopeRule:
    """A rule of scopes.

    Attributes:
        bodies: the variables for bodies, each with the named iterators that it may use.
        indices: the variables for indices.
        first: whether only the first of several matches is used, since the others follow from it.
    """

    text: str
    left: Side
    right: Side
    conditions: tuple[Condition, ...]
    bodies: tuple[tuple[str, tuple[str, ...]], ...]
    indices: tuple[str, ...]
    first: bool = False


def subterms(body: Body) -> Iterator[Body]:
    """Yield a body and its parts, outermost first."""
    yield body
    parts: tuple[Body, ...] = ()
    if isinstance(body, Plus | Times):
        parts = body.parts
    elif isinstance(body, Apply):
        parts = body.args
    elif isinstance(body, Inner):
        parts = (body.body,)
    for part in parts:
        yield from subterms(part)
