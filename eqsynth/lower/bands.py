"""Scopes that are band products: one operand is read at rows that move with the band.

    C[b, m, w] = sum[k] A[b, m, k] * B[b, m + d*w + c, k]    across: a band of a product
    C[b, m, n] = sum[w] A[b, m, w] * B[b, m + d*w + c, n]    along:  a band times a matrix

Take the rows m of one residue modulo the dilation d: ``m = d*u + residue``. If the rows of B that
they read are packed as ``P[j] = B[d*j + residue + c]``, then u and w read ``P[u + w]``, so
neighbouring u read neighbouring rows. A few rows u and all their w are then a small dense product,
and the results outside of the band are dropped.

Also here: how a schedule cuts the rows into panels and tiles. Not here: the code
(``band_code.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Prod, Read
from eqsynth.lower.loop_nest import Access, Loop

if TYPE_CHECKING:
    from eqsynth.extract.schedule import Band
    from eqsynth.lower.loop_nest import LoopNest

HALF: Final = 8
"""Elements of the smallest vector."""


@dataclass(frozen=True)
class BandProduct:
    """A nest as a band product.

    Attributes:
        still: the operand A, which is read at m.
        moving: the operand B, which is read at ``m + dilation*w``.
        row: the loop m of the traversal.
        window: the loop w.
        other: the reduction k of a product across; the innermost loop n of a product along the
            band.
        across: whether w is the innermost loop of the result, and not reduced.
        outer: the other loops of the traversal, such as batches.
    """

    still: Read
    moving: Read
    row: Loop
    window: Loop
    other: Loop
    dilation: int
    across: bool
    outer: tuple[Loop, ...]

    @property
    def residues(self) -> int:
        """The number of residues modulo the dilation that have rows."""
        return min(self.dilation, self.row.extent)

    @property
    def rows(self) -> int:
        """The number of rows u of the residue that has most."""
        return ceil_div(self.row.extent, self.dilation)

    @property
    def last(self) -> int:
        """The largest ``m + dilation*w``."""
        return self.row.extent - 1 + self.dilation * (self.window.extent - 1)


@dataclass(frozen=True)
class Cut:
    """How the rows of a residue are cut into panels, and the rows of a panel into tiles.

    Attributes:
        panels: the number of panels of a residue; each packs its rows of B once.
        tiles: the number of tiles of a panel.
        rows: the rows of a tile.
        packed: the rows of B in a panel.
        whole: whether every row of every tile is a row of the result.
    """

    panels: int
    tiles: int
    rows: int
    packed: int
    whole: bool

    @property
    def panel_rows(self) -> int:
        """The rows of a panel."""
        return self.tiles * self.rows


def cut(band: BandProduct, schedule: Band) -> Cut:
    """How a schedule cuts the rows. Example: 34 rows of a residue, with panels of 20 and tiles of
    6, become two panels of three tiles; the last tile has rows past the end."""
    share = ceil_div(band.rows, ceil_div(band.rows, schedule.panel))
    tiles = ceil_div(share, schedule.rows)
    size = tiles * schedule.rows
    whole = band.row.extent % band.dilation == 0 and band.rows % size == 0
    packed = size + wide(band, schedule.rows) - schedule.rows
    return Cut(ceil_div(band.rows, size), tiles, schedule.rows, packed, whole)


def wide(band: BandProduct, rows: int) -> int:
    """The number of rows of B that a tile reads; for a product across it is rounded up to whole
    vectors, since these rows are neighbours there."""
    read = rows + band.window.extent - 1
    return ceil_div(read, HALF) * HALF if band.across else read


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def panel_elements(band: BandProduct, schedule: Band) -> int:
    """The number of elements that a panel takes in memory."""
    packed = cut(band, schedule).packed
    return band.other.extent * (pitch(packed) if band.across else packed)


def pitch(packed: int) -> int:
    """The distance in elements from one k to the next in a panel whose rows lie beside each other.
    It is an odd number of cache lines: with a power of 2, all k of a row would fall into one set of
    the cache."""
    return (ceil_div(packed, 2 * HALF) | 1) * 2 * HALF


def band_product(nest: LoopNest) -> BandProduct | None:
    """The band product that a nest is; None if it is none."""
    scope = nest.scope
    if scope.reducer != "sum" or scope.dtype not in ("float32", "float64"):
        return None
    if len(nest.reduction) != 1 or len(nest.traversal) < 2 or not isinstance(scope.body, Prod):
        return None
    inner, factors = nest.traversal[-1], scope.body.factors
    reads = [factor for factor in factors if isinstance(factor, Read)]
    if len(factors) != 2 or len(reads) != 2 or any(r not in nest.accesses for r in reads):
        return None
    if any(r.tensor.dtype != scope.dtype for r in reads):
        return None
    if nest.output.coefficient(inner.slot) != 1:
        return None
    return next(_bands(nest, reads), None)


def _bands(nest: LoopNest, reads: list[Read]) -> Iterator[BandProduct]:
    """The ways to see a nest as a band product, for each assignment of operands and loops."""
    *rest, inner = nest.traversal
    (reduced,) = nest.reduction
    for still, moving in (reads, reads[::-1]):
        for across, window, other in ((True, inner, reduced), (False, reduced, inner)):
            for row in rest:
                dilation = _dilation(nest.accesses[moving], row, window)
                if dilation is None or not _apart(nest, moving, other):
                    continue
                outer = tuple(loop for loop in rest if loop != row)
                found = BandProduct(still, moving, row, window, other, dilation, across, outer)
                if _fits(nest.accesses[still], found):
                    yield found


def _dilation(moving: Access, row: Loop, window: Loop) -> int | None:
    """The d for which an access depends on ``m + d*w`` only; None if there is none."""
    step, spread = moving.stride(row.slot), moving.stride(window.slot)
    if not step or not spread or spread % step or spread // step < 1:
        return None
    dilation = spread // step
    if all(_together(index, row, window, dilation) for index, _ in moving.guards):
        return dilation
    return None


def _together(index: Index, row: Loop, window: Loop, dilation: int) -> bool:
    """Whether an index depends on m and w by ``m + d*w`` only."""
    for atom, _ in index.terms:
        slots = {it.slot for it in Index(0, ((atom, 1),)).iterators()}
        if not isinstance(atom, It) and slots & {row.slot, window.slot}:
            return False
    return index.coefficient(row.slot) * dilation == index.coefficient(window.slot)


def _apart(nest: LoopNest, moving: Read, other: Loop) -> bool:
    """Whether B has an axis of its own for k or n, which its index never leaves."""
    access = nest.accesses[moving]
    return bool(access.stride(other.slot)) and not access.guarded_by(other.slot)


def _fits(still: Access, band: BandProduct) -> bool:
    """Whether A moves along the rows and along the summed loop, and not along the neighbours."""
    if still.guards or not still.stride(band.row.slot):
        return False
    summed, beside = band.window, band.other
    if band.across:
        summed, beside = beside, summed
    elif beside.extent < HALF:
        return False
    return bool(still.stride(summed.slot)) and still.stride(beside.slot) == 0
