"""The interpreter at its edges: everything else is judged by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.errors import ShapeError
from eqsynth.ir import interpret
from eqsynth.ir.data import sample_all
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import (
    _contracted,
    evaluate,
    evaluate_all,
    evaluate_scope,
    is_contraction,
)
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    product,
    quotient,
    rewrite_leaves,
    total,
    tree_size,
)
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import operations
from eqsynth.testing.strategies import products, scopes
from tests.terms import INF, it, leaf, op, times

X = np.array([-3.0, -1.0, -2.0])


def line(
    extent: int, at: Index, fill: float = 0.0, n: int = 3, dtype: str = "float32"
) -> Scope:
    return Scope((extent,), (), Read(leaf("x", n, dtype=dtype), (at,), fill))


def run(scope: Scope, **env: Any) -> Any:
    return evaluate(scope, env or {"x": X})


def test_outside_of_a_tensor_is_its_fill() -> None:
    assert run(line(5, it(0, 5) - 1)).tolist() == [0.0, -3.0, -1.0, -2.0, 0.0]
    assert run(line(5, it(0, 5) - 1, -INF)).tolist() == [-INF, -3.0, -1.0, -2.0, -INF]
    assert run(line(3, it(0, 3) * -1)).tolist() == [-3.0, 0.0, 0.0]


def test_indices_below_zero_floor() -> None:
    assert run(line(4, (it(0, 4) - 3) // 2 + 2)).tolist() == [-3.0, -1.0, -1.0, -2.0]
    assert run(line(4, (it(0, 4) - 3) % 3)).tolist() == [-3.0, -1.0, -2.0, -3.0]
    assert run(line(4, -it(0, 4) % 3)).tolist() == [-3.0, -2.0, -1.0, -3.0]


def test_padded_max_pooling_of_negatives_ignores_the_padding() -> None:
    """A fill of 0 would win; -inf doesn't."""
    at = it(0, 3) + it(1, 3) - 1
    body = Read(leaf("x", 3), (at,), -INF)
    assert run(Scope((3,), (3,), body, "max")).tolist() == [-1.0, -1.0, -1.0]
    image = op("MaxPool2d", leaf("x", 1, 1, 3, 3), attrs=((3, 3), (1, 1), (1, 1), (1, 1)))
    array = -np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(array), 3, 1, 1).numpy()
    np.testing.assert_array_equal(evaluate(image, {"x": array}), expected)


def test_the_fill_of_integers_is_their_limit() -> None:
    x = np.array([-3, -1, -2], dtype=np.int8)
    assert run(line(4, it(0, 4), -INF, dtype="int8"), x=x).tolist() == [-3, -1, -2, -128]
    assert run(line(4, it(0, 4), INF, dtype="int8"), x=x).tolist() == [-3, -1, -2, 127]


@pytest.mark.parametrize(
    ("reducer", "value", "limit"),
    [("sum", 0.0, 0), ("prod", 1.0, 1), ("max", -INF, -(1 << 15)), ("min", INF, (1 << 15) - 1)],
)
def test_reducing_nothing_gives_the_identity(reducer: str, value: float, limit: int) -> None:
    scope = Scope((2,), (0,), Read(leaf("x", 3), (it(0, 2),)), reducer)
    assert run(scope).tolist() == [value, value]
    integers = Scope((2,), (0,), Read(leaf("x", 3, dtype="int16"), (it(0, 2),)), reducer)
    assert run(integers, x=X.astype(np.int16)).tolist() == [limit, limit]


def test_empty_and_unit_extents() -> None:
    assert run(line(0, it(0, 0))).shape == (0,)
    assert run(Scope((), (), Read(leaf("x", 3), (Index(1),)))).tolist() == -1.0
    assert run(line(2, it(0, 2), 7.0, n=0), x=np.empty(0)).tolist() == [7.0, 7.0]
    assert run(Scope((1, 1), (1,), Read(leaf("x", 3), (Index(2),)))).tolist() == [[-2.0]]


def test_ties_and_repeated_reads() -> None:
    x = Read(leaf("x", 3), (it(0, 3),))
    same = np.array([2.0, 2.0, 2.0])
    assert run(Scope((), (3,), Read(leaf("x", 3), (it(0, 3),)), "max"), x=same).tolist() == 2.0
    assert run(Scope((3,), (), Prod((x, x)))).tolist() == (X * X).tolist()
    assert run(Scope((3,), (), Sum((x, x, Num(1))))).tolist() == (2 * X + 1).tolist()


