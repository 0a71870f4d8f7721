"""The expanded form of a scope: all maps that it reads are written out, piece by piece, and the
bodies are polynomials.

    L_i {cat(x, y)}[i] * 2                   ->  cat(L_i 2 * x[i], L_i 2 * y[i])
    L_i sum_k (a[i, k] - m[i]) * c[i]        ->  L_i c[i] * {sum_k a}[i] - n * m[i] * c[i]
    L_i sum_k x[i, n - 1 - k] * w[n - 1 - k] ->  L_i sum_k x[i, k] * w[k]

Two programs with the same expanded form are equal, so proofs of equality meet there. Computing by
the expanded form would often be slower than computing the scope, so optimization doesn't ask for
it. A scope equals its expanded form by six steps, each a function here or in a module beside. Which
maps are written out is an argument; that each map equals the tensor in whose place it is written is
a hypothesis, for the caller to justify.

Proof. Let the scope be ``L_X R_Y f`` with the reducer R. Look at one element x of X at which every
value that either side computes is a finite number.

1. Pieces (:func:`_joined`). X and Y are boxes, and the cuts divide each of them into disjoint boxes
   that cover it. An element of a concatenation is the element of the piece in which it lies.
   Reducers are associative and commutative, so R over Y is R of the results over the parts of Y.
2. Writing out (:meth:`_Pieces.written_out`). In a piece where all values of v lie in
   [k*n, (k+1)*n), ``v % n`` is ``v - k*n`` and ``v // n`` is k. A read of ``t = L g`` that is in
   range everywhere in the piece is g at the read's index; a read that is in range nowhere is its
   fill. A read that is partly in range stays, with two exceptions. If only one term of a sum g can
   be other than zero in the piece, and this term leaves its tensor exactly where the read leaves t,
   then the term, with the read's fill, replaces the read: in range both are the term, out of range
   both are the fill. If g is a number, the fill 0, and t has one element along each axis that the
   read leaves, then the read is g times ``[i == 0]`` for each index i along these axes. A
   comparison that holds everywhere in the piece, or nowhere, is a truth value. An undecided
   question cuts the piece, or the expression stays. f is a function of the values that it reads,
   so equal expressions may replace each other in f.
3. Other iterators (``sums.reindexed``). ``k -> n - 1 - k`` and ``k -> (k + c) % n`` are bijections
   of [0, n), and are applied only if k runs over all of [0, n): R combines the same values.
4. Polynomials (``polynomial.py``). The body equals its polynomial, as argued there by function.
5. Sums (``sums.summed``). A sum of several terms is the sum of the terms' sums. A factor without k
   moves out of a sum over k. An iterator that occurs in no factor multiplies by its extent.
   ``sum_{y,z} g(y) h(z)`` is ``{sum_y g} {sum_z h}``. If a factor is zero except for u = k - e in
   [0, n), and every u + e is a value of k, then the sum over k is a sum over u.
   Products, maxima, minima and truths are decomposed by laws of their own (``extrema.py``).
6. One piece from two (:func:`_one_slab`). Neighbouring pieces are joined if their bodies are the
   same, or are the same after the iterator replaces its value in a piece of one value.

The obligation is ``tests/expansion/test_expanded.py``: random scopes (reads beyond borders,
mirrored and rotated reads, maps of maps, all functions) have the same values as their expanded
forms. The proof says nothing about how either side rounds, or about values with a part that isn't
finite, so the rules that ask for the form have ``proof`` numerics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from eqsynth.errors import LawError
from eqsynth.expansion.extrema import combined, reduced_form
from eqsynth.expansion.pieces import (
    MAX_TURNS,
    Box,
    Cut,
    Interval,
    holds,
    in_range,
    intervals,
    local,
    of_dtype,
    one_place,
    same_border,
    simple,
)
from eqsynth.expansion.polynomial import expand
from eqsynth.expansion.ring import NotReal, collect
from eqsynth.expansion.sums import OtherDtype, placed, reindexed, summed
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Read,
    Scalar,
    Sum,
    children,
    dtype_of,
    in_dtype,
    product,
    reads,
    rebuild_in_dtype,
    rewrite_leaves,
    substitute,
    total,
    tree_size,
)
from eqsynth.ir.scopes import bare, reduction_iterators, scope_over
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import FLOATS, is_float

# A scope isn't expanded if it would have more pieces than this, or a body with more leaves.
MAX_PIECES: Final = 16
MAX_READS: Final = 48
# The most values of a reduction that is written out value by value.
MAX_POINTS: Final = 16

Maps = Callable[[Tensor], "Scope | float | None"]
"""Returns what to write in the place of a tensor: a scope without a reduction that is equal to the
tensor, or the number that all of its elements are; None if reads of the tensor are to stay."""


@dataclass(frozen=True)
class Expand:
    """What the expanded form of a scope is made by.

    Attributes:
        maps: the map for a tensor, or a number (hypotheses). It is asked only about tensors that
            are met when the scope is written out, so that nothing has to be found for others.
        cancels: also use the identities that lose digits in floats (``polynomial.py``).
        points: reduce iterators of few values value by value (:func:`by_points`)."""

    maps: Maps
    cancels: bool = False
    points: bool = False


class _TooLarge(Exception):
    """The scope has too many pieces, or its body has too many leaves after writing out."""


def expanded(scope: Scope, given: Expand) -> Tensor | None:
    """``L_X reduce_Y f = cat over pieces X' of X (L_X' combine over pieces Y' of Y (reduce_Y' f))``
    with each f written out and collected as a polynomial. None if this is the scope itself, if it
    would be too large, or if the scope's dtypes or numbers don't allow it.

    Pieces are cut where a read begins or ends to be in range, so that within a piece the read is an
    element or the fill. Neighbouring pieces with the same body are joined again.

    Raises:
        LawError: ``map``: what ``given.maps`` returns for a tensor is no scope, reduces, or is of
            another type; ``dtype``: it is a number, and the tensor isn't of the dtype in which the
            scope is computed.
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
            bodies = _Pieces(numbers, dtype, given, turns).bodies()
            found = _joined(scope, bodies)
            return None if found == scope or found.type != scope.type else found
    return None


