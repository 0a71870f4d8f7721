"""Correlation by tiles: a bilinear algorithm (Toom-Cook, Winograd) for the products of a window.

    L_y sum_k d[y + k] * w[k]
      =  L_y sum_p A[y % m, p] * {L_{t,p} v * u}[y // m, p]
         v = {L_{t,p} sum_u B[p, u] * d[m*t + u]},  u = {L_p sum_k G[p, k] * w[k]}

along any number of axes at once, and with dilation s: ``y = s*(m*t + j) + phase``. A window that
runs backward, ``d[y - k]`` with r taps, as in a transposed convolution, is one that runs forward
over the filter in reverse order: G[p, r - 1 - k] takes the place of G[p, k]. Other reduction
iterators (channels) are summed in the middle, as a batched matrix product. The last tiles may reach
beyond the last y and read the fill beyond the data; the elements computed so are never read. The
proof: written out, the matrices of an axis sum to [u = y % m + k] (``calculus/pick.py``), or
backward to [u = y % m + r - 1 - k], which leaves the original scope.

It is proposed for flat products of a computed tensor and a constant filter, because a constant
filter is transformed only once. Not here: the algorithms (``toom_cook.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from math import prod
from typing import Any, Final

from eqsynth.calculus.conditions import is_finite, is_product
from eqsynth.calculus.define import sides
from eqsynth.calculus.deriving import Match, apply
from eqsynth.calculus.pick import Pick
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import Law, flat
from eqsynth.egraph.tactics.toom_cook import Algorithm, Matrix, correlation, growth, sizes
from eqsynth.egraph.view import View
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, Scalar, factors_of, iterators, product
from eqsynth.ir.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.tensor import Op, Scope, is_literal, topological
from eqsynth.ir.types import is_float
from eqsynth.ir.work import flops

SAVED: Final = 1 / 3
"""The least part of the operations that an answer has to save. The additions of the transforms are
linear in the number of channels, the products are quadratic, so the algorithms pay from some number
of channels on. (3x3 taps, as many channels in as out: from 13 with 2x2 tiles, from 9 with 4x4.)"""


GROWN: Final = 3.5
"""Algorithms whose growth of rounding errors (``toom_cook.growth``, multiplied over the axes) is at
most this have numerics `real`, the others `cancels`. The limit follows from the check of programs.
It never refuses F(2, 3) by F(4, 3), with growth 3.4. It refuses F(4, 3) by F(4, 3), with 7.1, on
two of eight tensors of mixed scales (16 channels), and F(6, 3) by F(6, 3), with 46, on random
data."""

MANY: Final = 16
"""The least number of terms of the sum in the middle for a `real` answer. With few channels a
small element may be computed from tiles with large elements, whose rounding errors are large beside
it. (Growth 3.4, mixed scales: with 10 channels the check refuses two of eight tensors, with 12 and
more none of 52.)"""


def by_tiles(loses: bool) -> Law:
    """Return the law for algorithms whose growth is above ``GROWN`` (``loses``), or not above it.

    The law that loses digits answers once for each number of outputs a tile, the same along each
    axis. The other law answers once, with the numbers of outputs that leave the fewest operations.
    """

    def law(view: View, row: Sequence[Any]) -> Iterable[Path]:
        scope = flat(view, row)
        if loses:
            tried = (tiled_windows(scope, (outputs, outputs), True) for outputs in _OUTPUTS)
            proved = (_proved(scope, tiled) for tiled in tried if tiled is not None)
            return [answer for answer in proved if answer is not None]
        pairs = combinations_with_replacement(_OUTPUTS, 2)
        near = [tiled_windows(scope, pair, False) for pair in pairs]
        # A proof takes longer than all the rest, and only the answer needs one.
        ordered = sorted((tiled for tiled in near if tiled is not None), key=_work)
        answers = (_proved(scope, tiled) for tiled in ordered)
        return list(islice((answer for answer in answers if answer is not None), 1))

    return law


_OUTPUTS: Final = sorted({outputs for outputs, _ in sizes()})


def _work(tiled: Scope) -> int:
    return sum(flops(term) for term in topological([tiled]) if not term.constant)


@remembered(maxsize=1 << 14)
def tiled_windows(scope: Scope, outputs: tuple[int, int], loses: bool) -> Scope | None:
    """The scope by tiles of ``outputs`` along its first and its second axis with a window; that it
    is equal isn't proved yet.

    None if that doesn't save enough operations, or if the growth of rounding errors isn't on the
    side of ``GROWN`` that ``loses`` asks for. An axis without an algorithm for its taps and that
    number of outputs is summed directly.
    """
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
    tiled = _tiled(scope, windows)
    return tiled if tiled is not None and _work(tiled) <= (1 - SAVED) * flops(scope) else None


def _windows(scope: Scope, data: Read, filters: Read, outputs: tuple[int, int]) -> Iterable[Window]:
    """At most two windows: a position and a tap that share an index, with an algorithm for them."""
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
        algorithm: the window's, for a filter in reverse order if the window runs backward.
        at: the number of the index in the read of the data.
        dilation: the distance of neighbouring taps.
        rest: the index of the tap with the lowest index, without the term of the position.
    """

    window: Window
    algorithm: Algorithm
    at: int
    dilation: int
    rest: Index
    phase: It
    tile: It
    product: It
    input: It

    @property
    def places(self) -> tuple[It, ...]:
        """The iterators that replace the position: the tile, and the phase of a dilated window."""
        return (self.phase, self.tile) if self.dilation > 1 else (self.tile,)

    @property
    def position(self) -> Index:
        """The index at which an input of a tile reads the data."""
        outputs = self.algorithm.outputs
        place = bare(self.tile) * outputs + bare(self.input)
        return place * self.dilation + bare(self.phase) + self.rest