def test_integers_stay_in_their_dtype() -> None:
    """As in torch: uint8 arithmetic is modulo 256 also in the middle of a body."""
    u = np.array([0, 3], dtype=np.uint8)
    x = Read(leaf("x", 2, dtype="uint8"), (it(0, 2),))
    minus = Sum((x, Num(-1)))
    assert run(Scope((2,), (), minus), x=u).tolist() == [255, 2]
    half = Scope((2,), (), Call("div", (minus, Num(2))))
    expected = (torch.from_numpy(u) - 1) / 2
    assert run(half, x=u).tolist() == expected.tolist() == [127.5, 1.0]
    assert half.dtype == "float32"


def test_a_bool_counts_beside_a_number() -> None:
    m = Read(leaf("x", 2, dtype="bool"), (it(0, 2),))
    scope = Scope((2,), (), Prod((Num(3), m)))
    got = run(scope, x=np.array([True, False]))
    assert scope.dtype == str((torch.tensor([True]) * 3).dtype).removeprefix("torch.") == "int64"
    assert got.tolist() == [3, 0]


def test_casts_round_and_values_are_indices() -> None:
    third = Scope((1,), (), Cast("float16", Num(1 / 3)))
    assert run(third).tolist() == [float(np.float16(1 / 3))]
    assert run(Scope((3,), (), Value(2 * it(0, 3) - 1))).tolist() == [-1, 1, 3]
    assert run(Scope((3,), (), Cast("int32", Num(-1.7)))).tolist() == [-1, -1, -1]


@settings(max_examples=times(2))
@given(scopes(), st.integers(1, 8))
def test_chunks_make_no_difference(scope: Scope, chunk: int) -> None:
    env = sample_all(scope)
    whole, before = evaluate(scope, env), interpret._CHUNK
    try:
        interpret._CHUNK = chunk
        pieces = evaluate(scope, env)
    finally:
        interpret._CHUNK = before
    np.testing.assert_array_equal(pieces, whole)


@pytest.mark.rotating
@settings(max_examples=times(2))
@given(scopes(), st.data())
def test_sampled_points_are_points_of_the_whole(scope: Scope, data: st.DataObject) -> None:
    if 0 in scope.traversal or not scope.traversal:
        return
    values = evaluate_all([scope], sample_all(scope))
    drawn = data.draw(st.lists(st.tuples(*(st.integers(0, e - 1) for e in scope.traversal)),
                               min_size=1, max_size=5))
    points = [np.array(axis) for axis in zip(*drawn, strict=True)]
    got = evaluate_scope(scope, values, points)
    np.testing.assert_allclose(got, values[scope][tuple(points)], rtol=1e-12)


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        evaluate(leaf("x", 3), {"x": np.zeros(4)})
    assert (caught.value.got, caught.value.expected) == ("(4,)", str(TensorType((3,), "float32")))


