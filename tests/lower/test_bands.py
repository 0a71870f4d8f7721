"""Kernels of band products, at sizes at which little is left of the band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from eoperator_cases import array, check_kernels, it, sample, tensor

from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut as segments_of
from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.schedule import Band, Schedule
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Num, Prod, Read, Sum
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.bands import BandProduct, band_product, cut
from eqsynth.lower.loop_nest import LoopNest, loop_nest
from eqsynth.lower.machine import Machine
from eqsynth.lower.schedules import band, refusal
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.rules import load_rules


@dataclass(frozen=True)
class Sizes:
    """Heads, rows, what is summed (or stands beside), the band's width to each side, dilation."""

    b: int
    n: int
    k: int
    w: int
    d: int = 1
    rows: int | None = None  # of the operand that moves; as many as n without
    start: int | None = None  # where the band begins; so that it is centred without
    fill: float = 0.0
    dtype: str = "float32"


def across(s: Sizes) -> Scope:
    """A band of a product of matrices."""
    b, m, w, k = it(0, s.b), it(1, s.n), it(2, 2 * s.w + 1), it(3, s.k)
    x, y = tensor(0, (s.b, s.n, s.k), s.dtype), tensor(1, (s.b, s.rows or s.n, s.k), s.dtype)
    moved = Read(y, (b, _moved(s, m, w), k), s.fill)
    return Scope((s.b, s.n, 2 * s.w + 1), (s.k,), Prod((Read(x, (b, m, k)), moved)))


def along(s: Sizes) -> Scope:
    """A band times a matrix."""
    b, m, n, w = it(0, s.b), it(1, s.n), it(2, s.k), it(3, 2 * s.w + 1)
    x = tensor(0, (s.b, s.n, 2 * s.w + 1), s.dtype)
    y = tensor(1, (s.b, s.rows or s.n, s.k), s.dtype)
    moved = Read(y, (b, _moved(s, m, w), n), s.fill)
    return Scope((s.b, s.n, s.k), (2 * s.w + 1,), Prod((Read(x, (b, m, w)), moved)))


def _moved(s: Sizes, m: Index, w: Index) -> Index:
    return m + w * s.d + (-s.d * s.w if s.start is None else s.start)


KINDS = {"across": across, "along": along}
SIZES = {
    "plain": Sizes(2, 40, 24, 5),
    "one head": Sizes(1, 33, 16, 7),
    "dilated": Sizes(2, 48, 20, 4, 3),
    "rest of a dilation": Sizes(2, 50, 17, 4, 3),
    "band over all rows": Sizes(2, 9, 16, 11),
    "all but the middle is outside": Sizes(1, 5, 24, 6, 7),
    "dilation over the rows": Sizes(3, 6, 16, 2, 9),
    "two rows": Sizes(4, 2, 40, 3),
    "narrowest band": Sizes(2, 37, 16, 1, 2),
    "what is summed is no vector": Sizes(2, 31, 13, 9),
    "never outside": Sizes(2, 20, 16, 3, 2, rows=40, start=0),
    "outside behind": Sizes(2, 20, 16, 3, 1, start=15),
    "wholly outside": Sizes(1, 8, 16, 2, 1, start=90),
    "another fill": Sizes(2, 21, 16, 4, fill=3.0),
    "infinite fill": Sizes(2, 21, 16, 4, fill=np.inf),
    "doubles": Sizes(2, 29, 24, 4, 2, dtype="float64"),
}
WIDE, NARROW = Machine(32, 64, 1 << 20), Machine(16, 32, 1 << 18)


def nest_of(scope: Scope) -> LoopNest:
    inputs = [contiguous(len(arg.shape)) for arg in args_of(scope)]
    return loop_nest(scope, inputs, contiguous(len(scope.shape)))


def found(scope: Scope) -> BandProduct:
    product = band_product(nest_of(scope))
    assert product is not None
    return product


