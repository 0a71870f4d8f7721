"""Damaged, odd and interrupted input: it must lead to a result or to an error of eqsynth.

    python -m benchmarks.fuzz --minutes 30                   every kind in turn
    python -m benchmarks.fuzz --minutes 5 --kinds onnx rules
    python -m benchmarks.fuzz --minutes 0                    what was tried until now

Kinds: `onnx` (damaged models), `bundles` (damaged files of programs), `rules` (damaged rule files,
loaded and run), `expressions` (random programs, each e-node evaluated), `modules` (random torch
modules through ``optimize``), `kills` (pairs of processes that optimize with one cache directory,
killed at random moments: the profile stays whole, and nothing that was measured is lost).

Counts are kept by kind, with the number of the next input, so that a run continues where the last
one ended, even if the code has changed. The exit status is 1 if another error escaped in this run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stderr
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from eqsynth.extract.store import FILE_NAME

JOURNAL = Path(__file__).parent / "results" / "fuzz.json"
TURN_S = 30.0
"""The seconds of one kind's turn."""


@dataclass
class Tried:
    """What was tried of one kind.

    Attributes:
        next: the number of the next input, which determines it.
        ends: the way an input ended -> the number of inputs.
        escaped: errors that aren't eqsynth's, with the numbers of their inputs.
    """

    next: int = 0
    inputs: int = 0
    seconds: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    escaped: list[str] = field(default_factory=list)

    def count(self, ends: Mapping[str, int]) -> None:
        self.ends = dict(Counter(self.ends) + Counter(ends))
        self.inputs += sum(ends.values())


Turn = Callable[[Tried, float], None]
"""Tries inputs of one kind until the monotonic clock reaches the second argument; at least one."""


def _of_tests(folder: str, name: str) -> ModuleType:
    """Import a module of the tests, which aren't a package."""
    path = str((Path(__file__).parents[1] / "tests" / folder).resolve())
    if path not in sys.path:
        sys.path.append(path)
    return import_module(name)


def onnx(tried: Tried, until: float) -> None:
    from eqsynth.testing.onnx_damage import damaged, refusal

    sound = _of_tests("frontend/onnx", "onnx_models")
    models = (sound.cnn(), (torch.ones(2, 3, 16, 16),)), (sound.transformer(), ())
    while True:
        number, tried.next = tried.next, tried.next + 1
        model, inputs = models[number % len(models)]
        begin = time.monotonic()
        try:
            end = "refused" if refusal(damaged(model, number), inputs) else "runs"
        except Exception as error:  # whatever gets through is what is looked for
            end = "escaped"
            tried.escaped.append(f"{number}: {type(error).__name__}: {error}"[:300])
        if time.monotonic() - begin > 30:
            tried.escaped.append(f"{number}: {time.monotonic() - begin:.0f} s")
        tried.count({end: 1})
        if time.monotonic() >= until:
            return


def bundles(tried: Tried, until: float) -> None:
    fuzz_bundle = _of_tests("lower", "fuzz_bundle")
    while True:
        number, tried.next = tried.next, tried.next + 1
        found = fuzz_bundle.run(200, number)
        tried.escaped += [f"{number}: {told}" for told in found.escaped]
        tried.count({**found.counts, "escaped": len(found.escaped)})
        if time.monotonic() >= until:
            return


def rules(tried: Tried, until: float) -> None:
    fuzz_load = _of_tests("..", "tests.rules.fuzz_load")
    fuzzer = fuzz_load.Fuzzer(JOURNAL.parent / "fuzz-faults")
    try:
        while True:
            number, tried.next = tried.next, tried.next + 1
            fuzzer.feed(*fuzz_load._input(random.Random(number)))
            if time.monotonic() >= until:
                break
    finally:
        fuzzer.close()
    loaded, refused = fuzzer.counts["loaded"], fuzzer.counts["refused"]
    others = fuzzer.counts["inputs"] - loaded - refused
    tried.count({"loaded": loaded, "refused": refused, "neither": others})
    tried.escaped += [f"{key}: {path}" for key, path in fuzzer.faults.items()]


def expressions(tried: Tried, until: float) -> None:
    from benchmarks.random_programs import run_batch

    _batches(run_batch, tried, until)


def modules(tried: Tried, until: float) -> None:
    from benchmarks.random_modules import run_modules

    _batches(run_modules, tried, until)


def _batches(run: Callable[[int], dict[str, Any]], tried: Tried, until: float) -> None:
    while True:
        number, tried.next = tried.next, tried.next + 1
        batch = run(number)
        bad = [f"{number}: {failure['error']}"[:500] for failure in batch["failures"]]
        tried.escaped += bad
        tried.count({"right": len(batch["programs"]) - len(bad), "wrong": len(bad)})
        if time.monotonic() >= until:
            return


