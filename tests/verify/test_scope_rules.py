"""Rules of scopes, proved for all extents and ranks; wrong ones aren't."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.rules import load_rules
from eqsynth.rules.claim import Claim
from eqsynth.rules.scope_rules.parser import parse
from eqsynth.verify import Verdict, verify_rule

pytest.importorskip("z3")

OURS = load_rules()


def verified(text: str, numerics: str = "real") -> Verdict:
    rule = replace(OURS["hoist"], numerics=Claim.of(numerics), scopes=parse(text))
    return verify_rule(OURS, rule, samples=False)


def test_our_rules_of_scopes_are_proved() -> None:
    own = [rule for rule in OURS.rules if rule.scopes is not None and rule.kind == "law-request"]
    assert {rule.name for rule in own} >= {"hoist", "delta-under-sum"}
    found = [verify_rule(OURS, rule) for rule in own]
    assert {v.rule.name: v.why for v in found if v.outcome != "proved"} == {}


@pytest.mark.parametrize(
    "text",
    [
        "[*x] = sum(*y) F + G  =>  [*x] = {sum(*y) F} + {sum(*y) G}"
        " if finite F, finite G, float F, float G",
        "[*x] = sum(k, *y) F(k) * G  =>  [*x] = sum(*y) G * {sum(k) F(k)}"
        " if finite F, finite G, float F, float G",
        # Two places of one row: a sum of two deltas.
        "[*x] = sum(k) F(k) * [k == E] * [k == E]  =>  [*x] = F(E) * [0 <= E < #k]"
        " if k not in E, finite F, float F",
    ],
)
def test_what_is_true_is_proved(text: str) -> None:
    assert verified(text).outcome == "proved", verified(text).why


@pytest.mark.parametrize(
    ("text", "numerics"),
    [
        # Rounding.
        ("[*x] = sum(*y) F + G  =>  [*x] = {sum(*y) F} + {sum(*y) G}"
         " if finite F, finite G, float F, float G", "bitwise"),
        # Bytes wrap before they are summed; 0 * inf is no number.
        ("[*x] = sum(*y) F + G  =>  [*x] = {sum(*y) F} + {sum(*y) G} if finite F, finite G",
         "real"),
        ("[*x] = sum(k) F(k) * [k == E]  =>  [*x] = F(E) * [0 <= E < #k]"
         " if k not in E, float F", "real"),
        # E may lie outside; it may depend on k; it is another place.
        ("[*x] = sum(k) F(k) * [k == E]  =>  [*x] = F(E) if k not in E, finite F, float F", "real"),
        ("[*x] = sum(k) F(k) * [k == E]  =>  [*x] = F(E + 1) * [0 <= E < #k]"
         " if k not in E, finite F, float F", "real"),
        ("[*x] = sum(k) F(k) * [k == E]  =>  [*x] = F(E) * [0 <= E < #k - 1]"
         " if k not in E, finite F, float F", "real"),
        # Of a sum no maximum, and none of a product.
        ("[*x] = max(*y) F + G  =>  [*x] = {max(*y) F} + {max(*y) G}"
         " if finite F, finite G, float F, float G", "real"),
        ("[*x] = sum(*y) F * G  =>  [*x] = {sum(*y) F} * {sum(*y) G}"
         " if finite F, finite G, float F, float G", "real"),
        # Half of the values.
        ("[*x] = sum(k) F(k)  =>  [*x] = sum(q < #k // 2) F(2 * q) if finite F, float F", "real"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_not_proved(text: str, numerics: str) -> None:
    verdict = verified(text, numerics)
    assert verdict.outcome == "not proved" and "fault" not in verdict.why, verdict.why


def test_a_sum_over_another_box_is_rounded_in_another_order() -> None:
    moved = "[*x] = {}(*y) F  =>  [*x] = {{{}(*y) F}}"
    outcomes = {
        reducer: verified(moved.format(reducer, reducer), "bitwise").outcome
        for reducer in ("max", "min", "sum", "prod", "reduce")
    }
    assert {r for r, outcome in outcomes.items() if outcome == "proved"} == {"max", "min"}
    assert verified(moved.format("sum", "sum"), "real").outcome == "proved"


def test_what_a_condition_says_is_supposed() -> None:
    inside = ("[*x] = sum(k) F(k) * [k == E]  =>  [*x] = F(E)"
              " if k not in E, finite F, float F, 0 <= E, E < #k")  # fmt: skip
    assert verified(inside).outcome == "proved", verified(inside).why
    assert verified(inside.replace("E < #k", "E <= #k")).outcome == "not proved"
    never = inside.replace("0 <= E", "#k < 0")
    assert "none were found" in verified(never).why
