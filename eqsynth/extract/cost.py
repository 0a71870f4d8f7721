"""The cost of a kernel: measured where it is, an optimistic estimate where it isn't.

Estimate: the roofline of the target (bytes over the bandwidth of the level that they fit in, FLOPs
over the peak, the call) times how near to it the family was seen to come, taken optimistically, so
that a kernel that might be good gets measured. Search and measuring together are :func:`extract`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.kernel import Backend, Kernel, Layout, strides
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import COMPUTE, MeasurementKey, Profile, Ratio, family_of
from eqsynth.extract.select import VIEW_S, Selection, candidates
from eqsynth.extract.target import Target
from eqsynth.extract.timing import Timing
from eqsynth.ir.printing import render
from eqsynth.ir.tensor import Op, Tensor, args_of
from eqsynth.ir.work import flops

COMPUTE_BOUND = 4
"""FLOPs per element moved from which a term counts as bound by arithmetic [EinNet §5]."""

OPTIMISM = 0.1
"""Quantile of a family's measured ratios that estimates what is not measured: a kernel that might
be good must look good enough to be timed."""

ALIKE = 0.25
"""A kernel bound by arithmetic tells of others if its work, and its work an element, are at least
this many times theirs: larger ones and those that use more again come nearer to the peak."""

MIN_RATIOS = 3
"""Measured ratios from which a family's are believed; fewer say nothing about the others."""

Measure = Callable[[Sequence[Kernel]], Sequence[Timing | None]]
"""Builds and times kernels; None for one that can't be built or run."""


def measurement_key(kernel: Kernel) -> MeasurementKey:
    """What the kernel's time is filed under."""
    tensors: list[Tensor] = [*args_of(kernel.term), kernel.term]
    layouts: list[Layout] = [*kernel.inputs, kernel.output]
    if not args_of(kernel.term):
        tensors, layouts = [kernel.term, kernel.term], [kernel.output, kernel.output]
    constants = "".join("c" if constant else "v" for constant in kernel.constants)
    return MeasurementKey(
        implementation=kernel.implementation,
        shapes=tuple(t.shape for t in tensors),
        strides=tuple(strides(t.shape, at) for t, at in zip(tensors, layouts, strict=True)),
        dtypes=tuple(t.dtype for t in tensors),
        term=f"{constants} {render(kernel.term)}",
        schedule=kernel.schedule,
        kind=_kind(kernel.term),
    )


def _kind(term: Tensor) -> str:
    """The operator, and what bounds it: a matrix product with one row is bound by memory, and says
    nothing about one with many."""
    bound = COMPUTE if flops(term) >= COMPUTE_BOUND * _elements(term) else "/memory"
    return f"{term.name if isinstance(term, Op) else 'Scope'}{bound}"


def _elements(term: Tensor) -> int:
    return sum(arg.type.size for arg in args_of(term)) + term.type.size


def _cost_s(timing: Timing) -> float:
    """What a kernel is taken to cost: the lower quartile of its samples. Whatever else runs on the
    machine makes a call slower and never faster, so the median would compare kernels by luck."""
    return timing.q1_s


def _timeable(kernel: Kernel) -> bool:
    """Views do nothing; an opaque operator is run as it is, whatever it takes."""
    opaque = isinstance(kernel.term, Op) and kernel.term.name == "Opaque"
    return kernel.implementation != "torch.view" and not opaque


