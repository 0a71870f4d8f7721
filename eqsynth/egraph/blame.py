"""Names the rules that may have caused an error of saturation: the user's rules that have fired.

An error of two different shapes in one e-class becomes "one of your rules is unsound: drop-relu
(mine.egg:12)". If no rule of the user has fired, the error is reported as a fault of eqsynth.
"""

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
    """Return a rule's name, file and line.

    >>> place(rule)                                                       # doctest: +SKIP
    'drop-relu (mine.egg:12)'
    """
    return f"{rule.name} ({rule.file}:{rule.line})"


@contextmanager
def blaming(rules: RuleSet, matches: Mapping[str, int]) -> Iterator[None]:
    """Add the suspected rules to a SaturationError that is raised inside of the ``with`` block.

    Args:
        matches: rule -> how often it has fired.

    Raises:
        SaturationError: the same error, with ``rules``, ``where`` and ``hint`` set.
    """
    try:
        yield
    except SaturationError as error:
        mine = [rule for rule in rules.rules if not is_own(rule)]
        # `matches` counts only rewrites; other kinds of rules may have fired.
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
