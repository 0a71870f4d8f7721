"""Products and sums of products: factoring, folding, hoisting, common factors, distribution."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import strategies as st

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.same import same
from eqsynth.egraph.scope_rules.building import answers
from eqsynth.egraph.tactics import contraction, derivation, ordering
from eqsynth.egraph.tactics.common_factor import common_factor
from eqsynth.egraph.tactics.paths import path
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    iterators,
    product,
    reads,
    substitute,
    total,
)
from eqsynth.ir.scopes import bare
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing.strategies import (
    BARE,
    EXTENTS,
    WINDOWS,
    products,
    scopes,
)
from eqsynth.testing.strategies import reads as random_reads
from tests.egraph.programs import weight
from tests.egraph.properties import BIAS, holds, some, stated, x
from tests.terms import assert_equal, end, it, leaf
from tests.turns import by_turns

HOIST = stated("hoist")


@by_turns
def test_factoring(turn: int) -> None:
    wide = products(factors=(2, 4), reduction=(1, 3), kinds=BARE)
    holds(turn, contraction.factor, st.one_of(wide, products(factors=(2, 3))), accepted=7)


@by_turns
def test_folding_constants(turn: int) -> None:
    def law(scope: Scope) -> list[Tensor]:
        return some(end(contraction.fold_constants(scope)))

    holds(turn, law, products(factors=(2, 4), kinds=BARE), accepted=1)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_folding_keeps_reductions_that_the_body_does_not_use(dtype: str) -> None:
    """``sum[k<6] 0.5 * w * x`` is 3 * w * x. If w and x are integers, the factor 0.5 makes the term
    a float but the factor 3 wouldn't, so the canonical form keeps the sum (found by ``eqsynth rules
    check``)."""
    a, w = leaf("a", 1, dtype=dtype), leaf("w", 1, dtype=dtype, constant=True)
    body = product([Num(0.5), Read(a, (it(0, 1),)), Read(w, (it(0, 1),))])
    scope = canonical(Scope((1,), (6,), body))
    folded = end(contraction.fold_constants(scope))
    assert folded is not None
    assert_equal(scope, folded)


@by_turns
def test_hoisting(turn: int) -> None:
    holds(turn, partial(answers, HOIST), scopes(), accepted=1)


@pytest.mark.parametrize("reducer", ["prod", "sum"])
@pytest.mark.parametrize("extent", [0, 3])
def test_hoisting_keeps_reductions_that_the_body_does_not_use(reducer: str, extent: int) -> None:
    """The product of a over three values is the cube of a; a sum over no values is zero."""
    scope = canonical(Scope((2, 2), (extent,), x(it(0, 2), shape=(2,)), reducer))
    hoisted = answers(HOIST, scope)
    for answer in hoisted:
        assert_equal(scope, answer)
    assert hoisted or reducer == "sum"


def test_a_constant_that_is_read_beyond_its_end_is_summed_before_it_is_folded() -> None:
    """x[i, k] w[k, j] a[j] with w zero from j = 4 on: {sum_j w[k, j] a[j]}, and not an 8 by 8
    matrix of products, of which half is 0."""
    k, j = it(1, 8), it(2, 8)
    a, w = Read(weight("a", 8), (j,)), Read(weight("w", 8, 4), (k, j))
    scope = Scope((3,), (8, 8), Prod((Read(leaf("x", 3, 8), (it(0, 3), k)), w, a)))
    assert contraction.fold_constants(scope) is None
    found = [answer for path_ in contraction.factor(scope) for answer in [end(path_)]]
    assert any(
        isinstance(answer, Scope) and any(r.tensor.constant and r.tensor.shape == (8,)
                                          for r in reads(answer.body))
        for answer in found
    )  # fmt: skip
    whole = Scope((3,), (8, 8), Prod((Read(leaf("x", 3, 8), (it(0, 3), k)),
                                      Read(weight("w", 8, 8), (k, j)), a)))  # fmt: skip
    assert contraction.fold_constants(whole) is not None


def test_nothing_is_factored_out_of_an_empty_sum() -> None:
    a, b = x(it(0, 2), shape=(2,)), x(it(0, 2), it(1, 2), shape=(2, 2), name="y")
    scope = canonical(Scope((2, 2), (0,), Prod((a, b))))
    assert list(contraction.factor(scope)) == [] and not is_product(scope)
    assert end(derivation.tighten(scope)) is None


@st.composite
def sums_of_products(draw: st.DrawFn) -> Scope:
    """Draw ``L {sum a*b}[x] + {sum a*c}[x] + …``; the parts may reduce in different orders."""
    rows = draw(EXTENTS)
    columns, inner = draw(EXTENTS), draw(EXTENTS)
    i, j, k, m = It(0, rows), It(1, columns), It(2, inner), It(3, 2)
    shared = draw(random_reads([i, k], kinds=BARE if draw(st.booleans()) else WINDOWS))
    terms: list[Scalar] = []
    for name in "bcd"[: draw(st.integers(2, 3))]:
        at = (it(2, inner), it(1, columns)) if draw(st.booleans()) else (it(1, columns),)
        parts: list[Scalar] = [shared, x(*at, shape=tuple(e.range()[1] + 1 for e in at), name=name)]
        if draw(st.integers(0, 2)) == 0:
            parts.append(draw(random_reads([j, m])))
        if draw(st.integers(0, 3)) == 0:
            parts = [draw(random_reads([i, j])), *parts[1:]]
        scope = canonical(Scope((rows, columns), (inner, 2), product(parts)))
        read: Scalar = Read(scope, (it(0, rows), it(1, columns)))
        if draw(st.integers(0, 4)) == 0:
            read = product([read, read])
        terms.append(product([Num(draw(st.sampled_from([1.0, 1.0, -1.0]))), read]))
    return Scope((rows, columns), (), total(terms))


def flats_of(read: Read) -> list[Scope]:
    return [read.tensor] if isinstance(read.tensor, Scope) and is_product(read.tensor) else []


@by_turns
def test_common_factors(turn: int) -> None:
    def law(scope: Scope) -> list[Scope]:
        steps = common_factor(scope, flats_of)
        return [answer.scope for step in steps if (answer := path(scope, step))]

    holds(turn, law, sums_of_products(), accepted=5)


def test_a_square_is_no_term_of_a_common_factor() -> None:
    """y*y + a@c with y = a@b: the two reads of y are one object, but y*y isn't a term a@b."""
    i, j, k = it(0, 2), it(1, 2), it(2, 3)
    a = x(i, k, shape=(2, 3), name="a")
    left, right = (Scope((2, 2), (3,), Prod((a, x(k, j, shape=(3, 2), name=n)))) for n in "bc")
    y, z = Read(left, (i, j)), Read(right, (i, j))
    scope = Scope((2, 2), (), Sum((Prod((y, y)), z)))
    assert list(common_factor(scope, flats_of)) == []
    plain = Scope((2, 2), (), Sum((y, z)))
    (step,) = common_factor(plain, flats_of)
    assert_equal(plain, same(plain, step))


