"""Cutting a program into segments and stitching their e-graphs: which segments are equal, where the
cuts are, and that stitching gives the whole program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor as TorchTensor
from torch import nn

from benchmarks.workloads import WORKLOADS
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_in_worker, unsaturated
from eqsynth.egraph.schedule import Limits
from eqsynth.egraph.segments import Segment, cut, stitch
from eqsynth.executor import Worker
from eqsynth.extract.cost import CostModel
from eqsynth.extract.profile import Profile
from eqsynth.extract.search import extract
from eqsynth.extract.target import Device, MemoryLevel, Target
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import ClassRef, Input, Tensor, Weight, args_of, over, topological
from eqsynth.ir.work import flops
from eqsynth.lower.backends import cpu_backends
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules
from eqsynth.testing import assert_egraph_consistent

TARGET = Target(
    name="cpu",
    device=Device("a CPU", 2, ()),
    threads=2,
    levels=(MemoryLevel("DRAM", float("inf"), 1e9),),
    flops_per_s=(("float32", 1e9),),
    dispatch_s=1e-6,
    kernel_dispatch_s=1e-7,
)


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load_rules(DEFAULT_FILES).select(numerics=("bitwise", "real"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as started:
        yield started


def program_of(model: nn.Module, *shape: int) -> Program:
    return capture(model.eval(), (torch.ones(shape),)).program


class Residual(nn.Module):
    """relu(conv(relu(conv(x))) + x)"""

    def __init__(self, channels: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.b = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: TorchTensor) -> TorchTensor:
        return (self.b(self.a(x).relu()) + x).relu()


class Shared(nn.Module):
    """Two layers, with one weight or with two."""

    def __init__(self, tied: bool, between: nn.Module | None = None) -> None:
        super().__init__()
        self.between = between or nn.Identity()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: TorchTensor) -> TorchTensor:
        return self.b(self.between(self.a(x)))  # type: ignore[no-any-return]


# ---- keys ------------------------------------------------------------------------------------


def test_equal_layers_have_equal_keys() -> None:
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(5)]
    segments = cut(program_of(nn.Sequential(*layers), 2, 4))
    assert len(segments) == 5
    assert len({segment.key for segment in segments}) == 1
    # Each segment has its own weights.
    weights = [{t.label for t in s.names.values() if isinstance(t, Weight)} for s in segments]
    assert len(set.union(*weights)) == 10


def test_equal_residual_blocks_have_equal_keys() -> None:
    segments = cut(program_of(nn.Sequential(*(Residual() for _ in range(4))), 1, 3, 6, 6))
    assert len(segments) == 4 and len({segment.key for segment in segments}) == 1


def test_the_first_layer_behind_an_embedding_is_like_the_others() -> None:
    """A normalization and a residual sum read the embedding, but no contraction does."""
    layers = nn.Sequential(nn.Embedding(9, 4), *(PreNorm() for _ in range(3)))
    segments = cut(capture(layers.eval(), (torch.zeros(2, 5, dtype=torch.int64),)).program)
    assert len({segment.key for segment in segments[-3:]}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Linear(4, 4), nn.Linear(4, 5)),
        (nn.Linear(4, 4), nn.Linear(4, 4, bias=False)),
        (nn.Linear(4, 4), nn.Linear(4, 4).double()),
        (nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        (Shared(tied=True), Shared(tied=False)),
    ],
)
def test_what_saturates_otherwise_has_another_key(one: nn.Module, other: nn.Module) -> None:
    keys = []
    for model in (one, other):
        x = torch.ones(2, 4, dtype=next(model.parameters()).dtype)
        (segment,) = cut(capture(model.eval(), (x,)).program)
        keys.append(segment.key)
    assert keys[0] != keys[1]


def test_attributes_are_part_of_the_key() -> None:
    keys = {
        cut(program_of(nn.Conv2d(3, 3, 3, padding=1, dilation=d, groups=g), 1, 3, 8, 8))[0].key
        for d in (1, 2)
        for g in (1, 3)
    }
    assert len(keys) == 4


class Part(nn.Module):
    """Takes the first row; the layers after it read only that row."""

    def forward(self, x: TorchTensor) -> TorchTensor:
        return x[:, 0]


class PreNorm(nn.Module):
    """x + linear(norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: TorchTensor) -> TorchTensor:
        return x + self.linear(self.norm(x))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """a(x) * b(x), which is linear in neither."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: TorchTensor) -> TorchTensor:
        return self.a(x) * self.b(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Layers of a language model: all of them add one mask, their RMS norms are written as
    operators, and the model returns their keys."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(4, 4) for _ in range(3)) for _ in range(layers)
        )

    def forward(self, x: TorchTensor, mask: TorchTensor) -> list[TorchTensor]:
        hidden, keys = -1e4 * (1 - mask), []
        for query, key, out in self.layers:  # type: ignore[misc]
            h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
            keys.append(key(h))
            scores = torch.softmax(query(h) @ keys[-1].mT + hidden, -1)
            x = x + out(scores @ h)
        return [x, *keys]


class Steps(nn.Module):
    """h = tanh(w x[t] + u h): the products w x[t] of all steps are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: TorchTensor) -> TorchTensor:
        h = torch.tanh(self.w(x[0]))
        for t in (1, 2):
            h = torch.tanh(self.w(x[t]) + self.u(h))
        return h


