"""Which rules the programs of models use, and what the search for them takes.

    python -m benchmarks.substitutions                      all models, at full size
    python -m benchmarks.substitutions --reduced            at sizes of tests: a rehearsal
    python -m benchmarks.substitutions --model nasrnn --json FILE

A rule is used if the derivation of the chosen program from the original one goes through it
(``explain().rules``; Fig. 10 of TASO counts substitutions so). Rules that say what operators are
and rules of indices are counted, and not listed: every derivation goes through them. Where the
original won the race no rule is used.
Published are the seconds of TENSAT, saturation and extraction together, and of TASO's search, on
machines of their authors: they stand beside ours, and are no ratio. A search may take 45 seconds,
so that all nine models take less than a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import eqsynth
from benchmarks import nets
from benchmarks.about import about
from benchmarks.workloads import DEPTHS, WORKLOADS, Workload
from eqsynth.explain import Explanation
from eqsynth.rules import RuleSet, load_rules

LIMIT_S: Final = 45.0


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
"""The models of TASO's Fig. 10, and TENSAT's: NasRNN of 5 steps; 8 layers of BERT, hidden 1024."""

PUBLISHED_S: Final[dict[str, tuple[float, float]]] = {
    "bert_tensat": (1.4, 13.6), "resnext50": (0.7, 25.3), "nasnet_a": (10.6, 1226.0),
    "nasrnn_tensat": (0.5, 177.0),
}  # fmt: skip
"""Seconds that TENSAT's authors published of TENSAT and of TASO."""

# Of these every derivation is made: what operators are, and the arithmetic of indices.
_PLAIN: Final = ("index.egg", "views.egg", "elementwise.egg", "operators.egg", "shape.egg")


def of_model(workload: Workload, rules: RuleSet, limit_s: float, reduced: bool) -> dict[str, Any]:
    """One model: rules of its program's derivation, seconds of the search, and who won."""
    module, inputs = workload.reduced() if reduced else workload.build()
    program = eqsynth.optimize(module, inputs, time_limit_s=limit_s)
    report = program.report
    told = program.explain()
    used = told.rules if isinstance(told, Explanation) else ()
    plain = {rule.name for rule in rules.rules if Path(rule.file).name in _PLAIN}
    stages = report.stages_s
    return {
        "model": workload.name,
        "backend": report.backend,
        "rules": [name for name in used if name not in plain],
        "plain": sum(name in plain for name in used),
        "fired": sum(report.rules_fired.values()),
        "saturate_s": round(stages.get("saturate", 0.0), 2),
        "extract_s": round(sum(stages.get(s, 0.0) for s in ("extract", "measure")), 2),
        "stop": report.stop,
        "before_ms": round(report.time_before_s * 1e3, 3),
        "after_ms": round(report.time_after_s * 1e3, 3),
        "tensat_s": PUBLISHED_S.get(workload.name, (None, None))[0],
        "taso_s": PUBLISHED_S.get(workload.name, (None, None))[1],
    }


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    published = "" if row["tensat_s"] is None else (
        f"; published: TENSAT {row['tensat_s']} s, TASO {row['taso_s']} s")  # fmt: skip
    rules = ", ".join(row["rules"]) or "none"
    return (
        f"{row['model']}: {row['saturate_s']} s to saturate ({row['stop']}), {row['extract_s']} s "
        f"to extract and measure{published}; {row['before_ms']} ms before, {row['after_ms']} ms "
        f"after, on {row['backend']}\n    {rules}; and {row['plain']} definitions and rules of "
        f"indices, of {row['fired']:,} instances that fired"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of a search")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(argv)
    rules, rows = load_rules(), []
    for name in asked.model:
        rows.append(of_model(MODELS[name], rules, asked.limit, asked.reduced))
        print(line(rows[-1]), flush=True)
    if asked.json:
        data = {**about(), "reduced": asked.reduced, "limit_s": asked.limit, "rows": rows}
        asked.json.write_text(json.dumps(data, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
