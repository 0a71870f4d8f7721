"""Loads `.egg` rule files into a `RuleSet`: which files those are, and each text once.

What a file may say, and what is wrong with it, is found in `loader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from eqsynth.rules import rewind
from eqsynth.rules.forms import read_text
from eqsynth.rules.loader import Loader
from eqsynth.rules.location import DEFAULT_FILES, rule_path, rules_dir
from eqsynth.rules.ruleset import RuleSet


def load_rules(files: Iterable[str | Path] = DEFAULT_FILES) -> RuleSet:
    """Loads rule files in the given order.

    A name of `DEFAULT_FILES` is eqsynth's own; any other path is looked for from the working
    directory (`rule_path`).

    Raises:
        RuleError: a file that cannot be read, or a form that cannot be used, with its place.
    """
    paths = map(rule_path, files)
    return _loaded(tuple((read_text(path), str(path)) for path in paths))


def load_text(text: str, file: str = "<text>", *, after: Iterable[str | Path] = ()) -> RuleSet:
    """Loads rules from a text, after the given files: for tests and for interactive use."""
    paths = [rules_dir() / name for name in after]
    return _loaded((*((read_text(path), str(path)) for path in paths), (text, file)))


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
