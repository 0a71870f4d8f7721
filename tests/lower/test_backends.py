"""The CPU's backends together, and timing kernels in a process of their own."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.executor import borrowed, end_idle_workers
from eqsynth.extract.cost import measurement_key
from eqsynth.extract.disturbance import Usage
from eqsynth.extract.kernel import Kernel, channels_last, contiguous, strides
from eqsynth.extract.measure import cache_capacities
from eqsynth.extract.schedule import Flat, Rows
from eqsynth.extract.timing import OVERDUE, Timing
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Call, Read
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower import backends, tvm_backend
from eqsynth.lower import measurer as measuring
from eqsynth.lower.backends import (
    _arguments,
    as_step,
    backend_of,
    built,
    cpu_backends,
    prepare_kernels,
    random_argument,
    random_inputs,
    time_kernels,
)
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.places import Place
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.tvm_backend import TvmBackend, not_kept
from tests.lower.hanging import READY, hands_over_and_hangs
from tests.terms import it


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    made = Measurer(threads=2)
    yield made
    made.close()


MATRIX = TensorType((8, 8), "float32")


def relu(size: int) -> Tensor:
    return Op("Relu", (Input("0", TensorType((size,), "float32")),))


def kernel(term: Tensor, implementation: str = "torch") -> Kernel:
    args = args_of(term)
    layouts = tuple(contiguous(len(arg.shape)) for arg in args)
    output = contiguous(len(term.shape))
    return Kernel(term, (False,) * len(args), implementation, layouts, output)


def test_every_kernel_has_its_backend() -> None:
    backends = cpu_backends()
    left = Input("0", TensorType((4, 8), "float32"))
    term = Op("Matmul", (left, Input("1", TensorType((8, 16), "float32"))))
    found = [k for b in backends for k in b.kernels(term, (False, True))]
    assert {backend_of(k, backends).name for k in found} == {"onednn", "torch"}
    with pytest.raises(EqsynthError) as caught:
        backend_of(kernel(relu(3), "cuda.relu"), backends)
    assert caught.value.got == "cuda.relu"


def test_random_arguments_lie_as_they_should() -> None:
    term = Input("0", TensorType((2, 3, 4, 5), "float32"))
    value = random_argument(term, channels_last(4))
    assert value.stride() == strides((2, 3, 4, 5), channels_last(4))
    assert value.std() > 0.5
    kinds = random_argument(Input("0", TensorType((64,), "int64")), (0,))
    assert set(kinds.tolist()) == {0, 1} and kinds.dtype is torch.int64


def test_a_region_is_timed_with_weights_as_after_training() -> None:
    """``x @ w @ w ...``: with weights of deviation 1 each product would be 8 times the last."""
    shapes = ((4, 64), (64, 64), ())
    x, w, s = (Input(str(n), TensorType(at, "float32")) for n, at in enumerate(shapes))
    products: Tensor = x
    for _ in range(12):
        products = Op("Matmul", (products, w))
    region = Region((Op("Mul", (products, s)),), (x, w, s))
    layouts = tuple(contiguous(len(arg.shape)) for arg in region.args)
    timed = Kernel(region, (False, True, True), "inductor", layouts, contiguous(2))
    torch.manual_seed(0)
    given, weight, scalar = _arguments(timed, {2: torch.tensor(7.0)})
    value = given
    for _ in range(12):
        value = value @ weight
    assert scalar == 7 and 1e-3 < value.std() < 1e3


@pytest.mark.rotating
def test_positions_lie_in_a_table_of_one_row(measurer: Measurer) -> None:
    table, ids = Input("t", TensorType((1, 3), "float32")), Input("i", TensorType((9,), "int64"))
    rows = Op("Embedding", (table, ids), ())
    assert not random_inputs(Program((table, ids), (rows,)))[1].any()
    computed = Op("Embedding", (table, Op("Neg", (ids,), ())), ())
    assert not random_inputs(Program((table, ids), (computed,)))[1].any()
    assert all(measurer([kernel(rows)]).values())


@pytest.mark.rotating
@pytest.mark.usefixtures("no_idle_workers")
def test_a_worker_that_has_loaded_is_kept_and_one_that_still_loads_is_ended() -> None:
    """It would go on loading while others are timed."""
    pids = []
    for wait in (True, False):
        end_idle_workers()
        with Measurer(threads=1) as made:
            made.prepare()
            assert made._loading is not None
            pids.append(made._loading.worker.pid)
            if wait:
                assert made._loading.worker_at(math.inf) is not None
        if wait:
            with borrowed(threads=1) as worker:
                assert worker.pid == pids[-1]
    assert not psutil.pid_exists(pids[-1])


@pytest.mark.rotating
def test_kernels_are_timed(measurer: Measurer) -> None:
    small, large = kernel(relu(10)), kernel(relu(4_000_000))
    times = measurer([large, small])
    assert all(isinstance(t, Timing) and t.median_s > 0 for t in times.values())
    fast, slow = times[small], times[large]
    assert fast is not None and slow is not None
    assert slow.median_s > fast.median_s  # 16 MB against 40 bytes
    assert measurer([]) == {}


@pytest.mark.rotating
def test_a_kernel_whose_arguments_do_not_fit_into_memory_leaves_the_others_their_times(
    measurer: Measurer,
) -> None:
    small, huge = kernel(relu(10)), kernel(relu(1 << 50))
    times = measurer([huge, small])
    assert times[huge] is None
    assert isinstance(times[small], Timing)


@pytest.mark.rotating(parts=4)
def test_times_know_that_they_were_disturbed(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = kernel(relu(10)), kernel(relu(20))
    huge = kernel(Op("Pad", (Input("0", TensorType((1,), "float32")),), ((0,), (1 << 50,), 0.0)))
    measurer.alone, measurer.disturbed = {small, large}, 0
    asked: set[tuple[float, float, int]] = set()
    disturbed = False

    def answer(after: Usage, before: Usage, threads: int) -> bool:
        asked.add((before.own_s, after.own_s, threads))
        return disturbed

    monkeypatch.setattr(Usage, "now", lambda pids: Usage(0.0, 0.0, sum(pids)))
    monkeypatch.setattr(Usage, "disturbed", answer)
    for disturbed in (False, True):
        times = measurer([small, large, huge])
        assert times[huge] is None
        turns = measurer.in_turns([small, large], time.monotonic() + 60.0)
        for timing in (times[small], times[large], *turns.values()):
            assert timing is not None and timing.disturbed is disturbed
    assert len(turns) == 2 and measurer.disturbed == 4
    assert measurer._worker is not None
    assert asked == {(measurer._worker.pid, measurer._worker.pid, 2)}  # its seconds are own
    measurer.alone = set()


@pytest.mark.rotating
def test_what_preparing_took_is_known_when_the_worker_has_loaded() -> None:
    one = kernel(relu(10))
    with Measurer(threads=1) as made:
        assert made.preparing_s() == 0.0
        made.prepare([one], 60.0)
        ready = made.ready()[one]
        assert 0 < ready.call_s < 60 and made.preparing_s() >= ready.build_s > 0.0
        assert made([one])[one] is not None


def test_what_was_prepared_before_the_worker_is_ended_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "prepare_kernels", hands_over_and_hangs)
    monkeypatch.setattr(measuring, "_COMPILING_GRACE_S", 1.0)
    one, two = kernel(relu(10)), kernel(relu(11))
    with Measurer(threads=1) as made:
        made.prepare([one, two], 0.1)
        assert made.ready() == {one: READY}
        assert made.preparing_s() < 600


def test_what_is_not_prepared_in_time_is_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, bad = kernel(relu(52)), kernel(relu(53)), kernel(relu(1 << 50))
    handed: list[object] = []
    monkeypatch.setattr(backends, "hand_over", lambda took: handed.append([*took]))
    took = prepare_kernels([one, bad, two], 1)
    assert handed == [took[:1], took[:2], took]
    assert [number for number, _ in took] == [0, 1, 2]
    assert [math.isinf(ready.call_s) for _, ready in took] == [False, True, False]
    assert prepare_kernels([one, two], 1, until=time.monotonic()) == []
    assert all(isinstance(timing, Timing) for _, timing in time_kernels([one, two], 1))


@pytest.mark.rotating
@pytest.mark.usefixtures("no_idle_workers")
def test_preparing_again_gives_the_worker_back() -> None:
    with Measurer(threads=1) as made:
        pids = []
        for _ in range(2):
            made.prepare()
            assert made._loading is not None
            worker = made._loading.worker_at(math.inf)
            assert worker is not None
            pids.append(worker.pid)
        assert pids[0] == pids[1]


@pytest.mark.rotating
@pytest.mark.usefixtures("no_idle_workers")
def test_a_worker_that_is_loading_goes_on_with_kernels() -> None:
    one = kernel(relu(10))
    with Measurer(threads=1) as made:
        made.prepare()
        assert made._loading is not None
        pid = made._loading.worker.pid
        made.prepare([one], 60.0)
        assert one in made.ready() and made._worker is not None and made._worker.pid == pid
    end_idle_workers()
    before = psutil.Process().children()
    with Measurer(threads=1) as made:
        made.prepare()
        made.prepare([one], 60.0)
    assert {*psutil.Process().children()} <= {*before}  # ended, and none was begun for the kernels


@pytest.mark.rotating(parts=4)
def test_the_worker_compiles_what_this_process_then_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    parts = [Input("0", TensorType((n, 5), "float32")) for n in (3, 4)]
    scopes = [Scope(x.shape, (), Read(x, (it(0, x.shape[0]), it(1, 5)))) for x in parts]
    kernels = [Kernel(s, (False,), "tvm", ((0, 1),), (0, 1), Rows()) for s in scopes]
    with Measurer(threads=torch.get_num_threads()) as made:
        made.compile(kernels)  # without a worker nothing is done
        assert not_kept(kernels) == kernels
        made([kernel(relu(10))])
        made.compile([*kernels, kernel(relu(10))])
        assert not_kept(kernels) == []
        assert made._worker is not None
        os.kill(made._worker.pid, signal.SIGSTOP)
        made.compile(kernels)  # nothing is left to be compiled
        more = [replace(kernels[0], schedule=Flat(16))]
        with pytest.raises(LoweringError, match="weren't compiled"):
            made.compile(more, until=time.monotonic())
    monkeypatch.setattr(tvm_backend, "_compile", None)
    (run, _) = TvmBackend().build([(k, {}) for k in kernels])
    assert run is not None and torch.equal(run(torch.ones(3, 5)), torch.ones(3, 5))


def test_no_more_kernels_are_begun_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = TvmBackend(), TorchBackend({})
    monkeypatch.setattr(backends, "_EACH_S", {})
    assert [backends._in_time(own, 2.5 * 0.06), backends._in_time(own, 0.05)] == [2, 1]
    assert backends._in_time(calls, 0.001) == backends._in_time(own, math.inf) == 16
    monkeypatch.setattr(backends, "_EACH_S", {"tvm": 1.0, "torch": 0.01})
    assert [backends._in_time(one, 3.5) for one in (own, calls)] == [3, 16]
    assert backends._in_time(calls, 0.0) == 0
    many = [kernel(relu(1000 + n)) for n in range(5)]
    monkeypatch.setattr(backends, "_EACH_S", {})
    assert len(time_kernels(many, 1)) == 5 and 0 < backends._EACH_S["torch"] < 60
    # Slow kernels of an earlier program don't keep those of the next from being timed.
    monkeypatch.setattr(backends, "_EACH_S", {"torch": 1e9})
    assert backends._in_time(calls, 60.0) == 1
    assert len(time_kernels(many, 1, until=time.monotonic() + 60.0)) == 5


def test_whole_programs_that_were_timed_are_timed_again_in_turns(measurer: Measurer) -> None:
    small, large, part = kernel(relu(10)), kernel(relu(4_000_000)), kernel(relu(20))
    measurer.alone = {small, large}
    measurer([large, small, part])
    times = measurer.in_turns([large, small, part], time.monotonic() + 60.0)
    assert set(times) == {large, small} and times[large].median_s > times[small].median_s
    # They are kept for that only, and nothing is begun that can't be ended.
    assert measurer.in_turns([large, small], time.monotonic() + 60.0) == {}
    measurer([large, small])
    assert measurer.in_turns([large, small], time.monotonic() + 0.1) == {}
    measurer.alone = set()


def test_what_can_write_into_given_memory_is_timed_as_a_step_of_a_program() -> None:
    """TVM's kernels write into the same memory in each call; torch's return new tensors."""
    term = Op("Relu", (Input("0", TensorType((64,), "float32")),))
    scope = Scope((64,), (), Call("relu", (Read(Input("0", term.type), (it(0, 64),)),)))
    (generated,) = TvmBackend().kernels(scope, (False,))
    ((runner, given),) = built(TvmBackend(), [generated], {})
    assert runner is not None
    call = as_step(runner, given)
    assert isinstance(call, partial)
    call()
    torch.testing.assert_close(torch.from_dlpack(call.args[-1]), torch.relu(given[0]))
    before = given[0].clone()
    given[0].neg_()
    assert call() is None
    torch.testing.assert_close(torch.from_dlpack(call.args[-1]), torch.relu(-before))
    ((runner, given),) = built(TorchBackend(), [kernel(term)], {})
    assert runner is not None
    torch.testing.assert_close(as_step(runner, given)(), torch.relu(given[0]))


def test_kernels_are_timed_with_other_steps_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else kernels' times don't add up to what a program of them takes."""
    others: list[Sequence[torch.Tensor]] = []
    run = OtherSteps.run

    def watched(self: Any, given: Sequence[torch.Tensor]) -> float:
        others.append(given)
        return run(self, given)

    monkeypatch.setattr(OtherSteps, "run", watched)
    ((_, timing),) = time_kernels([kernel(relu(10))], 1)
    # The last call of the warm-up is a sample, too, if it stalls for long.
    assert timing is not None and timing.samples - len(others) in (0, 1)
    assert all(len(given) == 1 and given[0].shape == (10,) for given in others)
    # What is a whole program is called in a row.
    others.clear()
    ((_, timing),) = time_kernels([kernel(relu(10))], 1, alone={kernel(relu(10))})
    assert timing is not None and not others


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_other_steps_leave_arguments_as_they_are(dtype: torch.dtype) -> None:
    """They write what is there: -0.0 too may become 0.0, and nothing else changes."""
    near, far, memory = (OtherSteps.of(1, far) for far in range(3))
    caches = cache_capacities(1)
    assert far.large.nbytes == near.large.nbytes * 2 == caches[2]
    # All of the last cache, or half of it, or a quarter: what the machine's other users leave.
    last, held = caches.get(3, caches[2]), memory.large.nbytes
    assert far.large.nbytes <= held and held in {last >> n for n in range(10)}
    given = torch.tensor([0, 1, 3]).to(dtype), torch.zeros(near.at_hand_bytes // 4 + 1)
    before = [value.clone() for value in given]
    assert near.run(given) == 1.0
    assert all(map(torch.equal, given, before))
    versions = [value._version for value in given]
    assert versions == [1, 0]  # what is larger than the cache isn't there
    # Kernels that aren't timed in turns are timed by the machine's pace.
    paced = Place().others(1, 0)
    assert paced.large is near.large and paced.pace is not None and paced.run(given) > 0


def test_times_of_weights_in_the_cache_and_out_of_it_are_kept_apart() -> None:
    term = Op("Matmul", (Input("0", MATRIX), Input("1", MATRIX)))
    product = replace(kernel(term), constants=(False, True))
    keys = [measurement_key(product, far) for far in range(3)]
    assert len(set(keys)) == 3
    unweighted = [measurement_key(kernel(relu(10)), far) for far in range(3)]
    assert unweighted[0] == unweighted[1] != unweighted[2]


def test_a_kernel_that_was_prepared_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, other = kernel(relu(48)), kernel(relu(49))
    prepare_kernels([prepared], 1)
    built: list[Kernel] = []

    def build(self: TorchBackend, kernels: Sequence[tuple[Kernel, Any]]) -> list[Any]:
        built.extend(kernel for kernel, _ in kernels)
        return real(self, kernels)

    real = TorchBackend.build
    monkeypatch.setattr(TorchBackend, "build", build)
    times = dict(time_kernels([other, prepared], 1))
    assert all(isinstance(times[n], Timing) for n in (0, 1)) and built == [other]
    # What was timed isn't kept.
    time_kernels([prepared], 1)
    assert built == [other, prepared]


@pytest.mark.rotating
def test_no_kernel_is_begun_past_the_deadline(measurer: Measurer) -> None:
    assert measurer([kernel(relu(10))], until=time.monotonic()) == {}
    fresh = Measurer(threads=1)
    assert fresh([kernel(relu(10))], until=-1.0) == {}
    assert fresh._worker is None  # none was started for nothing
    # Each takes a millisecond at least, on any machine: not all are reached, and none has failed.
    many = [kernel(relu(1000 + n)) for n in range(4000)]
    times = measurer(many, until=time.monotonic() + 1.0)
    assert len(times) < len(many) and all(times.values())


def test_the_worker_looks_at_the_clock_itself() -> None:
    many = [kernel(relu(1000 + n)) for n in range(3)]
    assert time_kernels(many, 1, until=-1.0) == []
    assert [n for n, timing in time_kernels(many, 1) if timing is not None] == [0, 1, 2]


@pytest.mark.rotating
def test_a_worker_that_does_not_answer_is_ended_at_the_deadline() -> None:
    made = Measurer(threads=1)
    try:
        assert made([kernel(relu(9))])
        assert made._worker is not None
        late = made._worker.pid
        os.kill(late, signal.SIGSTOP)
        # Not known to have failed: they have no times, not even None.
        assert made([kernel(relu(10)), kernel(relu(11))], until=time.monotonic() + 0.1) == {}
        assert not psutil.pid_exists(late)
        assert all(made([kernel(relu(10)), kernel(relu(11))]).values())
    finally:
        made.close()


@pytest.mark.rotating
@pytest.mark.usefixtures("no_idle_workers")  # the worker ends, and takes its libraries with it
def test_a_kernel_that_takes_too_long_to_build_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Measurer(threads=1) as made:
        made([kernel(relu(9))])
        assert made._worker is not None
        os.kill(made._worker.pid, signal.SIGSTOP)  # so it can't be in time
        monkeypatch.setattr("eqsynth.lower.measurer._BATCH_TIMEOUT_S", 0.0)
        asked = [kernel(relu(10)), kernel(relu(11))]
        assert made(asked) == dict.fromkeys(asked, OVERDUE)


def test_a_kernel_that_fails_costs_that_one_only(measurer: Measurer) -> None:
    # A backend that isn't there fails its whole batch; only the one to blame has no time.
    broken = kernel(relu(12), "nowhere")
    times = measurer([kernel(relu(10)), broken, kernel(relu(11)), kernel(relu(13))])
    assert len(times) == 4 and [k for k, t in times.items() if t is None] == [broken]


@pytest.mark.rotating
def test_a_kernel_that_kills_the_process_costs_that_one_only() -> None:
    made = Measurer(threads=1)
    try:
        made([kernel(relu(9))])
        assert made._worker is not None
        os.kill(made._worker.pid, signal.SIGKILL)
        assert all(made([kernel(relu(10)), kernel(relu(11))]).values())
    finally:
        made.close()
    made.close()
