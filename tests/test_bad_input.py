"""Bad and odd input to ``optimize``: a clear error, or a correct program. Never a crash, a hang,
or a wrong answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import eqsynth
from benchmarks.workloads import WORKLOADS
from eqsynth.errors import (
    CaptureError,
    DtypeError,
    EqsynthError,
    RuleError,
    ShapeError,
)
from eqsynth.executor import end_idle_workers
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def module(function: Callable[..., Any], **state: Tensor) -> nn.Module:
    """A module in evaluation mode with ``function(self, …)`` as its forward."""

    class Wrapped(nn.Module):
        forward = function

    made = Wrapped()
    for name, value in state.items():
        made.register_buffer(name, value)
    return made.eval()


def quick(program: Any, inputs: Any = None, **settings: Any) -> CompiledProgram:
    """``optimize`` without timing kernels."""
    return optimize(program, inputs, **{"objective": "flops", "time_limit_s": 600.0, **settings})


def agrees(program: CompiledProgram, original: nn.Module, *inputs: Tensor) -> None:
    """Same structure, types and values as the original's result, NaN where it has NaN."""
    with torch.no_grad():
        got, expected = tree_leaves(program(*inputs)), tree_leaves(original(*inputs))
    assert len(got) == len(expected)
    for y, z in zip(got, expected, strict=True):
        if not isinstance(z, Tensor):
            assert y == z
            continue
        loose = {"rtol": 2e-2, "atol": 2e-2} if z.element_size() == 2 else {}
        if z.dtype is torch.float32:
            loose = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(y, z, equal_nan=True, **loose)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).to(dtype).eval()


# ---- arguments of optimize -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"target": "tpu"}, "'tpu'"),
        ({"objective": "beauty"}, "'beauty'"),
        ({"numerics": "exact"}, "'exact'"),
        ({"time_limit_s": -1.0}, "-1.0"),
        ({"time_limit_s": float("nan")}, "nan"),
        ({"time_limit_s": "5"}, "'5'"),
        ({"time_limit_s": True}, "True"),
        ({"time_limit_s": None}, "None"),
        ({"node_limit": 0}, "0"),
        ({"node_limit": [1]}, "[1]"),
        ({"node_limit": 0.5}, "0.5"),
        ({"memory_limit": -5}, "-5"),
        ({"memory_limit": "4G"}, "'4G'"),
        ({"peak_memory": 0}, "0"),
        ({"strict": "yes"}, "'yes'"),
        ({"own_constants": 0}, "0"),
        ({"check": None}, "None"),
        ({"progress": "no"}, "'no'"),
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, Any], got: str) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(mlp(), (X,), **settings)
    assert caught.value.got == got
    assert caught.value.expected


@pytest.mark.slow
def test_infinity_is_no_limit() -> None:
    inf = float("inf")
    program = quick(mlp(), (X,), time_limit_s=inf, node_limit=inf, memory_limit=inf)
    assert program.report.stop not in ("deadline", "worker deadline", "node_limit")
    assert program.report.rules_fired and program.original is None
    agrees(program, mlp(), X)


@pytest.mark.parametrize("limit", [-1.0, "60", True, float("nan")])
def test_a_proof_refuses_what_is_no_limit(limit: Any) -> None:
    a = eqsynth.input("a", (2, 2))
    with pytest.raises(EqsynthError) as caught:
        eqsynth.prove_equal(a, a, time_limit_s=limit)
    assert caught.value.got == repr(limit) and caught.value.expected


@pytest.mark.parametrize("program", [None, 3, (), [mlp()], torch.ones(2)])
def test_what_is_no_program_is_refused(program: Any) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(program, (X,))
    assert caught.value.got == type(program).__name__


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(CaptureError) as caught:
        optimize(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), (X,))
    assert caught.value.expected == "evaluation mode"


@pytest.mark.parametrize("inputs", [(), (X, X), (X, X, X)])
def test_a_wrong_number_of_example_inputs_is_refused(inputs: tuple[Tensor, ...]) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(mlp(), inputs)
    assert str(len(inputs)) in caught.value.got
    assert "input" in caught.value.expected


