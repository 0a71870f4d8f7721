"""The report of an optimization: figures as data, and as a table.

    program.report.speedup       # 1.8
    print(program.report)        # a row for each figure

Not here: the page of HTML, which ``report.page`` draws.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from eqsynth import notebook
from eqsynth.errors import EqsynthError, EquivalenceError
from eqsynth.extract.kernel import backend_name
from eqsynth.extract.plan import Plan
from eqsynth.extract.target import Achieved
from eqsynth.extract.timing import OperatorTimes, Timing
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op
from eqsynth.ir.work import bytes_moved, flops
from eqsynth.written import written

if TYPE_CHECKING:
    import torch

    from eqsynth.certificates import Certified
    from eqsynth.extract.route import Route
    from eqsynth.lower.tuning_told import Tuning


WHOLE = ("", "saturated", "rounds", "growth")
"""Values of ``stop`` for a search that ended by itself, and was not cut short by a limit."""

_REGIONS = 16
"""The most regions that the table has rows for."""

_KERNELS = 3
"""The most kernels that the table has rows for."""

_WIDE = 150
"""The most characters of a region's row."""

SCATTER = 1.3
"""If the third quartile of a program's times is more than this factor above the first, the report
warns that the times scatter."""


@dataclass(frozen=True)
class StepTime:
    """The time of one step of a program, measured while the whole program runs.

    Attributes:
        what: the operator, and its place in the user's model.
        kernel: the kernel that runs the step.
        replaced: the operators of the original that the step replaces.
        replaced_s: the time of these operators, each run by torch; None if it isn't known.
    """

    what: str
    kernel: str
    time_s: float
    replaced: tuple[str, ...] = ()
    replaced_s: float | None = None

    @property
    def excess_s(self) -> float:
        """The time of the step minus the time of the operators that it replaced; 0 if that isn't
        known."""
        return 0.0 if self.replaced_s is None else self.time_s - self.replaced_s

    def __str__(self) -> str:
        text = f"{self.what} by {self.kernel} takes {_ms(self.time_s)}"
        if self.replaced_s is None:
            return text
        return f"{text}, {_ms(self.replaced_s)} before ({', '.join(self.replaced) or 'nothing'})"


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel in all steps that run it, measured while the whole program runs.

    Attributes:
        kernel: the implementation and its schedule.
        result: type of the kernel's result.
        steps: number of steps that run the kernel.
        time_s: seconds of these steps together.
        share: part of the time of all steps.
        achieved: FLOP/s or bytes/s, beside the peak that was measured on the machine.
    """

    kernel: str
    result: str
    steps: int
    time_s: float
    share: float
    achieved: Achieved

    def __str__(self) -> str:
        times = f" in {self.steps} steps" if self.steps > 1 else ""
        took = f"{_ms(self.time_s)}{times}, {self.share:.0%} of the time"
        return f"{took}; {self.achieved}; {self.kernel} -> {self.result}"


@dataclass(frozen=True)
class Graph:
    """One of several graphs that torch captures a module as.

    Attributes:
        operators: the number of operators.
        backends: the backends that run the graph: implementations of eqsynth's kernels,
            ``inductor``, or ``torch`` if neither of them was ready in time.
        explanation: why eqsynth's program is equal to the graph; empty if eqsynth doesn't run it.
    """

    operators: int
    backends: tuple[str, ...]
    explanation: str

    @property
    def title(self) -> str:
        return f"{self.operators} operators on {', '.join(self.backends)}"

    def __str__(self) -> str:
        return f"{self.title}\n{self.explanation}".rstrip()


class Drawn(Protocol):
    """The drawing of a report's program. Called with the report it returns the page; ``regions``
    returns the rows of the regions. Both are computed when they are called."""

    def __call__(self, report: Report) -> str: ...

    def regions(self) -> list[tuple[str, str]]: ...


@dataclass
class Report:
    """The figures of one optimization. Times are medians of interleaved runs.

    Attributes:
        quartiles_s: first and third quartile of the times of ``before``, ``after`` and
            ``candidate``.
        candidate_time_s: time of the best program that was found, even if the original was kept.
        predicted_s: sum of the times of its kernels, each measured or estimated by itself.
        why_not: if the original was kept because nothing was faster: the steps of the candidate
            that took most over the operators that they replaced.
        flops_before, flops_after: a multiply-add counts as two; operators on constants count
            nothing.
        bytes_before, bytes_after: bytes of the arguments and results of all operators.
        parameters: elements of the constants that the compiled program keeps; elements of the
            original's parameters and buffers if the original is kept.
        constant_bytes: bytes of the constants that the program has copies of, including those that
            kernels have packed in a layout of their own.
        peak_memory_bytes: bytes of constants, inputs and the values that live at the same time; 0
            (not known) if the original is kept.
        error_rel: largest difference to the original over the largest value.
        digits_lost: kind of inputs -> the largest difference to the original over the largest value
            of its row, for kinds whose difference is more than rounding explains. Only a program
            found with ``numerics`` of ``cancels`` or ``approx`` may have entries and be used.
        stop: why the search ended: ``saturated``, ``rounds``, ``node_limit``, ``deadline``, …; or
            why there was no search: ``capture`` (the capture failed), ``unsteady`` (the original
            gives different results for the same inputs), ``graphs`` (each of several graphs was
            searched by itself).
        backend: the implementations of the kernels that run, or ``original``.
        kernels_estimated: number of kernels of the plan that there was no time to measure.
        kernels_disturbed: number of kernels that were timed while other processes kept the
            processors busy.
        gap: the largest part of its time that another choice among eqsynth's own kernels could
            save, by the measured and estimated times; None if no useful bound is known.
        certified: the result of checking the certificates of the search, if ``certify`` was set.
        growth: phase of saturation -> number of e-nodes at its end, over all segments.
        own_rules: names of the user's rules, which are listed before eqsynth's.
        remembered_plan: the plan was found by an earlier search, and the times in the profile still
            lead to it. ``rounds`` and ``kernels_timed`` are then 0, since they count this search.
            If the program lost the race against the original, ``reason`` speaks of this plan.
        followed: the plan is that of another program, for other sizes; nothing was searched.
        unlike: the plan that ``optimize(like=…)`` was given has no kernels for this program, which
            was searched as usual.
        route: the plan without its sizes, which ``optimize(like=…)`` follows; None if nothing was
            searched.
        opaque_share: part of the time that the program spends in operators that eqsynth doesn't
            know.
        operator_times: seconds of the original's operators and of the program's steps, measured
            while the whole program runs. Measured if time is the objective and a faster program was
            found.
        kernels: the time of each of the program's kernels, and what it achieves of the machine's
            peak, the heaviest first; measured if ``operator_times`` are.
        stages_s: seconds of each stage. ``capture`` counts against the time limit, but for at most
            half of it. ``measure`` is the time that extraction has waited for measurements of
            kernels.
        tuned: the results of tuning, by kernel, with the points around the best one.
        reason: why the original was kept; empty if it wasn't.
        several_graphs: the module can't be captured as one graph, but perhaps as several; if these
            run, they are in ``graphs``.
        page: draws the report and lists its regions; None if no program was captured.
        engine_refused: why the plan with regions on engines was given up; empty if it wasn't.
        tuning_refused: the error that ended the tuning; empty if none did.
        mended: where earlier plans differed from the original by the rounding of one of their
            steps. The program does without these steps.
    """

    time_before_s: float = 0.0
    time_after_s: float = 0.0
    candidate_time_s: float = 0.0
    predicted_s: float = 0.0
    why_not: tuple[StepTime, ...] = ()
    quartiles_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    flops_before: int = 0
    flops_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    parameters: int = 0
    constant_bytes: int = 0
    peak_memory_bytes: int = 0
    error_rel: float = 0.0
    digits_lost: Mapping[str, float] = field(default_factory=dict)
    enodes: int = 0
    eclasses: int = 0
    segments: int = 0
    distinct_segments: int = 0
    remembered_segments: int = 0
    remembered_plan: bool = False
    followed: bool = False
    unlike: bool = False
    optimize_s: float = 0.0
    stop: str = ""
    several_graphs: bool = False
    graphs: tuple[Graph, ...] = ()
    rules_fired: Mapping[str, int] = field(default_factory=dict)
    own_rules: tuple[str, ...] = ()
    over_budget: Mapping[str, int] = field(default_factory=dict)
    law_faults: Mapping[str, str] = field(default_factory=dict)
    growth: Mapping[str, int] = field(default_factory=dict)
    certified: Certified | None = None
    backend: str = "original"
    opaque_share: float = 0.0
    kernels_considered: int = 0
    kernels_timed: int = 0
    kernels_estimated: int = 0
    kernels_disturbed: int = 0
    gap: float | None = None
    rounds: int = 0
    complete: bool = False
    reason: str = ""
    engine_refused: str = ""
    tuning_refused: str = ""
    mended: tuple[str, ...] = ()
    operator_times: OperatorTimes = OperatorTimes()
    kernels: tuple[KernelTime, ...] = ()
    stages_s: Mapping[str, float] = field(default_factory=dict)
    tuned: tuple[Tuning, ...] = ()
    route: Route | None = field(default=None, repr=False, compare=False)
    page: Drawn | None = field(default=None, repr=False, compare=False)

    def count_before(self, program: Program) -> None:
        """Count FLOPs and bytes of the captured program."""
        terms = [t for t in program.terms() if not t.constant]
        self.flops_before = sum(map(flops, terms))
        self.bytes_before = sum(bytes_moved(t) for t in terms if isinstance(t, Op))

    def count_after(
        self,
        plan: Plan,
        constants: Mapping[str, torch.Tensor],
        constant_bytes: int,
        scratch_bytes: int,
    ) -> None:
        """Count FLOPs, bytes, memory and backends of the compiled program."""
        moving = [s for s in plan.steps if s.kernel.implementation != "torch.view"]
        self.flops_after = sum(flops(s.kernel.term) for s in moving)
        self.bytes_after = sum(bytes_moved(s.kernel.term) for s in moving)
        self.parameters = sum(value.numel() for value in constants.values())
        self.constant_bytes = constant_bytes
        self.peak_memory_bytes = plan.peak_bytes() + constant_bytes + scratch_bytes
        kinds = {s.kernel.implementation.partition(":")[0] for s in moving}
        self.backend = ", ".join(sorted(kinds)) or "nothing to run"
        self.predicted_s = sum(step.cost_s for step in plan.steps)

    def part(self, stage: str, name: str, seconds: float) -> None:
        """Move ``seconds`` of a stage to a stage of its own: ``part("extract",
        "measure", 2.0)``."""
        rest = self.stages_s[stage] - seconds
        self.stages_s = {**self.stages_s, stage: rest, name: seconds}

    def timed(self, before: Timing, candidate: Timing, kept: bool) -> None:
        """Record the times of the race.

        Args:
            kept: whether the original is kept, so that the time after is the time before.
        """
        after = before if kept else candidate
        self.time_before_s, self.time_after_s = before.median_s, after.median_s
        self.candidate_time_s = candidate.median_s
        named = {"before": before, "after": after, "candidate": candidate}
        self.quartiles_s = {name: (t.q1_s, t.q3_s) for name, t in named.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why figures of the report may be wrong."""
        loose = [
            name
            for name, (low, high) in self.quartiles_s.items()
            if high > SCATTER * low and name != "after"
        ]
        found = []
        if loose:
            found.append(
                f"the times of {' and '.join(loose)} scatter: something else runs on this machine, "
                "and a choice by time may be wrong"
            )
        if self.kernels_disturbed:
            found.append(
                f"other processes were busy while {self.kernels_disturbed} kernels were timed, so "
                "a choice by time may be wrong; these kernels are timed again when optimize runs "
                "on a quiet machine"
            )
        return tuple(found)

    @property
    def shares(self) -> Mapping[str, float]:
        """Backend -> part of the program's time that its kernels take, the largest first; empty if
        ``operator_times`` weren't measured."""
        times = self.operator_times
        found: dict[str, float] = {}
        for value, seconds in times.after.items():
            backend = backend_name(times.kernels[value].partition(" ")[0])
            found[backend] = found.get(backend, 0.0) + seconds
        whole = sum(found.values()) or 1.0
        return {name: s / whole for name, s in sorted(found.items(), key=lambda item: -item[1])}

    @property
    def speedup(self) -> float:
        """``time_before_s / time_after_s``."""
        return self.time_before_s / self.time_after_s if self.time_after_s else 1.0

    @property
    def regions(self) -> list[tuple[str, str]]:
        """A row for each distinct region of the program: ``replaced`` or ``kept``, and a text with
        its operators before and after, its place in the user's model, its milliseconds before and
        after, and the rules by which it was replaced. A row has milliseconds if they were measured
        and no engine runs the region as a part of a larger one. Empty if the original runs.

        The first access replays the search's log, which takes about a second.
        """
        if self.page is None or self.backend == "original":
            return []
        try:
            return self.page.regions()
        # Only explain() raises this error; the table is printed all the same.
        except EquivalenceError as fault:
            return [("regions", str(fault).partition("\n")[0])]

    def rows(self) -> list[tuple[str, str]]:
        """The rows of the table, as text. A figure that isn't known has no row."""
        raced, captured = self.time_before_s > 0, self.bytes_before > 0 or self.segments > 0
        parts = (
            self._time_rows() if raced else [],
            self._program_rows() if captured else [],
            self._search_rows() if self.segments else [],
            [("optimized in", self._seconds()), ("stopped", self.stop)],
            [("runs on", self.backend + (f" ({self.reason})" if self.reason else ""))],
            [("share of time", self._shares())] if len(self.shares) > 1 else [],
            [("opaque share", f"{self.opaque_share:.0%}")] if raced else [],
            [("heaviest", str(kernel)) for kernel in self.kernels[:_KERNELS]],
            _longest(self.regions),
            [("graph", graph.title) for graph in self.graphs],
            [("why not", str(step)) for step in self.why_not],
            [("warning", text) for text in self.warnings],
        )
        return list(chain.from_iterable(parts))

    def _time_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("time before", self._time("before", self.time_before_s)),
            ("time after", self._time("after", self.time_after_s)),
            ("speedup", f"{self.speedup:.2f}"),
        ]
        if self.candidate_time_s != self.time_after_s:
            found = self._time("candidate", self.candidate_time_s)
            text = f"{found}, its kernels by themselves {_ms(self.predicted_s)}"
            rows.append(("best found", text))
        return rows

    def _program_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("FLOPs", f"{self.flops_before:,} -> {self.flops_after:,}"),
            ("bytes moved", f"{self.bytes_before:,} -> {self.bytes_after:,}"),
            ("parameters", f"{self.parameters:,}"),
        ]
        if not self.peak_memory_bytes:
            return rows
        return [
            *rows,
            ("constants", f"{self.constant_bytes:,} bytes"),
            ("peak memory", f"{self.peak_memory_bytes:,} bytes"),
            ("relative error", f"{self.error_rel:.1e}"),
            *([("digits lost", self._lost())] if self.digits_lost else []),
        ]

    def _shares(self) -> str:
        return ", ".join(f"{name} {part:.0%}" for name, part in self.shares.items())

    def _lost(self) -> str:
        return ", ".join(f"{part:.1e} on {kind} inputs" for kind, part in self.digits_lost.items())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs no other files: the original program, the changes and the plan
        side by side (hovering over a line shows what became of it), and the times of the parts.

        Raises:
            EqsynthError: there is no program to draw.
            EquivalenceError: the log lacks the steps that make the programs equal.
            FileError: the file can't be written.
        """
        if self.page is None:
            raise EqsynthError(
                "there is no program to draw",
                got=self.reason or "a report without a search",
                expected="a report of optimize that has captured the program",
                hint="print(report) tells why there was no search",
            )
        page = self.page(self)
        with written(path) as place:
            place.write_text(page, encoding="utf-8")

    def original_is_kept(self, parameters: int) -> None:
        """Set the figures of the program that runs to those of the original, which has no constants
        of its own.

        Args:
            parameters: elements of the module's parameters and buffers.
        """
        self.backend = "original"
        self.flops_after, self.bytes_after = self.flops_before, self.bytes_before
        self.parameters, self.constant_bytes, self.peak_memory_bytes = parameters, 0, 0
        self.error_rel, self.digits_lost = 0.0, {}
        self.kernels = ()

    def _search_rows(self) -> list[tuple[str, str]]:
        """The rows about the e-graph, the kernels and the rules. The user's rules come before
        eqsynth's."""
        mine = set(self.own_rules)
        fired = sorted(self.rules_fired.items(), key=lambda item: (item[0] not in mine, -item[1]))
        kernels = f"{self.kernels_considered} considered, {self.kernels_timed} timed"
        if self.kernels_estimated:
            kernels += f", {self.kernels_estimated} of the plan's chosen by estimates"
        if self.remembered_plan:
            kernels += ", the plan remembered"
        if self.followed:
            kernels += ", the plan of other sizes followed"
        if self.unlike:
            kernels += ", the plan of like can't be followed here"
        told = [name for name, _ in fired if name in mine]
        segments = f"{self.segments}, {self.distinct_segments} distinct"
        if self.remembered_segments:
            segments += f", {self.remembered_segments} of them remembered"
        return [
            ("e-graph", f"{self.enodes:,} e-nodes, {self.eclasses:,} e-classes"),
            ("segments", segments),
            ("kernels", kernels),
            ("gap", "no bound" if self.gap is None else f"at most {self.gap:.1%}"),
            (
                "rules",
                ", ".join(f"{name} ({count})" for name, count in fired[: max(8, len(told))]),
            ),
            *([("certificates", str(self.certified))] if self.certified else []),
            *(("law failed", f"{law}: {why}") for law, why in self.law_faults.items()),
            *(("tuned", text) for one in self.tuned for text in one.lines()),
            *([("not tuned", self.tuning_refused)] if self.tuning_refused else []),
            *(("mended", text) for text in self.mended),
        ]

    def _time(self, which: str, median_s: float) -> str:
        low, high = self.quartiles_s.get(which, (0.0, 0.0))
        return f"{_ms(median_s)} [{_ms(low)}, {_ms(high)}]"

    def _seconds(self) -> str:
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.stages_s.items())
        return f"{self.optimize_s:.1f} s" + (f" ({stages})" if stages else "")

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _repr_html_(self) -> str:
        return notebook.table(self.rows())


def _longest(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first rows of the regions, as many as a screen has room for, each cut to a line."""
    told = [(name, text if len(text) <= _WIDE else f"{text[: _WIDE - 2]} …") for name, text in rows]
    left = len(told) - _REGIONS
    return [*told[:_REGIONS], ("regions", f"{left} more: report.regions")] if left > 1 else told


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
