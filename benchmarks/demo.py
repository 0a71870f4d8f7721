"""`make demo`: five real programs are optimized and compared with torch eager, in one table.

Times are medians of runs that take turns with torch eager in the same process; each ratio has both
raw times beside it. Only the agreement of results with eager is asserted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import eqsynth
from benchmarks.workloads import WORKLOADS
from eqsynth.extract.timing import time_interleaved
from eqsynth.lower.program import CompiledProgram
from eqsynth.peers import rules_by_use

_NETS = ("resnet18", "linear_attention", "bottleneck", "gcn")


@dataclass(frozen=True)
class Row:
    """A line of the table; times are in seconds."""

    workload: str
    eager_s: float
    eager_quartiles_s: tuple[float, float]
    eqsynth_s: float
    eqsynth_quartiles_s: tuple[float, float]
    ratio: float
    flops_before: int
    flops_after: int
    error_rel: float
    enodes: int
    optimize_s: float
    rules: tuple[str, ...]
    backend: str


def einnet_convolution() -> tuple[
    CompiledProgram, Callable[..., torch.Tensor], tuple[torch.Tensor, ...]
]:
    """EinNet's Conv3x3 (its Table 3) as a scope, and the same convolution in torch eager."""
    height, width, channels, filters = 7, 7, 512, 512
    weight = torch.randn(3, 3, filters, channels) * 0.02
    x = eqsynth.input("X", (height, width, channels))
    k = eqsynth.weight("K", (3, 3, filters, channels), value=weight)
    expression = eqsynth.scope(
        lambda h, w, f: eqsynth.sum(
            lambda r, s, c: x[h + r - 1, w + s - 1, c] * k[r, s, f, c], r=3, s=3, c=channels
        ),
        h=height,
        w=width,
        f=filters,
    )
    kernel = weight.permute(2, 3, 0, 1).contiguous()

    def eager(image: torch.Tensor) -> torch.Tensor:
        nchw = image.permute(2, 0, 1).unsqueeze(0)
        return torch.nn.functional.conv2d(nchw, kernel, padding=1)[0].permute(1, 2, 0)

    return eqsynth.optimize(expression), eager, (torch.randn(height, width, channels),)


def measure(name: str) -> Row:
    """Optimize one program, and time it and eager in turns."""
    torch.manual_seed(0)
    if name == "einnet_conv3x3":
        program, eager, inputs = einnet_convolution()
    else:
        eager, inputs = WORKLOADS[name].build(1)
        program = eqsynth.optimize(eager, inputs)
    with torch.no_grad():
        expected = eager(*inputs)
        error = (program(*inputs) - expected).abs().max() / expected.abs().max()
        begin = time.perf_counter()
        eager(*inputs)
        block = max(1, min(50, int(0.05 / (time.perf_counter() - begin))))
        times = time_interleaved(
            {"eager": lambda: eager(*inputs), "eqsynth": lambda: program(*inputs)},
            repeats=11,
            block=block,
        )
    report = program.report
    return Row(
        workload=name,
        eager_s=times["eager"].median_s,
        eager_quartiles_s=(times["eager"].q1_s, times["eager"].q3_s),
        eqsynth_s=times["eqsynth"].median_s,
        eqsynth_quartiles_s=(times["eqsynth"].q1_s, times["eqsynth"].q3_s),
        ratio=times["eager"].median_s / times["eqsynth"].median_s,
        flops_before=report.flops_before,
        flops_after=report.flops_after,
        error_rel=float(error),
        enodes=report.enodes,
        optimize_s=report.optimize_s,
        rules=rules_by_use(program)[:3],
        backend=report.backend,
    )


def _ms(median_s: float, quartiles_s: tuple[float, float]) -> str:
    low, high = quartiles_s
    return f"{median_s * 1e3:.3f} [{low * 1e3:.3f}, {high * 1e3:.3f}]"


def table(rows: list[Row]) -> Table:
    result = Table(title="eqsynth against torch eager")
    for column in ("workload", "eager ms", "eqsynth ms", "ratio", "FLOPs before", "FLOPs after",
                   "error", "e-nodes", "seconds", "rules that mattered", "runs on"):  # fmt: skip
        result.add_column(column, justify="left" if column[0] in "wr" else "right")
    for r in rows:
        result.add_row(
            r.workload,
            _ms(r.eager_s, r.eager_quartiles_s),
            _ms(r.eqsynth_s, r.eqsynth_quartiles_s),
            f"{r.ratio:.2f}",
            f"{r.flops_before:,}",
            f"{r.flops_after:,}",
            f"{r.error_rel:.1e}",
            f"{r.enodes:,}",
            f"{r.optimize_s:.1f}",
            ", ".join(r.rules),
            r.backend,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=[*_NETS, "einnet_conv3x3"])
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    console = Console(width=220)
    rows = []
    for name in options.workloads:
        rows.append(measure(name))
        console.print(f"{name}: {rows[-1].ratio:.2f} times torch eager")
    console.print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