def test_example_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(nn.Linear(4, 4).eval(), (torch.ones(3, 5),))
    assert caught.value.where == "Linear"
    assert "float32[3, 5]" in caught.value.got


def test_example_inputs_of_another_dtype_are_refused() -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(nn.Linear(4, 4).eval(), (X.double(),))
    assert "float64[3, 4]" in caught.value.got


# ---- expressions -------------------------------------------------------------------------------


def test_shapes_that_do_not_fit() -> None:
    a, b = eqsynth.input("A", (64, 512)), eqsynth.weight("W", (511, 32))
    with pytest.raises(ShapeError) as caught:
        eqsynth.ops.matmul(a, b)
    assert isinstance(caught.value, ValueError)
    assert "64, 512" in caught.value.got and "511, 32" in caught.value.got
    assert caught.value.expected and caught.value.hint


def test_dtypes_that_do_not_fit() -> None:
    a, b = eqsynth.input("A", (4, 4)), eqsynth.input("B", (4, 4), "float64")
    with pytest.raises(DtypeError) as caught:
        eqsynth.ops.matmul(a, b)
    assert isinstance(caught.value, TypeError)
    assert "float32" in caught.value.got and "float64" in caught.value.got


# ---- rule files --------------------------------------------------------------------------------


def rule_file(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "mine.egg"
    path.write_text(";; Status validated\n;; Numerics bitwise\n(ruleset mine)\n" + body)
    return path


def test_a_rule_file_with_a_syntax_error_names_the_place(tmp_path: Path) -> None:
    path = rule_file(tmp_path, '\n  (rewrite (Relu x)) x) :ruleset mine :name "wrong")\n')
    with pytest.raises(RuleError) as caught:
        optimize(mlp(), (X,), rules=[path])
    assert caught.value.file == str(path)
    assert caught.value.line == 5 and caught.value.column > 0


def test_an_unknown_argument_gets_the_name_that_was_meant() -> None:
    with pytest.raises(EqsynthError) as caught:
        eqsynth.optimize(nn.Linear(4, 4), (X,), time_limit=5)
    assert (caught.value.got, caught.value.where) == ("'time_limit'", "optimize")
    assert "time_limit_s" in str(caught.value.hint)
    assert "time_limit_s" in str(caught.value.expected)


def test_a_rule_with_an_unknown_ruleset_names_the_place(tmp_path: Path) -> None:
    path = rule_file(tmp_path, '(rewrite (Relu (Relu x)) (Relu x) :ruleset yours :name "mine")\n')
    with pytest.raises(RuleError) as caught:
        optimize(mlp(), (X,), rules=[path])
    assert (caught.value.file, caught.value.line) == (str(path), 4)
    assert "yours" in caught.value.got


@pytest.mark.parametrize("files", ["none.egg", Path("none.egg"), ["none.egg"]])
def test_a_missing_rule_file_is_named(files: Any) -> None:
    """One path alone is one file, and not as many as it has letters."""
    with pytest.raises(RuleError) as caught:
        optimize(mlp(), (X,), rules=files)
    assert "none.egg" in str(caught.value)


@pytest.mark.parametrize("files", [3, None, [None], b"mine.egg", [["mine.egg"]]])
def test_what_names_no_rule_files_is_refused(files: Any) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(mlp(), (X,), rules=files)
    assert caught.value.got == repr(files)


def test_a_definition_that_is_no_comprehension_names_the_place(tmp_path: Path) -> None:
    """When the file is read, and not when a program uses the operator."""
    path = rule_file(tmp_path, '(define (Twice x)\n  "(x) [*n = x[*n] + x[*n]")\n')
    with pytest.raises(RuleError) as caught:
        optimize(mlp(), (X,), rules=[path])
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(path), 5, 3)


# ---- modules that cannot be captured -----------------------------------------------------------


