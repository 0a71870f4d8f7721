"""Originals and operators of torch in files: saved as data, and the same when they are loaded."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

import eqsynth
from eqsynth.errors import DtypeError, EqsynthError, LoweringError, ShapeError, WeightError
from eqsynth.lower.bundle import dumps, load, loads, save
from eqsynth.lower.calling import SavedCalling, from_data, to_data
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_calls import Argument, Named, TorchCall, call_from_data, call_to_data

X = torch.linspace(-1, 1, 12).reshape(3, 4)
QUICK: dict[str, Any] = {"objective": "flops", "time_limit_s": 600.0, "progress": False}


def module(function: Callable[..., Any], **state: Tensor) -> nn.Module:
    class Wrapped(nn.Module):
        forward = function

    made = Wrapped()
    for name, value in state.items():
        made.register_buffer(name, value)
    return made.eval()


def equal(got: Any, expected: Any) -> None:
    for y, z in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert type(y) is type(z)
        if isinstance(y, Tensor):
            assert y.dtype == z.dtype
            torch.testing.assert_close(y, z, equal_nan=True)
        else:
            assert y == z


def saved(program: CompiledProgram, tmp_path: Path) -> CompiledProgram:
    save(program, tmp_path / "program.eqs")
    return load(tmp_path / "program.eqs")


# ---- opaque operators ------------------------------------------------------------------------

STATE = {"c": torch.tensor([1 + 2j, 3 - 1j, 1j, 2 + 0j]), "w": torch.ones(2, 1, 2, 2, 1)}
STATE["v"] = torch.arange(4.0)


def opaque(self: Any, x: Tensor) -> Any:
    """Of every kind: one and several results, complex values, lists, weights alone."""
    several = torch.sort(x, -1, descending=True)[1]
    spectrum = torch.fft.ifft(torch.fft.fft(x) * self.c).real
    picked = x[torch.tensor([0, 1]), torch.tensor([2, 3])]
    angles = torch.atan2(x[:2], self.w.view(2, 4))
    return several, spectrum, picked, angles, x + (1 + self.v.cumsum(0)).cumsum(0)


def test_an_original_is_saved_with_its_operators_whole() -> None:
    """Torch's autograd kernel of this one would lose the digits of 0.5 beside 1e8."""
    image = torch.tensor([[[[1e8, 0.5, 1e8, 0.25]]]])

    def up(self: Any, x: Tensor) -> Tensor:
        return torch.ops.aten.upsample_bilinear2d.default(x, [1, 3], False)

    net = module(up)
    loaded = loads(dumps(CompiledProgram.from_module(net, examples=((image,), {}))))
    assert torch.equal(loaded(image), net(image))


@pytest.mark.rotating
def test_operators_that_torch_runs_are_saved(tmp_path: Path) -> None:
    original = module(opaque, **STATE)
    program = eqsynth.optimize(original, (X,), **QUICK)
    assert program.original is None
    names = [getattr(step.kernel.term, "name", "") for step in program.steps]
    assert names.count("Opaque") == 4
    equal(program(X), original(X))
    loaded = saved(program, tmp_path)
    equal(loaded(X), original(X))
    # Of weights alone they are constants, evaluated again on new ones.
    assert "cumsum" not in repr(program.steps)
    other = module(opaque, **{**STATE, "v": torch.ones(4)})
    for made in (program, loaded, copy.deepcopy(loaded)):
        with pytest.raises(WeightError) as caught:
            made.refresh(module(opaque, **{**STATE, "c": STATE["c"] + 1}))
        assert caught.value.where == "c"
        made.refresh(other)
        equal(made(X), other(X))


def test_constants_of_opaque_operators_do_not_run_at_each_call() -> None:
    original = module(lambda self, x: torch.relu(x) + (1 + self.v.cumsum(0)).cumsum(0), **STATE)
    program = eqsynth.optimize(original, (X,), **QUICK)
    names = [getattr(step.kernel.term, "name", "") for step in program.steps]
    assert "Opaque" not in names
    assert program.report.opaque_share == 0
    equal(program(X), original(X))


@pytest.mark.rotating
def test_a_subgraph_is_no_plain_data(tmp_path: Path) -> None:
    original = module(
        lambda self, x: torch.cond(x.sum() > 0, lambda x: (x * 2,), lambda x: (x - 1,), (x,))[0]
    )
    program = eqsynth.optimize(original, (X,), **QUICK)
    with pytest.raises(LoweringError) as caught:
        save(program, tmp_path / "program.eqs")
    assert caught.value.got and "original" in caught.value.hint
    assert not list(tmp_path.iterdir())


