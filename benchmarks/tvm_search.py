"""TVM's own search for a schedule, on the kernels on which tuners are compared.

The search is ``s_tir.meta_schedule`` as it comes: its rules make the space, it evolves programs
with a cost model of boosted trees (XGBoost), and Droplet search improves the best of them. What it
proposes is built and timed as eqsynth's own schedules are: in a worker, in turns with the schedule
that was measured first. (Its own builder starts processes that needed longer than its limit of 30 s
on a loaded machine, so that all of 16 builds failed.)

It can't be continued in the middle, so a search is stored when it is over.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from unittest.mock import patch

import torch

from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.timing import alone
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.backends import built
from eqsynth.lower.kernel_tuning import TIMEOUT_S, alike, ratio
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.tvm_backend import TvmBackend

MAIN = "main"
TOGETHER = 16
"""The number of trials after which the cost model learns. (64 by default, which is all of a short
search.)"""

DROPLET = 32
"""The most trials of Droplet search, which begins when the evolution is over."""


def is_here() -> bool:
    """Whether the package of the cost model is installed (extra ``peers``)."""
    return importlib.util.find_spec("xgboost") is not None


@dataclass(frozen=True)
class TvmTrial:
    """A trial of TVM's search.

    Attributes:
        time_s: seconds of the program, None if it didn't build or run.
        cost_s: seconds of building and timing it.
        elapsed_s: seconds since the beginning of the search.
    """

    time_s: float | None
    cost_s: float
    elapsed_s: float


def tvm_search(
    first: tuple[Kernel, float], worker: Worker, trials: int, seed: int, threads: int, far: int
) -> list[TvmTrial]:
    """Search for a program of the kernel's scope.

    Args:
        first: the kernel beside which programs are timed, and its seconds.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.post_optimization import PostOpt

    from eqsynth.lower.tvm_target import target

    found: list[TvmTrial] = []
    begin = time.monotonic()

    @derived_object
    class Passing(ms.builder.PyBuilder):  # type: ignore[misc]
        """Hands programs to the runner as text."""

        def build(self, build_inputs: Sequence[Any]) -> list[Any]:
            import tvm

            paths: list[str] = []
            for given in build_inputs:
                # TVM deletes the folder of what it has built.
                path = Path(mkdtemp(dir=folder)) / "program.json"
                path.write_text(tvm.ir.save_json(given.mod))
                paths.append(str(path))
            return [ms.builder.BuilderResult(path, None) for path in paths]

    @derived_object
    class Timing(ms.runner.PyRunner):  # type: ignore[misc]
        """Builds and times programs in the worker."""

        def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
            return [self._future(Path(given.artifact_path).read_text()) for given in runner_inputs]

        def _future(self, program: str) -> Any:
            before, time_s = time.monotonic(), None
            try:
                with alone():
                    time_s = worker.run(
                        time_program, program, first, threads, far, timeout_s=TIMEOUT_S
                    )
            except EqsynthError:
                pass  # a program that can't be built, or takes too long
            now = time.monotonic()
            found.append(TvmTrial(time_s, now - before, now - begin))
            result = (
                ms.runner.RunnerResult(None, "it doesn't run")
                if time_s is None
                else ms.runner.RunnerResult([time_s], None)
            )
            return ms.runner.RunnerFuture(lambda: True, lambda: result)

    builder, runner = Passing(), Timing()
    with TemporaryDirectory() as folder:
        ms.tune_tir(
            program_of(first[0].term), target(), folder, trials, num_trials_per_iter=TOGETHER,
            builder=builder, runner=runner, strategy="evolutionary", cost_model="xgb",
            num_tuning_cores=1, seed=seed + 1,
        )  # fmt: skip
        # ``post_optimization=True`` does the same, with a builder and a runner of its own.
        with (
            patch.object(ms.builder, "LocalBuilder", lambda **_: builder),
            patch.object(ms.runner, "LocalRunner", lambda **_: runner),
        ):
            PostOpt(folder, target(), DROPLET).run()
    return found


def time_program(program: str, first: tuple[Kernel, float], threads: int, far: int) -> float | None:
    """Build a program and time it in turns with a kernel; a task of the worker. Its seconds are at
    the pace of the kernel's.

    None if its result is another: Droplet search changes the factors of a loop one by one, so that
    their product is less than the loop, and elements are left out. (One program of batched products
    seemed to run at five times the machine's peak.)
    """
    import tvm

    from eqsynth.lower import tvm_runtime
    from eqsynth.lower.tvm_target import target

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    tvm_runtime.ensure_runtime()
    kernel, first_s = first
    others = OtherSteps.of(threads, far)
    with torch.no_grad():
        ((run, given),) = built(TvmBackend(), [kernel], {})
        if run is None:
            return None
        main = tvm.compile(tvm.ir.load_json(program), target())[MAIN]
        result = torch.full(kernel.term.shape, torch.nan)
        main(*given, result)
        if not alike(result, run(*given)):
            return None
        between, call = partial(others.run, given), partial(main, *given, result)
        return first_s * ratio((between, call), (between, partial(run, *given)))


def program_of(scope: Any) -> Any:
    """A scope of float32 as a function of TVM without a schedule: its arguments in the order of
    ``args_of``, then its result."""
    from tvm import te

    assert isinstance(scope, Scope)
    given = {
        arg: te.placeholder(arg.shape, arg.dtype, name=f"x{n}")
        for n, arg in enumerate(args_of(scope))
    }
    reduced = [
        te.reduce_axis((0, extent), name=f"r{n}") for n, extent in enumerate(scope.reduction)
    ]

    def element(*places: Any) -> Any:
        slots = dict(enumerate([*places, *(axis.var for axis in reduced)]))
        value = _value(scope.body, slots, given)
        return te.sum(value, axis=reduced) if reduced else value

    result = te.compute(scope.shape, element, name="result")
    return te.create_prim_func([*given.values(), result]).with_attr("global_symbol", MAIN)


def _value(scalar: Scalar, slots: dict[int, Any], given: dict[Any, Any]) -> Any:
    """A body as an expression of TVM."""
    from tvm import tirx

    from eqsynth.lower.scalar_code import index_code

    match scalar:
        case Num(value=value):
            return tirx.const(float(value), "float32")
        case Sum(terms=parts) | Prod(factors=parts):
            total, *rest = (_value(part, slots, given) for part in parts)
            for part in rest:
                total = total + part if isinstance(scalar, Sum) else total * part
            return total
        case Call(fn="exp", args=(arg,)):
            return tirx.exp(_value(arg, slots, given))
        case Read():
            places = [index_code(index, slots, "int32") for index in scalar.index]
            value = given[scalar.tensor](*places)
            if scalar.in_range():
                return value
            bounds = []
            for place, index, extent in zip(places, scalar.index, scalar.tensor.shape, strict=True):
                low, high = index.range()
                bounds += [place >= 0] * (low < 0) + [place < extent] * (high >= extent)
            return tirx.if_then_else(
                reduce(tirx.And, bounds), value, tirx.const(scalar.fill, "float32")
            )
    raise ValueError(f"no program for {type(scalar).__name__}: expected a kernel of the comparison")