def test_a_module_that_export_refuses_stays_the_original(
    capfd: pytest.CaptureFixture[str],
) -> None:
    branching = module(lambda self, x: x + 1 if x.sum() > 0 else x - 1)
    capfd.readouterr()
    program = optimize(branching, (X,))
    assert capfd.readouterr().err == ""  # torch prints the graph that it has traced
    assert "time before" not in dict(program.report.rows())
    assert program.original is branching
    assert program.report.stop == "capture" and program.report.reason
    assert program.report.backend == "original"
    assert "original" in str(program.explain())
    for x in (X + 5, X - 5):
        agrees(program, branching, x)


def test_a_module_that_draws_random_numbers_stays_the_original() -> None:
    noisy = module(lambda self, x: x + torch.rand_like(x))
    before = torch.get_rng_state()
    program = optimize(noisy, (X,))
    assert program.original is noisy
    assert torch.equal(torch.get_rng_state(), before)  # the generator is the user's
    torch.manual_seed(3)
    got = program(X)
    torch.manual_seed(3)
    assert torch.equal(got, noisy(X))


@pytest.mark.rotating(parts=4)
def test_what_is_saved_loaded_and_refreshed_is_checked(tmp_path: Path) -> None:
    with pytest.raises(EqsynthError) as caught:
        eqsynth.save(mlp(), tmp_path / "program")  # type: ignore[arg-type]
    assert caught.value.got == "Sequential"
    with pytest.raises(TypeError):  # an integer would name a file that the process has open
        eqsynth.load(0)  # type: ignore[arg-type]
    program = optimize(mlp(), (X,))
    with pytest.raises(EqsynthError) as caught:
        program.refresh(None)  # type: ignore[arg-type]
    assert caught.value.got == "NoneType"
    for value in (X.numpy(), X.tolist()):
        with pytest.raises(EqsynthError) as caught:
            program(value)
        assert (caught.value.got, caught.value.what) == (
            type(value).__name__, "input 'input' is no tensor",
        )  # fmt: skip


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(value: float) -> None:
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 4)).eval()
    with torch.no_grad():
        model[0].weight[1, 2] = value
    program = quick(model, (X,))
    with torch.no_grad():
        expected = model(X)
    assert torch.equal(program(X).isnan(), expected.isnan())
    agrees(program, model, X)
    if value != value:
        assert program.original is model and "NaN" in program.report.reason


def test_inputs_that_are_no_numbers() -> None:
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    model = module(lambda self, x: (F.relu(x), x.amax(1), x.sigmoid(), x * 0, x - x, x.clamp(-1)))
    agrees(quick(model, (x,)), model, x)
    linear = nn.Linear(4, 5).eval()
    agrees(quick(linear, (x,)), linear, x)


def test_a_sum_that_cancels_is_no_difference() -> None:
    # Its value is nothing but rounding, which another order of additions changes altogether.
    model = module(lambda self, x: x.sum())
    for x in (X, X * 1e6, torch.tensor([1e8, 1.0, -1e8])):
        quick(model, (x,))


@pytest.mark.rotating
def test_a_covariance_keeps_its_digits() -> None:
    """A product of centred columns isn't multiplied out: of ``sum x x - n m m`` large numbers are
    left, which at values around 10 is 1e-3 of the result."""
    model = module(lambda self, x: whitened(x).T @ whitened(x) / 63)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    program = eqsynth.optimize(model, (x,), objective="flops", engines=(), progress=False)
    assert not program.report.reason
    torch.testing.assert_close(program(x + 100), model(x + 100), rtol=0, atol=1e-4)