def test_common_factors_are_over_the_same_iterators() -> None:
    """a[2k, k, l] and a[2k, l, k] are different factors, although their indices are equal up to
    order."""
    i, k, m = it(0, 2), it(1, 3), it(2, 3)
    other = [x(i, k, shape=(2, 3), name=n) for n in "bc"]
    one = x(2 * k, k, m, shape=(5, 3, 3), name="a")
    two = x(2 * k, m, k, shape=(5, 3, 3), name="a")
    pairs = zip((one, two), other, strict=True)
    terms = [Read(Scope((2,), (3, 3), Prod(pair)), (i,)) for pair in pairs]
    scope = Scope((2,), (), Sum(tuple(terms)))
    for step in common_factor(scope, flats_of):
        with suppress(LawError):
            assert_equal(scope, same(scope, step))


@st.composite
def products_of_sums(draw: st.DrawFn) -> Scope:
    """Draw ``sum_y a * {b + c}[p]``, where b and c are pieces of a concatenation or broadcasts."""
    rows, columns, size = draw(EXTENTS), draw(EXTENTS), draw(st.integers(2, 5))
    cut = draw(st.integers(1, size - 1))
    i, k = it(0, rows), it(1, size)
    pieces: list[Scalar] = [
        x(i, k, shape=(rows, cut), name="p"),
        x(i, k - cut, shape=(rows, size - cut), name="q"),
    ]
    kind = draw(st.sampled_from(["concat", "broadcast", "mixed", "number"]))
    if kind == "broadcast":
        pieces = [x(i, shape=(rows,), name="p"), x(k, shape=(size,), name="q")]
    elif kind == "mixed":
        pieces[1] = draw(random_reads([It(0, rows), It(1, size)]))
    elif kind == "number":
        pieces[1] = Num(2.0)
    inner = canonical(Scope((rows, size), (), Sum(tuple(pieces))))
    read = Read(inner, (it(0, rows), it(2, size)))
    others: list[Scalar] = [
        draw(random_reads([It(1, columns), It(2, size)], kinds=BARE))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Scope((rows, columns), (size,), product([read, *others]))


def closed(_scope: Scope) -> list[Scope]:
    """No product that is read is opened."""
    return []


@by_turns
def test_distribution(turn: int) -> None:
    def law(scope: Scope) -> list[Tensor]:
        found = [r for r in reads(scope.body) if isinstance(r.tensor, Scope)]
        return [
            answer
            for read in found
            if isinstance(read.tensor, Scope)
            for answer in some(end(contraction.distribute(scope, read, read.tensor, closed)))
        ]

    holds(turn, law, products_of_sums(), accepted=7)


def test_a_sum_under_a_maximum_is_not_distributed() -> None:
    inner = Scope((3,), (), Sum((x(it(0, 3), shape=(1,)), x(it(0, 3) - 1, shape=(2,), name="y"))))
    read = Read(inner, (it(0, 3),))
    assert end(contraction.distribute(Scope((), (3,), read), read, inner, closed)) is not None
    assert end(contraction.distribute(Scope((), (3,), read, "max"), read, inner, closed)) is None
    padded = Read(inner, (it(0, 4) - 1,))
    assert end(contraction.distribute(Scope((), (4,), padded), padded, inner, closed)) is None
    mapped = Scope((3,), (), Sum((Call("exp", (x(it(0, 3), shape=(3,)),)), BIAS)))
    assert end(contraction.distribute(Scope((), (3,), read), read, mapped, closed)) is None


@pytest.mark.parametrize(
    ("inside", "columns", "distributed"), [(2, 1, True), (9, 1, True), (2, 9, True), (9, 9, False)]
)
def test_a_sum_of_products_is_distributed_if_another_order_is_less_work(
    inside: int, columns: int, distributed: bool
) -> None:
    """``(b @ c + d @ e) @ v`` of 81 points by the columns of v becomes ``b @ (c @ v)``, and the
    same for d and e, if that is at most half of the 81 * columns points of the product with v, or a
    quarter of the 81 * inside points of ``b @ c``."""
    i, j, k = it(0, 9), it(1, 9), it(2, inside)

    def multiplied(left: str, right: str) -> Scope:
        factors = x(i, k, shape=(9, inside), name=left), x(k, j, shape=(inside, 9), name=right)
        return Scope((9, 9), (inside,), Prod(factors))

    products = [multiplied("b", "c"), multiplied("d", "e")]
    inner = Scope((9, 9), (), Sum(tuple(Read(p, (i, j)) for p in products)))
    read = Read(inner, (i, it(2, 9)))
    v = x(it(2, 9), it(1, columns), shape=(9, columns), name="v")
    scope = Scope((9, columns), (9,), Prod((read, v)))

    def opened(part: Scope) -> list[Scope]:
        (own,) = [r for r in reads(part.body) if isinstance(r.tensor, Scope)]
        assert own.tensor in products
        assert isinstance(own.tensor, Scope)
        return [inlined.scope for inlined in [path(part, Inline(own, own.tensor))] if inlined]

    assert end(contraction.distribute(scope, read, inner, closed)) is None
    found = end(contraction.distribute(scope, read, inner, opened))
    assert (found is not None) == distributed
    if found is not None:
        assert_equal(scope, found)


def test_a_product_in_a_sum_may_be_a_contraction_of_a_sum() -> None:
    """``(a + b @ (c + d)) @ v``: the terms of ``b @ (c + d)`` are contractions, as it is itself."""
    i, j, k = it(0, 9), it(1, 9), it(2, 2)
    summed = Scope((2, 9), (), Sum(tuple(x(it(0, 2), j, shape=(2, 9), name=n) for n in "cd")))
    factors = x(i, k, shape=(9, 2), name="b"), x(k, j, shape=(2, 9), name="weight")
    made = Scope((9, 9), (2,), Prod(factors))
    inner = Scope((9, 9), (), Sum((x(i, j, shape=(9, 9), name="a"), Read(made, (i, j)))))
    read, v = Read(inner, (i, it(2, 9))), x(it(2, 9), it(1, 1), shape=(9, 1), name="v")
    scope = Scope((9, 1), (9,), Prod((read, v)))

    def opened(part: Scope) -> list[Scope]:
        own = [(r, r.tensor) for r in reads(part.body) if isinstance(r.tensor, Scope)]
        return [found.scope for r, of in own for found in [path(part, Inline(r, of))] if found]

    def sums(read: Read) -> list[Scope]:
        return [summed] if read.tensor is factors[1].tensor else []

    found = end(contraction.distribute(scope, read, inner, opened, sums=sums))
    assert found is not None
    assert_equal(scope, found)


def test_the_best_order_of_a_product() -> None:
    i, j, k, n = it(0, 9), it(1, 7), it(2, 2), it(3, 5)
    b, c = x(i, k, shape=(9, 2), name="b"), x(k, j, shape=(2, 7), name="c")
    v, s = x(j, shape=(7,), name="v"), x(n, shape=(5,), name="s")

    def best(*factors: Read) -> int:
        its = dict.fromkeys(it_ for factor in factors for it_ in sorted(iterators(factor)))
        rest = [it_ for it_ in its if it_.slot > 0]
        order = {old: It(new, old.extent) for new, old in enumerate(rest, 1)}
        body = substitute(product(factors), lambda old: bare(order.get(old, old)))
        return ordering.in_best_order(Scope((9,), tuple(o.extent for o in rest), body))

    assert best(b, c, v) == 7 * 2 + 9 * 2
    # s has an iterator of its own: it is summed first, and then multiplies the smallest tensor.
    assert best(b, c, v, s) == 5 + 7 * 2 + 9 * 2 + 2
    # A product of constants is computed once, before the program runs.
    c = Read(weight("c", 2, 7), c.index)
    assert best(b, c, v) == 7 * 2 + 9 * 2
    v = Read(weight("v", 7), v.index)
    assert best(b, c, v) == 9 * 2
    # Two factors are contracted as they are.
    assert best(b, x(k, shape=(2,), name="w")) == 9 * 2


def chain(*extents: int) -> Scope:
    """``a @ b @ c`` of matrices with these extents."""
    first, *inner, last = extents
    i, j = it(0, first), it(1, last)
    ks = [it(n, extent) for n, extent in enumerate(inner, 2)]
    axes = list(itertools.pairwise([(i, first), *zip(ks, inner, strict=True), (j, last)]))
    factors = [x(a, b, shape=(m, n), name=f"m{p}") for p, ((a, m), (b, n)) in enumerate(axes)]
    return canonical(Scope((first, last), tuple(inner), product(factors)))


def last_products(scope: Scope) -> list[int]:
    """The points of the last product of each way to factor a product."""
    return sorted(math.prod(found.scope.extents) for found in contraction.factor(scope))


def test_orders_with_much_more_work_than_the_best_one_are_not_proposed() -> None:
    # (a @ b) @ c last multiplies 2 x 2 by 2 x 3, and a @ (b @ c) 2 x 80 by 80 x 3.
    assert last_products(chain(2, 80, 2, 3)) == [2 * 2 * 3, 2 * 80 * 3]
    # Of a row, a @ (b @ c) is 1 x n by n x n, and (a @ b) @ c takes 2 * n + 2 * n points.
    assert last_products(chain(1, 32, 2, 32)) == [2 * 32, 32 * 32]
    assert last_products(chain(1, 33, 2, 33)) == [2 * 33]