def computed_in(scope: Scope) -> str | None:
    """The dtype of a scope's polynomials. In a scope of truths, a truth c is the number [c], 1 or
    0, of the float dtype that the scope reads, or of float32 if it reads no floats. None if it
    reads several float dtypes, or if its body is of numbers alone."""
    if scope.dtype != "bool":
        return scope.dtype
    floats = {read.tensor.dtype for read in reads(scope.body)}.intersection(FLOATS)
    if len(floats) > 1 or dtype_of(scope.body) is None:
        return None
    return min(floats, default="float32")


def by_points(scope: Scope) -> list[It]:
    """The iterators of a reduction to write out value by value, the shortest first, as long as they
    have at most ``MAX_POINTS`` values together: ``max_k x[i, k]`` for k < 2 ->
    ``max(x[i, 0], x[i, 1])``. A program that takes slices by hand computes the latter."""
    found: list[It] = []
    for it in sorted(reduction_iterators(scope), key=lambda it: (it.extent, it.slot)):
        if math.prod(one.extent for one in (*found, it)) <= MAX_POINTS:
            found.append(it)
    return found


class _Pieces:
    """The pieces of a scope's box, and its body in each of them, over the scope's iterators."""

    def __init__(self, scope: Scope, dtype: str, given: Expand, turns: int) -> None:
        self._turns = turns
        self._scope = scope
        self._dtype = dtype
        self._given = given
        self._cuts = [{0, extent} for extent in scope.extents]
        self._most = MAX_PIECES
        for it in by_points(scope) if given.points else ():
            self._cuts[it.slot] = {*range(it.extent + 1)}
            self._most *= it.extent

    def bodies(self) -> dict[Box, Scalar]:
        """Return piece -> collected body. Pieces are cut until no question raises :class:`Cut`."""
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
        return collect(expand(body, self._given.cancels, self._scope.dtype))

    def _map_of(self, tensor: Tensor) -> Scope | None:
        """Return the map to write out in the place of a tensor; None if reads of it stay."""
        found = self._given.maps(tensor)
        if isinstance(found, float):
            if tensor.dtype != self._dtype:
                raise LawError("a number of another dtype", law="expanded", condition="dtype")
            return Scope(tensor.shape, (), Num(found))
        is_map = isinstance(found, Scope) and not found.reduction and found.type == tensor.type
        if not (found is None or is_map):
            raise LawError("what is written out is no map", law="expanded", condition="map")
        return found

    def written_out(self, body: Scalar, box: Box, within: frozenset[Tensor]) -> Scalar:
        """Return the body with maps written out: ``f(t[m(x)])`` -> ``f(g(m(x)))`` if t is ``L g``
        and all m(x) are in range, ``f(fill)`` if none is.

        Args:
            within: the tensors that are being written out; reads of them stay.
        """

        known: dict[Scalar, Scalar] = {}

        def rewritten(part: Scalar) -> Scalar:
            if part not in known:
                known[part] = leaf(part) if not children(part) else composite(part)
            return known[part]

        def composite(part: Scalar) -> Scalar:
            if isinstance(part, Call) and part.fn == "where":
                true = holds(rewritten(part.args[0]), box)
                if true is not None:
                    return in_dtype(rewritten(part.args[1 if true else 2]), dtype_of(part))
            if isinstance(part, Cast) and part.dtype == self._scope.dtype:
                true = holds(rewritten(part.arg), box)
                if true is not None:
                    return Num(float(true))
            args = [rewritten(arg) for arg in children(part)]
            if isinstance(part, Sum) and not is_float(dtype_of(part) or "float32"):
                # A read of integers that is out of range stays a read, since its fill, the number
                # 0, would have no dtype. A sum drops it if the other terms have the sum's dtype.
                inside = [
                    arg
                    for arg in args
                    if not (isinstance(arg, Read) and arg.fill == 0 and in_range(arg, box) is False)
                ]
                if dtype_of(total(inside)) == dtype_of(part):
                    return total(inside)
            return rebuild_in_dtype(part, args)

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
                if isinstance(at, Num) and (places := one_place(part, box)) is not None:
                    return product([at, *(Cast(self._dtype, place) for place in places)])
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
    """Return the scope as its pieces: each piece of the traversal is reduced, and the pieces are
    concatenated."""
    width = len(scope.traversal)
    columns: dict[Box, dict[Box, Scalar]] = {}
    for box, body in bodies.items():
        columns.setdefault(box[:width], {})[box[width:]] = body
    return _concatenated(scope, columns, 0)


