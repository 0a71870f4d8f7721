"""The time that the generator of rules takes.

    python -m benchmarks.bench_generate                       up to three operators, in both worlds
    python -m benchmarks.bench_generate --operators 4         a long run; ended, it goes on later
    python -m benchmarks.bench_generate --json FILE

Printed are the counts of Table 3 beside the paper's (papers/004: 28,744 candidates of up to four
operators, 17,346 after renaming, 743 after common subgraphs, in five minutes of C++), and terms per
second. The paper enumerates whole graphs. Here each value is represented by its first term, so the
counts aren't comparable, and no ratio is printed. If chunks were found in the cache, their number
is printed, and the seconds don't count.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.about import about
from eqsynth.generate import World, enumerate_graphs, reduced, worlds_of
from eqsynth.tasks import NAMES, Executor, executor

EVERY_S = 10.0


def timed(world: World, operators: int, executor: Executor) -> dict[str, Any]:
    """Measure one world: terms, counts, and the seconds of each part."""
    found = enumerate_graphs(world, operators, executor=executor, told=_rate())
    begin = time.monotonic()
    candidates, counts = reduced(found)
    return {
        "world": world.name, "operators": operators, "processes": executor.processes,
        "terms": found.evaluated, "left_out": found.left_out,
        "chunks_from_cache": found.from_cache, "enumerating_s": round(found.seconds, 2),
        "terms_per_s": round(sum(found.evaluated) / max(found.seconds, 1e-9)),
        "pruning_s": round(time.monotonic() - begin, 2), **vars(counts),
        "candidates": len(candidates),
    }  # fmt: skip


def _rate() -> Callable[[str, int], None]:
    """A function that prints, from time to time, how many terms of a stage are evaluated, and the
    rate."""
    begun: dict[str, float] = {}
    told = [time.monotonic()]

    def tell(stage: str, done: int) -> None:
        now = time.monotonic()
        begin = begun.setdefault(stage, now)
        if min(now - told[0], now - begin) >= EVERY_S:
            told[0] = now
            print(f"  {stage}: {done:,} terms, {done / (now - begin):,.0f} a second", flush=True)

    return tell


def rows(operators: int, inputs: int, executor: Executor) -> Iterator[dict[str, Any]]:
    with executor:
        for world in worlds_of(inputs):
            yield timed(world, operators, executor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=3)
    parser.add_argument("--inputs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--executor", choices=NAMES, default="local")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = []
    for row in rows(asked.operators, asked.inputs, executor(asked.executor, asked.processes)):
        found.append(row)
        print(
            f"{row['world']}: {sum(row['terms']):,} terms in {row['enumerating_s']} s "
            f"({row['terms_per_s']:,} a second, {row['chunks_from_cache']} chunks from the cache); "
            f"{row['graphs']:,} graphs, {row['initial']:,} candidates, {row['renamed']:,} after "
            f"renaming, {row['common']:,} after common subgraphs, {row['subsumed']:,} after "
            f"subsumption, in {row['pruning_s']} s",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"this process held {peak / 1024:,.0f} MiB at most")
    if asked.json:
        data = {"about": about(), "peak_kib": peak, "rows": found}
        asked.json.write_text(json.dumps(data, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
