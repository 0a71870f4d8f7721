"""The checker of rules and its parts; ``test_planted_faults.py`` has a fault for each check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eqsynth.errors import RuleError
from eqsynth.ir.arithmetic import FLOAT32, FLOAT64, arithmetic, computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, load_text
from eqsynth.testing import assert_rule_sound
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.judging import Sides, digits_lost, types_differ
from eqsynth.testing.numbers import PRIMES, REAL, Field, simplest
from eqsynth.testing.rule_files import check_rules, load_for_check
from eqsynth.testing.soundness import Checked, UnsoundRule, check_rule
from tests.terms import leaf, op

RULES = load_rules()

HEAD = """\
;; planted.egg -- a planted fault.
;;
;; Numerics   {numerics}
;; Status     validated

(ruleset planted)
"""


def planted(rule: str, numerics: str = "bitwise") -> RuleSet:
    text = HEAD.format(numerics=numerics) + rule
    return load_text(text, "planted.egg", after=DEFAULT_FILES)


def check(rule: str, numerics: str = "bitwise", samples: int = 20) -> Checked:
    rules = planted(rule, numerics)
    return check_rule(rules, rules["planted"], samples=samples)


# ---- what is accepted, and how faults are told ---------------------------------------


def test_a_counterexample_is_made_small() -> None:
    error = check('(rewrite (Relu x) x :ruleset planted :name "planted")').error
    assert error is not None and error.kind == "value" and error.counterexample is not None
    found = error.counterexample.difference
    assert found.env and all(array.size <= 1 for array in found.env.values())
    assert float(found.left.sum()) != float(found.right.sum())


def test_a_rule_may_round_lose_digits_or_approximate_if_it_says_so() -> None:
    rule = '(rewrite (Add (Add x y) z) (Add x (Add y z)) :ruleset planted :name "planted")'
    rule = rule.replace(":ruleset", ":when ((= (shape x) (shape z))) :ruleset")
    assert check(rule, "real").error is None
    square = """\