class CostModel:
    """Costs of kernels on one target, from a profile.

    Attributes:
        objective: ``time``, or ``flops`` for the FLOPs with time as a tie-breaker.
    """

    def __init__(self, target: Target, profile: Profile, objective: str = "time") -> None:
        self.target, self.profile, self.objective = target, profile, objective
        self._measured: dict[Kernel, float | None] = {}
        self._estimates: dict[Kernel, float] = {}
        self._ratios: dict[str, list[Ratio]] = {}

    def load(self, kernels: Sequence[Kernel]) -> None:
        """Takes from the profile what is known of these kernels."""
        keys = {kernel: measurement_key(kernel) for kernel in dict.fromkeys(kernels)}
        known = self.profile.lookup_many(keys.values())
        for kernel, key in keys.items():
            if key in known:
                self._measured[kernel] = _cost_s(known[key].timing)

    def measured(self, kernel: Kernel) -> bool:
        return kernel in self._measured or not _timeable(kernel)

    def record(self, times: Mapping[Kernel, Timing | None]) -> None:
        """Files what was measured; a kernel that failed is never chosen again in this run."""
        self._measured.update({k: _cost_s(t) if t else None for k, t in times.items()})
        self.profile.record_many(
            {measurement_key(k): (t, self.roofline_s(k)) for k, t in times.items() if t}
        )
        self._ratios.clear()
        self._estimates.clear()

    def roofline_s(self, kernel: Kernel) -> float:
        """The least time that the target's peaks allow."""
        read = sum(arg.type.nbytes for arg in args_of(kernel.term))
        generated = kernel.backend == "tvm"
        dispatch = self.target.kernel_dispatch_s if generated else self.target.dispatch_s
        return self.target.roofline_s(
            read, kernel.term.type.nbytes, flops(kernel.term), kernel.term.dtype, dispatch
        )

    def time_s(self, kernel: Kernel) -> float:
        """Seconds of one run; infinite if the kernel doesn't work."""
        if kernel.implementation == "torch.view":
            return VIEW_S
        if kernel in self._measured:
            seconds = self._measured[kernel]
            return float("inf") if seconds is None else seconds
        if kernel not in self._estimates:
            self._estimates[kernel] = self._estimate_s(kernel)
        return self._estimates[kernel]

    def _estimate_s(self, kernel: Kernel) -> float:
        """The roofline times the family's ratio to it.

        Where memory is the bound: a low quantile (`OPTIMISM`). Where arithmetic is: the least of
        those that are `ALIKE`, since such kernels are few and decide the time of the program.
        """
        family = family_of(kernel.implementation, _kind(kernel.term))
        if family not in self._ratios:
            self._ratios[family] = self.profile.family_ratios(family)
        least_s = self.roofline_s(kernel)
        elements = max(_elements(kernel.term), 1)
        compute = family.endswith(COMPUTE)
        known = sorted(
            ratio.value
            for ratio in self._ratios[family]
            if not compute
            or ratio.roofline_s >= ALIKE * least_s
            and ratio.roofline_s * elements >= ALIKE * least_s * ratio.elements
        )
        if len(known) < MIN_RATIOS:
            return least_s
        return least_s * known[0 if compute else int(OPTIMISM * (len(known) - 1))]

    def __call__(self, kernel: Kernel) -> float:
        seconds = self.time_s(kernel)
        if self.objective == "time":
            return seconds
        return flops(kernel.term) + min(seconds, 1e3) * 1e-3 if seconds < float("inf") else seconds


@dataclass(frozen=True)
class Extraction:
    """The plan, and how it was found: rounds, kernels timed, whether every kernel of the plan is
    measured, kernels considered."""

    plan: Plan
    rounds: int
    timed: int
    complete: bool
    considered: int


def _unknown(plan: Plan, costs: CostModel) -> list[Kernel]:
    """The plan's kernels that have no time yet, in the profile neither."""
    costs.load([k for k in plan.kernels() if not costs.measured(k)])
    return [k for k in plan.kernels() if not costs.measured(k)]


def extract(
    graph: EGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    measure: Measure,
    deadline_s: float,
) -> Extraction:
    """Extract, time the winner's unmeasured kernels, extract again, until nothing is new.

    The best plan whose kernels are all measured is kept; a deadline ends the search with it.

    Raises:
        ExtractionError: an output can't be run by any backend.
    """
    end = time.monotonic() + deadline_s
    found = candidates(graph, backends)
    kernels = [c.kernel for options in found.values() for c in options]
    costs.load(kernels)
    selection = Selection(graph, found)
    incumbent: Plan | None = None
    incumbent_s = float("inf")
    rounds = timed = 0
    while True:
        rounds += 1
        # What greedy choices alone take is timed first: that costs less than the best plan.
        plan = selection.one_by_one(costs)
        unknown = _unknown(plan, costs)
        if not unknown or costs.objective == "flops":
            plan = selection.best(costs)
            unknown = _unknown(plan, costs)
        if not unknown or costs.objective == "flops":
            cost_s = sum(costs(step.kernel) for step in plan.steps)
            if cost_s <= incumbent_s:
                incumbent, incumbent_s = plan, cost_s
            return Extraction(incumbent or plan, rounds, timed, not unknown, len(set(kernels)))
        if time.monotonic() > end:
            break
        times = measure(unknown)
        costs.record(dict(zip(unknown, times, strict=True)))
        timed += len(unknown)
        if all(t is not None for t in times):
            cost_s = sum(costs(step.kernel) for step in plan.steps)
            if cost_s < incumbent_s:
                incumbent, incumbent_s = plan, cost_s
    if incumbent is None:
        raise ExtractionError(
            what="the deadline passed before any program was measured",
            got=f"{timed} kernels timed in {rounds} rounds",
            hint="give more time; the original program is used",
        )
    return Extraction(incumbent, rounds, timed, True, len(set(kernels)))
