"""Operators that a rule file declares and defines: types, values, samples, whole programs."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import eqsynth
from eqsynth.egraph.defined import operators_of
from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.errors import RuleError, ShapeError, UnsupportedOperatorError
from eqsynth.explain import Explanation
from eqsynth.frontend.expression import program_of
from eqsynth.ir.data import sample_all
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import Attr
from eqsynth.ir.tensor import Op, Tensor, topological
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.ir.work import flops
from eqsynth.lower.torch_ops import function_of
from eqsynth.prove import Proof
from eqsynth.rules import DEFAULT_FILES, RuleSet, lint, load_rules, load_text
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.patterns import sample_of
from eqsynth.testing.rule_files import check_rules, load_for_check
from eqsynth.testing.soundness import Checked, check_rule
from eqsynth.testing.templates import Template
from tests.terms import leaf

HEAD = """\
;; own.egg -- operators of a user.
;;
;; Numerics   real
;; Status     validated

(ruleset own)
"""

OPERATORS = (
    HEAD
    + """
(define (Blend a b (t f64)) (Add a (Mul (Sub b a) (Full (vec-empty) t (dtype a)))) :ruleset own)
(define (Twice a) (Blend a (Add a a) 1.0) :ruleset own)
(define (RowProduct x w) "(x, w) [*n, j] = sum(k) x[*n, k] * w[j, k]" :ruleset own)
;; a shape that takes arithmetic
(define (WindowMax x (k i64) (s i64)) "(x; k, s) [*n, i] = max(k) x[*n, s*i + k]"
  :when ((= n (shape x)) (= a (- (vec-length n) 1)) (> s 0) (> k 0) (>= (vec-get n a) k))
  :shape (vec-set n a (+ 1 (/ (- (vec-get n a) k) s))) :ruleset own)
;; an extent that an integer says, a star of so many axes, and two cases
(define (Spread x (v Ints)) "(x; i, j) [i, j, *n] = x[*n]"
  :when ((= 2 (vec-length v))) :ruleset own)
