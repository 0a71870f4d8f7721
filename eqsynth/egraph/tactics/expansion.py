"""The expanded form of a scope: all maps that it reads written out, piece by piece, as polynomials.

    L_i {cat(x, y)}[i] * 2                   ->  cat(L_i 2 * x[i], L_i 2 * y[i])
    L_i sum_k (a[i, k] - m[i]) * c[i]        ->  L_i c[i] * {sum_k a}[i] - n * m[i] * c[i]
    L_i sum_k x[i, n - 1 - k] * w[n - 1 - k] ->  L_i sum_k x[i, k] * w[k]

Equalities in a row, each a function here or in the neighbours:

Proof. Let the scope be ``L_X R_Y f``, R its reducer, and look at one element x of X, where all that
either side computes is a finite number.

1. Pieces (:func:`_joined`). X and Y are boxes, and cuts part them into boxes that are disjoint and
   together all of them. An element of a concatenation is that of the piece that it lies in, and
   reducers are associative and commutative: R over Y is what R makes of its values over the parts.
2. Writing out (:meth:`_Pieces.written_out`). On a piece, ``v % n`` is ``v - k*n`` and ``v // n`` is
   k where all values of v lie between k*n and (k+1)*n. A read that is in range everywhere is the
   body of what is read, at its index, since ``t = L g``; one that is so nowhere is its fill. One
   that is in parts stays, but for a sum g of which one term alone can be other than zero there, and
   leaves its tensor where the read left g: in range both are that term, outside both are the fill.
   A comparison that holds everywhere, or nowhere, is a truth. What can't be told cuts the piece or
   stays. f is a function of what it reads, so equals may be put for equals in it.
3. Other iterators (``sums.reindexed``). ``k -> n - 1 - k`` and ``k -> (k + c) % n`` are bijections
   of [0, n), and are applied where k runs over all of it: R meets the same values.
4. Polynomials (``ir/polynomial.py``). The body is its polynomial; argued there, by function.
5. Sums (``sums.summed``). A sum of terms is the sum of their sums; what k doesn't occur in stands
   outside; an iterator that is idle counts its values; and ``sum_{y,z} g(y) h(z)`` is ``{sum_y g}
   {sum_z h}``. Where a factor is zero but for u = k - e in [0, n), and all u + e are values of k,
   those terms are all: a sum over u.
   Products, maxima, minima and truths are taken apart by laws of their own (``extrema.py``).
6. One piece of two (:func:`_one_slab`). Neighbours are one where their bodies are the same, or are
   so with the number of a piece of one value in the place of the iterator.

The obligation is ``tests/egraph/test_expansion.py``: random scopes (reads beyond borders, mirrored
and rotated; maps of maps; all functions) and their forms have the same values. What the proof
doesn't say is how either side rounds, or what it is where a part of it is no finite number: the
rules that ask for the form are of ``proof`` numerics.

It is the meeting point of proofs: two programs of one expanded form are equal. To compute by it
would often be slower than what it is made from, so it isn't looked for in optimizing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from eqsynth.calculus.scopes import bare, reduction_iterators, scope_over
from eqsynth.egraph.tactics.extrema import combined, reduced_form
from eqsynth.egraph.tactics.pieces import (
    MAX_TURNS,
    Box,
    Cut,
    Interval,
    holds,
    in_range,
    intervals,
    local,
    of_dtype,
    same_border,
    simple,
)
from eqsynth.egraph.tactics.sums import OtherDtype, placed, reindexed, summed
from eqsynth.ir.index import Index, It
from eqsynth.ir.polynomial import expand
from eqsynth.ir.ring import NotReal, collect
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Read,
    Scalar,
    Sum,
    children,
    dtype_of,
    product,
    reads,
    rebuild,
    rewrite_leaves,
    substitute,
    total,
    tree_size,
)
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import FLOATS, is_float

# More pieces than this, and bodies of more reads, are left as they are.
MAX_PIECES: Final = 16
MAX_READS: Final = 48
# A reduction of so many values at most is written out value by value.
MAX_POINTS: Final = 16

Map = Callable[[Tensor], "Scope | None"]
"""A scope without a reduction that is equal to a tensor, or None for what is read as it is."""


class _TooLarge(Exception):
    """Written out, the body has too many reads, or a number that isn't finite."""


