"""One planted fault for each kind of check, and how it is caught.

The first table is of rule files, what ``eqsynth rules check`` is for; the second of e-graphs and
programs. Each fault is one that a person could make: a rule, a header, an extraction. What the
checks let pass stands beside their own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.errors import EqsynthError, EquivalenceError, RuleError, SaturationError
from eqsynth.extract.plan import Plan
from eqsynth.ir.tensor import Input, args_of
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.testing import assert_egraph_consistent, assert_equivalent, assert_search_sound
from eqsynth.testing.rule_files import lint_for_check, load_for_check
from eqsynth.testing.search import estimated_plan
from eqsynth.testing.soundness import check_rule
from tests.terms import leaf, op

FILE = """\
;; planted.egg -- a planted fault.
;;
;; Rulesets   planted   nothing in common; saturates
;; Needs      schema.egg
;; Numerics   {numerics}
;; Status     validated

(ruleset planted)

{mathematics}
{rule}
"""

# check -> (rule; what the header claims of its rounding; what the refusal says besides the check)
RULES: dict[str, tuple[str, str, str]] = {
    "load: an operator that is none": ("(rewrite (Rely x) x {})", "bitwise", "Did you mean Relu?"),
    "load: a name that is taken": (
        '(rewrite (Relu x) x :ruleset planted :name "relu-of-relu")', "bitwise", "relu-of-relu",
    ),
    "lint: no mathematics": ("(rewrite (Neg (Neg (Neg x))) (Neg x) {})", "bitwise", "mathematics"),
    "vacuous: a condition that never holds": (
        "(rewrite (Slice x a b c d) x :when ((< c b)) {})", "bitwise", "(< c b)",
    ),
    "shape: sides of two shapes": (
        "(rewrite (Permute x p) (Reshape x (shape x)) {})", "bitwise", "two values of shape",
    ),
    "shape: a side that is no term": ("(rewrite (Add a b) (Matmul a b) {})", "real", "matmul"),
    "dtype: sides of two dtypes": (
        '(rewrite (Neg (Neg x)) (Cast x "float32") {})', "real", "two dtypes",
    ),
    "value: other real numbers": ("(rewrite (Relu x) x {})", "bitwise", "two values"),
    "value: of scalars": ('(rewrite (Call "abs" v) (Call "relu" v) {})', "bitwise", "two values"),
    "value: of indices, over their ranges": (
        "(rewrite (IDiv (IAdd x y) m) (IAdd (IDiv x m) (IDiv y m)) {})", "bitwise", "indices",
    ),
    "value: a law that is asked the wrong thing": (
        # The average forgets its padding.
        """\