@pytest.mark.rotating
@settings(max_examples=times(2))
@given(products(traversal=(1, 2), reduction=(0, 3), factors=(3, 5)))
def test_a_long_product_is_what_its_points_say(scope: Scope) -> None:
    """Too many points at once are contracted a pair of factors at a time."""
    env = sample_all(scope)
    whole = evaluate(scope, env)
    if is_contraction(scope):
        values = {term: evaluate(term, env) for term in args_of(scope)}
        np.testing.assert_allclose(_contracted(scope, values), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fn", ["max", "nested"])
def test_a_shared_body_is_walked_once(fn: str) -> None:
    """60 doublings: as a tree the body has 2^60 leaves."""
    body: Scalar = Read(leaf("x", 3), (it(0, 3),))
    for _ in range(60):
        other: Scalar = Prod((Num(0.5), body)) if fn == "nested" else body
        body = Sum((other, Call("relu", (other,)))) if fn == "nested" else Call(fn, (body, other))
    scope = canonical(Scope((3,), (2,), body))
    assert (scope.dtype, scope.constant, args_of(scope)) == ("float32", False, (leaf("x", 3),))
    assert tree_size(scope.body) >= 1 << 60 and operations(scope.body) < 400
    assert canonical(scope) == scope
    x = np.array([-3.0, 0.0, 2.0])
    # 0.5 x + relu(0.5 x) keeps what is positive, and halves what isn't.
    once = {"max": x, "nested": np.where(x > 0, x, x / 2**60)}[fn]
    np.testing.assert_allclose(evaluate(scope, {"x": x}), 2 * once, rtol=1e-12, atol=0)


@pytest.mark.parametrize("join", [product, total])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_joining_keeps_what_is_computed_in_a_dtype_of_its_own(join: Any, dtype: str) -> None:
    """200 * 3 is 88 in uint8, whatever float the 88 is multiplied by."""
    kind = Prod if join is product else Sum
    whole = Read(leaf("w", 2), (it(0, 2),), 0.0)
    part = Read(leaf("x", 2, dtype=dtype), (it(0, 2),), 0.0)
    inner = kind((Num(3.0), part))
    joined = join([inner, whole])
    env = {"w": np.array([1.5, -2.0], np.float32), "x": np.array([200, 7]).astype(dtype)}
    expected = run(Scope((2,), (), kind((inner, whole))), **env)
    assert run(Scope((2,), (), joined), **env).tolist() == expected.tolist()
    assert (inner in children(joined)) == (dtype != "float32")


def test_a_product_of_truths_is_joined_with_numbers() -> None:
    one, other, number = (
        Read(leaf(name, 2, dtype=dtype), (it(0, 2),), 0.0)
        for name, dtype in (("a", "bool"), ("b", "bool"), ("x", "float32"))
    )
    assert children(product([Prod((one, other)), number])) == (one, other, number)
    assert children(total([Sum((one, other)), number])) == (Sum((one, other)), number)


U8, FLAG, LONG = (
    Read(leaf(name, 2, dtype=dtype), (it(0, 2),))
    for name, dtype in (("u", "uint8"), ("p", "bool"), ("i", "int64"))
)
CHOICE = Call("where", (FLAG, Num(2.5), Num(1)))
VALUES = {
    "u": np.array([200, 7], np.uint8), "p": np.array([True, False]), "i": np.array([7, -5]),
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        # 0.5 * 2 * u is a float, and so are 1.5 * 2 * u and 0.5 + u + 0.5; a number that is left
        # out, or that is whole, leaves a uint8.
        Prod((Num(2), Prod((Num(0.5), U8)))),
        Prod((Num(2), Prod((Num(1.5), U8)))),
        Sum((Num(0.5), Sum((Num(0.5), U8)))),
        # As operands of other scalars: the type of the whole doesn't show it.
        Cast("float64", Sum((Prod((Num(2), Prod((Num(0.5), U8)))), U8))),
        # -1 * -1 * p is an integer, and p is a bool: 1 + 1 is 2, and True or True is True.
        Cast("float32", Sum((Prod((Num(-1), Prod((Num(-1), FLAG)))), FLAG))),
        Cast("float32", Sum((Num(0), FLAG, FLAG))),
        Cast("float32", Sum((Prod((Num(1), FLAG)), FLAG))),
        # 3**34 and 2**53 + 1 are no floats.
        Prod((Num(3.0**17), Prod((Num(3.0**17), LONG)))),
        Sum((Num(2.0**53), Sum((Num(1), LONG)))),
        Sum((Num(2.0**53), Num(1), Num(-(2.0**53)), LONG)),
        # 2.5 + 2.5 is 5 as a uint8; 2 + 2 is 4.
        Sum((Sum((CHOICE, CHOICE)), U8)),
        Prod((Prod((CHOICE, CHOICE)), U8)),
    ],
)  # fmt: skip
def test_joining_keeps_the_value_of_numbers_beside_integers(body: Scalar) -> None:
    scope = Scope((2,), (), body)
    form = canonical(scope)
    assert form.type == scope.type and canonical(form) == form
    assert run(form, **VALUES).tolist() == run(scope, **VALUES).tolist()


