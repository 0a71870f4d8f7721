"""``optimize`` for a GPU that is played by the CPU (``played.py``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import eqsynth
from eqsynth import checking
from eqsynth.errors import EqsynthError
from eqsynth.extract.target import CUDA
from eqsynth.extract.timing import wall_s
from eqsynth.lower import backends
from eqsynth.lower.check import Check
from eqsynth.lower.cuda import place, precision
from eqsynth.lower.cuda.backend import GeneratedBackend
from eqsynth.lower.program import CompiledProgram
from tests.played import a_gpu, record


class Layer(torch.nn.Module):
    """With a buffer that it counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(192, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1.0)
        y = self.out(torch.relu(self.inner(x)))
        return y.transpose(0, 1).contiguous() * torch.sigmoid(y.sum(1)) + self.calls


@pytest.fixture(scope="module")
def gpu() -> Iterator[None]:
    with a_gpu():
        yield


@pytest.fixture(scope="module")
def given() -> tuple[Layer, torch.Tensor]:
    torch.manual_seed(0)
    return Layer().eval(), torch.randn(32, 64)


@pytest.fixture(scope="module")
def found(gpu: None, given: tuple[Layer, torch.Tensor]) -> CompiledProgram:
    module, x = given
    return eqsynth.optimize(module, (x,), target=CUDA, objective="flops", time_limit_s=20)


@pytest.mark.rotating
def test_the_pipeline_on_a_gpu(found: CompiledProgram, given: tuple[Layer, torch.Tensor]) -> None:
    """Captured on the host, run with kernels of the GPU, checked against the module there."""
    module, x = given
    used = {step.kernel.backend for step in found.steps}
    assert CUDA in used and "cublasLt" in used and not used & {"tvm", "onednn"}
    assert found.report.time_before_s > 0 and found.report.reason == ""
    with torch.no_grad():
        for _ in range(3):  # the first call records
            before = float(module.calls)
            expected = module(x)
            module.calls.fill_(before)
            torch.testing.assert_close(found(x), expected, rtol=1e-4, atol=1e-5)
            assert float(module.calls) == before + 1


