"""What tuning is worth for whole nets: untuned, and tuned for some seconds [OpEvo Fig. 6].

    python -m benchmarks.bench_tune_nets FILE [--net NAME ...] [--seconds S ...] [--limit-s S]
                                         [--rounds N] [--threads N] [--reduced]

A net is optimized without engines. Then the plan's kernels are tuned, first for the least number of
seconds, and then for as many more as are missing to the next. The plan is remembered, so the
programs differ by tuning alone. (A plan with kernels that weren't timed is searched again; the
lines of FILE tell whether it was remembered.) Each program is kept beside FILE; at the end a net's
programs are timed in turns, with torch eager. Every step is a line of FILE, and a run that was
ended goes on. The table is printed from the lines.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import eqsynth
from benchmarks.about import about
from benchmarks.bench_tune import Row, read, write
from benchmarks.nets import AlexNet
from benchmarks.workloads import WORKLOADS
from eqsynth.extract.timing import time_interleaved

EAGER: Final = "eager"
_TURN_S: Final = 0.3

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _alexnet(reduced: bool) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AlexNet(4, 16, 8) if reduced else AlexNet()
        return module.eval().requires_grad_(False), (torch.randn(1, 3, 227, 227),)


def _workload(name: str) -> Callable[[bool], Built]:
    return lambda reduced: WORKLOADS[name].reduced() if reduced else WORKLOADS[name].build()


NETS: Final[Mapping[str, Callable[[bool], Built]]] = {
    "alexnet": _alexnet,
    "resnet18": _workload("resnet18"),
    "bert128": _workload("bert128"),
}


def tuned(net: str, file: Path, seconds: Sequence[float], limit_s: float, reduced: bool) -> None:
    """Optimize a net, and tune it for the given numbers of seconds in all."""
    module, inputs = NETS[net](reduced)
    before_s = 0.0
    done = {row["tuned_s"] for row in read(file, "tuned_s") if row["net"] == net}
    for tuned_s in (0.0, *sorted(seconds)):
        if tuned_s not in done:
            program = eqsynth.optimize(
                module, inputs, engines=(), time_limit_s=limit_s, tune=tuned_s - before_s
            )
            report = program.report
            eqsynth.save(program, _place(file, net, tuned_s))
            write(file, {
                "net": net, "tuned_s": tuned_s, "optimize_s": report.optimize_s,
                "kept": program.original is not None, "remembered": report.remembered_plan,
                "kernels": [str(one) for one in report.tuned],
                "trials": sum(one.trials for one in report.tuned),
                "outside_s": sum(one.outside_s for one in report.tuned),
            })  # fmt: skip
        before_s = tuned_s


def raced(net: str, file: Path, seconds: Sequence[float], rounds: int, reduced: bool) -> None:
    """Time the programs of a net in turns."""
    module, inputs = NETS[net](reduced)
    calls = {EAGER: partial(module, *inputs)}
    for tuned_s in (0.0, *sorted(seconds)):
        calls[_name(tuned_s)] = partial(eqsynth.load(_place(file, net, tuned_s)), *inputs)
    with torch.no_grad():
        times = time_interleaved(calls, repeats=rounds, block=1000, turn_s=_TURN_S)
    write(file, {
        "net": net,
        "raced": {name: [t.q1_s, t.median_s, t.q3_s] for name, t in times.items()},
    })  # fmt: skip


def _place(file: Path, net: str, tuned_s: float) -> Path:
    return file.with_name(f"{file.stem}-{net}-{tuned_s:g}.eqsynth")


def _name(tuned_s: float) -> str:
    return f"tuned {tuned_s:g} s" if tuned_s else "untuned"


def table(file: Path) -> str:
    """The stored times as a table in Markdown: each net's last race."""
    races: dict[str, Mapping[str, Sequence[float]]] = {
        row["net"]: row["raced"] for row in read(file, "raced")
    }
    names = [n for n in dict.fromkeys(n for race in races.values() for n in race) if n != EAGER]
    rows: list[Row] = read(file, "tuned_s")
    heads = ["net", "eager, ms", *(f"{name}, ms" for name in names), "untuned / last"]
    lines = [heads, ["---"] * len(heads)]
    for net, race in races.items():
        cells = [f"{race[name][1] * 1e3:.3f}" if name in race else "" for name in (EAGER, *names)]
        trials = {_name(r["tuned_s"]): r["trials"] for r in rows if r["net"] == net and r["trials"]}
        cells[1:] = [
            f"{cell} ({trials[name]} trials)" if name in trials and cell else cell
            for name, cell in zip(names, cells[1:], strict=True)
        ]
        gained = f"{race[names[0]][1] / race[names[-1]][1]:.2f}" if names[-1] in race else ""
        lines.append([net, *cells, gained])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--net", nargs="*", choices=sorted(NETS), default=list(NETS))
    parser.add_argument("--seconds", nargs="*", type=float, default=[60.0, 300.0, 1800.0])
    parser.add_argument("--limit-s", type=float, default=120.0, help="seconds of each search")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reduced", action="store_true", help="the nets at sizes for tests")
    options: Any = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    file = options.file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    # What is measured is kept for the next run, and nothing that was measured before is used.
    os.environ["EQSYNTH_CACHE"] = str(file.with_suffix(".cache"))
    write(file, {**about(), "threads": options.threads})
    for net in options.net:
        tuned(net, file, options.seconds, options.limit_s, options.reduced)
        raced(net, file, options.seconds, options.rounds, options.reduced)
        print(table(file), flush=True)


if __name__ == "__main__":
    main()
