"""Correlation by tiles: a bilinear algorithm in the place of the products of a window.

    L_y sum_k d[y + k] * w[k]
      =  L_y sum_p A[y % m, p] * {L_{t,p} v * u}[y // m, p]
         v = {L_{t,p} sum_u B[p, u] * d[m*t + u]},  u = {L_p sum_k G[p, k] * w[k]}

along any number of axes at once, and with dilation s: ``y = s*(m*t + j) + phase``. All that the
scope sums over besides (channels) is summed in the middle, where it is a batched product of
matrices. The tiles at the end reach beyond the last y and may read beyond the data, which gives the
fill there as everywhere: the elements that this makes are never read. Written out, the matrices of
an axis sum up to [u = y % m + k] (``calculus/pick.py``), and what is left is the scope.

Asked of a flat product of something computed and a constant filter, since filters are transformed
once then. Not here: the algorithms (``toom_cook.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Any, Final

from eqsynth.calculus.conditions import is_finite, is_product
from eqsynth.calculus.define import sides
from eqsynth.calculus.deriving import Match
from eqsynth.calculus.pick import Pick, pick
from eqsynth.calculus.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import Law, flat
from eqsynth.egraph.tactics.toom_cook import Algorithm, Matrix, correlation, growth, sizes
from eqsynth.egraph.view import View
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, Scalar, factors_of, iterators, product
from eqsynth.ir.tensor import Op, Scope, is_literal, topological
from eqsynth.ir.types import is_float
from eqsynth.ir.work import flops

SAVED: Final = 1 / 3
"""Of the operations at least this part is saved. The bound tells apart what pays: additions before
and after the products are linear in the channels, and the products are quadratic. (3 by 3 taps and
as many channels in as out: from 13 channels on with tiles of 2 by 2, from 9 on with 4 by 4.)"""


GROWN: Final = 3.5
"""Algorithms that make roundings grow to at most this many times (``toom_cook.growth``, the product
over the axes) are `real`, the others `cancels`. The check of programs decides: on none of its kinds
of data it refuses F(2, 3) by F(4, 3), which has 3.4; it refuses F(4, 3) by F(4, 3), which has 7.1,
on two of eight tensors of mixed scales (16 channels), and F(6, 3) by F(6, 3), 46, on random
data."""

MANY: Final = 16
"""Terms of the sum in the middle from which a `real` answer is given. An element that is small is
computed from tiles with elements that are large; where many channels are added up that isn't so.
(Of 3.4 times, mixed scales: with 10 channels the check refuses two of eight, with 12 and more none
of 52.)"""


def by_tiles(loses: bool) -> Law:
    """The law for the algorithms by which roundings grow to more than `GROWN` times, or to no more.

    Of the former an answer for each number of outputs a tile, the same along each axis. Of the
    latter one, with the numbers along the axes that leave least to do.
    """

    def law(view: View, row: Sequence[Any]) -> Iterable[Path]:
        scope = flat(view, row)
        if loses:
            found = (tiled_windows(scope, (outputs, outputs), True) for outputs in _OUTPUTS)
            return [tiled for tiled in found if tiled is not None]
        pairs = combinations_with_replacement(_OUTPUTS, 2)
        tried = (tiled_windows(scope, pair, False) for pair in pairs)
        near = [tiled for tiled in tried if tiled is not None]
        return [min(near, key=_work)] if near else []

    return law


_OUTPUTS: Final = sorted({outputs for outputs, _ in sizes()})


def _work(tiled: Path) -> int:
    return sum(flops(term) for term in topological([tiled.scope]) if not term.constant)


@remembered(maxsize=1 << 14)
def tiled_windows(scope: Scope, outputs: tuple[int, int], loses: bool) -> Path | None:
    """The scope by tiles of so many outputs along its first axis with a window and its second; None
    where that isn't less work, or where roundings grow otherwise. An axis for whose taps there is
    no algorithm with so many outputs is summed as it is."""
    factors = factors_of(scope.body)
    reads = [factor for factor in factors if isinstance(factor, Read)]
    if not is_product(scope) or len(reads) != 2 or len(factors) != 2:
        return None
    computed = [read for read in reads if not read.tensor.constant]
    if len(computed) != 1:
        return None
    (filters,) = (read for read in reads if read is not computed[0])
    windows = tuple(_windows(scope, computed[0], filters, outputs))
    if not windows or (prod(growth(w.algorithm) for w in windows) > GROWN) is not loses:
        return None
    summed = prod(scope.reduction) // prod(window.tap.extent for window in windows)
    if summed < MANY and not loses:
        return None
    tiled = by_windows(scope, windows)
    return tiled if tiled is not None and _work(tiled) <= (1 - SAVED) * flops(scope) else None


def _windows(
    scope: Scope, data: Read, filters: Read, outputs: tuple[int, int]
) -> Iterable[Window]:
    """Positions and taps that share an index, of sizes for which there is an algorithm; two at
    most."""
    positions = set(traversal_iterators(scope)) - iterators(filters)
    taps = set(reduction_iterators(scope)) & iterators(filters)
    sizes_left = list(outputs)
    for index in data.index:
        its = set(index.iterators())
        outs, slid = its & positions, its & taps
        if len(outs) == len(slid) == 1 and len(its) == 2 and sizes_left:
            (out,), (tap,) = outs, slid
            if (sizes_left[0], tap.extent) in sizes() and out.extent > 1:
                yield Window(out, tap, correlation(sizes_left.pop(0), tap.extent))


# ---- the scope by tiles ----------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """An axis along which a window slides: its position, its tap, and the algorithm."""

    out: It
    tap: It
    algorithm: Algorithm


@dataclass(frozen=True)
class _Axis:
    """A window with its new iterators, in slots after the scope's own.

    Attributes:
        at: the position of the index in the read.
        rest: the index without position and tap.
    """

    window: Window
    at: int
    dilation: int
    rest: Index
    phase: It
    tile: It
    product: It
    input: It

    @property
    def places(self) -> tuple[It, ...]:
        """What a position is by: its phase, if the window is dilated, and its tile."""
        return (self.phase, self.tile) if self.dilation > 1 else (self.tile,)

    @property
    def position(self) -> Index:
        """Of the data that a tile's input reads."""
        outputs = self.window.algorithm.outputs
        place = bare(self.tile) * outputs + bare(self.input)
        return place * self.dilation + bare(self.phase) + self.rest


