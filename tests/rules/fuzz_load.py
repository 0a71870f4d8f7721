"""Fuzzes the loader of rule files, and the engine with what was loaded.

    python tests/rules/fuzz_load.py --seconds 600            # seeded random mutations
    python tests/rules/fuzz_load.py --seconds 600 --atheris  # guided by coverage of eqsynth.rules
    python tests/rules/fuzz_load.py --replay FILE...         # inputs that were kept before

A fault is anything but a `RuleError` or a loaded file, or more than five seconds. What was loaded
is run in a worker process, where a fault is a worker that dies or an error that is none of ours.
Faults are kept as files, by the place where they were raised; a line of counts comes at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
if __name__ == "__main__" and "--atheris" in sys.argv:
    # Before anything imports them: only what is imported here is watched.
    import atheris

    with atheris.instrument_imports(include=["eqsynth.rules"]):
        import eqsynth.rules  # noqa: F401

from eqsynth.errors import EqsynthError, RuleError
from eqsynth.executor import Worker
from eqsynth.serving import WorkerError
from tests.rules import mutation

HANG_S = 5.0
_MEMORY = 2 << 30
# Of the inputs that load, one in so many is run: running costs a thousand times as much.
_RUN_ONE_IN = 8


class Fuzzer:
    """Feeds texts to the loader and to the engine; counts, and keeps what went wrong."""

    def __init__(self, keep: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, Path] = {}
        self._keep = keep
        self._worker = Worker(memory_limit=_MEMORY)

    def feed(self, text: str, after: str) -> None:
        """One input: `after` is `prelude`, `schema` or `default`."""
        from eqsynth.rules import DEFAULT_FILES, load_text

        self.counts["inputs"] += 1
        begin = time.process_time()
        rules = None
        try:
            if after == "prelude":
                rules = load_text(mutation.PRELUDE + text, "fuzz.egg")
            else:
                files = DEFAULT_FILES if after == "default" else ["schema.egg"]
                rules = load_text(text, "fuzz.egg", after=files)
            self.counts["loaded"] += 1
        except RuleError as error:
            self.counts["refused"] += 1
            if not (error.what and error.hint and error.file):
                self._fault("error without its parts", text, after, repr(vars(error)))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._fault(_place(error), text, after, traceback.format_exc())
        if time.process_time() - begin > HANG_S:
            self._fault(f"hang in loading {after}", text, after, f"{time.process_time() - begin} s")
        if rules is None or not rules.rules:
            return
        if after == "default":
            self._guarded("saturate", text, after, _saturate, rules)
        elif self.counts["loaded"] % _RUN_ONE_IN == 0:
            self._guarded("run", text, after, _run_all, rules)

    def _guarded(
        self, what: str, text: str, after: str, task: Callable[..., Any], rules: Any
    ) -> None:
        self.counts[what] += 1
        try:
            self._worker.run(task, rules, timeout_s=30.0)
        except WorkerError as error:
            self.counts[f"{what}: worker {error.reason}"] += 1
            if error.reason == "killed":
                self._fault(f"{what} kills the worker", text, after, str(error))
        except EqsynthError as error:
            self.counts[f"{what}: {type(error).__name__}"] += 1
            if type(error) is EqsynthError:
                self._fault(f"{what}: {error.what[:60]}", text, after, str(error))
        except Exception as error:
            self._fault(f"{what}: {_place(error)}", text, after, "".join(error.__notes__))

    def _fault(self, key: str, text: str, after: str, detail: str) -> None:
        self.counts["faults"] += 1
        if key in self.faults:
            return
        path = self._keep / f"{len(self.faults)}.egg"
        self._keep.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        self.faults[key] = path
        print(f"fault {key!r} after {after}: {path}\n{detail}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._worker.close()

    def summary(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"{counts}; {len(self.faults)} kinds of fault: {sorted(self.faults)}"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}"


def _run_all(rules: Any) -> None:
    """The worker's task for files without tensors: every ruleset a few times, on a few terms."""
    from eqsynth.egraph.engine import Engine

    engine = Engine(rules)
    constructors = rules.known.signatures
    x = ("Full", [2, 3], 1.0, "float32")
    terms = [("Relu", ("Relu", x)), ("Add", x, ("Relu", x)), ("Concat", [x, x], 1)]
    if "Tok" in constructors:
        engine.insert([t for t in terms if t[0] in constructors])
    for _ in range(3):
        engine.analyse(rounds=3, tuple_limit=5000)
        for rule in rules.rules:
            if engine.tuples() > 5000:
                return
            if rule.match_ruleset:
                engine.match(rule)
            if rule.apply_ruleset and rule.kind != "analysis":
                engine.apply(rule)


