"""Padded copies of arguments, so that no read of a contraction leaves its tensor.

    L_oij sum_rs w[o, r, s] * x[i + r - 1, j + s - 1]  reads rows and columns -1 to 64 of x, which
    has 64 of each: from a copy of 66 by 66 elements with the fill around it, without a test

A test at each read would keep a block of a convolution from loading whole vectors; the copy is
read and written once. Not here: the loops that make it (``padding_code.py``), which schedules read
it (``schedules.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from eqsynth.extract.kernel import Layout, strides
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read

MOST: Final = 4
"""A copy has at most so many times the elements of its argument."""


@dataclass(frozen=True)
class Pad:
    """A copy of an argument that holds everything that a read reads.

    Attributes:
        argument: the position of the argument.
        read: the read of it.
        lows: for each axis of the argument, the least position that is read; it may be negative.
        extents: for each axis, the number of positions from there to the largest.
        layout: the order of the axes in memory, which is that of the argument.
    """

    argument: int
    read: Read
    lows: tuple[int, ...]
    extents: tuple[int, ...]
    layout: Layout

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.extents)

    @property
    def steps(self) -> tuple[int, ...]:
        """By how many elements a step along each axis moves."""
        return strides(self.extents, self.layout)

    @property
    def address(self) -> Index:
        """The address of the read in the copy."""
        address = Index(0)
        for index, low, step in zip(self.read.index, self.lows, self.steps, strict=True):
            address = address + (index + Index(-low)) * step
        return address


def pad_of(read: Read, argument: int, layout: Layout) -> Pad | None:
    """The padded copy for a read; None if an index isn't affine, or if the copy would be much
    larger than the argument."""
    if not all(index.is_affine for index in read.index):
        return None
    ranges = [index.range() for index in read.index]
    lows, extents = zip(*((low, high - low + 1) for low, high in ranges), strict=True)
    found = Pad(argument, read, lows, extents, layout)
    return found if found.size <= MOST * read.tensor.type.size else None