(define (Spread x v) x :when ((= 0 (vec-length v))) :ruleset own :name "spread-of-nothing")
(define (Side (v Tensors) (a i64)) (Concat v a) :ruleset own)
"""
)
RULES = load_text(OPERATORS, "own.egg", after=DEFAULT_FILES)
ROWS = operators_of(RULES.definitions)


def own(name: str, *args: Tensor, attrs: tuple[Attr, ...] = ()) -> Op:
    return Op(name, args, attrs, "", ROWS[name])


def with_rule(rule: str, operators: str = OPERATORS) -> RuleSet:
    text = f"{operators}\n" + rule.replace("END", ':ruleset own :name "planted"')
    return load_text(text, "own.egg", after=DEFAULT_FILES)


def checked(rule: str) -> Checked:
    rules = with_rule(rule)
    return check_rule(rules, rules["planted"], search_s=0.5)


# ---- what an operator is ---------------------------------------------------------------------


def test_types_and_values_follow_from_the_definition() -> None:
    x, y, w = leaf("x", 2, 7), leaf("y", 1, 7), leaf("w", 4, 7)
    rng = np.random.default_rng(0)
    env = {t.label: rng.normal(size=t.shape) for t in (x, y, w)}
    a, b, c = (env[name] for name in "xyw")
    windows = np.lib.stride_tricks.sliding_window_view(a, 3, axis=1)[:, ::2].max(-1)
    for term, expected in (
        (own("Blend", x, y, attrs=(0.25,)), a + (b - a) * 0.25),
        (own("Twice", x), 2 * a),
        (own("RowProduct", x, w), a @ c.T),
        (own("WindowMax", x, attrs=(3, 2)), windows),
        (own("Spread", x, attrs=((3, 2),)), np.broadcast_to(a, (3, 2, 2, 7))),
        (own("Spread", x, attrs=((),)), a),
        (own("Side", x, y, x, attrs=(0,)), np.concatenate([a, b, a])),
        (own("Twice", own("RowProduct", x, w)), 2 * a @ c.T),
    ):
        assert term.type == TensorType(expected.shape, "float32")
        np.testing.assert_allclose(evaluate(term, env), expected, rtol=1e-12)
        if len(set(term.args)) == len(term.args) and term.args[0] == x:
            given = [torch.from_numpy(env[t.label]).float() for t in term.args if t.label in env]
            plain = function_of(term)(*given)
            np.testing.assert_allclose(plain.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert flops(own("RowProduct", x, w)) == 2 * 2 * 4 * 7


def test_arguments_that_do_not_fit_are_refused() -> None:
    x = leaf("x", 2, 7)
    for name, args, attrs in (
        ("RowProduct", (x, leaf("w", 4, 6)), ()),
        ("RowProduct", (x, leaf("w", 7)), ()),
        ("RowProduct", (leaf("s"), leaf("w", 4, 6)), ()),
        ("WindowMax", (x,), (8, 1)),
        ("WindowMax", (x,), (3, 0)),
        ("Spread", (x,), ((3,),)),
        ("Blend", (x, leaf("y", 3, 7)), (0.5,)),
    ):
        with pytest.raises(ShapeError) as refused:
            own(name, *args, attrs=attrs)
        assert refused.value.got and refused.value.hint


def test_a_term_is_of_its_own_definition() -> None:
    other = operators_of(with_rule("", OPERATORS.replace("sum(k)", "max(k)")).definitions)
    x, w = leaf("x", 2, 7), leaf("w", 4, 7)
    one, two = own("RowProduct", x, w), Op("RowProduct", (x, w), (), "", other["RowProduct"])
    assert one != two and str(one) == str(two)
    again = pickle.loads(pickle.dumps(one))
    assert again == one and again.row.expand is not None
    # Also of what it is defined by: Twice says Blend.
    changed = operators_of(with_rule("", OPERATORS.replace("(Sub b a)", "(Sub a b)")).definitions)
    assert own("Twice", x) != Op("Twice", (x,), (), "", changed["Twice"])
    assert own("Side", x, x, attrs=(0,)) == Op("Side", (x, x), (0,), "", changed["Side"])


REFUSED = {
    "by itself": "(define (Odd x (n i64)) (Relu (Odd x n)) OWN)",
    "by one that has none": "(constructor Even (Tensor) Tensor)\n"
    "(define (Odd x (n i64)) (Even x) OWN)",
    "by a scope": '(define (Odd x) (Scope (vec-empty) (vec-empty) "sum" (Num 1.0)) OWN)',
    "for some arguments": "(constructor Odd (Tensor) Tensor)\n(define (Odd (Relu x)) x OWN)",
    "for equal arguments": "(define (Pair x x) x OWN)",
    "by its own dtype": "(define (Odd x) (Full (vec-empty) 1.0 d) :when ((= d (dtype e))) OWN)",
    "by the engine's arithmetic": "(define (Odd x (n i64)) (Full (vec-of (log2 n)) 1.0 "
    '"float32") OWN)',
    "an attribute before a tensor": "(define (Odd (n i64) x) x OWN)",
    "of scalars": "(define (Odd x (s Scalar)) x OWN)",
    "declared with a scalar": "(constructor Odd (Tensor Scalar) Tensor)\n(define (Odd x s) x OWN)",
    "by a rule": "(constructor Odd (Tensor) Tensor)\n;; (status: definition)\n"
    "(rewrite (Odd x) x END)",
    "one side": "(define (Odd x))",
    "no operator": "(define () x)",
    "no arguments": "(define Odd x)",
    "a number for a name": "(define (Odd x 1) x OWN)",
    "another number of arguments": "(define (Relu x y) x OWN)",
    "another sort": "(define (Softmax x (a Ints)) x OWN)",
    "the operator's own name": "(define (Odd e) e OWN)",
    "tensors of a term": "(define (Odd x) x :tensors (vec-of x) OWN)",
    "an option that there isn't": "(define (Odd x) x :where ((= 1 1)) OWN)",
    "facts without parentheses": "(define (Odd x) x :when 1 OWN)",
    "a name that there is": "(define (Odd x) x :ruleset own :name \"relu-definition\")",
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("rule", REFUSED)
def test_a_definition_that_cannot_be_computed_is_refused(rule: str) -> None:
    with pytest.raises(RuleError) as refused:
        with_rule(REFUSED[rule].replace("OWN", ":ruleset own"))
    error = refused.value
    assert (error.file, error.line > 0) == ("own.egg", True) and error.hint and error.got


def test_an_operator_is_defined_where_it_is_declared(tmp_path: Path) -> None:
    one, two = tmp_path / "one.egg", tmp_path / "two.egg"
    one.write_text(HEAD + "(constructor Odd (Tensor) Tensor)\n")
    two.write_text(
        ";; two.egg -- a\n;; Numerics   real\n;; Status     definition\n"
        '(define (Odd x) (Relu x))'
    )
    with pytest.raises(RuleError) as refused:
        load_rules([*DEFAULT_FILES, one, two])
    assert refused.value.file == str(two) and refused.value.line == 4


def test_an_operator_without_a_definition(tmp_path: Path) -> None:
    path = tmp_path / "odd.egg"
    path.write_text(
        HEAD.replace("own.egg", "odd.egg") + "(constructor Odd (Tensor i64) Tensor)\n"
        ';; relu(x) = odd(x, 3)\n(rewrite (Relu x) (Odd x 3) :ruleset own :name "relu-is-odd")\n'
    )
    rules, names = load_for_check([path])
    (found,) = check_rules(rules, names)
    assert found.error is not None and found.error.kind == "vacuous"
    assert found.error.line == 9 and "(Odd a b)" in found.error.hint
    finding = next(f for f in lint([*DEFAULT_FILES, path]) if "Odd" in f.what)
    assert finding.line == 7 and "(Odd a b)" in finding.hint
    with pytest.raises(UnsupportedOperatorError) as refused:
        Op("Odd", (leaf("x", 2),), (3,), "", operators_of(rules.definitions)["Odd"])
    assert refused.value.where == f"{path}:7" and "(Odd a b)" in refused.value.hint


# ---- how rules over it are checked -------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", [r.name for r in RULES.rules if r.kind != "analysis"
                                  and r.file == "own.egg"])  # fmt: skip
def test_definitions_are_sampled_like_our_own(name: str) -> None:
    (found,) = check_rules(RULES, [name])
    assert found.error is None, found.error
    assert found.accepted >= 40 and found.method == "exact"


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["Blend", "RowProduct", "WindowMax"])
def test_samples_are_of_all_dtypes_ranks_and_extents(name: str) -> None:
    patterns = {"Blend": "(Blend a b t)", "RowProduct": "(RowProduct a b)",
                "WindowMax": "(WindowMax a 11 s)"}  # fmt: skip
    rules = with_rule(f"(rewrite {patterns[name]} a END)")
    template = Template(rules["planted"], rules)
    found: list[Op] = []
    for seed in range(1200):
        try:
            sample = sample_of(template, RandomChoices(seed))
        except Rejected:
            continue
        found += [t for t in topological(sample.tensors) if isinstance(t, Op) and t.name == name]
    shapes = [arg.shape for term in found for arg in term.args]
    assert {arg.dtype for term in found for arg in term.args} >= (
        set(DTYPES) - ({"bool"} if name == "Blend" else set())  # bools have no difference
    )
    assert {len(shape) for shape in shapes} >= ({1, 2, 3, 4} if name != "Blend" else {*range(6)})
    extents = {extent for shape in shapes for extent in shape}
    assert extents >= ({11, 12, 13, 22} if name == "WindowMax" else {0, 1, 2, 3, 4, 5, 6, 7, 9, 17})
    assert any(len({*shape}) > 1 for shape in shapes)
    if name == "Blend":
        assert any(a.shape != b.shape for a, b in (term.args for term in found))
        assert len({term.attrs for term in found}) > 5
    if name == "WindowMax":
        assert {term.attrs[1] for term in found} >= {1, 2, 3}


RIGHT = {
    "same": "(rewrite (Blend a a t) a END)",
    "sum": '(rewrite (RowProduct (Add x y) w) (Add (RowProduct x w) (RowProduct y w))\n'
    ' :when ((= (shape x) (shape y)) (= (dtype x) "float32") (= (dtype y) "float32")) END)',
    "function": "(rewrite (WindowMax (Relu x) k s) (Relu (WindowMax x k s)) END)",
    "product": "(rewrite (RowProduct x w) (Matmul x (Permute w (vec-of 1 0)))\n"
    " :when ((>= (vec-length (shape x)) 2) (= (dtype x) (dtype w)) (!= (dtype x) \"bool\")) END)",
    "windows": "(rewrite (WindowMax (WindowMax x k 1) l 1) (WindowMax x (- (+ k l) 1) 1) END)",
    "twice": "(rewrite (Twice x) (Add x x) END)",
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("rule", RIGHT)
def test_a_right_rule_is_tested(rule: str) -> None:
    found = checked(RIGHT[rule])
    assert found.error is None, str(found.error)
    assert found.accepted >= 20 and " samples" in found.known


# ---- whole programs ----------------------------------------------------------------------------

PROGRAM_RULES = """
;; x @ w' = row-product(x, w)
(rewrite (Matmul x (Permute w (vec-of 1 0))) (RowProduct x w)
         :ruleset own :name "row-product-of-matmul")
