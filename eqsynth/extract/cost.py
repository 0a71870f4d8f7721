"""The cost model: the measured time of a kernel, or an optimistic estimate if it isn't measured.

    estimate = roofline of the target * a low measured ratio of time to roofline of the family
    roofline = max(bytes / bandwidth, FLOPs / peak) + the call

The estimate is optimistic so that a kernel which might be fast gets measured. Not here: which
kernels are measured when (``search.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.extract.candidates import VIEW_S
from eqsynth.extract.kernel import Kernel, Layout, strides
from eqsynth.extract.profile import COMPUTE, MeasurementKey, Profile, Ratio, family_of
from eqsynth.extract.schedule import Schedule
from eqsynth.extract.target import Target
from eqsynth.extract.timing import OVERDUE, Timing
from eqsynth.ir.printing import render
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of
from eqsynth.ir.work import bytes_unfolded, flops, parts

COMPUTE_BOUND = 4
"""A term with at least this many FLOPs per element moved counts as bound by arithmetic
[EinNet §5]."""

OPTIMISM = 0.1
"""Quantile of a family's measured ratios by which unmeasured kernels are estimated: it is low, so
that a kernel which might be fast looks fast enough to be timed."""

ALIKE = 0.25
"""For kernels bound by arithmetic: the ratio of a measured kernel M is used to estimate a kernel K
only if M's roofline time is at least ALIKE times K's, and so is M's roofline time per element
moved. Example: the ratio of a product of 1 ms is used for a product of up to 4 ms, but not for one
of 5 ms. The reason: the larger a kernel is, and the more often it uses each element, the nearer it
comes to the peak, so the ratio of a much smaller kernel would be too pessimistic."""

MIN_RATIOS = 3
"""The fewest measured ratios by which a family's kernels are estimated. With fewer, the roofline
alone is the estimate."""

SIMILAR, MANY = 2.0, 9
"""A kernel bound by memory is estimated by the ratios of those kernels of its family whose
rooflines are within the factor SIMILAR of its own, if there are at least MANY of them, else by
these and all larger ones. The reason: calls and loops take most of the time of small kernels, bytes
that of large ones, so the ratios of small kernels are too pessimistic for large ones. (LSTM: 263
kernels were timed, and 490 with the ratios of the whole family, for a plan that is as good.
ResNeXt-50: 87 kernels of up to 3 MB took 3 times their roofline in the second cache, so one of 6 MB
was estimated at 680 us, where its roofline was 180. Bias and activation of the first layers were
never fused, since torch took 150 us for each.)"""

SIBLING = 0.93
"""An unmeasured kernel is estimated to take at least this part of the best time of its siblings,
the kernels that differ from it in schedule and layouts only. Of 1,999 kernels of an EfficientNet
that were timed after a sibling, a tenth took less than 0.93 of the best time before, and a
hundredth less than 0.7. Estimated by their families alone, such kernels looked several times as
fast, and made up two thirds of all kernels that were timed."""

DOUBT = 4.0
"""An unmeasured kernel is estimated to take this many times its roofline if its family has too few
measured ratios and no time is left to measure it."""

CALLS = 15
"""A scope that torch computes takes at least this many calls of an operator for each part of its
body: Python goes through the body in every run, and makes views and tensors of numbers. (The least
of 127 scopes of four models; half of them took over 31.) By the bytes alone such a scope looked 100
times as fast as it is, and a search without time to measure chose it: BERT of two layers under a
limit of 12 s took 4.7 ms, its original 1.9."""

# Letters for constant and other arguments in a key, by ``far``. If weights are beyond the third
# cache, the other arguments count too, since results are written to memory whatever a kernel reads.
_LETTERS = (("c", "v"), ("f", "v"), ("m", "w"))


def measurement_key(kernel: Kernel, far: int = 0) -> MeasurementKey:
    """Return the key under which the profile stores the kernel's time.

    Args:
        far: the number of caches that don't hold its weights (``Target.far``).
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
        term=f"{constants} {_text(kernel.term)}",
        schedule=str(kernel.schedule),
        kind=_kind(kernel),
    )


