"""Helper of the tests of laws: :func:`never_wrong` calls a law with random scopes and arguments.

The law refuses the arguments, or its answer equals the scope by the interpreter. A test also counts
which conditions have refused arguments. So no tactic, however bad, can make a law give a wrong
answer, and the conditions that the test names are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from math import isinf
from typing import TypeVar

from hypothesis import find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import DrawFn, composite

from eqsynth.errors import LawError, ShapeError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Read, Scalar, Value, product, reads, total
from eqsynth.ir.tensor import Scope, Tensor, topological
from eqsynth.ir.types import is_float
from eqsynth.rules.claim import Claim
from eqsynth.testing.choices import Choices, DrawnChoices, RandomChoices, Rejected, chance
from eqsynth.testing.judging import Meaningless, Sides
from eqsynth.testing.literals import Literals
from eqsynth.testing.scope_samples import iterators, leaf, made_scope
from eqsynth.testing.world import World, world_of_rule
from tests.terms import INF, times

A = TypeVar("A")

SEARCH = settings(max_examples=2000, deadline=None, database=None)
KINDS = ("normal", "ties", "zeros")


DTYPES = ("float32", "float32", "float32", "float32", "uint8", "bool")


def polynomial(world: World) -> Scope:
    """A random scope of sums, products, powers and quotients of few reads. Most reads are of
    floats, and some have infinite fills."""
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
    """Check that both sides have the same type and, over the reals, the same values on each kind of
    data. Elements that are read are taken to be finite, so values aren't compared if an extremum
    over nothing is read."""
    assert left.type == right.type, f"{left}\nbecame\n{right}"
    inner = (term for term in topological([left]) if term is not left and isinstance(term, Scope))
    if any(0 in term.reduction and term.reducer in ("max", "min") for term in inner):
        return
    sides = Sides(left, right)
    for kind in KINDS:
        try:
            found = sides.verdict(kind, Claim("cancels"))
        except Meaningless:
            continue
        assert found is None, f"{found}\n{left}\nbecame\n{right}"


def is_typed(scope: Scope) -> bool:
    """Whether no read of integers or bools has a fractional fill, which has no meaning."""
    return all(
        is_float(read.tensor.dtype) or isinf(read.fill) or read.fill.is_integer()
        for term in topological([scope])
        if isinstance(term, Scope)
        for read in reads(term.body)
    )


def never_wrong(
    law: Callable[[Scope, A], Scope],
    propose: Callable[[World, Scope], A],
    families: Sequence[Callable[[World], Tensor]],
    *,
    given_back: int,
    refused: Sequence[str],
    examples: int = 200,
    left: Callable[[Scope, A], Tensor] = lambda scope, _arguments: scope,
    turn: int = 0,
) -> None:
    """Check that the law's answers for random scopes and random arguments equal the scopes.

    A generator of random numbers draws the scopes, because hypothesis takes longer to draw a scope
    than it takes to check one. If an answer is wrong, hypothesis looks for a smaller example.

    Args:
        left: returns the term that the answer has to equal, if that isn't the scope.
        given_back: the least number of answers that differ from the scope.
        refused: conditions that have to refuse arguments at least once each.
        examples: how many scopes are proposed in the quick profile.
        turn: each number gives other scopes.
    """

    def proposed(choices: Choices) -> tuple[Scope, A] | None:
        try:
            world = world_of_rule(choices, Literals(), scopes=True)
            scope = choices.pick(families)(world)
            if not isinstance(scope, Scope) or not is_typed(scope):
                return None
            return scope, propose(world, scope)
        except (Rejected, ShapeError):
            return None

    def judge(scope: Scope, arguments: A) -> str:
        """Return the condition that failed; otherwise "given" if the answer differs from the scope,
        or "the same"."""
        try:
            answer = law(scope, arguments)
        except LawError as error:
            return error.condition
        assert_one_value(left(scope, arguments), answer)
        return "given" if answer != scope else "the same"

    @composite
    def drawn(draw: DrawFn) -> tuple[Scope, A] | None:
        return proposed(DrawnChoices(draw))

    def is_wrong(case: tuple[Scope, A] | None) -> bool:
        try:
            return case is not None and not judge(*case)
        except AssertionError:
            return True

    wanted = times(examples / 50)
    first = 100 * wanted * turn
    cases = (proposed(RandomChoices(first + number)) for number in range(100 * wanted))
    made = (case for case in cases if case is not None)
    counts: Counter[str] = Counter()
    for case in islice(made, wanted):
        try:
            counts[judge(*case)] += 1
        except AssertionError:
            with suppress(NoSuchExample):
                smaller = find(drawn(), is_wrong, settings=SEARCH)
                assert smaller is not None
                judge(*smaller)
            raise
    assert counts["given"] >= given_back, counts
    # Calling a law is quick compared with checking its answer. So if a condition hasn't failed yet,
    # the law is called with further examples, whose answers aren't checked.
    missing = {condition for condition in refused if not counts[condition]}
    for case in made:
        if not missing:
            break
        try:
            law(*case)
        except LawError as error:
            missing.discard(error.condition)
    assert not missing, counts
