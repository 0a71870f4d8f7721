"""Expanded forms: those of random scopes equal the scopes, and examples for each step."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from eqsynth.errors import LawError
from eqsynth.expansion import lattice
from eqsynth.expansion.expanded import MAX_PIECES, Expand, by_points, expanded
from eqsynth.expansion.polynomial import expand
from eqsynth.expansion.ring import collect
from eqsynth.ir.data import FLOATS
from eqsynth.ir.index import Index, It
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.normal import canonical, canonical_term
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, product, reads, total
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.rules.claim import Claim
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.expansion_samples import EXPANSIONS, compared, padded_extremum
from eqsynth.testing.judging import Meaningless, Sides
from eqsynth.testing.world import World
from tests.terms import INF, it, leaf, op


def map_of(tensor: Tensor) -> Scope | None:
    return tensor if isinstance(tensor, Scope) and not tensor.reduction else None


MAPS = Expand(map_of)
BY_POINTS = Expand(map_of, points=True)


@pytest.mark.rotating
@pytest.mark.parametrize(("cancels", "points"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("family", [*EXPANSIONS, compared])
def test_random_scopes_are_equal_to_their_forms(
    family: object, cancels: bool, points: bool
) -> None:
    judged, claim = 0, Claim("proof-cancels" if cancels else "proof")
    for seed in range(120 if family is not padded_extremum else 360):  # few of these have a form
        choices = RandomChoices(seed)
        extents = tuple(choices.pick((1, 2, 3, 2, 4)) for _ in range(3))
        try:
            scope = canonical_term(family(World(choices, "float32", extents)))  # type: ignore[operator]
        except Rejected:
            continue
        form = expanded(scope, Expand(map_of, cancels, points))
        if form is None:
            continue
        sides = Sides(scope, form, seed)
        for kind in list(FLOATS)[seed % 4 :: 4]:
            try:
                assert sides.verdict(kind, claim) is None, (seed, str(scope), str(form))
                judged += 1
            except Meaningless:
                continue
    # The extremum of a window that reaches over the border has no form point by point.
    assert judged > 100 or (judged == 0 and points and family is padded_extremum)


X, Y, Z = (Read(leaf(name, 4), (it(0, 4),)) for name in "xyz")


def same(left: Scalar, right: Scalar, cancels: bool = False) -> bool:
    return collect(expand(left, cancels)) == collect(expand(right, cancels))


def call(fn: str, *args: Scalar) -> Scalar:
    return Call(fn, args)


POSITIVE = Cast("float32", call("gt", X, Num(0)))
NEGATIVE = product([Num(-1), X])
DIFFERENCE = total([X, product([Num(-1), Y])])
SUM_OF_BOTH = call("reciprocal", total([X, call("reciprocal", X)]))
ABOVE = product([Num(-1), call("abs", X)])
MIDDLE = total([product([Num(0.25), X]), product([Num(0.75), Y])])
EQUAL = Cast("float32", call("eq", Value(it(0, 4)), Value(it(1, 4))))


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
        (call("exp", total([X, product([Num(-1), call("log", Y)])])),
         call("div", call("exp", X), Y)),
        (total([call("where", call("gt", X, Y), X, Z), call("where", call("le", X, Y), X, Z)]),
         total([X, Z])),
        (Prod((POSITIVE, POSITIVE, X)), call("where", call("lt", Num(0), X), X, Num(0))),
        (call("relu", total([Num(1), POSITIVE])), total([Num(1), POSITIVE])),
        (call("relu", Prod((POSITIVE, call("exp", X), Y))),
         Prod((POSITIVE, call("exp", X), call("relu", Y)))),
        (Prod((X, call("relu", X))), Prod((call("relu", X), call("relu", X)))),
        (call("relu", Prod((X, X, X))), Prod((X, X, call("relu", X)))),
        (product([total([Num(1), product([Num(-1), POSITIVE])]), Y]),
         call("where", call("le", X, Num(0)), Y, Num(0))),
        (call("where", call("or", call("gt", X, Y), call("gt", Y, Z)), X, Num(0)),
         call("where", call("and", call("le", X, Y), call("le", Y, Z)), Num(0), X)),
        (total([call("silu", X), product([Num(-1), call("silu", NEGATIVE)])]), X),
        (total([Prod((Y, *[call(fn, X)] * 2)) for fn in ("sin", "cos")]), Y),
        (Prod((call("sign", X), call("abs", X))), X),
        (call("sign", product([Num(3), X])), call("sign", X)),
        (call("abs", Prod((X, Y, Z))), Prod((call("abs", X), call("abs", Y), call("abs", Z)))),
        (call("relu", Prod((NEGATIVE, Y))), call("relu", product([Num(-1), X, Y]))),
        (call("reciprocal", total([call("exp", X), call("exp", Y)])),
         Prod((call("sigmoid", DIFFERENCE), call("exp", NEGATIVE)))),
        (call("log", total([Num(1), call("exp", NEGATIVE)])),
         total([NEGATIVE, call("log", total([Num(1), call("exp", X)]))])),
        (total([call("relu", X), call("log", total([Num(1), call("exp", ABOVE)]))]),
         call("log", total([Num(1), call("exp", X)]))),
        (Prod((Cast("int64", call("gt", X, Num(0))), X)), call("relu", X)),
        (Prod((call("gt", X, Num(0)), X)), call("relu", X)),
        (call("sigmoid", total([X, NEGATIVE])), Num(0.5)),
        (call("min", total([call("exp", X), Num(-1)]), Num(0)),
         total([call("exp", call("min", X, Num(0))), Num(-1)])),
        (product([Num(2), call("max", call("exp", X), call("exp", Y))]),
         product([Num(2), call("exp", call("max", X, Y))])),
        (total([Prod((Z, call(fn, X, Y))) for fn in ("max", "min")]), Prod((Z, total([X, Y])))),
        (total([call("max", X, Y), product([Num(-1), call("min", X, Y)])]),
         call("abs", DIFFERENCE)),
        (Prod((Y, call("sin", X), call("cos", X))),
         product([Num(0.5), Y, call("sin", product([Num(2), X]))])),
        (call("div", call("tanh", X), total([Num(1), Prod((call("tanh", X),) * 2)])),
         product([Num(0.5), call("tanh", product([Num(2), X]))])),
        # What lies between two values is neither the largest nor the smallest.
        (call("relu", total([X, call("relu", X)])), product([Num(2), call("relu", X)])),
        (call("max", call("max", X, Y), MIDDLE), call("max", X, Y)),
        (call("min", call("min", X, Y), total([MIDDLE, EQUAL])), call("min", X, Y)),
        (call("max", call("max", X, Y), total([MIDDLE, product([Num(-1), EQUAL])])),
         call("max", X, Y)),
        # Common factors, and sums that are never negative, move out of a ReLU.
        (call("relu", total([X, Prod((EQUAL, X))])),
         Prod((call("relu", X), total([Num(1), EQUAL])))),
        (call("relu", total([EQUAL, Prod((EQUAL, X))])),
         Prod((EQUAL, call("relu", total([Num(1), X]))))),
        (call("relu", total([NEGATIVE, Prod((EQUAL, X))])),
         Prod((total([Num(1), product([Num(-1), EQUAL])]), call("relu", NEGATIVE)))),
        (call("relu", total([Num(1), product([Num(-1), EQUAL])])),
         total([Num(1), product([Num(-1), EQUAL])])),
        (call("relu", total([Prod((X, X, Y)), Prod((X, X, Z))])),
         Prod((X, X, call("relu", total([Y, Z]))))),
        # Equal indices, however they are written.
        (EQUAL, Cast("float32", call("eq", Value(it(1, 4) - it(0, 4)), Num(0)))),
        (Cast("float32", call("eq", Value(it(0, 4) + 1), Value(it(1, 4)))),
         Cast("float32", call("eq", Num(1), Value(it(1, 4) - it(0, 4))))),
    ],
)  # fmt: skip
def test_bodies_that_are_one_polynomial(left: Scalar, right: Scalar) -> None:
    assert same(left, right)


def test_what_is_alike_is_another_polynomial() -> None:
    one, exp_x, exp_y = Num(1), call("exp", X), call("exp", Y)
    square = Prod((call("sin", X), call("sin", X)))
    for left, right in (
        (total([call("silu", X), call("silu", NEGATIVE)]), X),
        (total([square, Prod((call("cos", Y), call("cos", Y)))]), one),
        (total([square, product([Num(-1), call("cos", X), call("cos", X)])]), one),
        (call("abs", Prod((X, Y))), Prod((call("abs", X), Y))),
        (call("relu", Prod((X, Y))), Prod((call("relu", X), call("relu", Y)))),
        (Prod((call("sign", X), call("abs", X))), call("abs", X)),
        (call("reciprocal", total([exp_x, exp_y])),
         Prod((call("sigmoid", DIFFERENCE), call("exp", product([Num(-1), Y]))))),
        (call("reciprocal", total([exp_x, Prod((Num(2), exp_y))])),
         Prod((call("sigmoid", DIFFERENCE), call("exp", NEGATIVE)))),
        (SUM_OF_BOTH, Prod((Num(0.5), X))),
        (SUM_OF_BOTH, call("div", Num(0.5), X)),
        (call("log", total([one, call("exp", ABOVE)])), call("log", total([one, exp_x]))),
        (call("max", exp_x, product([Num(2), exp_y])), call("exp", call("max", X, Y))),
        (call("min", exp_x, exp_y), call("exp", call("max", X, Y))),
        (total([call("max", X, Y), call("min", X, Z)]), total([X, Y])),
        (total([Prod((Num(2), call("max", X, Y))), call("min", X, Y)]), total([X, Y])),
        (total([call("max", X, Y), product([Num(-1), call("min", X, Y)])]), DIFFERENCE),
        (Prod((call("sin", X), call("cos", Y))), call("sin", total([X, Y]))),
        (call("div", call("tanh", X), total([one, Prod((call("tanh", Y),) * 2)])),
         product([Num(0.5), call("tanh", product([Num(2), X]))])),
        (call("max", call("min", X, Y), Z),
         total([Z, call("relu", total([X, product([Num(-1), Z])])),
                product([Num(-1), call("relu", DIFFERENCE)])])),
        (call("max", call("max", X, Y), product([Num(2), MIDDLE])), call("max", X, Y)),
        (call("min", call("min", X, Y), total([MIDDLE, product([Num(-1), EQUAL])])),
         call("min", X, Y)),
        (call("max", call("min", X, Y), MIDDLE), call("min", X, Y)),
        (call("max", call("max", X, Y), total([MIDDLE, EQUAL])), call("max", X, Y)),
        (call("relu", total([X, Prod((EQUAL, Y))])),
         total([call("relu", X), Prod((EQUAL, call("relu", Y)))])),
        (call("relu", total([X, product([Num(-2), EQUAL, X])])),
         Prod((call("relu", X), total([one, product([Num(-2), EQUAL])])))),
        (call("relu", total([EQUAL, Num(-1)])), total([EQUAL, Num(-1)])),
        (EQUAL, Cast("float32", call("eq", Value(it(0, 4) + 1), Value(it(1, 4))))),
        (call("max", call("min", X, one), Num(-1)),
         total([call("relu", X), product([Num(-1), call("relu", total([X, Num(-1)]))])])),
    ):  # fmt: skip
        assert not same(left, right) and not same(left, right, cancels=True)


def test_what_lies_beyond_two_values_is_the_largest_somewhere() -> None:
    """Of ``x``, ``y`` and ``2*x - y`` only ``x`` lies between the others, in whichever order they
    are compared."""
    beyond = total([X, DIFFERENCE])
    for fn in ("max", "min"):
        ways = [call(fn, one, call(fn, *more)) for one, *more in permutations((X, Y, beyond))]
        assert all(same(way, call(fn, Y, beyond)) for way in ways)
        assert not any(same(way, call(fn, X, other)) for way in ways for other in (Y, beyond))
        forms = permutations(((expand(one),),) for one in (X, Y, beyond))
        join = lattice.largest if fn == "max" else lattice.least
        kept = [{str(part) for least in join(form) for part in least} for form in forms]
        assert all(str(expand(X)) not in parts and len(parts) == 2 for parts in kept)


def test_exponentials_and_sigmoids_are_taken_apart_where_digits_may_be_lost() -> None:
    product_ = Prod((call("exp", X), call("sigmoid", X)))
    apart = total([call("exp", X), product([Num(-1), call("sigmoid", X)])])
    assert same(product_, apart, cancels=True) and not same(product_, apart)
    less = total([call("exp", X), product([Num(-1), call("exp", NEGATIVE)])])
    more = total([call("exp", X), call("exp", NEGATIVE)])
    assert same(call("div", less, more), call("tanh", X), cancels=True)


P, Q = (Read(leaf(name, 4, dtype="int64"), (it(0, 4),)) for name in "pq")


def test_of_two_integers_one_is_larger_whatever_comes_round() -> None:
    larger, smaller = call("max", P, Q), call("min", Q, P)
    assert same(total([larger, smaller]), total([P, Q]))
    assert not same(total([larger, product([Num(-1), smaller])]), total([P, product([Num(-1), Q])]))
    assert same(call("abs", product([Num(-1), P])), call("abs", P))
    byte = Read(leaf("b", 4, dtype="uint8"), (it(0, 4),))
    assert not same(call("abs", product([Num(-1), byte])), call("abs", byte))


def test_quotients_and_rests_of_integers() -> None:
    """Random functions of all 8-bit integers, which wrap around, have the values of their forms."""

    def made(choices: RandomChoices, depth: int) -> Scalar:
        if not depth:
            return byte
        inner, number = made(choices, depth - 1), Num(choices.pick((1, 2, 3, 4, 6, 12, 60)))
        match choices.pick(("floordiv", "mod", "floordiv", "mod", "plus", "times", "rest")):
            case "plus":
                return total([inner, number])
            case "times":
                return product([inner, number])
            case "rest":
                return total([inner, product([Num(-1), call("mod", inner, number)])])
            case name:
                return call(name, inner, number)

    for dtype, low in (("int8", -128), ("uint8", 0)):
        byte = Read(leaf("b", 256, dtype=dtype), (it(0, 256),))
        env = {"b": np.arange(low, low + 256).astype(dtype)}
        for seed in range(150):
            body = made(RandomChoices(seed), 1 + seed % 4)
            form = collect(expand(body))
            sides = [Scope((256,), (), one) for one in (body, Cast(dtype, form))]
            first, second = (evaluate(canonical_term(side), env) for side in sides)
            assert np.array_equal(first, second), f"{sides[0]} is not {sides[1]}"
    larger = total([P, Num(6)])
    assert not same(call("mod", larger, Num(3)), call("mod", P, Num(3)))
    assert not same(call("mod", call("mod", P, Num(4)), Num(3)), call("mod", P, Num(3)))
    assert same(call("mod", call("mod", P, Num(6)), Num(3)), call("mod", P, Num(3)))
    assert same(call("floordiv", call("mod", P, Num(3)), Num(6)), Num(0))


def test_what_may_be_no_number_is_not_multiplied_by_a_condition() -> None:
    for part in (call("log", X), call("sqrt", X), call("exp", X), call("reciprocal", X)):
        chosen = call("where", call("gt", X, Num(1)), part, Num(0))
        above = Cast("float32", call("gt", X, Num(1)))
        assert not same(chosen, product([above, part]))


def test_conditions_of_indices_are_one_of_two_that_exclude_each_other() -> None:
    i, j = it(0, 4), it(1, 4)
    below = call("le", Value(j), Value(i))
    for above in (call("gt", Value(j), Value(i)), call("ge", Value(j - i), Num(1))):
        both = total([call("where", one, X, Num(0)) for one in (below, above)])
        assert same(both, X)
    beside = call("ge", Value(j), Value(i))
    assert not same(total([call("where", one, X, Num(0)) for one in (below, beside)]), X)


def test_conditions_that_follow_or_exclude_each_other() -> None:
    def chosen(*conditions: Scalar) -> Scalar:
        found: Scalar = Y
        for condition in conditions:
            found = call("where", condition, found, Num(0))
        return found

    i, j = it(0, 4), it(1, 4)
    for x in (X, Value(i - j)):
        above, well_above = (call("gt", x, Num(bound)) for bound in (0, 3))
        assert same(chosen(above, well_above), chosen(well_above))
        assert not same(chosen(above, well_above), chosen(above))
        assert same(chosen(above, call("lt", x, Num(0))), Num(0))
        assert not same(chosen(above, call("lt", x, Num(2))), Num(0))
    # Between 0 and 1 there is no whole number.
    assert not same(chosen(call("gt", X, Num(0)), call("lt", X, Num(1))), Num(0))
    whole = Value(i - j)
    assert same(chosen(call("gt", whole, Num(0)), call("lt", whole, Num(1))), Num(0))


def test_squares_stand_outside_of_roots() -> None:
    for square, root in ((2.25, 1.5), (4.0, 2.0), (1 / 16, 0.25)):
        outside = product([Num(root), call("sqrt", total([X, Y]))])
        inside = call("sqrt", product([Num(square), total([X, Y])]))
        assert same(inside, outside)
        assert not same(inside, product([Num(2.0), outside]))
    assert same(call("sqrt", Prod((X, X, call("exp", Y)))),
                Prod((call("abs", X), call("exp", product([Num(0.5), Y])))))  # fmt: skip


def test_what_loses_digits_is_apart() -> None:
    square = Prod((DIFFERENCE, DIFFERENCE))
    opened = total([Prod((X, X)), Prod((Num(-2), X, Y)), Prod((Y, Y))])
    assert not same(square, opened) and same(square, opened, cancels=True)
    turned = total([Num(1), product([Num(-1), call("sigmoid", X)])])
    assert not same(call("sigmoid", NEGATIVE), turned)
    assert same(call("sigmoid", NEGATIVE), turned, cancels=True)
    # A product with a single difference loses no digits when it is multiplied out.
    assert same(Prod((X, DIFFERENCE)), total([Prod((X, X)), Prod((Num(-1), X, Y))]))


def test_a_concatenation_is_its_pieces_and_neighbours_of_one_body_are_one() -> None:
    i = it(0, 6)
    x, y = leaf("x", 4), leaf("y", 2)
    both = Scope((6,), (), call("exp", total([Read(x, (i,)), Read(y, (i - 4,))])))
    first = Scope((4,), (), call("exp", Read(x, (it(0, 4),))))
    second = Scope((2,), (), call("exp", Read(y, (it(0, 2),))))
    assert expanded(both, MAPS) == Op("Concat", (first, second), (0,))

    rows = [Read(leaf("z", 2, 3), (Index(n), it(1, 3))) for n in (0, 1)]
    parts = [canonical_term(Scope((1, 3), (), row)) for row in rows]
    cat = [Read(part, (it(0, 2) - n, it(1, 3))) for n, part in enumerate(parts)]
    whole = expanded(Scope((2, 3), (), total(list(cat))), MAPS)
    assert whole == Scope((2, 3), (), Read(leaf("z", 2, 3), (it(0, 2), it(1, 3))))


def test_sums_are_taken_forward_and_what_does_not_depend_stands_outside() -> None:
    i, k = it(0, 2), it(1, 3)
    x, w, c = leaf("x", 2, 3), leaf("w", 3), leaf("c", 2)
    back = It(1, 3).extent - 1 - k
    scope = Scope((2,), (3,), Prod((Read(x, (i, back)), Read(w, (back,)), Read(c, (i,)))))
    forward = Scope((2,), (3,), Prod((Read(w, (k,)), Read(x, (i, k)))))
    form = expanded(scope, MAPS)
    assert isinstance(form, Scope) and not form.reduction
    assert {r for r in (t for t in form.body.factors)} == {  # type: ignore[attr-defined]
        Read(c, (i,)), Read(canonical_term(forward), (i,)),
    }  # fmt: skip


def test_products_maxima_and_truths_that_are_not_taken_apart() -> None:
    """Pairs of a reduction and a wrong decomposition of it. The two sides have different forms."""
    i, k = it(0, 2), it(1, 3)
    x, y = (Read(leaf(name, 2, 3), (i, k)) for name in "xy")
    above, below = (call("gt", one, Num(0)) for one in (x, y))

    def over(body: Scalar, reducer: str) -> Scalar:
        return Read(Scope((2,), (3,), body, reducer), (i,))

    for whole, parts in (
        (over(Prod((x, y)), "max"), Prod((over(x, "max"), over(y, "max")))),
        (over(total([x, y]), "max"), total([over(x, "max"), over(y, "max")])),
        (over(call("max", x, y), "min"), call("max", over(x, "min"), over(y, "min"))),
        (over(product([Num(-1), x]), "max"), product([Num(-1), over(x, "max")])),
        (over(total([x, y]), "prod"), total([over(x, "prod"), over(y, "prod")])),
        (over(product([Num(2), x]), "prod"), product([Num(2), over(x, "prod")])),
        (over(call("and", above, below), "max"),
         call("and", over(above, "max"), over(below, "max"))),
        (over(call("or", above, below), "min"), call("or", over(above, "min"), over(below, "min"))),
        (over(call("not", above), "max"), call("not", over(above, "max"))),
    ):  # fmt: skip
        assert isinstance(whole, Read)
        left, right = (canonical_term(one) for one in (whole.tensor, Scope((2,), (), parts)))
        forms = [expanded(one, MAPS) or one for one in (left, right) if isinstance(one, Scope)]
        assert forms[0] != forms[1], str(left)
        assert Sides(left, forms[0], 0).all_data(Claim("proof")) is None


def test_a_reduction_of_few_values_is_written_out() -> None:
    """``max_k x[i, k]`` for k < 3 is ``max(x[i, 0], x[i, 1], x[i, 2])``. Of a reduction of more
    than 16 values, only the shorter iterators are written out."""
    x, y = leaf("x", 2, 3), leaf("y", 2, 3, 9)
    i, k, m = it(0, 2), it(1, 3), it(2, 9)
    for reducer, fn in (("max", "max"), ("min", "min")):
        one, *more = (Read(x, (i, Index(n))) for n in range(3))
        by_hand: Scalar = one
        for other in more:
            by_hand = call(fn, by_hand, other)
        form = expanded(Scope((2,), (3,), Read(x, (i, k)), reducer), BY_POINTS)
        assert isinstance(form, Scope) and not form.reduction
        by_hand_form = expanded(Scope((2,), (), by_hand), MAPS) or Scope((2,), (), by_hand)
        assert canonical_term(form) == canonical_term(by_hand_form)
    long = Scope((2,), (3, 9), Read(y, (i, k, m)))
    form = expanded(long, BY_POINTS)
    assert isinstance(form, Scope) and not form.reduction
    parts = [one.tensor for one in reads(form.body)]
    assert [one.reduction for one in parts if isinstance(one, Scope)] == [(9,)] * 3
    assert Sides(long, form).all_data(Claim("proof")) is None
    longer = Scope((2,), (3, 9, 4), Read(leaf("z", 2, 3, 9, 4), (i, k, m, it(3, 4))))
    assert [one.extent for one in by_points(longer)] == [3, 4]


def test_truths_are_counted_among_integers() -> None:
    """``sum_k [i[x] = k] * {[k = j]}[k, j]`` in int64 is ``[i[x] = j]``. A sum of truths counts
    them in int64."""
    i, j, k = it(0, 3), it(1, 4), it(2, 4)
    ids = Read(leaf("ids", 3, dtype="int64"), (i,))
    eye = Scope((4, 4), (), call("eq", Value(it(0, 4)), Value(it(1, 4))))
    picked = [Cast("int64", call("eq", ids, Value(k))), Cast("int64", Read(eye, (k, j)))]
    form = expanded(canonical_term(Scope((3, 4), (4,), product(picked))), MAPS)  # type: ignore[arg-type]
    assert form == canonical_term(Scope((3, 4), (), Cast("int64", call("eq", ids, Value(j)))))
    own = call("eq", ids, Value(it(1, 4)))
    counted, cast = (Scope((3,), (4,), body) for body in (own, Cast("int64", own)))
    assert counted.dtype == "int64"
    both = [expanded(one, MAPS) or one for one in (counted, cast)]
    assert canonical_term(both[0]) == canonical_term(both[1])


def test_the_largest_is_compared_where_any_is() -> None:
    """``any_k x[i, k] > 0`` is ``{max_k x}[i] > 0``, and ``all_k x[i, k] > 0`` is
    ``{min_k x}[i] > 0``."""
    i, k = it(0, 2), it(1, 5)
    x = Read(leaf("x", 2, 5), (i, k))
    for reducer in ("max", "min"):
        whole = Read(Scope((2,), (5,), x, reducer), (i,))
        any_or_all = Scope((2,), (5,), call("gt", x, Num(0)), reducer)
        by_extreme = Scope((2,), (), call("gt", whole, Num(0)))
        both = [expanded(one, MAPS) or one for one in (any_or_all, by_extreme)]
        assert canonical_term(both[0]) == canonical_term(both[1])
        assert Sides(any_or_all, both[0]).all_data(Claim("proof")) is None


@pytest.mark.parametrize("name", ["y4", "y5", "y9", "y10", "y11", "y12", "y13", "y20"])
def test_a_maximum_of_maxima_is_taken_as_it_is_written(name: str) -> None:
    """In the polynomial of ``min_k abs(y[k])`` for k < 4, a part is the negative of a minimum of
    maxima, a part of which is a maximum of minima. Digests, and so the name of y, decide which of
    the two forms is written. For these names the expansion never ended."""
    y = leaf(name, 4)
    least = Scope((), (4,), call("abs", Read(y, (it(0, 4),))), "min")
    form = expanded(canonical_term(least), BY_POINTS)  # type: ignore[arg-type]
    assert form is None or Sides(least, form).all_data(Claim("proof")) is None


def test_what_is_left_as_it_is() -> None:
    i = it(0, 40)
    far = total([Read(leaf(f"p{n}", 2), (i - 2 * n,)) for n in range(20)])
    assert len(far.terms) > MAX_PIECES and expanded(Scope((40,), (), far), MAPS) is None  # type: ignore[attr-defined]
    masked = Sum((X, Num(-INF)))
    assert expanded(Scope((4,), (), masked), MAPS) is None
    narrow, wide = (Read(leaf("n", 4, dtype=t), (it(0, 4),)) for t in ("int8", "int64"))
    assert expanded(Scope((4,), (), total([narrow, narrow, wide])), MAPS) is None


def test_a_read_of_a_number_at_one_place_is_a_condition() -> None:
    """``one[i - j]`` for a tensor of a single 1 is ``[i = j]``, which is never negative. A read
    with another fill, and a read that leaves an axis of several elements, stay."""
    i, j = it(0, 4), it(1, 3)

    def form(shape: tuple[int, ...], at: tuple[Index, ...], fill: float = 0.0) -> Tensor:
        ones = Read(op("Full", attrs=(shape, 2.0, "float32")), at, fill)
        given = Scope((4, 3), (), call("relu", product([ones, Read(leaf("s"), ())])))
        found = expanded(given, Expand(lambda tensor: 2.0 if isinstance(tensor, Op) else None))
        assert found is None or Sides(given, found).all_data(Claim("proof")) is None
        return canonical_term(found or given)

    equal = Cast("float32", call("eq", Value(i), Value(j)))
    outside = Prod((Num(2), equal, call("relu", Read(leaf("s"), ()))))
    diagonal = canonical_term(Scope((4, 3), (), outside))
    assert form((1,), (i - j,)) == form((1, 3), (j - i, j)) == diagonal
    assert form((1,), (i - j,), 1.0) != diagonal
    assert diagonal not in (form((2,), (i - j,)), form((1, 2), (i - j, j)))


def test_a_sum_goes_over_what_is_not_zero() -> None:
    """``sum_k x[i + k] * w[k - j]`` for k < 6 and w of 3 elements becomes a sum over u < 3, with
    k = j + u."""
    i, j, k = it(0, 2), it(1, 4), it(2, 6)
    x, w = leaf("x", 7), leaf("w", 3)
    form = expanded(Scope((2, 4), (6,), Prod((Read(x, (i + k,)), Read(w, (k - j,))))), MAPS)
    u = it(2, 3)
    assert form == canonical_term(Scope((2, 4), (3,), Prod((Read(x, (i + j + u,)), Read(w, (u,))))))
    # For k < 5, j + u isn't always a value of k, so the sum stays over k.
    k = it(2, 5)
    short = Scope((2, 4), (5,), Prod((Read(x, (i + k,)), Read(w, (k - j,)))))
    form = expanded(short, MAPS) or short
    assert Sides(short, form).all_data(Claim("proof")) is None


def test_rows_in_reverse_are_computed_forward_and_read_in_reverse() -> None:
    i, k = it(0, 3), it(1, 4)
    x, w = leaf("x", 3, 4), leaf("w", 4)
    form = expanded(Scope((3,), (4,), Prod((Read(x, (2 - i, k)), Read(w, (k,))))), MAPS)
    forward = canonical_term(Scope((3,), (4,), Prod((Read(x, (i, k)), Read(w, (k,))))))
    assert form == Scope((3,), (), Read(forward, (2 - i,)))


def test_two_rotations_are_one() -> None:
    k = it(0, 5)
    x, w = leaf("x", 5), leaf("w", 5)

    def form(a: int, b: int) -> Tensor:
        scope = Scope((), (5,), Prod((Read(x, ((k + a) % 5,)), Read(w, ((k + b) % 5,)))))
        return expanded(scope, MAPS) or scope

    assert form(0, 1) == form(1, 2) == form(3, 4) == form(4, 0) != form(2, 0)


def test_groups_are_cut_apart() -> None:
    """``x[i // 2 * 3 + k]`` for i < 4: rows 0 and 1 read x[k], rows 2 and 3 read x[3 + k]."""
    i, k = it(0, 4), it(1, 3)
    x, w = leaf("x", 6), leaf("w", 4, 3)
    form = expanded(Scope((4,), (3,), Prod((Read(x, (i // 2 * 3 + k,)), Read(w, (i, k))))), MAPS)
    assert isinstance(form, Op) and form.name == "Concat"
    assert [part.shape for part in form.args] == [(2,), (2,)] and "//" not in str(form)


def summed_up(body: Scalar) -> Tensor:
    scope = canonical(Scope((4,), (4,), body))
    return canonical_term(expanded(scope, MAPS) or scope)


def test_prefix_sums_are_one_sum_and_elements() -> None:
    """The sum over k <= i is the sum over k < i plus element i."""
    i, k, x = it(0, 4), it(1, 4), Read(leaf("x", 4), (it(1, 4),))

    def upto(place: Index) -> Scalar:
        return Prod((Cast("float32", call("le", Value(k), Value(place))), x))

    at = Prod((Cast("float32", call("eq", Value(k), Value(i))), x))
    minus = product([Num(-1), at])
    assert summed_up(total([upto(i), minus])) == summed_up(upto(i - 1))
    assert summed_up(total([upto(i), at])) != summed_up(upto(i + 1))
    # A condition picks an element only if its place is a value of k for every i.
    after = Prod((Cast("float32", call("eq", Value(k), Value(i + 1))), x))
    assert summed_up(after) != summed_up(Read(x.tensor, (i + 1,)))
    assert summed_up(at) == summed_up(product([Num(0.25), Read(x.tensor, (i,))]))


def test_what_one_factor_alone_has_is_summed_in_it() -> None:
    i, k, h = it(0, 2), it(1, 3), it(2, 4)
    weight, bias = Read(leaf("w", 2, 3, 4), (i, k, h)), Read(leaf("b", 3), (k,))
    inner = Scope((2, 3), (4,), Read(weight.tensor, (it(0, 2), it(1, 3), it(2, 4))))
    flat = canonical(Scope((2,), (3, 4), Prod((weight, bias))))
    apart = canonical(Scope((2,), (3,), Prod((Read(inner, (i, k)), bias))))
    assert canonical_term(expanded(flat, MAPS) or flat) == canonical_term(apart)


def test_ids_that_are_concatenated_are_cut_apart() -> None:
    """In each piece of the concatenation, the read of the other tensor is out of range and 0. The
    sum without it keeps its dtype int64."""
    p, q = (Read(leaf(n, 2, dtype="int64"), (it(0, 4) - at,)) for n, at in (("p", 0), ("q", 2)))
    picked = Cast("float32", call("eq", total([p, q]), Value(it(1, 3))))
    form = expanded(canonical(Scope((4, 3), (), picked)), MAPS)
    assert isinstance(form, Op) and form.name == "Concat" and len(form.args) == 2
    scope = canonical(Scope((4, 3), (), picked))
    assert Sides(scope, form).verdict("ties", Claim("proof")) is None


@pytest.mark.parametrize(
    ("found", "condition"),
    [
        (Scope((4,), (2,), Read(leaf("x", 4), (it(0, 4),))), "map"),
        (Scope((3,), (), Num(2.0)), "map"),
        (Scope((4,), (), Cast("int64", X)), "map"),
        (leaf("x", 4), "map"),
        (2.0, "dtype"),
    ],
)
def test_what_is_no_map_of_the_tensor_is_refused(found: object, condition: str) -> None:
    whole = Read(leaf("n", 4, dtype="int64"), (it(0, 4),))
    read = whole if condition == "dtype" else Read(leaf("y", 4), (it(0, 4),))
    scope = Scope((4,), (), Prod((X, read)))
    tensor = read.tensor
    taken = Expand(lambda one: found if one == tensor else None)  # type: ignore[arg-type, return-value]
    with pytest.raises(LawError) as error:
        expanded(scope, taken)
    assert error.value.condition == condition


# ---- dtypes --------------------------------------------------------------------------------------

SPOT = it(0, 4)
BYTES, FLAGS = (Read(leaf(n, 4, dtype=d), (SPOT,)) for n, d in (("u", "uint8"), ("b", "bool")))
PLAIN = Read(leaf("y", 4), (SPOT,))
DATA = {
    "u": np.array([250, 3, 200, 255]), "b": np.array([True, False, True, True]),
    "x": np.array([1.5, 2.5]), "y": np.array([0.5, 1.0, 2.0, 3.0]),
}  # fmt: skip


def late(fill: float) -> Read:
    """``x[i - 2 else fill]``, which is the number ``fill`` in the first of two pieces."""
    return Read(leaf("x", 2), (SPOT - 2,), fill)


@pytest.mark.parametrize(
    "body",
    [
        Prod((late(2.0), BYTES)),
        Prod((Num(2), total([late(0.0), BYTES]))),
        Sum((late(200.0), BYTES)),
        Sum((PLAIN, Prod((Call("sqrt", (late(4.0),)), BYTES)))),
        Prod((Call("sqrt", (late(0.5),)), Value(SPOT + 1))),
        Prod((Call("sqrt", (late(0.5),)), FLAGS)),
        Call("max", (Call("exp", (late(0.5),)), Value(SPOT))),
        Prod((late(1e30), FLAGS)),
        Call("where", (FLAGS, late(300.0), BYTES)),
        # The second piece chooses between integers only.
        Sum((Call("where", (Call("gt", (Value(SPOT), Num(1))), BYTES, PLAIN)), Num(100))),
        # What is left of a product of floats is twice an integer.
        Prod((Num(2), Sum((PLAIN, Prod((Num(-1), PLAIN)), BYTES)))),
    ],
)
def test_a_number_in_the_place_of_a_float_leaves_no_integers_to_wrap(body: Scalar) -> None:
    """``x * u`` is a float where x is the number 2, and ``2 * u`` a number modulo 256."""
    scope = Scope((4,), (), body)
    found = expanded(scope, Expand(lambda _tensor: None)) or scope
    assert found.type == scope.type and found != scope
    np.testing.assert_allclose(evaluate(found, DATA), evaluate(scope, DATA), rtol=1e-6)
