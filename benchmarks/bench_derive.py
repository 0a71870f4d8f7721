"""Seconds, e-nodes and e-classes until a derivation of EinNet's Table 3 is in the e-graph.

    python -m benchmarks.bench_derive [--json FILE] [--part table --part layers --part depth]

``table``: each case with and without guidance (EinNet §6.1), with and without canonical forms (the
paper's fingerprints). The search starts from the original program and knows nothing of the target,
which is recognized by its operator and the shapes of its operands. Rules that split windows into
parts are used in proofs only, not by ``optimize`` (``schedule.py``); the case that needs them has
the phases of proofs.

``layers``: the time to saturate 4, 8 and 16 equal layers of a convolution and a ReLU.

``depth``: how much faster a program gets with more rounds of derivations (EinNet Fig. 17). The
extracted programs are timed in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

import eqsynth
from benchmarks.about import about
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits, Phase, saturate
from eqsynth.egraph.segments import cut
from eqsynth.egraph.session import Session
from eqsynth.egraph.tactics.converging import GUIDED
from eqsynth.errors import ExtractionError
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import contiguous
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.extract.search import extract
from eqsynth.extract.timing import time_interleaved
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.normal import CANONICAL
from eqsynth.lower.assemble import assemble
from eqsynth.lower.backends import cpu_backends, random_argument
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.program import CompiledProgram
from eqsynth.rules import RuleSet, load_rules

LIMITS = Limits(enodes=20_000, deadline_s=60.0)
# Searches per measurement, of which the median counts, since one takes only fractions of a second.
REPEATS = 3
DEPTHS = range(7)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A program, and the target of its derivation: an operator on operands of these shapes."""

    name: str
    program: Expr
    operator: str
    shapes: tuple[Shape, ...]
    phases: Sequence[Phase] = DEFAULT_PHASES


def cases() -> list[Case]:
    """The cases of EinNet's Table 3, at the paper's shapes."""
    x, w = eqsynth.input("x", (1, 512, 7, 7)), eqsynth.weight("w", (512, 512, 3, 3))
    up, k = eqsynth.input("x", (16, 448, 2, 2)), eqsynth.weight("w", (448, 256, 4, 4))
    image, wide = eqsynth.input("x", (16, 32, 224, 224)), eqsynth.weight("w", (1, 32, 5, 5))
    q, keys = (eqsynth.input(name, (8, 10_000, 64)) for name in "qk")
    return [
        Case("Conv3x3 -> Matmul + OffsetReduce", ops.conv2d(x, w, padding=1),
             "Matmul", ((49, 512), (512, 9 * 512))),
        Case("ConvTranspose -> Matmul + eOperator",
             ops.conv_transpose2d(up, k, stride=2, padding=1),
             "Matmul", ((64, 448), (448, 16 * 256))),
        Case("Conv5x5 -> Conv3x3", ops.conv2d(image, wide, padding=2),
             "Conv2d", ((16, 32, 224, 224), (4, 32, 3, 3)), PROVE_PHASES),
        Case("dilated G2BMM -> undilated", ops.g2bmm(q, keys, 1000, 4),
             "G2BMM", ((32, 2500, 64), (32, 2500, 64))),
    ]  # fmt: skip


@contextmanager
def searching(guided: bool, canonical: bool) -> Iterator[None]:
    """Search with or without the guidance and the canonical forms inside of this block."""
    tokens = GUIDED.set(guided), CANONICAL.set(canonical)
    try:
        yield
    finally:
        GUIDED.reset(tokens[0])
        CANONICAL.reset(tokens[1])


@dataclass(frozen=True)
class Run:
    """The result of one search; ``seconds`` are until the target was found, or the search ended."""

    case: str
    guided: bool
    canonical: bool
    found: bool
    stop: str
    seconds: float
    enodes: int
    eclasses: int


def search(case: Case, rules: RuleSet, guided: bool, canonical: bool) -> Run:
    """Saturate the program of a case until its target is in the e-graph."""
    with searching(guided, canonical):
        session = Session(rules, log_matches=False)
        session.add(program_of(case.program)[0].outputs)

        def met(session: Session) -> bool:
            view = session.view()
            return any(
                op.name == case.operator and tuple(a.shape for a in op.args) == case.shapes
                for ref in view.refs.values()
                for op in view.operators(ref)
            )

        start = time.perf_counter()
        report = saturate(session, case.phases, LIMITS, met)
        seconds, found = time.perf_counter() - start, met(session)
        stop = "found" if found else report.stop
        eclasses, enodes = len(session.view().snapshot.classes), session.engine.enodes()
        return Run(case.name, guided, canonical, found, stop, seconds, enodes, eclasses)


def median(case: Case, rules: RuleSet, guided: bool, canonical: bool) -> Run:
    """A search with the median time of several; a search that doesn't find its target isn't
    repeated."""
    runs = [search(case, rules, guided, canonical)]
    while len(runs) < REPEATS and runs[-1].stop == "found":
        runs.append(search(case, rules, guided, canonical))
    return replace(runs[-1], seconds=statistics.median(run.seconds for run in runs))