@pytest.mark.rotating
def test_the_check_is_in_full_precision(
    found: CompiledProgram, given: tuple[Layer, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's convolutions are in TF32 unless somebody says otherwise: an original that is off by
    5e-4 would look like a wrong program."""
    seen: list[str] = []

    def checked(*_: object, **__: object) -> Check:
        seen.append(precision.CONVOLUTIONS.fp32_precision)
        return Check(0.0, 1)

    module, x = given
    monkeypatch.setattr(checking, "check_equivalence", checked)
    # As in a new process: other tests have set the switches, too.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with a_gpu():
        eqsynth.optimize(module, (x,), target=CUDA, objective="flops", time_limit_s=0.1)
    assert seen and "tf32" not in seen
    assert precision.CONVOLUTIONS.fp32_precision == "tf32"


@pytest.mark.rotating
def test_new_weights_on_a_gpu(found: CompiledProgram, given: tuple[Layer, torch.Tensor]) -> None:
    _, x = given
    torch.manual_seed(1)
    other = Layer().eval()
    found.refresh(other)
    with torch.no_grad():
        got = found(x)
        other.calls.zero_()
        torch.testing.assert_close(got, other(x), rtol=1e-4, atol=1e-5)


def test_a_wrong_kernel_gives_the_original_back(
    gpu: None, given: tuple[Layer, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = given
    build = GeneratedBackend.build

    def off(self: GeneratedBackend, kernels: object) -> list[object]:
        runners = build(self, kernels)  # type: ignore[arg-type]
        return [lambda *a, run=run: run(*a) + 1e-2 for run in runners]  # type: ignore[misc]

    monkeypatch.setattr(GeneratedBackend, "build", off)
    with pytest.warns(eqsynth.EquivalenceWarning, match="first step that is wrong by itself"):
        kept = eqsynth.optimize(module, (x,), target=CUDA, objective="flops", time_limit_s=20)
    assert kept.original is module


@pytest.mark.slow
def test_kernels_are_timed_there(gpu: None, given: tuple[Layer, torch.Tensor]) -> None:
    module, x = given
    program = eqsynth.optimize(module, (x,), target=CUDA, time_limit_s=60)
    assert program.report.kernels_timed > 5


@pytest.mark.rotating(parts=4)
def test_a_kernel_that_fails_may_have_broken_the_gpu(found: CompiledProgram) -> None:
    """Whether the others still run, the place says."""
    (kernel, *_) = [step.kernel for step in found.steps if step.kernel.backend == "cublasLt"]
    failed: list[str] = []

    def events(call: object, calls: int) -> float:
        raise RuntimeError("an illegal memory access was encountered")

    with a_gpu(failed, clock=events):
        times = backends.time_kernels([kernel], 1, target=place.place(None).target)  # type: ignore[arg-type]
    assert times == [(0, None)] and failed == ["failed"]


def test_engines_are_for_the_cpu(gpu: None) -> None:
    with pytest.raises(EqsynthError) as caught:
        eqsynth.optimize(
            torch.nn.ReLU().eval(), (torch.ones(3),), target=CUDA, engines=("inductor",)
        )
    assert caught.value.got == "inductor"


# ---- recorded programs ----------------------------------------------------------------------


def double(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    if x.shape != (3,):
        raise EqsynthError("another shape")
    return [x * 2, x + y]


def quick(call: object, calls: int) -> float:
    """A clock by which a recording is faster than the steps."""
    return 2.0 if "_run" in getattr(call, "__code__", double.__code__).co_names else 1.0


def test_a_recording_is_replayed_on_other_values() -> None:
    ran: list[int] = []

    def replayed(run: place.Run, values: place.Values) -> object:
        ran.append(len(values))
        return record(run, values)

    steps = place.Recorded(double, replayed, quick)  # type: ignore[arg-type]
    x, y = torch.arange(3.0), torch.ones(3)
    first = steps(x, y)
    again = steps(x + 1, y)
    steps(x + 5, y)
    assert ran == [2]
    assert torch.equal(first[1], x + 1) and torch.equal(again[0], 2 * x + 2)
    # A result is the caller's: what is called next doesn't write there.
    assert torch.equal(again[1], x + 2)
    with pytest.raises(EqsynthError):
        steps(torch.ones(1), y)
    assert torch.equal(steps(x.double(), y)[0], 2 * x.double())


def test_what_cannot_be_recorded_runs_step_by_step() -> None:
    def refused(run: object, values: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing")

    steps = place.Recorded(double, refused, wall_s)  # type: ignore[arg-type]
    x, y = torch.arange(3.0), torch.ones(3)
    assert all(torch.equal(steps(x, y)[1], x + 1) for _ in range(2))


def test_a_recording_of_inference_mode_is_used_outside_of_it() -> None:
    steps = place.Recorded(double, record, quick)  # type: ignore[arg-type]
    x, y = torch.arange(3.0), torch.ones(3)
    with torch.inference_mode():
        steps(x, y)
    with torch.no_grad():
        assert torch.equal(steps(x + 1, y)[0], 2 * x + 2)


def test_what_was_recorded_in_less_precision_is_not_checked() -> None:
    ran: list[int] = []

    def counted(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        ran.append(1)
        return double(x, y)

    steps = place.Recorded(counted, lambda run, values: (lambda: None, run(*values)), quick)
    x, y = torch.arange(3.0), torch.ones(3)
    steps(x, y)
    ran.clear()
    steps(x, y)
    assert not ran
    for told, times in (("highest", 0), ("high", 1)):
        with precision.full(told):
            steps(x, y)
        assert len(ran) == times


def test_where_memory_is_short_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    steps = place.Recorded(double, record, quick)  # type: ignore[arg-type]
    x, y = torch.arange(3.0), torch.ones(3)
    monkeypatch.setattr(torch, "empty_like", full)
    assert all(torch.equal(steps(x, y)[0], 2 * x) for _ in range(2))


def test_a_recording_that_is_slower_is_not_used() -> None:
    def slower(call: object, calls: int) -> float:
        return 3.0 - quick(call, calls)

    def once(run: place.Run, values: place.Values) -> object:
        results = run(*values)
        return lambda: pytest.fail("a recording that was slower is replayed"), results

    steps = place.Recorded(double, once, slower)  # type: ignore[arg-type]
    x, y = torch.arange(3.0), torch.ones(3)
    assert all(torch.equal(steps(x, y)[0], 2 * x) for _ in range(3))
