"""The search for faults of other engines: equal programs run in each engine and in torch.

    python -m benchmarks.hunt --minutes 30                      every engine that is installed
    python -m benchmarks.hunt --engines tvm onnxruntime
    python -m benchmarks.hunt --engines mine.module:compile     an engine of yours
    python -m benchmarks.hunt --minutes 0                       what was found until now

Random programs, and equal forms of each from its e-graph, run in Inductor, ONNX Runtime, OpenVINO
and TVM (``hunting.py``). A program whose result differs from torch's by more than rounding, or that
ends the engine's process, is shrunk and listed in a table and a JSON file. A journal has a line for
each batch, so that an interrupted run continues where it ended, as long as engines and programs are
the same. An engine of yours is a function from a ``Region`` to a function of tensors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import hunting
from benchmarks.batches import kept_rows, write_rows
from benchmarks.hunting import OURS, Finding, Hunted, operators_of
from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker
from eqsynth.ir.printing import render
from eqsynth.progress import Progress
from eqsynth.serving import WorkerError

RESULTS: Final = Path(__file__).parent / "results"
TIMEOUT_S: Final = 900.0
_COUNTS: Final = ("compared", "refused", "edges")
_LONGEST: Final = 160

Run = Callable[..., dict[str, Any]]


def version(engines: Mapping[str, str], size: int) -> str:
    """The version of engines and programs; a journal belongs to one version."""
    import eqsynth.testing.strategies as strategies

    digest = hashlib.blake2b(json.dumps([sorted(engines.items()), size]).encode(), digest_size=8)
    for path in (Path(hunting.__file__), *sorted(Path(strategies.__path__[0]).glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Journal:
    """The finished batches: a file with a line for the version, then a JSON object per batch."""

    def __init__(self, path: Path, mine: str, fresh: bool = False) -> None:
        self.path, self.batches = path, dict[int, Hunted]()
        for row in kept_rows(path, mine, fresh):
            self.batches[row["number"]] = _batch(row)
        write_rows(path, mine, map(asdict, self.batches.values()))

    def add(self, batch: Hunted) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(batch)) + "\n")
        self.batches[batch.number] = batch

    def next(self) -> int:
        return next(n for n in range(len(self.batches) + 1) if n not in self.batches)


def _batch(data: dict[str, Any]) -> Hunted:
    return Hunted(**{**data, "findings": [Finding(**found) for found in data["findings"]]})


def hunt(
    journal: Journal,
    engines: Sequence[str],
    seconds: float,
    size: int = hunting.BATCH,
    show: bool | None = None,
) -> None:
    """Run batches until the time is over; a batch that has begun is finished."""
    end = time.monotonic() + seconds
    with Progress(show) as bar, Worker(threads=1) as worker:
        bar.stage("hunt")
        while time.monotonic() < end:
            journal.add(batch_in(worker, journal.next(), engines, size))
            bar.told(told(journal))


def batch_in(worker: Worker, number: int, engines: Sequence[str], size: int) -> Hunted:
    """Run a batch in a worker. If that ends the worker's process, run each program in each engine
    by itself."""
    try:
        found = worker.run(hunting.run_batch, number, engines, size, timeout_s=TIMEOUT_S)
        return _batch(found)
    except WorkerError:
        pass
    whole = Hunted(number)
    terms = hunting.cases(number, size)
    for index, term in enumerate(terms):
        for name in engines:
            try:
                part = _batch(worker.run(hunting.run_one, number, index, name, timeout_s=TIMEOUT_S))
            except WorkerError as error:
                died = f"the process: {error.reason}, {error.status}"
                part = Hunted(number, findings=[
                    Finding(name, operators_of(term), "dies", render(term), died)
                ])  # fmt: skip
            for kind in _COUNTS:
                setattr(whole, kind, _sum(getattr(whole, kind), getattr(part, kind)))
            whole.findings += part.findings
            whole.forms += part.forms if name == engines[0] else 0
    whole.programs = len(terms)
    return whole


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))


# ---- what is told ---------------------------------------------------------------------------


def told(journal: Journal) -> str:
    batches = journal.batches.values()
    found = len(grouped(journal))
    return f"{sum(b.programs for b in batches)} programs, {found} kinds of differences"


def grouped(journal: Journal) -> list[tuple[int, Finding]]:
    """Groups of findings that are mostly one fault: the number of findings, and the shortest.

    A group has the findings of one engine on the same operators. All findings of an engine that
    computes float64 as float32 are one group.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for batch in journal.batches.values():
        for found in batch.findings:
            operators = () if found.how == "narrower" else tuple(found.operators)
            groups.setdefault((found.engine, found.how, *operators), []).append(found)
    shortest = [(len(group), min(group, key=_length)) for group in groups.values()]
    return sorted(shortest, key=lambda pair: (pair[1].engine, _length(pair[1])))


