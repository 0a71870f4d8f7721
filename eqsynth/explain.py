"""Why a result is equal to the original: whole programs, each one rule instance from the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eqsynth.egraph.graph import EGraph, Log
from eqsynth.egraph.segments import Segment
from eqsynth.extract.plan import Plan
from eqsynth.ir.program import Program


@dataclass(frozen=True)
class Explanation:
    """The derivation of a compiled program from the original."""

    program: Program
    segments: tuple[Segment, ...]
    logs: Mapping[bytes, Log | None]
    graph: EGraph
    plan: Plan
