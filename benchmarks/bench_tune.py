"""Comparison of tuners on the schedule spaces of generated kernels.

Every measurement is a line of a file.

    python -m benchmarks.bench_tune FILE --minutes 60 [--kernel NAME ...] [--tuner NAME ...]
                                    [--trials N] [--seeds N] [--threads N] [--far] [--sweep]
    python -m benchmarks.tuning_tables FILE [--svg docs/tuning.svg]      the tables, remade

Searches take turns: all kernels, tuners and seeds get some trials each, then some more, so that the
file holds a fair comparison whenever the time is over. A run that was killed continues where it
ended. ``--sweep`` compares OpEvo with itself, with other mutation rates and numbers of parents
[OpEvo Figs. 7, 8].

A schedule is measured once, in turns with the first one of its kernel. A later search that asks for
it is given the time of this measurement, and the seconds that measuring took are counted for it,
too. So luck in measuring is the same for all tuners, and 25 searches of a space of 185 schedules
cost 185 measurements. At the end the fastest schedules of each kernel are timed in turns with those
that are offered without a search: the fastest of many measured times is partly luck.

The tuner ``tvm`` is TVM's own search (``tvm_search.py``; it needs the extra ``peers``).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from benchmarks import tvm_search
from benchmarks.about import about
from benchmarks.tuning_kernels import KERNELS, kernel_of
from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker, borrowed
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Schedule, schedule_from_data, schedule_to_data
from eqsynth.extract.timing import alone
from eqsynth.lower.kernel_tuning import ScheduleTimes, race, space_for
from eqsynth.lower.tuning_told import rate_of
from eqsynth.tuning.search import Budget, Search, tune
from eqsynth.tuning.tuners import TUNERS, opevo

ROUNDS: Final = (16, 32, 64, 125, 250, 500, 1000)
"""The number of trials that every search has had at the end of each round."""

PAPER: Final = (
    "mm1", "mm2", "mm3", "bmm1", "bmm2", "bmm3", "c1", "c2", "offset_reduce_56", "softmax_sum",
    "layer_norm_last", "g2bmm", "winograd_tiles",
)  # fmt: skip

Tuner = Callable[[Search[Any]], None]
SWEEP: Final[Mapping[str, Tuner]] = {
    **{f"q={q}": partial(opevo, q=q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)},
    **{f"parents={n}": partial(opevo, parents=n) for n in (2, 4, 16, 32)},
}

TVM: Final = "tvm"
FINALISTS: Final = 5
"""The number of a kernel's fastest schedules that are timed in turns at the end."""

_RACE_S: Final = 300.0
"""The time limit for these turns."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The time of a schedule (s), None if it doesn't run, and the seconds that measuring took."""

    time_s: float | None
    cost_s: float


class Lines:
    """The file of trials: one line each; a cut-off line is ignored.

    Attributes:
        rows: the trials of each search (kernel, tuner, seed).
        measured: what was measured of each kernel, in any search.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
        self.measured: dict[str, dict[Schedule, Measured]] = defaultdict(dict)
        for row in read(path):
            self._take(row)

    def add(self, row: Row) -> None:
        self._take(row)
        write(self.path, row)

    def _take(self, row: Row) -> None:
        self.rows[row["kernel"], row["tuner"], row["seed"]].append(row)
        if row["tuner"] == TVM:
            return  # its programs have no schedules of ours
        measured = Measured(row["time_s"], row["cost_s"])
        self.measured[row["kernel"]].setdefault(schedule_of(row), measured)


def schedule_of(row: Row) -> Schedule:
    schedule = schedule_from_data(row["schedule"])
    assert isinstance(schedule, Schedule)
    return schedule


def read(path: Path, field: str = "schedule") -> list[Row]:
    """The measurements of a file, in order; with ``field="raced"`` its races."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if field in row:
            found.append(row)
    return found


def write(path: Path, row: Row) -> None:
    with path.open("a+b") as file:
        # If a killed run has left an unfinished line, a new line is begun.
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")


class Recorded:
    """Answers a search with the times of schedules: those that the file has, and else measured as
    tuning does. Each trial is written to the file with the time that the search has taken."""

    def __init__(self, times: ScheduleTimes, lines: Lines, search: Row, facts: Row) -> None:
        self.times, self.lines, self.search, self.facts = times, lines, search, facts
        self.measured = lines.measured[search["kernel"]]
        rows = lines.rows[search["kernel"], search["tuner"], search["seed"]]
        self.told = {schedule_of(row): row["time_s"] for row in rows}
        self.outside_s = float(rows[-1]["outside_s"]) if rows else 0.0
        self.measuring_s = float(rows[-1]["measuring_s"]) if rows else 0.0
        self.left = time.monotonic()

    def __call__(self, schedules: Sequence[Schedule]) -> list[float | None]:
        new = [schedule for schedule in schedules if schedule not in self.told]
        if new:
            # The time that a resumed search takes to reach its earlier state isn't counted.
            self.outside_s += time.monotonic() - self.left
        unknown = [schedule for schedule in new if schedule not in self.measured]
        # The first schedule of all searches sets the pace of the others.
        self.times.known.update({s: known.time_s for s, known in self.measured.items()})
        begin = time.monotonic()
        found = dict(zip(unknown, self.times(unknown), strict=True))
        cost_s = (time.monotonic() - begin) / max(len(unknown), 1)
        for schedule in new:
            known = self.measured.get(schedule) or Measured(found[schedule], cost_s)
            self.told[schedule] = known.time_s
            self.measuring_s += known.cost_s
            self.lines.add({
                **self.search, "schedule": schedule_to_data(schedule), "time_s": known.time_s,
                "cost_s": known.cost_s, "outside_s": self.outside_s,
                "measuring_s": self.measuring_s, **self.facts,
            })  # fmt: skip
        self.left = time.monotonic()
        return [self.told[schedule] for schedule in schedules]