(rewrite (Mul (Sub x y) (Sub x y)) (Add (Sub (Mul x x) (Mul y (Add x x))) (Mul y y))
         :ruleset planted :name "planted")"""
    assert check(square, "cancels").error is None
    rule = '(rewrite (GeluTanh x) (Gelu x) :ruleset planted :name "planted")'
    assert check(rule, "approx (1e-2)").error is None


def test_a_difference_that_no_sampled_data_shows_is_found_exactly() -> None:
    """x * (x - 1) * ... vanishes on the data that it is tried on, not in a field."""
    x = leaf("x", 2)
    same, polynomial = Sides(x, op("Add", x, op("Mul", x, op("Sub", x, x)))).exactly()
    assert same and polynomial is None
    wrong = op("Add", x, op("Mul", x, op("Sub", op("Mul", x, x), x)))
    same, difference = Sides(x, wrong).exactly()
    assert not same and difference is not None and difference.kind == "value"
    zeros_and_ones = {"x": np.array([0.0, 1.0])}
    assert Sides(x, wrong).verdict("ties", "real", zeros_and_ones) is None


# ---- the parts of a verdict --------------------------------------------------------


def test_functions_are_uninterpreted_in_a_field() -> None:
    x, y = leaf("x", 3), leaf("y", 3)
    assert Sides(op("Exp", op("Add", x, y)), op("Exp", op("Add", y, x))).exactly()[0]
    # True, but by a law of exp: not decided, and not refuted.
    left, right = op("Exp", op("Add", x, y)), op("Mul", op("Exp", x), op("Exp", y))
    assert Sides(left, right).exactly() == (False, None)
    assert Sides(left, right).verdict("normal", "real") is None


@pytest.mark.parametrize("prime", PRIMES)
def test_a_field_is_a_field(prime: int) -> None:
    field = Field(prime)
    third = field.element(field.number(1 / 3))
    assert (third * 3).n == 1 and (third + third + third).n == 1
    assert (1 / third).n == 3 and (third / third).n == 1 and (-third + third).n == 0


def test_constants_are_simple_fractions() -> None:
    assert simplest(1 / 6).denominator == 6 and simplest(0.1).denominator == 10
    assert float(simplest(np.pi)) == np.pi


def test_high_precision_sees_what_float64_rounds_away() -> None:
    x = leaf("x", 1)
    big = Op("Full", (), ((1,), 2.0**80, "float32"))
    sum_and_back = op("Sub", op("Add", x, big), big)
    env = {"x": np.array([3.0])}
    with computing_in(REAL):
        assert float(evaluate(sum_and_back, env)[0]) == 3.0
    assert float(evaluate(sum_and_back, env)[0]) == 0.0


def test_an_arithmetic_is_left_as_it_was_found() -> None:
    with pytest.raises(ZeroDivisionError), computing_in(FLOAT32):
        assert arithmetic() is FLOAT32
        raise ZeroDivisionError
    assert arithmetic() is FLOAT64


def test_an_error_is_measured_against_what_the_left_side_does() -> None:
    exact = np.array([1.0, 100.0])
    off = np.array([1.0, 100.1], np.float32)
    assert digits_lost(exact, exact.astype(np.float32), off) > 100
    assert digits_lost(exact, off, off) == 1.0
    assert digits_lost(exact, exact.astype(np.float32), np.array([1.0, np.inf])) == float("inf")


def test_types_are_compared_before_values() -> None:
    assert types_differ(leaf("x", 2), leaf("y", 2)) is None
    assert types_differ(leaf("x", 2), leaf("y", 3)).kind == "shape"  # type: ignore[union-attr]
    other = leaf("y", 2, dtype="int64")
    assert types_differ(leaf("x", 2), other).kind == "dtype"  # type: ignore[union-attr]


def test_indices_are_compared_over_the_whole_range() -> None:
    i = ("It", 0, 4)
    assert indices_differ(("IMod", i, 4), i) is None
    assert indices_differ(("IMod", i, 3), i) is not None
    negative = ("IAdd", i, ("INum", -4))
    assert indices_differ(("IDiv", negative, 4), ("INum", -1)) is None
    assert indices_differ(("IDiv", i, 0), i).kind == "shape"  # type: ignore[union-attr]


# ---- files and names -----------------------------------------------------------------


def test_rules_of_ours_are_sound() -> None:
    found = assert_rule_sound("simplify.egg")
    assert [c.rule.name for c in found][0] == "reshape-of-reshape"
    assert all(c.accepted >= 20 and c.error is None for c in found)
    (law,) = assert_rule_sound(RULES, "hoist", samples=5)
    assert law.method == "exact" and law.accepted >= 5


def test_an_unsound_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "planted.egg"
    text = '(rewrite (Relu x) x :ruleset planted :name "planted")'
    path.write_text(HEAD.format(numerics="bitwise") + text, encoding="utf-8")
    with pytest.raises(UnsoundRule) as caught:
        assert_rule_sound(path)
    assert (caught.value.kind, caught.value.file) == ("value", str(path))
    rules, names = load_for_check([tmp_path])
    assert names == ["planted"]
    (found,) = check_rules(rules, names)
    assert found.error is not None and found.error.kind == "value"


def test_a_name_that_no_rule_has() -> None:
    with pytest.raises(RuleError) as caught:
        assert_rule_sound(RULES, "relu-of-rela")
    assert "relu-of-relu" in caught.value.hint


def test_no_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        load_for_check([tmp_path])
    assert caught.value.what == "no rule files"


def test_a_verdict_crosses_processes() -> None:
    rules = planted('(rewrite (Relu x) x :ruleset planted :name "planted")')
    names = ["planted", "relu-of-relu", "neg-of-neg", "concat-of-one"]
    found = {c.rule.name: c for c in check_rules(rules, names, samples=3, processes=2)}
    assert set(found) == set(names)
    error = found["planted"].error
    assert error is not None and error.kind == "value" and error.counterexample is not None