(rule ((= e (AvgPool2d x k s p d)))
      ((definition-request e (vec-of x) (vec-append k s p d)
        "(x; k, l, s, t, p, q, d, g) [n, c, i, j] = mean(k, l) x[n, c, s*i + d*k, t*j + g*l]"))
      {})""", "real", "two values",
    ),
    "value: exactly, where no data shows it": (
        '(rewrite (Neg (Neg x)) (Mul x (Full (shape x) 1.0000000000001 "float32"))\n'
        '         :when ((= (dtype x) "float32")) {})', "bitwise", "polynomials that differ",
    ),
    "value: an approximation beyond its bound": (
        "(rewrite (GeluTanh x) (Gelu x) {})", "approx (1e-9)", "two values",
    ),
    "numerics: other bits": (
        "(rewrite (Add (Add x y) z) (Add x (Add y z)) :when ((= (shape x) (shape z))) {})",
        "bitwise", "not bitwise",
    ),
    "numerics: digits that are lost": (
        "(rewrite (Mul (Sub x y) (Sub x y)) (Add (Sub (Mul x x) (Mul y (Add x x))) (Mul y y))\n"
        "         :when ((= (dtype x) (dtype y))) {})",
        "real", "it cancels",
    ),
}  # fmt: skip


def refusal(path: Path) -> tuple[str, EqsynthError]:
    """What refuses the one rule of a file, in the order in which ``rules check`` looks."""
    try:
        rules, (name,) = load_for_check([path])
    except RuleError as error:
        return "load", error
    findings = lint_for_check([path])
    if findings:
        return "lint", findings[0]
    error = check_rule(rules, rules[name], search_s=0.2).error
    assert error is not None, "the checker accepted a planted fault"
    assert (error.counterexample is None) == (error.kind == "vacuous")
    return error.kind, error


@pytest.mark.rotating
@pytest.mark.parametrize("fault", RULES)
def test_a_fault_in_a_rule_file_is_caught(fault: str, tmp_path: Path) -> None:
    rule, numerics, said = RULES[fault]
    path = tmp_path / "planted.egg"
    kind = fault.partition(":")[0]
    mathematics = "" if kind == "lint" else ";; left = right"
    rule = rule.format('\n         :ruleset planted :name "planted"') if "{}" in rule else rule
    text = FILE.format(numerics=numerics, mathematics=mathematics, rule=rule)
    path.write_text(text, encoding="utf-8")
    caught, error = refusal(path)
    assert caught == kind and said in str(error), error
    assert isinstance(error, RuleError) and error.file == str(path) and error.line >= 10


# ---- e-graphs and programs -----------------------------------------------------------

WRONG = """\
;; Status validated
;; left = right, wrong
(rewrite {} :ruleset simplify :name "wrong")
"""
X, Y = leaf("x", 2, 3), leaf("y", 2, 3)


def wrong_rule(rule: str, directory: Path) -> Path:
    path = directory / "wrong.egg"
    path.write_text(WRONG.format(rule), encoding="utf-8")
    return path


def two_values_in_a_class(directory: Path) -> None:
    path = wrong_rule("(Sub a b) (Sub b a)", directory)
    rules = load_rules([*DEFAULT_FILES, path])
    graph = saturate_terms((op("Sub", X, Y),), rules, DEFAULT_PHASES, Limits(), False)
    assert_egraph_consistent(graph)


def a_small_value_beside_a_sum_that_cancels(_directory: Path) -> None:
    """1e6 - 1e6 = 0, 0.001 - 0 = 0.0011: the rounding of one element excuses no other."""
    a, b = leaf("a", 2, 2), leaf("b", 2, 1)
    graph = saturate_terms((op("Matmul", a, b),), load_rules(DEFAULT_FILES), (), Limits(), False)
    wrong = leaf("wrong", 2, 1)
    (root,) = graph.roots
    members = {**graph.classes, root: (*graph.classes[root], wrong)}
    assert_egraph_consistent(
        replace(graph, classes=members),
        {
            "a": np.array([[1e6, 1e6], [1e-3, 0.0]]),
            "b": np.array([[1.0], [-1.0]]),
            "wrong": np.array([[0.0], [1.1e-3]]),
        },
    )


def two_shapes_in_a_class(directory: Path) -> None:
    path = wrong_rule("(Permute x o) x", directory)
    rules = load_rules([*DEFAULT_FILES, path])
    roots = (op("Permute", X, attrs=((1, 0),)),)
    saturate_terms(roots, rules, DEFAULT_PHASES, Limits(), False)


def another_program_is_extracted(directory: Path) -> None:
    path = wrong_rule("(Sub a b) (Sub b a)", directory)
    rules = load_rules([*DEFAULT_FILES, path])
    assert_search_sound([op("Relu", op("Sub", X, Y))], rules=rules)


def a_dearer_program_is_extracted(directory: Path) -> None:
    """An extraction that likes one loop nest over everything, however much it computes again."""
    chain = op("Matmul", op("Matmul", leaf("a", 2, 9), leaf("b", 9, 2)), leaf("c", 2, 9))
    assert_search_sound([chain])

    def inlining(graph: EGraph, objective: str) -> Plan:
        members = {
            ref: found
            if any(isinstance(member, Input) for member in found)
            else (max(found, key=lambda member: len(args_of(member))),)
            for ref, found in graph.classes.items()
        }
        return estimated_plan(replace(graph, classes=members), objective)

    assert_search_sound([chain], choose=inlining)


def programs_that_differ(directory: Path) -> None:
    """sign(x)^2 = 1, but at zero."""
    one = op("Full", attrs=((2, 3), 1.0, "float32"))
    squared = op("Mul", op("Sign", X), op("Sign", X))
    assert_equivalent(squared, one, {"x": np.ones((2, 3))})
    assert_equivalent(squared, one)


def a_compiled_program_that_differs(directory: Path) -> None:
    """A bias is forgotten, in torch."""
    linear = torch.nn.Linear(3, 2).eval()
    assert_equivalent(lambda x: x @ linear.weight.T, linear, (torch.randn(4, 3),))


SCALE = torch.tensor([1e6, 1.0, 1e-3])[:, None]
TABLE = torch.linspace(-1, 1, 200).reshape(50, 4)


def a_small_row_beside_a_large_one(_directory: Path) -> None:
    wrong = SCALE * torch.tensor([1.0, 1.0, 1.01])[:, None]
    assert_equivalent(lambda x: x * wrong, lambda x: x * SCALE, (torch.randn(3, 4),))


def far_from_zero_only(_directory: Path) -> None:
    """Digits are lost: the variance as the mean of squares less the square of the mean."""

    def other(x: torch.Tensor) -> torch.Tensor:
        near = (x * x).mean(-1) - x.mean(-1) ** 2
        return torch.where(x.mean(-1) > 1e5, near, x.var(-1, correction=0))

    assert_equivalent(other, lambda x: x.var(-1, correction=0), (torch.randn(3, 64),))


def an_index_that_was_not_given(_directory: Path) -> None:
    rows = TABLE.roll(1, 0)
    rows[:3] = TABLE[:3]  # the last row, 49, is what 48 should be
    given = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])
    assert_equivalent(
        lambda n: rows[n], lambda n: torch.nn.functional.embedding(n, TABLE), (given,)
    )


def an_input_in_a_dict_in_a_list(_directory: Path) -> None:
    given = [{"x": torch.zeros(3), "scale": torch.ones(3)}]
    assert_equivalent(lambda d: d[0]["x"], lambda d: d[0]["x"] * d[0]["scale"], (given,))


def a_bool(_directory: Path) -> None:
    given = (torch.randn(3), torch.ones(3, dtype=torch.bool))
    assert_equivalent(lambda x, m: x + 0, lambda x, m: torch.where(m, x, -x), given)


# fault -> (what is run, what catches it)
PROGRAMS: dict[str, tuple[Callable[[Path], None], type[EqsynthError], str]] = {
    "consistency: two values in a class": (two_values_in_a_class, EquivalenceError, ""),
    "consistency: beside a sum that cancels": (
        a_small_value_beside_a_sum_that_cancels, EquivalenceError, "",
    ),
    "analysis: two shapes in a class": (two_shapes_in_a_class, SaturationError, "wrong"),
    "search: another program": (another_program_is_extracted, EquivalenceError, ""),
    "search: a dearer program": (a_dearer_program_is_extracted, EquivalenceError, "costs more"),
    "equivalence: two terms": (programs_that_differ, EquivalenceError, ""),
    "equivalence: two callables": (a_compiled_program_that_differs, EquivalenceError, ""),
    "equivalence: a small row": (a_small_row_beside_a_large_one, EquivalenceError, "output 0[2, "),
    "equivalence: far from zero": (far_from_zero_only, EquivalenceError, "offset 1e6"),
    "equivalence: an index": (an_index_that_was_not_given, EquivalenceError, "output 0"),
    "equivalence: a nested input": (an_input_in_a_dict_in_a_list, EquivalenceError, "random"),
    "equivalence: a bool": (a_bool, EquivalenceError, "output 0"),
}


@pytest.mark.rotating
@pytest.mark.parametrize("fault", PROGRAMS)
def test_a_fault_in_an_e_graph_or_a_program_is_caught(fault: str, tmp_path: Path) -> None:
    run, error, said = PROGRAMS[fault]
    with pytest.raises(error) as caught:
        run(tmp_path)
    assert said in f"{caught.value}{getattr(caught.value, 'rules', '')}"
