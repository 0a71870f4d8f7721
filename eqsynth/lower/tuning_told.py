"""What tuning tells: rates, their share of the measured peak, and the space around the best point.

Not here: tuning (``kernel_tuning.py``, ``plan_tuning.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Schedule
from eqsynth.extract.target import Target
from eqsynth.ir.tensor import args_of
from eqsynth.ir.work import flops
from eqsynth.lower.kernel_tuning import TunedKernel, space_for
from eqsynth.tuning.around import around
from eqsynth.tuning.search import Search


@dataclass(frozen=True)
class Rate:
    """How fast a kernel is, by what bounds it.

    Attributes:
        value: thousand millions a second.
        unit: ``GFLOP/s``, or ``GB/s`` where memory bounds it.
        share: of the target's measured peak.
    """

    value: float
    unit: str
    share: float

    def __str__(self) -> str:
        return f"{self.value:.1f} {self.unit}, {self.share:.0%} of the peak"


def rate_of(kernel: Kernel, time_s: float, target: Target) -> Rate:
    """
    >>> str(Rate(59.71, "GFLOP/s", 0.614))
    '59.7 GFLOP/s, 61% of the peak'
    """
    moved = sum(tensor.type.nbytes for tensor in (*args_of(kernel.term), kernel.term))
    done = flops(kernel.term)
    bandwidth = target.bandwidth_bytes_per_s(moved)
    peak = target.peak_flops_per_s(kernel.term.dtype)
    if done / peak >= moved / bandwidth:
        return Rate(done / time_s / 1e9, "GFLOP/s", done / time_s / peak)
    return Rate(moved / time_s / 1e9, "GB/s", moved / time_s / bandwidth)


@dataclass(frozen=True)
class Tuning:
    """What tuning one kernel has come to.

    Attributes:
        what: the kernel's type and layouts.
        default, found: the fastest schedule that is offered without a search, and the fastest.
        default_s, found_s: of these, side by side; None if they don't run.
        trials: schedules that were tried, those of earlier runs with them.
        stop: why the search ended.
        outside_s: of its seconds those not spent in measuring.
        around: by parameter the values next to the best point's, and times its time that they take;
            infinite where it fails, None where it wasn't measured.
    """

    what: str
    default: str
    found: str
    default_s: float | None
    found_s: float | None
    rate: Rate | None
    trials: int
    stop: str
    seconds: float
    outside_s: float
    around: Mapping[str, Mapping[str, float | None]]

    def __str__(self) -> str:
        if self.default_s is None or self.found_s is None:
            return f"{self.what}: nothing runs ({self.trials} tried)"
        text = f"{self.what}: {self.default} {self.default_s * 1e3:.4f} ms"
        if self.found != self.default:
            text += f" -> {self.found} {self.found_s * 1e3:.4f} ms"
        return f"{text}, {self.rate} ({self.trials} tried, {self.stop})"

    def lines(self) -> list[str]:
        """The kernel, then a line for each parameter: its neighbours' times over the best's."""
        lines = [str(self)]
        for name, values in self.around.items():
            tried = {value: ratio for value, ratio in values.items() if ratio is not None}
            told = [f"{value} {_ratio(ratio)}" for value, ratio in tried.items()]
            if len(tried) < len(values):
                told.append(f"{len(values) - len(tried)} not tried")
            if told:
                lines.append(f"  beside it, {name}: {', '.join(told)}")
        return lines


def _ratio(ratio: float) -> str:
    return "fails" if math.isinf(ratio) else f"{ratio:.2f}"


def told(one: TunedKernel, target: Target) -> Tuning:
    """What is told of a kernel that was tuned."""
    times = {trial.made: trial.time_s for trial in one.found.trials}
    best, near = one.found.best, dict[str, dict[Any, float | None]]()
    if best is not None:
        near = around(space_for(one.kernel), best.made, times)
    search, after = one.found, one.after
    return Tuning(
        what_of(one.kernel), str(one.default.schedule), str(one.kernel.schedule),
        None if one.before is None else one.before.median_s,
        None if after is None else after.median_s,
        None if after is None else rate_of(one.kernel, after.median_s, target),
        len(search.trials), search.stop, search.seconds, search.seconds - search.measuring_s,
        {n: {_value(v): ratio for v, ratio in values.items()} for n, values in near.items()},
    )  # fmt: skip


def best_so_far(kernel: Kernel, search: Search[Schedule], target: Target) -> str:
    """For a progress bar: the best so far, and how many were tried."""
    best = max(search.scores.values(), default=0.0)
    tried = f"{len(search.trials)} tried"
    return f"{rate_of(kernel, 1 / best, target)}, {tried}" if best else tried


def what_of(kernel: Kernel) -> str:
    """
    >>> from eqsynth.ir.tensor import Input, Scope
    >>> from eqsynth.ir.types import TensorType
    >>> from eqsynth.ir.scalar import Read
    >>> from eqsynth.ir.index import Index
    >>> read = Read(Input("0", TensorType((4, 3), "float32")), (Index.iterator(0, 4),) * 2)
    >>> what_of(Kernel(Scope((4,), (), read), (False,), "tvm", ((0, 1),), (0,)))
    'float32[4, 3] -> float32[4]'
    """
    return f"{', '.join(str(arg.type) for arg in args_of(kernel.term))} -> {kernel.term.type}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, type) and issubclass(value, Schedule):
        return value.__name__.lower()
    return str(value)
