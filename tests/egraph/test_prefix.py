"""Sums over the places up to one: read off a cumulative sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.extract.candidates import candidates
from eqsynth.frontend.expr import Expr
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    composites,
    tensors,
)
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import RuleSet, load_rules
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import LIMITS, RULES, least_flops
from tests.terms import INF, it, leaf, op

Q, K, V = (Expr(leaf(name, 6, 2)) for name in "qkv")
X, W = Expr(leaf("x", 6, 3)), Expr(leaf("w", 3, 8))
ONES = op("Full", attrs=((9,), 1.0, "float32"))


# Without rules that lose digits, which multiply any square out.
KEEPING = load_rules().select(numerics=("bitwise", "real"))


def graph_of(root: Tensor, rules: RuleSet = RULES) -> EGraph:
    found = saturate_terms((root,), rules, DEFAULT_PHASES, LIMITS, False)
    assert found.stop == "saturated"
    assert_egraph_consistent(found)
    return found


def scores() -> Expr:
    return ops.matmul(Q, ops.transpose(K, 0, 1))


def ones(*shape: int) -> Expr:
    return ops.full(shape, 1.0)


def places(axis: int) -> Expr:
    return ops.reshape(ops.arange(6), (6, 1) if axis == 0 else (1, 6))


# A product of pairs (24 additions and multiplications), a cumulative sum of 24 elements, and a
# product of 6 rows with a matrix each (48): 96 where the scores take 144 and their product 144.
CAUSAL: dict[str, tuple[Callable[[], Expr], int]] = {
    "tril": (lambda: ops.matmul(ops.tril(scores()), V), 96),
    "triu": (lambda: ops.matmul(ops.triu(scores()), V), 96),
    "a mask of ones": (lambda: ops.matmul(ops.mul(scores(), ops.tril(ones(6, 6))), V), 96),
    "a mask of places": (lambda: ops.matmul(ops.mul(scores(), ops.to(
        ops.ge(places(0), places(1)), "float32")), V), 96),
    "filled with 0": (lambda: ops.matmul(ops.masked_fill(
        scores(), ops.lt(places(0), places(1)), 0.0), V), 96),
    "before itself": (lambda: ops.matmul(ops.tril(scores(), -1), V), 80),
    "one further": (lambda: ops.matmul(ops.tril(scores(), 1), V), 100),
    "ones alone": (lambda: ops.matmul(ops.tril(ones(6, 6)), X), 18),
    "ones from the end": (lambda: ops.matmul(ops.triu(ones(6, 6)), X), 18),
    "two of them": (lambda: ops.add(ops.matmul(ops.tril(ones(6, 6)), X), ops.matmul(
        ops.tril(ones(6, 6)), Expr(leaf("y", 6, 3)))), 36),
    "fewer rows than places": (lambda: ops.matmul(ops.tril(ones(4, 6)), X), 12),
    "more rows than places": (lambda: ops.matmul(ops.tril(ones(9, 6)), X), 27),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("case", CAUSAL)
def test_a_product_with_a_triangle_is_read_off_a_cumulative_sum(case: str) -> None:
    build, flops = CAUSAL[case]
    found = graph_of(build().tensor)
    assert found.matches["match-cumsum"]
    assert least_flops(found) == flops


Q64, K64, V64 = (Expr(leaf(name, 64, 2)) for name in "qkv")


def long_scores() -> Expr:
    return ops.matmul(Q64, ops.transpose(K64, 0, 1))


def squared(scores: Expr) -> Expr:
    return ops.mul(scores, scores)


# Of 64 places, 2 columns each: scores s = q k', and their product with v, are 16,384 each. By a
# running sum of pairs, 64 * 4 products, as many additions, and 64 * 2 * 2 multiply-adds.
LINEAR = 64 * (4 + 4 + 2 * 4)
SCALED: dict[str, tuple[Callable[[], Expr], int]] = {
    "scaled": (lambda: ops.tril(ops.mul(long_scores(), 2.0)), LINEAR + 64 * 2),
    "divided": (lambda: ops.tril(ops.div(long_scores(), 2.0)), LINEAR + 64 * 2),
    "scaled outside": (lambda: ops.mul(ops.triu(long_scores()), 2.0), LINEAR + 64 * 2),
    # tril(1) v is a running sum of its own: 64 * 2 additions, and 64 * 2 to add it.
    "shifted": (lambda: ops.tril(ops.add(long_scores(), 1.0)), LINEAR + 2 * 64 * 2),
    "shifted and all": (lambda: ops.add(long_scores(), 1.0), 2 * 2 * 64 * 4 + 2 * 64 + 128),
}  # fmt: skip


@pytest.mark.parametrize("case", SCALED)
def test_a_scaled_or_shifted_triangle_is_read_off_a_cumulative_sum(case: str) -> None:
    build, flops = SCALED[case]
    assert least_flops(graph_of(ops.matmul(build(), V64).tensor)) <= flops


SQUARES: dict[str, Callable[[], Expr]] = {
    "a square below": lambda: ops.tril(squared(long_scores())),
    "a shifted square": lambda: squared(ops.add(long_scores(), 1.0)),
    "a scaled and shifted square": lambda: squared(ops.add(ops.mul(long_scores(), 0.5), 1.0)),
    "a polynomial below": lambda: ops.tril(
        ops.add(ops.add(ops.mul(squared(long_scores()), 0.5), long_scores()), 1.0)),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("case", SQUARES)
def test_a_power_of_a_narrow_product_is_taken_apart(case: str) -> None:
    """(q k')^2 v is a product of 4 columns, the products of 2 columns of q, with 4 x 2 sums of k k
    v; the scores alone take 16,384."""
    found = graph_of(ops.matmul(SQUARES[case](), V64).tensor, KEEPING)
    assert least_flops(found) < 6000


ALGEBRA: dict[str, tuple[Callable[[], Expr], int]] = {
    # x has 3 columns, and x @ w 8: 18 additions, and 6 * 8 * 3 multiply-adds.
    "of a product": (lambda: ops.cumsum(ops.matmul(X, W), 0), 18 + 288),
    "before a product": (lambda: ops.matmul(ops.cumsum(Expr(leaf("z", 6, 8)), 0),
                                           Expr(leaf("u", 8, 3))), 18 + 288),
    "of fewer rows": (lambda: ops.narrow(ops.cumsum(X, 0), 0, 0, 2), 6),
    "the last row": (lambda: ops.select(ops.cumsum(X, 0), 0, -1), 18),
    "a sum of two": (lambda: ops.add(ops.cumsum(X, 0), ops.cumsum(Expr(leaf("y", 6, 3)), 0)), 36),
    "a difference of two": (lambda: ops.sub(ops.cumsum(X, 0), ops.cumsum(
        Expr(leaf("y", 6, 3)), 0)), 36),
    "summed along the other axis": (lambda: ops.sum(ops.cumsum(X, 0), 1), 24),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("case", ALGEBRA)
def test_a_cumulative_sum_is_linear(case: str) -> None:
    build, flops = ALGEBRA[case]
    assert least_flops(graph_of(build().tensor)) == flops


i, j, k, m = it(0, 6), it(1, 3), it(2, 6), it(3, 2)


def read(name: str, *index: Index, fill: float = 0.0) -> Read:
    return Read(leaf(name, *(at.range()[1] + 1 for at in index)), index, fill)


def guard(at: Index) -> Read:
    return Read(ONES, (at,))


def over(*factors: Scalar, reduction: tuple[int, ...] = (6,)) -> Scope:
    return Scope((6, 3), reduction, Prod(factors))


READ_OFF = {
    "at half of an index": over(read("x", k, j), guard(i // 2 - k)),
    "before an index": over(read("x", k, j), guard(i - 2 - k)),
    "from half of an index on": over(read("x", k, j), guard(k - i // 2)),
    "in reverse": over(read("x", k, j), guard(5 - i - k)),
    "with another sum": over(read("x", k, m), read("y", m, j), guard(i - k), reduction=(6, 2)),
    "shifted": Scope((6, 3), (6,), Read(leaf("x", 6, 3), (i - k - 1, j))),
    "forward": Scope((6, 3), (6,), Read(leaf("x", 6, 3), (i + k, j))),
    "twos": over(read("x", k, j), Read(op("Full", attrs=((9,), 2.0, "float32")), (i - k,))),
}


@pytest.mark.rotating
@pytest.mark.parametrize("case", READ_OFF)
def test_the_end_may_be_any_index(case: str) -> None:
    found = graph_of(READ_OFF[case])
    assert found.matches["match-cumsum"]


NOT = {
    "what is summed depends on the end": over(read("x", k, i), guard(i - k)),
    "every other place": over(read("x", k, j), guard(i - 2 * k)),
    "a band": over(read("x", k, j), Read(op("Full", attrs=((3,), 1.0, "float32")), (i - k,))),
    "twos": over(read("x", k, j), Read(op("Full", attrs=((9,), 2.0, "float32")), (i - k,), 1.0)),
    "a window": Scope((6, 3), (3,), Read(leaf("x", 6, 3), (i - it(2, 3), j))),
    "a maximum": Scope((6, 3), (6,), Read(leaf("x", 6, 3), (i - k, j), -INF), "max"),
    "another fill": Scope((6, 3), (6,), Read(leaf("x", 6, 3), (i - k, j), 1.0)),
    "integers": Scope((6, 3), (6,), Read(leaf("x", 6, 3, dtype="int64"), (i - k, j))),
}


@pytest.mark.rotating
@pytest.mark.parametrize("case", NOT)
def test_other_sums_are_no_cumulative_sums(case: str) -> None:
    found = graph_of(NOT[case])
    assert not found.matches.get("match-cumsum")


def test_a_long_sum_is_matched_without_counting_its_places() -> None:
    """4096 rows have 2**24 pairs, more than a law enumerates."""
    x = Expr(leaf("x", 4096, 2))
    found = saturate_terms(
        (ops.matmul(ops.tril(ones(4096, 4096)), x).tensor,), RULES, DEFAULT_PHASES, LIMITS, False
    )
    assert least_flops(found) == 2 * 4096


def test_an_infinity_that_a_choice_hides_is_no_factor() -> None:
    """where(c, where(c, s, -inf) - m, 0): in a product it would be 0 * -inf, which is NaN."""
    seen = ops.ge(places(0), places(1))
    masked = ops.masked_fill(Expr(leaf("s", 6, 6)), ops.lt(places(0), places(1)), -INF)
    apart = ops.sub(masked, Expr(leaf("m", 6, 1)))
    whole = ops.matmul(ops.where(seen, apart, 0.0), V)
    found = graph_of(whole.tensor)
    assert not found.matches.get("triangle-is-product")


def test_a_later_infinity_leaves_earlier_sums_finite() -> None:
    """A product with the condition k <= i would be 0 * inf, and so NaN, before the infinity. No
    member of any e-class is such a product, or a product of matrices."""
    found = graph_of(ops.cumsum(X, 0).tensor)
    members = [member for own in found.classes.values() for member in own]
    bodies = [member.body for member in members if isinstance(member, Scope)]
    assert bodies and all(isinstance(body, Read) for body in bodies)
    assert not any(isinstance(member, Op) and member.name == "Matmul" for member in members)


@pytest.mark.rotating
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_triangle_is_computed_by_a_choice(scale: float) -> None:
    """tril(x) is 0 where x is infinite above the diagonal; the product with ones would be NaN."""
    x = leaf("x", 6, 6)
    made = ops.relu(ops.add(ops.tril(ops.mul(Expr(x), scale)), 1.0)).tensor
    found = graph_of(made)
    assert found.matches["triangle-is-product"]
    constants = {ref for ref in found.classes if ref.constant and ref.shape}
    for own in candidates(found, (TorchBackend(),)).values():
        for scope in {one.member for one in own if isinstance(one.member, Scope)}:
            assert not any(
                isinstance(part, Prod) and constants & {*tensors(part)}
                for part in composites(scope.body)
            )  # fmt: skip


def test_a_condition_is_seen_in_any_comparison() -> None:
    body = Call("where", (Call("gt", (Sum((Value(i), Num(1.0))), Value(it(1, 6)))),
                          Read(leaf("x", 6, 6), (i, it(1, 6))), Num(0.0)))  # fmt: skip
    found = graph_of(op("Matmul", Scope((6, 6), (), body), leaf("v", 6, 2)))
    assert found.matches["triangle-is-product"]