def one_turn(
    search: Row, tuner: Tuner, lines: Lines, budget: Budget, worker: Worker, threads: int, far: int
) -> None:
    """Continue a search until it has had ``trials`` trials."""
    kernel, target = kernel_of(KERNELS[search["kernel"]]()), measure_cpu_target()
    with TemporaryDirectory() as folder:
        profile = Profile(target.key(), path=Path(folder) / "own.sqlite")
        times = ScheduleTimes(kernel, worker, profile, threads, far)
        measure = Recorded(times, lines, search, facts_of(kernel))
        tune(space_for(kernel), measure, budget, tuner, search["seed"])
        profile.close()


def facts_of(kernel: Kernel) -> Row:
    """The rate of a kernel that takes a second, and its share of the measured peak."""
    rate = rate_of(kernel, 1.0, measure_cpu_target())
    return {"giga": rate.value, "unit": rate.unit, "share": rate.share}


def by_tvm(search: Row, lines: Lines, trials: int, worker: Worker, threads: int, far: int) -> None:
    """Let TVM search, beside the schedule that was measured first of the kernel."""
    kernel = kernel_of(KERNELS[search["kernel"]]())
    measured = lines.measured[search["kernel"]]
    first = next(((s, m.time_s) for s, m in measured.items() if m.time_s is not None), None)
    if first is None:
        raise SystemExit(f"measure {search['kernel']} with another tuner first")
    beside = replace(kernel, schedule=first[0]), first[1]
    measuring_s = 0.0
    rows = []
    for trial in tvm_search.tvm_search(beside, worker, trials, search["seed"], threads, far):
        measuring_s += trial.cost_s
        rows.append({
            **search, "schedule": None, "time_s": trial.time_s, "cost_s": trial.cost_s,
            "outside_s": trial.elapsed_s - measuring_s, "measuring_s": measuring_s,
            **facts_of(kernel),
        })  # fmt: skip
    for row in rows:
        lines.add(row)


def finals(name: str, lines: Lines, worker: Worker, threads: int, far: int) -> None:
    """Time the fastest schedules of a kernel in turns with those that are offered without a search,
    and store the times."""
    kernel, measured = kernel_of(KERNELS[name]()), lines.measured[name]
    times = {s: m.time_s for s, m in measured.items() if m.time_s is not None}
    space = space_for(kernel)
    offered = [space.made(point) for point in space.starts]
    rest = [s for s in sorted(times, key=lambda s: times[s]) if s not in offered][:FINALISTS]
    finalists = [s for s in (*offered, *rest) if isinstance(s, Schedule)]
    try:
        with alone():
            kernels = [replace(kernel, schedule=schedule) for schedule in finalists]
            raced = worker.run(race, kernels, threads, far, timeout_s=_RACE_S)
    except EqsynthError as error:
        print(f"{name}: the fastest schedules weren't timed in turns: {error}")
        return
    told = [
        [schedule_to_data(s), timing.median_s, n < len(offered)]
        for n, (s, timing) in enumerate(zip(finalists, raced, strict=True))
        if timing is not None
    ]
    write(lines.path, {"kernel": name, "raced": told})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kernel", nargs="*", choices=sorted(KERNELS), default=list(PAPER))
    every = [*TUNERS, *([TVM] if tvm_search.is_here() else [])]
    parser.add_argument("--tuner", nargs="*", choices=sorted(every), default=every)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--far", action="store_true", help="time with a cold cache")
    parser.add_argument("--sweep", action="store_true", help="OpEvo's q and parents instead")
    options = parser.parse_args(arguments)
    own = [name for name in options.tuner if name != TVM]
    tuners = SWEEP if options.sweep else {name: TUNERS[name] for name in own}
    torch.set_num_threads(options.threads)
    until = time.monotonic() + 60 * options.minutes
    lines, done = Lines(options.file), 0
    write(options.file, {**about(), "threads": options.threads, "far": int(options.far)})
    with borrowed(threads=options.threads) as worker:
        for trials in sorted({min(n, options.trials) for n in (*ROUNDS, options.trials)}):
            for seed in range(options.seeds):
                for kernel in options.kernel:
                    for name, tuner in tuners.items():
                        search = {"kernel": kernel, "tuner": name, "seed": seed}
                        if len(lines.rows[kernel, name, seed]) >= trials:
                            continue
                        left = until - time.monotonic()
                        if left <= 0:
                            print(f"the minutes are over, at {done} turns of {trials} trials")
                            return
                        one_turn(
                            search, tuner, lines, Budget(trials, left), worker, options.threads,
                            int(options.far),
                        )  # fmt: skip
                        done += 1
            print(f"{trials} trials of every search", flush=True)
        if TVM in options.tuner and not options.sweep:
            asked = [(seed, kernel) for seed in range(options.seeds) for kernel in options.kernel]
            for seed, kernel in asked:
                search = {"kernel": kernel, "tuner": TVM, "seed": seed}
                if len(lines.rows[kernel, TVM, seed]) >= options.trials:
                    continue
                if time.monotonic() > until:
                    print(f"the minutes are over, at seed {seed} of TVM's search")
                    break
                by_tvm(search, lines, options.trials, worker, options.threads, int(options.far))
        for kernel in options.kernel:
            finals(kernel, lines, worker, options.threads, int(options.far))


if __name__ == "__main__":
    main()
