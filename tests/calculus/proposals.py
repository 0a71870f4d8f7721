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
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing.choices import Choices, DrawnChoices, Rejected
from eqsynth.testing.judging import Meaningless, Sides
from eqsynth.testing.literals import Literals
from eqsynth.testing.world import World, world_of_rule
from tests.terms import times

A = TypeVar("A")

KINDS = ("normal", "ties", "zeros")


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
) -> None:
    """Whatever the law gives for a random scope and random arguments equals the scope.

    Args:
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
        assert_one_value(scope, answer)

    check()
    assert counts["given"] >= given_back, counts
    assert not [condition for condition in refused if not counts[condition]], counts
