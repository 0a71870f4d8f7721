"""Time limits: how long a call of ``optimize`` with a limit really takes, in all and by stage.

    python -m benchmarks.bench_deadlines [--limit 0.01 --limit 5] [--program layers60] [--json FILE]
    python -m benchmarks.bench_deadlines --curve [--plot FILE.svg] [--json FILE [--resume]]

Times are printed, not asserted. The whole call should end within the limit, except for the check of
a slow module. Each run has a process of its own and empty caches, so that kernels are measured; the
machine's peaks are measured once for all runs.

``--curve`` shows what more time is worth: twenty limits from half a second to two minutes, on four
workloads at full size. After each run, the optimized program and the original are timed in turns;
the exit status is 1 if an optimized program is slower. It takes half an hour, on a machine that
does nothing else. Rows are written as they are measured, and ``--resume`` continues from them.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import eqsynth
from benchmarks import curve
from benchmarks.about import about
from benchmarks.workloads import WORKLOADS
from eqsynth.executor import Worker
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.timing import time_interleaved

LIMITS: Final = (0.01, 1.0, 5.0, 30.0)
CACHES: Final = ("EQSYNTH_CACHE", "TORCHINDUCTOR_CACHE_DIR")

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def layers60() -> Made:
    """Sixty layers of different sizes, which give sixty different segments."""
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


def _of_workload(name: str) -> Callable[[], Made]:
    def build() -> Made:
        module, inputs = WORKLOADS[name].build(1)
        return module, tuple(inputs)

    return build


CURVE: Final = ("resnet18", "bert64", "lstm", "nasrnn")
"""The workloads of ``--curve``: one that libraries run well, one of products and small operators,
and two of very many small operators, which the search changes most."""

WHOLE: Final[dict[str, Callable[[], Made]]] = {f"{n} whole": _of_workload(n) for n in CURVE}

CURVE_LIMITS: Final = tuple(round(0.5 * 240 ** (n / 19), 3) for n in range(20))

SLOWER: Final = 1.05
"""A program counts as slower if it takes more than this many times the original's time. Two timings
of one program differ by that much."""


def measure(name: str, limit_s: float, threads: int, timed: bool) -> dict[str, Any]:
    """One optimization under a time limit; the task of a process with empty caches.

    Args:
        timed: whether to time the optimized program and the original in turns.
    """
    torch.set_num_threads(threads)
    module, inputs = {**PROGRAMS, **WHOLE}[name]()
    # This loads everything that a process loads once, which the limit isn't meant for.
    eqsynth.optimize(nn.ReLU().eval(), (torch.ones(3),), time_limit_s=0.01)
    program = eqsynth.optimize(module, inputs, time_limit_s=limit_s, progress=False)
    report = program.report
    search_s = sum(report.stages_s.get(stage, 0.0) for stage in ("saturate", "extract", "measure"))
    row = {
        "program": name,
        "limit_s": limit_s,
        "search_s": search_s,
        "total_s": report.optimize_s,
        "stages_s": dict(report.stages_s),
        "stop": report.stop,
        "kernels_timed": report.kernels_timed,
        "kernels_estimated": report.kernels_estimated,
        "backend": report.backend,
        "enodes": report.enodes,
    }
    if timed:
        with torch.no_grad():
            both = {"before": lambda: module(*inputs), "after": lambda: program(*inputs)}
            times = time_interleaved(both, repeats=9)
        row |= {f"{which}_s": asdict(timing) for which, timing in times.items()}
    return row


@functools.cache
def measured(threads: int) -> Path:
    """A cache directory that holds only the measured peaks of this machine."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    before = os.environ.get(CACHES[0])
    os.environ[CACHES[0]] = str(directory)
    try:
        with Worker(threads=threads) as worker:
            worker.run(measure_target, threads)
    finally:
        os.environ.pop(CACHES[0])
        os.environ.update({} if before is None else {CACHES[0]: before})
    return directory


def measure_target(threads: int) -> None:
    """Measure the machine's peaks; the task of a process."""
    torch.set_num_threads(threads)
    measure_cpu_target()


def apart(name: str, limit_s: float, timed: bool) -> dict[str, Any]:
    """``measure`` in a process of its own, with caches of its own."""
    before = {cache: os.environ.get(cache) for cache in CACHES}
    threads = torch.get_num_threads()
    known = measured(threads)
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update({cache: str(Path(directory) / cache) for cache in CACHES})
        shutil.copytree(known, os.environ[CACHES[0]])
        try:
            with Worker(threads=threads) as worker:
                return worker.run(measure, name, limit_s, threads, timed)
        finally:
            for cache, value in before.items():
                os.environ.pop(cache, None)
                os.environ.update({} if value is None else {cache: value})


def is_slower(row: Mapping[str, Any]) -> bool:
    """Whether the optimized program is slower than the original; False if they weren't timed."""
    if "after_s" not in row:
        return False
    return bool(row["after_s"]["q1_s"] > SLOWER * row["before_s"]["q3_s"])


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Program -> pairs of a time limit and the speedup over the original."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if "after_s" in row:
            gain = row["before_s"]["median_s"] / row["after_s"]["median_s"]
            found.setdefault(row["program"], []).append((row["limit_s"], gain))
    return found


def shown(row: Mapping[str, Any]) -> str:
    stages = "  ".join(f"{stage} {s:.2f}" for stage, s in row["stages_s"].items())
    text = (
        f"{row['program']:<18} limit {row['limit_s']:>6g}  search {row['search_s']:>6.2f}"
        f"  total {row['total_s']:>6.2f}  timed {row['kernels_timed']:>4}"
        f"  {row['stop']}\n{'':<18} {stages}"
    )
    if "after_s" not in row:
        return text
    before, after = (row[f"{which}_s"]["median_s"] * 1e3 for which in ("before", "after"))
    slower = "  SLOWER than the original" if is_slower(row) else ""
    return f"{text}\n{'':<18} {before:.3f} -> {after:.3f} ms by {row['backend']}{slower}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    every = {**PROGRAMS, **WHOLE}
    parser.add_argument("--limit", type=float, action="append", help="seconds; several times")
    parser.add_argument("--program", choices=sorted(every), action="append")
    parser.add_argument("--curve", action="store_true", help="what more time is worth")
    parser.add_argument("--plot", type=Path, help="draw the curves to this file")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the rows of --json")
    asked = parser.parse_args(arguments)
    timed = asked.curve or asked.plot is not None
    rows: list[dict[str, Any]] = []
    if asked.resume and asked.json and asked.json.exists():
        rows = json.loads(asked.json.read_text())["rows"]
    done = {(row["program"], row["limit_s"]) for row in rows}
    for name in asked.program or (WHOLE if asked.curve else PROGRAMS):
        for limit_s in asked.limit or (CURVE_LIMITS if asked.curve else LIMITS):
            if (name, limit_s) in done:
                continue
            rows.append(apart(name, limit_s, timed))
            print(shown(rows[-1]), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps({**about(), "rows": rows}, indent=2))
            if asked.plot:
                title = "how many times as fast as the original, by the limit of the search"
                asked.plot.write_text(curve.svg(title, "limit, s", "times", gains(rows)))
    slower = [row for row in rows if is_slower(row)]
    print(f"{len(rows)} runs, {len(slower)} slower than the original" if timed else "")
    return int(bool(slower))


if __name__ == "__main__":
    # A worker imports its task by the module's name, and in the worker ``__main__`` is another
    # module.
    from benchmarks.bench_deadlines import main as command

    sys.exit(command())