def _saturate(rules: Any) -> None:
    """The worker's task for files of the full language: a small program through all phases."""
    import eqsynth
    from eqsynth.egraph.saturation import saturate_terms
    from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
    from eqsynth.frontend.expression import program_of

    x = eqsynth.input("x", (2, 3))
    w = eqsynth.weight("w", (3, 3))
    program = program_of([eqsynth.ops.relu(x @ w + x), eqsynth.ops.cat([x, x], 1)])[0]
    saturate_terms(program.outputs, rules, DEFAULT_PHASES, Limits(2000, 3.0), False)


def _input(choices: mutation.Choices) -> tuple[str, str]:
    """A text, and what it is loaded after: small files mostly, since they load in no time."""
    kind = choices.randint(0, 99)
    if kind < 80:
        return mutation.hostile_file(choices, mutation.SEEDS), "prelude"
    forms = mutation.own_forms() + mutation.SEEDS
    return mutation.hostile_file(choices, forms), "schema" if kind < 98 else "default"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="guided by coverage")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"))
    parser.add_argument("--replay", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.atheris:
        return _guided(options)
    fuzzer = Fuzzer(options.keep)
    for path in options.replay:
        for after in ("prelude", "schema", "default"):
            fuzzer.feed(path.read_text(encoding="utf-8", errors="surrogatepass"), after)
    end = time.monotonic() + options.seconds * (not options.replay)
    choices = random.Random(options.seed)
    while time.monotonic() < end:
        fuzzer.feed(*_input(choices))
    fuzzer.close()
    print(fuzzer.summary())
    return bool(fuzzer.faults)


class _Bytes:
    """A fuzzer's bytes as choices."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def randint(self, a: int, b: int) -> int:
        return int(self._provider.ConsumeIntInRange(a, b))


def _guided(options: argparse.Namespace) -> int:
    import atheris

    fuzzer = Fuzzer(options.keep)
    end = time.monotonic() + options.seconds

    def one(data: bytes) -> None:
        if time.monotonic() > end:
            fuzzer.close()
            print(fuzzer.summary(), flush=True)
            os._exit(bool(fuzzer.faults))  # libFuzzer takes any other end for a crash
        provider = atheris.FuzzedDataProvider(data)
        if provider.ConsumeIntInRange(0, 3) == 0:
            fuzzer.feed(provider.ConsumeUnicode(4096), "prelude")
        else:
            fuzzer.feed(*_input(_Bytes(provider)))

    # Random bytes to begin with: from an empty input it would take hours to reach a whole file.
    corpus, chance = Path(tempfile.mkdtemp(prefix="fuzz-rules-")), random.Random(options.seed)
    for number in range(200):
        (corpus / str(number)).write_bytes(chance.randbytes(chance.randint(50, 1000)))
    flags = ["-max_len=4096", "-len_control=0", "-timeout=60", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], *flags, f"-seed={options.seed + 1}", str(corpus)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    # The module under its own name: a worker can't be given tasks of __main__.
    from tests.rules import fuzz_load

    sys.exit(fuzz_load.main())
