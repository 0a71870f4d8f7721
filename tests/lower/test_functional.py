"""Exported graphs without writes in place: what they compute, and that they are what torch's own
trace makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from eqsynth.errors import EqsynthError
from eqsynth.frontend import exporting
from eqsynth.frontend.torch_export import capture
from eqsynth.lower import functional as functional_module
from eqsynth.lower.bundle import dumps, loads
from eqsynth.lower.calling import Given
from eqsynth.lower.functional import functional
from eqsynth.lower.program import CompiledProgram

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Function = Callable[..., Any]


class Parts(nn.Module):
    """A module with weights, whose forward function is a case of a test."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("w", torch.ones(2, 3))
        self.register_buffer("k", torch.ones(2, 1, 3, 3))
        self.register_buffer("v", torch.ones(4))
        self.register_buffer("u", torch.linspace(-1, 1, 36).view(12, 3))
        self.register_buffer("ids", torch.tensor([[0, 2], [1, 1]]))
        self.register_buffer("h", torch.linspace(1, -1, 48).view(12, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def exported(function: Function) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(Parts(function).eval(), (X,))


def by_torch(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    with torch.inference_mode():
        return program.run_decompositions({})


def written(graph: torch.fx.Graph) -> list[object]:
    """What a graph computes, whatever the names of its nodes."""
    place = {node: n for n, node in enumerate(graph.nodes)}
    return [
        (node.op == "call_function" and node.target,
         torch.fx.map_arg((node.args, dict(node.kwargs)), lambda arg: f"%{place[arg]}"))
        for node in graph.nodes
    ]  # fmt: skip


def writes(program: torch.export.ExportedProgram) -> bool:
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return any(getattr(target, "_schema", None) and target._schema.is_mutable for target in targets)


def captured_like_torch(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the program is the one that torch's own trace leads to, that the module's results
    are kept for what they are (an input, a value twice), and that the saved original computes what
    the module does."""
    net = Parts(function).eval()
    found = capture(net, (X,))
    loaded = loads(dumps(CompiledProgram.from_module(net, examples=((X,), {}))))
    for got, expected in zip(tree_leaves(loaded(X)), tree_leaves(net(X)), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
    monkeypatch.setattr(functional_module, "functional", by_torch)
    apart = capture(net, (X,))
    assert found.program == apart.program
    assert found.convention.results == apart.convention.results
    assert found.convention.arguments == apart.convention.arguments


@pytest.mark.rotating
@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: F.softmax(self.w @ F.layer_norm(x, (4,)), -1).transpose(0, 1),
        lambda self, x: F.conv2d(x[None, None], self.k, padding=1).relu().sum((2, 3)),
        lambda self, x: (*x.topk(2), x.sum(1), x),
        lambda self, x: F.gelu(x[0, 1:]).expand(2, 3).cumsum(0),
        lambda self, x: torch.where(x > 0, x, self.w[0, 0]),
    ],
)
def test_a_graph_of_functions_is_what_torchs_trace_makes_of_it(function: Function) -> None:
    program = exported(function)
    assert functional(program) is program
    assert written(program.graph) == written(by_torch(program).graph)


def _in_a_loop(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    for _ in range(3):
        y.add_(self.v).relu_()
    return y


def _seen_through_a_row(self: Any, x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    first = y.chunk(3, 0)[0]
    first.mul_(2)
    return y, first


def _seen_through_its_own_type(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    z = y.type_as(x)
    y.mul_(2)
    return y, z


REWRITTEN: dict[str, Function] = {
    "write": lambda self, x: x.clone().add_(1),
    "chain": lambda self, x: F.relu_(x + 1).mul_(2).sigmoid_(),
    "loop": _in_a_loop,
    "its own type": _seen_through_its_own_type,
    "norm": lambda self, x: F.relu(F.layer_norm(x, (4,)), inplace=True) + x,
    "view that isn't read again": lambda self, x: ((y := x * 2).t().sum(), y.add_(1)),
    "constant": lambda self, x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "same dtype": lambda self, x: (x.to(torch.float32) + 1, x.to("cpu")),
    "other dtype": lambda self, x: x.to(torch.float64).to(torch.int32).float(),
    "same shape": lambda self, x: x.reshape(x.shape) * 2,
    "flat already": lambda self, x: x[0].flatten(),
    "flat input": lambda self, x: (x, x.flatten(), x.flatten() + 1),
    "dropout": lambda self, x: F.dropout(x + 1, 0.5, training=False) * 2,
    "contiguous": lambda self, x: (x.contiguous(), x.t().contiguous().view(2, 6)),
    "chunks": lambda self, x: [y + 1 for y in x.chunk(3, 1)],
    "reshapes": lambda self, x: x.t().reshape(2, 6).unflatten(1, (3, 2)),
    "shapes of others": lambda self, x: x.t().reshape_as(x) * x[:1].expand_as(x),
    "batch norm": lambda self, x: F.batch_norm(x, self.v, self.v, self.v, self.v),
    "attention": lambda self, x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "numpy's transpose": lambda self, x: x.T + 1,
    "unread": lambda self, x: (x.exp().add_(1), x + 1)[1],
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", REWRITTEN)
def test_writes_and_copies_are_rewritten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(REWRITTEN[name])
    with monkeypatch.context() as patch:
        patch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
        made = functional(program)
    assert not writes(made)
    captured_like_torch(REWRITTEN[name], monkeypatch)


def test_a_view_is_written_as_it_is() -> None:
    """Torch's trace computes the tensor that the view is of, and views it once more."""
    function: Function = lambda self, x: (x * 2).view(12).add_(1)  # noqa: E731
    made = functional(exported(function))
    assert not writes(made) and len(made.graph.nodes) < len(
        by_torch(exported(function)).graph.nodes
    )
    torch.testing.assert_close(made.module()(X), X.flatten() * 2 + 1)


def test_dropout_outside_of_training_is_its_argument() -> None:
    """The module returns its input, as in torch itself; torch's trace would copy it."""
    net = Parts(lambda self, x: (x + 1, F.dropout(x, 0.5, training=False))).eval()
    assert net(X)[1] is X
    assert capture(net, (X,)).convention.results == (0, Given(0))


def test_an_original_that_converts_is_saved() -> None:
    """torch.export writes an assertion of the dtype before each conversion."""
    net = Parts(lambda self, x: x.to(torch.float64) * 2).eval()
    program = CompiledProgram.from_module(net, examples=((X,), {}))
    torch.testing.assert_close(loads(dumps(program))(X), net(X))


def _seen_through_a_view(self: Any, x: Tensor) -> Tensor:
    y = x + 1
    row = y[0]
    y.mul_(3)
    return row


def _written_through_a_view(self: Any, x: Tensor) -> Tensor:
    y = x + 1
    y[0].mul_(3)
    return y


def _seen_through_a_view_of_a_view(self: Any, x: Tensor) -> Tensor:
    y = x + 1
    part = y.t()[1:].flatten(0)
    y.relu_()
    return part.sum() + y.sum()


def _seen_through_a_part(self: Any, x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    left, right = y.chunk(2, 1)
    left.mul_(2)
    return y, right


SHARED: dict[str, Function] = {
    "a view is read later": _seen_through_a_view,
    "a view is written": _written_through_a_view,
    "a view of a view is read later": _seen_through_a_view_of_a_view,
    "a part is written": _seen_through_a_part,
    "a row is written": _seen_through_a_row,
    "a copy of the same dtype": lambda self, x: x.to(torch.float32, copy=True),
    "another dtype": lambda self, x: (x + 1).eq_(1.0),
    "another shape": lambda self, x: (x + 1).unsqueeze_(0),
    "a buffer": lambda self, x: self.v.clone().add_(x.sum()) * 2 + self.w.add_(0)[0, 0],
    "batch norm of the batch": lambda self, x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", SHARED)
def test_what_another_tensor_sees_is_left_to_torch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = exported(SHARED[name])
    with monkeypatch.context() as patch:
        patch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda self, table: None)
        assert functional(program) is None
    assert not writes(functional(program))
    captured_like_torch(SHARED[name], monkeypatch)


def test_random_numbers_are_not_rewritten() -> None:
    with pytest.raises(EqsynthError):
        capture(Parts(lambda self, x: x + torch.empty(4).uniform_()).eval(), (X,))


def test_a_write_into_an_input_is_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(lambda self, x: x.add_(1))
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda self, table: 0)
    assert functional(program) == 0


# ---- decompositions -----------------------------------------------------------------------------

DECOMPOSED: dict[str, Function] = {
    "one result": lambda self, x: F.adaptive_avg_pool1d(x, 2),
    "channels last": lambda self, x: F.adaptive_avg_pool1d(x[None].transpose(1, 2), 1),
    "views": lambda self, x: x.tensor_split(3, 1)[1] + 1,
    "several results": lambda self, x: torch.std_mean(x, 1),
    "an argument twice": lambda self, x: torch.addcdiv(x, x, x + 3, value=2.0),
    "bits": lambda self, x: (x > 0) & (x < 0.5),
    "writes": lambda self, x: torch.gru_cell(x[:2, :3], x[1:], self.u, self.h),
    "of parts that are decomposed": lambda self, x: F.huber_loss(x, x * 2, reduction="none"),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_call_is_decomposed_by_itself(name: str) -> None:
    net = Parts(DECOMPOSED[name]).eval()
    found = capture(net, (X,))
    assert not found.opaque
    loaded = loads(dumps(CompiledProgram.from_module(net, examples=((X,), {}))))
    for got, expected in zip(tree_leaves(loaded(X)), tree_leaves(net(X)), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_decomposition_with_a_side_effect_leaves_the_call_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Parts(lambda self, x: torch.digamma(x)).eval()

    def decomposition(x: Tensor) -> Tensor:
        torch._assert_async((x != 0).all())
        return x.exp()

    table = {torch.ops.aten.digamma.default: decomposition}
    monkeypatch.setattr(exporting, "_decompositions", lambda: table)
    assert list(capture(net, (X,)).opaque)
    table[torch.ops.aten.digamma.default] = torch.exp
    assert not capture(net, (X,)).opaque


@pytest.mark.rotating
@pytest.mark.parametrize("mode", ["bicubic", "trilinear", "linear"])
def test_interpolations_are_not_decomposed(mode: str) -> None:
    """Torch's decompositions of them compute with fewer digits."""
    axes = {"linear": 1, "bicubic": 2, "trilinear": 3}[mode]
    net = Parts(lambda self, x: F.interpolate(x[(None,) * axes], scale_factor=2, mode=mode)).eval()
    assert [f"upsample_{mode}" in call for call in capture(net, (X,)).opaque] == [True]


def test_results_of_parts_that_nobody_reads_are_left_out() -> None:
    net = Parts(lambda self, x: F.embedding_bag(self.ids, x, mode="max")).eval()
    assert len(capture(net, (X,)).opaque) == 1
