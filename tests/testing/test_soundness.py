"""The checker of rules and its parts; ``test_planted_faults.py`` has a fault for each check."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from eqsynth.errors import RuleError
from eqsynth.ir.arithmetic import FLOAT32, FLOAT64, Arithmetic, arithmetic, computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.reference import storage
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, load_text
from eqsynth.rules.claim import Claim
from eqsynth.testing import assert_rule_sound, extremes
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.counterexample import smallest
from eqsynth.testing.extremes import EXTREMES, NOT_FINITE
from eqsynth.testing.firing import alone
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.judging import Sides, digits_lost, types_differ
from eqsynth.testing.literals import Literals, literals_of
from eqsynth.testing.numbers import PRIMES, REAL, Field, TooLarge, simplest
from eqsynth.testing.patterns import sample_of
from eqsynth.testing.rule_files import check_rules, load_for_check, to_check
from eqsynth.testing.soundness import EXACT, Checked, UnsoundRule, check_rule
from eqsynth.testing.templates import Template
from eqsynth.testing.world import draw_world
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


@pytest.mark.rotating
def test_a_counterexample_is_made_small() -> None:
    error = check('(rewrite (Relu x) x :ruleset planted :name "planted")').error
    assert error is not None and error.kind == "value" and error.counterexample is not None
    found = error.counterexample.difference
    assert found.env and all(array.size <= 1 for array in found.env.values())
    assert float(found.left.sum()) != float(found.right.sum())


@pytest.mark.rotating
def test_a_rule_may_round_lose_digits_or_approximate_if_it_says_so() -> None:
    rule = '(rewrite (Add (Add x y) z) (Add x (Add y z)) :ruleset planted :name "planted")'
    conditions = "(= (shape x) (shape z)) (= (dtype x) (dtype y)) (= (dtype x) (dtype z))"
    rule = rule.replace(":ruleset", f":when ({conditions}) :ruleset")
    assert check(rule, "real", 5).error is None
    square = """\
(rewrite (Mul (Sub x y) (Sub x y)) (Add (Sub (Mul x x) (Mul y (Add x x))) (Mul y y))
         :when ((= (dtype x) (dtype y))) :ruleset planted :name "planted")"""
    assert check(square, "cancels", 5).error is None
    rule = '(rewrite (GeluTanh x) (Gelu x) :ruleset planted :name "planted")'
    assert check(rule, "approx (1e-2)", 5).error is None


# What wrong rules of tests/rules/unsound say, with the condition that makes it true.
TRUE: dict[str, tuple[str, str]] = {
    "a number between -1 and 0 has a sign": (
        """(rewrite (Call "relu" (vec-of (Call "max" (vec-of x (Num c)))))
                    (Call "max" (vec-of x (Num c))) :when ((>= c 0.0) (<= c 100.0)) {})""",
        "real",
    ),
    "padding that is not negative": (
        "(rewrite (Relu (Pad x b a v)) (Pad (Relu x) b a v) :when ((>= v 0.0)) {})", "real",
    ),
    "the quotient by a number, rounded": (
        """(rewrite (Div x (Full s c d)) (Mul x (Full s (/ 1.0 c) d))
                    :when ((= d (dtype x)) (!= c 0.0) (= d "float32")) {})""", "real",
    ),
    "an axis on which b has one element": (
        """(rewrite (Softmax (Add x b) a) (Softmax x a)
                    :when ((= 1 (vec-get (shape b) a)) (= (dtype x) (dtype b))
                           (= (vec-length (shape x)) (vec-length (shape b)))
                           (= (shape x) (shape (Add x b)))) {})""", "cancels",
    ),
    "nothing is larger than infinity": (
        """(rewrite (Minimum x (Full (vec-empty) inf d)) x
                    :when ((= d (dtype x)) (= d "float32")) {})""", "bitwise",
    ),
    "an element that is bound behind its use": (
        """(rewrite (Sub x (ReduceMax x (vec-of a) 1)) (Sub x x)
                    :when ((= 1 (vec-get (shape x) a)) (= (dtype x) "float32")) {})""", "real",
    ),
    "terms that the engine finds by trying all of them": (
        """(rewrite (Concat (vec-of (Concat (vec-of x y) b) (Concat (vec-of z w) b)) a)
                    (Concat (vec-of (Concat (vec-of x z) a) (Concat (vec-of y w) a)) b)
                    :when ((!= a b) (= (shape x) (shape y)) (= (shape x) (shape z))
                           (= (shape x) (shape w)) (= (dtype x) (dtype y))
                           (= (dtype x) (dtype z)) (= (dtype x) (dtype w))) {})""", "bitwise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("true", TRUE)
@pytest.mark.slow
def test_a_true_rule_is_accepted(true: str) -> None:
    rule, numerics = TRUE[true]
    checked = check(rule.format(':ruleset planted :name "planted"'), numerics)
    assert checked.error is None, checked.error
    assert checked.accepted >= 20 and not checked.timed_out


def test_an_element_of_a_vector_is_found_before_it_is_used() -> None:
    """The engine panics where a primitive's argument has no value yet."""
    facts = planted(TRUE["an element that is bound behind its use"][0].format(
        ':ruleset planted :name "planted"'))["planted"].program[3]  # fmt: skip
    assert facts.index("(vec-get v 0)") < facts.index("(vec-get (shape x) a)")


