"""Regions that Inductor compiled are kept: loaded with other weights, or compiled again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eqsynth import kept
from eqsynth.ir.tensor import Input, Op, Region
from eqsynth.ir.types import TensorType
from eqsynth.lower.engines import inductor, inductor_kept
from eqsynth.lower.engines.inductor_kept import Compiled

X, W, B = (
    Input(str(n), TensorType(shape, "float32"))
    for n, shape in enumerate([(4, 200), (200, 160), (160,)])
)
LAYER = Region((Op("Relu", (Op("Add", (Op("Matmul", (X, W)), B)),)),), (X, W, B))

pytestmark = pytest.mark.skipif(
    inductor.Inductor().version() is None, reason="Inductor needs a C++ compiler"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    """What is compiled from here on, into an empty cache directory; the layer with random weights
    is, as the measuring worker does it."""
    real, found = inductor._fresh, list[Region]()

    def fresh(region: Region, constants: Mapping[int, torch.Tensor]) -> Any:
        found.append(region)
        return real(region, constants)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQSYNTH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(inductor, "_fresh", fresh)
        call(torch.randn(200, 160))
        assert len(found) == 1
        yield found


def call(w: torch.Tensor, b: float = 1.0) -> None:
    """Builds the layer with its weights, and compares what it gives."""
    bias = torch.linspace(-b, b, 160)
    run = inductor.Inductor().compiled(LAYER, {1: w, 2: bias})
    for _ in range(2):
        x = torch.randn(4, 200)
        torch.testing.assert_close(run(x), torch.relu(x @ w + bias), rtol=1e-4, atol=1e-4)


def test_other_large_weights_take_what_was_compiled(compiled: list[Region]) -> None:
    before = len(compiled)
    call(torch.randn(200, 160))
    call(torch.zeros(200, 160))
    assert len(compiled) == before


def test_other_small_constants_are_compiled_anew(compiled: list[Region]) -> None:
    """Numbers of small constants may stand in the code."""
    before = len(compiled)
    call(torch.randn(200, 160), b=2.0)
    assert len(compiled) == before + 1


def test_what_is_kept_is_read_as_data_and_a_damaged_file_costs_a_compilation(
    compiled: list[Region],
) -> None:
    weights = {1: torch.randn(200, 160), 2: torch.linspace(-1.0, 1.0, 160)}
    path = inductor_kept._path(LAYER, weights)
    found = kept.load(path, kept.classes(Compiled))
    assert isinstance(found, Compiled) and found.steps
    for steps in (
        (json.dumps(["aten::add_.Tensor", [{"tensor": 0}, 1.0], {"dict": {}}, [9]]),),
        (json.dumps(["no::operator", [], {"dict": {}}, [9]]),),
        ("",),
        found.steps[:-1],
    ):
        kept.keep(path, replace(found, steps=steps), 1 << 20)
        with pytest.raises(inductor_kept.Unkept):
            inductor_kept.load(LAYER, weights)
    kept.keep(path, replace(found, instructions="other"), 1 << 20)
    with pytest.raises(inductor_kept.Unkept):
        inductor_kept.load(LAYER, weights)
    kept.keep(path, found, 1 << 20)
    inductor_kept.load(LAYER, weights)


def test_what_gives_other_values_is_not_kept(
    compiled: list[Region], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {1: torch.randn(200, 160), 2: torch.linspace(-1.0, 1.0, 160)}
    found = kept.load(inductor_kept._path(LAYER, weights), kept.classes(Compiled))
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    tape = inductor_kept.Tape(weights)
    tape.compiled = found
    x = torch.randn(4, 200)
    right = torch.relu(x @ weights[1] + weights[2])
    inductor_kept.keep(LAYER, weights, tape, [x], [right + 1.0])
    with pytest.raises(inductor_kept.Unkept):
        inductor_kept.load(LAYER, weights)
    inductor_kept.keep(LAYER, weights, tape, [x], inductor_kept._called_with(found, weights)([x]))
    inductor_kept.load(LAYER, weights)
