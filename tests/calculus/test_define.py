"""The laws `define` and `match`: a term equals the scope that defines it, and matches no other
scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from eqsynth.calculus.define import Comprehension, Define, define, sides, with_numbers
from eqsynth.calculus.deriving import Match, Step, derive, hypotheses, match
from eqsynth.calculus.recount import Count, Recount
from eqsynth.calculus.select import rows
from eqsynth.egraph.defined import comprehension
from eqsynth.errors import EqsynthError, LawError
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, reads
from eqsynth.ir.scopes import bare
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.rules import load_rules
from tests.calculus.proposals import assert_one_value
from tests.terms import INF, it, leaf, op

MEANINGS = load_rules().meanings
A, B = leaf("a", 2, 3), leaf("b", 3, 4)
PRODUCT = op("Matmul", A, B)
IMAGE, KERNEL = leaf("x", 1, 2, 5, 4), leaf("w", 3, 2, 3, 2)


def conv(stride: int = 1, padding: int = 1, dilation: int = 1) -> Op:
    attrs = ((stride, 1), (padding, 0), (dilation, 1), 1)
    return op("Conv2d", IMAGE, KERNEL, attrs=attrs)


def defined(*terms: Tensor) -> tuple[tuple[Tensor, Comprehension], ...]:
    found = ((t, comprehension(t, MEANINGS)) for t in topological(terms) if isinstance(t, Op))
    return tuple((term, by) for term, by in found if by is not None)


def opened(term: Tensor) -> Scope:
    return sides(term, term, defined(term))[0]


# Views with random attributes, most of them of a product or a convolution.
def _view(random: Random, term: Tensor) -> Tensor:
    rank, axis = len(term.shape), random.randrange(len(term.shape))
    extent = term.shape[axis]
    order = tuple(random.sample(range(rank), rank))
    ends = tuple(random.choice((0, 0, 1)) for _ in range(rank)), (0,) * rank
    options: list[Callable[[], Tensor]] = [
        lambda: op("Permute", term, attrs=(order,)),
        lambda: op("Reshape", term, attrs=((*term.shape[1:], term.shape[0]),)),
        lambda: op("Reshape", term, attrs=((term.type.size,),)),
        lambda: op("Slice", term, attrs=(axis, 1, extent, random.choice((1, 2)))),
        lambda: op("Pad", term, attrs=(*ends, random.choice((0.0, 1.0)))),
        lambda: op("Shift", term, attrs=(axis, 1)),
        lambda: op("Concat", term, term, attrs=(axis,)),
        lambda: op("ReduceMax", term, attrs=((axis,), 1)),
    ]
    return random.choice(options)()


def _term(random: Random) -> Tensor:
    def viewed(term: Tensor) -> Tensor:
        return _view(random, term) if random.random() < 0.6 else term

    a, b = viewed(A), viewed(B)
    fits = len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0]
    product = op("Matmul", a, b) if fits else PRODUCT
    window = random.choice((1, 2)), random.choice((0, 1)), random.choice((1, 2))
    image = op("Relu", IMAGE)
    return viewed(random.choice((product, product, conv(*window), image, a)))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rotating)])
def test_a_term_is_what_it_opens_to_and_no_other_scope(seed: int) -> None:
    random, counts = Random(seed), Counter[str]()
    terms: list[Tensor] = []
    while len(terms) < 40:
        try:
            terms.append(_term(random))
        except EqsynthError:
            continue  # no such view of it
    known: list[tuple[Tensor, Scope]] = []
    for term in terms:
        known.append((term, opened(term)))
        assert_one_value(term, known[-1][1])
        counts["in part"] += any(isinstance(r.tensor, Op) for r in reads(known[-1][1].body))
    for term, scope in known:
        for other, _ in known:
            try:
                found = match(scope, Match(other, defined(other)))
            except LawError:
                counts["refused"] += 1
                continue
            counts["matched", other == term] += 1
            assert_one_value(scope, found)
    assert counts["matched", True] >= 40 and counts["refused"] >= 200 and counts["in part"] >= 2


def refused(condition: str, law: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(LawError) as error:
        law(*args)
    assert error.value.condition == condition


@pytest.mark.parametrize("other", [conv(2), conv(padding=0), conv(dilation=2)],
                         ids=["stride", "padding", "dilation"])  # fmt: skip
def test_another_attribute_is_another_scope(other: Op) -> None:
    scope = opened(conv())
    assert match(scope, Match(conv(), defined(conv()))) == conv()
    refused("match", match, scope, Match(other, defined(other)))


def test_a_product_is_matched_by_its_definition_alone() -> None:
    refused("match", match, opened(PRODUCT), Match(PRODUCT))
    refused("match", match, opened(PRODUCT), Match(op("Permute", PRODUCT, attrs=((1, 0),)),
                                                   defined(PRODUCT)))  # fmt: skip


def test_a_scope_opens_to_itself() -> None:
    """A sum of bools is computed in int64: it can't be inlined into a copy of itself."""
    counted = Scope((2,), (3,), Read(leaf("m", 2, 3, dtype="bool"), (it(0, 2), it(1, 3))))
    assert sides(counted, counted, ()) == (counted, counted)