def whitened(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


@pytest.mark.rotating
def test_ties_are_no_difference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).eval()
    with torch.no_grad():
        model[1].weight[1] = model[1].weight[0]
    quick(module(lambda self, x: (model(x) * 1e3).round()), (X,))


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 5), (0, 4)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (0, 3, 6, 6)),
        (nn.Sequential(nn.Linear(0, 5), nn.ReLU()), (3, 0)),
    ],
)
def test_zero_size_dimensions(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    program = quick(model.eval(), (x,))
    assert program.report.stop == "zero-size dimension"
    agrees(program, model, x)


def test_a_sum_of_nothing_is_zero() -> None:
    product = module(lambda self, a, b: (a @ b + 1, a.sum(1)))
    inputs = torch.ones(3, 0), torch.ones(0, 4)
    program = quick(product, inputs)
    assert torch.equal(program(*inputs)[0], torch.ones(3, 4))
    agrees(program, product, *inputs)


def test_a_tensor_without_axes() -> None:
    model = module(lambda self, x: x * 2 + 1)
    agrees(quick(model, (torch.tensor(3.0),)), model, torch.tensor(3.0))


def test_a_module_without_inputs() -> None:
    model = module(lambda self: self.w * 2, w=torch.ones(3))
    agrees(quick(model, ()), model)


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["resnet18", "linear_attention"])
def test_a_time_limit_of_one_second(name: str) -> None:
    model, inputs = WORKLOADS[name].reduced()
    quick(module(lambda self, x: x + 1), (X,))  # the machine is measured once, not in this second
    program = optimize(model, inputs, time_limit_s=1)
    report = program.report
    assert report.complete == (report.kernels_estimated == 0)
    agrees(program, model, *inputs)


@pytest.mark.usefixtures("nothing_kept", "no_idle_workers")
def test_without_time_for_a_round_no_worker_is_started() -> None:
    """The plan is one of estimates for the original's operators, and is complete."""
    before = set(psutil.Process().children())
    program = quick(mlp(), (torch.ones(7, 4),), time_limit_s=1e-3, objective="time")
    # One that was started would be kept.
    later = set(psutil.Process().children()) - before
    assert not [c for c in later if "eqsynth.executor" in c.cmdline()]
    report = program.report
    assert report.stop == "deadline" and not report.rules_fired and report.kernels_timed == 0
    assert report.candidate_time_s > 0  # something was built and raced
    agrees(program, mlp(), torch.ones(7, 4))


@pytest.mark.rotating
@pytest.mark.usefixtures("nothing_kept")
def test_a_deadline_in_the_middle_of_saturation_is_told() -> None:
    model, inputs = WORKLOADS["resnet18"].reduced()
    program = quick(model, inputs, time_limit_s=0.2)
    # Each of its segments ends in one of these ways, by how far it was.
    assert set(program.report.stop.split(", ")) <= {"deadline", "worker deadline"}
    agrees(program, model, *inputs)


def test_a_node_limit_of_ten() -> None:
    program = quick(mlp(), (X,), node_limit=10)
    assert program.report.stop == "node_limit"
    agrees(program, mlp(), X)


@pytest.mark.usefixtures("nothing_kept")
def test_a_memory_limit_that_is_too_small() -> None:
    program = quick(mlp(), (X,), memory_limit=64 << 20)
    assert program.report.stop in ("worker memory", "worker killed")
    agrees(program, mlp(), X)


def test_constants_past_the_memory_limit_keep_the_original() -> None:
    program = quick(mlp(), (X,), memory_limit=64)
    assert program.report.backend == "original" and program.report.reason
    agrees(program, mlp(), X)


# ---- inputs at call time -----------------------------------------------------------------------


def test_a_call_with_other_inputs_is_refused() -> None:
    program = quick(mlp(), (X,))
    with pytest.raises(ShapeError) as shape:
        program(torch.ones(2, 4))
    assert (shape.value.got, shape.value.expected) == ("(2, 4)", "(3, 4)")
    with pytest.raises(DtypeError) as dtype:
        program(X.double())
    assert (dtype.value.got, dtype.value.expected) == ("torch.float64", "torch.float32")
    for wrong in ((), (X, X)):
        with pytest.raises(EqsynthError):
            program(*wrong)
    with pytest.raises(EqsynthError):
        program("a text")


def test_arguments_by_name() -> None:
    model = module(lambda self, x, y: x - y)
    program = quick(model, (X, X + 1))
    assert torch.equal(program(y=X, x=X + 3), model(X + 3, X))


