"""The check of a whole search: all e-nodes of its e-graph, and the extracted programs.

The search saturates programs, evaluates each e-node (``consistency.py``), and extracts the program
of least FLOPs and the one of least estimated time. Each must have the value of the original, and
cost no more. Nothing is compiled or timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, Phase
from eqsynth.errors import EquivalenceError
from eqsynth.explain import planned_terms
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.select import Selection
from eqsynth.extract.target import CPU, Device, MemoryLevel, Target
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.data import agree, sample_all
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.printing import render
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import is_float
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import RuleSet, load_rules
from eqsynth.testing.consistency import Consistency, assert_egraph_consistent

NOMINAL = Target(
    name=CPU,
    device=Device("nominal", 2, ()),
    threads=2,
    levels=(MemoryLevel("DRAM", float("inf"), 4e10),),
    flops_per_s=(("float32", 4e11),),
    dispatch_s=1e-6,
    kernel_dispatch_s=3e-7,
)
"""A target with round numbers, for estimates that are the same on every machine."""

OBJECTIVES = ("flops", "time")


@dataclass(frozen=True)
class Search:
    """A search that was checked.

    Attributes:
        graph: the saturated e-graph.
        consistency: what was compared in it.
        costs: objective -> the costs of the original and of the extracted program.
        found: objective -> the outputs of the extracted program.
    """

    graph: EGraph
    consistency: Consistency
    costs: Mapping[str, tuple[float, float]]
    found: Mapping[str, tuple[Tensor, ...]]


@cache
def _profile() -> Profile:
    directory = tempfile.TemporaryDirectory(prefix="eqsynth-nominal-")
    profile = Profile(NOMINAL.key(), path=Path(directory.name) / "empty.sqlite")
    profile._directory = directory  # type: ignore[attr-defined]
    return profile


def estimated_plan(graph: EGraph, objective: str) -> Plan:
    """The plan of least cost on the nominal target, with torch's kernels and no measured times."""
    selection = Selection(graph, candidates(graph, (TorchBackend(),)))
    return selection.best(CostModel(NOMINAL, _profile(), objective))


Chooser = Callable[[EGraph, str], Plan]


def assert_search_sound(
    roots: Sequence[Tensor],
    *,
    rules: RuleSet | None = None,
    phases: Sequence[Phase] = DEFAULT_PHASES,
    limits: Limits = Limits(5_000, 20.0),  # noqa: B008  (frozen)
    env: Mapping[str, Array] | None = None,
    objectives: Sequence[str] = OBJECTIVES,
    choose: Chooser = estimated_plan,
) -> Search:
    """Saturate programs in one e-graph, and check its classes and the extracted programs.

    Args:
        roots: the outputs of the programs.
        rules: the rules; by default eqsynth's own.
        phases, limits: the schedule and the limits of the saturation.
        env: arrays of inputs and weights by name; random by default.
        objectives: the objectives of extraction.
        choose: the extraction: from an e-graph and an objective to a plan.

    Raises:
        EquivalenceError: members of a class, or the program that was extracted, have another value
            than the original; or extraction chose a program of a higher cost than the original's.
        SaturationError: a class was given two types.
    """
    graph = saturate_terms(tuple(roots), rules or load_rules(), phases, limits, False)
    given = dict(sample_all(*roots) if env is None else env)
    consistency = assert_egraph_consistent(graph, given)
    plain = unsaturated(tuple(roots), "original")
    expected = evaluate_all(roots, given)
    costs, found = {}, {}
    for objective in objectives:
        plan = choose(graph, objective)
        before, after = choose(plain, objective).cost_s, plan.cost_s
        costs[objective] = before, after
        found[objective] = planned_terms(graph, plan)
        values = evaluate_all(found[objective], given)
        for root, term in zip(roots, found[objective], strict=True):
            _compare(objective, root, term, expected[root], values[term])
        if after > before * (1 + 1e-9):
            raise EquivalenceError(
                "extraction chose a program that costs more than the original",
                where=objective,
                got=f"{after:.9g}: " + "; ".join(render(t) for t in found[objective]),
                expected=f"at most {before:.9g}: " + "; ".join(render(t) for t in roots),
                hint="this is a fault in extraction",
            )
    return Search(graph, consistency, costs, found)


def _compare(objective: str, root: Tensor, term: Tensor, expected: Array, value: Array) -> None:
    if root.type == term.type and agree(value, expected, 1e-7 if is_float(root.dtype) else 0.0):
        return
    raise EquivalenceError(
        "the program that was extracted has another value than the original",
        where=f"objective {objective}",
        got=f"{term}\n{value}",
        expected=f"{root}\n{expected}",
        hint="this is a fault in a rule or in extraction",
    )
