"""Scope -> view: one read at composed indices as a chain of view primitives (Syno Table 1).

    L_{i,j} x[6*i + j]   ->   Split(x, 0, 6)

Each primitive that is applied to ``t`` in ``L_x t[e(x)]`` makes the indices simpler, until they are
the iterators themselves. Several primitives may apply, so this is a best-first search; the shape
distance from the result to the current shape is a lower bound of the primitives that are left.
Mirrored axes (``x[n - 1 - i]``) and diagonals (``x[i, i]``) have no such chain. Not here: the
opposite direction, the index map of each view (``views.py``).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.ir.index import Atom, FloorDiv, Index, It, Mod
from eqsynth.ir.operators import Attr
from eqsynth.ir.scalar import Read
from eqsynth.ir.shape_distance import shape_distance
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import Shape, is_float

# The search gives up chains of more primitives, and stops after so many states.
MAX_PRIMITIVES = 8
MAX_STATES = 300


@dataclass(frozen=True)
class _State:
    """``L_x term[index]``, ``fill`` outside: equal to the scope that the search began with."""

    term: Tensor
    index: tuple[Index, ...]
    fill: float

    @property
    def shape(self) -> Shape:
        return self.term.shape

    def through(self, name: str, attrs: tuple[Attr, ...], index: list[Index]) -> _State:
        return _State(Op(name, (self.term,), attrs), tuple(index), self.fill)

    def at(self, axis: int, *new: Index, over: int = 1) -> list[Index]:
        """The indices with those of ``over`` axes from ``axis`` on replaced."""
        return [*self.index[:axis], *new, *self.index[axis + over :]]

    def ranges(self) -> list[tuple[int, int]]:
        return [index.range() for index in self.index]

    def inside(self, axis: int) -> bool:
        low, high = self.index[axis].range()
        return low >= 0 and high < self.shape[axis]


@lru_cache(maxsize=1 << 14)
def view_chain(scope: Scope) -> Tensor | None:
    """The shortest chain of views that the search finds; None if there is none.

    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> x = Input("x", TensorType((24,), "float32"))
    >>> i, j = Index.iterator(0, 4), Index.iterator(1, 6)
    >>> print(view_chain(Scope((4, 6), (), Read(x, (6 * i + j,)))))
    t0 = Split(x, 0, 6)  # float32[4, 6]
    """
    body = scope.body
    if scope.reduction or not isinstance(body, Read) or 0 in (*scope.shape, *body.tensor.shape):
        return None
    if body.tensor.dtype != scope.dtype or _is_diagonal(body.index):
        return None
    first = _State(body.tensor, body.index, body.fill)
    counter = itertools.count()
    waiting = [(0.0, 0, next(counter), first)]
    seen: set[tuple[Shape, tuple[Index, ...]]] = set()
    while waiting and len(seen) < MAX_STATES:
        _, length, _, state = heapq.heappop(waiting)
        if (state.shape, state.index) in seen:
            continue
        seen.add((state.shape, state.index))
        done = _finished(state, scope.traversal)
        if done is not None:
            return done if done != body.tensor else None
        if length == MAX_PRIMITIVES:
            continue
        for after, steps in _moves(state):
            far = shape_distance(scope.traversal, after.shape)
            left = far if math.isfinite(far) else 1 + len(after.shape)
            entry = (length + steps + left, length + steps, next(counter), after)
            heapq.heappush(waiting, entry)
    return None


def _is_diagonal(index: Sequence[Index]) -> bool:
    """Whether an iterator is a term of the index of one axis and occurs in another index too.

    Examples: ``x[i, i + 2*j]``, ``x[i % 2, i // 2, i + 2*j]``. No chain gives such a view, and the
    search would visit all its states. The reason: every primitive leaves a term in the index of
    some axis, and merges two axes only if these are read at digits of one number.
    """
    terms = [{atom for atom, _ in part.terms if isinstance(atom, It)} for part in index]
    inside = [set(part.iterators()) for part in index]
    return any(
        terms[one] & inside[other] for one, other in itertools.permutations(range(len(index)), 2)
    )


def _finished(state: _State, traversal: Shape) -> Tensor | None:
    """The finished chain, if each index is an iterator: axes permuted, missing ones expanded."""
    axis_of: dict[int, int] = {}
    for axis, (index, extent) in enumerate(zip(state.index, state.shape, strict=True)):
        it = index.bare()
        if it is not None and it.extent == extent and it.slot not in axis_of:
            axis_of[it.slot] = axis
        elif extent != 1 or index != Index(0):
            return None
    wide = [axis_of[slot] for slot in sorted(axis_of)]
    term = state.term
    if wide != sorted(wide):
        order = (*wide, *(axis for axis in range(len(state.shape)) if axis not in wide))
        term = Op("Permute", (term,), (order,))
    present = tuple(e if slot in axis_of else 1 for slot, e in enumerate(traversal))
    if term.shape != present:
        term = Op("Reshape", (term,), (present,))
    return term if present == traversal else Op("Expand", (term,), (traversal,))


def _moves(state: _State) -> Iterator[tuple[_State, int]]:
    """The states after each primitive that applies, with the number of views that it takes."""
    for axis in range(len(state.shape)):
        yield from _splits(state, axis)
        yield from _shifts(state, axis)
        yield from _unfolds(state, axis)
        yield from _strides(state, axis)
        yield from _merges(state, axis)
    yield from _pads(state)


def _splits(state: _State, axis: int) -> Iterator[tuple[_State, int]]:
    """Split of an axis read at ``b*q + r``, r in [0, b), into blocks of b.

    The read of the split axes is out of range for the same values as the read of the axis.
    """
    index, extent = state.index[axis], state.shape[axis]
    for b in sorted({abs(c) for _, c in index.terms}):
        if b == 1 or extent % b or b == extent:
            continue
        high = tuple((a, c // b) for a, c in index.terms if c % b == 0)
        rest = Index(0, tuple((a, c) for a, c in index.terms if c % b))
        low = rest.range()[0]
        digit = rest + ((index.const + low) % b - low)
        if rest.terms and high and digit.range()[1] < b:
            quotient = Index((index.const - digit.const) // b, high)
            yield state.through("Split", (axis, b), state.at(axis, quotient, digit)), 1


def _shifts(state: _State, axis: int) -> Iterator[tuple[_State, int]]:
    """Shift by c of an axis of extent n that is read at ``(e + c) % n``, e in [0, n)."""
    atom, extent = _only(state.index[axis]), state.shape[axis]
    if isinstance(atom, Mod) and atom.divisor == extent:
        e, c = atom.value - atom.value.const, atom.value.const
        if e.range()[0] >= 0 and e.range()[1] < extent and c % extent:
            yield state.through("Shift", (axis, c % extent), state.at(axis, e)), 1


def _unfolds(state: _State, axis: int) -> Iterator[tuple[_State, int]]:
    """Unfold of an axis read at ``e + r - k//2``, r in [0, k), e in the axis; 0 outside of it."""
    index, extent = state.index[axis], state.shape[axis]
    if len(index.terms) < 2 or (state.fill != 0 and not state.inside(axis)):
        return
    for atom, c in reversed(index.terms):
        if isinstance(atom, It) and c > 0:
            size = c * atom.extent
            window = Index(0, ((atom, c),))
            centre = index - window + size // 2
            low, high = centre.range()
            if low >= 0 and high < extent:
                yield state.through("Unfold", (axis, size), state.at(axis, centre, window)), 1


def _strides(state: _State, axis: int) -> Iterator[tuple[_State, int]]:
    """Stride of an axis read at ``s*e``; Slice of the part of an axis that is read."""
    index, extent = state.index[axis], state.shape[axis]
    step = math.gcd(*(c for _, c in index.terms)) if index.terms else 1
    if step > 1 and index.const % step == 0 and extent % step == 0:
        divided = Index(index.const // step, tuple((a, c // step) for a, c in index.terms))
        yield state.through("Stride", (axis, step), state.at(axis, divided)), 1
    low, high = index.range()
    if low < 0 or high >= extent or (low == 0 and high == extent - 1 and step == 1):
        return
    terms = tuple((a, c // step) for a, c in index.terms)
    part = Index((index.const - low) // step, terms)
    yield state.through("Slice", (axis, low, high + 1, step), state.at(axis, part)), 1


def _merges(state: _State, axis: int) -> Iterator[tuple[_State, int]]:
    """Merge of two axes read at ``z // b`` and ``z % b`` to one axis read at z.

    If only one of the two axes is there, the other is added first, with repeated elements (tiling,
    up-sampling).
    """
    atom, extent = _only(state.index[axis]), state.shape[axis]
    if isinstance(atom, Mod) and atom.divisor == extent:
        z = atom.value
        quotient = _quotient(z, extent)
        partners = [a for a, index in enumerate(state.index) if index == quotient]
        for partner in partners:
            yield _merged(state, partner, axis, z)
        if not partners and z.terms:
            z = z + -(z.range()[0] // extent) * extent
            repeated = _repeated(state, axis, z.range()[1] // extent + 1, _quotient(z, extent))
            after, steps = _merged(repeated, axis, axis + 1, z)
            yield after, steps + 2
    if isinstance(atom, FloorDiv):
        z, b = atom.value, atom.divisor
        if not any(_only(index) == Mod(z, b) for index in state.index):
            repeated = _repeated(state, axis + 1, b, z % b)
            after, steps = _merged(repeated, axis, axis + 1, z)
            yield after, steps + 2


def _quotient(z: Index, divisor: int) -> Index:
    """``z // divisor``, a quotient of a quotient as one [rules/index.egg, div-of-div]."""
    atom = _only(z)
    if isinstance(atom, FloorDiv):
        return atom.value // (atom.divisor * divisor)
    return z // divisor


def _repeated(state: _State, axis: int, extent: int, index: Index) -> _State:
    """Add an axis before ``axis`` along which elements repeat, read at ``index``."""
    shape = state.shape
    unit = Op("Reshape", (state.term,), ((*shape[:axis], 1, *shape[axis:]),))
    term = Op("Expand", (unit,), ((*shape[:axis], extent, *shape[axis:]),))
    return _State(term, (*state.index[:axis], index, *state.index[axis:]), state.fill)


def _merged(state: _State, first: int, second: int, z: Index) -> tuple[_State, int]:
    """Merge two axes to one that is read at ``z``; permute first if they aren't neighbours."""
    steps = 1
    if second != first + 1:
        rest = [axis for axis in range(len(state.shape)) if axis != second]
        place = rest.index(first) + 1
        order = (*rest[:place], second, *rest[place:])
        state = state.through("Permute", (order,), [state.index[axis] for axis in order])
        first, steps = place - 1, 2
    return state.through("Merge", (first,), state.at(first, z, over=2)), steps


def _pads(state: _State) -> Iterator[tuple[_State, int]]:
    """Pad of all axes by the places that are read outside of them, with the fill of the read."""
    if not (math.isfinite(state.fill) or is_float(state.term.dtype)):
        # A read gives the smallest or largest integer there; padding by an infinity has no meaning.
        return
    before = tuple(max(0, -low) for low, _ in state.ranges())
    after = tuple(
        max(0, high - extent + 1)
        for (_, high), extent in zip(state.ranges(), state.shape, strict=True)
    )
    if any((*before, *after)):
        moved = [index + b for index, b in zip(state.index, before, strict=True)]
        yield state.through("Pad", (before, after, state.fill), moved), 1


def _only(index: Index) -> Atom | None:
    """The atom, if the index is a single atom with coefficient 1 and no constant."""
    if index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1:
        return index.terms[0][0]
    return None