def test_inputs_that_are_not_contiguous() -> None:
    model = mlp()
    program = quick(model, (X.T.contiguous().T,))
    for x in (X, X.T.contiguous().T, torch.arange(48.0).reshape(6, 8)[::2, ::2],
              torch.ones(1, 4).expand(3, 4)):  # fmt: skip
        agrees(program, model, x)


def test_one_tensor_given_twice_is_two_inputs() -> None:
    model = module(lambda self, x, y: x * 2 + y)
    program = quick(model, (X, X))
    agrees(program, model, X, X)
    agrees(program, model, X, X + 1)


# ---- buffers and aliases -------------------------------------------------------------------------


def counting(self: Any, x: Tensor) -> Tensor:
    self.n.add_(1)
    return x * self.n  # type: ignore[no-any-return]


@pytest.mark.rotating
@pytest.mark.parametrize("objective", ["flops", "time"])
def test_a_buffer_that_the_module_changes(objective: str) -> None:
    mine, theirs = (module(counting, n=torch.zeros(4)) for _ in range(2))
    program = quick(mine, (X,), objective=objective)
    assert torch.equal(mine.n, torch.zeros(4))  # optimizing runs it, and leaves no trace
    for _ in range(3):
        agrees(program, theirs, X)
    assert torch.equal(mine.n, torch.full((4,), 3.0))


def test_a_buffer_that_the_module_assigns() -> None:
    def assigning(self: Any, x: Tensor) -> Tensor:
        self.n = self.n + 1
        return x * self.n  # type: ignore[no-any-return]

    mine, theirs = (module(assigning, n=torch.zeros(4)) for _ in range(2))
    program = quick(mine, (X,))
    assert torch.equal(mine.n, torch.zeros(4))
    assert program.report.reason
    for _ in range(3):
        agrees(program, theirs, X)


def test_weights_that_the_module_writes_into() -> None:
    """``max_norm`` scales the rows that are asked for. Optimizing asks for random ones, so the
    weights are as before afterwards, and the module stays as it is."""
    table = nn.Embedding(10, 4, max_norm=0.1).eval()
    before = table.weight.clone()
    program = quick(table, (torch.tensor([1, 2]),))
    assert torch.equal(table.weight, before)
    assert program.original is not None and "writes into a weight" in program.report.reason
    # What its own calls write is no change that the user has to tell of.
    for rows in ([3, 1], [1, 2], [9, 3]):
        agrees(program, table, torch.tensor(rows))
        agrees(copy.deepcopy(program), table, torch.tensor(rows))