_OPTIMIZES = """
import sys, eqsynth
rows = int(sys.argv[1])
x, u = eqsynth.input("x", (rows, 24)), eqsynth.weight("u", (24, 96))
v = eqsynth.weight("v", (96, 24))
eqsynth.optimize(eqsynth.ops.tanh((x @ u) @ v) + x, engines=(), progress=False, time_limit_s=20)
"""
_LONGEST_S = 15.0  # of a process that isn't killed, on a busy machine


def kills(tried: Tried, until: float) -> None:
    with tempfile.TemporaryDirectory(prefix="eqsynth-") as folder:
        known: set[str] = set()
        while True:
            number, tried.next = tried.next, tried.next + 1
            draw = random.Random(number)
            pair = [_started(folder, draw.randrange(4, 64)) for _ in range(2)]
            time.sleep(draw.uniform(0.5, _LONGEST_S))
            ended = sum(process.poll() is not None for process in pair)
            for process in pair:
                process.kill()
                _, told = process.communicate()
                if process.returncode not in (0, -9):
                    tried.escaped.append(f"{number}: {told[-300:]}")
            now, wrong = _state(Path(folder))
            if known - now:
                wrong.append(f"{len(known - now)} times are lost")
            tried.escaped += [f"{number}: {what}" for what in wrong]
            known = now
            tried.count({"killed": 2 - ended, "at its end": ended})
            if time.monotonic() >= until:
                break
        last = _started(folder, 16)
        _, told = last.communicate()
        if last.returncode:
            tried.escaped.append(f"a run after all kills: {told[-300:]}")


def _started(folder: str, rows: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", _OPTIMIZES, str(rows)]
    return subprocess.Popen(
        command, env={**os.environ, "EQSYNTH_CACHE": folder}, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _state(folder: Path) -> tuple[set[str], list[str]]:
    """The keys of the times in the profile of a cache directory, and the faults of the profile."""
    wrong = [f"moved aside: {path.name}" for path in folder.glob("*.broken-*")]
    profile = folder / FILE_NAME
    if not profile.exists():
        return set(), wrong
    with closing(sqlite3.connect(profile, timeout=30)) as db:
        ((verdict,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
        if verdict != "ok":
            wrong.append(f"the profile: {verdict}")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        rows = db.execute("SELECT hash FROM times").fetchall() if "times" in tables else []
    return {name for (name,) in rows}, wrong


KINDS: Mapping[str, Turn] = {
    "onnx": onnx, "bundles": bundles, "rules": rules, "expressions": expressions,
    "modules": modules, "kills": kills,
}  # fmt: skip


def load(path: Path) -> dict[str, Tried]:
    """What was tried until now; empty if the journal is missing or cut short."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {kind: Tried(**known.get(kind, {})) for kind in KINDS}
    except (OSError, ValueError, TypeError, AttributeError):
        return {kind: Tried() for kind in KINDS}


def run(kinds: list[str], seconds: float, path: Path, turn_s: float = TURN_S) -> bool:
    """Give each kind its turn until the time is over. Return whether an error has escaped."""
    tried, end, escaped, place = load(path), time.monotonic() + seconds, False, 0
    while time.monotonic() < end:
        kind = kinds[place % len(kinds)]
        own, begin, place = tried[kind], time.monotonic(), place + 1
        before = len(own.escaped)
        with redirect_stderr(io.StringIO()):
            KINDS[kind](own, min(end, begin + turn_s))
        own.seconds += time.monotonic() - begin
        for what in own.escaped[before:]:
            escaped = True
            print(f"{kind} escaped {what}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".new")
        made.write_text(json.dumps({k: asdict(t) for k, t in tried.items()}), encoding="utf-8")
        made.replace(path)
    return escaped


def table(tried: Mapping[str, Tried]) -> str:
    """A table with a line for each kind, and the sum."""
    lines = [
        f"{kind:12}{own.inputs:>9,} inputs {own.seconds / 60:7.1f} min {len(own.escaped):4} escaped"
        f"   {', '.join(f'{n:,} {end}' for end, n in sorted(own.ends.items()) if n)}"
        for kind, own in tried.items()
    ]
    minutes = sum(own.seconds for own in tried.values()) / 60
    inputs = sum(own.inputs for own in tried.values())
    return "\n".join([*lines, f"{'together':12}{inputs:>9,} inputs {minutes:7.1f} min"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--fresh", action="store_true", help="forget what was tried before")
    args = parser.parse_args()
    if args.fresh:
        args.journal.unlink(missing_ok=True)
    escaped = run(args.kinds, 60 * args.minutes, args.journal)
    print(table(load(args.journal)))
    sys.exit(escaped)


if __name__ == "__main__":
    main()
