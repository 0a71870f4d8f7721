"""Matching of transposed convolutions: attributes are derived from indices, and other scopes aren't
matched."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from eqsynth.calculus.define import sides
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.tactics.opening import recounted
from eqsynth.egraph.tactics.phases import phase_select
from eqsynth.egraph.tactics.transposed import match_conv_transpose2d
from eqsynth.frontend.expression import program_of
from eqsynth.ir.index import Index
from eqsynth.ir.indices import rebuilt
from eqsynth.ir.normal import canonical
from eqsynth.ir.notation import instantiate
from eqsynth.ir.scalar import Prod, Read, Scalar, rewrite_leaves
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.testing import assert_egraph_consistent
from tests.egraph.programs import RULES, saturate
from tests.rules.test_einnet import C, F, matmul_and_taps_of_one_phase
from tests.terms import assert_equal, it, leaf, op

Pair = tuple[int, int]

X = leaf("x", 2, 4, 3, 2)


def defined(whole: Op) -> Scope:
    """The definition of the operator as a scope: output i is the sum over taps k and pixels u with
    s*u + d*k = i + p. All other taps read far out of range."""
    by = comprehension(whole, RULES.meanings)
    assert by is not None
    return instantiate(by.text, by.tensors, by.numbers, whole.shape)


def transposed(s: Pair, p: Pair, o: Pair, d: Pair, groups: int, kernel: Pair) -> tuple[Op, Scope]:
    """The operator, and its scope with the taps of one phase."""
    w = leaf("w", 4, 3, *kernel, constant=True)
    whole = op("ConvTranspose2d", X, w, attrs=(s, p, o, d, groups))
    scope = defined(whole)
    phases = phase_select(canonical(scope))
    selected = phases.scope if phases else canonical(scope)
    # Indices as the rules of indices simplify them: (i - 2*k) // 2 = i // 2 - k.
    body = rewrite_leaves(selected.body, simplified)
    return whole, canonical(Scope(selected.traversal, selected.reduction, body))


def simplified(leaf: Scalar) -> Scalar:
    if not isinstance(leaf, Read):
        return leaf
    return replace(leaf, index=tuple(rebuilt(i, lambda affine: affine) for i in leaf.index))


def operators(term: Tensor | None) -> list[Op]:
    found = topological([term]) if term is not None else ()
    return [t for t in found if isinstance(t, Op) and t.name == "ConvTranspose2d"]


def opens_to(found: Tensor, scope: Scope) -> bool:
    """Whether steps of the calculus lead from the definition of the matched term to the scope."""
    meanings = [(own, by) for own in operators(found)
                if (by := comprehension(own, RULES.meanings)) is not None]  # fmt: skip
    return recounted(*sides(found, scope, tuple(meanings))) is not None


CASES = [
    (s, p, o, d, groups, kernel)
    for s, p, o, d, groups, kernel in itertools.product(
        [(2, 2), (2, 1), (3, 2), (4, 6)], [(0, 0), (1, 0)], [(0, 0), (1, 0)], [(1, 1), (2, 3)],
        [1, 2], [(3, 3), (4, 2), (2, 2)],
    )
]  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize(("s", "p", "o", "d", "groups", "kernel"), CASES)
def test_its_attributes_are_those_of_the_equation(
    s: Pair, p: Pair, o: Pair, d: Pair, groups: int, kernel: Pair
) -> None:
    whole, scope = transposed(s, p, o, d, groups, kernel)
    found = match_conv_transpose2d(scope)
    assert found is not None and operators(found) == [whole]
    assert_equal(scope, found)
    assert opens_to(found, scope)


def one_axis(over: Index, at: Index, weights: int, image: int = 3, outputs: int = 6) -> Scope:
    """[i] = sum_{c,q} x[c, over] * w[c, at], where i is the output and q < 2."""
    c = it(1, 3)
    x, w = leaf("x", 3, image), leaf("w", 3, weights, constant=True)
    return canonical(Scope((outputs,), (3, 2), Prod((Read(x, (c, over)), Read(w, (c, at))))))


OUT, TAP = it(0, 6), it(2, 2)


def test_one_axis_is_one_of_two() -> None:
    scope = one_axis((OUT + 1) // 2 - TAP, 2 * TAP + (OUT + 1) % 2, 4)
    found = match_conv_transpose2d(scope)
    assert found is not None
    (whole,) = operators(found)
    assert whole.attrs == ((1, 2), (0, 1), (0, 0), (1, 1), 1)
    assert_equal(scope, found)
    assert opens_to(found, scope)


@pytest.mark.parametrize(
    ("over", "at", "weights", "image"),
    [
        (TAP, OUT - 2 * TAP, 4, 2),  # summed over the pixels, each at the tap that is left
        (TAP, OUT - 2 * TAP + 1, 6, 2),
        (OUT - 2 * TAP, TAP, 2, 6),  # and over the taps
    ],
)
def test_the_output_may_be_an_index_of_one_operand(
    over: Index, at: Index, weights: int, image: int
) -> None:
    scope = one_axis(over, at, weights, image)
    found = match_conv_transpose2d(scope)
    assert operators(found)
    assert_equal(scope, found)
    assert opens_to(found, scope)


@pytest.mark.parametrize(
    ("over", "at", "weights", "attrs"),
    [
        (1 - TAP, 2 * TAP, 3, (2, 2, 0, 1)),  # 2*u + k = 2
        (1 - TAP, 2 * TAP + 1, 4, (2, 3, 1, 1)),  # 2*u + k = 3
        (3 - 3 * TAP, 2 * TAP, 3, (2, 6, 0, 3)),  # 2*u + 3*k = 6
    ],
)  # fmt: skip
def test_one_output_is_summed_over_what_meets_in_it(
    over: Index, at: Index, weights: int, attrs: tuple[int, int, int, int]
) -> None:
    """If the axis has one output, the scope has no iterator for it, only pairs of pixels and taps.
    The attributes are derived from these pairs."""
    scope = one_axis(over, at, weights, image=over.range()[1] + 1, outputs=1)
    found = match_conv_transpose2d(scope)
    assert found is not None
    (whole,) = operators(found)
    stride, padding, more, dilation = attrs
    assert whole.attrs == ((1, stride), (0, padding), (0, more), (1, dilation), 1)
    assert_equal(scope, found)
    assert opens_to(found, scope)
    # One step further, the output would have a third pair, which isn't summed.
    further = one_axis(over + dilation, at, weights + stride, image=9, outputs=1)
    assert not operators(match_conv_transpose2d(further))


def test_both_axes_of_one_element() -> None:
    x = leaf("x", 2, 4, 2, 2)
    w = leaf("w", 4, 3, 3, 3, constant=True)
    whole = op("ConvTranspose2d", x, w, attrs=((2, 2), (2, 2), (0, 0), (1, 1), 1))
    assert whole.shape == (2, 3, 1, 1)
    selected = phase_select(canonical(defined(whole)))
    assert selected is not None and operators(match_conv_transpose2d(selected.scope)) == [whole]


@pytest.mark.parametrize(("far", "matched"), [(99, True), (4, True), (3, False), (-1, False)])
def test_outputs_that_no_pixel_meets_read_nothing(far: int, matched: bool) -> None:
    """With stride 2 and dilation 2, every second output has no tap. The scope is matched only if it
    reads out of range there."""
    scope = one_axis(OUT // 2 - TAP + far * (OUT % 2), TAP, 2)
    found = match_conv_transpose2d(scope)
    assert bool(operators(found)) == matched
    if matched:
        (whole,) = operators(found)
        assert whole.attrs[0][1:] == whole.attrs[3][1:] == (2,)  # type: ignore[index]
        assert found is not None
        assert_equal(scope, found)


def test_more_or_less_than_the_operator_gives() -> None:
    """The output padding is less than the stride. A shorter output is a slice of the operator, a
    longer one isn't matched."""
    for outputs, padding, kinds in ((7, 1, set()), (5, 0, {"Slice"})):
        i = it(0, outputs)
        scope = one_axis((i + 1) // 2 - TAP, 2 * TAP + (i + 1) % 2, 4, outputs=outputs)
        found = match_conv_transpose2d(scope)
        (whole,) = operators(found)
        assert whole.attrs[2] == (0, padding) and found is not None
        assert {t.name for t in topological([found]) if isinstance(t, Op)} >= kinds
        assert_equal(scope, found)
    i = it(0, 8)
    assert match_conv_transpose2d(
        one_axis((i + 1) // 2 - TAP, 2 * TAP + (i + 1) % 2, 4, outputs=8)
    ) is None  # fmt: skip


@pytest.mark.parametrize(
    ("over", "at", "weights"),
    [
        (OUT // 2 + TAP, 2 * TAP + OUT % 2, 4),
        (OUT // 2 - TAP, 2 * TAP + (OUT + 1) % 2, 4),
        (OUT // 2 - TAP + 1, 2 * TAP + (OUT + 1) % 2, 4),
        (OUT // 2 - TAP - 1, 2 * TAP + OUT % 2, 4),
        (OUT // 2 - 2 * TAP, 2 * TAP + OUT % 2, 4),
        (OUT // 2 - TAP, 2 * TAP + OUT % 2, 6),
        (OUT // 2 - TAP, 2 * TAP + 1 - OUT % 2, 4),
        (OUT // 3 - TAP, 2 * TAP + OUT % 2, 4),
    ],
    ids=[
        "forward", "another phase", "two paddings", "negative padding", "no common phase",
        "taps left out",
        "reversed", "two strides",
    ],
)  # fmt: skip
def test_what_no_equation_holds_for_is_not_matched(over: Index, at: Index, weights: int) -> None:
    found = match_conv_transpose2d(one_axis(over, at, weights))
    assert not operators(found)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("s", "p", "d", "kernel", "size"),
    [
        ((2, 2), (0, 1), (2, 2), (3, 3), 3),  # every second output is empty
        ((4, 2), (1, 0), (2, 1), (3, 2), 3),
        ((2, 2), (2, 2), (1, 1), (3, 3), 2),  # one output
    ],
)  # fmt: skip
def test_what_it_means_is_turned_into_it(
    s: Pair, p: Pair, d: Pair, kernel: Pair, size: int
) -> None:
    x, w = leaf("x", 1, 2, size, size), leaf("w", 2, 3, *kernel, constant=True)
    whole = op("ConvTranspose2d", x, w, attrs=(s, p, (0, 0), d, 1))
    graph = saturate(defined(whole))
    found = [m for members in graph.classes.values() for m in members if isinstance(m, Op)]
    assert whole.attrs in [m.attrs for m in found if m.name == "ConvTranspose2d"]
    assert_egraph_consistent(graph)


@pytest.mark.rotating
def test_it_is_found_without_knowing_it() -> None:
    """Saturating EinNet's form (a product, then a sum over the taps of a phase) finds the
    operator."""
    graph = saturate(program_of(matmul_and_taps_of_one_phase())[0].outputs[0])
    found = [
        member
        for members in graph.classes.values()
        for member in members
        if isinstance(member, Op) and member.name == "ConvTranspose2d"
    ]
    assert [(m.args[0].shape, m.args[1].shape, m.attrs) for m in found] == [
        ((1, C, 3, 3), (C, F, 4, 4), ((2, 2), (1, 1), (0, 0), (1, 1), 1))
    ]