@lru_cache(maxsize=1 << 13)
def _text(term: Tensor) -> str:
    """The term as text; a term has several kernels, each of which has a key."""
    return render(term)


def _kind(kernel: Kernel) -> str:
    """The kernels whose ratios may be like this one's: a scope's product by blocks of 8 by 32 is
    "Scope by 4/compute", one by blocks of 2 by 8 "Scope by 1/compute".

    The parts are the operator, how many times a value in a register is used (`Schedule.reuse`,
    rounded down to a power of two), and whether arithmetic or memory bounds the term. A matrix
    product with one row is bound by memory, so its time says nothing about one with many rows. And
    four band products of a ResNet-18 by blocks of 2 by 8 took 26 to 31 times their roofline. By
    them, the bands of a Longformer, which take twice theirs by blocks of 8 by 32, were estimated at
    26 times, and never timed.
    """
    term, schedule = kernel.term, kernel.schedule
    bound = COMPUTE if flops(term) >= COMPUTE_BOUND * _elements(term) else "/memory"
    reuse = schedule.reuse if isinstance(schedule, Schedule) else 0.0
    used = f" by {1 << int(math.log2(reuse))}" if reuse >= 1 else ""
    return f"{term.name if isinstance(term, Op) else 'Scope'}{used}{bound}"


def _elements(term: Tensor) -> int:
    return sum(arg.type.size for arg in args_of(term)) + term.type.size


def _cost_s(timing: Timing) -> float:
    """The lower quartile of the samples. Other work on the machine makes a call slower and never
    faster, so the median would compare kernels by luck."""
    return timing.q1_s


def _timeable(kernel: Kernel) -> bool:
    """Whether a kernel is timed. Views do nothing, and opaque operators have no alternative."""
    return kernel.implementation != "torch.view" and not kernel.opaque


_Siblings = tuple[Tensor, tuple[bool, ...], str]


def _siblings(kernel: Kernel) -> _Siblings:
    """The parts of a kernel that are the same for kernels that differ in schedule and
    layouts only."""
    return kernel.term, kernel.constants, kernel.backend


@dataclass(frozen=True)
class _Facts:
    """The parts of an estimate that don't depend on measured times.

    Attributes:
        outline: kernels with different outlines have different code.
    """

    roofline_s: float
    family: str
    elements: int
    siblings: _Siblings
    outline: Hashable


