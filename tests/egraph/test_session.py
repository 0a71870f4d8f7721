"""A session reads what has changed, and asks what isn't known."""

from __future__ import annotations

from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, saturate
from eqsynth.egraph.session import Session
from eqsynth.egraph.view import Decoded, View
from tests.egraph.programs import RULES
from tests.terms import leaf, op

X, Y = leaf("x", 4, 8), leaf("y", 4, 8)


def defined() -> Session:
    """A small program after the rules that say what its operators mean."""
    session = Session(RULES)
    session.add([op("Relu", op("Add", X, Y)), op("Tanh", X)])
    saturate(session, DEFAULT_PHASES[:1], Limits())
    return session


def test_a_view_is_kept_until_a_class_changes() -> None:
    session = defined()
    view = session.view()
    assert session.fresh_view() is view
    # Requests are filed and answered with nothing: rows are new, classes are not.
    session.round("define", 1000)
    assert session.fresh_view() is view
    session.add([op("Exp", X)])
    assert session.fresh_view() is not view


def test_what_has_not_changed_is_read_once() -> None:
    session = defined()
    before = session.view()
    sums = {m for ref in before.refs.values() for m in before.scopes(ref)}
    session.add([op("Exp", X)])
    after = session.view()
    assert after is not before and sums
    again = {id(m) for ref in after.refs.values() for m in after.scopes(ref)}
    assert {id(m) for m in sums} <= again


def test_a_class_that_changes_is_read_again() -> None:
    """Numbers of classes change their meaning: what is remembered of them is what a view without a
    memory reads."""
    session = Session(RULES)
    # Indices of reshapes get smaller, so that one e-node reads as one scope, then as another.
    flat = op("Reshape", X, attrs=((32,),))
    session.add([op("Relu", op("Reshape", flat, attrs=((4, 2, 4),))), op("Add", X, Y)])
    sizes = set()
    for ruleset in ("define", "normal", "index", "normal", "index", "index", "normal", "match"):
        session.round(ruleset, 1000)
        view = session.view()
        bare = View(view.snapshot, view.refs, Decoded())
        for ref in view.refs.values():
            assert view.members(ref) == bare.members(ref)
        sizes.add(sum(len(view.members(ref)) for ref in view.refs.values()))
    assert len(sizes) > 3


def test_a_ruleset_that_found_nothing_waits_for_a_change() -> None:
    session = Session(RULES)
    session.add([op("Relu", op("Add", X, Y))])
    saturate(session, DEFAULT_PHASES, Limits())
    session.round("simplify", 1000)
    steps = session.engine.steps.total()
    assert session.round("simplify", 1000) == (False, [])
    assert session.engine.steps.total() == steps
    session.add([op("Relu", op("Relu", X))])
    session.engine.analyse()
    assert session.round("simplify", 1000) == (True, [])


def test_requests_are_counted_with_those_in_vain() -> None:
    session = Session(RULES)
    a, b, c = leaf("a", 2, 8), leaf("b", 8, 8), leaf("c", 8, 2)
    session.add([op("Matmul", op("Matmul", a, b), c)])
    saturate(session, DEFAULT_PHASES, Limits())
    asked, vain = session.requests.asked, session.requests.vain
    assert asked["definition"] >= 2 and vain["definition"] == 0
    assert 0 < vain.total() < asked.total()
    answered = asked - vain
    assert all(answered[law] for law in ("traversal-merge", "factor", "match-matmul"))