class Written(nn.Module):
    """A linear layer, a function, and another linear layer."""

    def __init__(self, function: Callable[[TorchTensor], TorchTensor]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: TorchTensor) -> TorchTensor:
        return self.b(self.function(self.a(x)))  # type: ignore[no-any-return]


class Sixth(nn.Module):
    """linear(y) + y for y = relu(x) / 6."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: TorchTensor) -> TorchTensor:
        y = torch.relu(x) / 6
        return self.linear(y) + y  # type: ignore[no-any-return]


class Hardswish(nn.Module):
    """x * min(max(x + 3, 0), 6) / 6, written as operators"""

    def forward(self, x: TorchTensor) -> TorchTensor:
        return x * (x + 3).clamp(0, 6) / 6


POOLED = (nn.ReLU(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))


class Attending(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k, -1) @ v


def test_attention_is_not_cut() -> None:
    """If the values of attention are an input, only its weights are live behind the softmax, and a
    product reads them."""
    squares = tuple(torch.randn(4, 4) for _ in range(3))
    assert len(cut(capture(Attending().eval(), squares).program)) == 1
    weighted = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4))
    assert len(cut(program_of(weighted, 4, 4))) == 2


def test_a_polynomial_of_a_narrow_contraction_is_not_cut_off() -> None:
    """``(q @ k')^2 @ v`` is less work without the square; of a wide q it isn't."""

    class Scored(nn.Module):
        def __init__(self, function: Callable[[TorchTensor], TorchTensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, q: TorchTensor, k: TorchTensor, v: TorchTensor) -> TorchTensor:
            return self.function(q @ k.T / 2) @ v

    def count(function: Callable[[TorchTensor], TorchTensor], rows: int, width: int) -> int:
        given = tuple(torch.randn(rows, width) for _ in range(3))
        return len(cut(capture(Scored(function).eval(), given).program))

    assert count(lambda s: s * s, 32, 4) == 1
    assert count(lambda s: 1 + s + s * s / 2, 32, 4) == 1
    assert count(lambda s: (s + 1) * (s + 1), 32, 4) == 1
    assert count(lambda s: (s + s[:, :1]) ** 2, 32, 4) == 2
    assert count(lambda s: s * s, 31, 4) == 2
    assert count(lambda s: s * torch.tanh(s), 32, 4) == 2


# ---- where the cuts are ----------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (2, 4), 1),  # they fold
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU()), (2, 4), 1),  # they fuse
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (2, 4), 2),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(2), nn.Conv2d(3, 3, 1)), (1, 3, 4, 4), 1),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(2), nn.Conv2d(3, 3, 1)), (1, 3, 4, 4), 2),
        (nn.Sequential(*POOLED, nn.AvgPool2d(2)), (1, 3, 4, 4), 1),  # pooled before it is mixed
        (nn.Sequential(*POOLED, nn.ReLU(), nn.AvgPool2d(2)), (1, 3, 4, 4), 2),
        (nn.Sequential(nn.ReLU(), Gated(), nn.AvgPool2d(2)), (1, 3, 4, 4), 2),
        (Residual(), (1, 3, 6, 6), 1),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), (2, 4), 2),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (2, 4), 1),  # nothing is behind it
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Part(), nn.Linear(4, 4)), (3, 2, 4), 1),
        (nn.Sequential(PreNorm(), PreNorm(), PreNorm()), (2, 4), 3),
        (Steps(), (3, 2, 4), 1),
        (Written(lambda x: x / ((x * x).mean(-1, keepdim=True) + 1).sqrt()), (2, 4), 2),
        # Linear functions: contractions move through a mean, and through x - mean(x).
        (Written(lambda x: x - x.mean(-1, keepdim=True)), (2, 4), 1),
        (Written(lambda x: x.mean(0, keepdim=True)), (2, 4), 1),
        (Written(lambda x: x.mean(0, keepdim=True)), (1, 4), 1),
        # Nonlinear elementwise functions of one tensor, written as operators.
        (Written(lambda x: x * (x + 3).clamp(0, 6) / 6), (2, 4), 2),
        (Written(lambda x: x * torch.sigmoid(x)), (2, 4), 2),
        (Written(lambda x: x - torch.tanh(x)), (2, 4), 2),
        (Written(lambda x: x * x), (2, 4), 2),
        (Written(lambda x: x + 2 * x), (2, 4), 1),
        (Written(lambda x: 2 * x + 3), (2, 4), 1),
        (Written(lambda x: x * x.sum(0, keepdim=True)), (2, 4), 1),
        # A bias behind a function may move into the next layer's bias; a quotient may be fused.
        (Written(lambda x: torch.relu(x) + 3), (2, 4), 1),
        # A choice is linear if its condition is known, or is the same along an axis.
        (Written(lambda x: torch.where(torch.eye(4, dtype=torch.bool), x, 0.0)), (4, 4), 1),
        (Written(lambda x: torch.where(x > 0, x, 0.0)), (4, 4), 2),
        (Written(lambda x: torch.where(x[:, :1] > 0, x, 0.0)), (4, 4), 1),
        # Beside a known mask; other numbers that are computed from nothing aren't one.
        (Written(lambda x: torch.relu(x * torch.ones(4, 4).tril())), (4, 4), 1),
        (Written(lambda x: torch.tanh(torch.relu(x)) * torch.ones(4, 4).tril()), (4, 4), 1),
        (Written(lambda x: torch.relu(x * torch.arange(16.0).reshape(4, 4))), (4, 4), 2),
        (nn.Sequential(nn.Linear(4, 4), Sixth()), (2, 4), 1),
    ],
)  # fmt: skip
def test_a_cut_separates_what_no_rule_joins(
    model: nn.Module, shape: tuple[int, ...], count: int
) -> None:
    assert len(cut(program_of(model, *shape))) == count


def test_a_large_segment_is_cut_where_little_is_lost() -> None:
    """It is cut at sums, products and functions that contractions read; if that isn't enough, at
    any tensor that they read. Equal layers become equal segments."""
    layers = [nn.Sequential(Gated(), nn.Conv2d(3, 3, 1)) for _ in range(4)]
    program = program_of(nn.Sequential(*layers), 1, 3, 4, 4)
    terms = sum(not term.constant for term in program.terms())
    assert len(cut(program, terms)) == 1
    at_products = cut(program, terms - 1)
    assert len(at_products) == 5 and len({segment.key for segment in at_products}) == 3
    # The cuts are at the sum of a convolution and its bias, which two convolutions read.
    finer = cut(program, 6)
    assert len(finer) == 8 and len({segment.key for segment in finer}) == 2
    graph = stitch(program, finer, [unsaturated(s.roots, "") for s in finer])
    assert rebuilt(graph) == program.outputs


class _DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.wide = (nn.Linear(4, 4) for _ in range(4))
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, x: TorchTensor, memory: TorchTensor) -> TorchTensor:
        weights = torch.softmax(self.q(x) @ self.k(memory).transpose(-1, -2), -1)
        x = self.first(x + weights @ self.v(memory))
        return self.second(x + torch.relu(self.wide(x)))


class _EncoderDecoder(nn.Module):
    """Every layer of the decoder reads the result of the encoder, which is live to the last one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.encoder, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.layers = nn.ModuleList(_DecoderLayer() for _ in range(layers))

    def forward(self, x: TorchTensor) -> TorchTensor:
        memory = self.norm(torch.relu(self.encoder(x)))
        y = memory[:, :2]
        for layer in self.layers:
            y = layer(y, memory)
        return y


def test_a_decoder_is_cut_beside_what_its_encoder_gives() -> None:
    program = program_of(_EncoderDecoder(5), 1, 6, 4)
    whole = cut(program, 10**6)
    segments = cut(program, 30)
    assert len(whole) <= 2 and len(segments) >= 5
    assert len({segment.key for segment in segments}) <= 4
    graph = stitch(program, segments, [unsaturated(s.roots, "") for s in segments])
    assert rebuilt(graph) == program.outputs


class _Detector(nn.Module):
    """A decoder with tokens of its own: its first layer needs no encoder. Its keys are what the
    encoder gives plus positions, sines of places that a mask counts."""

    def __init__(self, encoders: int, layers: int) -> None:
        super().__init__()
        self.encoders = nn.Sequential(*(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
            for _ in range(encoders)
        ))  # fmt: skip
        self.own = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.keys = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.values = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: TorchTensor, y: TorchTensor) -> TorchTensor:
        places = torch.ones(6, 4, dtype=torch.bool).cumsum(0).float()
        memory = self.encoders(x)
        for own, keys, values in zip(self.own, self.keys, self.values, strict=True):
            y = self.norm(y + torch.relu(own(y)))
            scores = y @ keys(memory + torch.sin(places)).transpose(-1, -2)
            y = self.norm(y + torch.softmax(scores, -1) @ values(memory))
        return y


