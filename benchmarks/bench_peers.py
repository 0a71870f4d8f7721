"""eqsynth compared with torch eager, frozen Inductor, ONNX Runtime and OpenVINO.

Workloads of convolutions at batch 1 are also compared with ncnn and MNN, which have Winograd
kernels.

    python -m benchmarks.bench_peers [--suite algebra ...] [--workload NAME ...] [--batch N ...]
                                     [--native] [--json FILE [--resume]] [--plot FILE]
    python -m benchmarks.bench_peers --device cuda

A time is the median over blocks that the engines run in turns, with its quartiles; each ratio has
both of its times beside it. The table is refused if an installed peer, a workload or a batch size
is missing, and a ratio is left out if eqsynth's result is wrong. Rows are written to the JSON file
as they are measured, so that an interrupted run loses at most one row, and ``--resume`` measures
the missing rows. ``--native`` adds eqsynth without other engines. ``--device cuda`` measures on
this machine's GPU, with the engines of ``gpu_peers.py``: all nets, algebra and kernels by default,
into a file in ``benchmarks/results/`` that is named after the device, unless ``--json`` is given.
The suites are defined in ``workloads.py``.

The profile of measured kernels starts empty and is shared by the rows, so that ``optimize_s`` is
the time of a first optimization (the first row also measures the machine); ``--warm`` uses your
profile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import gpu_peers, zoo
from benchmarks.about import about
from benchmarks.curve import bars
from benchmarks.peers import ENGINES, OURS, WITHOUT_ENGINES, Engine, takes
from benchmarks.side_by_side import Row, measure
from benchmarks.workloads import MEASURED, SUITES, Measured, RealModel
from eqsynth.side_by_side import PAUSE_S

# The suites that are measured on a GPU by default.
_ON_GPU = ("nets", "algebra", "kernels")
# The part of the gain of a rewriting by hand that eqsynth should reach.
_OF_BY_HAND = 0.8

Case = tuple[Measured, int]


def holes(rows: Sequence[Row], cases: Sequence[Case], engines: Sequence[Engine]) -> list[str]:
    """The workloads, batch sizes and engines that are missing in a table of these rows, with
    reasons."""
    found = {(row.workload, row.batch): row for row in rows}
    result = []
    for workload, batch in cases:
        title = f"{workload.name} at batch {batch}"
        row = found.get((workload.name, batch))
        if row is None:
            result.append(f"{title}: not measured")
            continue
        result += [f"{title}: {name}: {reason}" for name, reason in row.failed.items()]
        result += [
            f"{title}: {engine.name}: no times"
            for engine in engines
            if takes(engine, workload, batch)
            and engine.name not in row.median_s
            and engine.name not in row.failed
        ]
    return result


def table(rows: Sequence[Row], engines: Sequence[Engine], device: str = "cpu") -> Table:
    """The table: a line for each workload and batch size, with times in ms and quartiles below."""
    where = "" if device == "cpu" else f" on {device}"
    title = f"eqsynth side by side with its peers{where}, fp32; medians in ms [quartiles]"
    result = Table(title=title)
    for column in ("workload", "batch", *(engine.name for engine in engines), "best peer",
                   "best peer /\neqsynth", "best peer /\nnative", "on\nengines",
                   f"{_OF_BY_HAND:.0%} of\nby hand", "error", "FLOPs", "optimize s"):  # fmt: skip
        result.add_column(column, justify="left" if column == "workload" else "right")
    for row in rows:
        result.add_row(
            row.workload,
            "-" if row.reduced else str(row.batch),
            *(_cell(row, engine.name) for engine in engines),
            row.best_peer or "",
            _number(row.ratio_over_best_peer, ".2f"),
            _number(row.ratio_native, ".2f"),
            _number(row.foreign_share, ".0%"),
            _against_hand(row),
            _number(row.error_rel, ".0e"),
            f"{_number(row.flops_before, ',')}\n-> {_number(row.flops_after, ',')}",
            _number(row.optimize_s, ".1f"),
        )
    return result


def means(rows: Sequence[Row]) -> str:
    """Geometric means over the rows that have a ratio."""
    ratios = [r.ratio_over_best_peer for r in rows if r.ratio_over_best_peer is not None]
    if not ratios:
        return "no ratios"
    text = f"geometric mean of {len(ratios)} ratios over the best peer: "
    text += f"{statistics.geometric_mean(ratios):.2f}"
    if native := [r.ratio_native for r in rows if r.ratio_native is not None]:
        text += f"; of {len(native)} without engines: {statistics.geometric_mean(native):.2f}"
    by_hand = [r.by_hand for r in rows if r.ratio_over_best_peer is not None and r.by_hand]
    if len(by_hand) == len(ratios):
        text += f" (by hand {statistics.geometric_mean(by_hand):.2f})"
    return text


def line(row: Row) -> str:
    """A row as one line of text."""
    times = ", ".join(f"{name} {s * 1e3:.3f} ms" for name, s in row.median_s.items())
    ratio = f": {row.ratio_over_best_peer:.2f}" if row.ratio_over_best_peer is not None else ""
    ratio += f", without engines {row.ratio_native:.2f}" if row.ratio_native is not None else ""
    failed = "".join(f"\n  {name} failed: {reason}" for name, reason in row.failed.items())
    why = f"\n  no rules known: {row.unexplained}" if row.unexplained else ""
    return f"{row.workload} batch {row.batch}: {times or 'no times'}{ratio}{failed}{why}"


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as JSON, as a whole file or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    part.replace(path)


def measured_rows(path: Path, origin: Mapping[str, Any]) -> list[Row]:
    """The rows of a file that have this origin: the same commit, machine and settings.

    Raises:
        ValueError: the file holds no rows of this benchmark.
    """
    if not path.exists():
        return []
    names = {field.name for field in fields(Row)}
    origin = json.loads(json.dumps(origin))  # the file has lists for tuples
    kept = [row for row in json.loads(path.read_text(encoding="utf-8"))
            if all(row.get(key) == value for key, value in origin.items())]  # fmt: skip
    if any(names - row.keys() for row in kept):
        raise ValueError(f"{path} holds rows without {', '.join(sorted(names - kept[0].keys()))}")
    return [Row(**{name: row[name] for name in names}) for row in kept]


def plot(rows: Sequence[Row]) -> str:
    """An SVG of bars: per workload, how many times as fast as eager each engine is."""
    return bars(
        "torch eager's time over each engine's (more is faster)",
        {
            f"{row.workload}, {row.batch}": {
                name: row.median_s["eager"] / seconds
                for name, seconds in row.median_s.items()
                if name != "eager"
            }
            for row in rows
            if "eager" in row.median_s
        },
    )


def _cell(row: Row, name: str) -> str:
    if name not in row.median_s:
        return "failed" if name in row.failed else ""
    low, high = row.quartiles_s[name]
    return f"{row.median_s[name] * 1e3:.3f}\n[{low * 1e3:.3f}, {high * 1e3:.3f}]"


def _against_hand(row: Row) -> str:
    if row.by_hand is None:
        return ""
    wanted = _OF_BY_HAND * row.by_hand
    if row.ratio_over_best_peer is None:
        return f"{wanted:.2f}"
    return f"{wanted:.2f} {'reached' if row.ratio_over_best_peer >= wanted else 'missed'}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else "wrong" if math.isinf(value) else format(value, form)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--suite", nargs="+", choices=SUITES, metavar="SUITE",
        help=f"{', '.join(SUITES)}; algebra by default, on a GPU {', '.join(_ON_GPU)}",
    )  # fmt: skip
    parser.add_argument("--workload", nargs="+", metavar="NAME", help="these of the suites only")
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="these sizes only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument(
        "--resume", action="store_true", help="keep the file's rows of this tree and machine"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows as an SVG file")
    parser.add_argument(
        "--native", action="store_true", help="measure our program without engines, too"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=11, help="turns of each engine")
    parser.add_argument("--warm", action="store_true", help="use your profile of measured kernels")
    parser.add_argument(
        "--allow-missing", action="store_true", help="print a table in which a peer has failed"
    )
    parser.add_argument(
        "--reduced", action="store_true", help="at sizes for tests: the times mean nothing"
    )
    return parser


def _cases(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Case]:
    """The workloads and batch sizes that are asked for; an unknown name is an error that lists the
    known ones."""
    suites = options.suite or (_ON_GPU if options.device != "cpu" else ("algebra",))
    suite = {w.name: w for name in suites for w in MEASURED.values() if w.suite == name}
    for name in options.workload or ():
        if name not in suite:
            parser.error(f"no workload {name!r} in {', '.join(suites)}: {', '.join(suite)}")
    if options.threads < 1 or options.rounds < 1:
        parser.error("--threads and --rounds must be at least 1")
    chosen = [suite[name] for name in dict.fromkeys(options.workload or suite)]
    models = [zoo.MODELS[w.name] for w in chosen if isinstance(w, RealModel)]
    if absent := {model.library for model in models if not zoo.installed(model.library)}:
        parser.error(f"{', '.join(sorted(absent))} isn't installed: pip install 'eqsynth[models]'")
    if options.reduced:
        return [(w, w.batches[0]) for w in chosen]
    for batch in options.batch or ():
        if lacking := [w.name for w in chosen if batch not in w.batches]:
            parser.error(f"batch {batch} isn't measured for {', '.join(lacking)}")
    return [(w, b) for w in chosen for b in options.batch or w.batches]


def _gpu(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """The name of the GPU that is measured; without one, an error that lists what is missing."""
    if missing := gpu_peers.missing():
        parser.error(f"--device {options.device}: {'; '.join(missing)}")
    if options.native:
        parser.error("--native: on a GPU no engines are used anyway")
    return torch.cuda.get_device_name()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the table was printed, 1 if it was refused, 130 if interrupted."""
    parser = _parser()
    options = parser.parse_args(argv)
    cases = _cases(parser, options)
    on_gpu = options.device != "cpu"
    device = _gpu(parser, options) if on_gpu else "cpu"
    if on_gpu and options.json is None:
        options.json = gpu_peers.RESULTS / f"{device.lower().replace(' ', '-')}.json"
    if options.resume and not options.json:
        parser.error("--resume needs the rows of --json FILE")
    every = gpu_peers.engines(options.device) if on_gpu else ENGINES
    engines = [engine for engine in every if engine.installed]
    engines[1:1] = [WITHOUT_ENGINES] if options.native else []
    not_installed = [engine.name for engine in every if not engine.installed]
    origin = {
        **about(package for engine in engines for package in engine.packages),
        "device": device,
        "threads": options.threads,
        "rounds": options.rounds,
        "pause_s": PAUSE_S,
        "warm_profile": options.warm,
        "native": options.native,
        "not_installed": not_installed,
    }
    console = Console(width=None if sys.stdout.isatty() else 230)
    rows = measured_rows(options.json, origin) if options.resume else []
    known = {(row.workload, row.batch) for row in rows}
    try:
        with ExitStack() as stack:
            if not options.warm:
                os.environ["EQSYNTH_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
            for workload, batch in cases:
                if (workload.name, batch) in known:
                    continue
                rows.append(measure(
                    workload, batch, engines, threads=options.threads, rounds=options.rounds,
                    reduced=options.reduced, allow_missing=options.allow_missing,
                ))  # fmt: skip
                console.print(line(rows[-1]), highlight=False)
                if options.json:
                    write([{**asdict(row), **origin} for row in rows], options.json)
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(rows)} of {len(cases)} rows; no table")
        return 130
    if options.plot:
        options.plot.write_text(plot(rows), encoding="utf-8")
    missing = holes(rows, cases, engines)
    if missing and not options.allow_missing:
        console.print("no table, since it would lack:", *missing, sep="\n  ", highlight=False)
        return 1
    console.print(table(rows, engines, device))
    if on_gpu:
        console.print(f"{device}: rows in {options.json}", highlight=False)
    console.print(means(rows), highlight=False)
    if not_installed:
        console.print(f"not installed: {', '.join(not_installed)} (make peers)", highlight=False)
    # A wrong result of eqsynth refuses the table, too, not only a missing peer.
    return int(any(OURS not in row.median_s for row in rows))


if __name__ == "__main__":
    sys.exit(main())