@pytest.mark.rotating
def test_what_overflows_on_larger_data_is_told() -> None:
    """|x| = sqrt(x * x): 300 of float16 is 90000 in between."""
    found = check('(rewrite (Abs x) (Sqrt (Mul x x)) :when ((!= (dtype x) "float32") '
                  '(!= (dtype x) "int64") (!= (dtype x) "int32") (!= (dtype x) "int16") '
                  '(!= (dtype x) "int8") (!= (dtype x) "uint8"))\n'
                  '         :ruleset planted :name "planted")', "real")  # fmt: skip
    assert found.error is None and found.overflows
    assert found.known == f"tested ({found.accepted} samples), float16 may overflow"


def test_a_time_limit_is_told_and_refuses_nothing() -> None:
    rules = planted('(rewrite (Relu (Relu x)) (Relu x) :ruleset planted :name "planted")')
    found = check_rule(rules, rules["planted"], limit_s=1e-3)
    assert found.timed_out and found.error is None and 1 <= found.accepted < 20
    assert found.known == f"{found.method} ({found.accepted} samples), time limit" or (
        found.known == f"exact at {found.accepted} samples, time limit"
    )
    # Nothing was tested: that isn't sound.
    rule = '(rewrite (Slice x a b c d) x :when ((< c b)) :ruleset planted :name "planted")'
    wrong = planted(rule)
    error = check_rule(wrong, wrong["planted"], limit_s=1e-3).error
    assert error is not None and error.kind == "vacuous"


def test_no_smaller_counterexample_is_drawn_for_after_the_time() -> None:
    rules = planted(
        '(rewrite (Slice x a 0 e 1) x :when ((>= e 1)) :ruleset planted :name "planted")'
    )
    rule = rules["planted"]
    error = check_rule(rules, rule, search_s=0.0).error
    assert error is not None and error.counterexample is not None
    template = Template(rule, rules)
    found = smallest(template, alone(rules, rule), rule, error.counterexample, 0, 0.0)
    assert found.difference.kind == error.kind
    # A sample that is drawn asks its conditions.
    assert not template.asked


def test_an_attribute_is_drawn_at_the_boundary_of_its_condition() -> None:
    """Seldom otherwise: the extent of one operand says nothing to the slice of both."""
    rules = planted(
        """(rewrite (Slice (Concat (vec-of x y) 0) 0 0 e 1) x
                    :when ((<= e (+ (vec-get (shape x) 0) 1))) :ruleset planted :name "planted")"""
    )
    template, at = Template(rules["planted"], rules), Counter[int]()
    for seed in range(600):
        with suppress(Rejected):
            (term,) = sample_of(template, RandomChoices(seed)).tensors
            whole = term.args[0]  # type: ignore[attr-defined]
            at[term.attrs[2] - whole.args[0].shape[0]] += 1  # type: ignore[attr-defined]
    assert min(at[0], at[1], at[2]) > at.total() / 20


def test_what_a_rule_names_is_drawn() -> None:
    rules = planted("""\
(rewrite (Stride x a 5) (Mul x (Full (shape x) 3.7 "int16")) :when ((= 20 (vec-get (shape x) a)))
         :ruleset planted :name "planted")""")
    found = literals_of(rules["planted"])
    assert set(found.integers) == {4, 5, 6, 10, 19, 20, 21, 40}
    assert {3.7, 2.7, 4.7, 7.4, -3.7, (3.7 + 5) / 2} <= set(found.reals)
    assert found.dtypes == ("int16",)
    template = Template(rules["planted"], rules)
    drawn = {draw_world(RandomChoices(n), ("bool",), template.literals).extents for n in range(99)}
    assert {20, 10, 19} <= set().union(*drawn)


