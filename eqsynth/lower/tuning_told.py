"""The report of tuning: a kernel's part of the measured peak, and the points around its best one.

Example: ``str(rate)`` is ``59.7 GFLOP/s, 61% of the peak``. Not here: tuning itself
(``kernel_tuning.py``, ``plan_tuning.py``).
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
    """How fast a kernel is, measured in what bounds it.

    Attributes:
        value: 10^9 operations or bytes per second.
        unit: ``GFLOP/s``, or ``GB/s`` if memory bounds the kernel.
        share: the part of the target's measured peak.
    """

    value: float
    unit: str
    share: float

    def __str__(self) -> str:
        return f"{self.value:.1f} {self.unit}, {self.share:.0%} of the peak"


def rate_of(kernel: Kernel, time_s: float, target: Target) -> Rate:
    """The rate of a kernel that takes this long.

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
    """The outcome of tuning one kernel, for a report.

    Attributes:
        what: the kernel's types.
        default, found: the fastest schedule that is offered without a search, and the fastest one.
        default_s, found_s: their seconds, timed side by side; None if they don't run.
        trials: the number of schedules that were tried, earlier runs included.
        stop: why the search ended.
        seconds: how long the search took.
        outside_s: the part of these seconds that wasn't spent in measuring.
        around: for each parameter, the values next to the best point's, and their time divided by
            the best time: infinite if the schedule fails, None if it wasn't measured.
        used: whether the program has the schedule that was found; None if no program was made
            (``eqsynth tune profile``).
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
    used: bool | None = None

    def __str__(self) -> str:
        if self.default_s is None or self.found_s is None:
            return f"{self.what}: nothing runs ({self.trials} tried)"
        text = f"{self.what}: {self.default} {self.default_s * 1e3:.4f} ms"
        if self.found != self.default:
            text += f" -> {self.found} {self.found_s * 1e3:.4f} ms"
            text += " (not faster in the program)" if self.used is False else ""
        return f"{text}, {self.rate} ({self.trials} tried, {self.stop})"

    def lines(self) -> list[str]:
        """One line for the kernel, then one for each parameter with the times of its neighbouring
        values."""
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


def told(one: TunedKernel, target: Target, used: bool | None = None) -> Tuning:
    """The report of a kernel that was tuned; ``used`` says whether the program has the schedule
    that was found, None that no program was made."""
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
        used,
    )  # fmt: skip


def best_so_far(kernel: Kernel, search: Search[Schedule], target: Target) -> str:
    """The best rate so far and the number of schedules tried, for a progress bar."""
    best = max(search.scores.values(), default=0.0)
    tried = f"{len(search.trials)} tried"
    return f"{rate_of(kernel, 1 / best, target)}, {tried}" if best else tried


def what_of(kernel: Kernel) -> str:
    """The types of a kernel's arguments and result.

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
    """A parameter's value as text."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, type) and issubclass(value, Schedule):
        return value.__name__.lower()
    return str(value)
