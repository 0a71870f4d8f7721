"""The rules that a search uses: eqsynth's own and the user's, as far as the setting of ``numerics``
allows their effect on rounding.

    numerics="real"    ->    rules of the classes "bitwise" and "real"

Not here: what the classes promise (``rules/README.md``), loading rules (``eqsynth/rules``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from eqsynth.errors import EqsynthError
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules

NUMERICS: Final[dict[str, tuple[str, ...]]] = {
    "bitwise": ("bitwise",),
    "real": ("bitwise", "real"),
    "cancels": ("bitwise", "real", "cancels"),
    "approx": ("bitwise", "real", "cancels", "approx"),
}

# Classes of rules that `prove_equal` uses besides. They lead to forms in which two programs meet,
# but that no program should be computed by.
_PROOFS: Final[dict[str, tuple[str, ...]]] = {
    "bitwise": (),
    "real": ("proof",),
    "cancels": ("proof", "proof-cancels"),
    "approx": ("proof", "proof-cancels"),
}

Files = Sequence[str | Path] | str | Path


def rule_files(files: Files) -> tuple[Path, ...]:
    """The paths of rule files that a user has given, in the form by which rules name their file. A
    single file needs no list. If a file of the working directory has the same name as one of
    eqsynth's own rule files, its absolute path is returned, so that the two aren't confused.

    Raises:
        EqsynthError: ``files`` is something else.

    >>> [str(path) for path in rule_files("./mine.egg")]
    ['mine.egg']
    """
    listed: Any = files
    one = isinstance(listed, str | os.PathLike) or not isinstance(listed, Iterable)
    given = (listed,) if one else tuple(listed)
    if not all(isinstance(file, str | os.PathLike) for file in given):
        raise EqsynthError(
            "rules: these are no rule files",
            got=repr(files)[:300],
            expected="the path of a rule file, or several paths",
            hint="rules=['my.egg']; () for none of your own",
        )
    paths = tuple(map(Path, given))
    return tuple(p.absolute() if str(p) in DEFAULT_FILES and p.exists() else p for p in paths)


def rules_of(files: Files, numerics: str, *, where: str, proving: bool = False) -> RuleSet:
    """Load eqsynth's rules and those of the user's files, and keep those that ``numerics`` allows.

    Args:
        where: the function that the user called.
        proving: keep the rules that serve proofs alone, too.

    Raises:
        EqsynthError: ``numerics`` is none of the known classes.
        RuleError: a file can't be used.
    """
    if numerics not in NUMERICS:
        raise EqsynthError(
            f"{where}: unknown numerics {numerics!r}",
            got=repr(numerics),
            expected=", ".join(map(repr, NUMERICS)),
            hint="choose one of the classes",
        )
    asked = rule_files(files)
    rules = load_rules([*DEFAULT_FILES, *asked])
    classes = NUMERICS[numerics] + (_PROOFS[numerics] if proving else ())
    return rules.select(numerics=classes, asked_for=asked)
