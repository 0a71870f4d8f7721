"""What an optimization did, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eqsynth.extract.plan import Plan
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op
from eqsynth.ir.work import bytes_moved, flops

if TYPE_CHECKING:
    import torch


@dataclass
class Report:
    """Figures of one optimization. Times are medians of interleaved runs.

    Attributes:
        quartiles_s: first and third quartile of ``before`` and ``after``.
        flops_before, flops_after: a multiply-add counts as two; what is constant counts nothing.
        bytes_before, bytes_after: arguments and results of every operator.
        parameters: elements of the constants that the compiled program keeps.
        constant_bytes: of the constants that the program holds for itself: as they are, and as
            kernels have packed them.
        peak_memory_bytes: constants, inputs and the values that live at once.
        error_rel: largest difference to the original over the largest value.
        stop: why the search ended: ``saturated``, ``rounds``, ``node_limit``, ``deadline``, …
        backend: what runs: the kernels' implementations, or ``original``.
        opaque_share: part of the time spent in operators that eqsynth doesn't know.
        reason: why the original was kept, if it was.
        engine_refused: why the plan with regions on engines was given up, if it was.
    """

    time_before_s: float = 0.0
    time_after_s: float = 0.0
    quartiles_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    flops_before: int = 0
    flops_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    parameters: int = 0
    constant_bytes: int = 0
    peak_memory_bytes: int = 0
    error_rel: float = 0.0
    enodes: int = 0
    eclasses: int = 0
    segments: int = 0
    distinct_segments: int = 0
    optimize_s: float = 0.0
    stop: str = ""
    rules_fired: Mapping[str, int] = field(default_factory=dict)
    over_budget: Mapping[str, int] = field(default_factory=dict)
    backend: str = "original"
    opaque_share: float = 0.0
    kernels_considered: int = 0
    kernels_timed: int = 0
    kernels_estimated: int = 0
    rounds: int = 0
    complete: bool = False
    reason: str = ""
    engine_refused: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)

    def count_before(self, program: Program) -> None:
        """FLOPs and bytes of a program as it was captured."""
        terms = [t for t in program.terms() if not t.constant]
        self.flops_before = sum(map(flops, terms))
        self.bytes_before = sum(bytes_moved(t) for t in terms if isinstance(t, Op))

    def count_after(
        self, plan: Plan, constants: Mapping[str, torch.Tensor], constant_bytes: int
    ) -> None:
        """FLOPs, bytes, memory and backends of the program that is run."""
        moving = [s for s in plan.steps if s.kernel.implementation != "torch.view"]
        self.flops_after = sum(flops(s.kernel.term) for s in moving)
        self.bytes_after = sum(bytes_moved(s.kernel.term) for s in moving)
        self.parameters = sum(value.numel() for value in constants.values())
        self.constant_bytes = constant_bytes
        self.peak_memory_bytes = plan.peak_bytes() + constant_bytes
        kinds = {s.kernel.implementation.partition(":")[0] for s in moving}
        self.backend = ", ".join(sorted(kinds)) or "nothing to run"
        total = sum(s.cost_s for s in plan.steps)
        opaque = sum(
            s.cost_s for s in plan.steps if isinstance(s.member, Op) and s.member.name == "Opaque"
        )
        self.opaque_share = opaque / total if total else 0.0

    @property
    def speedup(self) -> float:
        """``time_before_s / time_after_s``."""
        return self.time_before_s / self.time_after_s if self.time_after_s else 1.0

    def rows(self) -> list[tuple[str, str]]:
        """The table's rows, as text."""
        low_before, high_before = self.quartiles_s.get("before", (0.0, 0.0))
        low_after, high_after = self.quartiles_s.get("after", (0.0, 0.0))
        fired = sorted(self.rules_fired.items(), key=lambda item: -item[1])
        return [
            ("time before", f"{_ms(self.time_before_s)} [{_ms(low_before)}, {_ms(high_before)}]"),
            ("time after", f"{_ms(self.time_after_s)} [{_ms(low_after)}, {_ms(high_after)}]"),
            ("speedup", f"{self.speedup:.2f}"),
            ("FLOPs", f"{self.flops_before:,} -> {self.flops_after:,}"),
            ("bytes moved", f"{self.bytes_before:,} -> {self.bytes_after:,}"),
            ("parameters", f"{self.parameters:,}"),
            ("constants", f"{self.constant_bytes:,} bytes"),
            ("peak memory", f"{self.peak_memory_bytes:,} bytes"),
            ("relative error", f"{self.error_rel:.1e}"),
            ("e-graph", f"{self.enodes:,} e-nodes, {self.eclasses:,} e-classes"),
            ("segments", f"{self.segments}, {self.distinct_segments} distinct"),
            ("optimized in", f"{self.optimize_s:.1f} s"),
            ("stopped", self.stop),
            ("kernels", f"{self.kernels_considered} considered, {self.kernels_timed} timed"),
            ("rules", ", ".join(f"{name} ({count})" for name, count in fired[:8])),
            ("runs on", self.backend + (f" ({self.reason})" if self.reason else "")),
            ("opaque share", f"{self.opaque_share:.0%}"),
        ]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.rows())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