def by_windows(scope: Scope, windows: Sequence[Window]) -> Path | None:
    """The scope by tiles along the windows, each along another index of one read; None where that
    isn't known to be the scope."""
    factors = factors_of(scope.body)
    sliding = [f for f in factors if {w.out for w in windows} & iterators(f)]
    dtypes = {f.tensor.dtype for f in factors if isinstance(f, Read)} | {scope.dtype}
    fits = is_product(scope) and all(map(is_finite, factors)) and len(sliding) == 1
    if not fits or len(dtypes) > 1 or not is_float(scope.dtype):
        return None
    (data,) = sliding
    assert isinstance(data, Read)
    axes = _axes(scope, data, windows)
    if axes is None:
        return None
    tiled = _by_tiles(scope, data, axes)
    with suppress(LawError):
        return path(scope, Match(tiled, (), tuple(_picks(sides(tiled, scope, ())[0]))))
    return None


def _picks(opened: Scope) -> Iterable[Pick]:
    """What the matrices of each axis pick, A[y % m, p], G[p, k] and B[p, u]: u = y % m + k."""
    while found := _first_pick(opened):
        yield found
        opened = pick(opened, found)


def _first_pick(opened: Scope) -> Pick | None:
    tables = [f for f in factors_of(opened.body) if isinstance(f, Read) and is_literal(f.tensor)]
    for number in reduction_iterators(opened):
        rows = [table.index[0] for table in tables if table.index[1] == bare(number)]
        ends = [table.index[1] for table in tables if table.index[0] == bare(number)]
        if len(rows) == 1 and len(ends) == 2:
            tap, place = sorted(ends, key=lambda end: end.range())
            picked = place.bare()
            return picked and Pick(number, picked, rows[0] + tap)
    return None