def expanded(
    scope: Scope, map_of: Map, cancels: bool = False, points: bool = False
) -> Tensor | None:
    """``L_X reduce_Y f = cat over pieces X' of X (L_X' combine over pieces Y' of Y (reduce_Y' f))``
    with each f written out and collected; None if that is the scope itself, or too large.

    Pieces are cut where a read begins or ends to be in range, so that within a piece it is the
    element or the fill. Neighbours of one body are one piece again.

    Args:
        map_of: what may be put in the place of a tensor that is read.
        cancels: also where digits are lost (``ir/polynomial.py``).
        points: iterators of few values are reduced value by value (:func:`by_points`).
    """
    dtype = computed_in(scope)
    if dtype is None or 0 in scope.extents:
        return None
    truths = scope.dtype == "bool"
    numbers = scope
    if truths or dtype_of(scope.body) == "bool":  # a sum of truths counts them
        body = Cast(dtype, scope.body)
        numbers = Scope(scope.traversal, scope.reduction, body, scope.reducer)
    if not of_dtype(numbers, dtype):
        return None
    for turns in (MAX_TURNS, 1):
        with suppress(_TooLarge, NotReal, OtherDtype):
            bodies = _Pieces(numbers, map_of, cancels, turns, points).bodies()
            found = _joined(scope, bodies)
            return None if found == scope or found.type != scope.type else found
    return None


def computed_in(scope: Scope) -> str | None:
    """The dtype of the polynomials of a scope: a truth c is the number [c], 1 or 0, among the
    floats that it compares. None where it has none."""
    if scope.dtype != "bool":
        return scope.dtype
    floats = {read.tensor.dtype for read in reads(scope.body)}.intersection(FLOATS)
    if len(floats) > 1 or dtype_of(scope.body) is None:
        return None
    return min(floats, default="float32")


def by_points(scope: Scope) -> list[It]:
    """The iterators of a reduction that are written out value by value, the shortest first:
    ``max_k x[i, k]``, k < 2, is ``max(x[i, 0], x[i, 1])``, which is what a program computes that
    takes slices by hand."""
    found: list[It] = []
    for it in sorted(reduction_iterators(scope), key=lambda it: (it.extent, it.slot)):
        if math.prod(one.extent for one in (*found, it)) <= MAX_POINTS:
            found.append(it)
    return found


