"""Loads `.egg` rule files into a `RuleSet`: ``load_rules(["schema.egg", "mine.egg"])``.

A process stores the `RuleSet` of a list of files in the cache directory, and the next process reads
it: eqsynth's own files take 0.24 s of CPU to load, and 0.01 s to read from the cache. The name of
the cached file is a digest of the texts and paths of the rule files, eqsynth's code, the names of
its functions and operators, and egglog's version, so a rule file that has changed is loaded and
checked again. Files with a mistake are never cached.

Not here: what a rule file may contain, and its mistakes (`loader.py`); how cached files are written
(`eqsynth/kept.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.ir.operators import OPERATORS
from eqsynth.rules import rewind
from eqsynth.rules.claim import Claim
from eqsynth.rules.definitions import Case, Comprehension, Definition
from eqsynth.rules.forms import read_text
from eqsynth.rules.loader import Loader
from eqsynth.rules.location import DEFAULT_FILES, rule_path, rules_dir
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.scope_rules import syntax
from eqsynth.rules.sorts import Declarations, Law, Signature
from eqsynth.rules.tree import Var

MAX_BYTES: Final = 16 << 20
"""The largest size of the cached rules; beyond it the least recently used files are deleted."""


def load_rules(files: str | Path | Iterable[str | Path] = DEFAULT_FILES) -> RuleSet:
    """Load one rule file, or several in the given order.

    A name of `DEFAULT_FILES` is eqsynth's own file; any other path is relative to the working
    directory (`rule_path`).

    Raises:
        RuleError: a file can't be read, or a form can't be used; the error has the form's place.
    """
    paths = map(rule_path, [files] if isinstance(files, str | Path) else files)
    return _remembered(tuple((read_text(path), str(path)) for path in paths))


def load_text(text: str, file: str = "<text>", *, after: Iterable[str | Path] = ()) -> RuleSet:
    """Load rules from a text, after the given files; for tests and interactive use."""
    paths = [rules_dir() / name for name in after]
    return _loaded((*((read_text(path), str(path)) for path in paths), (text, file)))


@lru_cache(maxsize=32)
def _remembered(texts: tuple[tuple[str, str], ...]) -> RuleSet:
    """Return the rules of (text, file) pairs, from the cache directory if they are there."""
    # A process that adds a row to a table, as `FUNCTIONS["deg2rad"]`, has rules that are made of
    # the row (`deg2rad-definition`), although no file of the code has changed.
    tables = sorted(FUNCTIONS), sorted(REDUCERS), sorted(OPERATORS)
    versions = metadata.version("egglog"), kept.code_of("ir", "rules"), tables
    name = hashlib.blake2b(repr((texts, versions)).encode(), digest_size=16).hexdigest()
    path = kept.directory("rules-1") / name
    found = kept.load(path, _CLASSES)
    if isinstance(found, RuleSet):
        return found
    rules = _loaded(texts)
    kept.keep(path, rules, MAX_BYTES)
    return rules


_CLASSES: Final = kept.classes(
    RuleSet, Rule, Claim, Declarations, Law, Signature, Var, Definition, Case, Comprehension,
    *(kind for kind in vars(syntax).values() if isinstance(kind, type) and is_dataclass(kind)),
)  # fmt: skip
"""The classes that a pickled rule set may contain; all of them are plain data."""


@lru_cache(maxsize=32)
def _loaded(texts: tuple[tuple[str, str], ...]) -> RuleSet:
    """Load the rules of (text, file) pairs. The loader of all texts but the last is cached, since
    many single files are loaded after eqsynth's own files."""
    *before, last = texts or (("", ""),)
    key = ("loader", *before)
    loader: Loader | None = rewind.take(key)
    if loader is None:
        loader = Loader()
        for text, file in before:
            loader.load(text, file)
    rewind.mark(loader.engine)
    further = loader.copy()
    try:
        further.load(*last)
        return further.finish()
    finally:
        if not further.panicked:
            rewind.rewind(loader.engine)
            rewind.keep(key, loader)