@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_data_is_what_its_dtype_holds(kind: str) -> None:
    literals = Literals((37, 300), (3.7, 1e5))
    for dtype in DTYPES:
        x = Input("x", TensorType((64,), dtype))
        (array,) = extremes.draw({"x": x}, {}, kind, 0, literals).values()
        assert array.shape == (64,) and array.dtype == storage(dtype)
        assert np.isfinite(array).all() and np.ptp(array.astype(float)) > 0
        if dtype == "float32" and kind == "huge":
            assert np.abs(array).max() > 1e29
        if dtype == "int64" and kind == "named":
            assert {37, 300} <= set(array.tolist())
        if dtype == "int8" and kind == "edges":
            assert -128 in array


def test_what_has_too_many_digits_decides_nothing() -> None:
    x = leaf("x", 1)
    twice = op("Exp", op("Exp", x))
    with pytest.raises(TooLarge), computing_in(REAL):
        evaluate(twice, {"x": np.array([1e30])})
    assert Sides(twice, twice).verdict("huge", Claim("real"), {"x": np.array([1e30])}) is None


def test_who_claims_the_same_bits_claims_them_of_nan_and_infinities() -> None:
    x, y = leaf("x", 4), leaf("y", 4)
    sides = Sides(op("LogicalNot", op("LessEqual", x, y)), op("Less", y, x))
    differ, _ = sides.judge(Claim("bitwise"), 0)
    assert differ is not None and (differ.kind, differ.data) == ("numerics", NOT_FINITE)
    assert Sides(sides.left, sides.right).judge(Claim("real"), 0)[0] is None
    # What an integer is that was NaN, is no business of a rule.
    whole = op("Cast", op("Sub", x, x), attrs=("int64",))
    nothing = op("Full", attrs=((4,), 0.0, "int64"))
    assert Sides(whole, nothing).judge(Claim("bitwise"), 0)[0] is None


def test_exponentials_of_data_are_those_of_the_reals() -> None:
    x = leaf("x", 1)
    least = {"x": np.array([-1.0000000150474662e30])}
    assert Sides(op("Log", op("Exp", x)), x).verdict("edges", Claim("real"), least) is None


def test_what_vanishes_in_a_difference_is_no_other_value() -> None:
    x, one = leaf("x", 1), op("Full", attrs=((), 1.0, "float32"))
    sides = Sides(op("Sigmoid", op("Neg", x)), op("Sub", one, op("Sigmoid", x)))
    for at in (1e4, 50.0):
        assert sides.verdict("far-offset", Claim("cancels"), {"x": np.array([at])}) is None
    twice = Sides(sides.left, op("Add", sides.right, sides.right))
    assert twice.verdict("normal", Claim("cancels"), {"x": np.array([50.0])}) is not None


def test_numbers_that_a_rule_names_are_data_however_large() -> None:
    rules = planted(
        """(rewrite (Maximum x (Full (vec-empty) -1e38 "float32")) x
                    :ruleset planted :name "planted")"""
    )
    found, x = literals_of(rules["planted"]), leaf("x", 64)
    (array,) = extremes.draw({"x": x}, {}, "named", 0, found).values()
    assert array.min() < -1.5e38 and np.isfinite(array.astype(np.float32)).all()
    assert max(found.reals) < 3.5e38


@pytest.mark.parametrize("numbers", [REAL, FLOAT64, Field(PRIMES[0]).arithmetic])
def test_a_softmax_of_rank_0_is_1(numbers: Arithmetic) -> None:
    """Arithmetic of arrays of objects of rank 0 gives bare elements, which have no dtype."""
    with computing_in(numbers):
        value = evaluate(Op("Softmax", (leaf("x"),), (0,)), {"x": np.array(2.0)})
        assert value.shape == () and value == 1


def test_a_difference_that_no_sampled_data_shows_is_found_exactly() -> None:
    """x * (x - 1) * ... vanishes on the data that it is tried on, not in a field."""
    x = leaf("x", 2)
    same, polynomial = Sides(x, op("Add", x, op("Mul", x, op("Sub", x, x)))).exactly()
    assert same and polynomial is None
    wrong = op("Add", x, op("Mul", x, op("Sub", op("Mul", x, x), x)))
    same, difference = Sides(x, wrong).exactly()
    assert not same and difference is not None and difference.kind == "value"
    zeros_and_ones = {"x": np.array([0.0, 1.0])}
    assert Sides(x, wrong).verdict("ties", Claim("real"), zeros_and_ones) is None


