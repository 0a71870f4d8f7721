"""The cost of a kernel: measured where it is, an optimistic estimate where it isn't.

Estimate: the roofline of the target (bytes over the bandwidth of the level that they fit in, FLOPs
over the peak, the call) times how near to it the family was seen to come, taken optimistically, so
that a kernel that might be good gets measured. Not here: what is measured when (``search.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsynth.extract.candidates import VIEW_S
from eqsynth.extract.kernel import Kernel, Layout, strides
from eqsynth.extract.profile import COMPUTE, MeasurementKey, Profile, Ratio, family_of
from eqsynth.extract.target import Target
from eqsynth.extract.timing import OVERDUE, Timing
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

SIMILAR, MANY = 2.0, 9
"""Of a kernel bound by memory those tell most whose rooflines are within this factor of its own:
small ones take their calls and loops, large ones their bytes. From so many of them on, no others
are asked. (LSTM: 263 kernels timed where the whole family's ratios had 490 timed, for a plan that
is as good.)"""

SIBLING = 0.93
"""A kernel is estimated to take at least this part of the best time of its siblings: those that
differ from it in schedule and layouts only. Of 1,999 kernels of an EfficientNet that were timed
after a sibling a tenth took less than 0.93 of the best time before, a hundredth less than 0.7.
Estimated by their families alone they looked several times as fast, and made two thirds of all
kernels that were timed."""

DOUBT = 4.0
"""Times the roofline that a kernel is taken to need where nothing is known of its family, and no
time is left to measure it."""

# How constant and other arguments are named in a key, by ``far``. Beyond the third cache other
# arguments count too: results are written to memory, whatever a kernel reads.
_LETTERS = (("c", "v"), ("f", "v"), ("m", "w"))


def measurement_key(kernel: Kernel, far: int = 0) -> MeasurementKey:
    """What the kernel's time is filed under.

    Args:
        far: the caches that its weights were out of (``Target.far``).
    """
    tensors: list[Tensor] = [*args_of(kernel.term), kernel.term]
    layouts: list[Layout] = [*kernel.inputs, kernel.output]
    if not args_of(kernel.term):
        tensors, layouts = [kernel.term, kernel.term], [kernel.output, kernel.output]
    weight, other = _LETTERS[min(far, 2)]
    constants = "".join(weight if constant else other for constant in kernel.constants)
    return MeasurementKey(
        implementation=kernel.implementation,
        shapes=tuple(t.shape for t in tensors),
        strides=tuple(strides(t.shape, at) for t, at in zip(tensors, layouts, strict=True)),
        dtypes=tuple(t.dtype for t in tensors),
        term=f"{constants} {render(kernel.term)}",
        schedule=str(kernel.schedule),
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
    return kernel.implementation != "torch.view" and not kernel.opaque


_Siblings = tuple[Tensor, tuple[bool, ...], str]


def _siblings(kernel: Kernel) -> _Siblings:
    """What kernels have in common that differ in schedule and layouts only."""
    return kernel.term, kernel.constants, kernel.backend


@dataclass(frozen=True)
class _Facts:
    """What an estimate needs of a kernel, whatever is measured of others."""

    roofline_s: float
    family: str
    elements: int
    siblings: _Siblings


class CostModel:
    """Costs of kernels on one target, from a profile.

    Attributes:
        objective: ``time``, or ``flops`` for the FLOPs with time as a tie-breaker.
        far: the caches that kernels don't find their weights in (``Target.far``).
        overdue: kernels that were not ready in their time.
    """

    def __init__(
        self, target: Target, profile: Profile, objective: str = "time", far: int = 0
    ) -> None:
        self.target, self.profile, self.objective, self.far = target, profile, objective, far
        self._measured: dict[Kernel, float | None] = {}
        self.overdue: set[Kernel] = set()
        self._facts: dict[Kernel, _Facts] = {}
        # By family.
        self._estimates: dict[str, dict[Kernel, float]] = {}
        self._ratios: dict[str, list[Ratio]] = {}
        self._siblings: dict[_Siblings, float] = {}

    def load(self, kernels: Sequence[Kernel]) -> None:
        """Takes from the profile what is known of these kernels."""
        keys = {k: measurement_key(k, self.far) for k in dict.fromkeys(kernels)}
        known = self.profile.lookup_many(keys.values())
        for kernel, key in keys.items():
            if key in known:
                self._learn(kernel, _cost_s(known[key].timing))
        failed = self.profile.failed(keys.values())
        for kernel, key in keys.items():
            if key in failed and key not in known:
                self._learn(kernel, None)

    def measured(self, kernel: Kernel) -> bool:
        return kernel in self._measured or not _timeable(kernel)

    def record(self, times: Mapping[Kernel, Timing | None]) -> None:
        """Files what was measured; a kernel that failed isn't chosen again, and in other
        runs not tried again for a while. One that was `OVERDUE` isn't chosen in this run."""
        took = {k: t for k, t in times.items() if t is not None and t is not OVERDUE}
        self.overdue.update(k for k, t in times.items() if t is OVERDUE)
        for kernel in times:
            self._learn(kernel, _cost_s(took[kernel]) if kernel in took else None)
        self.profile.record_many(
            {measurement_key(k, self.far): (t, self.roofline_s(k)) for k, t in took.items()}
        )
        self.profile.record_failures(
            measurement_key(k, self.far) for k, t in times.items() if t is None
        )
        for family in {self._facts_of(kernel).family for kernel in times}:
            self._ratios.pop(family, None)
            self._estimates.pop(family, None)

    def _learn(self, kernel: Kernel, cost_s: float | None) -> None:
        self._measured[kernel] = cost_s
        if cost_s is not None:
            siblings = _siblings(kernel)
            self._siblings[siblings] = min(cost_s, self._siblings.get(siblings, cost_s))

    def relied_on(self) -> dict[str, float]:
        """The times that costs follow from, by the names of their rows in the profile."""
        timed = [kernel for kernel, cost_s in self._measured.items() if cost_s is not None]
        names = [self.profile.row_of(measurement_key(k, self.far)) for k in timed]
        return self.profile.lower_quartiles(names)

    def family(self, kernel: Kernel) -> str:
        """Of kernels that share their ratio to the roofline."""
        return self._facts_of(kernel).family

    def roofline_s(self, kernel: Kernel) -> float:
        """The least time that the target's peaks allow."""
        return self._facts_of(kernel).roofline_s

    def _facts_of(self, kernel: Kernel) -> _Facts:
        facts = self._facts.get(kernel)
        if facts is None:
            family = family_of(kernel.implementation, _kind(kernel.term))
            elements = max(_elements(kernel.term), 1)
            facts = _Facts(self._roofline_s(kernel), family, elements, _siblings(kernel))
            self._facts[kernel] = facts
        return facts

    def _roofline_s(self, kernel: Kernel) -> float:
        read = sum(arg.type.nbytes for arg in args_of(kernel.term))
        generated = kernel.generated
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
        facts = self._facts_of(kernel)
        estimates = self._estimates.setdefault(facts.family, {})
        estimate_s = estimates.get(kernel)
        if estimate_s is None:
            estimate_s = estimates[kernel] = self._estimate_s(kernel)
        return max(estimate_s, SIBLING * self._siblings.get(facts.siblings, 0.0))

    def timed_only(self, kernel: Kernel) -> float:
        """The cost of a kernel that was measured; any other is out."""
        return self(kernel) if self.measured(kernel) else float("inf")

    def cautious(self, kernel: Kernel) -> float:
        """The cost where nothing more can be measured: an estimate must not beat a time because it
        is optimistic. A generated kernel without a time is out: its building may fail, too."""
        if self.objective == "flops" or self.measured(kernel):
            return self(kernel)
        if kernel.generated:
            return float("inf")
        known = self._known_ratios(kernel)
        typical = known[len(known) // 2] if len(known) >= MIN_RATIOS else DOUBT
        return self.roofline_s(kernel) * typical

    def _estimate_s(self, kernel: Kernel) -> float:
        """The roofline times the family's ratio to it.

        Where memory is the bound: a low quantile (`OPTIMISM`). Where arithmetic is: the least of
        those that are `ALIKE`, since such kernels are few and decide the time of the program.
        """
        least_s, known = self.roofline_s(kernel), self._known_ratios(kernel)
        if len(known) < MIN_RATIOS:
            return least_s
        compute = self._facts_of(kernel).family.endswith(COMPUTE)
        return least_s * known[0 if compute else int(OPTIMISM * (len(known) - 1))]

    def _known_ratios(self, kernel: Kernel) -> list[float]:
        """How far from the roofline kernels of the family were that tell of this one; in order."""
        facts = self._facts_of(kernel)
        ratios = self._ratios.get(facts.family)
        if ratios is None:
            found = self.profile.family_ratios(facts.family)
            ratios = self._ratios[facts.family] = sorted(found, key=lambda ratio: ratio.value)
        least_s = facts.roofline_s
        if not facts.family.endswith(COMPUTE):
            low_s, high_s = least_s / SIMILAR, least_s * SIMILAR
            similar = [r.value for r in ratios if low_s <= r.roofline_s <= high_s]
            return similar if len(similar) >= MANY else [ratio.value for ratio in ratios]
        return [
            ratio.value
            for ratio in ratios
            if ratio.roofline_s >= ALIKE * least_s
            and ratio.roofline_s * facts.elements >= ALIKE * least_s * ratio.elements
        ]

    def __call__(self, kernel: Kernel) -> float:
        seconds = self.time_s(kernel)
        if self.objective == "time":
            return seconds
        return flops(kernel.term) + min(seconds, 1e3) * 1e-3 if seconds < float("inf") else seconds
