"""Count the rules that the optimized programs of models use, and time the search for them.

    python -m benchmarks.substitutions                      all models, at full size
    python -m benchmarks.substitutions --reduced            at sizes of tests: a rehearsal
    python -m benchmarks.substitutions --model nasrnn --json FILE [--resume]

A rule is used if it occurs in the derivation of the plan from the original program
(``explain().rules``), as substitutions are counted in [TASO Fig. 10]. Definitions of operators and
rules of indices occur in every derivation: these are counted but not listed. The plan uses
eqsynth's own kernels, even if the original program or an engine would win the race of ``optimize``;
the times of the plan and of the original are both printed. Each model starts with empty caches.
Saturation and extraction may take 45 seconds each.

The published times (TENSAT's saturation and extraction together, TASO's search) are printed beside
eqsynth's without a ratio, since they were measured on their authors' machines. The JSON file is
written after each model; ``--resume`` keeps its rows if commit, machine and limit are the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import nets
from benchmarks.about import about
from benchmarks.bench_optimize import empty_caches
from benchmarks.searches import agrees, grown, milliseconds, planner
from benchmarks.workloads import DEPTHS, WORKLOADS, Workload
from eqsynth.explain import Explanation
from eqsynth.extract.timing import time_interleaved
from eqsynth.numerics import rules_of
from eqsynth.rules import RuleSet

LIMIT_S: Final = 45.0
_RACE_S: Final = 5.0


def _bert(name: str, layers: int, length: int, hidden: int, heads: int) -> Workload:
    return replace(
        DEPTHS["bert_2"],
        name=name,
        full=lambda _: (nets.bert(layers, hidden, heads, 4 * hidden), ((1, length, hidden),)),
        small=lambda: (nets.bert(min(layers, 2), 8, 2, 16), ((1, 4, 8),)),
    )


MODELS: Final[dict[str, Workload]] = {
    **{name: WORKLOADS[name] for name in ("resnet50", "resnext50", "nasnet_a", "nasrnn")},
    **{own.name: own for own in (_bert(f"bert_{n}", n, 64, 768, 12) for n in (1, 2, 12))},
    "nasrnn_tensat": replace(
        WORKLOADS["nasrnn"],
        name="nasrnn_tensat",
        full=lambda b: (nets.NasRnn(), ((5, b, 512), (b, 512))),
    ),
    "bert_tensat": _bert("bert_tensat", 8, 64, 1024, 16),
}
"""The models of [TASO Fig. 10], and two of TENSAT's: NasRNN with 5 steps; BERT with 8 layers of
hidden size 1024."""

PUBLISHED_S: Final[dict[str, tuple[float, float]]] = {
    "bert_tensat": (1.4, 13.6), "resnext50": (0.7, 25.3), "nasnet_a": (10.6, 1226.0),
    "nasrnn_tensat": (0.5, 177.0),
}  # fmt: skip
"""Model -> the times (s) of TENSAT and of TASO, both as TENSAT's authors published them."""

# The files whose rules occur in every derivation: definitions of operators, and rules of indices.
_PLAIN: Final = ("index.egg", "views.egg", "elementwise.egg", "operators.egg", "shape.egg")


def of_model(workload: Workload, rules: RuleSet, limit_s: float, reduced: bool) -> dict[str, Any]:
    """The row of one model: the rules in its plan's derivation, the times of the search, and the
    times of the original program and of the plan.

    Raises:
        AssertionError: the program's result isn't the model's.
    """
    module, inputs = workload.reduced() if reduced else workload.build()
    with empty_caches():
        own = grown(module, inputs, rules, limit_s)
        begin = time.monotonic()
        with planner(own) as search:
            found = search.plan(limit_s)
            extract_s, program = time.monotonic() - begin, search.program(found.plan)
    told = own.explained(found.plan)
    used = told.rules if isinstance(told, Explanation) else ()
    assert agrees(program, module, inputs), f"{workload.name}: another result"
    calls = {"before": lambda: module(*inputs), "after": lambda: program(*inputs)}
    with torch.no_grad():
        times = time_interleaved(calls, block=3, limit_s=_RACE_S)
    return {
        "model": workload.name,
        "rules": [name for name in used if _file_of(rules, name) not in _PLAIN],
        "plain": sum(_file_of(rules, name) in _PLAIN for name in used),
        "fired": sum(own.graph.matches.values()),
        "enodes": own.graph.enodes,
        "segments": len(own.saturation.segments),
        "distinct": own.saturation.distinct,
        "saturate_s": round(own.seconds, 2),
        "extract_s": round(extract_s, 2),
        "measure_s": round(search.measurer.spent_s, 2),
        "stop": own.stop,
        "before_ms": milliseconds(times["before"].median_s),
        "after_ms": milliseconds(times["after"].median_s),
        "tensat_s": PUBLISHED_S.get(workload.name, (None, None))[0],
        "taso_s": PUBLISHED_S.get(workload.name, (None, None))[1],
    }


def _file_of(rules: RuleSet, name: str) -> str:
    return next((Path(rule.file).name for rule in rules.rules if rule.name == name), "")


def line(row: dict[str, Any]) -> str:
    """A model's row as text."""
    published = "" if row["tensat_s"] is None else (
        f"; published: TENSAT {row['tensat_s']} s, TASO {row['taso_s']} s")  # fmt: skip
    rules = ", ".join(row["rules"]) or "none"
    return (
        f"{row['model']}: {row['saturate_s']} s to saturate {row['distinct']} of "
        f"{row['segments']} segments ({row['stop']}; {row['enodes']:,} e-nodes), "
        f"{row['extract_s']} s to extract, {row['measure_s']} of them to time kernels{published}; "
        f"eager {row['before_ms']} ms, the plan {row['after_ms']} ms\n    {rules}; and "
        f"{row['plain']} definitions and rules of indices, of {row['fired']:,} instances that fired"
    )


def known_rows(path: Path, origin: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file, if they were measured under the conditions in ``origin`` (commit,
    machine, limit); else none."""
    if not path.exists():
        return []
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = before.pop("rows")
    return rows if before == json.loads(json.dumps(origin)) else []


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S,
                        help="seconds of saturation, and of extraction")  # fmt: skip
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file")
    asked = parser.parse_args(argv)
    if asked.resume and not asked.json:
        parser.error("--resume needs the rows of --json FILE")
    origin = {**about(), "reduced": asked.reduced, "limit_s": asked.limit}
    rules = rules_of((), "real", where="benchmarks.substitutions")
    rows = known_rows(asked.json, origin) if asked.resume else []
    done = {row["model"] for row in rows}
    for name in asked.model:
        if name in done:
            continue
        rows.append(of_model(MODELS[name], rules, asked.limit, asked.reduced))
        print(line(rows[-1]), flush=True)
        if asked.json:
            text = json.dumps({**origin, "rows": rows}, indent=2)
            asked.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
