"""Seconds of the saturation of each net, by stage, by rule and by law.

    python -m benchmarks.bench_saturate [--json FILE] [--net NAME ...] [--layers N ...]

``engine`` is the time of egglog's own matching, applying and inserting; ``laws`` that of finding
and answering requests of laws; ``rest`` that of reading the e-graph and of all other Python code;
``remembered`` that of loading the same result from the cache directory. Requests are counted as
asked, as in vain (without a new answer), and as known (answered before). Sizes are those of tests,
since rules don't depend on sizes. ``--layers`` saturates N equal layers ``x + tanh(x @ w)``, as one
segment and cut into segments.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import eqsynth
from benchmarks.about import about
from benchmarks.workloads import NETS, WORKLOADS
from eqsynth import ops
from eqsynth.egraph import remembered
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, saturate
from eqsynth.egraph.segments import cut
from eqsynth.egraph.session import Session
from eqsynth.frontend.expression import program_of
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import RuleSet, load_rules

LIMITS = Limits(deadline_s=600.0)
LAYERS = (2, 4, 8)
# The number of slowest rules and laws that are printed.
SHOWN = 4
Roots = tuple[Tensor, ...]


@dataclass(frozen=True)
class Run:
    """The seconds of saturating the segments of one program.

    Attributes:
        rules, laws: name -> seconds, slowest first.
    """

    name: str
    segments: int
    stop: str
    enodes: int
    total_s: float
    engine_s: float
    laws_s: float
    rest_s: float
    remembered_s: float
    asked: int
    vain: int
    known: int
    steps: int
    rules: dict[str, float]
    laws: dict[str, float]


def measured(name: str, segments: Sequence[Roots], rules: RuleSet) -> Run:
    """Saturate each segment, write the result to the cache, and read it again."""
    engine, laws = Counter[str](), Counter[str]()
    total = loaded = 0.0
    stops: dict[str, None] = {}
    counts = Counter[str]()
    for roots in segments:
        begin = time.perf_counter()
        with closing(Session(rules)) as session:
            session.add(roots)
            report = saturate(session, DEFAULT_PHASES, LIMITS)
            graph = session.graph(roots, report.stop, report.seconds, report.over_budget)
            total += time.perf_counter() - begin
            engine.update(session.engine.spent_s)
            laws.update(session.requests.spent_s)
            counts["steps"] += session.engine.steps.total()
            for kind in ("asked", "vain", "known"):
                counts[kind] += getattr(session.requests, kind).total()
        stops[report.stop] = None
        counts["enodes"] += graph.enodes
        key = remembered.key_of(roots, rules, DEFAULT_PHASES, LIMITS, True)
        remembered.keep(key, graph, LIMITS.deadline_s)
        begin = time.perf_counter()
        key = remembered.key_of(roots, rules, DEFAULT_PHASES, LIMITS, True)
        remembered.load(key, roots, LIMITS.deadline_s)
        loaded += time.perf_counter() - begin
    engine_s, laws_s = float(engine.total()), float(laws.total())
    return Run(
        name, len(segments), ", ".join(stops), counts["enodes"], total, engine_s, laws_s,
        total - engine_s - laws_s, loaded, counts["asked"], counts["vain"], counts["known"],
        counts["steps"], dict(engine.most_common()), dict(laws.most_common()),
    )  # fmt: skip


def segments_of(name: str) -> list[Roots]:
    """The distinct segments of a workload at its size for tests."""
    return _distinct(capture(*WORKLOADS[name].reduced()).program)


def _distinct(program: Program) -> list[Roots]:
    return [s.roots for s in {s.key: s for s in cut(program)}.values()]


def layers(count: int) -> Program:
    """A program of ``count`` equal layers."""
    x, w = eqsynth.input("x", (4, 8)), eqsynth.weight("w", (8, 8))
    for _ in range(count):
        x = x + ops.tanh(x @ w)
    return program_of(x)[0]


def slowest(spent_s: dict[str, float]) -> str:
    """The slowest rules or laws with their seconds, as text."""
    return ", ".join(f"{name} {s:.2f}" for name, s in list(spent_s.items())[:SHOWN])


def shown(run: Run) -> str:
    return (
        f"{run.name:18s} {run.total_s:7.2f} s: engine {run.engine_s:.2f}, laws {run.laws_s:.2f}, "
        f"rest {run.rest_s:.2f}; remembered {run.remembered_s:.3f}\n"
        f"{'':18s} {run.enodes} e-nodes, {run.segments} segments ({run.stop}), {run.steps} steps; "
        f"requests: {run.asked} asked, {run.vain} in vain, {run.known} known\n"
        f"{'':18s} rules: {slowest(run.rules)}\n{'':18s} laws: {slowest(run.laws)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--net", nargs="*", choices=sorted(WORKLOADS), help="by default, all nets")
    parser.add_argument("--layers", nargs="*", type=int, default=list(LAYERS))
    options = parser.parse_args(arguments)
    rules, runs = load_rules().select(), []
    names = [w.name for w in NETS] if options.net is None else options.net
    with tempfile.TemporaryDirectory() as home:
        os.environ["EQSYNTH_CACHE"] = home
        for name in names:
            runs.append(measured(name, segments_of(name), rules))
            print(shown(runs[-1]), flush=True)
        for count in options.layers:
            program = layers(count)
            for name, roots in (("", [program.outputs]), (", cut", _distinct(program))):
                runs.append(measured(f"{count} layers{name}", roots, rules))
                print(shown(runs[-1]), flush=True)
    if options.json:
        result = {**about(), "runs": [asdict(run) for run in runs]}
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
