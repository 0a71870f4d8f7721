"""Expanded forms: of random scopes equal to them, and what each step makes of an example."""

from __future__ import annotations

import pytest

from eqsynth.egraph.tactics.expansion import MAX_PIECES, expanded
from eqsynth.ir.data import FLOATS
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical_term
from eqsynth.ir.polynomial import collect, expand
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, product, total
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.expansion_samples import EXPANSIONS
from eqsynth.testing.judging import Meaningless, Sides
from eqsynth.testing.world import World
from tests.terms import INF, it, leaf


def map_of(tensor: Tensor) -> Scope | None:
    return tensor if isinstance(tensor, Scope) and not tensor.reduction else None


@pytest.mark.rotating
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("family", EXPANSIONS)
def test_random_scopes_are_equal_to_their_forms(family: object, cancels: bool) -> None:
    judged, numerics = 0, "proof-cancels" if cancels else "proof"
    for seed in range(120):
        choices = RandomChoices(seed)
        extents = tuple(choices.pick((1, 2, 3, 2, 4)) for _ in range(3))
        try:
            scope = canonical_term(family(World(choices, "float32", extents)))  # type: ignore[operator]
        except Rejected:
            continue
        form = expanded(scope, map_of, cancels)
        if form is None:
            continue
        sides = Sides(scope, form, seed)
        for kind in list(FLOATS)[seed % 4 :: 4]:
            try:
                assert sides.verdict(kind, numerics) is None, (seed, str(scope), str(form))
                judged += 1
            except Meaningless:
                continue
    assert judged > 100


X, Y, Z = (Read(leaf(name, 4), (it(0, 4),)) for name in "xyz")


def same(left: Scalar, right: Scalar, cancels: bool = False) -> bool:
    return collect(expand(left, cancels)) == collect(expand(right, cancels))


def call(fn: str, *args: Scalar) -> Scalar:
    return Call(fn, args)


NEGATIVE = product([Num(-1), X])
DIFFERENCE = total([X, product([Num(-1), Y])])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (product([Num(-1), DIFFERENCE]), total([Y, NEGATIVE])),
        (total([X, Y, NEGATIVE]), Y),
        (Prod((total([X, Y]),) * 2), total([Prod((X, X)), Prod((Num(2), X, Y)), Prod((Y, Y))])),
        (call("div", call("exp", X), call("exp", Y)), call("exp", DIFFERENCE)),
        (
            call("log", call("div", call("exp", X), Y)),
            total([X, product([Num(-1), call("log", Y)])]),
        ),
        (call("max", total([X, Z]), total([Y, Z])), total([call("max", Y, X), Z])),
        (call("relu", NEGATIVE), total([call("relu", X), NEGATIVE])),
        (call("where", call("gt", X, Num(0)), X, Num(0)), call("relu", X)),
        (call("reciprocal", total([Num(1), call("exp", NEGATIVE)])), call("sigmoid", X)),
        (call("tanh", NEGATIVE), product([Num(-1), call("tanh", X)])),
        (Prod((call("sqrt", X), call("sqrt", X))), X),
    ],
)  # fmt: skip
def test_bodies_that_are_one_polynomial(left: Scalar, right: Scalar) -> None:
    assert same(left, right)


def test_what_loses_digits_is_apart() -> None:
    square = Prod((DIFFERENCE, DIFFERENCE))
    opened = total([Prod((X, X)), Prod((Num(-2), X, Y)), Prod((Y, Y))])
    assert not same(square, opened) and same(square, opened, cancels=True)
    turned = total([Num(1), product([Num(-1), call("sigmoid", X)])])
    assert not same(call("sigmoid", NEGATIVE), turned)
    assert same(call("sigmoid", NEGATIVE), turned, cancels=True)
    # One difference alone is no less exact than its operands.
    assert same(Prod((X, DIFFERENCE)), total([Prod((X, X)), Prod((Num(-1), X, Y))]))


def test_a_concatenation_is_its_pieces_and_neighbours_of_one_body_are_one() -> None:
    i = it(0, 6)
    x, y = leaf("x", 4), leaf("y", 2)
    both = Scope((6,), (), call("exp", total([Read(x, (i,)), Read(y, (i - 4,))])))
    first = Scope((4,), (), call("exp", Read(x, (it(0, 4),))))
    second = Scope((2,), (), call("exp", Read(y, (it(0, 2),))))
    assert expanded(both, map_of) == Op("Concat", (first, second), (0,))

    rows = [Read(leaf("z", 2, 3), (Index(n), it(1, 3))) for n in (0, 1)]
    parts = [canonical_term(Scope((1, 3), (), row)) for row in rows]
    cat = [Read(part, (it(0, 2) - n, it(1, 3))) for n, part in enumerate(parts)]
    whole = expanded(Scope((2, 3), (), total(list(cat))), map_of)
    assert whole == Scope((2, 3), (), Read(leaf("z", 2, 3), (it(0, 2), it(1, 3))))


def test_sums_are_taken_forward_and_what_does_not_depend_stands_outside() -> None:
    i, k = it(0, 2), it(1, 3)
    x, w, c = leaf("x", 2, 3), leaf("w", 3), leaf("c", 2)
    back = It(1, 3).extent - 1 - k
    scope = Scope((2,), (3,), Prod((Read(x, (i, back)), Read(w, (back,)), Read(c, (i,)))))
    forward = Scope((2,), (3,), Prod((Read(w, (k,)), Read(x, (i, k)))))
    form = expanded(scope, map_of)
    assert isinstance(form, Scope) and not form.reduction
    assert {r for r in (t for t in form.body.factors)} == {  # type: ignore[attr-defined]
        Read(c, (i,)), Read(canonical_term(forward), (i,)),
    }  # fmt: skip


def test_what_is_left_as_it_is() -> None:
    i = it(0, 40)
    far = total([Read(leaf(f"p{n}", 2), (i - 2 * n,)) for n in range(20)])
    assert len(far.terms) > MAX_PIECES and expanded(Scope((40,), (), far), map_of) is None  # type: ignore[attr-defined]
    masked = Sum((X, Num(-INF)))
    assert expanded(Scope((4,), (), masked), map_of) is None
    integers = Read(leaf("n", 4, dtype="int64"), (it(0, 4),))
    assert expanded(Scope((4,), (), total([integers, integers])), map_of) is None
