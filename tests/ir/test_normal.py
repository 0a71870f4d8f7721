"""The canonical form: one for equal scopes, kept values, and nothing left to do the second time."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.ir.functions import COMMUTATIVE
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical, canonical_order, canonical_term, forget
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    rebuild,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.tensor import Scope
from eqsynth.testing.strategies import bodies, nested_scopes, products, scopes
from tests.terms import assert_equal, it, leaf, op, times

A, B = leaf("a", 3, 3), leaf("b", 3, 3)


def shuffled(scope: Scope, draw: Any) -> Scope:
    """The scope with its reduction in another order, and its operands too."""
    width, n = len(scope.traversal), len(scope.reduction)
    order = draw(st.permutations(range(n)))
    place = {width + old: width + new for new, old in enumerate(order)}

    def rename(i: It) -> Index:
        return Index(0, ((It(place.get(i.slot, i.slot), i.extent), 1),))

    def turn(scalar: Scalar) -> Scalar:
        parts = [turn(part) for part in children(scalar)]
        commutes = isinstance(scalar, Prod | Sum) or (
            isinstance(scalar, Call) and scalar.fn in COMMUTATIVE
        )
        return rebuild(scalar, draw(st.permutations(parts)) if commutes else parts)

    reduction = tuple(scope.reduction[old] for old in order)
    return Scope(scope.traversal, reduction, turn(substitute(scope.body, rename)), scope.reducer)


@pytest.mark.rotating
@settings(max_examples=times(3))
@given(scopes())
def test_it_keeps_type_and_value(scope: Scope) -> None:
    assert_equal(scope, canonical(scope))


@pytest.mark.rotating
@settings(max_examples=times(3))
@given(scopes())
def test_it_is_idempotent(scope: Scope) -> None:
    form = canonical(scope)
    forget()  # that a form has itself as its form is remembered with it
    assert canonical(form) == form


@pytest.mark.rotating
@settings(max_examples=times(3))
@given(st.data(), st.one_of(scopes(), products(factors=(2, 4), reduction=(2, 3))))
def test_it_forgets_the_order_of_reductions_and_operands(data: st.DataObject, scope: Scope) -> None:
    assert canonical(shuffled(scope, data.draw)) == canonical(scope)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_iterators_that_nothing_distinguishes_have_one_form(order: tuple[int, ...]) -> None:
    """A triangle a[k,l] a[l,m] a[m,k]: every renaming of a cycle reads the same."""

    def triangle(k: int, m: int, n: int) -> Scope:
        pairs = ((k, m), (m, n), (n, k))
        body = Prod(tuple(Read(A, (it(p, 3), it(q, 3))) for p, q in pairs))
        return Scope((), (3, 3, 3), body)

    assert canonical(triangle(*order)) == canonical(triangle(0, 1, 2))


def test_different_scopes_keep_different_forms() -> None:
    i, j, k = it(0, 3), it(1, 3), it(2, 3)
    straight = Scope((3, 3), (3,), Prod((Read(A, (i, k)), Read(B, (k, j)))))
    turned = Scope((3, 3), (3,), Prod((Read(A, (i, k)), Read(B, (j, k)))))
    swapped = Scope((3, 3), (3,), Prod((Read(A, (j, k)), Read(B, (k, i)))))
    assert len({canonical(s) for s in (straight, turned, swapped)}) == 3
    division = [Scope((3,), (), Call("div", pair)) for pair in _pairs()]
    assert canonical(division[0]) != canonical(division[1])


def _pairs() -> list[tuple[Scalar, Scalar]]:
    x, y = (Read(t, (it(0, 3), Index(0))) for t in (A, B))
    return [(x, y), (y, x)]


def test_what_is_idle_goes() -> None:
    x = leaf("x", 2, 1)
    scope = Scope((2,), (1, 5), Read(x, (it(0, 2), Index(0, ((It(1, 1), 1),))), fill=3.0))
    assert canonical(scope) == Scope((2,), (), Prod((Num(5), Read(x, (it(0, 2), Index(0))))))


@pytest.mark.parametrize(("reducer", "left"), [("max", ()), ("min", ()), ("prod", (5,))])
def test_an_idle_reduction_matters_to_a_product_only(reducer: str, left: tuple[int, ...]) -> None:
    scope = Scope((2,), (5,), Read(leaf("x", 2), (it(0, 2),)), reducer)
    assert canonical(scope).reduction == left
    assert_equal(scope, canonical(scope))


def test_an_empty_reduction_stays() -> None:
    """A sum over nothing is zero; it isn't its body."""
    scope = Scope((2,), (0,), Read(leaf("x", 2), (it(0, 2),)))
    assert canonical(scope).reduction == (0,)


def test_counting_bools_stays_counting() -> None:
    """sum over two axes, one of them idle: 4 times a bool is an integer."""
    mask = leaf("m", 3, 2, dtype="bool")
    scope = Scope((3,), (2, 4), Read(mask, (it(0, 3), it(1, 2))))
    assert canonical(scope).type.dtype == "int64"
    assert_equal(scope, canonical(scope))


def test_canonical_term_works_from_the_inside_out() -> None:
    i, k = it(0, 3), it(1, 3)
    inner = Scope((3,), (3,), Prod((Read(B, (k, i)), Read(A, (i, k)))))
    twin = Scope((3,), (3,), Prod((Read(A, (i, k)), Read(B, (k, i)))))
    outer = [op("Relu", Scope((3,), (), Call("exp", (Read(s, (i,)),)))) for s in (inner, twin)]
    assert canonical_term(outer[0]) == canonical_term(outer[1])


@pytest.mark.rotating
@settings(max_examples=times(3))
@given(st.data(), nested_scopes(st.one_of(products(reduction=(1, 2)), scopes())))
def test_a_term_has_one_form_whatever_its_names(
    data: st.DataObject, case: tuple[Scope, Read, Scope]
) -> None:
    """Scopes in scopes, the iterators of each renamed and its operands in another order."""
    outer, _, inner = case
    term = op("Relu", outer)
    twin = shuffled(inner, data.draw)

    def leaf(part: Scalar) -> Scalar:
        same = isinstance(part, Read) and part.tensor == inner
        return Read(twin, part.index, part.fill) if same else part

    body = rewrite_leaves(outer.body, leaf)
    again = Scope(outer.traversal, outer.reduction, body, outer.reducer)
    form = canonical_term(term)
    assert canonical_term(op("Relu", shuffled(again, data.draw))) == form
    assert canonical_term(form) == form
    assert_equal(term, form)


@given(st.data(), st.lists(st.integers(2, 4), min_size=2, max_size=3))
def test_the_order_of_new_axes_depends_on_structure_only(
    data: st.DataObject, extents: list[int]
) -> None:
    """Renaming iterators and reordering them renames and reorders the answer, up to ties."""
    kept = [It(slot, extent) for slot, extent in enumerate(extents)]
    body = data.draw(bodies(kept))
    order = canonical_order(body, kept, [])
    assert sorted(order, key=lambda i: i.slot) == kept
    turned = data.draw(st.permutations(kept))
    again = canonical_order(body, turned, [])
    assert [i.extent for i in again] == [i.extent for i in order]
    assert again == order