def kernel(scope: Scope, schedule: Schedule) -> Kernel:
    inputs = tuple(contiguous(len(arg.shape)) for arg in args_of(scope))
    output = contiguous(len(scope.shape))
    return Kernel(scope, (False,) * len(inputs), "tvm.band", inputs, output, schedule)


def schedules_of(scope: Scope) -> list[Schedule]:
    """Those that are offered on two machines, and some that leave a rest everywhere."""
    nest = nest_of(scope)
    own = [Band(1, 8, 1), Band(3, 8, 4), Band(2, 16, 5), Band(4, 24, 7), Band(5, 16, 16)]
    taken = [schedule for schedule in own if refusal(nest, schedule) is None]
    return list(dict.fromkeys([*band(nest, WIDE), *band(nest, NARROW), *taken]))


@pytest.mark.rotating
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SIZES)
def test_kernels_are_right(kind: str, name: str) -> None:
    scope = KINDS[kind](SIZES[name])
    schedules = schedules_of(scope)
    assert schedules
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(scope))]
    if SIZES[name].fill == np.inf:
        values = [value.abs() + 1 for value in values]  # inf - inf, and 0 * inf, are NaN
    check_kernels([kernel(scope, s) for s in schedules], *values, tolerance=8.0)


@pytest.mark.rotating
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_outside_of_the_band_is_not_touched(kind: str) -> None:
    """NaN in a row of the operand that moves reaches those results that read it, and no others."""
    scope = KINDS[kind](Sizes(2, 40, 16, 3, 2))
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(scope))]
    values[1][0, 0], values[1][1, 17], values[1][1, 39] = np.nan, np.nan, np.nan
    names = [arg.label for arg in args_of(scope)]
    expected = evaluate(scope, {n: array(v) for n, v in zip(names, values, strict=True)})
    kernels = [kernel(scope, s) for s in schedules_of(scope)]
    assert 0 < np.isnan(expected).sum() < expected.size / 2
    for run in TvmBackend().build([(k, {}) for k in kernels]):
        assert run is not None
        assert np.array_equal(np.isnan(array(run(*values))), np.isnan(expected))


@pytest.mark.rotating
@pytest.mark.parametrize("kind", KINDS)
def test_nan_beside_what_is_outside_of_the_tensor(kind: str) -> None:
    """A fill of 0 times NaN is NaN, as it is where the zeros stand in memory."""
    scope = KINDS[kind](Sizes(1, 20, 16, 3))
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(scope))]
    values[0][0, 1, 0] = np.nan
    names = [arg.label for arg in args_of(scope)]
    expected = evaluate(scope, {n: array(v) for n, v in zip(names, values, strict=True)})
    assert np.isnan(expected[0, 1]).all() and not np.isnan(expected[0, 2:]).any()
    for run in TvmBackend().build([(kernel(scope, s), {}) for s in schedules_of(scope)]):
        assert run is not None
        assert np.array_equal(np.isnan(array(run(*values))), np.isnan(expected))


@pytest.mark.rotating
def test_axes_in_other_orders_and_several_in_front() -> None:
    """Rows outside of the heads, an operand that all heads share, the band read from behind."""
    shape, heads, n, k, size = (3, 2, 26), 2, 26, 16, 9
    h, g, m, w, r = it(0, 3), it(1, heads), it(2, n), it(3, size), it(4, k)
    x, y = tensor(0, (n, 3, heads, k)), tensor(1, (40, heads, k))
    rows = m * -1 + w * -2 + 36
    product = Prod((Read(x, (m, h, g, r)), Read(y, (rows, g, r))))
    scope = Scope((*shape, size), (k,), product)
    assert found(scope).dilation == 2 and len(found(scope).outer) == 2
    check_kernels([kernel(scope, s) for s in schedules_of(scope)], tolerance=8.0)


