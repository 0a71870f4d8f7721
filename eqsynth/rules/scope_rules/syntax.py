"""What a rule of scopes says, as a tree: two sides, and conditions.

    [*x] = sum(k, *y) F(k) * [k == E]  =>  [*x] = sum(*y) F(E)   if 0 <= E < #k, k not in E

``k`` is an iterator, ``*x`` a group of any number of axes, ``F`` a variable for a body (``F(k)``
may depend on k), ``E`` one for an index. The tree is plain data; ``parser.py`` has checked that
each name means something where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

ANY: Final = "reduce"
"""Stands for any reducer."""

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
    """``#k``: how many values an iterator has."""

    name: str


@dataclass(frozen=True)
class Arithmetic:
    """``+ - * // %`` of two indices; what stands behind ``//`` and ``%``, and one side of ``*``, is
    a number once the iterators' extents are known."""

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
    """``F(k)``: any body. On the left its arguments are the named iterators that it may depend on;
    on the right they are what stands in their places."""

    name: str
    args: tuple[Place, ...]


@dataclass(frozen=True)
class Equals:
    """``[a == b]``: 1 where the indices are equal, else 0."""

    left: Place
    right: Place


@dataclass(frozen=True)
class Within:
    """``[low <= value < high]``: 1 where it is so, else 0."""

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
        extent: of an iterator that the right side makes: ``q < #k // 2``.
    """

    name: str
    group: bool = False
    extent: Place | None = None


@dataclass(frozen=True)
class Inner:
    """``{sum(*y) F}``: a scope of its own, over the iterators around that its body uses."""

    reducer: str
    axes: tuple[Axis, ...]
    body: Body


Body = Number | Variable | Equals | Within | Apply | Plus | Times | Inner

# ---- rules --------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """``[head] = reducer(axes) body``.

    Attributes:
        reducer: empty where nothing is reduced; ``reduce`` for any, the same on both sides.
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
    """``divisor divides value``, both numbers once extents are known."""

    divisor: Place
    value: Place


@dataclass(frozen=True)
class Has:
    """``finite F``, ``constant F``, ``float F``."""

    what: Literal["finite", "constant", "float"]
    variable: str


@dataclass(frozen=True)
class Absent:
    """``k not in E``: the variable doesn't depend on the iterator, or on any of a group."""

    axis: str
    variable: str


@dataclass(frozen=True)
class Broadcasts:
    """``F broadcasts over *x``: it is the same for all values of one of them, or of an iterator."""

    variable: str
    axis: str


Condition = Compare | Divides | Has | Absent | Broadcasts


@dataclass(frozen=True)
class ScopeRule:
    """A rule of scopes.

    Attributes:
        bodies: the variables for bodies, and the iterators that each may depend on besides groups.
        indices: the variables for indices.
        first: of several ways to match the first one is taken: the others follow from its answer.
    """

    text: str
    left: Side
    right: Side
    conditions: tuple[Condition, ...]
    bodies: tuple[tuple[str, tuple[str, ...]], ...]
    indices: tuple[str, ...]
    first: bool = False


def subterms(body: Body) -> Iterator[Body]:
    """A body's parts, itself first."""
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