;; row-product(x + y, w) = row-product(x, w) + row-product(y, w)
(rewrite (RowProduct (Add x y) w) (Add (RowProduct x w) (RowProduct y w))
         :when ((= (shape x) (shape y)) (= (dtype x) "float32"))
         :ruleset own :name "row-product-of-sum")
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(5, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu((x + y) @ self.w.T)


@pytest.mark.rotating
def test_it_takes_part_in_programs_and_proofs(tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text(OPERATORS + PROGRAM_RULES)
    model, inputs = Net().eval(), (torch.randn(3, 4), torch.randn(3, 4))
    made = eqsynth.optimize(
        model, inputs, rules=[path], objective="flops", time_limit_s=600, strict=True
    )
    assert made.report.rules_fired["row-product-of-sum"] and not made.report.law_faults
    torch.testing.assert_close(made(*inputs), model(*inputs))


def test_a_proof_goes_through_it_and_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text(OPERATORS + PROGRAM_RULES)
    rules = load_rules([*DEFAULT_FILES, path])
    # Of ours only the analyses: nothing but the user's operator leads from one side to the other.
    rules = rules.without(
        *(r.name for r in rules.rules if r.file != str(path) and r.kind == "rewrite")
    )
    x, y, w = (eqsynth.input(name, shape) for name, shape in (("x", (3, 4)), ("y", (3, 4)),
                                                              ("w", (5, 4))))  # fmt: skip
    across = eqsynth.ops.permute(w, (1, 0))
    left, right = ((x + y) @ across, x @ across + y @ across)
    sides = [program_of(side)[0].outputs for side in (left, right)]
    laws = [r.name for r in rules.rules if r.file != str(path) and r.kind == "law-request"]
    proof = Proof("proved", meeting=meet(*sides, rules.without(*laws), Limits()))
    assert proof.meeting is not None and proof.meeting.proved
    explanation = proof.explain()
    assert isinstance(explanation, Explanation)
    assert "row_product(" in str(explanation) and "row-product-of-sum" in str(explanation)
    programs = [program.outputs[0] for _, program in explanation.programs()]
    assert len(programs) > 3
    env = sample_all(*programs)
    first = evaluate(programs[0], env)
    assert all(np.allclose(evaluate(term, env), first) for term in programs)