def table(rules: RuleSet) -> list[Run]:
    runs = []
    for case in cases():
        for guided in (True, False):
            for canonical in (True, False):
                run = median(case, rules, guided, canonical)
                runs.append(run)
                kind = ("" if guided else "un") + "guided" + ("" if canonical else ", no forms")
                print(
                    f"{run.case:37s} {kind:18s} {run.stop:10s} {run.seconds:7.2f} s "
                    f"{run.enodes:6d} e-nodes {run.eclasses:6d} e-classes",
                    flush=True,
                )
    return runs


# ---- equal layers ------------------------------------------------------------------------------


def layers(count: int, rules: RuleSet) -> tuple[float, int]:
    """Saturate ``count`` equal layers, segment by segment; return the seconds and the number of
    distinct segments."""
    x = eqsynth.input("x", (1, 64, 28, 28))
    for n in range(count):
        x = ops.relu(ops.conv2d(x, eqsynth.weight(f"w{n}", (64, 64, 3, 3)), padding=1))
    start = time.perf_counter()
    segments = {s.key: s for s in cut(program_of(x)[0])}
    for segment in segments.values():
        session = Session(rules, log_matches=False)
        session.add(segment.roots)
        saturate(session, DEFAULT_PHASES, LIMITS)
    return time.perf_counter() - start, len(segments)


def doubling(rules: RuleSet) -> dict[int, tuple[float, int]]:
    """Number of layers -> the median seconds, measured in turns, and the distinct segments."""
    runs = [(count, layers(count, rules)) for _ in range(REPEATS) for count in (4, 8, 16)]
    result = {}
    for count in (4, 8, 16):
        own = [run for number, run in runs if number == count]
        result[count] = (statistics.median(seconds for seconds, _ in own), own[0][1])
        seconds, distinct = result[count]
        print(f"{count:2d} layers: {seconds:.2f} s, {distinct} distinct segments")
    return result


# ---- depth -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Depth:
    """The program that is extracted after at most ``rounds`` rounds of derivations: its time."""

    case: str
    rounds: int
    time_s: float
    quartiles_s: tuple[float, float]
    speedup: float
    enodes: int
    saturate_s: float


def compiled(program: Expr, rules: RuleSet, rounds: int) -> tuple[CompiledProgram, int, float]:
    """The fastest program after ``rounds`` rounds of derivations, the number of e-nodes, and the
    seconds of saturation."""
    captured = capture_expression(program)
    phases = [replace(p, rounds=rounds) if p.name == "derive" else p for p in DEFAULT_PHASES]
    graph = saturate_terms(captured.program.outputs, rules, phases, LIMITS, False)
    target = measure_cpu_target()
    profile, measurer = Profile(target.key()), Measurer(target.threads)
    backends = cpu_backends(captured.opaque)
    try:
        costs = CostModel(target, profile, "time")
        plan = extract(graph, backends, costs, measurer, 120.0).plan
    finally:
        measurer.close()
        profile.close()
    parts = assemble(captured.program, graph, plan, captured.weights, backends, 1 << 32)
    result = CompiledProgram(
        parts.parameters, parts.steps, parts.outputs, captured, parts.constants
    )
    return result, graph.enodes, graph.seconds


def by_depth(case: Case, rules: RuleSet) -> list[Depth]:
    """Fig. 17: the program at each depth, compared with the one without derivations; an empty list
    if a kernel runs for too long to be timed."""
    try:
        made = {rounds: compiled(case.program, rules, rounds) for rounds in DEPTHS}
    except ExtractionError as error:
        print(f"{case.name:37s} not timed: {error.what}", flush=True)
        return []
    inputs = [
        random_argument(i, contiguous(len(i.shape))) for i in program_of(case.program)[0].inputs
    ]

    def timed(program: CompiledProgram) -> None:
        with torch.no_grad():
            program(*inputs)

    calls = {str(r): partial(timed, program) for r, (program, _, _) in made.items()}
    start = time.perf_counter()
    timed(made[0][0])
    once = time.perf_counter() - start
    block = max(1, min(20, int(0.05 / once)))
    times = time_interleaved(calls, repeats=11 if once < 0.5 else 3, block=block)
    rows = []
    for rounds, (_, enodes, seconds) in made.items():
        own, none = times[str(rounds)], times["0"]
        rows.append(Depth(case.name, rounds, own.median_s, (own.q1_s, own.q3_s),
                          none.median_s / own.median_s, enodes, seconds))  # fmt: skip
        print(f"{case.name:37s} {rounds} rounds {own.median_s * 1e3:8.3f} ms "
              f"[{own.q1_s * 1e3:.3f}, {own.q3_s * 1e3:.3f}]  {rows[-1].speedup:5.2f} times  "
              f"{enodes:5d} e-nodes {seconds:6.2f} s", flush=True)  # fmt: skip
    return rows


PARTS = ("table", "layers", "depth")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, help="by default, all")
    options = parser.parse_args()
    parts, rules, result = options.part or PARTS, load_rules().select(), about()
    if "table" in parts:
        result["runs"] = [asdict(run) for run in table(rules)]
    if "layers" in parts:
        result["layers"] = doubling(rules)
    if "depth" in parts:
        result["depth"] = [asdict(row) for case in cases() for row in by_depth(case, rules)]
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
