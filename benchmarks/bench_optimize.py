"""The cost of an optimization by stage: cold, warm in the same process, and warm in another one.

Beside it is the time that frozen Inductor takes to compile the same model.

    python -m benchmarks.bench_optimize [--only NAME ...] [--limit MINUTES] [--reduced]
                                         [--json FILE [--resume]] [--plot FILE.svg]
                                         [--part {requests,search,other,inductor} ...]

By default, BERTs of 2, 4, 8 and 12 layers and all nets are measured. Seconds are those of the
clock; CPU seconds are those of all processes together. Cold means empty cache directories of
eqsynth and Inductor, and a process that has loaded only torch. ``measure`` is the time spent
waiting for the times of kernels. Requests of laws are counted as asked and as known (see
``bench_saturate.py``), at the sizes of tests, since rules don't depend on sizes; beside them are
the seconds of the slowest rules and laws. The last line is the overhead of calling a compiled
program, compared with calling its operators by hand.

The file is written after each workload. ``--resume`` keeps the rows of this commit and machine, and
measures the others; a workload that fails has its error in its row, and is measured again.
``--part`` chooses parts, and ``--limit`` starts no workload after that many minutes. ``--plot``
draws the seconds of the stages against layers, e-nodes and kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import eqsynth
from benchmarks import bench_saturate, curve
from benchmarks.about import about
from benchmarks.spending import Run, Spent, built, compiled, optimized
from benchmarks.workloads import DEPTHS, MEASURED, NETS
from eqsynth.egraph.segments import cut
from eqsynth.executor import Worker
from eqsynth.extract.timing import time_interleaved
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.program import CompiledProgram
from eqsynth.rules import load_rules

PARTS = ("requests", "search", "other", "inductor")
"""The parts of a row: requests of laws; cold and warm; warm in another process; Inductor."""
STAGES = ("capture", "saturate", "extract", "measure", "lower", "check", "race")
_CACHES = ("EQSYNTH_CACHE", "TORCHINDUCTOR_CACHE_DIR")


@dataclass
class Row:
    """The measurements of a workload; ``inductor`` is the compilation with frozen weights.

    Attributes:
        saturation: rule or law -> its seconds during saturation.
        error: what went wrong; empty if nothing did. Earlier measurements stay in the row.
    """

    workload: str
    seed: int
    asked: int = 0
    known: int = 0
    saturation: dict[str, dict[str, float]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    inductor: Spent = field(default_factory=Spent)
    error: str = ""


def measured(workload: str, reduced: bool, parts: Collection[str] = PARTS) -> Row:
    """Measure the given parts of a row, each in a process with empty caches."""
    row = Row(workload, MEASURED[workload].seed)
    try:
        _measure(row, reduced, parts)
    except Exception as error:
        row.error = f"{type(error).__name__}: {error}"
    return row


def _measure(row: Row, reduced: bool, parts: Collection[str]) -> None:
    workload, threads = row.workload, torch.get_num_threads()
    if "requests" in parts:
        module, inputs = built(workload, reduced=True)
        segments = {segment.key: segment.roots for segment in cut(capture(module, inputs).program)}
        rules = load_rules().select()
        with empty_caches():
            requests = bench_saturate.measured(workload, list(segments.values()), rules)
            row.asked, row.known = requests.asked, requests.known
            row.saturation = {"rules": requests.rules, "laws": requests.laws}
    if "search" in parts:
        with empty_caches():
            with Worker(threads=threads) as worker:
                first, second = worker.run(optimized, workload, reduced, threads, 2)
            row.runs = {"cold": first, "warm": second}
            if "other" in parts:
                with Worker(threads=threads) as worker:
                    (third,) = worker.run(optimized, workload, reduced, threads, 1)
                row.runs["other process"] = third
    if "inductor" in parts:
        with empty_caches(), Worker(threads=threads) as worker:
            row.inductor = worker.run(compiled, workload, reduced, threads)


@contextmanager
def empty_caches() -> Iterator[None]:
    """Give processes that start inside of this block empty cache directories of eqsynth and
    Inductor."""
    before = {name: os.environ.get(name) for name in _CACHES}
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update({name: str(Path(directory) / name) for name in _CACHES})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


def call_overhead() -> dict[str, Any]:
    """Measure what a call of a compiled program costs more than a plain function of the same
    operators."""
    layers = 16
    module = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers))).eval()
    x = torch.randn(4, 16)
    program = eqsynth.optimize(module, (x,), objective="flops", check=False)
    straight = straight_function(program)
    times = time_interleaved(
        {"program": lambda: program(x), "straight": lambda: straight(x)}, repeats=15, block=200
    )
    return {
        "operators": len(program.steps),
        "program_s": times["program"].median_s,
        "straight_s": times["straight"].median_s,
        "overhead_s_an_operator": (times["program"].median_s - times["straight"].median_s)
        / max(len(program.steps), 1),
    }


def straight_function(program: CompiledProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    """A plain function that calls the program's operators one after the other."""
    runners = [step.runner for step in program.steps]

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for runner in runners:
                x = runner(x)
        return x

    return run


def show(row: Row) -> None:
    print(f"{row.workload}: {row.asked:,} requests asked, {row.known:,} known")
    for kind, spent_s in row.saturation.items():
        print(f"  {kind:14} {bench_saturate.slowest(spent_s)}")
    if "cold" in row.runs:
        cold = row.runs["cold"]
        print(
            f"  {cold.enodes:,} e-nodes, {cold.timed} of {cold.considered} kernels timed, "
            f"{cold.before_s * 1e3:.2f} -> {cold.after_s * 1e3:.2f} ms"
        )
    for name, run in row.runs.items():
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in run.stages_s.items())
        print(f"  {name:14} {_seconds(run.spent)}: {stages}")
    if row.inductor.wall_s:
        print(f"  {'Inductor':14} {_seconds(row.inductor)}")
    if row.error:
        print(f"  failed: {row.error}")
    print(end="", flush=True)


