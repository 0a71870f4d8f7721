"""Computations in parts: by the pieces of a concatenation, the terms of a sum, or the taps of a
window; and directed tests at the edges."""

from __future__ import annotations

import pytest

from eqsynth.egraph.tactics import linear
from eqsynth.egraph.tactics.splitting import expression_split, piece, tap_merge
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Scope, Tensor
from tests.terms import INF, assert_equal, end, it, leaf

A, B = leaf("a", 2, 5), leaf("b", 3, 5)
I0, I1 = it(0, 5), it(1, 5)
# Two rows of a, three rows of b.
JOINED = Scope((5, 5), (), Sum((Read(A, (I0, I1)), Read(B, (I0 - 2, I1)))))
BROADCAST = Scope((5, 5), (), Sum((Read(A, (I0, I1)), Read(leaf("c", 5), (I1,)))))


def windowed(row: Index, offset: int, joined: Tensor = JOINED, fill: float = 0.0) -> Scope:
    """[i, j] = sum_k joined[row, j + k + offset] * w[k], with 5 rows i and 3 taps k."""
    j, k = it(1, 5), it(2, 3)
    return Scope((5, 5), (3,), Prod((Read(joined, (row, j + k + offset), fill), W_OF(k))))


def W_OF(k: Index) -> Read:  # noqa: N802  (a read of the weight)
    return Read(leaf("w", 3), (k,))


def read_of(scope: Scope) -> Read:
    assert isinstance(scope.body, Prod)
    return next(f for f in scope.body.factors if isinstance(f, Read) and f.tensor.label != "w")


def split(scope: Scope, inner: Scope = JOINED) -> Scope | None:
    return expression_split(scope, read_of(scope), inner, lambda _: None)


def boxes(scope: Scope | None) -> list[tuple[int, ...]]:
    assert scope is not None and isinstance(scope.body, Sum)
    parts = [t.tensor for t in scope.body.terms if isinstance(t, Read)]
    return sorted(part.extents for part in parts if isinstance(part, Scope))


# ---- splitting -------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, -1, -3])
def test_each_piece_is_computed_on_its_own_box(offset: int) -> None:
    """The pieces are rows 0 and 1, and rows 2 to 4. Windows may be partly out of range."""
    scope = windowed(I0, offset)
    parts = split(scope)
    assert [box[0] for box in boxes(parts)] == [2, 3] and parts is not None
    assert_equal(scope, parts)


def test_a_sum_over_the_pieces_is_the_sum_of_their_sums() -> None:
    k = it(1, 5)
    scope = Scope((5,), (5,), Prod((Read(JOINED, (k, I0)), Read(leaf("v", 5), (k,)))))
    (first, *_) = scope.body.factors if isinstance(scope.body, Prod) else ()
    assert isinstance(first, Read)
    parts = expression_split(scope, first, JOINED, lambda _: None)
    assert boxes(parts) == [(5, 2), (5, 3)] and parts is not None
    assert_equal(scope, parts)


@pytest.mark.parametrize("place", [0, 1])
def test_at_one_place_of_a_stack_there_is_one_piece(place: int) -> None:
    """A read at one place of a stack of two matrices reads only one of them; the other one is out
    of range."""
    b, m, j, k = it(0, 2), it(1, 5), it(1, 5), it(2, 3)
    pieces = (Read(leaf("p", 5), (5 * b + m,)), Read(leaf("q", 5), (5 * b + m - 5,)))
    stack = Scope((2, 5), (), Sum(pieces))
    read = Read(stack, (Index(place), j + k - 1))
    scope = Scope((5, 5), (3,), Prod((read, W_OF(k))))
    parts = expression_split(scope, read, stack, lambda _: None)
    assert parts is not None and isinstance(parts.body, Read)
    assert_equal(scope, parts)
    # A read at both places reads rows of both matrices, so it isn't split.
    both = Read(stack, (it(0, 2), j + k - 1))
    scope = Scope((2, 5), (3,), Prod((both, W_OF(k))))
    assert expression_split(scope, both, stack, lambda _: None) is None


def test_a_piece_that_is_never_read_is_no_part() -> None:
    j, k = it(1, 5), it(2, 3)
    scope = Scope((2, 5), (3,), Prod((Read(JOINED, (it(0, 2), j + k - 1)), W_OF(k))))
    parts = split(scope)
    assert parts is not None and isinstance(parts.body, Read)
    assert_equal(scope, parts)


def test_what_else_is_read_in_one_piece_is_that_piece() -> None:
    """sum_k x[k] * w[k], where x and w have two pieces each: a piece of x is multiplied only by the
    piece of w in the same place."""
    v, k = leaf("v", 5, constant=True), it(1, 5)
    ends = Read(leaf("p", 2), (it(0, 5),)), Read(leaf("q", 3), (it(0, 5) - 2,))
    other = Scope((5,), (), Sum(ends))
    scope = Scope((5,), (5,), Prod((Read(JOINED, (k, I0)), Read(v, (k,)))))
    (x, _) = scope.body.factors if isinstance(scope.body, Prod) else ()
    assert isinstance(x, Read)

    def piece_of(read: Read) -> Scalar | None:
        return piece(read, other) if read.tensor == v else None

    parts = expression_split(scope, x, JOINED, piece_of)
    assert boxes(parts) == [(5, 2), (5, 3)]
    assert parts is not None and "v" not in str(parts)
    whole = Scope((5,), (5,), Prod((Read(JOINED, (k, I0)), Read(other, (k,)))))
    assert_equal(whole, parts)


