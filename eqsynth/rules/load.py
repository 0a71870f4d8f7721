"""Loads `.egg` rule files into a `RuleSet`: which files those are, and each text once.

A process that has loaded a list of files leaves the `RuleSet` in the cache directory, and the next
process reads it there: eqsynth's own files take 0.24 s of CPU to load and 0.01 s to read. Its name
is a digest of the files' texts and paths, of eqsynth's code and of egglog's version, so a file that
has changed is loaded, and checked, anew. Files with a mistake are never kept.

What a file may say, and what is wrong with it, is found in `loader.py`; how files are kept,
`eqsynth/kept.py`.
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
from eqsynth.rules import rewind
from eqsynth.rules.definitions import Case, Comprehension, Definition
from eqsynth.rules.forms import read_text
from eqsynth.rules.loader import Loader
from eqsynth.rules.location import DEFAULT_FILES, rule_path, rules_dir
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.scope_rules import syntax
from eqsynth.rules.sorts import Declarations, Signature
from eqsynth.rules.tree import Var

MAX_BYTES: Final = 16 << 20
"""Of kept rules; of more, the files that weren't used for longest go."""


def load_rules(files: Iterable[str | Path] = DEFAULT_FILES) -> RuleSet:
    """Loads rule files in the given order.

    A name of `DEFAULT_FILES` is eqsynth's own; any other path is looked for from the working
    directory (`rule_path`).

    Raises:
        RuleError: a file that cannot be read, or a form that cannot be used, with its place.
    """
    paths = map(rule_path, files)
    return _remembered(tuple((read_text(path), str(path)) for path in paths))


def load_text(text: str, file: str = "<text>", *, after: Iterable[str | Path] = ()) -> RuleSet:
    """Loads rules from a text, after the given files: for tests and for interactive use."""
    paths = [rules_dir() / name for name in after]
    return _loaded((*((read_text(path), str(path)) for path in paths), (text, file)))


@lru_cache(maxsize=32)
def _remembered(texts: tuple[tuple[str, str], ...]) -> RuleSet:
    """The rules of texts with their files, from the cache directory if they are there."""
    versions = metadata.version("egglog"), kept.code_of("ir", "rules")
    name = hashlib.blake2b(repr((texts, versions)).encode(), digest_size=16).hexdigest()
    path = kept.directory("rules-1") / name
    found = kept.load(path, _CLASSES)
    if isinstance(found, RuleSet):
        return found
    rules = _loaded(texts)
    kept.keep(path, rules, MAX_BYTES)
    return rules


_CLASSES: Final = kept.classes(
    RuleSet, Rule, Declarations, Signature, Var, Definition, Case, Comprehension,
    *(kind for kind in vars(syntax).values() if isinstance(kind, type) and is_dataclass(kind)),
)  # fmt: skip
"""Classes of what a rule set consists of: data alone."""


@lru_cache(maxsize=32)
def _loaded(texts: tuple[tuple[str, str], ...]) -> RuleSet:
    """The rules of texts with their files. What comes before the last text is kept, loaded, for
    the next one: many files are loaded after eqsynth's own."""
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