def _length(found: Finding) -> tuple[int, int]:
    return len(found.operators), len(found.program)


def table(journal: Journal) -> Table:
    """A table with a line for each kind of difference."""
    result = Table(title="what engines compute otherwise than torch, by more than rounding")
    for column in ("engine", "times", "how", "program", "got", "expected", "on"):
        result.add_column(column, overflow="fold")
    for times, found in grouped(journal):
        shown = found.program if len(found.program) <= _LONGEST else found.program[:_LONGEST] + "…"
        result.add_row(
            found.engine, str(times), found.how, shown, found.got, found.expected, found.where
        )
    return result


def counts(journal: Journal) -> str:
    """A line for each engine: the number of forms that were compared, and of those it refuses."""
    batches = list(journal.batches.values())
    sums = {kind: Counter[str]() for kind in _COUNTS}
    for batch in batches:
        for kind, own in sums.items():
            own.update(getattr(batch, kind))
    programs, forms = (sum(getattr(b, kind) for b in batches) for kind in ("programs", "forms"))
    seconds = sum(batch.seconds for batch in batches)
    lines = [f"{programs} programs in {forms} forms, {seconds:.0f} s"]
    for name in sorted({name for own in sums.values() for name in own}):
        mine = "forms against each other in torch" if name == OURS else "compared"
        lines.append(
            f"{name:12} {sums['compared'][name]} {mine}, {sums['refused'][name]} not taken, "
            f"{sums['edges'][name]} differ by infinities, NaN or integers that don't fit"
        )
    return "\n".join(lines)


def write(journal: Journal, engines: Mapping[str, str], path: Path) -> None:
    """Write the findings as JSON, as a whole file or not at all."""
    rows = [{"times": times, **asdict(found)} for times, found in grouped(journal)]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"engines": dict(engines), "findings": rows}, indent=2), "utf-8")
    part.replace(path)


def _chosen(names: Sequence[str] | None) -> dict[str, str]:
    """Engine -> its version, for the engines that are asked for.

    Raises:
        EqsynthError: an engine isn't installed.
    """
    known = hunting.installed()
    for name in names or ():
        if ":" not in name and name not in known:
            raise EqsynthError(
                f"there is no engine {name!r} here",
                got=name,
                expected=", ".join(known),
                hint="install it, or give a function as package.module:function",
            )
    return {name: known.get(name, "") for name in names or known}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if anything was found, 2 if an engine isn't there, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--engines", nargs="+", metavar="NAME")
    parser.add_argument("--size", type=int, default=hunting.BATCH, help="programs a batch")
    parser.add_argument("--journal", type=Path, default=RESULTS / "hunt.jsonl")
    parser.add_argument("--json", type=Path, default=RESULTS / "hunt.json", metavar="FILE")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    options = parser.parse_args(argv)
    try:
        engines = _chosen(options.engines)
    except EqsynthError as error:
        parser.error(str(error))
    journal = Journal(options.journal, version(engines, options.size), options.fresh)
    interrupted = False
    try:
        hunt(journal, list(engines), 60 * options.minutes, options.size)
    except KeyboardInterrupt:
        print("interrupted; the journal has what was done", file=sys.stderr)
        interrupted = True
    write(journal, engines, options.json)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(journal))
    console.print(counts(journal), highlight=False)
    return 130 if interrupted else int(bool(grouped(journal)))


if __name__ == "__main__":
    sys.exit(main())
