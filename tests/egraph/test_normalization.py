"""Normalizations as scopes: which operators move through a LayerNorm, which don't, and which
kernels compute it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.proving import meet
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.errors import EquivalenceError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op, Scope
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.testing import UnsoundRule, assert_egraph_consistent, assert_rule_sound
from eqsynth.testing.search import estimated_plan
from tests.egraph.programs import RULES, saturate
from tests.terms import leaf, op

LIMITS = Limits(deadline_s=3600.0)
X = eqsynth.input("x", (2, 3, 8))
W, B = eqsynth.weight("w", (8, 4)), eqsynth.weight("b", (4,))
G, H = eqsynth.weight("g", (8,)), eqsynth.weight("h", (8,))
NORM = ops.layer_norm(X, (8,), G, H)


def proved(left: Expr, right: Expr) -> bool:
    sides = [program_of(side)[0].outputs for side in (left, right)]
    return meet(sides[0], sides[1], RULES.select(), LIMITS).proved


def variance(x: Expr) -> Expr:
    """The variance computed in the dtype of x. (``ops.var`` computes in float64.)"""
    centred = x - ops.mean(x, -1, keepdim=True)
    return ops.mean(centred * centred, -1, keepdim=True)


def by_hand(x: Expr, eps: float = 1e-5) -> Expr:
    centred = x - ops.mean(x, -1, keepdim=True)
    return centred / ops.sqrt(variance(x) + eps) * G + H


def test_scale_and_shift_go_into_the_linear_layer_that_follows() -> None:
    folded = ops.layer_norm(X, (8,)) @ (ops.reshape(G, (8, 1)) * W) + (H @ W + B)
    assert proved(NORM @ W + B, folded)


@pytest.mark.parametrize("make", [
    by_hand,
    lambda x: (x - ops.mean(x, 2, keepdim=True)) * G * ops.rsqrt(variance(x) + 1e-5) + H,
])  # fmt: skip
def test_a_normalization_by_hand_is_the_operator(make: Callable[[Expr], Expr]) -> None:
    assert proved(make(X), NORM)


def test_rows_are_normalized_one_by_one() -> None:
    turned = ops.permute(X, (1, 0, 2))
    assert proved(ops.permute(NORM, (1, 0, 2)), ops.layer_norm(turned, (8,), G, H))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (NORM, by_hand(X, 1e-3)),
        (NORM, ops.layer_norm(X * 2.0, (8,), G, H)),  # the eps stays as it is
        (NORM, ops.layer_norm(X, (8,), H, G)),
        (ops.layer_norm(X, (3, 8)), ops.layer_norm(X, (8,))),
        (ops.permute(ops.layer_norm(X, (8,)), (0, 2, 1)),
         ops.layer_norm(ops.permute(X, (0, 2, 1)), (3,))),
    ],
)  # fmt: skip
def test_what_is_another_normalization_is_not_proved(left: Expr, right: Expr) -> None:
    assert not proved(left, right)


def test_a_library_still_normalizes_in_one_pass() -> None:
    terms = program_of(NORM @ W + B)[0].outputs
    graph = saturate_terms(terms, RULES.select(), DEFAULT_PHASES, LIMITS, False)
    steps = [step.member for step in estimated_plan(graph, "time").steps]
    names = [member.name for member in steps if isinstance(member, Op)]
    assert "LayerNorm" in names and not any(isinstance(member, Scope) for member in steps)


ONE_PASS = """;; lossy.egg -- a normalization by the mean of squares.
;;
;; Rulesets   define   one scope an operator; saturates
;; Needs      schema.egg, shape.egg, operators.egg
;; Numerics   real
;; Status     definition

;; LayerNorm by E[x^2] - E[x]^2
(define (LayerNorm x (Full s 1.0 d) (Full s 0.0 d) a eps)
  "(x, eps; a) [*n, *m:a] = (x[*n, *m] - u[*n]) * rsqrt(q[*n] - u[*n] * u[*n] + eps[])
   where u[*n] = mean(*m) x[*n, *m]
   where q[*n] = mean(*m) x[*n, *m] * x[*n, *m]"
  :tensors (vec-of x (Full (vec-empty) eps d)) :name "layer-norm-by-squares")
"""


@pytest.mark.rotating
def test_a_variance_that_loses_digits_is_refused(tmp_path: Path) -> None:
    """A rule with a planted fault: its sides are equal over the reals, but not in float32."""
    path = tmp_path / "lossy.egg"
    path.write_text(ONE_PASS, encoding="utf-8")
    with pytest.raises(UnsoundRule) as caught:
        assert_rule_sound(str(path), "layer-norm-by-squares")
    assert caught.value.kind == "numerics"
    path.write_text(ONE_PASS.replace("Numerics   real", "Numerics   cancels"), encoding="utf-8")
    assert all(rule.accepted for rule in assert_rule_sound(str(path), "layer-norm-by-squares"))


# ---- what the check of a whole e-graph calls a difference ---------------------------------------

TINY = """;; tiny.egg -- a rule that adds {amount} of a value.
;;
;; Rulesets   simplify   none of it is true
;; Needs      schema.egg, shape.egg
;; Numerics   real
;; Status     validated

;; relu(x) = relu(x) + {amount} * relu(x), wrong
(rule ((= e (Relu x)) (= d (dtype x)))
      ((union e (Mul (Relu x) (Full (vec-of 1) {factor} d))))
      :ruleset simplify :name "tiny")
"""


@pytest.mark.rotating
def test_rows_that_sum_up_to_nothing_are_one_value() -> None:
    """The sum of a normalized row is 0 except for rounding, which makes no member unequal."""
    norm = ops.layer_norm(X, (8,))
    graph = saturate(program_of(ops.sum(norm @ ops.full((8, 4), 1.0), -1))[0].outputs[0])
    assert assert_egraph_consistent(graph).members


def test_a_small_difference_is_none_of_rounding(tmp_path: Path) -> None:
    path = tmp_path / "tiny.egg"
    path.write_text(TINY.format(amount="1e-5", factor=1.00001), encoding="utf-8")
    graph = saturate(op("Relu", leaf("x", 3)), load_rules([*DEFAULT_FILES, path]))
    with pytest.raises(EquivalenceError):
        assert_egraph_consistent(graph)
