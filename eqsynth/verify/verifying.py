"""Verifying rules: which are verified, by which part of this room, and what is told."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Final

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.tree import is_call
from eqsynth.verify.verdict import Left, Outcome, Verdict, Wrong

LIMIT_S: Final = 20.0
"""Seconds of the processor after which no further question about a rule is asked."""

_RANGES: Final = frozenset({"low", "high", "divides", "divisor"})


def verify_rules(
    rules: RuleSet, names: Sequence[str], *, limit_s: float = LIMIT_S
) -> Iterator[Verdict]:
    """Verifies the rules of these names that say what is true; what is found of each as it comes.

    Raises:
        UnsupportedOperatorError: z3 isn't installed.
    """
    require_z3()
    for rule in to_verify(rules, names):
        yield verify_rule(rules, rule, limit_s=limit_s)


def to_verify(rules: RuleSet, names: Sequence[str]) -> list[Rule]:
    """The rules of these names that say what is true: those that unite, and analyses of indices.

    A law's answer belongs to its request; other analyses steer, and no equality relies on them.
    """
    asked = set(names)
    return [
        rule for rule in rules.rules
        if rule.name in asked and (rule.kind in ("rewrite", "law-request") or _says_ranges(rule))
    ]  # fmt: skip


def _says_ranges(rule: Rule) -> bool:
    return rule.kind == "analysis" and any(
        action[0] in _RANGES or (action[0] == "set" and action[1][0] in _RANGES)
        for action in rule.actions
    )


def require_z3() -> None:
    """
    Raises:
        UnsupportedOperatorError: z3 isn't installed.
    """
    if importlib.util.find_spec("z3") is None:
        raise UnsupportedOperatorError(
            what="rules can't be verified without Z3",
            got="no module z3",
            expected="the package z3-solver",
            hint="pip install 'eqsynth[verify]', or pip install z3-solver",
        )


def verify_rule(rules: RuleSet, rule: Rule, *, limit_s: float = LIMIT_S) -> Verdict:
    """Proves a rule for all sizes, refutes it, or says what is left to show."""
    start = time.process_time()
    outcome: Outcome
    from eqsynth.verify.integers import within

    try:
        with within(limit_s):
            outcome, why = _decided(rules, rule)
    except Left as left:
        outcome, why = "not proved", str(left)
    except Wrong as wrong:
        outcome, why = "refuted", str(wrong)
    return Verdict(rule, outcome, why, time.process_time() - start)


def _decided(rules: RuleSet, rule: Rule) -> tuple[Outcome, str]:
    from eqsynth.verify import indices

    if rule.kind == "analysis":
        return "proved", indices.verify_range_rule(rules, rule)
    if rule.kind == "law-request":
        if rule.law in ("definition", "view", "reduction"):
            return "definition", "says what the operator is"
        raise Left(f"the law {rule.law}")
    sort = _sort(rules, rule)
    if sort == "Idx":
        return "proved", indices.verify_index_rule(rules, rule)
    raise Left(f"rules of the sort {sort}")


def _sort(rules: RuleSet, rule: Rule) -> str:
    """The sort of the two sides of a rewrite."""
    assert rule.equality is not None
    for side in rule.equality:
        if is_call(side) and side[0] in rules.known.signatures:
            return rules.known.signatures[side[0]].output
    return dict(rule.columns)[rule.equality[0].name]
