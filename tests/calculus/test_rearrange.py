"""The law `rearrange`: bodies that are the same polynomial are equal. With directed tests at the
edges of its conditions."""

from __future__ import annotations

import pytest

from eqsynth.calculus.rearrange import Rearrange, rearrange
from eqsynth.errors import LawError
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    composites,
    leaves,
    product,
    rebuild,
    total,
)
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import Choices, chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.world import World
from tests import terms
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Rearrange:
    """Propose the body after one to three random steps of algebra, some of them wrong."""
    body = scope.body
    for _ in range(world.choices.pick((1, 2, 3))):
        parts = [*composites(body), *leaves(body)]
        where = world.choices.pick(parts)
        body = _replaced(body, where, _step(world.choices, where, parts))
    return Rearrange(body)


def _step(choices: Choices, part: Scalar, parts: list[Scalar]) -> Scalar:
    operands = list(children(part))
    other = choices.pick(parts)
    match part:
        case Prod() if any(isinstance(factor, Sum) for factor in operands):
            at = next(n for n, factor in enumerate(operands) if isinstance(factor, Sum))
            rest = [*operands[:at], *operands[at + 1 :]]
            return total([product([*rest, term]) for term in children(operands[at])])
        case Call(fn="pow"):
            return product([operands[0]] * choices.pick((2, 2, 2, 3)))
        case Call(fn="div"):
            return product([operands[0], Call("reciprocal", (operands[1],))])
        case Sum() if chance(choices, 2):
            # Like a + b = a * (1 + b / a), but without the division: wrong, so it is refused.
            return product([operands[0], total([Num(1), *operands[1:]])])
    kind = choices.pick(("double", "cancel", "collect", "one", "drop", "swap", "sign"))
    if kind == "double":
        return total([product([Num(2), part]), product([Num(-1), part])])
    if kind == "cancel":
        return total([part, other, product([Num(-1), other])])
    if kind == "one":
        return product([Num(0.5), product([Num(2), part])])
    if kind == "collect":
        return rebuild(part, operands[::-1]) if operands else part
    if kind == "swap":
        return other
    if kind == "sign":
        return product([Num(-1), part])
    return rebuild(part, operands[:-1]) if isinstance(part, Sum | Prod) else part


def _replaced(body: Scalar, old: Scalar, new: Scalar) -> Scalar:
    if body == old:
        return new
    parts = [_replaced(part, old, new) for part in children(body)]
    return rebuild(body, parts) if parts else body


@by_turns
def test_whatever_is_rearranged_is_equal(turn: int) -> None:
    families = (*[polynomial] * 20, *FAMILIES)
    refused = ("dtype", "polynomial", "finite")
    never_wrong(rearrange, propose, families, given_back=25, refused=refused, examples=300,
                turn=turn)  # fmt: skip


def at(name: str, dtype: str = "float32", fill: float = 0.0, by: int = 0) -> Read:
    return Read(terms.leaf(name, 3, dtype=dtype), (terms.it(0, 3) - by,), fill)


X, Y, Z = (at(name) for name in "xyz")
FAR = at("x", fill=INF, by=1)
U, V = (at(name, "uint8") for name in "uv")
P, Q = (at(name, "bool") for name in "pq")
I64 = at("i", "int64")
EXP = Call("exp", (X,))




def times(number: float, scalar: Scalar) -> Scalar:
    return product([Num(number), scalar])


def minus(scalar: Scalar) -> Scalar:
    return times(-1, scalar)


@pytest.mark.parametrize(
    ("condition", "before", "after"),
    [
        ("iterators", X, Read(X.tensor, (terms.it(1, 3),))),
        ("iterators", X, Read(X.tensor, (terms.it(0, 2),))),
        ("dtype", Sum((P, Q)), Sum((Q, P))),
        ("dtype", Sum((X, U, minus(X))), U),
        ("polynomial", product([Num(2), U]), product([Num(0.5), U])),
        ("polynomial", Sum((Num(2.0**50), I64)), Sum((Num(2.0**50 + 1), I64))),
        ("polynomial", product([Num(2.0**60), I64]), product([Num(2.0**60 + 256), I64])),
        # Beside 2**50 * x, 3 * x isn't rounding.
        ("polynomial", X, total([times(2.0**50, X), times(-(2.0**50), X), times(3, X)])),
        ("polynomial", X, times(1 + 2.0**-40, X)),
        ("polynomial", X, Y),
        ("polynomial", Prod((X, Y)), product([Num(2), X, Y])),
        ("polynomial", Prod((X, Sum((U, V)))), Sum((Prod((X, U)), Prod((X, V))))),
        ("finite", Sum((FAR, Y, minus(FAR))), Y),
        ("finite", Y, Sum((FAR, Y, minus(FAR)))),
        ("finite", Sum((product([Num(2), EXP]), minus(EXP))), EXP),
        ("finite", times(0, EXP), Num(0)),
        ("finite", Prod((EXP, Sum((Y, Z)))), Sum((Prod((EXP, Y)), Prod((EXP, Z))))),
        ("finite", product([Num(INF), X]), product([Num(INF), X])),
        ("large", Call("pow", (Sum(tuple(at(str(n)) for n in range(20))), Num(4))), X),
    ],
)
def test_a_condition_that_fails_is_named(condition: str, before: Scalar, after: Scalar) -> None:
    with pytest.raises(LawError) as refused:
        rearrange(Scope((3,), (), before), Rearrange(after))
    assert (refused.value.law, refused.value.condition) == ("rearrange", condition)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Prod((X, Sum((Y, Z)))), Sum((Prod((X, Y)), Prod((X, Z))))),
        (Sum((X, Y, minus(X))), Y),
        (Call("pow", (Sum((X, minus(Y))), Num(2))),
         Sum((Prod((X, X)), product([Num(-2), X, Y]), Prod((Y, Y))))),
        (Sum((Prod((U, V)), U)), Prod((U, Sum((Num(1), V))))),
        (Sum((FAR, product([Num(2), FAR]))), product([Num(3), FAR])),
        (Sum((EXP, EXP)), product([Num(2), EXP])),
        (Call("div", (Sum((X, Y)), Z)), Prod((Sum((X, Y)), Call("reciprocal", (Z,))))),
        (Call("div", (X, Num(8))), product([Num(0.125), X])),
        *((Call("div", (X, Num(n))), Prod((Call("reciprocal", (Num(n),)), X))) for n in (0, INF)),
        (Call("pow", (Sum((U, V)), Num(2))),
         Sum((Prod((U, U)), times(2, Prod((U, V))), Prod((V, V))))),
        (Prod((Value(terms.it(0, 3)), Sum((X, Y)))),
         Sum(tuple(Prod((Value(terms.it(0, 3)), x)) for x in (X, Y)))),
        (Sum((times(0.1, X), times(0.2, X))), times(0.3, X)),
        (Sum((times(2.0**50, I64), I64)), times(2.0**50 + 1, I64)),
        (Sum((X, Value(terms.it(0, 3)), X)), Sum((product([Num(2), X]), Value(terms.it(0, 3))))),
    ],
)  # fmt: skip
def test_one_step_before_the_edge_it_is_equal(before: Scalar, after: Scalar) -> None:
    scope = Scope((3,), (), before)
    answer = rearrange(scope, Rearrange(after))
    assert answer != scope
    assert_one_value(scope, answer)
