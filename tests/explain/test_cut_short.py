"""What an explanation says of segments that weren't searched to the end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import eqsynth
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import Segment, cut, stitch
from eqsynth.explain import Explanation, NoExplanation, explain_plan
from eqsynth.extract.candidates import candidates
from eqsynth.extract.select import Selection
from eqsynth.frontend.expression import program_of
from eqsynth.ir.program import Program
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import load_rules


def two_segments() -> tuple[Program, list[Segment]]:
    x, w, v = eqsynth.input("x", (3, 4)), eqsynth.weight("w", (4, 5)), eqsynth.weight("v", (5, 6))
    hidden = eqsynth.ops.relu(x @ w)
    program, _ = program_of(eqsynth.ops.relu(eqsynth.ops.relu(hidden @ v)))
    segments = cut(program)
    assert len(segments) == 2 and segments[0].key != segments[1].key
    return program, segments


def explained(
    program: Program,
    segments: list[Segment],
    graphs: Mapping[bytes, EGraph],
    cut_short: Mapping[bytes, str],
) -> Explanation | NoExplanation:
    graph = stitch(program, segments, [graphs[s.key] for s in segments])
    plan = Selection(graph, candidates(graph, [TorchBackend()])).best(lambda kernel: 1.0)
    logs = {key: graph.log for key, graph in graphs.items()}
    return explain_plan(program, tuple(segments), logs, graph, plan, cut_short)


@pytest.mark.rotating
def test_a_part_that_a_dead_worker_left_is_told_and_the_rest_explained() -> None:
    program, (first, last) = two_segments()
    limits = Limits(20_000, 60.0)
    graphs = {
        first.key: unsaturated(first.roots, "worker killed"),
        last.key: saturate_terms(last.roots, load_rules(), DEFAULT_PHASES, limits, True),
    }
    found = explained(program, [first, last], graphs, {first.key: "worker killed"})
    assert isinstance(found, Explanation)
    assert "1 of 2" in found.note and "worker killed" in found.note
    assert str(found).startswith(found.note)
    assert "relu-of-relu" in found.rules


@pytest.mark.parametrize("stop", ["worker killed", "deadline"])
def test_a_search_that_found_nothing_says_why(stop: str) -> None:
    program, segments = two_segments()
    graphs = {segment.key: unsaturated(segment.roots, stop) for segment in segments}
    found = explained(program, segments, graphs, dict.fromkeys(graphs, stop))
    assert isinstance(found, NoExplanation) and stop in found.reason
    unlogged = explained(program, segments, graphs, {})
    assert isinstance(unlogged, NoExplanation) and "explain=True" in unlogged.reason
