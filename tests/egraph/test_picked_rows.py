"""Rows that ids pick: only these are computed, also where the program is cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from eqsynth import optimize, segmented
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.egraph.segments import cut, demanded, stitch, with_part
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.testing.consistency import assert_egraph_consistent
from eqsynth.testing.search import estimated_plan
from tests.egraph.programs import LIMITS, RULES
from tests.terms import leaf, op

weight = partial(leaf, constant=True)
IDS = leaf("ids", 2, dtype="int64")


def softmax_rows() -> Tensor:
    scores = op("Matmul", leaf("x", 40, 3), leaf("y", 3, 4))
    return op("Embedding", op("Softmax", scores, attrs=(1,)), IDS)


def layer_rows() -> Tensor:
    """Of a batch of one."""
    layer = op("Relu", op("Matmul", leaf("x", 1, 40, 3), weight("w", 3, 4)))
    return op("Embedding", op("Reshape", layer, attrs=((40, 4),)), IDS)


def norm_rows() -> Tensor:
    """Of a batch of one."""
    layer = op("Matmul", leaf("x", 1, 40, 3), weight("w", 3, 4))
    norm = op("LayerNorm", layer, weight("g", 4), weight("h", 4), attrs=(1, 1e-5))
    return op("Embedding", op("Reshape", norm, attrs=((40, 4),)), IDS)


def rows_of_each() -> Tensor:
    """Two of forty rows of each of two layers: the rows are the second axis."""
    layers = op("Relu", op("Matmul", leaf("x", 2, 40, 3), weight("w", 3, 4)))
    rows = op("Reshape", op("Permute", layers, attrs=((1, 0, 2),)), attrs=((40, 8),))
    return op("Embedding", rows, IDS)


def along(table: Tensor, count: int = 1) -> Tensor:
    """Of each of two batches of rows, those that ids pick."""
    ids = leaf("at", 2, count, dtype="int64")
    shape = (2, count, table.shape[2])
    places = op("Expand", op("Reshape", ids, attrs=((2, count, 1),)), attrs=(shape,))
    return op("Gather", table, places, attrs=(1,))


def softmax_along() -> Tensor:
    """With a bias of each row of a batch."""
    product = op("Matmul", leaf("x", 2, 40, 3), leaf("y", 3, 4))
    scores = op("Add", product, weight("b", 40, 4))
    return along(op("Softmax", scores, attrs=(2,)))


def layer_along() -> Tensor:
    return along(op("Relu", op("Matmul", leaf("x", 2, 40, 3), weight("w", 3, 4))), 2)


def norm_along() -> Tensor:
    layer = op("Matmul", leaf("x", 2, 40, 3), weight("w", 3, 4))
    return along(op("LayerNorm", layer, weight("g", 4), weight("h", 4), attrs=(1, 1e-5)), 2)


def attention_along() -> Tensor:
    """One row of queries, with all keys and values."""
    q, k, v = leaf("q", 2, 40, 3), leaf("k", 2, 40, 3), leaf("v", 2, 40, 3)
    scores = op("Matmul", q, op("Permute", k, attrs=((0, 2, 1),)))
    return along(op("Matmul", op("Softmax", scores, attrs=(2,)), v))


def labels() -> Tensor:
    """One of forty scores of each row."""
    scores = op("Matmul", leaf("x", 5, 8), leaf("w", 8, 40))
    return op("Gather", scores, leaf("label", 5, 1, dtype="int64"), attrs=(1,))


@pytest.mark.parametrize(
    ("program", "least"),
    [
        (softmax_along, 2 * 2 * 4 * 3),
        (layer_along, 2 * 4 * 4 * 3),
        # A normalization takes a search of some seconds.
        pytest.param(norm_along, 2 * 4 * 4 * 3, marks=pytest.mark.rotating),
        (attention_along, 2 * 2 * 2 * 40 * 3),
        (labels, 2 * 5 * 8),
        (softmax_rows, 2 * 4 * 2 * 3),  # the product; the rest are a few operations an element
        (layer_rows, 2 * 4 * 2 * 3),
        pytest.param(norm_rows, 2 * 4 * 2 * 3, marks=pytest.mark.rotating),
        (rows_of_each, 2 * 2 * 4 * 2 * 3),
    ],
)
def test_only_the_rows_that_are_picked_are_computed(
    program: Callable[[], Tensor], least: int
) -> None:
    graph = saturate_terms((program(),), RULES, DEFAULT_PHASES, LIMITS, True)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    assert least <= estimated_plan(graph, "flops").cost_s <= 2.5 * least


def test_a_part_is_taken_before_contractions_are_explored() -> None:
    """Their many orders may use up the bound on the growth."""
    x = leaf("x", 40, 3)
    q, k, v = (op("Matmul", x, weight(name, 3, 3)) for name in "abc")
    scores = op("Matmul", q, op("Permute", k, attrs=((1, 0),)))
    attention = op("Matmul", op("Softmax", scores, attrs=(1,)), v)
    row = op("Slice", attention, attrs=(0, 0, 1, 1))
    names = [phase.name for phase in DEFAULT_PHASES]
    begin = DEFAULT_PHASES[: names.index("contract")]
    graph = saturate_terms((row,), RULES, begin, LIMITS, True)
    parts = {t.shape for of in graph.classes.values() for t in of if isinstance(t, Scope)}
    assert {(1, 3), (1, 40)} <= parts, "of q, and of the scores"


def test_what_is_picked_is_no_larger_than_what_is_computed() -> None:
    """At relative positions, a row of k for each i and j is more than all products."""
    q, k, at = leaf("q", 2, 5, 6), leaf("k", 10, 6), leaf("at", 5, 5, dtype="int64")
    scores = op("Matmul", q, op("Permute", k, attrs=((1, 0),)))
    places = op("Expand", op("Reshape", at, attrs=((1, 5, 5),)), attrs=((2, 5, 5),))
    graph = saturated((op("Gather", scores, places, attrs=(2,)),))
    assert graph.stop == "saturated"
    assert "gather-along" not in graph.matches


class Layers(nn.Module):
    """Three layers, of whose result ``pick`` takes rows."""

    def __init__(self, pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.pick = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), pick

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.pick(x, ids)


def saturated(roots: tuple[Tensor, ...]) -> EGraph:
    return saturate_terms(roots, RULES, DEFAULT_PHASES, LIMITS, False)


@pytest.mark.rotating
def test_a_segment_computes_the_rows_that_the_next_one_picks() -> None:
    """The ids are computed from an input, in both segments."""
    x, ids = torch.ones(40, 8), torch.tensor([3, -1])
    program = capture(Layers(lambda x, ids: x[ids]).eval(), (x, ids)).program
    segments = cut(program)
    assert len(segments) == 3
    for place in (2, 1):
        parts = demanded(segments[place], saturated(segments[place].roots))
        (part,) = parts.values()
        assert (part.name, part.shape) == ("Embedding", (2, 8))
        segments[place - 1] = with_part(segments[place - 1], part)
    graph = stitch(program, segments, [saturated(segment.roots) for segment in segments])
    members = [m for of in graph.classes.values() for m in of if isinstance(m, Op)]
    assert sum(member.name == "Less" for member in members) == 1, "ids < 0, in three segments"
    assert estimated_plan(graph, "flops").cost_s < 1.1 * 3 * 2 * (2 * 8 * 8 + 2 * 8)
    # Nothing is asked of a segment that isn't saturated, or whose ids an earlier segment computes.
    assert demanded(segments[2], unsaturated(segments[2].roots, "")) == {}
    own = capture(Layers(lambda x, _: x[x.sum(1).argmax()[None]]).eval(), (x, ids)).program
    last = cut(own)[-1]
    found = demanded(last, saturated(last.roots)).values()
    assert not any(isinstance(part, Op) and part.name == "Embedding" for part in found)


@pytest.mark.rotating
def test_a_large_segment_is_not_asked_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def flops(most: int) -> int:
        monkeypatch.setattr(segmented, "MOST_PICKED", most)
        module = Layers(lambda x, ids: x[ids]).eval()
        given = torch.ones(40, 8), torch.tensor([3, -1])
        found = optimize(module, given, objective="flops", engines=(), time_limit_s=60)
        return int(found.report.flops_after)

    assert 2 * flops(64) < flops(1)


@pytest.mark.rotating
def test_a_segment_computes_what_a_gather_of_another_width_picks() -> None:
    """The ids are repeated along 6 columns behind the last layer, and along 4 before it."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 6))

    class Picked(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = layers(x)[torch.arange(2), ids]
            return found

    program = capture(Picked().eval(), (torch.ones(2, 40, 3), torch.tensor([3, -1]))).program
    _, last = cut(program)
    (part,) = demanded(last, saturated(last.roots)).values()
    assert (part.name, part.shape) == ("Gather", (2, 1, 4))


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("pick", "shape"),
    [
        (lambda x, ids: x[ids], (40, 8)),
        (lambda x, ids: x[:, ids], (1, 40, 8)),
        (lambda x, ids: x[torch.arange(1), ids.argmax()[None]], (1, 40, 8)),
        (lambda x, ids: x[torch.arange(3), ids], (3, 40, 8)),
        (lambda x, ids: x[torch.arange(2)[:, None], ids], (2, 40, 8)),
        (lambda x, ids: x.gather(1, (ids % 40)[:, None, None].expand(3, 1, 8)), (3, 40, 8)),
    ],
)
def test_other_ids_pick_other_rows(
    pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module, x = Layers(pick).eval(), torch.randn(shape)
    ids = torch.tensor([3, 7, -1])
    program = optimize(module, (x, ids), objective="flops", engines=(), time_limit_s=60)
    assert program.original is None
    rows = module(x, ids).numel() // 8
    assert program.report.flops_after < 1.5 * 3 * rows * (2 * 8 * 8 + 16)
    for other in (ids, torch.tensor([0, 39, 5]), torch.tensor([-40, 2, 2])):
        with torch.no_grad():
            assert torch.allclose(program(x, other), module(x, other), atol=1e-5)


class FirstToken(nn.Module):
    """Attention of the first token. Its scores are divided by a number whose inverse isn't a
    float, and lose the distance of two tokens times a slope for each head."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(64)
        far = (places - places[:, None]).abs() * torch.tensor([0.5, 0.25])[:, None, None]
        scores = q @ k.transpose(-1, -2) / 4.9 - far
        return (torch.softmax(scores, -1) @ v)[:, :, 0]


@pytest.mark.rotating
def test_the_first_row_of_a_scaled_attention_is_computed_alone() -> None:
    """The check has inputs around 1e6, and so scores around 1e12."""
    torch.manual_seed(0)
    given = tuple(torch.randn(2, 2, 64, 8) for _ in range(3))
    program = optimize(FirstToken().eval(), given, objective="flops", engines=(), strict=True)
    assert program.original is None
    assert 16 * program.report.flops_after < program.report.flops_before