@pytest.mark.parametrize(("encoders", "layers"), [(4, 4), (2, 5)])
def test_equal_layers_of_encoder_and_decoder_are_equal_segments(encoders: int, layers: int) -> None:
    given = (torch.randn(1, 6, 4), torch.randn(1, 2, 4))
    program = capture(_Detector(encoders, layers).eval(), given).program
    segments = cut(program, 30)
    # Of each layer but the first of the decoder, what is before the scores and what is behind them.
    assert len(segments) >= encoders + 2 * (layers - 1)
    assert len({segment.key for segment in segments}) <= 7
    graph = stitch(program, segments, [unsaturated(s.roots, "") for s in segments])
    assert rebuilt(graph) == program.outputs


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "csrnet", "fsrcnn", "lstm", "bert64"])
def test_segments_follow_each_other(name: str) -> None:
    model, inputs = WORKLOADS[name].reduced()
    program = capture(model, inputs).program
    segments = cut(program)
    known: set[Tensor] = {*program.inputs, *program.weights()}
    for segment in segments:
        assert set(segment.names.values()) <= known
        for root, output in zip(segment.roots, segment.outputs, strict=True):
            assert root.type == output.type
            leaves = [t for t in topological([root]) if isinstance(t, Input | Weight)]
            assert set(leaves) <= segment.names.keys()
        known |= set(segment.outputs)
    assert segments[-1].outputs == program.outputs


