"""Which rules a search uses: the classes of rounding that a setting of ``numerics`` allows, of
eqsynth's own files and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from eqsynth.errors import EqsynthError
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules

NUMERICS: Final[dict[str, tuple[str, ...]]] = {
    "bitwise": ("bitwise",),
    "real": ("bitwise", "real"),
    "cancels": ("bitwise", "real", "cancels"),
    "approx": ("bitwise", "real", "cancels", "approx"),
}

# What `prove_equal` may use besides: forms that two programs meet in, which nobody computes.
_PROOFS: Final[dict[str, tuple[str, ...]]] = {
    "bitwise": (),
    "real": ("proof",),
    "cancels": ("proof", "proof-cancels"),
    "approx": ("proof", "proof-cancels"),
}

Files = Sequence[str | Path] | str | Path


def rule_files(files: Files) -> tuple[Path, ...]:
    """The paths that a user gave, as rules will know them; one alone needs no list. A file of the
    working directory that has the name of one of eqsynth's own comes with its whole path, so that
    it isn't taken for it.

    >>> [str(path) for path in rule_files("./mine.egg")]
    ['mine.egg']
    """
    given = (files,) if isinstance(files, str | Path) else tuple(files)
    paths = tuple(map(Path, given))
    return tuple(p.absolute() if str(p) in DEFAULT_FILES and p.exists() else p for p in paths)


def rules_of(
    files: Files, numerics: str, *, where: str, proving: bool = False
) -> RuleSet:
    """eqsynth's rules and those of the user's files, as far as ``numerics`` allows.

    Args:
        where: the function that the user called.
        proving: also the rules that hold over the reals and serve proofs alone.

    Raises:
        EqsynthError: no such class of ``numerics``.
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
