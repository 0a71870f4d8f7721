"""Inputs that programs are compared on, and which integers an original takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from eqsynth.lower.kinds import KINDS, Range, inputs_of, ranges
from eqsynth.lower.reruns import Values

X, N, B = torch.linspace(-1, 1, 24).reshape(4, 6), torch.arange(4), torch.ones(5).bool()
GIVEN: Values = ((X, [3, {"n": N}], B), {"y": X.half()})


def drawn(kind: str) -> list[Any]:
    return tree_leaves(inputs_of(GIVEN, kind, {2: Range(0, 99, True)}))


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_of_the_given_types_and_the_same_each_time(kind: str) -> None:
    given, first, again = tree_leaves(GIVEN), drawn(kind), drawn(kind)
    assert first[1] == 3
    for x, y, z in zip(given, first, again, strict=True):
        if isinstance(x, torch.Tensor):
            assert (x.shape, x.dtype) == (y.shape, y.dtype) and torch.equal(y, z)
            assert y.isfinite().all()
            assert torch.equal(x, y) == (kind == "given") or x.dtype == torch.bool


def test_what_the_kinds_are() -> None:
    floats = {kind: drawn(kind)[0] for kind in KINDS}
    assert all(abs(float(floats[f"offset {o:g}"].mean()) / o - 1) < 0.1 for o in (10,))
    assert float(floats["offset 1e6"].min()) > 9e5 and float(floats["offset 1e4"].min()) > 9e3
    sizes = floats["mixed scales"].abs()
    assert sizes.max() > 1e3 and sizes.min() < 1e-3
    assert 0 < (floats["near-equal"] - 1).abs().max() < 0.01
    assert len(floats["constant"].unique()) == 1
    assert 0 < (floats["sparse"] == 0).sum() < 24
    assert {bool(b) for kind in KINDS for b in drawn(kind)[3]} == {True, False}
    # Every integer in reach is drawn from, both ends among them.
    integers = torch.cat([drawn(kind)[2] for kind in KINDS])
    assert integers.min() == 0 and integers.max() == 99


@pytest.mark.parametrize(
    ("takes", "dtype", "expected"),
    [
        (lambda n: 0 <= n < 1000, torch.int64, Range(0, 999, True)),
        (lambda n: n >= 1, torch.int64, Range(1, 2**63 - 1, True)),
        (lambda n: -50 <= n < 50, torch.int32, Range(-50, 49, True)),
        (lambda n: True, torch.uint8, Range(0, 255, False)),
        (lambda n: True, torch.int32, Range(-(2**31), 2**31 - 1, False)),
        (lambda n: n == 3, torch.int64, Range(3, 3, True)),
    ],
)
def test_the_range_that_an_original_takes(takes: Any, dtype: torch.dtype, expected: Range) -> None:
    tried = []

    def runs(values: Values) -> bool:
        (n,), _ = values
        tried.append(n)
        return all(map(takes, n.tolist()))

    given = torch.full((3,), 3, dtype=dtype)
    assert ranges(((given,), {}), runs) == {0: expected}
    assert len(tried) <= 42


def test_a_guess_that_is_right_saves_the_search_and_a_wrong_one_does_no_harm() -> None:
    tried = []

    def runs(values: Values) -> bool:
        tried.append(values)
        return bool(((values[0][0] >= 0) & (values[0][0] < 30_522)).all())

    given: Values = ((torch.tensor([5, 7]),), {})
    expected = {0: Range(0, 30_521, True)}
    assert ranges(given, runs, {0: 30_522}) == expected
    few = len(tried)
    assert ranges(given, runs, {0: 77}) == expected
    assert few < 15 < len(tried) - few


def test_columns_that_are_positions_in_tables_of_their_own_change_rows() -> None:
    def runs(values: Values) -> bool:
        (n,), _ = values
        return bool((n[:, 0] < 2).all() and (n[:, 1] < 5).all())

    given = torch.tensor([[0, 4], [1, 3], [0, 2]])
    found = ranges(((given,), {}), runs)
    assert found == {0: None}
    (changed,), _ = inputs_of(((given,), {}), "random", found)
    assert sorted(changed.tolist()) == sorted(given.tolist())
