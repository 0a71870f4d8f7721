"""Softmaxes in plans: from scores only the maximum of the same scores is subtracted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import Candidate
from eqsynth.extract.one_part import OutOfTime
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Prices
from eqsynth.extract.select import Selection
from eqsynth.extract.steady import loose
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Read, product, total
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor
from tests.extract.egraphs import Given, egraph, kernel, leaf, ref, selection

N, D = 4, 3
ROW, COLUMN, FEATURE = (Index.iterator(slot, extent) for slot, extent in ((0, N), (1, N), (2, D)))

Q, KEYS, SCORES, NEAR, MAXIMA, WEIGHTS, BIAS = (
    ref(0, (N, D)), ref(1, (N, D)), ref(2, (N, N)), ref(3, (N, N)), ref(4, (N,)), ref(5, (N, N)),
    ref(6, (N,)),
)  # fmt: skip


def product_of(x: ClassRef, y: ClassRef) -> Scope:
    """``L_ij sum_k x[i, k] y[j, k]``."""
    return Scope((N, N), (D,), product([Read(x, (ROW, FEATURE)), Read(y, (COLUMN, FEATURE))]))


def largest(scores: ClassRef) -> Scope:
    """``L_i max_k scores[i, k]``."""
    return Scope((N,), (N,), Read(scores, (ROW, COLUMN)), "max")


def exponent(scores: ClassRef, maxima: ClassRef) -> Scope:
    """``L_ij exp(scores[i, j] - maxima[i])``."""
    minus = product([Num(-1), Read(maxima, (ROW,))])
    return Scope((N, N), (), Call("exp", (total([Read(scores, (ROW, COLUMN)), minus]),)))


def plan_of(
    classes: dict[ClassRef, Sequence[Tensor]],
    costs: dict[Tensor, float],
    root: ClassRef,
    original: dict[ClassRef, tuple[Tensor, ...]] | None = None,
) -> Plan:
    found: list[Candidate] = [
        kernel(member, costs.get(member, 1.0))
        for members in classes.values()
        for member in members
        if not isinstance(member, Input)
    ]
    graph: EGraph = replace(egraph(classes, root), original=original or {})
    return selection(graph, *found).best(Given())


def members_of(plan: Plan) -> set[Tensor]:
    return {step.member for step in plan.steps}


INPUTS: dict[ClassRef, Sequence[Tensor]] = {
    Q: [leaf(Input, 0, (N, D))],
    KEYS: [leaf(Input, 1, (N, D))],
}


def test_the_maximum_of_other_scores_is_not_subtracted() -> None:
    """``near`` is the same product in another order, so its maximum is of the same class; it would
    be cheaper."""
    near = Op("Relu", (KEYS,))  # any other value that the second product reads
    other = ref(7, (N, D))
    classes = INPUTS | {
        other: [near],
        SCORES: [product_of(Q, KEYS)],
        NEAR: [product_of(Q, other)],
        MAXIMA: [largest(SCORES), largest(NEAR)],
        WEIGHTS: [exponent(SCORES, MAXIMA)],
    }
    plan = plan_of(classes, {largest(SCORES): 100.0}, WEIGHTS)
    assert largest(SCORES) in members_of(plan) and not loose(plan)
    # Nor if the weights of the other scores are as good, and the cheapest of all.
    classes[WEIGHTS] = [exponent(SCORES, MAXIMA), exponent(NEAR, MAXIMA)]
    plan = plan_of(classes, {largest(SCORES): 100.0}, WEIGHTS)
    assert {largest(NEAR), exponent(NEAR, MAXIMA)} <= members_of(plan)
    assert exponent(SCORES, MAXIMA) not in members_of(plan)


def test_the_cheaper_of_both_kernels_stays() -> None:
    other = ref(7, (N, D))
    classes = INPUTS | {
        other: [Op("Relu", (KEYS,))],
        SCORES: [product_of(Q, KEYS)],
        NEAR: [product_of(Q, other)],
        MAXIMA: [largest(SCORES), largest(NEAR)],
        WEIGHTS: [exponent(SCORES, MAXIMA), exponent(NEAR, MAXIMA)],
    }
    # The maximum of the band and the weights of all scores are the cheapest, but not together.
    costs: dict[Tensor, float] = {largest(SCORES): 10.0, exponent(NEAR, MAXIMA): 30.0}
    assert exponent(SCORES, MAXIMA) in members_of(plan_of(classes, costs, WEIGHTS))
    costs = {largest(SCORES): 30.0, exponent(NEAR, MAXIMA): 10.0}
    assert exponent(NEAR, MAXIMA) in members_of(plan_of(classes, costs, WEIGHTS))


def test_scores_are_followed_through_maps() -> None:
    """Scores plus a bias, and their maximum: the bias stands before the maximum or after it."""
    biased = ref(7, (N, N))
    both = Scope((N, N), (), total([Read(SCORES, (ROW, COLUMN)), Read(BIAS, (ROW,))]))
    raw = ref(8, (N,))
    after = Scope((N,), (), total([Read(raw, (ROW,)), Read(BIAS, (ROW,))]))
    classes = INPUTS | {
        BIAS: [leaf(Input, 2, (N,))],
        SCORES: [product_of(Q, KEYS)],
        biased: [both],
        raw: [largest(SCORES)],
        MAXIMA: [after],
        WEIGHTS: [exponent(biased, MAXIMA)],
    }
    assert not loose(plan_of(classes, {}, WEIGHTS))


def test_a_program_that_subtracts_another_maximum_keeps_its_plan() -> None:
    classes = INPUTS | {
        BIAS: [leaf(Input, 2, (N, N))],
        SCORES: [product_of(Q, KEYS)],
        NEAR: [product_of(Q, Q)],
        MAXIMA: [largest(NEAR)],
        WEIGHTS: [exponent(SCORES, MAXIMA)],
    }
    plan = plan_of(classes, {}, WEIGHTS)
    assert math.isfinite(plan.cost_s) and len(loose(plan)) == 1


def test_what_the_program_itself_subtracts_costs_no_more_than_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Op("Relu", (SCORES,))
    classes: dict[ClassRef, Sequence[Tensor]] = INPUTS | {
        SCORES: [product_of(Q, KEYS)],
        NEAR: [product_of(Q, Q)],
        MAXIMA: [largest(NEAR)],
        WEIGHTS: [exponent(SCORES, MAXIMA), other],
    }
    original = {made: (members[0],) for made, members in classes.items()}
    plan = plan_of(classes, {other: 100.0}, WEIGHTS, original)
    assert exponent(SCORES, MAXIMA) in members_of(plan) and plan.cost_s < 100
    # If there is no time left for the comparison, the plan that was found stays.
    plainly = Selection._plain

    def late(self: Selection, prices: Prices, until: float) -> Plan:
        if self._barred and not prices._barred:
            raise OutOfTime
        return plainly(self, prices, until)

    with monkeypatch.context() as patched:
        patched.setattr(Selection, "_plain", late)
        assert other in members_of(plan_of(classes, {other: 100.0}, WEIGHTS, original))
    # Another way of computing the weights is taken if it is cheaper, too after a member was barred.
    assert other in members_of(plan_of(classes, {}, WEIGHTS, original))
    third = ref(7, (N, N))
    classes |= {third: [product_of(KEYS, KEYS)], MAXIMA: [largest(NEAR), largest(third)]}
    costs: dict[Tensor, float] = {other: 10.0, largest(NEAR): 100.0}
    assert other in members_of(plan_of(classes, costs, WEIGHTS, original))


def test_a_difference_is_followed_to_the_exponent() -> None:
    """``exp(d)`` as an operator of its own, over the difference; a sum with a maximum that no
    steep function takes is no matter (as a residual beside a pooling)."""
    difference = ref(7, (N, N))
    minus = product([Num(-1), Read(MAXIMA, (ROW,))])
    classes = INPUTS | {
        SCORES: [product_of(Q, KEYS)],
        NEAR: [product_of(Q, Q)],
        MAXIMA: [largest(NEAR)],
        difference: [Scope((N, N), (), total([Read(SCORES, (ROW, COLUMN)), minus]))],
        WEIGHTS: [Op("Exp", (difference,))],
    }
    assert len(loose(plan_of(classes, {}, WEIGHTS))) == 1
    classes[WEIGHTS] = [Op("Sigmoid", (difference,))]
    assert not loose(plan_of(classes, {}, WEIGHTS))