@pytest.mark.parametrize(
    ("scope", "inner"),
    [
        (windowed(I0, -1, fill=1.0), JOINED),
        (windowed(I0 + 1, 0, BROADCAST), BROADCAST),
        (Scope((5, 5), (3,), windowed(I0, 0).body, "max"), JOINED),
        (windowed(I0, 0), Scope((5, 5), (), Call("max", (Read(A, (I0, I1)), Read(B, (I0, I1)))))),
        (windowed(I0, 0), Scope((5, 5), (), Sum((Read(A, (I0, I1)), Num(1.0))))),
        (windowed(I0, 0), Scope((5, 5), (), Sum((Read(A, (I0, I1)), Read(B, (I0, I1), INF))))),
    ],
    ids=["fill", "outside along a broadcast", "max reduced", "max",
         "a number", "infinite"],
)  # fmt: skip
def test_what_is_no_sum_of_its_parts_is_not_split(scope: Scope, inner: Scope) -> None:
    assert split(scope, inner) is None


def test_a_broadcast_is_a_part_where_it_is_in_range() -> None:
    scope = windowed(I0, -1, BROADCAST)
    parts = split(scope, BROADCAST)
    assert boxes(parts) == [(1, 5, 3), (2, 5, 3)] and parts is not None
    assert_equal(scope, parts)


def test_constants_are_split_into_smaller_parts_only() -> None:
    whole = leaf("c", 5, 5, constant=True)
    scope = windowed(I0, -1, whole)
    assert split(scope) is not None
    same = Scope((5, 5), (), Sum(tuple(Read(leaf(name, 5, 5), (I0, I1)) for name in "de")))
    assert split(scope, same) is None
    assert split(windowed(I0, -1, leaf("c", 5, 5)), same) is not None


def test_one_piece_is_read() -> None:
    read = Read(JOINED, (it(0, 3) + 2, it(1, 7) - 1))
    assert piece(read, JOINED) == Read(B, (it(0, 3), it(1, 7) - 1))
    assert piece(Read(JOINED, (it(0, 3) + 1, it(1, 5))), JOINED) is None
    assert piece(Read(JOINED, (it(0, 3) + 2, it(1, 7) - 1), 1.0), JOINED) is None


# ---- taps ------------------------------------------------------------------------------------

X, KERNEL = leaf("x", 6, 4), leaf("k", 3, 4, 2)


def row(r: int, at: int | None = None, fill: float = 0.0) -> Scope:
    """[i, f] = sum_c x[i + r - 1, c] * k[r, c, f]"""
    i, f, c = it(0, 6), it(1, 2), it(2, 4)
    place = r if at is None else at
    factors = Read(X, (i + place - 1, c), fill), Read(KERNEL, (Index(r), c, f))
    return canonical(Scope((6, 2), (4,), Prod(factors)))


def merged(*parts: Scope, body: type[Sum] | None = Sum) -> Scope | None:
    tensors = [leaf(f"t{n}", 6, 2) for n in range(len(parts))]
    flats = dict(zip(tensors, parts, strict=True))
    terms = tuple(Read(t, (it(0, 6), it(1, 2))) for t in tensors)
    whole = Sum(terms) if body else Call("max", terms)
    return end(tap_merge(Scope((6, 2), (), whole), lambda read: [flats[read.tensor]]))


def sum_of(*parts: Scope) -> Scope:
    return Scope((6, 2), (), Sum(tuple(Read(p, (it(0, 6), it(1, 2))) for p in parts)))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_sum_of_the_taps_is_one_window(order: tuple[int, ...]) -> None:
    parts = [row(r) for r in order]
    found = merged(*parts)
    assert found is not None and sorted(found.reduction) == [3, 4]
    assert_equal(sum_of(*parts), found)


def test_a_window_that_dilates_or_stands_is_one_too() -> None:
    for at in ((0, 2, 4), (1, 1, 1)):
        parts = [row(r, place) for r, place in enumerate(at)]
        found = merged(*parts)
        assert found is not None
        assert_equal(sum_of(*parts), found)


@pytest.mark.parametrize(
    "parts",
    [
        (row(0), row(0)),
        (row(0), row(1, 1), row(2, 0)),
        (row(0), row(2, fill=1.0)),
        (row(0), canonical(Scope((6, 2), (4,), Prod((Num(2.0), row(1).body))))),
        (row(0),),
    ],
    ids=["the same twice", "unequal steps", "fill", "scaled", "one"],
)
def test_what_are_no_taps_of_one_window_stay_apart(parts: tuple[Scope, ...]) -> None:
    assert merged(*parts) is None


def test_taps_are_summed() -> None:
    assert merged(row(0), row(1), body=None) is None


# ---- like terms ------------------------------------------------------------------------------


def test_like_terms_are_counted() -> None:
    x, y = Read(leaf("x", 5), (it(0, 5),)), Read(leaf("y", 5), (it(0, 5),))
    scope = Scope((5,), (), Sum((x, Prod((Num(2.0), x)), y, x)))
    found = end(linear.like_terms(scope))
    assert found is not None and isinstance(found.body, Sum) and len(found.body.terms) == 2
    assert_equal(scope, found)


def test_nothing_cancels() -> None:
    x, y = Read(leaf("x", 5), (it(0, 5),)), Read(leaf("y", 5), (it(0, 5),))
    for terms in ((x, Prod((Num(-1.0), x))), (x, y), (x, Prod((x, x)))):
        assert end(linear.like_terms(Scope((5,), (), Sum(terms)))) is None
    ints = Read(leaf("n", 5, dtype="uint8"), (it(0, 5),))
    assert end(linear.like_terms(Scope((5,), (), Sum((ints, ints))))) is None