def _in_digits() -> Scope:
    """Rows in two axes, which are one in memory: but whether they are inside is told by a digit."""
    b, m, w, k = it(0, 2), it(1, 40), it(2, 9), it(3, 16)
    x, y = tensor(0, (2, 40, 16)), tensor(1, (2, 12, 4, 16))
    row = m + w - 3
    moved = Read(y, (b, row // 4, row % 4, k))
    return Scope((2, 40, 9), (16,), Prod((Read(x, (b, m, k)), moved)))


def _none() -> Mapping[str, Scope]:
    b, m, w, k = it(0, 2), it(1, 40), it(2, 9), it(3, 16)
    x, y = tensor(0, (2, 40, 16)), tensor(1, (2, 60, 16))

    def scope(rows: Index, *, left: Index = m, column: Index = k, reducer: str = "sum") -> Scope:
        moved = Read(y, (b, rows, column))
        return Scope((2, 40, 9), (16,), Prod((Read(x, (b, left, k)), moved)), reducer)

    plain = Prod((Read(x, (b, m, k)), Read(y, (b, m + w, k))))
    return {
        "rows apart": scope(m * 2 + w - 40),
        "the other way": scope(m * -1 + w + 39),
        "digits of the rows": scope((m + w) // 2),
        "digits that leave their tensor": _in_digits(),
        "A leaves its tensor": scope(m + w, left=m - 1),
        "B leaves it along k": scope(m + w, column=k - 1),
        "a maximum": scope(m + w, reducer="max"),
        "no product": Scope((2, 40, 9), (16,), Sum(plain.factors)),
        "three factors": Scope((2, 40, 9), (16,), Prod((*plain.factors, Num(0.5)))),
    }


NONE = _none()


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_band_product(name: str) -> None:
    assert band_product(nest_of(NONE[name])) is None


def test_a_panel_is_no_larger_than_the_cache() -> None:
    large = nest_of(across(Sizes(1, 4096, 64, 32)))
    product = band_product(large)
    assert product is not None
    for machine in (WIDE, NARROW, Machine(16, 32, 1 << 16)):
        for schedule in band(large, machine):
            assert cut(product, schedule).packed * 64 * 4 <= machine.cached_bytes


@pytest.mark.rotating
def test_the_backend_offers_them_where_arithmetic_is_the_bound() -> None:
    scope = across(Sizes(2, 256, 64, 32, 2))
    offered = list(TvmBackend().kernels(scope, (False, False)))
    plain = contiguous(3)
    assert any(k.inputs == (plain, plain) and k.output == plain for k in offered)
    assert all(k.implementation == "tvm.band" and isinstance(k.schedule, Band) for k in offered)
    check_kernels(offered, tolerance=8.0)


class Gathered(torch.nn.Module):
    """Of neighbours up to ``reach`` rows away those ``step`` apart, read at their positions:
    the scores with them, and their mean under weights. (2, n, 16), (2, n, 16) -> (2, n, 16)"""

    def __init__(self, reach: int, step: int) -> None:
        super().__init__()
        self.reach, self.step = reach, step

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(0, 2 * self.reach + 1, self.step)
        position = torch.arange(q.shape[1])[:, None] + offsets[None, :]
        rows = torch.nn.functional.pad(k, (0, 0, self.reach, self.reach))[:, position]
        scores = (q[:, :, None, :] @ rows.transpose(-1, -2))[:, :, 0]
        return (torch.relu(scores)[:, :, None, :] @ rows)[:, :, 0]


@pytest.mark.rotating
@pytest.mark.parametrize(("reach", "step"), [(4, 1), (6, 3), (20, 5)])
def test_rows_at_computed_positions_are_band_products(reach: int, step: int) -> None:
    """The rules find both products in torch code that gathers: with the dilation, and no other."""
    captured = capture(Gathered(reach, step).eval(), (torch.randn(2, 12, 16),) * 2)
    rules = load_rules().select()
    kinds = set()
    for segment in segments_of(captured.program):
        graph = saturate_terms(segment.roots, rules, DEFAULT_PHASES, Limits(deadline_s=20), False)
        for members in graph.classes.values():
            for scope in members:
                if isinstance(scope, Scope) and len(args_of(scope)) == 2:
                    product = band_product(nest_of(scope))
                    if product is not None and product.dilation == step:
                        kinds.add(product.across)
    assert kinds == {False, True}
