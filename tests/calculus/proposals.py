"""Arguments proposed at random, as a tactic without any judgement would: the answers must be equal.

What a law refuses is counted, what it gives is held against the interpreter. So each condition of a
law is needed, or another stands in for it, and a tactic can't make the law say what isn't so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eqsynth.errors import LawError, ShapeError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Read, Scalar, Value, product, total
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing.choices import Choices, DrawnChoices, Rejected, chance
from eqsynth.testing.judging import Meaningless, Sides
from eqsynth.testing.literals import Literals
from eqsynth.testing.scope_samples import iterators, leaf, made_scope
from eqsynth.testing.world import World, world_of_rule
from tests.terms import INF, times

A = TypeVar("A")

KINDS = ("normal", "ties", "zeros")


DTYPES = ("float32", "float32", "float32", "float32", "uint8", "bool")


def polynomial(world: World) -> Scope:
    """Sums, products, powers and quotients of few reads, mostly floats, some infinite outside."""
    pick = world.choices.pick
    outer, inner = ([pick((2, 1, 3)) for _ in range(count)] for count in (1, pick((1, 0, 2))))
    its = iterators((*outer, *inner))
    base = pick(("float32", "float32", "float32", "float64", "int32", "uint8"))

    def atom() -> Scalar:
        kind = pick(("read", "read", "read", "read", "number", "value", "call"))
        one = pick(its)
        dtype = pick(DTYPES) if chance(world.choices, 6) else base
        fill = pick((0.0, 0.0, 0.0, INF, -INF)) if base.startswith("float") else 0.0
        at = Index.iterator(one.slot, one.extent)
        read = Read(leaf(world, (one.extent,), pick("ab"), dtype), (at - chance(world.choices, 3),),
                    fill)  # fmt: skip
        if kind == "number":
            return Num(pick((2.0, -1.0, 1.0, 0.0, 0.5 if base.startswith("float") else 3.0)))
        return Value(at) if kind == "value" else Call("abs", (read,)) if kind == "call" else read

    def made(depth: int) -> Scalar:
        kind = pick(("sum", "product", "sum", "product", "power", "quotient"))
        one = made(depth - 1) if depth and not chance(world.choices, 3) else atom()
        two = made(depth - 1) if depth and chance(world.choices, 2) else atom()
        if kind == "power":
            return Call("pow", (one, Num(2.0)))
        if kind == "quotient":
            return Call("div", (one, two))
        return total([one, two]) if kind == "sum" else product([one, two])

    return made_scope(outer, inner, made(2), pick(("sum", "sum", "max")))


def assert_one_value(left: Tensor, right: Tensor) -> None:
    """One type, and over the reals one value on each kind of data."""
    assert left.type == right.type, f"{left}\nbecame\n{right}"
    sides = Sides(left, right)
    for kind in KINDS:
        try:
            found = sides.verdict(kind, "cancels")
        except Meaningless:
            continue
        assert found is None, f"{found}\n{left}\nbecame\n{right}"


def never_wrong(
    law: Callable[[Scope, A], Scope],
    propose: Callable[[World, Scope], A],
    families: Sequence[Callable[[World], Tensor]],
    *,
    given_back: int,
    refused: Sequence[str],
    examples: int = 400,
    left: Callable[[Scope, A], Tensor] = lambda scope, _arguments: scope,
) -> None:
    """Whatever the law gives for a random scope and random arguments equals the scope.

    Args:
        left: what the answer has to equal, where that isn't the scope.
        given_back: how many scopes it gives at least that differ from the one it was given.
        refused: conditions that fail at least once each.
    """
    counts: Counter[str] = Counter()

    @settings(max_examples=times(examples / 50))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        choices: Choices = DrawnChoices(data.draw)
        try:
            world = world_of_rule(choices, Literals(), scopes=True)
            scope = choices.pick(families)(world)
            assume(isinstance(scope, Scope))
            assert isinstance(scope, Scope)
            arguments = propose(world, scope)
        except (Rejected, ShapeError):
            assume(False)
        try:
            answer = law(scope, arguments)
        except LawError as error:
            counts[error.condition] += 1
            return
        counts["given"] += answer != scope
        assert_one_value(left(scope, arguments), answer)

    check()
    assert counts["given"] >= given_back, counts
    assert not [condition for condition in refused if not counts[condition]], counts