class _Pieces:
    """The pieces of a scope's box, and its body in each of them, over the scope's iterators."""

    def __init__(self, scope: Scope, map_of: Map, cancels: bool, turns: int, points: bool) -> None:
        self._turns = turns
        self._scope = scope
        self._map_of = map_of
        self._cancels = cancels
        self._cuts = [{0, extent} for extent in scope.extents]
        self._most = MAX_PIECES
        for it in by_points(scope) if points else ():
            self._cuts[it.slot] = {*range(it.extent + 1)}
            self._most *= it.extent

    def bodies(self) -> dict[Box, Scalar]:
        """Piece -> body, collected; further cuts are made until no read is partly in range."""
        while True:
            boxes = list(itertools.product(*map(intervals, self._cuts)))
            if len(boxes) > self._most:
                raise _TooLarge
            try:
                return {box: self._body(box) for box in boxes}
            except Cut as cut:
                self._cuts[cut.slot].add(cut.at)

    def _body(self, box: Box) -> Scalar:
        body = self.written_out(self._scope.body, box, frozenset())
        width = len(self._scope.traversal)
        for slot in range(width, len(box)):
            if box[slot] == (0, self._scope.extents[slot]):
                body = reindexed(body, It(slot, self._scope.extents[slot]))
        return collect(expand(body, self._cancels, self._scope.dtype))

    def written_out(self, body: Scalar, box: Box, within: frozenset[Tensor]) -> Scalar:
        """``f(t[m(x)])`` is ``f(g(m(x)))`` where t is ``L g`` and all m(x) are in range, and
        ``f(fill)`` where none is."""

        known: dict[Scalar, Scalar] = {}

        def rewritten(part: Scalar) -> Scalar:
            if part not in known:
                known[part] = leaf(part) if not children(part) else composite(part)
            return known[part]

        def composite(part: Scalar) -> Scalar:
            if isinstance(part, Call) and part.fn == "where":
                true = holds(rewritten(part.args[0]), box)
                if true is not None:
                    return rewritten(part.args[1 if true else 2])
            if isinstance(part, Cast) and part.dtype == self._scope.dtype:
                true = holds(rewritten(part.arg), box)
                if true is not None:
                    return Num(float(true))
            args = [rewritten(arg) for arg in children(part)]
            if isinstance(part, Sum) and not is_float(dtype_of(part) or "float32"):
                # Outside of a tensor of integers is 0, but that alone would have no dtype.
                inside = [
                    arg
                    for arg in args
                    if not (isinstance(arg, Read) and arg.fill == 0 and in_range(arg, box) is False)
                ]
                if dtype_of(total(inside)) == dtype_of(part):
                    return total(inside)
            return rebuild(part, args)

        def leaf(part: Scalar) -> Scalar:
            if not isinstance(part, Read):
                return part
            width = len(self._scope.traversal)
            index = tuple(simple(i, box, width, self._turns) for i in part.index)
            part = Read(part.tensor, index, part.fill)
            where = in_range(part, box)
            if where is False:
                return Num(part.fill) if is_float(part.tensor.dtype) else part
            inside = Read(part.tensor, part.index) if where else part
            inner = None if part.tensor in within else self._map_of(part.tensor)
            if inner is None or not of_dtype(inner, self._scope.dtype):
                return inside
            at = substitute(inner.body, lambda it: part.index[it.slot])
            if where is None:
                moved = same_border(part, at, box)
                if moved is None:
                    return part
                return self.written_out(moved, box, within | {part.tensor})
            return self.written_out(at, box, within | {part.tensor})

        found = rewritten(body)
        if tree_size(found) > MAX_READS:
            raise _TooLarge
        return found


# ---- pieces put together -----------------------------------------------------------------------


def _joined(scope: Scope, bodies: Mapping[Box, Scalar]) -> Tensor:
    """The scope over its pieces: reduced in each piece of the traversal, then concatenated."""
    width = len(scope.traversal)
    columns: dict[Box, dict[Box, Scalar]] = {}
    for box, body in bodies.items():
        columns.setdefault(box[:width], {})[box[width:]] = body
    return _concatenated(scope, columns, 0)


def _concatenated(scope: Scope, columns: Mapping[Box, Mapping[Box, Scalar]], axis: int) -> Tensor:
    """``L_X f = cat(L_X' f, L_X'' f)`` along the axes from ``axis`` on, X' and X'' parts of X;
    what has one body on both sides isn't parted."""
    if axis == len(scope.traversal):
        ((box, parts),) = columns.items()
        return _reduced(scope, box, parts)
    slabs: list[tuple[Interval, dict[Box, dict[Box, Scalar]]]] = []
    for interval in sorted({box[axis] for box in columns}):
        slab = {
            (*box[:axis], *box[axis + 1 :]): dict(parts)
            for box, parts in columns.items()
            if box[axis] == interval
        }
        along = It(axis, scope.traversal[axis])
        whole = _one_slab(*slabs[-1], interval, slab, along) if slabs else None
        if whole is None:
            slabs.append((interval, slab))
        else:
            slabs[-1] = (slabs[-1][0][0], interval[1]), whole
    found = [
        _concatenated(
            scope,
            {(*box[:axis], interval, *box[axis:]): parts for box, parts in slab.items()},
            axis + 1,
        )
        for interval, slab in slabs
    ]
    return found[0] if len(found) == 1 else Op("Concat", tuple(found), (axis,))


