"""Loads `.egg` rule files into a `RuleSet`: which files those are, and each text once.

What a file may say, and what is wrong with it, is found in `loader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from eqsynth.errors import RuleError
from eqsynth.rules import rewind
from eqsynth.rules.forms import read_text
from eqsynth.rules.loader import Loader
from eqsynth.rules.location import rules_directory
from eqsynth.rules.ruleset import RuleSet

# In the order of loading: a file may use what the files before it declare.
DEFAULT_FILES = (
    "schema.egg",
    "shape.egg",
    "index.egg",
    "scalar.egg",
    "operators.egg",
    "elementwise.egg",
    "views.egg",
    "derive.egg",
    "contract.egg",
    "linear.egg",
    "reduce.egg",
    "maps.egg",
    "match.egg",
    "merge.egg",
    "epilogue.egg",
    "simplify.egg",
    "views-match.egg",
)


def rules_dir() -> Path:
    """The directory of the rule files that come with eqsynth.

    Raises:
        RuleError: the installation has none.
    """
    try:
        return rules_directory()
    except FileNotFoundError as error:
        raise RuleError(str(error), hint="Install eqsynth again.") from error


def load_rules(files: Iterable[str | Path] = DEFAULT_FILES) -> RuleSet:
    """Loads rule files in the given order.

    A bare file name, as in `DEFAULT_FILES`, is looked up in `rules_dir()`; any other path is
    taken as it is.

    Raises:
        RuleError: a file that cannot be read, or a form that cannot be used, with its place.
    """
    paths = map(rule_path, files)
    return _loaded(tuple((read_text(path), str(path)) for path in paths))


def rule_path(name: str | Path) -> Path:
    """Where a rule file is: a bare name that isn't here is one of eqsynth's own."""
    path = Path(name)
    return rules_dir() / path if path.parent == Path() and not path.is_file() else path


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
