"""Mutants of definitions, of requests of laws and of rules of scopes: none is taken for true."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.mutants import ACCEPTED, all_mutants, judge, unexplained
from benchmarks.rule_mutants import text_mutants
from eqsynth.egraph.tactics.table import LAWS, claims_too_much
from eqsynth.rules import load_rules
from eqsynth.rules.claim import Claim
from eqsynth.testing.soundness import SAMPLES, check_rule
from eqsynth.verify import verify_rule
from tests.turns import by_turns

pytest.importorskip("z3")

OURS = load_rules()
SAMPLED = 8


@by_turns
def test_a_sample_of_mutants_is_refused(turn: int) -> None:
    mutants = [m for m in all_mutants(("define", "rule-of-scopes")) if m.rule not in ACCEPTED]
    some = random.Random(turn).sample(mutants, SAMPLED)
    found = [judge(mutant) for mutant in some]
    assert [j for j in found if j.verified == "proved" and j.fate != "accepted"] == []
    assert unexplained(found) == []
    assert any(j.fate not in ("accepted", "doesn't load") for j in found)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["define", "rule-of-scopes", "ask"])
def test_no_mutant_is_taken_for_true(head: str) -> None:
    found = [judge(mutant) for mutant in all_mutants((head,))]
    print(Counter(j.fate for j in found))
    assert [j for j in found if j.verified == "proved" and j.fate != "accepted"] == []
    assert unexplained(found) == []
    # A reason that nothing needs any more is taken out.
    needed = {j.rule for j in found if j.fate == "accepted"}
    assert {j.rule for j in found if j.rule in ACCEPTED} <= needed


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        # The left operand is the one that is broadcast.
        ("matmul-definition", "a[*n, i, k] * b[^n"),
        # A mask that hides some keys, and not all.
        ("masked-attention-definition", "(ReduceSum m"),
    ],
)
def test_samples_have_what_few_rules_speak_of(name: str, wrong: str) -> None:
    (mutant,) = [m for m in all_mutants(("define",)) if m.rule == name and wrong in m.text]
    judged = judge(mutant, (SAMPLES,))
    assert judged.fate in ("value", "shape"), judged


@pytest.mark.rotating
def test_mutants_of_a_rule_that_the_generator_found_missing() -> None:
    mutants = [m for m in all_mutants(("rule-of-scopes",)) if m.rule == "diagonal"]
    (off,) = [m for m in mutants if "=>  [*x, i, j] = F(i, i)    if" in m.text]
    assert judge(off, (SAMPLES,)).fate == "value"
    true = next(m for m in mutants if "=>  [*x, i, j] = F(j, i)" in m.text)
    found = judge(true, (SAMPLES,))
    assert (found.fate, found.verified) == ("accepted", "proved")


def test_every_word_of_a_comprehension_is_changed() -> None:
    changed = {*text_mutants("(a, b) [*n, i] = max(k) a[^n, i, k] * b[^n, 2*k else -inf]")}
    assert {
        "(b, a) [*n, i] = max(k) a[^n, i, k] * b[^n, 2*k else -inf]",
        "(a, b) [*n, i] = min(k) a[^n, i, k] * b[^n, 2*k else -inf]",
        "(a, b) [*n, i] = max(k) a[*n, i, k] * b[^n, 2*k else -inf]",
        "(a, b) [*n, i] = max(k) a[^n, i, k] + b[^n, 2*k else -inf]",
        "(a, b) [*n, i] = max(k) a[^n, i, k] * b[^n, 3*k else -inf]",
        "(a, b) [*n, i] = max(k) a[^n, i, k] * b[^n, 2*k ]",
        "(a, b) [*n, i] = max(k) a[^n, i, k] ",
    } <= changed
    dropped = {*text_mutants("[*x] = F  =>  [*x] = F if finite F, float F")}
    assert {"[*x] = F  =>  [*x] = F if float F", "[*x] = F  =>  [*x] = F if finite F"} <= dropped


def test_a_request_claims_no_more_of_digits_than_its_law() -> None:
    asked = [rule for rule in OURS.rules if rule.kind == "law-request" and rule.law in LAWS]
    assert [rule.name for rule in asked if claims_too_much(rule.law, rule.numerics)] == []
    lost = replace(OURS["multiply-out"], numerics=Claim("real"))
    assert verify_rule(OURS, lost).outcome == "not proved"
    error = check_rule(OURS, lost).error
    assert error is not None and error.kind == "numerics" and ":numerics cancels" in error.hint