@pytest.mark.rotating
def test_masks_and_results_live_beside_a_cut() -> None:
    """The first segment that needs the mask computes it, a layer's key is an output of the layer's
    segment, and equal layers are saturated once."""
    program = capture(Decoder().eval(), (torch.ones(5, 4), torch.ones(5, 5))).program
    segments = cut(program)
    assert [len(segment.outputs) for segment in segments] == [3, 2, 2]
    assert len({segment.key for segment in segments}) < len(segments)
    made = [output for segment in segments for output in segment.outputs]
    assert len(made) == len(set(made)) and set(made) >= set(program.outputs)
    graph = stitch(program, segments, [unsaturated(s.roots, "") for s in segments])
    assert rebuilt(graph) == program.outputs


# ---- stitching -------------------------------------------------------------------------------


def rebuilt(graph: EGraph) -> tuple[Tensor, ...]:
    """The root terms of an e-graph in which every e-class has one member."""
    terms: dict[Tensor, Tensor] = {}
    while len(terms) < len(graph.classes):
        for ref, (member,) in graph.classes.items():
            if all(arg in terms for arg in args_of(member)):
                terms[ref] = over(member, terms)
    return tuple(terms[root] for root in graph.roots)


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "csrnet", "lstm", "transition"])
def test_stitched_segments_are_the_program(name: str) -> None:
    model, inputs = WORKLOADS[name].reduced()
    program = capture(model, inputs).program
    segments = cut(program)
    by_key = {s.key: unsaturated(s.roots, "as it is") for s in segments}
    graph = stitch(program, segments, [by_key[s.key] for s in segments])
    assert rebuilt(graph) == program.outputs
    values = {term for term in topological(program.outputs) if not term.constant}
    assert sum(not ref.constant for ref in graph.classes) == len(values)
    assert len({ref.handle for ref in graph.classes}) == len(graph.classes)
    assert {ref.type for ref in graph.roots} == {term.type for term in program.outputs}


