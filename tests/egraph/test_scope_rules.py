"""Rules of scopes: what they match, what they build, and how a session applies them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.scope_rules.binding import Binding, holds
from eqsynth.egraph.scope_rules.building import MAX_ANSWERS, answers
from eqsynth.egraph.scope_rules.matching import matches
from eqsynth.frontend.expression import program_of
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Scope
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.rules.scope_rules.parser import parse
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.scope_rule_samples import drawn
from eqsynth.testing.world import draw_world
from tests.terms import INF, assert_equal, it, leaf, op

DELTA = parse("[*x] = sum(k, *y) F(k) * [k == E]  =>  [*x] = sum(*y) F(E) * [0 <= E < #k] "
              "if k not in E, finite F")  # fmt: skip
INSIDE = parse("[*x] = sum(k, *y) F(k) * [k == E]  =>  [*x] = sum(*y) F(E) "
               "if 0 <= E < #k, k not in E, finite F")  # fmt: skip
LINEAR = parse("[*x] = sum(*y) F + G  =>  [*x] = {sum(*y) F} + {sum(*y) G}")
HOISTED = parse("[*x] = sum(*y, *z) F * G  =>  [*x] = sum(*y) F * {sum(*z) G} "
                "if *z not in F, finite F, finite G")  # fmt: skip
HALVES = parse("[*x] = sum(k, *y) F(k)  =>  [*x] = sum(q < #k // 2, r < 2, *y) F(2*q + r) "
               "if 2 divides #k")  # fmt: skip
NEGATED = parse("[*x] = max(*y) -F  =>  [*x] = -{min(*y) F} if float F")
INCREASING = parse("[*x] = max(*y) exp(F)  =>  [*x] = exp({max(*y) F})")
ROWS = parse("[i, *x] = sum(*y) F * G(i)  =>  [i, *x] = {sum(*y) F * G(i)}")
SQUARE = parse("[*x] = sum(*y) F * F  =>  [*x] = sum(*y) exp(2 * log(abs(F)))")
EQUAL = parse("[i, j] = sum(k) F(i, k)  =>  [i, j] = sum(k) F(i, k) * 2 if #i == #j, constant F")
TRIANGLE = parse("[*x] = where([0 <= E], F, 0)  =>  [*x] = [0 <= E] * F if finite F, float F")
OTHER = parse("[*x] = where([0 <= E], 0, F)  =>  [*x] = [0 <= -1 - E] * F if finite F, float F")
ORDER = parse("[*x] = [0 <= E]  =>  [*x] = [0 <= E]")
RULES = [DELTA, INSIDE, LINEAR, HOISTED, HALVES, NEGATED, INCREASING, ROWS, TRIANGLE, OTHER, ORDER]


def read(name: str, *index: Index, shape: tuple[int, ...] = (), fill: float = 0.0,
         dtype: str = "float32", constant: bool = False) -> Read:  # fmt: skip
    shape = shape or tuple(max(1, i.range()[1] + 1) for i in index)
    return Read(leaf(name, *shape, dtype=dtype, constant=constant), index, fill)


def one(index: Index) -> Read:
    return Read(op("Full", attrs=((1,), 1.0, "float32")), (index,))


def scope(traversal: tuple[int, ...], reduction: tuple[int, ...], body: Scalar,
          reducer: str = "sum") -> Scope:  # fmt: skip
    return canonical(Scope(traversal, reduction, body, reducer))


@pytest.mark.rotating
@pytest.mark.parametrize("rule", RULES, ids=[r.text[:30] for r in RULES])
def test_an_answer_is_equal_to_what_it_is_an_answer_to(rule: object) -> None:
    assert not isinstance(rule, str)
    answered = 0
    for seed in range(150):
        choices = RandomChoices(seed)
        try:
            given = drawn(rule, draw_world(choices, ("float32", "float64")))  # type: ignore[arg-type]
        except Rejected:
            continue
        assert isinstance(given, Scope)
        if rule in (INCREASING, NEGATED) and 0 in given.extents:
            continue  # -inf, and exp of it: equal, and a warning of NumPy
        found = answers(rule, canonical(given))  # type: ignore[arg-type]
        answered += bool(found)
        for answer in found:
            assert_equal(canonical(given), answer)
    assert answered >= 40


# ---- [k == E] --------------------------------------------------------------------------

i, k, m = it(0, 4), it(1, 3), it(2, 2)
X = read("x", k, shape=(5,))


@pytest.mark.parametrize(
    "factor", [one(k - i), one(i - k), one(2 * k - 2 * i), Call("eq", (Value(k), Value(i))),
               Call("eq", (Value(i), Value(k))), one(k - i // 2), one(k - 1),
               Call("eq", (Value(k), Num(1)))],
)  # fmt: skip
def test_a_diagonal_is_seen_however_it_is_written(factor: Scalar) -> None:
    given = scope((4,), (3,), Prod((X, factor)))
    (answer,) = answers(DELTA, given)
    assert not answer.reduction
    assert_equal(given, answer)


@pytest.mark.parametrize(
    "finite", [Call("relu", (X,)), Call("max", (X, Sum((Num(1.0), Prod((X, X)))))),
               Call("where", (Call("gt", (X, Num(0.5))), X, Num(2.0))),
               Cast("float32", Call("gt", (X, Num(0.5))))],
)  # fmt: skip
def test_functions_of_finite_elements_are_finite(finite: Scalar) -> None:
    given = scope((4,), (3,), Prod((X, finite, one(k - i))))
    (answer,) = answers(DELTA, given)
    assert not answer.reduction
    assert_equal(given, answer)


def test_what_is_constant_goes_to_the_constant_variable() -> None:
    """(x + c + d) * e: C is c + d, and not the first that fits; x is never C."""
    c, d, e = (Read(leaf(name, 4, constant=True), (i,)) for name in "cde")
    rule = parse(
        "[*x] = (F + C) * D  =>  [*x] = {F * D} + {C * D}  if constant C, constant D, summed F"
    )
    for terms in itertools.permutations((read("x", i), c, d)):
        given = canonical(Scope((4,), (), Prod((Sum(terms), e))))
        first, *_ = matches(rule, given)
        assert first.bodies["F"] == read("x", i)
        assert_equal(given, answers(rule, given)[0])
    scaled_by_input = Prod((Sum((read("x", i), c)), read("y", i)))
    assert not answers(rule, canonical(Scope((4,), (), scaled_by_input)))


# ---- [a <= b] --------------------------------------------------------------------------

row, column = it(0, 4), it(1, 3)
ELEMENT = read("x", row, column)


def compared(fn: str, left: Scalar, right: Scalar) -> Scalar:
    return Call(fn, (left, right))


@pytest.mark.parametrize(
    ("condition", "at"),
    [
        (compared("le", Value(column), Value(row)), row - column),
        (compared("lt", Value(column), Value(row)), row - column - 1),
        (compared("ge", Value(column), Value(row)), column - row),
        (compared("gt", Value(column), Value(row)), column - row - 1),
        (compared("le", Sum((Value(column), Prod((Num(-1.0), Value(row))))), Num(1.0)),
         row - column + 1),
        (compared("lt", Value(row // 2), Value(column)), column - row // 2 - 1),
    ],
)  # fmt: skip
def test_an_order_of_indices_is_a_read_of_ones(condition: Scalar, at: Index) -> None:
    ones = op("Full", attrs=((at.range()[1] + 1,), 1.0, "float32"))
    chosen = scope((4, 3), (), Call("where", (condition, ELEMENT, Num(0.0))))
    (answer,) = answers(TRIANGLE, chosen)
    assert Read(ones, (at,)) in answer.body.factors  # type: ignore[attr-defined]
    assert_equal(chosen, answer)
    left_out = scope((4, 3), (), Call("where", (condition, Num(0.0), ELEMENT)))
    (answer,) = answers(OTHER, left_out)
    assert_equal(left_out, answer)
    number = scope((4, 3), (), Cast("float64", condition))
    (answer,) = answers(ORDER, number)
    assert answer.dtype == "float64"
    assert_equal(number, answer)


def test_a_choice_between_numbers_is_of_the_dtype_of_its_scope() -> None:
    given = scope((4, 3), (), Call("where", (compared("le", Value(column), Value(row)), Num(1.0),
                                             Num(0.0))))  # fmt: skip
    (answer,) = answers(TRIANGLE, given)
    assert answer == scope((4, 3), (), Read(op("Full", attrs=((4,), 1.0, "float32")),
                                            (row - column,)))  # fmt: skip


def test_the_side_of_an_order_may_be_known() -> None:
    rule = parse("[i, j] = where([j <= i], F(i, j), 0)  =>  [i, j] = [j <= i] * F(i, j) "
                 "if finite F, float F")  # fmt: skip
    for at, found in (("le", 1), ("lt", 0), ("ge", 0)):
        condition = compared(at, Value(column), Value(row))
        given = scope((4, 3), (), Call("where", (condition, ELEMENT, Num(0.0))))
        assert len(answers(rule, given)) == found


SEEN = compared("le", Value(column), Value(row))
NONE = {
    "an infinite element": (TRIANGLE, scope((4, 3), (), Call("where", (
        SEEN, read("x", row, column, shape=(2, 3), fill=INF), Num(0.0))))),
    "another number than 0": (TRIANGLE, scope((4, 3), (), Call("where", (
        SEEN, ELEMENT, Num(1.0))))),
    "an equality": (TRIANGLE, scope((4, 3), (), Call("where", (
        compared("eq", Value(column), Value(row)), ELEMENT, Num(0.0))))),
    "an order of elements": (TRIANGLE, scope((4, 3), (), Call("where", (
        compared("le", ELEMENT, Num(1.0)), ELEMENT, Num(0.0))))),
    "a triangle of integers": (TRIANGLE, scope((4, 3), (), Call("where", (
        SEEN, read("x", row, column, dtype="int64"), Num(0.0))))),
    "an order as an integer": (ORDER, scope((4, 3), (), Cast("int64", SEEN))),
    "an order as it is": (ORDER, scope((4, 3), (), SEEN)),
    "half of an index": (DELTA, scope((4,), (3,), Prod((X, one(2 * k - i))))),
    "no iterator of the sum": (DELTA, scope((4,), (3,), Prod((X, one(i - 1))))),
    "two elements": (DELTA, scope((4,), (3,), Prod((X, read("t", k - i, shape=(2,)))))),
    "ones around": (DELTA, scope((4,), (3,), Prod((X, read("t", k - i, shape=(1,), fill=1))))),
    "another reducer": (DELTA, scope((4,), (3,), Prod((X, one(k - i))), "max")),
    "an infinite fill": (DELTA, scope((4,), (3,), Prod((read("x", k, shape=(2,), fill=INF),
                                                          one(k - i))))),
    "1 / x may be infinite": (DELTA, scope((4,), (3,), Prod((Call("reciprocal", (X,)),
                                                              one(k - i))))),
    "exp(x) may overflow": (DELTA, scope((4,), (3,), Prod((Call("exp", (X,)), one(k - i))))),
    "a function of an infinite fill": (DELTA, scope((4,), (3,), Prod((
        Call("relu", (read("x", k, shape=(2,), fill=INF),)), one(k - i))))),
    "a cast may overflow": (DELTA, scope((4,), (3,), Prod((
        Cast("float32", read("x", k, shape=(5,), dtype="float64")), one(k - i))))),
    "one beyond the range": (INSIDE, scope((4,), (3,), Prod((X, one(k - i))))),
    "an odd extent": (HALVES, scope((4,), (3,), Prod((X, X)))),
    "other extents": (EQUAL, scope((4, 2), (3,), read("w", i, it(2, 3), constant=True))),
    "no constant": (EQUAL, scope((3, 3), (3,), read("x", it(0, 3), it(2, 3)))),
    "an axis that isn't listed": (EQUAL, scope((3, 3), (3,), read("w", it(1, 3), it(2, 3),
                                                                constant=True))),
    "integers": (NEGATED, scope((4,), (3,), Prod((Num(-1), read("x", k, dtype="int32"))), "max")),
    "two factors that differ": (SQUARE, scope((4,), (3,), Prod((X, read("y", k))))),
    "a part of another dtype": (LINEAR, scope((4,), (3,), Sum((X, Prod((
        read("a", k, dtype="uint8"), read("b", k, dtype="uint8"))))))),
    "bools, which are counted": (DELTA, scope((4,), (3,), Prod((
        read("a", k, dtype="bool"), read("t", k - i, shape=(1,), dtype="bool"))))),
    "nothing reduced": (LINEAR, scope((4, 3), (), Sum((X, X)))),
}  # fmt: skip


@pytest.mark.parametrize("case", NONE)
def test_what_a_rule_does_not_say_has_no_answer(case: str) -> None:
    rule, given = NONE[case]
    assert answers(rule, given) == []


def test_a_condition_holds_at_its_edge() -> None:
    inside = scope((3,), (3,), Prod((X, one(k - it(0, 3)))))
    (answer,) = answers(INSIDE, inside)
    assert_equal(inside, answer)
    even = scope((4,), (4,), Prod((read("x", it(1, 4)), read("y", it(1, 4)))))
    (halves,) = answers(HALVES, even)
    assert sorted(halves.reduction) == [2, 2] or len(halves.reduction) == 2
    assert_equal(even, halves)
    assert answers(EQUAL, scope((3, 3), (3,), read("w", it(0, 3), it(2, 3), constant=True)))


def test_a_number_is_of_the_dtype_around_it() -> None:
    beside = parse("[*x] = F + G  =>  [*x] = {G} + F if float G")
    (is_float,) = beside.conditions
    given = Binding(bodies={"G": Num(1.0)})
    assert holds(is_float, given, "float32")
    assert not holds(is_float, given, "int32") and not holds(is_float, given)
    assert len(answers(beside, scope((3,), (), Sum((read("x", it(0, 3)), Num(1.0)))))) == 2


def test_bytes_wrap_on_both_sides() -> None:
    given = scope((4,), (3,), Sum((read("a", k, dtype="uint8"), read("b", k, dtype="uint8"))))
    (answer,) = answers(LINEAR, given)
    assert answer.dtype == "uint8"
    assert_equal(given, answer)


def test_a_cast_keeps_its_place() -> None:
    body = Prod((Cast("float32", read("n", k, dtype="int32")), one(k - i)))
    given = scope((4,), (3,), body)
    for answer in answers(parse(DELTA.text.replace(", finite F", "")), given):
        assert_equal(given, answer)


def test_products_are_matched_in_any_order_and_all_ways() -> None:
    a, b, c = read("a", i), read("b", k), read("c", m)
    given = scope((4,), (3, 2), Prod((c, b, a)))
    found = answers(HOISTED, given)
    assert len(found) >= 4 and len(set(found)) == len(found) <= MAX_ANSWERS
    for answer in found:
        assert_equal(given, answer)


def test_of_several_answers_the_first_may_be_chosen() -> None:
    factors = (one(k - i), one(m - it(0, 4) // 2), read("x", k, m))
    given = scope((4,), (3, 2), Prod(factors))
    assert len(answers(DELTA, given)) == 2
    (answer,) = answers(replace(DELTA, first=True), given)
    assert_equal(given, answer)


@pytest.mark.rotating
def test_many_ways_to_match_are_bounded() -> None:
    """There are 2^12 ways to distribute the factors, 2^5 for the iterators, and 120 ways to name
    three iterators."""
    rule = parse("[*x] = sum(a, b, c, *y, *z) F(a) * G(b) * H(c)  =>  [*x] = sum(a, b, c, *y, *z) "
                 "F(a) * G(b) * H(c) * 2")  # fmt: skip
    factors = tuple(read(f"t{n}", it(1 + n % 6, 2), it(0, 2)) for n in range(12))
    assert len(answers(rule, scope((2,), (2,) * 6, Prod(factors)))) <= MAX_ANSWERS


def test_a_right_side_may_be_no_term() -> None:
    """The right side divides by an extent of 0, or has a negative extent."""
    zero = parse("[*x] = sum(k, *y) F(k) => [*x] = sum(q < 3 // #k, *y) F(q)")
    assert answers(zero, Scope((2,), (0,), read("x", it(1, 0), shape=(3,)))) == []
    negative = parse("[*x] = sum(k, *y) F(k) => [*x] = sum(q < #k - 5, *y) F(q)")
    assert answers(negative, scope((2,), (3,), read("x", it(1, 3)))) == []


# ---- in a session ------------------------------------------------------------------------

FILE = """\
;; my.egg -- a product of magnitudes.
;;
;; Rulesets   mine   every rule leaves fewer functions to compute; saturates
;; Needs      schema.egg
;; Numerics   real
;; Status     validated

(ruleset mine)

(rule-of-scopes "[*x] = prod(*y) abs(F)  =>  [*x] = abs({prod(*y) F})   if float F"
  :ruleset mine :name "product-of-magnitudes")
"""


@pytest.mark.rotating
def test_a_users_rule_is_asked_about_each_scope_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    path.write_text(FILE, encoding="utf-8")
    rules = load_rules([*DEFAULT_FILES, path]).select(asked_for=[path])
    x = eqsynth.input("x", (3, 4))
    product = eqsynth.scope(lambda n: eqsynth.prod(lambda m: ops.abs(x[n, m]), m=4), n=3)
    roots = program_of(product)[0].outputs
    graph = saturate_terms(roots, rules, DEFAULT_PHASES, Limits(), log_matches=True)
    assert graph.matches["product-of-magnitudes"] == 1
    plain = eqsynth.scope(lambda n: eqsynth.prod(lambda m: x[n, m], m=4), n=3)
    left, right = product, eqsynth.scope(lambda n: ops.abs(plain[n]), n=3)
    assert not eqsynth.prove_equal(left, right)
    proof = eqsynth.prove_equal(left, right, rules=[path])
    assert proof
    assert "product-of-magnitudes" in {step.rule for step in proof.explain().steps}
