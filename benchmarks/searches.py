"""The parts of a search, for benchmarks of one part: a module's e-graph, its plans, their programs.

``eqsynth.optimize`` also asks other engines, and times the program against the original in the end;
both aren't done here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.explain import Explanation, NoExplanation, explain_plan
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.target import CPU
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.backends import backends_of, place_of, target_here
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.program import CompiledProgram
from eqsynth.lowered import lowered
from eqsynth.progress import Progress
from eqsynth.report import WHOLE, Report
from eqsynth.rules import RuleSet
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings

_ENODES: Final = 100_000
_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class Grown:
    """The e-graph of a module.

    Attributes:
        stop: the reason that ended the saturation.
        seconds: the wall-clock seconds from the captured program on.
    """

    captured: Captured
    saturation: Saturation
    graph: EGraph
    seconds: float

    @property
    def stop(self) -> str:
        return self.graph.stop

    def explained(self, plan: Plan) -> Explanation | NoExplanation:
        """The derivation of a plan from the module."""
        graphs = self.saturation.graphs
        return explain_plan(
            self.captured.program,
            tuple(self.saturation.segments),
            {key: graph.log for key, graph in graphs.items()},
            self.graph,
            plan,
            {key: graph.stop for key, graph in graphs.items() if graph.stop not in WHOLE},
        )


def grown(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], rules: RuleSet, limit_s: float
) -> Grown:
    """Capture and saturate a module."""
    captured = capture(module, tuple(inputs))
    settings = Settings(CPU, (), "time", limit_s, _ENODES, _BYTES, "real", False, True, ())
    begin = time.monotonic()
    with Progress(False) as bar:
        program, end = captured.program, begin + limit_s
        saturation = Saturation(program, settings, rules, bar, end, lambda _segments: 1)
        graph = saturation.run()
    return Grown(captured, saturation, graph, time.monotonic() - begin)


@dataclass(frozen=True)
class Planner:
    """Extracts plans, which share measured times of kernels, and assembles their programs."""

    of: Grown
    backends: Sequence[Backend]
    costs: CostModel
    measurer: Measurer

    def plan(
        self, limit_s: float, graph: EGraph | None = None, backends: Sequence[Backend] | None = None
    ) -> Extraction:
        """The plan of least time.

        Args:
            graph: a part of the e-graph; None for all of it.
            backends: the backends that offer kernels; None for all of the target's.
        """
        return extract(
            self.of.graph if graph is None else graph,
            self.backends if backends is None else backends,
            self.costs,
            self.measurer,
            limit_s,
            limit_bytes=_BYTES,
        )

    def program(self, plan: Plan) -> CompiledProgram:
        return lowered(
            self.of.captured, self.of.graph, plan, self.backends,
            place=place_of(self.costs.target), report=Report(),
            explanation=NoExplanation("made of a plan alone"),
        )  # fmt: skip


@contextmanager
def planner(of: Grown) -> Iterator[Planner]:
    """A planner for an e-graph, on this machine's CPU."""
    target, captured = target_here(CPU), of.captured
    weights: int = sum(w.type.nbytes for w in captured.program.weights())
    with Measurer(target.threads, target, captured.opaque) as measurer:
        measurer.far = target.far(weights)
        with closing(Profile(target.key())) as profile:
            costs = CostModel(target, profile, far=measurer.far)
            yield Planner(of, backends_of(target, captured.opaque), costs, measurer)


def agrees(program: CompiledProgram, module: torch.nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether a program's results are its module's, up to rounding."""
    with torch.no_grad():
        left, right = program(*inputs), module(*inputs)
    pairs = [(left, right)] if isinstance(right, torch.Tensor) else [*zip(left, right, strict=True)]
    return all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(b.abs().max())), equal_nan=True)
        for a, b in pairs
    )


def milliseconds(seconds: float) -> float:
    return math.inf if math.isinf(seconds) else round(seconds * 1e3, 3)