def test_an_operator_counts_by_iterators_of_its_own() -> None:
    x, w = leaf("x", 2, 3, 4), leaf("w", 3, 4, 5)
    i, j, q, r = (it(n, extent) for n, extent in enumerate((2, 5, 3, 4)))
    scope = Scope((2, 5), (3, 4), Prod((Read(x, (i, q, r)), Read(w, (q, r, j)))))
    flat = [op("Reshape", t, attrs=(shape,)) for t, shape in ((x, (2, 12)), (w, (12, 5)))]
    product = op("Matmul", *flat)
    refused("match", match, scope, Match(product, defined(product)))
    k, new = It(2, 12), (It(3, 3), It(4, 4))

    def counted(step: int) -> tuple[Step, ...]:
        return (Recount((Count(k, bare(new[0]) * step + bare(new[1]), new),)),)

    assert match(scope, Match(product, defined(product), counted(4))) == product
    refused("values", match, scope, Match(product, defined(product), counted(3)))


def test_what_is_read_outside_is_its_number() -> None:
    """A slice reads only one piece of a concatenation: out of range, the other piece is 0. A read
    of a bias that is full of a number is that number."""
    both = op("Concat", B, leaf("c", 3, 2), attrs=(1,))
    part = op("Slice", op("Matmul", A, both), attrs=(1, 0, 4, 1))
    assert match(opened(PRODUCT), Match(part, defined(part))) == part
    more = op("Slice", op("Matmul", A, both), attrs=(1, 1, 5, 1))
    refused("match", match, opened(PRODUCT), Match(more, defined(more)))
    scope = Scope((2, 4), (), Read(PRODUCT, (it(0, 2), it(1, 4))))
    for value, law in ((0.0, match), (1.0, None)):
        bias = op("Full", attrs=((4,), value, "float32"))
        fused = op("FusedMatmul", A, B, bias, attrs=("none",))
        if law:
            assert match(scope, Match(fused)) == fused
        else:
            refused("match", match, scope, Match(fused))


PLACE = it(0, 4)
X, BYTE, FLAG, LONG = (
    Read(leaf(dtype, 4, dtype=dtype), (PLACE,)) for dtype in ("float32", "uint8", "bool", "int64")
)


def outside(like: Read, fill: float = 2.0) -> Read:
    """A read that is out of range at all places."""
    return Read(like.tensor, (PLACE + 9,), fill)


ABOVE = Call("gt", (Sum((BYTE, outside(X))), Num(100)))


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (Sum((X, outside(X))), False),
        (Call("where", (FLAG, Prod((X, outside(X))), X)), False),
        # 255 + 2 is 1 as a uint8; True or True is True, and True + 1 is 2; the least int64 is no
        # infinity, which is True as a condition.
        (Call("where", (ABOVE, X, Num(0))), True),
        (Cast("float32", Cast("int64", Sum((BYTE, outside(X))))), True),
        (Cast("float32", Sum((FLAG, outside(FLAG, 1.0)))), True),
        (Cast("float32", outside(LONG, -INF)), True),
        (Call("where", (outside(FLAG, -INF), X, Num(0))), True),
        (Sum((FLAG, Prod((BYTE, outside(X))))), True),
    ],
)
def test_a_number_takes_the_dtype_of_its_neighbours(body: Scalar, same: bool) -> None:
    """A read of ``x[i + 9]`` of 4 elements is its fill as a number only where all operands beside
    it have its dtype."""
    scope = Scope((4,), (), body)
    answer = with_numbers(scope)
    assert (answer == scope) == same
    assert_one_value(scope, answer)


