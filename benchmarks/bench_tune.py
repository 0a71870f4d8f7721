"""What tuners find on the schedule spaces of generated kernels: the best so far against trials.

    python -m benchmarks.bench_tune [--kernel NAME ...] [--tuner NAME ...] [--trials N]
                                    [--seconds S] [--seeds N] [--threads N] [--json FILE]

Each search begins with the schedules that are offered without one. What it measured is kept in the
profile: a run that was killed goes on where it was, and a second one only prints. ``default`` and
``found`` are timed side by side at the end. To measure again, set EQSYNTH_CACHE to an empty
directory; by default each seed has a directory of its own below it, so that no search knows what
another has measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import platformdirs
import torch

from benchmarks.about import about
from eqsynth.executor import borrowed
from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.extract.timing import Timing
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum
from eqsynth.ir.tensor import Input, Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import flops
from eqsynth.lower.kernel_tuning import space_for, tune_kernel
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.tuning.search import Budget
from eqsynth.tuning.tuners import TUNERS

SHOWN: Final = (8, 16, 32, 64, 128, 256, 512)
"""Trials after which the best is printed."""

it = Index.iterator


def _input(position: int, *shape: int) -> Input:
    return Input(str(position), TensorType(shape, "float32"))


def _product(m: int, n: int, k: int, batch: int = 1) -> Scope:
    b, i, j, r = it(0, batch), it(1, m), it(2, n), it(3, k)
    x, y = _input(0, batch, m, k), _input(1, batch, k, n)
    return Scope((batch, m, n), (k,), Prod((Read(x, (b, i, r)), Read(y, (b, r, j)))))


def _offset_reduce(size: int, features: int) -> Scope:
    """What EinNet leaves of a 3x3 convolution: nine shifted planes are added up."""
    shape = (size, size, 3, 3, features)
    h, w, f, r, s = (it(k, e) for k, e in enumerate((size, size, features, 3, 3)))
    read = Read(_input(0, *shape), (h + r - 1, w + s - 1, r, s, f))
    return Scope((size, size, features), (3, 3), read)


def _softmax_sum(rows: int, columns: int) -> Scope:
    """The denominators: exponentials of differences to a row's maximum, added up."""
    x, most = _input(0, rows, columns), _input(1, rows)
    i, j = it(0, rows), it(1, columns)
    below = Sum((Read(x, (i, j)), Prod((Num(-1.0), Read(most, (i,))))))
    return Scope((rows,), (columns,), Call("exp", (below,)))


def _normalized(rows: int, columns: int) -> Scope:
    """Layer norm's last step: (x - mean) * scale of the row * weight + bias."""
    x, mean, scale = _input(0, rows, columns), _input(1, rows), _input(2, rows)
    weight, bias = _input(3, columns), _input(4, columns)
    i, j = it(0, rows), it(1, columns)
    centered = Sum((Read(x, (i, j)), Prod((Num(-1.0), Read(mean, (i,))))))
    scaled = Prod((centered, Read(scale, (i,)), Read(weight, (j,))))
    return Scope((rows, columns), (), Sum((scaled, Read(bias, (j,)))))


def _moved(shape: tuple[int, ...], axes: tuple[int, ...]) -> Scope:
    index = tuple(it(axes.index(axis), shape[axis]) for axis in range(len(shape)))
    return Scope(tuple(shape[axis] for axis in axes), (), Read(_input(0, *shape), index))


def _sum(rows: int, columns: int, along: bool) -> Scope:
    x = _input(0, rows, columns)
    if along:
        return Scope((rows,), (columns,), Read(x, (it(0, rows), it(1, columns))))
    return Scope((columns,), (rows,), Read(x, (it(1, rows), it(0, columns))))


KERNELS: Final[Mapping[str, Callable[[], Scope]]] = {
    "matmul_256": lambda: _product(256, 256, 256),
    "matmul_196": lambda: _product(196, 196, 512),
    "batched_64": lambda: _product(64, 64, 64, 16),
    "tall": lambda: _product(1024, 32, 1024),
    "offset_reduce_56": lambda: _offset_reduce(56, 64),
    "offset_reduce_14": lambda: _offset_reduce(14, 512),
    "softmax_sum": lambda: _softmax_sum(1024, 512),
    "layer_norm_last": lambda: _normalized(512, 768),
    "row_mean": lambda: _sum(512, 768, along=True),
    "column_sum": lambda: _sum(512, 768, along=False),
    "transpose": lambda: _moved((1024, 1024), (1, 0)),
    "permute_0213": lambda: _moved((8, 128, 12, 64), (0, 2, 1, 3)),
    "permute_3210": lambda: _moved((32, 56, 28, 16), (3, 2, 1, 0)),
}


