"""Pieces of a scope's box: what is in range, what an index is, and what holds in all of a piece.

A question that has one answer in a part of the piece and another in the rest raises :class:`Cut`,
with where the parts meet; then the piece is two (``expansion.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

from eqsynth.ir.index import FloorDiv, Index, It, Mod
from eqsynth.ir.ring import as_index
from eqsynth.ir.scalar import (
    Call,
    Num,
    Read,
    Scalar,
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

# An iterator over a repetition of more turns is no concatenation.
MAX_TURNS: Final = 4


class Cut(Exception):
    """The piece is two from where iterator ``slot`` is ``at``: a read leaves its tensor there, a
    comparison turns, or a rotation begins anew."""

    def __init__(self, slot: int, at: int) -> None:
        self.slot, self.at = slot, at


def of_dtype(scope: Scope, dtype: str) -> bool:
    """Whether a scope may be written out among floats of a dtype: it is of that dtype and reads,
    besides it, integers and truths only; or it is one of these, and not of numbers alone, which
    would take the dtype of what is around them; and no part of it is infinite. Among integers
    all of it but its conditions has one dtype, in which it wraps around; a scope of truths may be
    written out there, too."""
    if not is_float(dtype):
        number = isinstance(scope.body, Num) and scope.body.value.is_integer()
        parts = (*composites(scope.body), *leaves(scope.body))
        truths = scope.dtype == "bool" and dtype_of(scope.body) is not None
        own = scope.dtype == dtype or truths
        return number or (own and all(dtype_of(part) in (None, dtype, "bool") for part in parts))
    found = {read.tensor.dtype for read in reads(scope.body)} | {scope.dtype}
    apart = not is_float(scope.dtype) and dtype_of(scope.body) is None
    floats = {one for one in found if is_float(one)}
    return not apart and floats <= {dtype} and _is_finite(scope.body)


def _is_finite(scalar: Scalar) -> bool:
    """Whether infinity is only compared with, as in ``where(abs(x) == inf, 0, x)``."""
    if isinstance(scalar, Num):
        return math.isfinite(scalar.value)
    return dtype_of(scalar) == "bool" or all(map(_is_finite, children(scalar)))


def intervals(cuts: Iterable[int]) -> list[Interval]:
    return list(itertools.pairwise(sorted(cuts)))


def local(box: Box) -> Callable[[It], Index]:
    """Iterators of a piece that count from 0."""

    def image(it: It) -> Index:
        low, high = box[it.slot]
        return Index.iterator(it.slot, high - low) + low

    return image


def in_range(read: Read, box: Box) -> bool | None:
    """Whether the read is in range everywhere in the piece, nowhere (False), or it can't be told.

    Raises:
        Cut: it is partly, and an iterator divides the piece into parts where it is and isn't.
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
    """The indices that leave their axes somewhere in the piece, counted from where it begins, with
    the axes' extents."""
    here = [index.substitute(local(box)) for index in read.index]
    return {
        (index, size)
        for index, size in zip(here, read.tensor.shape, strict=True)
        if index.range()[0] < 0 or index.range()[1] >= size
    }


def same_border(read: Read, body: Scalar, box: Box) -> Read | None:
    """``{cat(x, y)}[i, k - 1]`` with any fill is ``x[i, k - 1]`` with it, where i is in x: of the
    reads that are added up in the body one is in the piece at all, and it leaves its tensor where
    the read left the body's.

    Raises:
        Cut: another read is in a part of the piece.
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
    """``(i + c) % n`` as ``i + c - k*n`` in a piece where that is in range, and what is a number in
    the piece as that number: ``i // n`` is one in each turn of n values.

    Args:
        turns: an iterator of more turns isn't cut into them.

    Raises:
        Cut: the piece is more than one turn of an iterator of the traversal, of which nothing
            but its place in a turn counts here: a rotation, or a repetition; or by its turns what
            is read is another part (the groups of a convolution). (A sum is turned back as a
            whole.)
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
    """Raises Cut where ``(c + i) // n`` becomes another number, i of at most so many whole turns in
    the traversal."""
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
    # Whether a - b, which is from low to high, compares so with 0 always, and whether never.
    "eq": lambda low, high: (low == high == 0, low > 0 or high < 0),
    "ne": lambda low, high: (low > 0 or high < 0, low == high == 0),
    "lt": lambda low, high: (high < 0, low >= 0),
    "le": lambda low, high: (high <= 0, low > 0),
    "gt": lambda low, high: (low > 0, high <= 0),
    "ge": lambda low, high: (low >= 0, high < 0),
}


def holds(condition: Scalar, box: Box) -> bool | None:
    """Whether a comparison of indices holds everywhere in the piece, nowhere, or it can't be told.

    Raises:
        Cut: it holds from some value of an iterator on, or up to it.
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
    """A value of the iterator from which on the index is in range and wasn't, or the other way
    round; None if at some value the other iterators decide (``h + r`` at the border)."""
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
