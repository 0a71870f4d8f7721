"""Questions about one piece of a scope's box: whether a read is in range everywhere in the piece,
which simpler index an index equals there, and whether a comparison holds there.

A piece has an interval of values for each iterator. If the answer in one part of the piece differs
from the answer in the rest, the function raises :class:`Cut` with the value at which the two parts
meet, and ``expanded.py`` cuts the piece in two there:

    x[i - 1] for i in [0, 4)   ->   Cut at i = 1: out of range in [0, 1), in range in [1, 4)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

from eqsynth.expansion.ring import as_index
from eqsynth.ir.index import FloorDiv, Index, It, Mod
from eqsynth.ir.scalar import (
    Call,
    Num,
    Read,
    Scalar,
    Value,
    children,
    composites,
    dtype_of,
    leaves,
    reads,
    terms_of,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

Interval = tuple[int, int]
"""The values low to high - 1 of an iterator."""

Box = tuple[Interval, ...]
"""An interval for each iterator of a scope, by slot."""

# ``i % n`` and ``i // n`` repeat in turns of n values. If an iterator has more turns than this, its
# interval isn't cut into turns.
MAX_TURNS: Final = 4


class Cut(Exception):
    """The piece has to be cut in two where iterator ``slot`` has the value ``at``: a read begins or
    ends to be in range there, a comparison changes, or a rotation begins anew."""

    def __init__(self, slot: int, at: int) -> None:
        self.slot, self.at = slot, at


def of_dtype(scope: Scope, dtype: str) -> bool:
    """Whether a scope's body may be written out in an expression of ``dtype``.

    Among floats, ``dtype`` is the only float dtype of the scope and of its reads; one
    other read may be of integers, others of truths. A scope of integers or truths must read
    something, because numbers alone would take the dtype of the expression around them. No number
    is infinite, except in a comparison. Among integers, every part except the conditions has
    ``dtype``, in which it wraps around; a scope of truths and a whole number may be written out
    too.
    """
    if not is_float(dtype):
        number = isinstance(scope.body, Num) and scope.body.value.is_integer()
        parts = (*composites(scope.body), *leaves(scope.body))
        truths = scope.dtype == "bool" and dtype_of(scope.body) is not None
        own = scope.dtype == dtype or truths
        return number or (own and all(dtype_of(part) in (None, dtype, "bool") for part in parts))
    found = {read.tensor.dtype for read in reads(scope.body)} | {scope.dtype}
    apart = not is_float(scope.dtype) and dtype_of(scope.body) is None
    floats = {one for one in found if is_float(one)}
    # Two integers that a float is multiplied by, one after the other, would become a product of
    # integers, which wraps: c * (w * a + exp(w)) has no product c * w * a in integers.
    few = _integers(scope.body) < 2
    return not apart and floats <= {dtype} and few and _is_finite(scope.body)


def _integers(scalar: Scalar) -> int:
    """The number of reads of integers that are computed with; those in conditions don't count."""
    if isinstance(scalar, Read):
        return int(not is_float(scalar.tensor.dtype) and scalar.tensor.dtype != "bool")
    return 0 if dtype_of(scalar) == "bool" else sum(map(_integers, children(scalar)))


def _is_finite(scalar: Scalar) -> bool:
    """Whether infinity occurs in comparisons only, as in ``where(abs(x) == inf, 0, x)``."""
    if isinstance(scalar, Num):
        return math.isfinite(scalar.value)
    return dtype_of(scalar) == "bool" or all(map(_is_finite, children(scalar)))


def intervals(cuts: Iterable[int]) -> list[Interval]:
    """Return the intervals between neighbouring cuts: ``{0, 2, 5}`` -> ``[(0, 2), (2, 5)]``."""
    return list(itertools.pairwise(sorted(cuts)))


def local(box: Box) -> Callable[[It], Index]:
    """Return the substitution of iterators by ``i + low``, where the new i counts from 0 in the
    piece."""

    def image(it: It) -> Index:
        low, high = box[it.slot]
        return Index.iterator(it.slot, high - low) + low

    return image


def in_range(read: Read, box: Box) -> bool | None:
    """Whether the read is in range everywhere in the piece (True) or nowhere in it (False). None if
    it is partly in range, or if this can't be decided, and no cut separates the two parts.

    Raises:
        Cut: the read is partly in range, and a value of one iterator separates the two parts.
    """
    partly: list[tuple[Index, int]] = []
    for index, size in zip(read.index, read.tensor.shape, strict=True):
        low, high = index.substitute(local(box)).range()
        if high < 0 or low >= size:
            return False
        if low < 0 or high >= size:
            partly.append((index, size))
    for index, size in partly:
        for it in dict.fromkeys(index.iterators()):
            at = _parting(index, it, size, box)
            if at is not None:
                raise Cut(it.slot, at)
    return None if partly else True


def _borders(read: Read, box: Box) -> set[tuple[Index, int]]:
    """The indices of a read that leave their axes somewhere in the piece, each with the extent of
    its axis. Iterators count from the beginning of the piece."""
    here = [index.substitute(local(box)) for index in read.index]
    return {
        (index, size)
        for index, size in zip(here, read.tensor.shape, strict=True)
        if index.range()[0] < 0 or index.range()[1] >= size
    }


def one_place(read: Read, box: Box) -> list[Scalar] | None:
    """The conditions under which a read with fill 0 is in range: ``i - j == 0`` for ``one[i - j]``.
    None if it has another fill, or leaves an axis of several elements in the piece."""
    left = _borders(read, box)
    if read.fill or any(size > 1 for _, size in left):
        return None
    places = [index for index in read.index if (index.substitute(local(box)), 1) in left]
    return [Call("eq", (Value(index), Num(0.0))) for index in places]


