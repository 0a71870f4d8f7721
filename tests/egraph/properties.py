"""Helpers of the tests of tactics: :func:`holds` checks that a tactic's answers for random scopes
equal the scopes.

A test also fails if the tactic answers for too few of the scopes. Besides these properties, the
modules have directed tests at the edges of a law's conditions: one step further, the law would be
wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from eqsynth.egraph.tactics.paths import Path
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.rules import load_rules
from eqsynth.rules.scope_rules.syntax import ScopeRule
from eqsynth.testing.strategies import (
    EXTENTS,
)
from tests.terms import assert_equal, end, it, leaf, times

Law = Callable[[Scope], Iterable[Path | Tensor]]


def stated(name: str) -> ScopeRule:
    """The syntax tree of one of our rules of scopes."""
    scopes = load_rules()[name].scopes
    assert scopes is not None
    return scopes


def holds(
    turn: int, law: Law, strategy: st.SearchStrategy[Scope], *, accepted: int, examples: int = 50
) -> None:
    """Check that the law's answers equal their argument, and that at least ``accepted`` examples
    have an answer."""
    counts: Counter[str] = Counter()

    @seed(turn)
    @settings(max_examples=times(examples / 50))
    @given(strategy)
    def check(drawn: Scope) -> None:
        scope = canonical(drawn)
        answers = [end(answer) for answer in law(scope)]
        counts["answered"] += bool(answers)
        for answer in answers:
            assert_equal(scope, answer)

    check()
    assert counts["answered"] >= accepted, f"only {counts['answered']} of {examples} answered"


def some(answer: Tensor | None) -> list[Tensor]:
    return [] if answer is None else [answer]


def x(*at: Index, shape: tuple[int, ...], name: str = "x", fill: float = 0.0) -> Read:
    return Read(leaf(name, *shape), at, fill)


BIAS = x(Index(0), shape=(1,), name="bias")


@st.composite
def contractions(draw: st.DrawFn) -> Scope:
    """Draw a product of two reads whose axes are batch, m, n and k iterators in any order. Some
    indices are scaled and shifted, and some tensors are too small or too large."""
    extents = draw(st.lists(EXTENTS, min_size=4, max_size=6))
    places = draw(st.lists(st.sampled_from("bmnk"), min_size=len(extents), max_size=len(extents)))
    places[0] = "k"
    kept = [(e, p) for e, p in zip(extents, places, strict=True) if p != "k"]
    gone = [(e, p) for e, p in zip(extents, places, strict=True) if p == "k"]
    its = [(it(slot, e), e, p) for slot, (e, p) in enumerate([*kept, *gone])]
    operands = []
    for name, own in (("a", "bmk"), ("b", "bkn")):
        axes = draw(st.permutations([(i, e) for i, e, p in its if p in own]))
        at = [i for i, _ in axes]
        shape = [e for _, e in axes]
        if at and draw(st.integers(0, 2)) == 0:
            n = draw(st.integers(0, len(at) - 1))
            at[n] = at[n] * draw(st.integers(1, 2)) + draw(st.integers(-1, 1))
            shape[n] = max(1, shape[n] + draw(st.integers(-1, 1)))
        constant = draw(st.booleans())
        tensor = leaf(name + "x".join(map(str, shape)), *shape, constant=constant)
        operands.append(Read(tensor, tuple(at)))
    body = Prod(tuple(draw(st.permutations(operands))))
    return Scope(tuple(e for e, _ in kept), tuple(e for e, _ in gone), body)