def kernel_of(scope: Scope) -> Kernel:
    """The kernel that is offered first, contiguous in and out."""
    inputs = tuple(contiguous(len(arg.shape)) for arg in args_of(scope))
    output = contiguous(len(scope.shape))
    constants = (False,) * len(inputs)
    offered = [
        kernel
        for kernel in TvmBackend().kernels(scope, constants)
        if (kernel.inputs, kernel.output) == (inputs, output)
    ]
    return offered[0]


@dataclass(frozen=True)
class Run:
    """One search.

    Attributes:
        best_so_far_s: after each trial.
        default_s, found_s: of the offered schedule that was the best, and of what was found, timed
            side by side.
        outside_s: of the search's seconds those not spent in measuring.
    """

    kernel: str
    tuner: str
    seed: int
    stop: str
    best_so_far_s: list[float]
    elapsed_s: list[float]
    offered: int
    default: str
    found: str
    default_s: float
    found_s: float
    outside_s: float
    flops: int


def measured(
    name: str, tuner: str, seed: int, budget: Budget, threads: int, home: Path, far: bool
) -> Run:
    """One search with what it has measured in a cache directory of its own."""
    os.environ["EQSYNTH_CACHE"] = str(home / f"{name}-{tuner}-{seed}-{threads}")
    torch.set_num_threads(threads)
    target = measure_cpu_target(home / "profile.sqlite")
    profile = Profile(target.key(), path=home / f"{name}-{tuner}-{seed}-{threads}.sqlite")
    kernel = kernel_of(KERNELS[name]())
    with borrowed(threads=threads) as worker:
        found = tune_kernel(kernel, worker, profile, budget, TUNERS[tuner], threads, seed, far)
    profile.close()
    search, offered = found.found, len(space_for(kernel).starts)
    return Run(
        name, tuner, seed, search.stop, search.best_so_far(), [t.elapsed_s for t in search.trials],
        offered, str(found.default.schedule), str(found.kernel.schedule), _seconds(found.before),
        _seconds(found.after), search.seconds - search.measuring_s, flops(kernel.term),
    )  # fmt: skip


def _seconds(timing: Timing | None) -> float:
    return math.nan if timing is None else timing.median_s


def shown(run: Run) -> str:
    """A line: the default, then the best after so many trials, in milliseconds."""
    least = [
        f"{n}: {run.best_so_far_s[n - 1] * 1e3:.4f}" for n in SHOWN if n <= len(run.best_so_far_s)
    ]
    rate = f" {run.flops / run.found_s / 1e9:.1f} GFLOP/s" if run.flops > 1e6 else ""
    return (
        f"{run.kernel:17s} {run.tuner:12s} {run.seed}  {run.default_s * 1e3:.4f} -> "
        f"{run.found_s * 1e3:.4f} ms, {run.default_s / run.found_s:.2f} times{rate}: "
        f"{run.default} -> {run.found}\n{'':31s}best after {', '.join(least)}"
        f" ({len(run.best_so_far_s)} trials, {run.stop}; {run.outside_s:.1f} s not measuring)"
    )


def summary(runs: Sequence[Run]) -> str:
    """A row for each kernel and tuner: mean and deviation over seeds of the best that was found."""
    lines = [f"{'kernel':17s} {'tuner':12s} {'best ms':>9s} {'std':>8s} {'trials to 2 %':>14s}"]
    for name in dict.fromkeys(run.kernel for run in runs):
        own = [run for run in runs if run.kernel == name]
        least = min(run.best_so_far_s[-1] for run in own)
        for tuner in dict.fromkeys(run.tuner for run in own):
            group = [run for run in own if run.tuner == tuner]
            bests = [run.best_so_far_s[-1] * 1e3 for run in group]
            near = [
                next((n + 1 for n, s in enumerate(run.best_so_far_s) if s <= 1.02 * least), None)
                for run in group
            ]
            lines.append(
                f"{name:17s} {tuner:12s} {statistics.fmean(bests):9.4f} "
                f"{statistics.pstdev(bests):8.4f} {' '.join(str(n or '-') for n in near):>14s}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", nargs="*", choices=sorted(KERNELS), default=["matmul_256"])
    parser.add_argument("--tuner", nargs="*", choices=sorted(TUNERS), default=list(TUNERS))
    parser.add_argument("--trials", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--far", action="store_true", help="time with a cold cache")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    home = Path(os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth"))
    home, runs = home / "bench-tune", list[Run]()
    home.mkdir(parents=True, exist_ok=True)
    budget, begin = Budget(options.trials, options.seconds), time.monotonic()
    for seed in range(options.seeds):
        for name in options.kernel:
            for tuner in options.tuner:
                one = measured(name, tuner, seed, budget, options.threads, home, options.far)
                runs.append(one)
                print(shown(one), flush=True)
                if options.json:
                    options.json.write_text(
                        json.dumps({**about(), "runs": [asdict(run) for run in runs]}, indent=2)
                    )
    print(f"\n{summary(runs)}\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
