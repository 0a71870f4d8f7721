"""Rewrites of tensors, proved for all sizes; wrong ones aren't."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from test_indices import proved_mutants

from benchmarks.tensorright import FOLDER, stated
from eqsynth.errors import EqsynthError
from eqsynth.rules import DEFAULT_FILES, load_rules, rules_dir
from eqsynth.verify import Verdict, verify_rule, verify_rules
from tests.turns import MOST, PARTS, TURNS, by_many_turns, by_turns

pytest.importorskip("z3")

OURS = load_rules()
HERE = Path(__file__).parent
UNSOUND = sorted((HERE.parent / "rules" / "unsound").rglob("*.egg"))
HEAD = ";; own.egg -- own.\n;;\n;; Numerics   {}\n;; Status     validated\n\n"


def of_file(path: Path, **options: bool) -> list[Verdict]:
    rules = load_rules([*DEFAULT_FILES, path])
    own = [rule for rule in rules.rules if rule.file == str(path)]
    return [verify_rule(rules, rule, **options) for rule in own if rule.kind != "law-apply"]


@pytest.fixture
def verified(tmp_path: Path):  # type: ignore[no-untyped-def]
    def one(text: str, numerics: str = "real", **options: bool) -> Verdict:
        path = tmp_path / "own.egg"
        path.write_text(
            HEAD.format(numerics) + f'{text} :ruleset simplify :name "own")', encoding="utf-8"
        )
        (verdict,) = of_file(path, **options)
        return verdict

    return one


# Rules that are tested on samples only: the prover knows no bilinear interpolation, and no
# conversion of what data picks. It would have to take both cases of a choice one by one.
NOT_PROVED = {
    "mask-of-bias": "left to show: more dtypes than are looked at",
    "mask-of-columns":
        "left to show: the elements are equal where dtypes are mixed (c: 2, x: 2, w: 2, z: 0)",
    "mask-of-other-rows":
        "left to show: the elements are the same to the last bit (c: 0, x: 2, w: 2, z: 0)",
    "mask-of-others": "left to show: which numbers add is",
    "mask-of-rows":
        "left to show: the elements are equal where dtypes are mixed (c: 1, x: 2, w: 2, z: 0)",
    "mask-of-sum":
        "left to show: the elements are equal where dtypes are mixed (c: 0, x: 0, y: 0, z: 0)",
    "not-chosen": "left to show: the elements are the same to the last bit (c: 0, x: 0, y: 0)",
    "choice-of-matmuls": "left to show: where takes part in a sum or product, and may be infinite",
    "choice-of-sums": "left to show: which numbers add is",
    "convert-of-rows": "left to show: what is converted to d",
    "match-causal-attention-quotient": "left to show: the operator Softmax",
    "match-causal-attention-unscaled": "left to show: the operator Softmax",
    "upsample-of-conv1x1": "left to show: the operator UpsampleBilinear2d",
}


@by_turns
def test_rules_of_operators_and_views_are_proved(turn: int) -> None:
    """All rewrites of tensors that define nothing, a part of them in each turn."""
    names = [
        rule.name for rule in OURS.rules
        if rule.kind == "rewrite" and rule.status != "definition"
        and Path(rule.file).name not in ("index.egg", "scalar.egg")
    ]  # fmt: skip
    assert len(names) >= 23
    names = names[turn::TURNS]
    found = list(verify_rules(OURS, names))
    left = {v.rule.name: v.why for v in found if v.outcome != "proved"}
    assert found and left == {name: why for name, why in NOT_PROVED.items() if name in names}


# Over three seconds each, of the processor.
DEAR = ("conv2d-is-linear", "conv2d-is-bilinear", "add-of-concats")


def theorems(*, dear: bool, every: int = 1, first: int = 0) -> list[Verdict]:
    rules = load_rules([*DEFAULT_FILES, HERE / "theorems.egg"])
    own = [r for r in rules.rules if r.ruleset == "theorems" and (r.name in DEAR) == dear]
    assert len(own) == (len(DEAR) if dear else 24)
    return [verify_rule(rules, rule, samples=False) for rule in own[first::every]]


@by_turns
def test_properties_of_operators_are_theorems(turn: int) -> None:
    found = theorems(dear=False, every=TURNS, first=turn)
    assert found and {v.rule.name: v.why for v in found if v.outcome != "proved"} == {}


@pytest.mark.slow
def test_theorems_that_are_dear_to_prove() -> None:
    assert [v.outcome for v in theorems(dear=True)] == ["proved"] * len(DEAR)


@pytest.mark.rotating(parts=32)
@pytest.mark.parametrize("path", UNSOUND, ids=lambda path: path.stem)
def test_no_unsound_rule_is_proved(path: Path) -> None:
    """Of the files of `rules/unsound/`, a thirty-second each time."""
    try:
        found = of_file(path, samples=False)
    except EqsynthError:
        return  # What doesn't load isn't verified.
    own = {v.rule.name: v.outcome for v in found}
    assert path.stem not in own or own[path.stem] in ("refuted", "not proved")
    assert not [v.why for v in found if "fault" in v.why]


def test_a_definition_is_none_to_prove() -> None:
    assert verify_rule(OURS, OURS["matmul-definition"]).outcome == "definition"
    verdict = verify_rule(OURS, OURS["factor"])
    assert (verdict.outcome, verdict.why) == ("by law", "the law factor answers by calculus.close")
    verdict = verify_rule(OURS, OURS["expand"])
    assert verdict.outcome == "by law" and "tests/expansion/test_expanded.py" in verdict.why


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("rule", "numerics"),
    [
        # The right side is another shape where x has more axes.
        ("(rewrite (Sub x x) (Full (vec-of 1) 0.0 (dtype x))", "real"),
        # A window of padding alone is -inf.
        ("(rewrite (MaxPool2d (Relu x) k s p d) (Relu (MaxPool2d x k s p d))", "bitwise"),
        # The second axis is another where x has more than two.
        ("(rewrite (Slice (Slice x 0 a b 1) 0 c d 1) (Slice x 0 c d 1)", "bitwise"),
        # Digits: real, not bitwise.
        ('(rewrite (Add (Add x y) z) (Add x (Add y z)) :when ((= (dtype x) "float32") '
         '(= (dtype y) "float32") (= (dtype z) "float32"))', "bitwise"),
        # 255 is the negative of 1 in bytes, which a concatenation with floats converts.
        ("(rewrite (Neg (Concat (vec-of x y) a)) (Concat (vec-of (Neg x) (Neg y)) a) "
         ':when ((= (dtype x) "uint8") (= (dtype y) "float32"))', "bitwise"),
        # A row that exp makes infinite: 0 * inf is no number. Logarithms aren't finite.
        ('(rewrite (Mul (Log x) (Sub y y)) (Sub x x) :when ((= (shape x) (shape y)) '
         '(= (dtype x) "float32") (= (dtype y) "float32"))', "real"),
        # A sum of int32 is int64: what wraps before isn't what wraps behind.
        ("(rewrite (ReduceSum (Add x y) axes k) (Add (ReduceSum x axes k) (ReduceSum y axes k)) "
         ":when ((= (shape x) (shape y)) (= (dtype x) (dtype y)))", "real"),
        # Broadcasting may enlarge.
        ("(rewrite (Maximum x x) (Maximum x y) :when ((= (dtype x) (dtype y)))", "real"),
        # The last rows of z and w are left out, or summed twice.
        ("(rewrite (Matmul (Concat (vec-of x z) 1) (Concat (vec-of y w) 0)) (Matmul x y) "
         ':when ((= 2 (vec-length (shape x))) (= 2 (vec-length (shape y))) '
         '(= 2 (vec-length (shape z))) (= 2 (vec-length (shape w))) '
         '(= (vec-get (shape x) 1) (vec-get (shape y) 0)) (= (dtype x) "float32") '
         '(= (dtype y) "float32") (= (dtype z) "float32") (= (dtype w) "float32"))', "real"),
        # Without the condition the parts meet elsewhere.
        ("(rewrite (Matmul (Concat (vec-of x z) 1) (Concat (vec-of y w) 0)) "
         "(Add (Matmul x y) (Matmul z w)) "
         ':when ((= 2 (vec-length (shape x))) (= 2 (vec-length (shape y))) '
         '(= 2 (vec-length (shape z))) (= 2 (vec-length (shape w))) '
         '(= (dtype x) "float32") (= (dtype y) "float32") '
         '(= (dtype z) "float32") (= (dtype w) "float32"))', "real"),
        # The diagonal is longer than x has columns: no product; of a wider one columns are cut.
        ('(rewrite (Matmul x (Cast (Equal (Iota (vec-of n m) 0 "int64") '
         '(Iota (vec-of n m) 1 "int64")) "float32")) (Slice x 1 0 m 1) '
         ':when ((= 2 (vec-length (shape x))) (= n (vec-get (shape x) 1)) (= m (+ n 1)) '
         '(= (dtype x) "float32"))', "real"),
        # The kernel's one is beside its middle.
        ('(rewrite (Conv2d x (Pad (Reshape (Cast (Equal (Iota (vec-of n n) 0 "int64") '
         '(Iota (vec-of n n) 1 "int64")) "float32") (vec-of n n 1 1)) (vec-of 0 0 a b) '
         '(vec-of 0 0 c b) 0.0) (vec-of 1 1) p (vec-of 1 1) 1) x '
         ':when ((= 4 (vec-length (shape x))) (= n (vec-get (shape x) 1)) '
         '(= a (+ 1 (vec-get p 0))) (= c (- (vec-get p 0) 1)) (= b (vec-get p 1)) '
         '(= (dtype x) "float32"))', "real"),
        # A sum over a window is no mean.
        ('(rewrite (AvgPool2d x k s p d) (Conv2d x (Full (vec-of c 1 m n) 1.0 "float32") s p d c) '
         ':when ((= 4 (vec-length (shape x))) (= c (vec-get (shape x) 1)) (= m (vec-get k 0)) '
         '(= n (vec-get k 1)) (>= c 1) (= (dtype x) "float32"))', "real"),
        # Places that bfloat16 rounds: 257 is 256 there.
        ('(rewrite (Matmul (Softmax (Where (GreaterEqual (Iota x 0 k) (Iota x 1 k)) '
         "(Mul (Matmul q t) (Full o c d)) (Full o -inf d)) a) v) (CausalAttention q t v c) "
         ":when ((= o (vec-empty)) (= d (dtype q)) (= p (shape q)) (= u (shape t)) "
         "(= a (- (vec-length p) 1)) (= (vec-get x 0) (vec-get p (- a 1))) "
         "(= (vec-get x 1) (vec-get u a)) (= 2 (vec-length x)))", "real"),
        # One over the number is 0 in integers.
        ("(rewrite (Matmul (Softmax (Div (Matmul q t) (Full o c d)) a) v) "
         "(Attention q t v (/ 1.0 c)) :when ((= o (vec-empty)) (= d (dtype q)) "
         "(= a (- (vec-length (shape q)) 1)))", "real"),
        # Written out, the scores are shifted and not scaled; along another axis; of other values.
        ("(rewrite (Matmul (Softmax (Add (Matmul q t) (Full o c d)) a) v) (Attention q t v c) "
         ":when ((= o (vec-empty)) (= d (dtype q)) (= a (- (vec-length (shape q)) 1)))", "real"),
        ("(rewrite (Matmul (Softmax (Mul (Matmul q t) (Full o c d)) a) v) (Attention q t v c) "
         ":when ((= o (vec-empty)) (= d (dtype q)) (= a (- (vec-length (shape q)) 2)))", "real"),
        ("(rewrite (Matmul (Softmax (Matmul q t) a) v) (Attention q t t 1.0) "
         ":when ((= a (- (vec-length (shape q)) 1)))", "real"),
        # True where one of two is, or where both are; a number that is true.
        ('(rewrite (Where c x (Full (vec-empty) 0.0 "bool")) (LogicalOr c x) '
         ':when ((= "bool" (dtype x)))', "bitwise"),
        ('(rewrite (Where c x (Full (vec-empty) 1.0 "bool")) (LogicalAnd c x) '
         ':when ((= "bool" (dtype x)))', "bitwise"),
        ('(rewrite (Equal x (Full (vec-empty) 1.0 "bool")) (LogicalAnd x x)', "bitwise"),
        # Seen by some, and not by all.
        ('(rewrite (Equal (ReduceMax (Where s (Full o 1.0 d) (Full o 0.0 d)) r k) (Full o 1.0 d)) '
         "(Equal (ReduceMin (Where s (Full o 1.0 d) (Full o 0.0 d)) r k) (Full o 1.0 d)) "
         ':when ((= o (vec-empty)) (= d "float32"))', "bitwise"),
        # A scope that sums the number.
        ('(rewrite (Scope t s r (Num v)) (Full t v "float32") :when ((= 1 (vec-length s)))',
         "real"),
        # The bound that is applied last wins where the lower one is above the upper one.
        ("(rewrite (Minimum (Maximum x y) z) (Maximum (Minimum x z) y) "
         ':when ((= (dtype x) (dtype y)) (= (dtype x) (dtype z)) (!= (dtype x) "bool"))', "real"),
        # Where x equals y; and NaN isn't at least itself.
        ("(rewrite (Greater (Maximum x y) y) (GreaterEqual x y) "
         ':when ((= (dtype x) (dtype y)) (!= (dtype x) "bool"))', "real"),
        ('(rewrite (GreaterEqual x x) (Full (shape x) 1.0 "bool") '
         ':when ((!= (dtype x) "bool"))', "bitwise"),
        # A permutation of three axes isn't its own inverse, as those of two are.
        ("(rewrite (Permute (Permute x o) o) x", "bitwise"),
        # 300 is 44 in int8; 2.5 is 2: their places in the order are others.
        ("(rewrite (Maximum (Minimum x (Full (vec-empty) 2.0 (dtype x))) "
         "(Full (vec-empty) 300.0 (dtype x))) (Full (shape x) 300.0 (dtype x)) "
         ':when ((= (dtype x) "int8"))', "real"),
        # Numbers of two dtypes are compared in a third, which may round them.
        ("(rewrite (LogicalAnd (Less x y) (Less x z)) (Less x (Minimum y z)) "
         ':when ((= (dtype x) "float32") (= (dtype y) "int64") (= (dtype z) "float32"))', "real"),
        # The other one of two is chosen.
        ('(rewrite (Where (LogicalNot c) x y) (Where c x y) :when ((= (dtype c) "bool") '
         '(= (dtype x) "float32") (= (dtype y) "float32"))', "real"),
        # A sum over one axis twice isn't well-typed.
        ("(rewrite (ReduceSum (ReduceSum x (vec-of a) 1) (vec-of b) 1) "
         '(ReduceSum x (vec-of a b) 1) :when ((= 3 (vec-length (shape x))) '
         '(= (dtype x) "float32"))', "real"),
        # A column of two isn't one.
        ("(rewrite (Matmul x y) (Mul x y) :when ((= 2 (vec-length (shape x))) "
         '(= 2 (vec-length (shape y))) (= 2 (vec-get (shape x) 1)) (= (dtype x) "float32") '
         '(= (dtype y) "float32"))', "real"),
        # Infinite on one side only; and the wrong way up.
        ("(rewrite (Div x (Div y z)) (Div (Mul x z) y) "
         ':when ((= (dtype x) "float32") (= (dtype y) "float32") (= (dtype z) "float32"))', "real"),
        ("(rewrite (Div x (Div y z)) (Div (Mul x y) z) :when ((= (dtype x) "
         '"float32") (= (dtype y) "float32") (= (dtype z) "float32"))', "proof"),
        # A divisor that the sides don't share.
        ("(rewrite (Div (Add x y) z) (Add (Div x z) y) :when ((= (dtype x) "
         '"float32") (= (dtype y) "float32") (= (dtype z) "float32"))', "proof"),
        ('(rewrite (Mul (Exp x) (Exp y)) (Exp (Mul x y)) :when ((= (dtype x) "float32") '
         '(= (dtype y) "float32"))', "proof"),
        ('(rewrite (Mul (Abs x) (Abs y)) (Mul x y) :when ((= (dtype x) "float32") '
         '(= (dtype y) "float32"))', "real"),
        ('(rewrite (Mul (Abs x) (Abs x)) (Abs x) :when ((= (dtype x) "float32"))', "real"),
        # Of another divisor; of floats, where a remainder may be rounded up to the divisor.
        ('(rewrite (Remainder (Remainder x y) z) (Remainder x z) :when ((= (dtype x) "int64") '
         '(= (dtype y) "int64") (= (dtype z) "int64"))', "bitwise"),
        ('(rewrite (Remainder (Remainder x y) y) (Remainder x y) :when ((= (dtype x) "float32") '
         '(= (dtype y) "float32"))', "bitwise"),
        # The last place; a sum that may wrap; a divisor that may be negative; a number in 8 bits.
        ('(rewrite (Remainder (Iota s a "int64") (Full s v "int64")) (Iota s a "int64") :when '
         "((= 3 (vec-length s)) (= n (to-i64 v)) (= v (to-f64 n)) (<= (vec-get s a) (+ n 1)))",
         "bitwise"),
        ('(rewrite (Remainder (Add (Iota s a "int64") (Full s v "int64")) (Full s v "int64")) '
         '(Remainder (Iota s a "int64") (Full s v "int64")) :when ((= 3 (vec-length s)) '
         "(= n (to-i64 v)) (= v (to-f64 n)) (> n 0))", "bitwise"),
        ('(rewrite (Remainder (Add (Iota s a "int64") (Full s v "int64")) (Full s v "int64")) '
         '(Iota s a "int64") :when ((= 3 (vec-length s)) (= n (to-i64 v)) (= v (to-f64 n)) '
         "(< n 100) (> n -100) (< (vec-get s a) 100))", "bitwise"),
        ('(rewrite (Remainder (Full s u "int8") (Full s v "int8")) (Full s u "int8") '
         ":when ((= m (to-i64 u)) (= u (to-f64 m)) (= n (to-i64 v)) (= v (to-f64 n)) (>= m 0) "
         "(< m n))", "bitwise"),
        # Number 2.5 is 2 in integers.
        ("(rewrite (Mul x (Full (vec-empty) 2.5 (dtype x))) "
         "(Add (Mul x (Full (vec-empty) 1.5 (dtype x))) x)", "real"),
    ],
)  # fmt: skip
def test_what_is_wrong_somewhere_is_not_proved(verified, rule: str, numerics: str) -> None:  # type: ignore[no-untyped-def]
    try:
        assert verified(rule, numerics, samples=False).outcome == "not proved"
    except EqsynthError:
        assert "(Maximum x y)" in rule  # y is bound by nothing


@pytest.mark.rotating
def test_a_wrong_rule_is_refuted_by_a_sample(verified) -> None:  # type: ignore[no-untyped-def]
    verdict = verified("(rewrite (Shift (Shift x a s) a t) (Shift x a (- s t))", "bitwise")
    assert verdict.outcome == "refuted" and "left is" in verdict.why


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        "(rewrite (Matmul (Slice x 0 f t s) y) (Slice (Matmul x y) 0 f t s)"
        " :when ((= 2 (vec-length (shape x))) (= 2 (vec-length (shape y))))",
        "(rewrite (Permute (Matmul a b) (vec-of 1 0))"
        " (Matmul (Permute b (vec-of 1 0)) (Permute a (vec-of 1 0)))"
        " :when ((= 2 (vec-length (shape a))) (= 2 (vec-length (shape b))))",
    ],
)
def test_a_sum_over_other_extents_is_rounded_in_another_order(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    assert verified(rule, "real").outcome == "proved"
    verdict = verified(rule, "bitwise", samples=False)
    assert (verdict.outcome, "the last bit" in verdict.why) == ("not proved", True), verdict.why


def test_a_sum_that_stays_is_the_same_to_the_last_bit(verified) -> None:  # type: ignore[no-untyped-def]
    rule = "(rewrite (Relu (Relu (Matmul a b))) (Relu (Matmul a b))"
    assert verified(rule, "bitwise").outcome == "proved"


def test_ranks_beyond_those_looked_at_are_told(verified) -> None:  # type: ignore[no-untyped-def]
    rule = "(rewrite (Relu (Permute (Permute x o) p)) (Permute (Permute (Relu x) o) p)"
    verdict = verified(rule, "bitwise", samples=False)
    assert verdict.outcome == "not proved" and "Permute names all axes" in verdict.why


def test_a_fact_about_the_rank_is_told(verified) -> None:  # type: ignore[no-untyped-def]
    rule = "(rewrite (Neg (Neg x)) x :when ((< 7 (vec-length (shape x)))))".removesuffix(")")
    assert verified(rule, "bitwise", samples=False).outcome == "not proved"
    rule = "(rewrite (Relu (Neg x)) x :when ((< (vec-length (shape x)) 1))"
    assert verified(rule, "bitwise", samples=False).outcome == "not proved"


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        # The number of an axis says more than which extent is meant.
        ("(rewrite (Relu (Slice x a b c s)) (Slice (Relu x) a b c s) :when ((!= a 1))", "fact"),
        ("(rewrite (Relu (Slice x a a c s)) (Slice (Relu x) a a c s)", "a is axis and start"),
        # A fact fixes the rank of x; that the shape s has the same is for want of others.
        ("(rewrite (Concat (vec-of (Full s v d) x) 0) (Pad x (vec-of (vec-get s 0) 0) (vec-of 0 0) "
         "v) :when ((= d (dtype x)) (= 2 (vec-length (shape x))))", "Pad names all axes"),
        ("(rewrite (Reshape (Reshape x s) t) (Reshape x t) :when ((= 4 (vec-get t 0)))", "fact"),
    ],
)
def test_what_is_shown_at_few_ranks_is_not_taken_for_all(verified, rule: str, said: str) -> None:  # type: ignore[no-untyped-def]
    verdict = verified(rule, "bitwise", samples=False)
    assert (verdict.outcome, said in verdict.why) == ("not proved", True), verdict.why


@by_many_turns
def test_no_mutant_of_a_rewrite_of_xla_is_proved_that_the_checker_refuses(
    tmp_path: Path, turn: int
) -> None:
    """Of each of `PARTS` rewrites all mutants, an eighth of them in each turn."""
    _, own = stated()
    part, first = turn % PARTS, turn // PARTS
    rule = own[Random(part).choice(sorted(own))]
    needs = tuple(sorted(FOLDER.iterdir()))
    name, numerics = (rule.name,), str(rule.numerics)
    proved_mutants(rule.file, numerics, tmp_path, name, needs, MOST // PARTS, first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "numerics"),
    [("simplify.egg", "bitwise"), ("views-match.egg", "bitwise"), ("attention.egg", "real"),
     ("linear.egg", "real")],
)  # fmt: skip
def test_no_mutant_of_a_rule_of_operators_is_proved_that_the_checker_refuses(
    tmp_path: Path, file: str, numerics: str
) -> None:
    assert (rules_dir() / file).is_file()
    assert proved_mutants(file, numerics, tmp_path)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        # Not all axes of r have extent 1; twice is not at all; an axis of the slice is reversed.
        "(rewrite (Reverse x r) x :when ((= 1 (vec-length r)))",
        "(rewrite (Reverse (Reverse x (vec-of a)) (vec-of b)) (Reverse x (vec-of a b))",
        "(rewrite (Reverse (Reverse x r) r) (Reverse x r)",
        "(rewrite (Slice (Reverse x (vec-of a)) b f g h) (Reverse (Slice x b f g h) (vec-of a))",
    ],
)
def test_what_is_wrong_of_reversals_is_not_proved(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    assert verified(rule, "bitwise", samples=False).outcome != "proved"


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        "(rewrite (Slice (Reverse x (vec-of a)) b f g h) (Reverse (Slice x b f g h) (vec-of a))"
        " :when ((!= a b))",
        "(rewrite (Relu (Reverse x r)) (Reverse (Relu x) r)",
        "(rewrite (ReduceMax (Reverse x (vec-of a)) (vec-of b) 1)"
        " (Reverse (ReduceMax x (vec-of b) 1) (vec-of a)) :when ((!= a b))",
    ],
)
def test_what_is_true_of_reversals_is_proved(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    verdict = verified(rule, "real", samples=False)
    assert verdict.outcome == "proved", verdict.why
