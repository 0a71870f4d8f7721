"""Print tables of the measurements of ``bench_tune``, and draw them.

    python -m benchmarks.tuning_tables FILE [--svg docs/tuning.svg]

For each kernel and tuner, a table has:

- the best rate (GFLOP/s or GB/s; mean and standard deviation over the seeds, as in [OpEvo Tables
  1 to 3]) after the number of trials, and after the time, that every search of the kernel has had;
- the number of trials until the rate is within 2 % of the best known rate;
- the share of the time that wasn't spent measuring.

Below it stands what the fastest schedule of all searches takes in turns with the fastest of those
that are offered without a search.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.bench_tune import TVM, Row, read
from benchmarks.curve import below_each_other, svg
from eqsynth.extract.schedule import schedule_from_data

Searches = Mapping[str, Mapping[int, Sequence[Row]]]
"""The measurements of a kernel: tuner -> seed -> rows in the order of the trials."""

# A rate counts as near the best known rate if the latter is at most this many times as high.
NEAR = 1.02


def by_kernel(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, list[Row]]]]:
    """Kernel -> tuner -> seed -> rows."""
    found: dict[str, dict[str, dict[int, list[Row]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row["kernel"]][row["tuner"]].setdefault(row["seed"], []).append(row)
    return found


def seconds(row: Row) -> float:
    """The time (s) that a search has taken up to and with this row."""
    return float(row["measuring_s"] + row["outside_s"])


def best(rows: Sequence[Row]) -> float:
    """The highest rate (GFLOP/s or GB/s); 0 if no schedule worked."""
    return max((row["giga"] / row["time_s"] for row in rows if row["time_s"]), default=0.0)


def even(searches: Searches) -> Searches:
    """The searches with only those seeds that every tuner has. TVM's searches, which can't be
    continued and take longer, may have fewer seeds."""
    own = [set(seeds) for tuner, seeds in searches.items() if tuner != TVM]
    common = set.intersection(*own) if own else set()
    return {
        tuner: {s: seeds[s] for s in sorted(seeds) if tuner == TVM or s in common}
        for tuner, seeds in searches.items()
    }


def table(searches: Searches) -> list[tuple[str, ...]]:
    """The cells of a kernel's table: a header, which names the number of trials and the time at
    which tuners are compared, and a row for each tuner. Empty if nothing was measured."""
    searches = even(searches)
    every = [rows for seeds in searches.values() for rows in seeds.values()]
    if not every:
        return []
    trials, limit_s = min(map(len, every)), min(seconds(rows[-1]) for rows in every)
    known, unit = max(map(best, every)), every[0][0]["unit"]
    found: list[tuple[str, ...]] = [
        ("tuner", f"{unit} at {trials} trials", f"at {limit_s:.1f} s", "trials to 2 %", "outside")
    ]
    for tuner, seeds in searches.items():
        by_trials = [best(rows[:trials]) for rows in seeds.values()]
        by_s = [best([row for row in rows if seconds(row) <= limit_s]) for rows in seeds.values()]
        near = [_trials_until(rows, known / NEAR) for rows in seeds.values()]
        reached = [n for n in near if n is not None]
        told = f"{statistics.fmean(reached):.0f}" if reached else "-"
        outside = sum(rows[-1]["outside_s"] for rows in seeds.values())
        whole = sum(seconds(rows[-1]) for rows in seeds.values())
        found.append((
            tuner, _spread(by_trials), _spread(by_s), f"{told} ({len(reached)}/{len(near)})",
            f"{outside / max(whole, 1e-9):.1%}",
        ))  # fmt: skip
    return found


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ± {statistics.pstdev(values):.2f}"


def _trials_until(rows: Sequence[Row], rate: float) -> int | None:
    return next((n + 1 for n in range(len(rows)) if best(rows[n : n + 1]) >= rate), None)


def raced(lines: Sequence[Row]) -> dict[str, str]:
    """For each kernel, what the last race of a file says."""
    found = {}
    for line in lines:
        sides = [(time_s, str(schedule_from_data(told)), is_offered)
                 for told, time_s, is_offered in line["raced"]]  # fmt: skip
        offered = min((side for side in sides if side[2]), default=None)
        if offered is None:
            continue
        best = min(sides)
        times = f"{1e6 * best[0]:.1f} us, offered `{offered[1]}` {1e6 * offered[0]:.1f} us"
        found[line["kernel"]] = f"`{best[1]}` {times}: {offered[0] / best[0]:.2f}"
    return found


def text(rows: Sequence[Row], races: Mapping[str, str] = MappingProxyType({})) -> str:
    """All tables, as Markdown."""
    parts = []
    for kernel, searches in by_kernel(rows).items():
        lines = table(searches)
        if lines:
            head, *body = (" | ".join(cells) for cells in lines)
            rule = " | ".join("---" for _ in lines[0])
            seeds = len(next(iter(even(searches).values())))
            race = f"\n\nIn turns: {races[kernel]}" if kernel in races else ""
            grid = "| " + " |\n| ".join([head, rule, *body]) + " |"
            parts.append(f"**{kernel}**, {seeds} seeds\n\n{grid}{race}")
    return "\n\n".join(parts) + "\n" if parts else "nothing was measured\n"


def picture(rows: Sequence[Row]) -> str:
    """Plots (SVG) of the best rate so far, as a share of the best known rate, against trials and
    against seconds: the mean over kernels and seeds, and the mean minus the standard deviation."""
    kernels = {name: even(searches) for name, searches in by_kernel(rows).items()}
    whole = {
        name: max(best(rows) for seeds in searches.values() for rows in seeds.values())
        for name, searches in kernels.items() if any(searches.values())
    }  # fmt: skip
    plots = []
    for axis in ("trials", "seconds"):
        curves: dict[str, list[tuple[float, float]]] = {}
        for tuner in dict.fromkeys(t for searches in kernels.values() for t in searches):
            runs = [
                (rows, whole[name]) for name, searches in kernels.items() if whole.get(name)
                for rows in searches.get(tuner, {}).values()
            ]  # fmt: skip
            for at in _places(axis, [rows for rows, _ in runs]):
                shares = [best(_until(rows, axis, at)) / most for rows, most in runs]
                mean, spread = statistics.fmean(shares), statistics.pstdev(shares)
                curves.setdefault(tuner, []).append((at, mean))
                curves.setdefault(f"{tuner} - std", []).append((at, max(0.0, mean - spread)))
        plots.append(svg("best so far over the best known", axis, "share", curves))
    return below_each_other(plots)


def _until(rows: Sequence[Row], axis: str, at: float) -> Sequence[Row]:
    if axis == "trials":
        return rows[: round(at)]
    return [row for row in rows if seconds(row) <= at]


def _places(axis: str, runs: Sequence[Sequence[Row]]) -> list[float]:
    """The points on an axis at which curves are drawn: powers of two, up to the number of trials
    (or the seconds) that every search has had."""
    ends = [float(len(rows)) if axis == "trials" else seconds(rows[-1]) for rows in runs]
    most = max(1.0, min(ends, default=1.0))
    return [2.0**n for n in range(int(math.log2(most)) + 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args(arguments)
    rows = read(options.file)
    print(text(rows, raced(read(options.file, "raced"))), end="")
    if options.svg:
        options.svg.write_text(picture(rows))


if __name__ == "__main__":
    main()
