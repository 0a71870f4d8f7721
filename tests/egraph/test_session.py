"""A session reads only the rows that have changed, and asks laws only what it doesn't know yet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from eqsynth.egraph.reading import Reader
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits, saturate
from eqsynth.egraph.session import Session
from eqsynth.egraph.view import Decoded, View
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Read, Sum
from eqsynth.ir.scopes import bare
from eqsynth.ir.tensor import ClassRef, Scope, args_of
from eqsynth.testing.search import assert_search_sound
from tests.egraph.programs import RULES
from tests.terms import leaf, op

X, Y = leaf("x", 4, 8), leaf("y", 4, 8)


def defined() -> Session:
    """A session with a small program, after the rules that define its operators."""
    session = Session(RULES)
    session.add([op("Relu", op("Add", X, Y)), op("Tanh", X)])
    saturate(session, DEFAULT_PHASES[:1], Limits())
    return session


def test_a_view_is_kept_until_a_class_changes() -> None:
    session = defined()
    view = session.view()
    assert session.fresh_view() is view
    # Laws are asked and answer nothing: there are new rows, but no new e-classes.
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
    """The number of an e-class may stand for other members later. A view with a cache reads the
    same members as a view without one."""
    session = Session(RULES)
    # Indices of reshapes become smaller, so that one e-node is decoded to different scopes.
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
    assert len(sizes) > 2


def at_each_round(session: Session, check: Callable[[View], None]) -> None:
    """Call ``check`` before each time that laws are asked, on programs in which e-classes merge and
    bodies become smaller."""
    a, b, c = leaf("a", 2, 8), leaf("b", 8, 8), leaf("c", 8, 2)
    flat = op("Reshape", X, attrs=((32,),))
    bias = op("Add", op("Relu", op("Matmul", a, b)), leaf("d", 8))
    products = op("Matmul", op("Matmul", a, b), c), op("Matmul", bias, c)
    session.add(
        [
            op("Relu", op("Reshape", flat, attrs=((4, 2, 4),))),
            op("Concat", *products, attrs=(0,)),
        ]
    )
    session.on_view = lambda: check(session.fresh_view())
    saturate(session, DEFAULT_PHASES, Limits())


def test_what_is_read_is_what_a_first_reading_reads() -> None:
    """A reader reuses rows and e-nodes that it has read before. It returns the same rows as a new
    reader, and for a known request the same object as before."""
    session = Session(RULES)
    known: dict[tuple[str, object], object] = {}
    united = []

    def check(view: View) -> None:
        snapshot, functions = view.snapshot, session.engine._freeze()
        first = Reader(session.engine._egraph, RULES.known)
        assert (dict(snapshot.classes), dict(snapshot.handles)) == first.classes(functions)
        for name in first.tables:
            rows = snapshot.rows[name]
            assert rows == first.rows(name, functions)
            if RULES.known.law_requested_by(name) is not None:
                assert all(known.setdefault((name, row), row) is row for row in rows)
        united.append(len(snapshot.handles) - len(set(snapshot.handles.values())))

    at_each_round(session, check)
    assert len(set(united)) > 5


def test_the_index_finds_each_request_that_is_due() -> None:
    session = Session(RULES)
    requests = session.requests
    again = []

    def check(view: View) -> None:
        for request in (r for r in RULES.rules if r.kind == "law-request"):
            rows = view.snapshot.rows[request.relation]
            asked = requests._asked
            new = {id(row) for row in rows if id(row) not in asked}
            due = {id(row) for row in rows if id(row) in asked and asked[id(row)].is_due(view)}
            assert {id(row) for _, row in requests.due(view, rows)} == new | due
            again.append(len(due))

    at_each_round(session, check)
    assert sum(again) > 50


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


@pytest.mark.rotating
def test_references_of_members_know_which_classes_have_become_constant() -> None:
    """The rows of ``a[i, i, k] + w[k] + b[i else 1.5]`` from the second on lie outside of a and b,
    so they are constant: the class of these rows is found to be so after a concatenation reads it.
    Extraction doesn't list a constant as a value that is computed."""
    i, k = bare(It(0, 3)), bare(It(1, 3))
    w, b = leaf("w", 3, constant=True), leaf("b", 1, constant=True)
    reads = Read(leaf("a", 1, 3, 3), (i, i, k)), Read(w, (k,)), Read(b, (i,), 1.5)
    searched = assert_search_sound([Scope((3,), (3,), Sum(reads), "min")], phases=PROVE_PHASES)
    constant = {ref: ref.constant for ref in searched.graph.classes}
    assert any(constant.values())
    for members in searched.graph.classes.values():
        for arg in chain.from_iterable(map(args_of, members)):
            assert isinstance(arg, ClassRef) and arg.constant == constant[arg]
