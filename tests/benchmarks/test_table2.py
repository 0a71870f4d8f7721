"""TASO's 43 properties: the table says what is so, and most of it is a theorem."""

from __future__ import annotations

import pytest

from benchmarks.table2 import CASES, FILE, PROPERTIES, derived, properties, sides
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.rules.claim import Claim
from eqsynth.testing.judging import Sides
from eqsynth.verify import verify_rule

pytest.importorskip("z3")


def test_there_are_43_and_each_holds_on_data() -> None:
    assert len(PROPERTIES) == 43
    for name in PROPERTIES:
        for sizes, *mode in CASES:
            pair = Sides(*sides(name, sizes, *mode))
            assert pair.verdict("normal", Claim("cancels")) is None, (name, sizes)


@pytest.mark.rotating
def test_what_is_written_as_a_rewrite_is_of_the_table_and_proved() -> None:
    rules = load_rules([*DEFAULT_FILES, FILE])
    own = [rule for rule in rules.rules if rule.file == str(FILE)]
    assert {rule.name for rule in own} == PROPERTIES.keys()
    quick = {
        "transpose-of-ewadd", "matmul-transposed", "concat-geometry", "split-second",
        "matmul-of-blocks", "matmul-identity", "conv-identity", "pool-by-conv", "conv-with-relu",
    }  # fmt: skip
    asked = [rule for rule in own if rule.name in quick]
    outcomes = {r.name: verify_rule(rules, r, samples=False).outcome for r in asked}
    assert outcomes == dict.fromkeys(quick, "proved")


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["matmul-associative", "conv-identity"])
def test_a_property_is_derived(name: str) -> None:
    assert all(proved for proved, _ in derived(name))


@pytest.mark.slow
def test_all_of_them_are_theorems() -> None:
    found = list(properties())
    assert {one.name: one.left for one in found if one.verified != "proved"} == {}
    assert {one.name for one in found if one.sizes < len(CASES)} == set()