class CostModel:
    """The costs of kernels on one target, from a profile.

    Attributes:
        objective: ``time``, or ``flops``: the FLOPs, with time to break ties.
        far: the number of caches that don't hold the weights when a kernel begins (``Target.far``).
        overdue: kernels that weren't ready in time, as an engine's compilation on a busy machine.
    """

    def __init__(
        self,
        target: Target,
        profile: Profile,
        objective: str = "time",
        far: int = 0,
        code_of: Callable[[Kernel], Hashable] = lambda _: None,
    ) -> None:
        """
        Args:
            code_of: a key that is equal for kernels with the same code, one of which is timed for
                all; None if nothing is known of a kernel's code.
        """
        self.target, self.profile, self.objective, self.far = target, profile, objective, far
        self._measured: dict[Kernel, float | None] = {}
        self._code_of = code_of
        # The keys of kernels that were asked for, the time of a kernel of each, and the outlines of
        # those that were measured.
        self._codes: dict[Kernel, Hashable] = {}
        self._same: dict[Hashable, float] = {}
        self._outlines: set[Hashable] = set()
        self.overdue: set[Kernel] = set()
        self._facts: dict[Kernel, _Facts] = {}
        # Estimates and ratios by family, so that those of a family can be dropped when one of its
        # kernels was measured; then the least measured time of each group of siblings.
        self._estimates: dict[str, dict[Kernel, float]] = {}
        self._ratios: dict[str, list[Ratio]] = {}
        self._siblings: dict[_Siblings, float] = {}
        # The present answers of `_of_same_code` and `time_s`, until another time is learned: a
        # round asks about each kernel in many selections.
        self._by_code: dict[Kernel, float | None] = {}
        self._now: dict[Kernel, float] = {}

    def load(self, kernels: Sequence[Kernel]) -> None:
        """Load the measured times of these kernels, and the failures, from the profile."""
        if self.profile.is_empty():
            return  # thousands of keys would be looked up in vain
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
        """Whether a kernel has a measured time, also by another kernel of the same code, has
        failed, or needn't be timed."""
        if kernel in self._measured or not _timeable(kernel):
            return True
        return self._of_same_code(kernel) is not None

    def distinct(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """The kernels without those that have the code of an earlier one."""
        found: dict[Hashable, Kernel] = {}
        for kernel in kernels:
            found.setdefault(self._code(kernel) or kernel, kernel)
        return list(found.values())

    def _code(self, kernel: Kernel) -> Hashable:
        if kernel not in self._codes:
            self._codes[kernel] = self._code_of(kernel)
        return self._codes[kernel]

    def _of_same_code(self, kernel: Kernel) -> float | None:
        """The time of a measured kernel with the same code; None if there is none."""
        if kernel not in self._by_code:
            self._by_code[kernel] = self._looked_up(kernel)
        return self._by_code[kernel]

    def _looked_up(self, kernel: Kernel) -> float | None:
        if not kernel.generated or self._facts_of(kernel).outline not in self._outlines:
            return None
        code = self._code(kernel)
        return None if code is None else self._same.get(code)

    def record(self, times: Mapping[Kernel, Timing | None]) -> None:
        """Store measured times. A kernel that failed (None) isn't chosen, and isn't tried again by
        any process for a day. A kernel that was `OVERDUE` isn't chosen in this run."""
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
        self._by_code.clear()
        self._now.clear()
        self._measured[kernel] = cost_s
        if cost_s is not None:
            if kernel.generated and (code := self._code(kernel)) is not None:
                self._same.setdefault(code, cost_s)
                self._outlines.add(self._facts_of(kernel).outline)
            siblings = _siblings(kernel)
            self._siblings[siblings] = min(cost_s, self._siblings.get(siblings, cost_s))

    def relied_on(self) -> dict[str, float]:
        """The measured times that costs were computed from, by their rows in the profile."""
        timed = [kernel for kernel, cost_s in self._measured.items() if cost_s is not None]
        names = [self.profile.row_of(measurement_key(k, self.far)) for k in timed]
        return self.profile.lower_quartiles(names)

    def family(self, kernel: Kernel) -> str:
        """The name of the kernel's family: the kernels that share their ratio of time
        to roofline."""
        return self._facts_of(kernel).family

    def roofline_s(self, kernel: Kernel) -> float:
        """The least seconds that the target's peaks allow."""
        return self._facts_of(kernel).roofline_s

    def is_bound_by_arithmetic(self, kernel: Kernel) -> bool:
        """Whether arithmetic bounds the kernel's time, and not memory."""
        return self._facts_of(kernel).family.endswith(COMPUTE)

    def _facts_of(self, kernel: Kernel) -> _Facts:
        facts = self._facts.get(kernel)
        if facts is None:
            family = family_of(kernel.implementation, _kind(kernel))
            elements = max(_elements(kernel.term), 1)
            outline = kernel.implementation, kernel.schedule, kernel.term.type.size
            facts = _Facts(self._roofline_s(kernel), family, elements, _siblings(kernel), outline)
            self._facts[kernel] = facts
        return facts

    def _roofline_s(self, kernel: Kernel) -> float:
        term, generated = kernel.term, kernel.generated
        read, written = sum(arg.type.nbytes for arg in args_of(term)), term.type.nbytes
        dispatch = self.target.kernel_dispatch_s if generated else self.target.dispatch_s
        if isinstance(term, Scope) and kernel.implementation == "torch":
            unfolded = bytes_unfolded(term)
            read, written = read + unfolded, written + unfolded
            dispatch *= CALLS * parts(term)
        return self.target.roofline_s(read, written, flops(term), term.dtype, dispatch)

    def time_s(self, kernel: Kernel) -> float:
        """Seconds of one run; infinite if the kernel doesn't work."""
        now_s = self._now.get(kernel)
        if now_s is None:
            now_s = self._now[kernel] = self._time_s(kernel)
        return now_s

    def _time_s(self, kernel: Kernel) -> float:
        if kernel.implementation == "torch.view":
            return VIEW_S
        if kernel in self._measured:
            seconds = self._measured[kernel]
            return float("inf") if seconds is None else seconds
        known_s = self._of_same_code(kernel)
        if known_s is not None:
            return known_s
        facts = self._facts_of(kernel)
        estimates = self._estimates.setdefault(facts.family, {})
        estimate_s = estimates.get(kernel)
        if estimate_s is None:
            estimate_s = estimates[kernel] = self._estimate_s(kernel)
        return max(estimate_s, SIBLING * self._siblings.get(facts.siblings, 0.0))

    def timed_only(self, kernel: Kernel) -> float:
        """The cost of a kernel that was measured; infinite for any other."""
        return self(kernel) if self.measured(kernel) else float("inf")

    def cautious(self, kernel: Kernel) -> float:
        """The cost if nothing more can be measured: a typical and not an optimistic estimate, so
        that an estimate doesn't win by its optimism. An unmeasured generated kernel costs
        infinitely much, since building it may fail, too."""
        if self.objective == "flops" or self.measured(kernel):
            return self(kernel)
        if kernel.generated:
            return float("inf")
        known = self._known_ratios(kernel)
        typical = known[len(known) // 2] if len(known) >= MIN_RATIOS else DOUBT
        return self.roofline_s(kernel) * typical

    def _estimate_s(self, kernel: Kernel) -> float:
        """The roofline times a ratio of the family.

        The ratio is a low quantile (`OPTIMISM`) for kernels bound by memory. For kernels bound by
        arithmetic it is the least ratio of `ALIKE` kernels, since such kernels are few and decide
        the program's time.
        """
        least_s, known = self.roofline_s(kernel), self._known_ratios(kernel)
        if len(known) < MIN_RATIOS:
            return least_s
        compute = self._facts_of(kernel).family.endswith(COMPUTE)
        return least_s * known[0 if compute else int(OPTIMISM * (len(known) - 1))]

    def _known_ratios(self, kernel: Kernel) -> list[float]:
        """The ratios of time to roofline, in ascending order, of those measured kernels of the
        family that are comparable (`SIMILAR`, `ALIKE`) to this one."""
        facts = self._facts_of(kernel)
        ratios = self._ratios.get(facts.family)
        if ratios is None:
            found = self.profile.family_ratios(facts.family)
            ratios = self._ratios[facts.family] = sorted(found, key=lambda ratio: ratio.value)
        least_s = facts.roofline_s
        if not facts.family.endswith(COMPUTE):
            as_large = [ratio for ratio in ratios if ratio.roofline_s >= least_s / SIMILAR]
            similar = [r.value for r in as_large if r.roofline_s <= least_s * SIMILAR]
            return similar if len(similar) >= MANY else [ratio.value for ratio in as_large]
        return [
            ratio.value
            for ratio in ratios
            if ratio.roofline_s >= ALIKE * least_s
            and ratio.roofline_s * facts.elements >= ALIKE * least_s * ratio.elements
        ]

    def __call__(self, kernel: Kernel) -> float:
        """The cost of a kernel: seconds, or FLOPs with seconds to break ties."""
        seconds = self.time_s(kernel)
        if self.objective == "time":
            return seconds
        return flops(kernel.term) + min(seconds, 1e3) * 1e-3 if seconds < float("inf") else seconds