def _concatenated(scope: Scope, columns: Mapping[Box, Mapping[Box, Scalar]], axis: int) -> Tensor:
    """``L_X f = cat(L_X' f, L_X'' f)`` along the axes from ``axis`` on, where X' and X'' are parts
    of X. Neighbouring parts that one body serves are not separated."""
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
    """The bodies that serve both of two neighbouring slabs along an axis; None if some bodies
    differ."""
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
    """A body that equals ``left`` in the first interval of an iterator and ``right`` in the second;
    None if none is found.

    The body of an interval of one value may contain the value in the place of the iterator. So
    ``x[0, j]`` beside ``x[i, j]`` for i in [1, 4) gives ``x[i, j]``, and so does ``x[0, j]`` beside
    ``x[1, j]``.
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
    """``left`` with indices that depend on the iterator: at ``first`` each read is that of
    ``left``, at ``first + 1`` it is that of ``right``. ``x[0, j]`` and ``x[2, j]`` -> ``x[2*i, j]``
    for first = 0. None if the reads differ by more than numbers in their indices."""
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
        image = Read(one.tensor, index, one.fill)
        if moved.setdefault(one, image) != image:
            return None
    return rewrite_leaves(left, lambda leaf: moved.get(leaf, leaf))


def _reduced(scope: Scope, box: Box, parts: Mapping[Box, Scalar]) -> Scope:
    """Return one piece of the traversal: its reduction is done part by part, then combined."""
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
    if reducer in ("sum", "prod"):
        return collect(expand(total(parts) if reducer == "sum" else product(parts)))
    return combined(reducer, parts)


def _as_truth(number: Scalar) -> Scalar:
    """Return the truth c of the number ``[c]``: a read c itself, otherwise ``[c] != 0``."""
    if isinstance(number, Cast) and isinstance(number.arg, Read):
        return number.arg
    return Call("ne", (number, Num(0.0)))
