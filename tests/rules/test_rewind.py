"""Files are loaded once, and e-graphs are put back: nothing of what came before is left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eqsynth.errors import RuleError
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, load_text, rewind, rules_dir
from eqsynth.rules.forms import read_text
from eqsynth.rules.load import _loaded
from eqsynth.rules.loader import Loader

HEADER = ";; Numerics   bitwise\n;; Status     validated\n"
GOOD = HEADER + """
(sort Colour)
(sort Colours (Vec Colour))
(ruleset own)
(constructor Mixed (Colours) Colour)
(relation pale (Colour))
;; twice relu = relu
(rewrite (Relu (Relu x)) (Relu x) :ruleset own :name "own-rule")
"""
BAD = GOOD + '(rewrite (Rely x) x :ruleset own :name "own-bad")'
UNANSWERED = GOOD + """
(relation odd-answer (Tensor Tensor))
(law odd (Tensor) (Tensor Tensor))
"""


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    _loaded.cache_clear()
    rewind._threads.kept.owners.clear()
    yield


def anew(text: str, file: str) -> RuleSet:
    """As a loader reads it that has read nothing else."""
    loader = Loader()
    for name in DEFAULT_FILES:
        loader.load(read_text(rules_dir() / name), str(rules_dir() / name))
    loader.load(text, file)
    return loader.finish()


@pytest.mark.rotating
def test_a_file_is_loaded_as_if_it_were_the_first() -> None:
    """After others that declare the same names, and after errors in the middle of a file."""
    expected = anew(GOOD, "good.egg")
    for text in (GOOD, BAD, GOOD.replace("own", "other"), "(sort Colour", UNANSWERED, BAD, GOOD):
        _loaded.cache_clear()
        try:
            found = load_text(text, "good.egg", after=DEFAULT_FILES)
        except RuleError:
            assert text != GOOD
            continue
        assert (found == expected) == (text == GOOD)
        assert len(rewind._threads.kept.owners) == 1  # the default files were loaded once
    assert found == expected
    assert load_rules() == load_rules(DEFAULT_FILES) != expected


@pytest.mark.rotating
def test_rules_are_cached_by_the_text_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text(GOOD, encoding="utf-8")
    first = load_rules([*DEFAULT_FILES, path])
    assert load_rules([*DEFAULT_FILES, path]) is first
    path.write_text(GOOD.replace("own-rule", "our-rule"), encoding="utf-8")
    assert "our-rule" in load_rules([*DEFAULT_FILES, path]).names
    path.write_text(BAD, encoding="utf-8")
    for _ in range(2):
        with pytest.raises(RuleError) as caught:
            load_rules([*DEFAULT_FILES, path])
        assert (caught.value.file, caught.value.line) == (str(path), BAD.count("\n") + 1)
    path.write_text(GOOD, encoding="utf-8")
    other = tmp_path / "other.egg"
    path.rename(other)
    assert {r.file for r in load_rules([*DEFAULT_FILES, other]).rules} >= {str(other)}


@pytest.mark.rotating
def test_what_was_loaded_is_of_no_other_file(tmp_path: Path) -> None:
    """Declarations of one file are unknown to the next, though the files before are shared."""
    load_text(GOOD, after=DEFAULT_FILES)
    with pytest.raises(RuleError):
        load_text("(constructor More (Colours) Colour)", after=DEFAULT_FILES)
    assert "Colour" not in load_rules().known.sorts


@pytest.mark.rotating
def test_each_thread_has_e_graphs_of_its_own() -> None:
    """egglog's may be touched by the thread that made them only."""
    found: list[RuleSet] = []

    def load() -> None:
        _loaded.cache_clear()
        found.append(load_text(GOOD, after=DEFAULT_FILES))

    load()
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    load()
    assert len(found) == 3 and found[0] == found[1] == found[2]


def test_few_e_graphs_are_kept() -> None:
    for n in range(rewind.MAX_KEPT + 2):
        rewind.keep(n, f"e-graph {n}")
    assert rewind.take(0) is None and rewind.take(1) is None
    last = rewind.MAX_KEPT + 1
    assert rewind.take(last) == f"e-graph {last}"
    assert rewind.take(last) is None  # it is the caller's now


FORKING = """
import os, threading
from egglog import bindings as egg
from eqsynth.rules import rewind

rewind.keep("rules", egg.EGraph())

def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

thread = threading.Thread(target=fork)
thread.start()
thread.join()
assert not rewind._held and rewind.take("rules") is not None
"""


def test_a_fork_in_another_thread_says_nothing() -> None:
    """OpenVINO, for one, forks in a thread of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, check=True
    )
    assert not done.stderr
