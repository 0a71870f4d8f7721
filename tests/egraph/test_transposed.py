"""Matching of transposed convolutions: attributes from indices, and what is none."""

from __future__ import annotations

import itertools

import pytest

from eqsynth.egraph.laws.notation import instantiate
from eqsynth.egraph.laws.phases import phase_select
from eqsynth.egraph.laws.transposed import match_conv_transpose2d
from eqsynth.frontend.expression import program_of
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from tests.egraph.programs import saturate
from tests.rules.test_einnet import C, F, matmul_and_taps_of_one_phase
from tests.terms import assert_equal, it, leaf, op

Pair = tuple[int, int]

# Output i sums taps k at pixels u with s*u + d*k = i + p; all other taps read far outside. Filter f
# is one of m, of the group f // m.
TRANSPOSED = (
    "(x, w; s, t, p, q, d, h, m, e, c) [n, f, i, j] = sum(c, k, l) x[n, f // m * e + c,"
    " (i + p - d*k) // s + (i + p - d*k) % s * 99, (j + q - h*l) // t + (j + q - h*l) % t * 99]"
    " * w[f // m * e + c, f % m, k, l]"
)
X = leaf("x", 2, 4, 3, 2)


def transposed(s: Pair, p: Pair, o: Pair, d: Pair, groups: int, kernel: Pair) -> tuple[Op, Scope]:
    """The operator, and its taps of one phase."""
    w = leaf("w", 4, 3, *kernel, constant=True)
    whole = op("ConvTranspose2d", X, w, attrs=(s, p, o, d, groups))
    channels = 4 // groups
    scope = instantiate(TRANSPOSED, (X, w), (*s, *p, *d, 3, channels, channels), whole.shape)
    assert isinstance(scope, Scope)
    selected = phase_select(canonical(scope))
    assert selected is not None
    return whole, selected


def operators(term: Tensor | None) -> list[Op]:
    found = topological([term]) if term is not None else ()
    return [t for t in found if isinstance(t, Op) and t.name == "ConvTranspose2d"]


CASES = [
    (s, p, o, d, groups, kernel)
    for s, p, o, d, groups, kernel in itertools.product(
        [(2, 2), (2, 1), (3, 2)], [(0, 0), (1, 0)], [(0, 0), (1, 0)], [(1, 1), (2, 3)], [1, 2],
        [(3, 3), (4, 2), (2, 2)],
    )
    if not (s[0] == d[0] and d[0] > 1)
]  # fmt: skip


@pytest.mark.parametrize(("s", "p", "o", "d", "groups", "kernel"), CASES)
def test_its_attributes_are_those_of_the_equation(
    s: Pair, p: Pair, o: Pair, d: Pair, groups: int, kernel: Pair
) -> None:
    whole, scope = transposed(s, p, o, d, groups, kernel)
    found = match_conv_transpose2d(scope)
    assert found is not None and operators(found) == [whole]
    assert_equal(scope, found)


def one_axis(over: Index, at: Index, weights: int, image: int = 3, outputs: int = 6) -> Scope:
    """[i] = sum_{c,q} x[c, over] * w[c, at], i the output and q the second reduction, of two."""
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


def test_more_or_less_than_the_operator_gives() -> None:
    """An output padding of less than a stride; what is less is a slice, what is more isn't it."""
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


def test_it_is_found_without_knowing_it() -> None:
    """In the e-graph of EinNet's product and sum over the taps of a phase."""
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
