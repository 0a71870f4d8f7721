"""Operators that rule files define by comprehensions: what the verifier takes them to be, the ranks
that it looks at, and rules about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eqsynth.egraph.defined import operators_of
from eqsynth.errors import EqsynthError
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules
from eqsynth.verify import Verdict, verify_rule

z3 = pytest.importorskip("z3")

from test_operators import Plain, number_of, required, whole  # noqa: E402

from eqsynth.rules.tree import Tree, Var, is_call  # noqa: E402
from eqsynth.rules.values import Unknown  # noqa: E402
from eqsynth.rules.values import evaluate as value_of  # noqa: E402
from eqsynth.verify.comprehensions import along_an_axis, applied, case_of, computes  # noqa: E402
from eqsynth.verify.operators import Operators  # noqa: E402
from eqsynth.verify.symbolic import IllTyped, Symbolic, leaf  # noqa: E402

FILE = '''\
;; own.egg -- operators of a rule file.
;;
;; Rulesets   define   what the operators are; saturates
;; Needs      schema.egg, shape.egg, operators.egg
;; Numerics   real
;; Status     validated

(define (Backward x (a i64)) "(x; a, n) [*p:a, i, *q] = x[*p, n - 1 - i, *q]"
  :when ((= s (shape x))) :numbers (vec-of a (vec-get s a)) :shape s)
(define (Spread x (a i64) (l i64) (h i64) (k i64) (v f64))
  "(x, inside, multiple, v; a, l, s) [*n:a, i, *m] =
   where(and_(multiple[(i - l) % s], inside[*n, (i - l) // s, *m]), x[*n, (i - l) // s, *m], v[])"
  :when ((= s (shape x)) (= n (vec-get s a)) (>= k 0) (= d (dtype x)))
  :tensors (vec-of x (Full s 1.0 "bool") (Full (vec-of 1) 1.0 "bool") (Full (vec-empty) v d))
  :numbers (vec-of a l (+ k 1))
  :shape (vec-set s a (+ (+ l h) (+ n (* k (max 0 (- n 1)))))))
(define (WindowMax x (k i64) (s i64)) "(x; k, s) [*n, i] = max(k) x[*n, s*i + k else -inf]"
  :when ((= n (shape x)) (= a (- (vec-length n) 1)) (> s 0) (> k 0) (>= (vec-get n a) k))
  :shape (vec-set n a (+ 1 (/ (- (vec-get n a) k) s))))
(define (Moved x (a i64) (l i64) (h i64)) "(x; a, l) [*n:a, i, *m] = x[*n, i - l, *m]"
  :when ((= s (shape x))) :numbers (vec-of a l)
  :shape (vec-set s a (+ (+ l h) (vec-get s a))))
(define (ThirdsOf x (a i64))
  "(x, first, zero; a) [*n:a, i, *m] = where(first[i % 3], x[*n, i, *m], zero[])"
  :when ((= d (dtype x)))
  :tensors (vec-of x (Full (vec-of 1) 1.0 "bool") (Full (vec-empty) 0.0 d))
  :numbers (vec-of a) :shape (shape x))
(define (TwoThirdsOf x (a i64))
  "(x, two, zero; a) [*n:a, i, *m] = where(two[i % 3], x[*n, i, *m], zero[])"
  :when ((= d (dtype x)))
  :tensors (vec-of x (Full (vec-of 2) 1.0 "bool") (Full (vec-empty) 0.0 d))
  :numbers (vec-of a) :shape (shape x))
(define (Twice x y) "(x, y) [m, p] = sum(n, l) x[n, m, l] * y[n, l, p]")
(define (Scaled x y) "(x, y) [*n, i] = 2 * relu(x[*n, i]) - y[i]")
'''
SPREAD = ["x", *"alhkv"]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    path = tmp_path_factory.mktemp("own") / "own.egg"
    path.write_text(FILE, encoding="utf-8")
    return load_rules([*DEFAULT_FILES, path])


@pytest.fixture
def verified(tmp_path: Path):  # type: ignore[no-untyped-def]
    def one(text: str, numerics: str = "bitwise") -> Verdict:
        path = tmp_path / "own.egg"
        head = FILE.replace("Numerics   real", f"Numerics   {numerics}")
        path.write_text(f'{head}{text} :ruleset define :name "own")', encoding="utf-8")
        rules = load_rules([*DEFAULT_FILES, path])
        return verify_rule(rules, rules["own"], samples=False)

    return one


class Integral(Plain):
    """Quotients of numbers, and answers about numbers."""

    def truncated(self, x: Any, m: Any) -> tuple[Any, Any]:
        a, b = whole(x), whole(m)
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return z3.IntVal(quotient), z3.IntVal(a - b * quotient)


CASES: list[tuple[str, list[tuple[int, ...]], tuple[Any, ...]]] = [
    ("Backward", [(3,)], (0,)), ("Backward", [(2, 4, 3)], (1,)), ("Backward", [(2, 1)], (1,)),
    ("Spread", [(3,)], (0, 1, 2, 0, 7.0)), ("Spread", [(2, 3)], (1, 2, 0, 2, -1.0)),
    ("Spread", [(3, 2)], (0, -2, 1, 1, 4.0)), ("Spread", [(5,)], (0, -1, -3, 0, 4.0)),
    ("Spread", [(0, 2)], (0, 1, 1, 3, 2.0)), ("Spread", [(1,)], (0, -1, 3, 5, 2.0)),
    ("Moved", [(2, 5)], (1, -2, 1)), ("ThirdsOf", [(2, 7)], (1,)), ("TwoThirdsOf", [(8, 2)], (0,)),
    ("WindowMax", [(2, 7)], (3, 2)), ("WindowMax", [(4,)], (1, 3)),
    ("Twice", [(2, 3, 4), (2, 4, 5)], ()), ("Scaled", [(2, 2, 3), (3,)], ()),
]  # fmt: skip


def element_tensor(rules: RuleSet, name: str, args: list[Any]) -> Symbolic:
    ints = Integral()
    operators = Operators(ints, required)

    def of(tree: Tree, bound: Any) -> Any:
        if is_call(tree) and tree[0] == "shape":
            return of(tree[1], bound).extents
        if is_call(tree) and tree[0] == "dtype":
            return "float64"
        if is_call(tree) and tree[0] == "Full":
            return operators.apply("Full", [of(part, bound) for part in tree[1:]])
        if is_call(tree):
            parts = [of(part, bound) for part in tree[1:]]
            named = {f"p{n}": whole(p) if z3.is_expr(p) else p for n, p in enumerate(parts)}
            return value_of((tree[0], *map(Var, named)), named)
        return bound[tree.name] if isinstance(tree, Var) else tree

    return applied(rules.definitions[name], args, of, ints, required)


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "shapes", "attrs"), CASES)
def test_an_operator_is_what_the_interpreter_says(
    rules: RuleSet, name: str, shapes: list[tuple[int, ...]], attrs: tuple[Any, ...]
) -> None:
    draw = np.random.default_rng(0)
    inputs = tuple(Input(f"x{n}", TensorType(s, "float64")) for n, s in enumerate(shapes))
    env = {x.name: draw.integers(-9, 9, x.shape).astype(np.float64) for x in inputs}
    row = operators_of(rules.definitions)[name]
    expected = evaluate(Op(name, inputs, attrs, "", row), env)
    tensors = [leaf(x.name, tuple(map(z3.IntVal, x.shape))) for x in inputs]
    found = element_tensor(rules, name, [*tensors, *attrs])
    assert tuple(map(whole, found.extents)) == expected.shape
    for place in np.ndindex(expected.shape):
        element = number_of(found.at(tuple(map(z3.IntVal, place))), env)
        assert element == pytest.approx(expected[place]), place


@pytest.mark.parametrize(
    ("name", "shapes", "attrs"),
    [
        ("Backward", [(3,)], (1,)), ("Backward", [()], (0,)), ("Twice", [(2, 3), (2, 4, 5)], ()),
        ("Scaled", [(), (3,)], ()),
    ],
)  # fmt: skip
def test_what_has_no_type_has_none_here(
    rules: RuleSet, name: str, shapes: list[tuple[int, ...]], attrs: tuple[Any, ...]
) -> None:
    inputs = tuple(Input(f"x{n}", TensorType(s, "float64")) for n, s in enumerate(shapes))
    row = operators_of(rules.definitions)[name]
    with pytest.raises(EqsynthError):
        Op(name, inputs, attrs, "", row).type  # noqa: B018
    tensors = [leaf(x.name, tuple(map(z3.IntVal, x.shape))) for x in inputs]
    with pytest.raises((IllTyped, Unknown)):
        element_tensor(rules, name, [*tensors, *attrs])


OF_FLOATS = ':when ((= (dtype x) "float32")'
PROVED = [
    "(rewrite (Backward (Backward x a) a) x",
    "(rewrite (Relu (Backward x a)) (Backward (Relu x) a)",
    "(rewrite (Backward x a) (Reverse x (vec-of a))",
    "(rewrite (Spread x a 0 0 0 v) x",
    "(rewrite (Slice (Spread x a l h k v) a l e (+ k 1)) x"
    " :when ((= n (vec-get (shape x) a)) (> n 0) (= e (+ (+ n l) (* k (- n 1)))))",
    "(rewrite (Spread (Backward x a) a l h 0 v) (Backward (Spread x a h l 0 v) a)",
    "(rewrite (Spread (Spread x a l h 0 v) a m g 0 v) (Spread x a (+ l m) (+ h g) 0 v)"
    " :when ((>= l 0) (>= h 0))",
    "(rewrite (Slice (Moved x a n 0) a 0 n 1) (Moved (Moved x a 0 (- 0 n)) a 0 n)"
    " :when ((= n (vec-get (shape x) a)))",
    # The places of the padding add nothing: only every k-th place, or those in the middle, count.
    "(rewrite (ReduceSum (Spread x a 0 0 k 0.0) (vec-of a) 1) (ReduceSum x (vec-of a) 1)"
    f" {OF_FLOATS})",
    "(rewrite (ReduceSum (Spread x a l h 2 0.0) (vec-of a) 0) (ReduceSum x (vec-of a) 0)"
    f" {OF_FLOATS} (>= l 0) (>= h 0))",
    "(rewrite (ReduceSum (ThirdsOf x a) (vec-of a) 1) (ReduceSum (Slice x a 0 n 3) (vec-of a) 1)"
    f" {OF_FLOATS} (= n (vec-get (shape x) a)))",
    "(rewrite (WindowMax (Relu x) k s) (Relu (WindowMax x k s))"
    ' :when ((= 2 (vec-length (shape x))) (= (dtype x) "float32"))',
]


@pytest.mark.rotating
@pytest.mark.parametrize("rule", PROVED)
def test_what_follows_from_a_comprehension_is_proved(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    verdict = verified(rule, "real" if "ReduceSum" in rule else "bitwise")
    assert verdict.outcome == "proved", verdict.why


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        "(rewrite (Backward x a) x",
        "(rewrite (Backward (Backward x a) b) x",
        # One axis of a tensor is not that of another one with more axes.
        "(rewrite (Add (Backward x a) (Backward y a)) (Backward (Add x y) a)",
        # Where it isn't well-typed: x is cut to less than nothing; an extent of 0, less 1.
        "(rewrite (Slice x a 0 0 1) (Spread x a l h 0 v) :when ((= 0 (+ (+ l h) (vec-get "
        "(shape x) a))) (= 3 (vec-get (shape x) a)))",
        "(rewrite (Spread x a l h 0 v) (Spread x a l h (- (vec-get (shape x) a) 1) v)",
        # A padding that was cut off is no longer there.
        "(rewrite (Spread (Spread x a l h 0 v) a m g 0 v) (Spread x a (+ l m) (+ h g) 0 v)",
        "(rewrite (Spread (Spread x a l h 0 v) a m g 0 w) (Spread x a (+ l m) (+ h g) 0 v)"
        " :when ((>= l 0) (>= h 0))",
        "(rewrite (Spread x a l h k v) (Spread x a l h 0 v) :when ((= 2 (vec-get (shape x) a)))",
        "(rewrite (Slice (Spread x a l h k v) a l e (+ k 2)) x"
        " :when ((= n (vec-get (shape x) a)) (> n 0) (= e (+ (+ n l) (* k (- n 1)))))",
        # What is padded with counts; elements are cut off; the places aren't those of the elements.
        f"(rewrite (ReduceSum (Spread x a 0 0 k 1.0) (vec-of a) 1) (ReduceSum x (vec-of a) 1)"
        f" {OF_FLOATS})",
        f"(rewrite (ReduceSum (Spread x a l h 0 0.0) (vec-of a) 1) (ReduceSum x (vec-of a) 1)"
        f" {OF_FLOATS} (>= h 0))",
        f"(rewrite (ReduceSum (Mul (Spread x a 0 0 1 0.0) y) (vec-of a) 1) (ReduceSum (Mul x (Slice"
        f" y a 0 n 1)) (vec-of a) 1) {OF_FLOATS} (= (dtype y) \"float32\") (= 1 (vec-length "
        "(shape x))) (= 1 (vec-length (shape y))) (= n (vec-get (shape x) a)))",
        f"(rewrite (ReduceSum (TwoThirdsOf x a) (vec-of a) 1) (ReduceSum (Slice x a 0 n 3) "
        f"(vec-of a) 1) {OF_FLOATS} (= n (vec-get (shape x) a)))",
        # The inner term of the right side has the extent 5 - n, which may be negative.
        "(rewrite (Slice (Moved x a n 0) a 0 n 1) (Moved (Moved x a 5 (- 0 (* 2 n))) a 0"
        " (- (* 2 n) 5)) :when ((= n (vec-get (shape x) a)))",
        # A number that is 2 in integers and 2.5 in floats.
        '(rewrite (Spread (Full s 2.0 d) a l h 0 2.5) (Full t 2.0 d) :when ((= e (Spread (Full s '
        '2.0 d) a l h 0 2.5)) (= t (shape e)))',
        # Elements that are computed, of which nothing is known in integers that wrap.
        "(rewrite (Scaled (Neg x) y) (Sub (Neg (Scaled x y)) y)",
        '(rewrite (Twice x y) (ReduceSum (Matmul x y) (vec-of 1) 0) :when ((= 3 (vec-length (shape '
        'x))) (= 3 (vec-length (shape y))) (= (dtype x) "float32") (= (dtype y) "float32"))',
    ],
)  # fmt: skip
def test_what_is_wrong_of_a_comprehension_is_not_proved(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    try:
        assert verified(rule, "real").outcome == "not proved"
    except EqsynthError:
        assert "(Slice x a 0 0 1)" in rule  # h and l are bound by nothing.


def test_a_sum_in_another_order_is_rounded_in_another_way(verified) -> None:  # type: ignore[no-untyped-def]
    rule = (
        "(rewrite (ReduceSum (Matmul x y) (vec-of 0) 0) (Twice x y) :when ((= 3 (vec-length (shape "
        "x))) (= 3 (vec-length (shape y))) (= (vec-get (shape x) 0) (vec-get (shape y) 0)) (= "
        '(dtype x) "float32") (= (dtype y) "float32"))'
    )
    assert verified(rule, "real").outcome == "proved"
    verdict = verified(rule, "bitwise")
    assert (verdict.outcome, "last bit" in verdict.why) == ("not proved", True)
    # The same products, in a tensor of other extents.
    rule = (
        "(rewrite (Twice (Slice x 1 f g 1) y) (Slice (Twice x y) 0 f g 1) :when ((= 3 (vec-length "
        '(shape x))) (= 3 (vec-length (shape y))) (= (dtype x) "float32") (= (dtype y) "float32"))'
    )
    assert verified(rule, "real").outcome == "proved"
    assert verified(rule, "bitwise").outcome == "not proved"


@pytest.mark.parametrize(
    ("text", "options", "along"),
    [
        ("(x; a) [*n:a, i, *m] = x[*n, i, *m]", "(vec-of a)", True),
        ("(x; a, b) [*n:a, i, *m] = x[*n, 2*i + b, *m] + x[*n, i, *m]", "(vec-of a b)", True),
        # Of another axis; of the number of an axis; of the axis behind; of all axes.
        ("(x; a, b) [*n:a, i, *m] = x[*n, i + b, *m]", "(vec-of a (vec-get (shape x) 0))", False),
        ("(x; a, b) [*n:a, i, *m] = x[*n, i + b, *m]", "(vec-of a a)", False),
        ("(x; a, b) [*n:a, i, *m] = x[*n, i + b, *m]", "(vec-of a (vec-length (shape x)))", False),
        ("(x; a) [*n:a, i, j, *m] = x[*n, j, i, *m]", "(vec-of a)", False),
        ("(x; a) [*n:a, i, *m] = x[*m, i, *n]", "(vec-of a)", False),
        ("(x; a) [*n:a, *m] = x[*n, *m]", "(vec-of a)", False),
    ],
)
def test_which_operators_treat_the_other_axes_alike(
    text: str, options: str, along: bool, tmp_path: Path
) -> None:
    path = tmp_path / "own.egg"
    head = FILE.partition("(define")[0]
    attributes = "(a i64)" if "b" not in options else "(a i64) (b i64)"
    form = f'(define (Own x {attributes}) "{text}" :numbers {options} :shape (shape x))\n'
    path.write_text(head + form, encoding="utf-8")
    own = load_rules([*DEFAULT_FILES, path]).definitions["Own"]
    assert case_of(own) is not None
    assert along_an_axis(own) == along


def test_what_computes_and_what_only_moves(rules: RuleSet) -> None:
    found = {name: computes(rules.definitions[name]) for name in
             ("Backward", "Spread", "WindowMax", "Twice", "Scaled")}  # fmt: skip
    assert found == {"Backward": False, "Spread": False, "WindowMax": True, "Twice": True,
                     "Scaled": True}  # fmt: skip