def by_windows(scope: Scope, windows: Sequence[Window]) -> Path | None:
    """The scope by tiles along ``windows``, each of which slides along another index of one read.

    None if it can't be proved equal to the scope.
    """
    tiled = _tiled(scope, windows)
    return None if tiled is None else _proved(scope, tiled)


def _tiled(scope: Scope, windows: Sequence[Window]) -> Scope | None:
    """The scope by tiles along ``windows``, not proved equal yet; None if the windows don't fit."""
    factors = factors_of(scope.body)
    sliding = [f for f in factors if {w.out for w in windows} & iterators(f)]
    dtypes = {f.tensor.dtype for f in factors if isinstance(f, Read)} | {scope.dtype}
    fits = is_product(scope) and all(map(is_finite, factors)) and len(sliding) == 1
    if not fits or len(dtypes) > 1 or not is_float(scope.dtype):
        return None
    (data,) = sliding
    assert isinstance(data, Read)
    axes = _axes(scope, data, windows)
    return None if axes is None else _by_tiles(scope, data, axes)


@remembered(maxsize=1 << 14)
def _proved(scope: Scope, tiled: Scope) -> Path | None:
    """The path from ``scope`` to ``tiled``; None if no proof is found that they are equal."""
    with suppress(LawError):
        return path(scope, Match(tiled, (), tuple(_picks(sides(tiled, scope, ())[0]))))
    return None


def _picks(opened: Scope) -> Iterable[Pick]:
    """The steps that remove A[y % m, p], G[p, k] and B[p, u]: they pick u = y % m + k, or for a
    window that runs backward u = y % m + r - 1 - k."""
    while ways := _first_picks(opened):
        forward, backward = ways
        given = forward if _applies(opened, forward) else backward
        yield given
        picked = apply(opened, given)
        assert isinstance(picked, Scope)
        opened = picked


def _applies(opened: Scope, given: Pick) -> bool:
    with suppress(LawError):
        apply(opened, given)
        return True
    return False


def _first_picks(opened: Scope) -> tuple[Pick, Pick] | None:
    tables = [f for f in factors_of(opened.body) if isinstance(f, Read) and is_literal(f.tensor)]
    for number in reduction_iterators(opened):
        rows = [table.index[0] for table in tables if table.index[1] == bare(number)]
        ends = [table.index[1] for table in tables if table.index[0] == bare(number)]
        if len(rows) == 1 and len(ends) == 2:
            tap, place = sorted(ends, key=lambda end: end.range())
            picked, last = place.bare(), tap.range()[1]
            if picked is not None:
                forward, backward = rows[0] + tap, rows[0] - tap + last
                return Pick(number, picked, forward), Pick(number, picked, backward)
            return None
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
        step = index.coefficient(tap.slot)
        slides = index.coefficient(out.slot) == 1 and step != 0
        rest = index - bare(out) - bare(tap) * step
        slides = slides and not {out, tap} & set(rest.iterators())
        if not slides or any(at[0] == axis.at for axis in axes):
            return None  # it isn't position + step * tap
        algorithm, dilation = window.algorithm, abs(step)
        if step < 0:
            algorithm, rest = algorithm.backward(), rest + step * (tap.extent - 1)
        tiles = -(-out.extent // (dilation * algorithm.outputs))
        extents = dilation, tiles, algorithm.products, algorithm.inputs
        phase, tile, number, place = (It(slot + n, extent) for n, extent in enumerate(extents))
        axes.append(_Axis(window, algorithm, at[0], dilation, rest, phase, tile, number, place))
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
    # The last tiles may read outside even if the scope doesn't; then any finite fill is right.
    moved = Read(data.tensor, tuple(index), 0.0 if data.in_range() else data.fill)
    dtype = scope.dtype
    entries = [_entry(a.algorithm.data, bare(a.product), a.input, dtype) for a in axes]
    transformed = _transform([moved, *entries], in_order(iterators(data)), [a.input for a in axes])
    entries = [_entry(a.algorithm.filter, bare(a.product), a.window.tap, dtype)
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
        out, outputs = bare(axis.window.out), axis.algorithm.outputs
        back[axis.phase] = out % axis.dilation
        back[axis.tile] = out // (axis.dilation * outputs)
        row = out // axis.dilation % outputs
        entries.append(_entry(axis.algorithm.output, row, axis.product, dtype))
    read = Read(products, tuple(back.get(it, bare(it)) for it in axes_of_products))
    return scope_over(traversal_iterators(scope), numbers, product([read, *entries]))


def _transform(factors: Sequence[Scalar], kept: Sequence[It], reduced: Sequence[It]) -> Read:
    """A read of the product of ``factors`` summed over ``reduced``, at the iterators ``kept``."""
    return Read(scope_over(kept, reduced, product(factors)), tuple(map(bare, kept)))


def _entry(matrix: Matrix, row: Index, column: It, dtype: str) -> Read:
    return Read(literal(matrix, dtype), (row, bare(column)))


def literal(matrix: Matrix, dtype: str) -> Op:
    """The matrix as a term."""
    entries = [entry for row in matrix for entry in row]
    above = tuple(entry.numerator for entry in entries)
    below = tuple(entry.denominator for entry in entries)
    return Op("Literal", (), ((len(matrix), len(matrix[0])), above, below, dtype))
