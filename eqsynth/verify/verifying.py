"""Verify rules: select those that claim something, and send each to the module that can prove it.

    a rewrite of indices -> ``indices.py``, of tensors -> ``rewrites.py``, of scalars ->
    ``scalars.py``, of scopes -> ``scope_rules.py``

A rule that isn't proved is tested on samples, which may refute it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from eqsynth.egraph.tactics.table import claims_too_much
from eqsynth.errors import UnsupportedOperatorError
from eqsynth.rules import Rule, RuleSet, rules_dir
from eqsynth.rules.tree import is_call
from eqsynth.testing.soundness import SAMPLES, check_rule
from eqsynth.verify.laws import behind
from eqsynth.verify.verdict import Left, Outcome, Verdict, Wrong

LIMIT_S: Final = 20.0
"""Processor time (s) after which no further question about a rule is asked."""

# The kinds of differences on a sample that refute a rule. A difference of rounding doesn't.
_REFUTING: Final = frozenset({"value", "shape", "dtype"})

# The laws that rewrite an operator to its definition.
_DEFINING: Final = frozenset({"definition", "view", "reduction"})

_RANGES: Final = frozenset({"low", "high", "divides", "divisor"})


def verify_rules(
    rules: RuleSet, names: Sequence[str], *, limit_s: float = LIMIT_S
) -> Iterator[Verdict]:
    """Verify those of the named rules that claim an equality or a range; yield each verdict as soon
    as it is found.

    Raises:
        UnsupportedOperatorError: z3 isn't installed.
    """
    require_z3()
    for rule in to_verify(rules, names):
        yield verify_rule(rules, rule, limit_s=limit_s)


def to_verify(rules: RuleSet, names: Sequence[str]) -> list[Rule]:
    """Those of the named rules that can be verified: rewrites, requests of laws, and analyses of
    the ranges and divisors of indices.

    Rules that apply a law's answer are verified with the law's request. Other analyses only steer
    the search: no equality relies on them.
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
    """Check that Z3 can be imported.

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


def z3_version() -> str:
    """Return the version of Z3, on which it depends what is proved.

    Raises:
        UnsupportedOperatorError: z3 isn't installed.
    """
    require_z3()
    import z3

    return str(z3.get_full_version())


def verify_rule(
    rules: RuleSet, rule: Rule, *, limit_s: float = LIMIT_S, samples: bool = True
) -> Verdict:
    """Prove a rule for all sizes, or refute it, or say what is left to show.

    Args:
        samples: if a rule of tensors or scalars isn't proved, look for a sample that refutes it.
    """
    start = time.process_time()
    outcome: Outcome
    from eqsynth.verify.integers import within

    try:
        with within(limit_s):
            outcome, why = _decided(rules, rule)
    except Wrong as wrong:
        outcome, why = "refuted", str(wrong)
    except Exception as left:
        # An exception other than ``Left`` is a fault of this package. It proves nothing, and the
        # verdict reports it.
        what = str(left) if isinstance(left, Left) else f"everything, after the fault {left!r}"
        outcome, why = "not proved", f"left to show: {what}"
        if samples and rule.kind == "rewrite" and not _is_of_indices(rules, rule):
            # Look for a counterexample: fire the rule on samples, evaluate both sides, and shrink
            # the sample on which they differ.
            checked = check_rule(
                rules, rule, samples=SAMPLES, limit_s=limit_s / 2, search_s=limit_s / 4
            )
            if checked.error is not None and checked.error.kind in _REFUTING:
                outcome, why = "refuted", " ".join(str(checked.error).split())
    return Verdict(rule, outcome, why, time.process_time() - start)


def _decided(rules: RuleSet, rule: Rule) -> tuple[Outcome, str]:
    from eqsynth.verify import indices, rewrites, scalars, scope_rules, unfolding

    if rule.kind == "analysis":
        return "proved", indices.verify_range_rule(rules, rule)
    if _defines(rules, rule):
        return "definition", "says what an operator is"
    if rule.kind == "law-request":
        if rule.law in _DEFINING:
            raise Left("that it says what another definition says")
        if rule.scopes is not None:
            return "proved", scope_rules.verify_scope_rule(rule)
        if claims_too_much(rule.law, rule.numerics):
            raise Left(f"that the law {rule.law} is {rule.numerics}")
        written = behind(rule.law)
        if written and _is_ours(rule):
            return "by law", f"the law {rule.law} answers by {written}"
        raise Left(f"the law {rule.law}")
    sort = _sort(rules, rule)
    if sort == "Idx":
        return "proved", indices.verify_index_rule(rules, rule)
    if sort == "Tensor":
        try:
            return "proved", rewrites.verify_tensor_rule(rules, rule)
        except Left:
            parts = unfolding.differences(rules, rule)
            if parts == [rule]:
                raise
        try:
            shown = [rewrites.verify_tensor_rule(rules, part) for part in parts]
        except Left:
            (one,) = unfolding.differences(rules, rule, whole=True)
            shown = [rewrites.verify_tensor_rule(rules, one)]
        return "proved", "; ".join(shown) or "for all sizes and ranks: both sides are one term"
    if sort == "Scalar":
        return "proved", scalars.verify_scalar_rule(rules, rule)
    raise Left(f"rules of the sort {sort}")


def _is_ours(rule: Rule) -> bool:
    """Whether a rule is in eqsynth's own rule files. A user's rule may request a law with arguments
    for which the law isn't argued."""
    return Path(rule.file).resolve().parent == rules_dir().resolve()


def _defines(rules: RuleSet, rule: Rule) -> bool:
    """Whether a rule defines an operator: it is a definition in eqsynth's own files, or the first
    rule that defines a user's operator."""
    if _is_ours(rule):
        return rule.law in _DEFINING or (rule.kind == "rewrite" and rule.status == "definition")
    return any(own.cases and own.cases[0].rule == rule.name for own in rules.definitions.values())


def _is_of_indices(rules: RuleSet, rule: Rule) -> bool:
    return _sort(rules, rule) == "Idx"


def _sort(rules: RuleSet, rule: Rule) -> str:
    """The sort of the two sides of a rewrite."""
    assert rule.equality is not None
    for side in rule.equality:
        if is_call(side) and side[0] in rules.known.signatures:
            return rules.known.signatures[side[0]].output
    return dict(rule.columns)[rule.equality[0].name]