# ---- the parts of a verdict --------------------------------------------------------


def test_functions_are_uninterpreted_in_a_field() -> None:
    x, y = leaf("x", 3), leaf("y", 3)
    assert Sides(op("Exp", op("Add", x, y)), op("Exp", op("Add", y, x))).exactly()[0]
    # True, but by a law of exp: not decided, and not refuted.
    left, right = op("Exp", op("Add", x, y)), op("Mul", op("Exp", x), op("Exp", y))
    assert Sides(left, right).exactly() == (False, None)
    assert Sides(left, right).verdict("normal", Claim("real")) is None


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


@pytest.mark.rotating
def test_rules_of_ours_are_sound() -> None:
    found = assert_rule_sound("simplify.egg", samples=4)
    assert [c.rule.name for c in found][0] == "reshape-of-reshape"
    assert all(c.accepted >= 4 and c.error is None for c in found)
    (law,) = assert_rule_sound(RULES, "hoist", samples=5)
    assert law.accepted >= law.exact >= 5


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


def test_a_link_to_itself_is_no_rule_file(tmp_path: Path) -> None:
    link = tmp_path / "link.egg"
    link.symlink_to(link)
    with pytest.raises(RuleError) as caught:
        load_for_check([link])
    assert caught.value.file == str(link)


@pytest.mark.rotating
def test_a_number_above_forty_is_an_extent_too() -> None:
    """Where a rule names it: this one is wrong from 65 on."""
    found = check(
        """(rewrite (ReduceMean x (vec-of 0) 0)
                    (Mul (ReduceSum x (vec-of 0) 0)
                         (Full (vec-empty) (/ 1.0 (to-f64 (min n 64))) "float32"))
                    :when ((= n (vec-get (shape x) 0)) (> n 0) (= (dtype x) "float32"))
                    :ruleset planted :name "planted")""", "real",
    )  # fmt: skip
    assert found.error is not None and found.error.kind == "value"


def test_a_name_that_no_rule_has() -> None:
    with pytest.raises(RuleError) as caught:
        assert_rule_sound(RULES, "relu-of-rela")
    assert "relu-of-relu" in caught.value.hint


def test_no_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        load_for_check([tmp_path])
    assert caught.value.what == "no rule files"


def test_parts_of_the_rules_are_all_of_them() -> None:
    names = list(RULES.names)
    whole = [rule.name for rule in to_check(RULES, names)]
    parts = [[rule.name for rule in to_check(RULES, names, (k, 7))] for k in range(1, 8)]
    assert sorted(sum(parts, [])) == sorted(whole) and len(set(map(len, parts))) <= 2


@pytest.mark.rotating
def test_a_verdict_crosses_processes() -> None:
    rules = planted('(rewrite (Relu x) x :ruleset planted :name "planted")')
    names = ["planted", "relu-of-relu", "neg-of-neg", "concat-of-one"]
    found = {c.rule.name: c for c in check_rules(rules, names, samples=3, processes=2)}
    assert set(found) == set(names)
    error = found["planted"].error
    assert error is not None and error.kind == "value" and error.counterexample is not None


def test_what_seldom_matches_is_never_called_exact() -> None:
    rule = RULES["relu-of-relu"]
    assert Checked(rule, EXACT, EXACT, 0.0).method == "exact"
    assert Checked(rule, EXACT - 1, EXACT - 1, 0.0).method == "tested"
    assert Checked(rule, EXACT, EXACT - 1, 0.0).method == "tested"


@pytest.mark.rotating
def test_the_numbers_of_a_comprehension_may_be_negative(tmp_path: Path) -> None:
    """A number that is a divisor may be drawn as 0: the definition has no value then."""
    path = tmp_path / "own.egg"
    path.write_text(
        HEAD.format(numerics="bitwise") + """
(define (Moved x (a i64) (b i64) (c i64) (s i64))
  "(x; a, b, c, s) [*n:a, i, *m] = x[*n, (i - b - c) // s, *m]"
  :when ((> s 0)) :numbers (vec-of a b c s) :shape (shape x))
;; moved twice by less than nothing
(rewrite (Moved (Relu x) a b c s) (Relu (Moved x a b c s)) :when ((< b 0) (< c 0))
         :ruleset simplify :name "own")
""", encoding="utf-8")  # fmt: skip
    rules = load_rules([*DEFAULT_FILES, path])
    checked = check_rule(rules, rules["own"], samples=20)
    assert checked.error is None and checked.accepted >= 20