def same_border(read: Read, body: Scalar, box: Box) -> Read | None:
    """Replace a read that is partly in range by a read of the one term that isn't zero there.

        {cat(x, y)}[i, k - 1]   ->   x[i, k - 1], with the same fill, in a piece where i is in x

    None if several terms of the body may be other than zero in the piece, or if the one term
    doesn't leave its tensor exactly where ``read`` leaves the tensor that it reads.

    Args:
        body: the body of the scope that is read, at the index of the read.

    Raises:
        Cut: a term of the body is in range in a part of the piece only.
    """
    parts = [
        part
        for part in terms_of(body)
        if not (isinstance(part, Read) and part.fill == 0 and in_range(part, box) is False)
    ]
    part = parts[0] if len(parts) == 1 else None
    if not isinstance(part, Read):
        return None
    same = _borders(read, box) == _borders(part, box)
    return Read(part.tensor, part.index, read.fill) if same else None


def simple(index: Index, box: Box, traversed: int, turns: int = MAX_TURNS) -> Index:
    """Simplify an index within a piece: ``(i + c) % n`` -> ``i + c - k*n`` if this is in [0, n)
    everywhere in the piece, and ``i // n`` -> the number that it is everywhere in the piece.

    Args:
        traversed: how many iterators the scope's traversal has; their slots come first.
        turns: for ``i // n``, an iterator with more turns of n values isn't cut into turns.

    Raises:
        Cut: the piece holds several turns of an iterator of the traversal. The index is a rotation
            or a repetition, ``(i + c) % n``, or contains ``i // n`` (the group of a convolution).
            Iterators of the reduction aren't cut here; ``sums.reindexed`` undoes their rotations
            as a whole.
    """
    found = Index(index.const)
    for atom, step in index.terms:
        value = Index(0, ((atom, 1),))
        if isinstance(atom, Mod):
            low, high = atom.value.substitute(local(box)).range()
            turn = low // atom.divisor
            if turn == high // atom.divisor:
                value = simple(atom.value, box, traversed) - turn * atom.divisor
            elif len(index.terms) == 1:
                _cut_turns(atom, box, traversed, MAX_TURNS)
        elif isinstance(atom, FloorDiv):
            low, high = value.substitute(local(box)).range()
            if low == high:
                value = Index(low)
            else:
                _cut_turns(atom, box, traversed, turns)
        found = found + value * step
    return found


def _cut_turns(atom: FloorDiv | Mod, box: Box, traversed: int, most: int) -> None:
    """Raise Cut at the first place in the piece where ``(c + i) // n`` or ``(c - i) // n`` changes,
    if i is an iterator of the traversal and has at most ``most`` turns of n values, all whole."""
    if not atom.value.is_affine or len(atom.value.terms) != 1:
        return
    ((it, factor),) = atom.value.terms
    assert isinstance(it, It)
    turns, rest = divmod(it.extent, atom.divisor)
    if abs(factor) != 1 or rest or turns > most or it.slot >= traversed:
        return
    low, high = box[it.slot]
    for at in range(low + 1, high):
        before, after = (atom.value.const + factor * n for n in (at - 1, at))
        if before // atom.divisor != after // atom.divisor:
            raise Cut(it.slot, at)


_COMPARED: Final[dict[str, Callable[[int, int], tuple[bool, bool]]]] = {
    # For the least and the greatest value of a - b: whether the comparison of a and b always holds,
    # and whether it never holds.
    "eq": lambda low, high: (low == high == 0, low > 0 or high < 0),
    "ne": lambda low, high: (low > 0 or high < 0, low == high == 0),
    "lt": lambda low, high: (high < 0, low >= 0),
    "le": lambda low, high: (high <= 0, low > 0),
    "gt": lambda low, high: (low > 0, high <= 0),
    "ge": lambda low, high: (low >= 0, high < 0),
}


def holds(condition: Scalar, box: Box) -> bool | None:
    """Whether a comparison of indices holds everywhere in the piece (True) or nowhere in it
    (False). None if ``condition`` isn't such a comparison, or if this can't be decided.

    Raises:
        Cut: a value of one iterator separates a part where the comparison holds from a part where
            it doesn't.
    """
    if not isinstance(condition, Call) or condition.fn not in _COMPARED:
        return None
    first, second = map(as_index, condition.args)
    if first is None or second is None:
        return None
    compare = _COMPARED[condition.fn]
    always, never = compare(*(first - second).substitute(local(box)).range())
    if always or never:
        return always
    for it in dict.fromkeys((first - second).iterators()):
        low, high = box[it.slot]
        known = [
            compare(*(first - second).substitute(local(
                (*box[: it.slot], (at, at + 1), *box[it.slot + 1 :])
            )).range())
            for at in range(low, high)
        ]  # fmt: skip
        if all(map(any, known)):
            at = next(n for n in range(1, len(known)) if known[n] != known[n - 1])
            raise Cut(it.slot, low + at)
    return None


def _parting(index: Index, it: It, size: int, box: Box) -> int | None:
    """The first value of the iterator at which the index begins or ends to be in range. None if at
    some value of the iterator the other iterators decide (``h + r`` at the border of an image)."""
    low, high = box[it.slot]
    ranges = [
        index.substitute(local((*box[: it.slot], (at, at + 1), *box[it.slot + 1 :]))).range()
        for at in range(low, high)
    ]
    inside = [first >= 0 and last < size for first, last in ranges]
    outside = [last < 0 or first >= size for first, last in ranges]
    if not all(a or b for a, b in zip(inside, outside, strict=True)):
        return None
    return next((low + n for n in range(1, len(inside)) if inside[n] != inside[n - 1]), None)
