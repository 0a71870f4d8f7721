"""Faults that are planted in a copy of the tree; the quick tests must fail on each of them.

    python -m benchmarks.planted [PART OF A NAME ...]

Each fault is one that a person could make: a missing condition, a bound that is too wide. The quick
tests run as ``make test`` runs them, in one process: first the part of the present turn; if it
passes, all parts, since a test that runs only in some turns sees the fault then. The exit status is
1 if a fault isn't found. This checks changes that make the test suite faster: it must find the same
faults as before. The faults for each kind of check are in ``tests/testing/test_planted_faults.py``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fault:
    """``right``, which is once in ``file``, becomes ``wrong``; one of ``tests`` fails."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS: Final = (
    Fault(
        "capture: a write in place is taken for a function although a view is read later",
        "eqsynth/lower/functional.py",
        "self._place[user] > here", "self._place[user] < here",
        ("tests/lower/test_functional.py",),
    ),
    Fault(
        "calculus: what is read in part outside of a tensor is the padding everywhere",
        "eqsynth/ir/scalar.py",
        "return any(high < 0 or low >= extent for", "return any(low < 0 or high >= extent for",
        ("tests/calculus/test_define.py",),
    ),
    Fault(
        "calculus: an operator that opens to another scope is matched",
        "eqsynth/calculus/deriving.py",
        "isinstance(end, Scope) and least_form(end) == wanted", "isinstance(end, Scope)",
        ("tests/calculus/test_define.py",),
    ),
    Fault(
        "calculus: every place that a mask lets through counts, also beside the steps",
        "eqsynth/calculus/restrict.py",
        "counts = (rest == 0) & (number >= 0)", "counts = (number >= 0)",
        ("tests/calculus/test_restrict.py",),
    ),
    Fault(
        "law: a bound that cuts off one element too many",
        "eqsynth/egraph/tactics/derivation.py",
        "narrow = {it: b for it, b in bounds.items() if b != (0, it.extent) and b[0] < b[1]}",
        "narrow = {it: (b[0], b[1] - 1) for it, b in bounds.items()\n"
        "              if b != (0, it.extent) and b[0] + 1 < b[1]}",
        ("tests/egraph/test_derivation.py", "tests/egraph/test_reductions.py"),
    ),
    Fault(
        "rule: a reshape to any shape does nothing",
        "rules/simplify.egg",
        "(rewrite (Reshape x s) x\n         :when ((= s (shape x)))", "(rewrite (Reshape x s) x",
        ("tests/egraph/test_saturation.py",),
    ),
    Fault(
        "check: an error a thousand times rounding is rounding",
        "eqsynth/lower/rounding.py",
        "SURE: Final = 64.0", "SURE: Final = 64000.0",
        ("tests/lower/test_rounding.py", "tests/lower/test_check.py"),
    ),
    Fault(
        "interpreter: the step of a slice is forgotten",
        "eqsynth/ir/reference.py",
        "(slice(start, stop, step),)]", "(slice(start, stop),)]",
        ("tests/ir/test_inference.py", "tests/ir/test_reference.py"),
    ),
    Fault(
        "segments: one is known by its last result alone",
        "eqsynth/egraph/segments.py",
        "digest_of(*(root.digest for root in self.roots))", "digest_of(self.roots[-1].type)",
        ("tests/egraph/test_segments.py",),
    ),
    Fault(
        "workers: one that holds much memory is kept",
        "eqsynth/executor.py",
        "return memory.rss <= MAX_RESIDENT_BYTES and (not limit or memory.vms <= limit // 2)",
        "return memory.rss > 0 or memory.vms <= limit",
        ("tests/test_executor.py",),
    ),
    Fault(
        "calculus: 0 times an infinity is 0",
        "eqsynth/calculus/same.py",
        "_require(abs(number) == size > 0 or plain,", "_require(True,",
        ("tests/calculus/test_same.py",),
    ),
    Fault(
        "calculus: what is reduced inside is used outside",
        "eqsynth/calculus/close.py",
        "_require(not shared,", "_require(True,",
        ("tests/calculus/test_close.py",),
    ),
    Fault(
        "calculus: products on two boxes are the same wherever these begin",
        "eqsynth/calculus/same.py",
        "tuple(old + low for old, low in zip(box[1], begin, strict=False))", "box[1]",
        ("tests/calculus/test_same.py",),
    ),
    Fault(
        "calculus: inf - inf is a number",
        "eqsynth/calculus/rearrange.py",
        "_require(before.finite and after.finite,", "_require(True,",
        ("tests/calculus/test_rearrange.py",),
    ),
    Fault(
        "verify: a sum over other extents is the same to the last bit",
        "eqsynth/verify/rewrites.py",
        "return not made <= summed((left, *rule.body))", "return False",
        ("tests/verify/test_tensors.py",),
    ),
    Fault(
        "selection: a part is cut off although some way goes round its border",
        "eqsynth/extract/parts.py",
        "while cut[-1][0] is not None and not _is_whole(", "while False and not _is_whole(",
        ("tests/extract/test_greedy.py",),
    ),
    Fault(
        "certificates: the borders of a large tensor aren't looked at",
        "eqsynth/certificates/judging.py",
        "np.where(rng.random(count) < 0.5, anywhere, border)", "anywhere",
        ("tests/test_certificates.py",),
    ),
    Fault(
        "explanations: a class that its own member reads is opened for ever",
        "eqsynth/egraph/answers.py",
        "for ref, member in members.items() if ref != arg}", "for ref, member in members.items()}",
        ("tests/egraph/test_hostile_tactics.py",),
    ),
    Fault(
        "numbers: a maximum of NaN depends on the order",
        "eqsynth/ir/interpret.py",
        'if elements.dtype == object and scope.reducer in ("max", "min"):', "if False:",
        ("tests/testing/test_numbers.py",),
    ),
)  # fmt: skip


@contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[None]:
    """The tree with the fault in it, inside of this block."""
    path = tree / fault.file
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.right) == 1, f"{fault.name}: {fault.file} has changed"
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def fails(fault: Fault, tree: Path, part: str) -> bool:
    """Whether one of the fault's tests fails in a tree."""
    # Bytecode is written: compiling what all faults share takes longer than most tests.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "--part", part,
         "-p", "no:cacheprovider", "-p", "no:xdist", *fault.tests],
        cwd=tree, env={**kept, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode > 1:
        raise SystemExit(f"{fault.name}: the tests could not run\n{ended.stdout[-2000:]}")
    return ended.returncode == 1


def verdict(fault: Fault, tree: Path) -> str:
    with planted(fault, tree):
        if fails(fault, tree, "now"):
            return "caught"
        return "caught in another turn" if fails(fault, tree, "all") else "UNSEEN"


def main(names: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults whose names have one of these in them")
    wanted = parser.parse_args(names).names
    asked = [f for f in FAULTS if not wanted or any(part in f.name for part in wanted)]
    if not asked:
        parser.error(f"no fault has one of these in its name: {', '.join(wanted)}")
    unseen = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        tree = Path(directory, "tree")
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "results")
        shutil.copytree(ROOT, tree, ignore=ignored)
        for fault in asked:
            found = verdict(fault, tree)
            unseen += found == "UNSEEN"
            print(f"{found:22s}{fault.name}", flush=True)
    raise SystemExit(unseen > 0)


if __name__ == "__main__":
    main()