ATEN = torch.ops.aten
CALLS = [
    TorchCall(ATEN.cumsum.default, "cumsum", (Argument(0), 1), {"dtype": torch.float64}),
    TorchCall(ATEN.pad.default, "pad", (Argument(0), [1, -1], "constant", float("inf")), {}),
    TorchCall(ATEN.add.Tensor, "add", (Argument(0), Named("n", torch.ones(4))), {"alpha": 2}),
    TorchCall(ATEN.mul.Scalar, "mul", (Argument(0), 2 + 1j), {}),
    TorchCall(
        ATEN.clone.default, "clone", (Argument(0),), {"memory_format": torch.preserve_format}
    ),
    TorchCall(ATEN._to_copy.default, "to", (Argument(0),), {"device": torch.device("cpu")}),
    TorchCall(ATEN.cat.default, "cat", ([Argument(0), Argument(0)], True), {}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_calls_survive_as_data(call: TorchCall) -> None:
    import json
    import operator

    nested = TorchCall(ATEN.sort.default, "sort", (call,), {})
    for made in (call, TorchCall(operator.getitem, "item", (nested, 1), {})):
        if made is not call and call.name == "mul":
            continue  # complex numbers have no order
        tensors: list[Tensor] = []

        def keep(value: Tensor, tensors: list[Tensor] = tensors) -> int:
            tensors.append(value)
            return len(tensors) - 1

        data = json.loads(json.dumps(call_to_data(made, keep)))
        again = call_from_data(data, tensors, 1)
        assert repr(again) == repr(made)
        equal(again(X), made(X))


def test_a_call_computes_with_the_tensors_of_each_call() -> None:
    """Tensors in front, further back, in lists and by name; calls of calls; and none at all."""
    first, second = Argument(0), Argument(1)
    twice = TorchCall(ATEN.mul.Tensor, "mul", (first, Named("n", torch.full((1,), 2.0))), {})
    line = TorchCall(ATEN.arange.default, "arange", (4,), {"dtype": torch.float32})
    calls = [
        (TorchCall(ATEN.sub.Tensor, "sub", (first, second), {"alpha": 3}),
         lambda x, y: x - 3 * y),
        (TorchCall(ATEN.cat.default, "cat", ([second, twice], 1), {}),
         lambda x, y: torch.cat([y, 2 * x], 1)),
        (TorchCall(ATEN.where.ScalarSelf, "where", (TorchCall(ATEN.lt.Tensor, "lt",
         (first, second), {}), 1.0, twice), {}), lambda x, y: torch.where(x < y, 1.0, 2 * x)),
        (TorchCall(ATEN.clamp.Tensor, "clamp", (twice,), {"max": second}),
         lambda x, y: torch.minimum(2 * x, y)),
        (TorchCall(ATEN.add.Tensor, "add", (line, first), {}), lambda x, y: torch.arange(4) + x),
        (TorchCall(ATEN.sum.dim_IntList, "sum", (second, [0]), {"keepdim": True}),
         lambda x, y: y.sum(0, keepdim=True)),
        (line, lambda x, y: torch.arange(4.0)),
    ]  # fmt: skip
    for call, wanted in calls:
        for seed in range(2):
            torch.manual_seed(seed)
            x, y = torch.randn(3, 4), torch.randn(3, 4)
            torch.testing.assert_close(call(x, y), wanted(x, y))


@pytest.mark.parametrize(
    "target",
    ["aten::add_.Tensor", "aten::from_file", "aten::nothing", "no::thing", "os::system", "item ",
     "aten::__class__", "aten::save", "aten::add.out", ""],
)  # fmt: skip
def test_only_functions_of_tensors_can_be_called(target: str) -> None:
    with pytest.raises((LoweringError, ValueError, TypeError, AttributeError)):
        call_from_data([target, "name", [], []], [], 1)


# ---- the original ----------------------------------------------------------------------------


class Net(nn.Module):
    """Weights, a buffer that is changed, arguments by name, results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.table = torch.arange(4.0)

    def forward(self, x: Tensor, *, scale: float = 2.0, ids: Tensor | None = None) -> Any:
        self.count.add_(1)
        y = self.conv(x[None, None]).flatten(2) + self.linear(x).sum() * scale
        top = tuple(torch.topk(y, 2))
        extra = self.table[ids] if ids is not None else None
        return {"y": y, "top": top, "again": y, "x": x, "none": extra, "n": self.count + 0, "k": 3}


def examples(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (X,), ({"ids": torch.tensor([1, 3])} if name == "by name" else {})


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["plain", "by name"])
def test_the_original_is_saved_as_the_operators_it_calls(name: str, tmp_path: Path) -> None:
    args, kwargs = examples(name)
    net = Net().eval()
    program = CompiledProgram.from_module(copy.deepcopy(net), "kept", "why", (args, kwargs))
    loaded = saved(program, tmp_path)
    again = saved(loaded, tmp_path)
    pickled = pickle.loads(pickle.dumps(program))
    for made in (loaded, again, pickled):
        net.count.zero_()
        for _ in range(2):  # the copy counts its own calls
            with torch.no_grad():
                result = made(*args, **kwargs)
                equal(result, net(*args, **kwargs))
            assert result["y"] is result["again"] and result["x"] is X
    assert (loaded.report, loaded.explain()) == ("kept", "why")
    with pytest.raises(ShapeError) as caught:
        loaded(X[:2], **kwargs)
    assert "'x'" in caught.value.where
    with pytest.raises(DtypeError):
        loaded(X.double(), **kwargs)
    with pytest.raises(EqsynthError):
        loaded(X, scale=3.0, **kwargs)
    with pytest.raises(WeightError):
        loaded.refresh(net)
    with pytest.raises(LoweringError):
        torch.func.grad(lambda x: loaded(x, **kwargs)["y"].sum())(X)


def test_what_optimize_gives_back_as_it_was_is_saved(tmp_path: Path) -> None:
    # A result that the IR can't hold: nothing is optimized.
    original = module(lambda self, x: torch.fft.fft(x) * self.c, c=STATE["c"])
    program = eqsynth.optimize(original, (X,), **QUICK)
    assert program.original is original
    loaded = saved(program, tmp_path)
    equal(loaded(X), original(X))
    assert str(loaded.report) == str(program.report)


def test_an_original_that_is_no_graph_of_operators(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original = module(lambda self, x: x if x.sum() > 0 else -x)
    program = eqsynth.optimize(original, (X,), **QUICK)
    with pytest.raises(LoweringError) as caught:
        save(program, tmp_path / "program.eqs")
    assert "state_dict" in caught.value.hint and caught.value.got
    with pytest.raises(LoweringError):
        pickle.dumps(program)
    assert capfd.readouterr().err == ""  # torch prints the graph that it has traced


def test_examples_keep_no_memory_alive() -> None:
    x = torch.zeros(1000, 1000)
    program = CompiledProgram.from_module(nn.ReLU(), examples=((x,), {"more": [x, 2]}))
    assert program.examples is not None
    (zeros,), more = program.examples()
    assert zeros is not x and zeros.shape == x.shape and more["more"][1] == 2


def test_bytes_that_are_no_program() -> None:
    for data in (b"", b"PK", b"\x80\x04."):
        with pytest.raises(LoweringError):
            loads(data)


# ---- torch's named results -------------------------------------------------------------------


def named_results(self: Any, x: Tensor) -> Any:
    return {"most": (2 * x).max(1), "rest": [x.sort(), (x + 1, torch.topk(x, 2))]}


@pytest.mark.rotating
def test_named_results_of_torch_are_saved(tmp_path: Path) -> None:
    original = module(named_results)
    made = eqsynth.optimize(original, (X,), **QUICK)
    assert made.original is None
    for program in (made, CompiledProgram.from_module(original, examples=((X,), {}))):
        loaded = saved(program, tmp_path)
        for run in (program, loaded, loads(dumps(loaded))):
            equal(run(X), original(X))
            found = run(X)
            assert type(found["most"]) is torch.return_types.max
            assert type(found["rest"][0]) is torch.return_types.sort
            assert type(found["rest"][1]) is tuple
            assert type(found["rest"][1][1]) is torch.return_types.topk
            assert torch.equal(found["most"].indices, original(X)["most"].indices)


@pytest.mark.parametrize(
    "named", [[[0, "sort"]], [[9, "max"]], [[1, "max"]], [[0, "svd"]], [[0, "int"]], [[0]], 3]
)
def test_a_file_says_truly_what_named_results_are(named: Any) -> None:
    tree = tree_flatten(X.max(1))[1]
    convention = SavedCalling((0,), (0, 1), None, None, tree, False, ())
    data = to_data(convention)
    assert from_data(data, (), 1, 2).out_spec == tree
    data["out_spec"][1] = named
    if named == [[0, "sort"]]:  # of two tensors, too: nothing is wrong with that
        assert type(from_data(data, (), 1, 2).unflatten([X, X])) is torch.return_types.sort
    else:
        with pytest.raises((ValueError, KeyError, TypeError)):
            from_data(data, (), 1, 2)
