"""What a time limit costs in seconds: the limit, the whole, and each stage.

    python -m benchmarks.bench_deadlines [--limit 0.01 --limit 5] [--program layers60] [--json FILE]

Printed, not asserted: the search (saturate, extract) is to end within the limit, a fifth of it and
a second. Each run has an empty profile, so that there is something to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import eqsynth
from benchmarks.about import about
from benchmarks.workloads import WORKLOADS

LIMITS: Final = (0.01, 1.0, 5.0, 30.0)

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def layers60() -> Made:
    """Sixty layers, no two of one size: sixty different segments."""
    torch.manual_seed(0)
    activations = (nn.ReLU, nn.Tanh, nn.Sigmoid)
    parts = [p for n in range(60) for p in (nn.Linear(16 + n, 17 + n), activations[n % 3]())]
    return nn.Sequential(*parts).eval(), (torch.randn(4, 16),)


def transformer_layer() -> Made:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return layer.eval(), (torch.randn(2, 16, 64),)


def resnet18() -> Made:
    module, inputs = WORKLOADS["resnet18"].reduced()
    return module, tuple(inputs)


PROGRAMS: Final[dict[str, Callable[[], Made]]] = {
    f.__name__: f for f in (layers60, transformer_layer, resnet18)
}


def measure(name: str, limit_s: float) -> dict[str, Any]:
    """One optimization under a limit, with a profile that is empty."""
    module, inputs = PROGRAMS[name]()
    cache = os.environ.get("EQSYNTH_CACHE")
    with tempfile.TemporaryDirectory() as directory:
        os.environ["EQSYNTH_CACHE"] = directory
        try:
            # The machine is measured once, which no limit bounds.
            eqsynth.optimize(nn.ReLU().eval(), (torch.ones(3),), time_limit_s=0.01)
            report = eqsynth.optimize(module, inputs, time_limit_s=limit_s).report
        finally:
            if cache is None:
                del os.environ["EQSYNTH_CACHE"]
            else:
                os.environ["EQSYNTH_CACHE"] = cache
    search_s = sum(report.stages_s.get(stage, 0.0) for stage in ("saturate", "extract", "measure"))
    return {
        "program": name,
        "limit_s": limit_s,
        "search_s": search_s,
        "allowed_s": 1.2 * limit_s + 1.0,
        "total_s": report.optimize_s,
        "stages_s": dict(report.stages_s),
        "stop": report.stop,
        "kernels_timed": report.kernels_timed,
        "kernels_estimated": report.kernels_estimated,
        "backend": report.backend,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, action="append", help="seconds; several times")
    parser.add_argument("--program", choices=sorted(PROGRAMS), action="append")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for name in asked.program or PROGRAMS:
        for limit_s in asked.limit or LIMITS:
            row = measure(name, limit_s)
            rows.append(row)
            stages = "  ".join(f"{stage} {s:.2f}" for stage, s in row["stages_s"].items())
            print(
                f"{name:<18} limit {limit_s:>6g}  search {row['search_s']:>6.2f}"
                f"  total {row['total_s']:>6.2f}  timed {row['kernels_timed']:>4}"
                f"  {row['stop']}\n{'':<18} {stages}"
            )
    if asked.json:
        asked.json.write_text(json.dumps({**about(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
