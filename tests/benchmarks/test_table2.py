"""TASO's 43 properties: the table says what is so, and most of it is a theorem."""

from __future__ import annotations

import pytest

from benchmarks.table2 import CASES, FILE, PROPERTIES, derived, properties, sides
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.testing.judging import Sides
from eqsynth.verify import verify_rule

pytest.importorskip("z3")

# Derived at no size: the one that the calculus lacks something for.
OPEN = frozenset({"conv-identity"})


def test_there_are_43_and_each_holds_on_data() -> None:
    assert len(PROPERTIES) == 43
    for name in PROPERTIES:
        for sizes, *mode in CASES:
            pair = Sides(*sides(name, sizes, *mode))
            assert pair.verdict("normal", "cancels") is None, (name, sizes)


def test_what_is_written_as_a_rewrite_is_of_the_table_and_proved() -> None:
    rules = load_rules([*DEFAULT_FILES, FILE])
    own = [rule for rule in rules.rules if rule.file == str(FILE)]
    assert len(own) == 39 and {rule.name for rule in own} <= PROPERTIES.keys()
    quick = {"transpose-of-ewadd", "matmul-transposed", "concat-geometry", "split-second"}
    asked = [rule for rule in own if rule.name in quick]
    outcomes = {r.name: verify_rule(rules, r, samples=False).outcome for r in asked}
    assert outcomes == dict.fromkeys(quick, "proved")


def test_a_property_is_derived() -> None:
    assert all(proved for proved, _ in derived("matmul-associative"))


@pytest.mark.slow
def test_42_of_them_are_theorems() -> None:
    found = list(properties())
    assert sum(one.verified == "proved" for one in found) >= 36
    left = {one.name for one in found if one.verified != "proved" and one.sizes < len(CASES)}
    assert left == OPEN