def _axes(scope: Scope, data: Read, windows: Sequence[Window]) -> list[_Axis] | None:
    axes: list[_Axis] = []
    slot = len(scope.extents)
    for window in windows:
        out, tap = window.out, window.tap
        at = [n for n, index in enumerate(data.index) if {out, tap} & set(index.iterators())]
        if len(at) != 1:
            return None
        index = data.index[at[0]]
        dilation = index.coefficient(tap.slot)
        slides = index.coefficient(out.slot) == 1 and dilation > 0
        rest = index - bare(out) - bare(tap) * dilation
        slides = slides and not {out, tap} & set(rest.iterators())
        if not slides or any(at[0] == axis.at for axis in axes):
            return None  # it isn't position + dilation * tap
        algorithm = window.algorithm
        tiles = -(-out.extent // (dilation * algorithm.outputs))
        extents = dilation, tiles, algorithm.products, algorithm.inputs
        phase, tile, number, place = (It(slot + n, extent) for n, extent in enumerate(extents))
        axes.append(_Axis(window, at[0], dilation, rest, phase, tile, number, place))
        slot += len(extents)
    return axes


def _by_tiles(scope: Scope, data: Read, axes: Sequence[_Axis]) -> Scope:
    factors = [factor for factor in factors_of(scope.body) if factor is not data]
    taps = {axis.window.tap for axis in axes}
    weights = [factor for factor in factors if taps & iterators(factor)]
    others = [factor for factor in factors if not taps & iterators(factor)]
    place = {axis.window.out: axis.places for axis in axes}
    numbers = [axis.product for axis in axes]
    outside = [it for it in traversal_iterators(scope) if it not in place]
    inside = [it for it in reduction_iterators(scope) if it not in taps]

    def in_order(its: set[It]) -> list[It]:
        """Positions as tiles, the numbers of the products, then what is summed."""
        own = [it for it in traversal_iterators(scope) if it in its or it in place]
        tiled = [part for it in own for part in place.get(it, (it,))]
        return [*tiled, *numbers, *(it for it in inside if it in its)]

    index = list(data.index)
    for axis in axes:
        index[axis.at] = axis.position
    # What is never outside has any fill, and the tiles at the end may go outside.
    moved = Read(data.tensor, tuple(index), 0.0 if data.in_range() else data.fill)
    dtype = scope.dtype
    entries = [_entry(a.window.algorithm.data, bare(a.product), a.input, dtype) for a in axes]
    transformed = _transform([moved, *entries], in_order(iterators(data)), [a.input for a in axes])
    entries = [_entry(a.window.algorithm.filter, bare(a.product), a.window.tap, dtype)
               for a in axes]  # fmt: skip
    used = {it for factor in weights for it in iterators(factor)} - taps
    kept = [*numbers, *(it for it in [*inside, *outside] if it in used)]
    filtered = _transform([*weights, *entries], kept, [axis.window.tap for axis in axes])
    body = product([transformed, filtered, *others])
    tiled = [part for parts in place.values() for part in parts]
    first = [it for it in outside if it in iterators(data)]
    last = [it for it in outside if it not in first]
    axes_of_products = [*first, *tiled, *numbers, *last]
    products = scope_over(axes_of_products, inside, body)
    back: dict[It, Index] = {}
    entries = []
    for axis in axes:
        out, outputs = bare(axis.window.out), axis.window.algorithm.outputs
        back[axis.phase] = out % axis.dilation
        back[axis.tile] = out // (axis.dilation * outputs)
        row = out // axis.dilation % outputs
        entries.append(_entry(axis.window.algorithm.output, row, axis.product, dtype))
    read = Read(products, tuple(back.get(it, bare(it)) for it in axes_of_products))
    return scope_over(traversal_iterators(scope), numbers, product([read, *entries]))


def _transform(factors: Sequence[Scalar], kept: Sequence[It], reduced: Sequence[It]) -> Read:
    """A read of the sum of a product over some iterators."""
    return Read(scope_over(kept, reduced, product(factors)), tuple(map(bare, kept)))


def _entry(matrix: Matrix, row: Index, column: It, dtype: str) -> Read:
    return Read(literal(matrix, dtype), (row, bare(column)))


def literal(matrix: Matrix, dtype: str) -> Op:
    """The matrix as a term."""
    entries = [entry for row in matrix for entry in row]
    above = tuple(entry.numerator for entry in entries)
    below = tuple(entry.denominator for entry in entries)
    return Op("Literal", (), ((len(matrix), len(matrix[0])), above, below, dtype))
