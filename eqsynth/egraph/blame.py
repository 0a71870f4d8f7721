"""Which rules an error of saturation is laid to: the user's, by file and line, before our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eqsynth.errors import SaturationError
from eqsynth.rules import Rule, RuleSet, rules_dir


def is_own(rule: Rule) -> bool:
    """Whether a rule comes with eqsynth."""
    return Path(rule.file).resolve().parent == rules_dir().resolve()


def place(rule: Rule) -> str:
    """A rule as its author looks for it.

    >>> place(rule)                                                       # doctest: +SKIP
    'drop-relu (mine.egg:12)'
    """
    return f"{rule.name} ({rule.file}:{rule.line})"


@contextmanager
def blaming(rules: RuleSet, matches: Mapping[str, int]) -> Iterator[None]:
    """Lets an error of saturation name the rules that may be unsound.

    Args:
        matches: how often each rule has fired until then.

    Raises:
        SaturationError: as it was raised, with ``rules``, ``where`` and ``hint`` of the suspects.
    """
    try:
        yield
    except SaturationError as error:
        mine = [rule for rule in rules.rules if not is_own(rule)]
        # Only rewrites are counted when they fire.
        fired = [rule for rule in mine if rule.name in matches or rule.kind != "rewrite"]
        suspects = [rule for rule in fired if rule.name in error.rules] or fired
        if suspects:
            places = ", ".join(map(place, suspects))
            error.rules = tuple(rule.name for rule in suspects)
            error.where = places
            error.hint = (
                f"one of your rules is unsound: {places}; `eqsynth rules check` looks for a "
                "counterexample"
            )
        else:
            error.hint = "this is a fault in eqsynth: please report it, with the program"
        raise