def _one_slab(
    first: Interval,
    left: Mapping[Box, Mapping[Box, Scalar]],
    second: Interval,
    right: Mapping[Box, Mapping[Box, Scalar]],
    along: It,
) -> dict[Box, dict[Box, Scalar]] | None:
    """The bodies that two neighbours along an axis have in common, or None."""
    found: dict[Box, dict[Box, Scalar]] = {}
    for box, parts in left.items():
        if right[box].keys() != parts.keys():
            return None
        found[box] = {}
        for rest, body in parts.items():
            common = _one_body(first, body, second, right[box][rest], along)
            if common is None:
                return None
            found[box][rest] = common
    return found


def _one_body(
    first: Interval, left: Scalar, second: Interval, right: Scalar, along: It
) -> Scalar | None:
    """A body that is ``left`` in the first interval of an iterator, and ``right`` in the second.

    An interval of one value may have it as a number: ``x[0, j]`` beside ``x[i, j]`` for i in
    [1, 4), and ``x[0, j]`` beside ``x[1, j]`` are both ``x[i, j]``.
    """
    if left == right:
        return left
    start, goes_on = first[0], second[0]
    one, other = placed(left, along, Index(start)), placed(right, along, Index(goes_on))
    alone = first[1] - start == 1, second[1] - goes_on == 1
    if alone[1] and placed(left, along, Index(goes_on)) == other:
        return left
    if alone[0] and placed(right, along, Index(start)) == one:
        return right
    moving = _between(one, other, along, start) if all(alone) else None
    ends = (placed(moving, along, Index(at)) for at in (start, goes_on)) if moving else ()
    return moving if tuple(ends) == (one, other) else None


def _between(left: Scalar, right: Scalar, along: It, first: int) -> Scalar | None:
    """``left`` with each read moved, as the iterator goes on by one, to where ``right`` reads."""
    pairs = list(zip(reads(left), reads(right), strict=False))
    moved: dict[Scalar, Scalar] = {}
    for one, other in pairs:
        if one.tensor != other.tensor:
            return None
        steps = [b - a for a, b in zip(one.index, other.index, strict=True)]
        if any(step.terms for step in steps):
            return None
        at = bare(along) - first
        index = tuple(a + at * step.const for a, step in zip(one.index, steps, strict=True))
        if moved.setdefault(one, Read(one.tensor, index, one.fill)) != Read(
            one.tensor, index, one.fill
        ):
            return None
    return rewrite_leaves(left, lambda leaf: moved.get(leaf, leaf))


def _reduced(scope: Scope, box: Box, parts: Mapping[Box, Scalar]) -> Scope:
    """One piece of the traversal, its reduction carried out in parts."""
    width = len(scope.traversal)
    kept = [It(slot, high - low) for slot, (low, high) in enumerate(box)]
    found: list[Scalar] = []
    for rest, body in sorted(parts.items()):
        body = substitute(body, local((*box, *rest)))
        reduced = [It(width + n, high - low) for n, (low, high) in enumerate(rest)]
        if not reduced:
            found.append(body)
        elif scope.reducer == "sum":
            found.append(summed(body, set(kept), reduced))
        else:
            found.append(reduced_form(body, set(kept), scope.reducer, reduced))
    whole = _combined(scope.reducer, found)
    if scope.dtype == "bool":
        whole = _as_truth(whole)
    if (
        isinstance(whole, Read)
        and whole.index == tuple(map(bare, kept))
        and isinstance(whole.tensor, Scope)
    ):
        return whole.tensor
    return scope_over(kept, [], whole)


def _combined(reducer: str, parts: Sequence[Scalar]) -> Scalar:
    if len(parts) == 1:
        return parts[0]
    if reducer == "sum":
        return collect(expand(total(parts)))
    if reducer == "prod":
        return collect(expand(product(parts)))
    return combined(reducer, parts)


def _as_truth(number: Scalar) -> Scalar:
    """c of ``[c]``; ``[c]`` is a number that isn't 0 where c holds."""
    if isinstance(number, Cast) and isinstance(number.arg, Read):
        return number.arg
    return Call("ne", (number, Num(0.0)))
