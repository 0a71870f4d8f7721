"""Sequences of laws, and the laws of a scope inside of a scope and of indices in least form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.calculus.close import Close
from eqsynth.calculus.define import Define, define
from eqsynth.calculus.deriving import (
    LAWS,
    Inside,
    Least,
    Match,
    Step,
    apply,
    derive,
    hypotheses,
    inside,
    match,
)
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.recount import Count, Recount, recount
from eqsynth.calculus.restrict import Hide, Mask, Reach, Restrict
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum, reads
from eqsynth.ir.scopes import bare
from eqsynth.ir.tensor import Op, Scope, Tensor
from tests.calculus.proposals import assert_one_value
from tests.terms import INF, it, leaf, op

X, W = leaf("x", 3, 4), leaf("w", 4)
H, J = it(0, 3), it(1, 4)
INNER = Scope((3,), (4,), Prod((Read(X, (H, J)), Read(W, (J,)))))
OUTER = Scope((3,), (), Call("relu", (Read(INNER, (it(0, 3),)),)))
PRODUCT = Scope((3, 4), (), Prod((Read(X, (H, J)), Read(W, (J,)))))


def test_a_scope_inside_of_a_scope_is_derived_by_itself() -> None:
    """The sum inside reads a product that is computed before: the outer body reads the new sum."""
    t = leaf("t", 3, 4)
    summed = Scope((3,), (4,), Read(t, (H, J)))
    outer = Scope((3,), (), Call("relu", (Read(summed, (it(0, 3) - 1,), 2.0),)))
    step = Inside(summed, (Inline(Read(t, (H, J)), PRODUCT),))
    answer = inside(outer, step)
    (read,) = reads(answer.body)
    assert read.tensor == canonical(INNER)
    assert (read.index, read.fill) == ((it(0, 3) - 1,), 2.0)
    # It holds if the hypothesis of the step inside does.
    assert list(hypotheses(outer, (step,))) == [(t, PRODUCT)]


def test_every_read_of_the_scope_inside_is_replaced() -> None:
    body = Prod((Read(INNER, (it(0, 3),)), Read(INNER, (it(0, 3) * -1 + 2,))))
    q, r = It(2, 2), It(3, 2)
    count = Count(It(1, 4), bare(q) * 2 + bare(r), (q, r))
    outer = Scope((3,), (), body)
    answer = inside(outer, Inside(INNER, (Recount((count,)),)))
    assert {read.tensor for read in reads(answer.body)} == {recount(INNER, Recount((count,)))}
    assert_one_value(outer, answer)


def test_what_is_derived_inside_has_to_be_read() -> None:
    for inner in (PRODUCT, Scope((3,), (4,), Prod((Read(X, (H, J)), Read(leaf("v", 4), (J,)))))):
        with pytest.raises(LawError) as refused:
            inside(OUTER, Inside(inner, ()))
        assert (refused.value.law, refused.value.condition) == ("inside", "reads")
    with pytest.raises(LawError) as refused:
        inside(OUTER, Inside(INNER, (Define(op("Relu", X)),)))
    assert refused.value.law == "define"


def test_what_is_beside_a_read_stays() -> None:
    others = Num(2), Read(leaf("v", 3), (it(0, 3),))
    outer = Scope((3,), (), Sum((*others, Read(INNER, (it(0, 3),)))))
    assert inside(outer, Inside(INNER, ())).type == outer.type
    assert_one_value(outer, inside(outer, Inside(INNER, ())))


def test_a_definition_is_followed_by_other_laws() -> None:
    sliced = op("Slice", X, attrs=(0, 1, 3, 1))
    assert derive(sliced, (Define(sliced), Least(), Match(sliced))) == sliced


def test_a_scope_that_is_said_to_be_an_operator_is_a_hypothesis() -> None:
    assert list(hypotheses(INNER, (Define(op("Relu", X)),))) == [(INNER, op("Relu", X))]


def test_operators_of_two_rows_are_a_hypothesis_as_a_whole() -> None:
    """Of one row, two operators are equal if their arguments are; not of two rows of one name."""
    other = op("Relu", X)
    assert isinstance(other, Op)
    own = Op("Relu", (X,), defined=replace(other.row, digest=b"another"))
    assert list(hypotheses(own, (Define(other),))) == [(own, other)]
    y = leaf("y", 3, 4)
    assert list(hypotheses(other, (Define(op("Relu", y)),))) == [(X, y)]


def test_operators_of_other_numbers_of_arguments_are_a_hypothesis_as_a_whole() -> None:
    two, three = (op("Concat", *(X,) * n, attrs=(0,)) for n in (2, 3))
    assert isinstance(three, Op)
    assert list(hypotheses(two, (Define(three),))) == [(two, three)]


def test_maxima_masks_and_weights_are_hypotheses() -> None:
    m, s, p, hidden = leaf("m", 3), leaf("s", 3, 4), leaf("p", 3, 4), leaf("mask", 3, 4)
    peak = Scope((3,), (4,), Read(s, (H, J)), "max")
    holds = Scope((3, 4), (), Num(0.0))
    mask = Mask(Read(hidden, (H, J)), holds, -INF)
    guard = Call("where", (Call("eq", (Read(m, (H,)), Num(-INF))), Num(0.0), Num(1.0)))
    assert list(hypotheses(INNER, (Reach(guard, peak, mask),))) == [(m, peak), (hidden, holds)]
    other = Call("relu", (Read(m, (H,)),))  # the law refuses it
    assert list(hypotheses(INNER, (Reach(other, peak, mask),))) == [(hidden, holds)]
    softmax = op("Softmax", s, attrs=(1,))
    assert isinstance(softmax, Op)
    kept = Restrict(Read(p, (H, J)), softmax, 0, PRODUCT, mask, Index(0), 1, 2)
    expected = [(p, softmax), (hidden, holds), (s, PRODUCT)]
    assert list(hypotheses(INNER, (kept,))) == expected
    alone = Restrict(Read(p, (H, J)), None, 0, PRODUCT, mask, Index(0), 1, 2)
    assert list(hypotheses(INNER, (alone,))) == [(p, PRODUCT), (hidden, holds)]
    shown = Hide(PRODUCT, mask, leaf("c", 3, 4, dtype="bool"))
    assert list(hypotheses(softmax, (shown,))) == [(s, PRODUCT), (hidden, holds)]


def test_a_definition_is_the_first_step() -> None:
    """Its hypothesis is about the term as given."""
    sliced = op("Slice", X, attrs=(0, 1, 3, 1))
    assert isinstance(sliced, Op)
    assert isinstance(derive(sliced, (Define(sliced),)), Scope)
    with pytest.raises(LawError) as refused:
        derive(sliced, (Define(sliced), Define(sliced)))
    assert (refused.value.law, refused.value.condition) == ("define", "first")


def test_what_leads_to_no_scope_matches_nothing() -> None:
    sliced = op("Slice", X, attrs=(0, 1, 3, 1))
    scope = define(sliced, Define(sliced))
    with pytest.raises(LawError) as refused:
        match(scope, Match(sliced, (), (Match(sliced),)))
    assert refused.value.condition == "match"


def test_a_law_that_changes_the_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, Least, lambda scope, given: X)
    with pytest.raises(LawError) as refused:
        apply(Scope((3,), (), Read(leaf("other", 3), (it(0, 3),))), Least())
    assert (refused.value.law, refused.value.condition) == ("least", "type")


def test_indices_are_brought_to_their_least_form() -> None:
    k = it(0, 12)
    scope = Scope((12,), (), Read(leaf("v", 12), (k // 4 * 4 + k % 4,)))
    answer = derive(scope, (Least(),))
    assert answer == Scope((12,), (), Read(leaf("v", 12), (k,)))
    assert_one_value(scope, answer)


@pytest.mark.parametrize("step", [Close(()), Least(), Inside(INNER, ())])
@pytest.mark.parametrize("term", [X, op("Relu", X)])
def test_laws_of_scopes_take_no_other_terms(step: Step, term: Tensor) -> None:
    with pytest.raises(LawError) as refused:
        apply(term, step)
    assert refused.value.law == type(step).__name__.lower()
    assert refused.value.condition == "type"


@pytest.mark.parametrize(("condition", "step"), [("match", Match), ("type", Define)])
def test_no_operator_of_another_type_is_taken(condition: str, step: type[Match | Define]) -> None:
    with pytest.raises(LawError) as refused:
        apply(PRODUCT, step(op("Reshape", X, attrs=((4, 3),))))
    assert refused.value.condition == condition


def test_no_steps_lead_to_the_term_in_canonical_form() -> None:
    relu = op("Relu", X)
    assert derive(relu, ()) == relu and isinstance(relu, Op)
    turned = Scope((3,), (4,), Prod((Read(W, (J,)), Read(X, (H, J)))))
    assert derive(turned, ()) == derive(INNER, ())