def test_a_weight_of_several_segments_is_one_class() -> None:
    program = program_of(Shared(tied=True, between=nn.ReLU()), 2, 4)
    segments = cut(program)
    assert len(segments) == 2
    graph = stitch(program, segments, [unsaturated(s.roots, "") for s in segments])
    weights = [m for members in graph.classes.values() for m in members if isinstance(m, Weight)]
    assert len(weights) == 1


def saturated(worker: Worker, rules: RuleSet, program: Program, whole: bool) -> EGraph:
    segments = cut(program)
    if whole:
        return saturate_in_worker(
            worker, program.outputs, rules, limits=Limits(deadline_s=3600.0), log_matches=False
        )
    graphs: dict[bytes, EGraph] = {}
    for segment in segments:
        if segment.key not in graphs:
            graphs[segment.key] = saturate_in_worker(
                worker, segment.roots, rules, limits=Limits(deadline_s=3600.0), log_matches=False
            )
    return stitch(program, segments, [graphs[s.key] for s in segments])


def least_flops(graph: EGraph, directory: Path) -> int:
    profile = Profile(TARGET.key(), path=directory / "profile.sqlite")
    costs = CostModel(TARGET, profile, "flops")
    plan = extract(graph, cpu_backends(), costs, lambda ks, _: dict.fromkeys(ks), 60.0).plan
    return sum(
        flops(s.kernel.term) for s in plan.steps if not s.kernel.implementation == "torch.view"
    )


NETS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (
        nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)),
        (3, 6),
    ),
    (
        nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(),
            nn.Conv2d(3, 3, 1, bias=False), nn.MaxPool2d(2), nn.Conv2d(3, 2, 1), nn.AvgPool2d(2),
        ),
        (1, 2, 10, 10),
    ),
    (
        nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), Hardswish(),
            nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3), Hardswish(), nn.Conv2d(3, 2, 1),
        ),
        (1, 2, 6, 6),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.rotating) for n in (1, 2))]
)
def test_a_cut_loses_nothing(number: int, worker: Worker, rules: RuleSet, tmp_path: Path) -> None:
    model, shape = NETS[number]
    program = program_of(model, *shape)
    assert len(cut(program)) > 1
    stitched = saturated(worker, rules, program, whole=False)
    whole = saturated(worker, rules, program, whole=True)
    # Of three layers the whole program may grow more than a phase allows; no cut costs FLOPs then.
    assert stitched.stop == "saturated" and whole.stop in ("saturated", "growth")
    least = least_flops(whole, tmp_path)
    assert least_flops(stitched, tmp_path) == least
    assert least <= sum(flops(t) for t in program.terms() if not t.constant)
    assert_egraph_consistent(stitched)


def test_matches_of_a_segment_count_once(worker: Worker, rules: RuleSet) -> None:
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    one = saturated(worker, rules, program_of(nn.Sequential(*layers[:1]), 2, 4), whole=False)
    three = saturated(worker, rules, program_of(nn.Sequential(*layers), 2, 4), whole=False)
    assert one.matches and three.matches == one.matches
    assert three.enodes == one.enodes
    assert sum(isinstance(r, ClassRef) for r in three.classes) > len(one.classes)


def test_why_a_segment_stopped_is_told() -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 2, 4)
    segments = cut(program)
    graphs = [
        unsaturated(s.roots, stop)
        for s, stop in zip(segments, ("saturated", "deadline"), strict=True)
    ]
    assert stitch(program, segments, graphs).stop == "deadline"
    assert isinstance(segments[0], Segment)
