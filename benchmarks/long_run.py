"""Search and check thousands of random programs, to find wrong rules: the long run.

    python -m benchmarks.long_run [--programs 20000] [--modules 300] [--jobs 2] [--fresh]
                                  [--rules FILE ...]

Programs are drawn in batches; a batch's number determines its programs. A worker process saturates
them, evaluates every e-node, extracts the programs of least FLOPs and of least estimated time, and
compares values and costs (``eqsynth/testing/search.py``). The data are such that every term is
finite. Programs without such data aren't counted, except those with infinite constants of their own
(the edges of a pad). Then random torch modules go through ``optimize`` itself
(``eqsynth/testing/optimized.py``). A failure is shrunk and reported; so is a worker that died.

A journal has one line per batch, so that an interrupted run continues where it ended. It belongs to
one version of code and rules, and starts anew after a change. The exit status is 1 if anything
failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batches import Batch, kept_rows, write_rows
from benchmarks.random_modules import run_modules
from benchmarks.random_programs import run_batch
from eqsynth.executor import Worker
from eqsynth.progress import Progress
from eqsynth.rules import load_rules
from eqsynth.rules.location import rules_directory

JOURNALS = Path(__file__).parent / "results"
TIMEOUT_S = 1800.0


def version(extra: Sequence[str] = ()) -> str:
    """The version of code and rules; a journal belongs to one version."""
    here = Path(__file__).parent
    files = [*(here.parent / "eqsynth").rglob("*.py"), *rules_directory().rglob("*.egg")]
    files += [Path(__file__), here / "batches.py", *here.glob("random_*.py"), *map(Path, extra)]
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Journal:
    """The finished batches: a file with a line for the version, then a JSON object per batch."""

    def __init__(self, path: Path, fresh: bool = False, extra: tuple[str, ...] = ()) -> None:
        self.path, self.batches, mine = path, dict[int, Batch](), version(extra)
        self.extra = extra
        self._lock = threading.Lock()
        for row in kept_rows(path, mine, fresh):
            self.batches[row["number"]] = Batch(**row)
        write_rows(path, mine, map(asdict, self.batches.values()))

    def add(self, batch: Batch) -> None:
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(batch)) + "\n")
            self.batches[batch.number] = batch

    def distinct(self) -> int:
        with self._lock:
            return len({digest for batch in self.batches.values() for digest in batch.programs})


def run(
    count: int,
    jobs: int,
    journal: Journal,
    show: bool | None = None,
    work: Callable[[int, tuple[str, ...]], dict[str, Any]] = run_batch,
) -> None:
    """Run batches until ``count`` distinct programs are in the journal.

    Args:
        work: the task of a worker, from a batch's number and further rule files.
    """
    workers = [Worker(memory_limit=4 << 30, threads=1) for _ in range(jobs)]
    free = list(range(jobs))
    numbers = _missing(journal)

    def task(worker: int, number: int) -> int:
        batch = Batch(number)
        try:
            found = workers[worker].run(work, number, journal.extra, timeout_s=TIMEOUT_S)
            batch = Batch(**found)
        except Exception as error:  # the worker died or ran too long; the next batch gets a new one
            where = f"some program of batch {number}"
            batch.failures = [{"program": where, "error": str(error)}]
        if not ending.is_set():
            journal.add(batch)
        return worker

    running: set[Future[int]] = set()
    ending = threading.Event()  # set before the workers are killed: their batches aren't recorded
    try:
        with Progress(show) as bar, ThreadPoolExecutor(jobs) as pool:
            bar.stage("programs")
            bar.total(count)
            told = 0
            try:
                while (done := journal.distinct()) < count:
                    bar.advance(min(done, count) - told)
                    told = done
                    while free:
                        running.add(pool.submit(task, free.pop(), next(numbers)))
                    finished, running = wait(running, return_when=FIRST_COMPLETED)
                    free += [future.result() for future in finished]
            finally:
                ending.set()
                for worker in workers:
                    worker.close()
    except KeyboardInterrupt:
        print("interrupted; the journal has what was done", file=sys.stderr)


def _missing(journal: Journal) -> Iterator[int]:
    known, number = set(journal.batches), 0
    while True:
        if number not in known:
            yield number
        number += 1


def summary(journal: Journal, what: str = "programs") -> str:
    """The summary: the number and sizes of programs, the rules that fired, and the failures."""
    batches = list(journal.batches.values())
    fired, stops = Counter[str](), Counter[str]()
    for batch in batches:
        fired.update(batch.fired)
        stops.update(batch.stops)
    searched = [r.name for r in load_rules().rules if r.kind in ("rewrite", "law-request")]
    silent = sorted(name for name in searched if not fired[name])
    seconds = sum(batch.seconds for batch in batches)
    lines = [
        f"{journal.distinct()} distinct {what} in {sum(len(batch.enodes) for batch in batches)} "
        f"searches, {seconds:.0f} s of workers "
        f"({journal.distinct() / max(seconds, 1e-9):.2f} a second each)",
        f"operators: {_quantiles([n for batch in batches for n in batch.operators])}",
        f"e-nodes: {_quantiles([n for batch in batches for n in batch.enodes])}",
        "ended: " + ", ".join(f"{name} {count}" for name, count in stops.most_common()),
        f"searches that found fewer FLOPs: {sum(batch.cheaper for batch in batches)}",
        f"rules that fired: {len(searched) - len(silent)} of {len(searched)}"
        + (f"; not {', '.join(silent)}" if silent else ""),
    ]
    failures = [failure for batch in batches for failure in batch.failures]
    lines.append(f"failures: {len(failures)}")
    for failure in failures:
        lines += ["", failure["program"], failure["error"]]
    return "\n".join(lines)


def _quantiles(sizes: list[int]) -> str:
    found = np.quantile(np.array(sizes or [0]), [0.5, 0.9, 0.99, 1.0]).astype(int)
    return "median {}, 90 % {}, 99 % {}, largest {}".format(*found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--programs", type=int, default=20_000, help="distinct programs to try")
    parser.add_argument("--modules", type=int, default=300, help="distinct torch modules to try")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="directory of journals")
    parser.add_argument("--fresh", action="store_true", help="forget what the journals have")
    parser.add_argument("--rules", nargs="+", default=(), help="rule files besides eqsynth's own")
    options = parser.parse_args()
    extra = tuple(str(Path(file).resolve()) for file in options.rules)
    failed = False
    for what, count, work in (
        ("programs", options.programs, run_batch),
        ("modules", options.modules, run_modules),
    ):
        if not count:
            continue
        journal = Journal(options.journals / f"long_run_{what}.jsonl", options.fresh, extra)
        run(count, options.jobs, journal, work=work)
        print(summary(journal, what), end="\n\n")
        failed |= any(batch.failures for batch in journal.batches.values())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
