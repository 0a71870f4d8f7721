"""Seconds, e-nodes and e-classes until a derivation of EinNet's Table 3 is in the e-graph.

    python -m benchmarks.bench_derive [--json FILE]

Each case runs guided (EinNet §6.1) and unguided, from the original program alone: the target is
named by its operator and the shapes of its operands, and nothing tells the search about it. A
target that isn't found says so. The last rows are layers of a convolution and a ReLU: what twice
as many equal layers cost to saturate.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import eqsynth
from benchmarks.about import about
from eqsynth import ops
from eqsynth.egraph.laws.converging import GUIDED
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, saturate
from eqsynth.egraph.segments import cut
from eqsynth.egraph.session import Session
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.rules import RuleSet, load_rules

LIMITS = Limits(enodes=20_000, deadline_s=60.0)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A program, and the operator that a derivation of it ends in."""

    name: str
    program: Expr
    operator: str
    shapes: tuple[Shape, ...]


def cases() -> list[Case]:
    """Table 3 at its own shapes."""
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
             "Conv2d", ((16, 32, 229, 229), (4, 32, 3, 3))),
        Case("dilated G2BMM -> undilated", ops.g2bmm(q, keys, 1000, 4),
             "G2BMM", ((32, 2500, 64), (32, 2500, 64))),
    ]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What one search did. ``seconds`` is until the target was seen, or until the search ended."""

    case: str
    guided: bool
    found: bool
    stop: str
    seconds: float
    enodes: int
    eclasses: int


def search(case: Case, rules: RuleSet, guided: bool) -> Run:
    """Saturates the program of a case until its target is in the e-graph."""
    token = GUIDED.set(guided)
    try:
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
        report = saturate(session, DEFAULT_PHASES, LIMITS, met)
        seconds, found = time.perf_counter() - start, met(session)
        stop = "found" if found else report.stop
        eclasses = len(session.view().snapshot.classes)
        return Run(case.name, guided, found, stop, seconds, session.engine.enodes(), eclasses)
    finally:
        GUIDED.reset(token)


def layers(count: int, rules: RuleSet) -> tuple[float, int]:
    """(seconds, distinct segments) of saturating so many equal layers, segment by segment."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rules = load_rules().select()
    runs = [search(case, rules, guided) for case in cases() for guided in (True, False)]
    for run in runs:
        kind = "guided" if run.guided else "unguided"
        print(f"{run.case:37s} {kind:9s} {run.stop:10s} {run.seconds:7.2f} s "
              f"{run.enodes:6d} e-nodes {run.eclasses:6d} e-classes")  # fmt: skip
    doubling = {count: layers(count, rules) for count in (4, 8)}
    for count, (seconds, distinct) in doubling.items():
        print(f"{count} layers: {seconds:.2f} s, {distinct} distinct segments")
    if options.json:
        result = {**about(), "runs": [asdict(run) for run in runs], "layers": doubling}
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