class _Rows(nn.Module):
    """A result of a generated kernel, a constant that is made in the call, and one on the default
    device."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = torch.full((4,), 2.0, device=x.device)
        return torch.softmax(x, -1) * made, (x.sin() * x.exp())[:, :3]


@pytest.mark.rotating
@pytest.mark.parametrize("whole", [True, False], ids=["set_default_device", "a block"])
def test_a_default_device_is_for_the_users_tensors(whole: bool, tmp_path: Path) -> None:
    """What names no device is made on it by torch; programs, and what is made to find them, are on
    the CPU all the same."""
    model, earlier = _Rows().eval(), quick(_Rows().eval(), (X,))
    eqsynth.save(earlier, tmp_path / "rows.eqsynth")
    if whole:
        torch.set_default_device("meta")
    try:
        with nullcontext() if whole else torch.device("meta"):
            found = quick(model, (X,))
            loaded = eqsynth.load(tmp_path / "rows.eqsynth")
            earlier.refresh(model)
            results = [program(X) for program in (found, loaded, earlier)]
            assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert found.original is None, found.report.reason
    for result in results:
        for got, expected in zip(result, model(X), strict=True):
            torch.testing.assert_close(got, expected)


def test_what_a_module_makes_on_the_default_device_is_seen() -> None:
    model = module(lambda self, x: (x + 1, torch.zeros(2)))
    with torch.device("meta"):
        program = quick(model, (X,))
        assert program.original is not None and "isn't on the CPU" in program.report.reason
        assert program(X)[1].device.type == "meta"


def test_an_input_that_the_module_changes() -> None:
    def changing(self: Any, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    model, example = module(changing), X.clone()
    program = quick(model, (example,))
    assert torch.equal(example, X)
    assert "in place" in program.report.reason
    assert "saturate" not in program.report.stages_s and not program.report.stop  # no search
    mine, theirs = X.clone(), X.clone()
    assert torch.equal(program(mine), model(theirs))
    assert torch.equal(mine, theirs)


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x)))  # type: ignore[no-any-return]

    model = Tied().eval()
    agrees(quick(model, (X,)), model, X)


def test_a_module_that_returns_what_it_was_given() -> None:
    model = module(lambda self, x: (x, self.w, x[1:], x + 1), w=torch.ones(2))
    program = quick(model, (X,))
    agrees(program, model, X)
    x = X.clone()
    given, *others = program(x)
    assert given is x
    for result in others:
        result.fill_(7.0)  # the result is the caller's
    assert torch.equal(x, X) and torch.equal(model.w, torch.ones(2))
    agrees(program, model, X)


def test_a_module_that_returns_no_tensor() -> None:
    model = module(lambda self, x: (x.shape[0], x.is_contiguous(), None))
    program = optimize(model, (X,), objective="flops", time_limit_s=2, engines=(), strict=True)
    assert program.report.stop == "saturated"
    assert program(X) == model(X)


def test_results_in_tuples_and_dicts() -> None:
    model = module(lambda self, x: {"a": x + 1, "b": (x * 2, [x.sum(), 3, None])})
    result = quick(model, (X,))(X)
    assert list(result) == ["a", "b"]
    assert isinstance(result["b"], tuple) and result["b"][1][1:] == [3, None]
    assert torch.equal(result["a"], X + 1) and torch.equal(result["b"][0], X * 2)


# ---- dtypes --------------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    model = module(lambda self, x: (x * 2 + x // 3, x % 2 == 0, x - x.amax(), x.float() / 3))
    x = torch.arange(12, dtype=dtype).reshape(3, 4) + (100 if dtype is torch.uint8 else -5)
    agrees(quick(model, (x,)), model, x)


@pytest.mark.rotating
def test_bools() -> None:
    model = module(lambda self, x: (x & ~x.flip(0), x.any(), x.all(1), torch.where(x, 1.0, 2.0)))
    agrees(quick(model, (X > 0,)), model, X > 0)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_floats(dtype: torch.dtype) -> None:
    model, x = mlp(dtype), X.to(dtype)
    program = quick(model, (x,))
    assert program(x).dtype is dtype
    agrees(program, model, x)
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(dtype).eval()
    image = torch.randn(1, 3, 6, 6).to(dtype)
    agrees(quick(conv, (image,)), conv, image)


# ---- operators that eqsynth doesn't know -------------------------------------------------------


@pytest.mark.rotating
def test_an_unknown_operator_stays_opaque() -> None:
    model = module(lambda self, x: torch.linalg.svdvals(x @ x.T) * 2 + 1)
    program = quick(model, (X,))
    assert any(getattr(step.kernel.term, "name", "") == "Opaque" for step in program.steps)
    assert 0 < program.report.opaque_share < 1
    agrees(program, model, X)
    assert quick(mlp(), (X,)).report.opaque_share == 0


@pytest.mark.rotating
@pytest.mark.usefixtures("nothing_kept")
def test_optimizations_share_their_workers() -> None:
    optimize(mlp(), (X,), time_limit_s=20)
    before = psutil.Process().children()
    for size in (3, 7):  # other kernels than before: they are measured
        optimize(mlp(), (torch.ones(size, 4),), time_limit_s=20)
    assert psutil.Process().children() == before
    end_idle_workers()
    assert not any("eqsynth.executor" in c.cmdline() for c in psutil.Process().children())
