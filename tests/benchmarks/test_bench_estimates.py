"""How estimates are rated, on times that are made up, and that a run tells of each estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_estimates
from benchmarks.bench_estimates import by_groups, distance, drawn, rank_correlation, rated
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Scope
from eqsynth.ir.types import TensorType
from tests.extract.test_cost import TARGET, kernel_of, matmul, relu


def test_ranks_are_correlated_not_values() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [5.0, 6.0, 1e9]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.9**0.5)


def test_estimates_by_groups_come_from_the_group(tmp_path: Path) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    small, product = [kernel_of(relu(n)) for n in (8, 9, 10, 11)], kernel_of(matmul())
    known = {k: r * costs.roofline_s(k) for k, r in zip(small[:3], (2.0, 3.0, 9.0), strict=True)}
    known[product] = 5.0 * costs.roofline_s(product)
    predict = by_groups(known, costs, costs.family)
    assert predict(small[3]) == pytest.approx(3.0 * costs.roofline_s(small[3]))
    assert predict(product) == pytest.approx(5.0 * costs.roofline_s(product))
    twice = rated(predict, {k: 2.0 * predict(k) for k in (small[3], product)})
    assert twice.off == pytest.approx(2.0) and twice.correlation == pytest.approx(1.0)
    half = rated(predict, {small[3]: predict(small[3]) / 3, product: predict(product) / 3})
    assert half.off == pytest.approx(3.0)


def test_the_distance_of_a_kernel_counts_what_is_summed() -> None:
    x = Input("0", TensorType((4, 6), "float32"))
    rows, columns = Index.iterator(0, 4), Index.iterator(1, 6)

    def of(scope: Scope) -> float:
        return distance(Kernel(scope, (False,), "torch", ((0, 1),), (0,)))

    assert of(Scope((4,), (6,), Read(x, (rows, columns)), "sum")) == 0
    line = Index.iterator(0, 24)
    assert of(Scope((24,), (), Read(x, (line // 6, line % 6)), "sum")) == 1


def test_draws_are_the_same_each_time() -> None:
    shapes = [[x.shape for x in drawn(seed)[1]] for seed in range(16)]
    assert shapes == [[x.shape for x in drawn(seed)[1]] for seed in range(16)]
    assert shapes[:8] != shapes[8:]


@pytest.mark.slow
def test_a_run_rates_each_estimate(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    bench_estimates.main(["--draws", "16", "--kernels", "3", "--json", str(path)])
    result = json.loads(path.read_text())
    assert set(result["ratings"]) == {"cost model", "family", "family, distance"}
    assert result["known"] > 0 and result["estimated"] > 0
    assert all(rating["off"] >= 1.0 for rating in result["ratings"].values())