def test_numbers_are_joined_where_this_changes_no_value() -> None:
    assert product([Num(2), Prod((Num(3), U8))]) == Prod((Num(6), U8))
    assert total([Num(2), Sum((Num(-2), U8))]) == U8
    assert product([Num(2), Prod((Num(3), FLAG))]) == Prod((Num(6), FLAG))
    assert product([Num(3.0**40), LONG]) == Prod((Num(3.0**40), LONG))
    x = Read(leaf("x", 2), (it(0, 2),))
    assert product([Num(0.5), Prod((Num(2), x))]) == x
    assert total([Sum((CHOICE, CHOICE)), x]) == Sum((CHOICE, CHOICE, x))


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [(1, 0.1, True), (1, 1e-6, False), (1, 1e-10, False), (1, 1024, True), (1, -1, True)],
)
def test_numbers_that_float32_cannot_hold_together_stay_apart(
    one: float, other: float, joined: bool
) -> None:
    """``(1 - p) + 1e-10`` is 1e-10 where p is 1; ``(1 + 1e-10) - p`` is 0."""
    x = Read(leaf("x", 2), (it(0, 2),))
    first = Sum((Num(one), Prod((Num(-1), x))))
    found = total([first, Num(other)])
    assert (first not in children(found)) == joined
    form = canonical(Scope((2,), (), found))
    assert canonical(form) == form
    values = np.array([one, 0.5], np.float32)
    expected = (np.float32(one) - values) + np.float32(other)
    for body in (found, form.body):
        exact = run(Scope((2,), (), body), x=values)
        np.testing.assert_allclose(exact, expected, rtol=1e-6)


@pytest.mark.parametrize("under", [2.0, -0.25, 256.0, 2.0**14])
def test_a_quotient_by_a_power_of_two_is_a_product(under: float) -> None:
    x = Read(leaf("x", 2), (it(0, 2),))
    found = canonical(Scope((2,), (), Call("div", (x, Num(under))))).body
    assert found == Prod((Num(1 / under), x)) == quotient(x, Num(under))
    assert rewrite_leaves(Call("div", (x, Num(under))), lambda leaf: leaf) == found
    values = np.array([3.7, -1e-30], np.float32)
    assert (values * np.float32(1 / under) == values / np.float32(under)).all()
    np.testing.assert_allclose(run(Scope((2,), (), found), x=values), values / under)


def test_a_quotient_of_numbers_is_a_number() -> None:
    assert quotient(Num(1.0), Num(6.0)) == Num(1 / 6)
    for over, under in ((1.0, 0.0), (1e300, 1e-300), (INF, INF), (0.0, 0.0)):
        assert quotient(Num(over), Num(under)) == Call("div", (Num(over), Num(under)))


@pytest.mark.parametrize("under", [Num(3.0), Num(0.0), Num(2.0**15), Num(float("inf")), U8])
def test_other_quotients_stay(under: Scalar) -> None:
    x = Read(leaf("x", 2), (it(0, 2),))
    assert quotient(x, under) == Call("div", (x, under))
    assert quotient(U8, Num(2.0)) == Call("div", (U8, Num(2.0)))  # a float, and 0.5 * u isn't


def test_a_function_of_numbers_is_computed_in_floats() -> None:
    """2 to the power of -1 is 0.5 as a float, and 0 as an integer."""
    assert run(Scope((), (), Call("pow", (Num(2), Num(-1))))).tolist() == 0.5
    assert run(Scope((), (), Call("floordiv", (Num(1), Num(0))))).tolist() == float("inf")


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (Call("sqrt", (Num(0.5),)), "float32"),
        (Call("sqrt", (Num(4),)), "float32"),
        (Call("max", (Num(0.5), Num(0.25))), "float32"),
        (Sum((Num(0.5), Num(0.25))), "float32"),
        (Call("max", (Num(2), Num(3))), "uint8"),
    ],
)
def test_a_number_that_is_computed_makes_floats_as_it_would_by_itself(
    number: Scalar, dtype: str
) -> None:
    """``sqrt(0.5) * u`` is no product of 0 and a uint8."""
    found = Scope((2,), (), Prod((number, U8)))
    assert found.dtype == dtype
    factor = run(Scope((), (), number))
    expected = (factor * VALUES["u"]) % 256 if dtype == "uint8" else factor * VALUES["u"]
    np.testing.assert_allclose(run(found, **VALUES), expected, rtol=1e-12)
    counted = Scope((2,), (), Prod((number, FLAG)))
    assert counted.dtype == {"uint8": "int64"}.get(dtype, dtype)
