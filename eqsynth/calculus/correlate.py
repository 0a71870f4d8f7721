"""Correlation by tiles: a bilinear algorithm in the place of the products of a window.

    L_y sum_k d[y + k] * w[k]
      =  L_y sum_p A[y % m, p] * {L_{t,p} v * u}[y // m, p]
         v = {L_{t,p} sum_u B[p, u] * d[m*t + u]},  u = {L_p sum_k G[p, k] * w[k]}

for any matrices with ``sum_p A[j, p] * G[p, k] * B[p, u] = [u = j + k]``, exactly, over the
rationals; along any number of axes at once, and with dilation s: ``y = s*(m*t + j) + phase``. All
that the scope sums over besides (channels) is summed in the middle, where it is a batched product
of matrices. The tiles at the end reach beyond the last y and may read beyond the data, which gives
the fill there as everywhere: the elements that this makes are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.bilinear import Algorithm, Matrix, is_exact
from eqsynth.calculus.conditions import is_finite, is_product
from eqsynth.calculus.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Read, Scalar, factors_of, iterators, product
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="correlate")


@dataclass(frozen=True)
class Window:
    """An axis along which a window slides: its position, its tap, and the algorithm."""

    out: It
    tap: It
    algorithm: Algorithm


@dataclass(frozen=True)
class Correlate:
    """The windows, each along another index of one read."""

    windows: tuple[Window, ...]


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


def correlate(scope: Scope, given: Correlate) -> Scope:
    """``L_y sum_k d[y + k] * w[k] = L_y sum_p A[y % m, p] * {v * u}[y // m, p]``.

    Raises:
        LawError: ``product``: the body isn't one of finite factors under a sum; ``dtype``: the
            factors aren't floats of one dtype; ``iterators``: the windows aren't over iterators of
            the scope, each once; ``algorithm``: the matrices aren't a correlation over the window's
            taps; ``window``: a position occurs elsewhere than in one index of one read, the same
            for all windows, or that isn't ``position + dilation * tap + rest``.
    """
    windows = given.windows
    factors = factors_of(scope.body)
    _require(bool(scope.reduction) and is_product(scope) and all(map(is_finite, factors)),
             condition="product", what="no sum of products of finite factors")  # fmt: skip
    dtypes = {f.tensor.dtype for f in factors if isinstance(f, Read)} | {scope.dtype}
    _require(len(dtypes) == 1 and is_float(scope.dtype), condition="dtype",
             what="rational numbers are floats, of one dtype")  # fmt: skip
    outs, taps = [w.out for w in windows], [w.tap for w in windows]
    own = len(set(outs)) == len(outs) > 0 and set(outs) <= set(traversal_iterators(scope))
    reduced = len(set(taps)) == len(taps) and set(taps) <= set(reduction_iterators(scope))
    _require(own and reduced, condition="iterators", what="the windows aren't the scope's")
    _require(
        all(w.tap.extent == w.algorithm.taps and is_exact(w.algorithm) for w in windows),
        condition="algorithm", what="the matrices aren't a correlation of so many taps",
    )  # fmt: skip
    sliding = [factor for factor in factors if set(outs) & iterators(factor)]
    _require(len(sliding) == 1, condition="window", what="not one factor has the positions")
    data = sliding[0]
    assert isinstance(data, Read)
    return _by_tiles(scope, data, _axes(scope, data, windows))


def _axes(scope: Scope, data: Read, windows: Sequence[Window]) -> list[_Axis]:
    axes: list[_Axis] = []
    slot = len(scope.extents)
    for window in windows:
        out, tap = window.out, window.tap
        at = [n for n, index in enumerate(data.index) if {out, tap} & set(index.iterators())]
        index = data.index[at[0]]
        dilation = index.coefficient(tap.slot)
        slides = len(at) == 1 and index.coefficient(out.slot) == 1 and dilation > 0
        rest = index - bare(out) - bare(tap) * dilation
        slides = slides and not {out, tap} & set(rest.iterators())
        _require(slides and all(at[0] != axis.at for axis in axes), condition="window",
                 what="the index isn't position + dilation * tap")  # fmt: skip
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
    entries = [_entry(a.window.algorithm.data, a.product, a.input, scope.dtype) for a in axes]
    transformed = _transform([moved, *entries], in_order(iterators(data)), [a.input for a in axes])
    entries = [_entry(a.window.algorithm.filter, a.product, a.window.tap, scope.dtype)
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
        entries.append(_entry_at(axis.window.algorithm.output, (row, bare(axis.product)), scope))
    read = Read(products, tuple(back.get(it, bare(it)) for it in axes_of_products))
    return scope_over(traversal_iterators(scope), numbers, product([read, *entries]))


def _transform(factors: Sequence[Scalar], kept: Sequence[It], reduced: Sequence[It]) -> Read:
    """A read of the sum of a product over some iterators."""
    return Read(scope_over(kept, reduced, product(factors)), tuple(map(bare, kept)))


def _entry(matrix: Matrix, row: It, column: It, dtype: str) -> Read:
    return Read(literal(matrix, dtype), (bare(row), bare(column)))


def _entry_at(matrix: Matrix, index: tuple[Index, Index], scope: Scope) -> Read:
    return Read(literal(matrix, scope.dtype), index)


def literal(matrix: Matrix, dtype: str) -> Op:
    """The matrix as a term."""
    entries = [entry for row in matrix for entry in row]
    above = tuple(entry.numerator for entry in entries)
    below = tuple(entry.denominator for entry in entries)
    return Op("Literal", (), ((len(matrix), len(matrix[0])), above, below, dtype))