def test_a_tensor_of_one_number_has_its_fill_outside() -> None:
    ones = op("Full", attrs=((4,), 1.0, "float32"))
    inside, before = (Scope((4,), (), Read(ones, (PLACE - n,))) for n in (0, 1))
    assert with_numbers(inside).body == Num(1.0) and with_numbers(before) == before
    past = Scope((4,), (), Sum((X, Read(X.tensor, (PLACE + 4,), 2.0))))
    assert with_numbers(past) == Scope((4,), (), Sum((Num(2.0), X)))


def test_a_tensor_that_is_made_of_itself_has_no_end() -> None:
    around = op("Pad", A, attrs=((0, 0), (0, 0), 0.0))
    refused("large", match, opened(PRODUCT), Match(A, ((A, around),)))
    many = op("Concat", *[A] * 65, attrs=(0,))
    refused("large", match, op("Slice", many, attrs=(0, 0, 2, 1)), Match(many))
    # The tensor that is matched may itself be read.
    unit = op("Slice", around, attrs=(0, 0, 2, 1))
    assert match(A, Match(unit, ((A, around),))) == unit


def test_an_operator_is_defined_as_what_it_is() -> None:
    sliced = op("Slice", B, attrs=(0, 0, 2, 1))
    assert_one_value(sliced, define(sliced, Define(sliced)))
    summed = op("ReduceSum", B, attrs=((0,), 0))
    assert_one_value(summed, define(summed, Define(summed)))
    refused("operator", define, PRODUCT, Define(PRODUCT))
    refused("type", define, A, Define(sliced))
    refused(
        "type",
        define,
        A,
        Define(Comprehension("(x) [i, j] = x[i, j]", (leaf("d", 2, 3, dtype="float64"),), ())),
    )


def test_what_an_operator_is_said_to_be_comes_first() -> None:
    """The definition of an operator is used only as the first step. No hypothesis is about an
    operator that earlier steps have made."""
    table, ids = leaf("t", 5, 3), leaf("ids", 4, dtype="int64")
    looked_up, at = rows(table, ids), (it(0, 4), it(1, 3))
    assert isinstance(looked_up, Op)
    tables = table, leaf("u", 5, 3)
    own, other = (Scope((5, 3), (), Read(t, (it(0, 5), it(1, 3)))) for t in tables)
    read = Read(looked_up, at)
    made = Match(rows(own, ids))
    assert isinstance(derive(Scope((4, 3), (), read), (made,)), Op)
    refused("first", derive, Scope((4, 3), (), read), (made, Define(rows(other, ids))))
    sliced = Define(op("Slice", B, attrs=(0, 1, 3, 1)))
    refused("first", derive, own, (Match(table), sliced))


def test_an_operator_of_equal_arguments_is_equal() -> None:
    """Only that the arguments are equal has to be known, not that the operators are; an operator
    with another name, other attributes or another number of arguments is a hypothesis whole."""
    x, y = leaf("x", 5, 3), leaf("y", 5, 3)
    own = op("ReduceSum", x, attrs=((0,), 0))
    others = op("ReduceSum", y, attrs=((0,), 0)), op("ReduceMax", y, attrs=((0,), 0))
    assert list(hypotheses(own, (Define(others[0]),))) == [(x, y)]
    assert list(hypotheses(own, (Define(others[1]),))) == [(own, others[1])]
    narrow = op("ReduceSum", y, attrs=((1,), 0))
    assert list(hypotheses(own, (Define(narrow),))) == [(own, narrow)]
    one, two = op("Concat", x, attrs=(0,)), op("Concat", x, y, attrs=(0,))
    assert list(hypotheses(one, (Define(two),))) == [(one, two)]
    assert list(hypotheses(x, (Define(own),))) == [(x, own)]


def test_a_tensor_is_its_own_copy() -> None:
    t = leaf("t", 4, 3)
    i, j = it(0, 4), it(1, 3)
    copy = Scope((4, 3), (), Read(t, (i, j)))
    assert derive(copy, (Match(t),)) == t and derive(t, (Match(copy),)) == copy
    for body in (Read(t, (i, j), 1.0), Read(t, (it(0, 4) * 1, j))):
        assert derive(Scope((4, 3), (), body), (Match(t),)) == t
    refused("match", match, Scope((3, 3), (), Read(t, (it(0, 3), j))), Match(t))
    refused("match", match, Scope((4, 3), (), Read(t, (i - 1, j))), Match(t))
    refused("match", match, copy, Match(leaf("u", 4, 3)))
    summed = Scope((4, 3), (2,), Read(t, (i, j)))
    refused("match", match, summed, Match(t))