def _seconds(spent: Spent) -> str:
    peak = spent.peak_bytes / 2**30
    return f"{spent.wall_s:6.1f} s, {spent.cpu_s:6.1f} s of CPU, {peak:.2f} GiB"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The seconds of the runs as a table, one line for each, with Inductor's compilation."""
    titles = ("e-nodes", "asked", "known", "timed", *STAGES, "all", "CPU", "GiB", "Inductor", "CPU")
    lines = [f"{'':33}" + "".join(f"{title:>9}" for title in titles)]
    for row in rows:
        inductor = row["inductor"]
        for name, run in row["runs"].items():
            counts = (run["enodes"], row["asked"], row["known"], run["timed"])
            spent, stages = run["spent"], run["stages_s"]
            seconds = [*(stages.get(stage, 0.0) for stage in STAGES), spent["wall_s"]]
            seconds += [spent["cpu_s"], spent["peak_bytes"] / 2**30]
            seconds += [inductor["wall_s"], inductor["cpu_s"]]
            cells = [*(f"{n:9,}" for n in counts), *(f"{s:9.1f}" for s in seconds)]
            lines.append(f"{row['workload']:18} {name:14}" + "".join(cells))
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """An SVG document of the seconds of cold searches, against the layers of a BERT, the e-nodes,
    and the timed kernels."""
    cold = {row["workload"]: row for row in rows if "cold" in row["runs"]}
    deep = {name: cold[name] for name in DEPTHS if name in cold}
    layers = {name: float(name.rpartition("_")[2]) for name in deep}
    by_stage = {
        stage: [
            (layers[n], row["runs"]["cold"]["stages_s"].get(stage, 0.0)) for n, row in deep.items()
        ]
        for stage in ("saturate", "extract", "measure")
    }
    wholes: dict[str, list[tuple[float, float]]] = {
        run: [(layers[n], row["runs"][run]["spent"]["wall_s"]) for n, row in deep.items()]
        for run in ("cold", "warm")
    }
    wholes["Inductor"] = [(layers[n], row["inductor"]["wall_s"]) for n, row in deep.items()]
    runs = [row["runs"]["cold"] for row in cold.values()]
    of_enodes = {
        stage: [(run["enodes"], run["stages_s"].get(stage, 0.0)) for run in runs if run["enodes"]]
        for stage in ("saturate", "extract")
    }
    of_kernels = [
        (run["timed"], run["stages_s"].get("measure", 0.0)) for run in runs if run["timed"]
    ]
    plots = [
        ("BERT of so many layers", "layers", {**wholes, **by_stage}, True),
        ("all workloads, cold", "e-nodes", of_enodes, False),
        ("all workloads, cold", "kernels timed", {"measure": of_kernels}, False),
    ]  # fmt: skip
    return curve.below_each_other(
        [
            curve.svg(title, across, "s", {k: v for k, v in curves.items() if v}, joined)
            for title, across, curves, joined in plots
            if any(curves.values())
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*DEPTHS, *(net.name for net in NETS)]
    parser.add_argument("--only", nargs="*", default=names, metavar="NAME", choices=MEASURED)
    parser.add_argument("--limit", type=float, default=math.inf, metavar="MINUTES")
    parser.add_argument("--reduced", action="store_true", help="at the sizes of tests")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file")
    parser.add_argument("--plot", type=Path, help="draw seconds against sizes to this file")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments)
    end = time.monotonic() + 60.0 * options.limit
    result: dict[str, Any] = {
        **about(),
        "threads": torch.get_num_threads(),
        "reduced": options.reduced,
        "parts": sorted(options.part),
        "rows": [],
    }
    result["rows"] = rows = known_rows(options.json, result) if options.resume else []
    for workload in options.only:
        if any(row["workload"] == workload for row in rows):
            print(f"{workload}: in the file")
            continue
        if time.monotonic() >= end:
            print(f"{workload}: not begun within {options.limit:g} minutes")
            continue
        row = measured(workload, options.reduced, options.part)
        show(row)
        rows.append(asdict(row))
        _write(options, result)
    if not rows:
        return
    print(table(rows))
    result["overhead"] = overhead = call_overhead()
    print(f"call overhead: program {overhead['program_s'] * 1e6:.1f} us, straight Python "
          f"{overhead['straight_s'] * 1e6:.1f} us, {overhead['operators']} operators: "
          f"{overhead['overhead_s_an_operator'] * 1e6:.2f} us an operator")  # fmt: skip
    _write(options, result)


def known_rows(path: Path | None, result: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file that were measured with the same commit, machine and settings, without
    those that failed."""
    if path is None or not path.exists():
        return []
    # Compared in the form that JSON gives back, where tuples are lists.
    before, now = json.loads(path.read_text()), json.loads(json.dumps(result))
    same = ("machine", "versions", "commit", "threads", "reduced", "parts")
    if any(before.get(key) != now[key] for key in same):
        return []
    return [row for row in before["rows"] if not row["error"]]


def _write(options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2))
    if options.plot is not None and any("cold" in row["runs"] for row in result["rows"]):
        options.plot.write_text(plot(result["rows"]))


if __name__ == "__main__":
    main()
