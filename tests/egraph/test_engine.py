"""The steps of the engine, tested on a schema of a dozen constructors."""

from __future__ import annotations

import math
import pickle
from itertools import count
from typing import Any

import pytest

from eqsynth.egraph.commands import Actions, Names
from eqsynth.egraph.engine import Engine
from eqsynth.egraph.snapshot import EClass, ENode, Handle, smallest_terms
from eqsynth.errors import SaturationError
from eqsynth.rules import RuleSet, load_text, rewind
from eqsynth.rules.bindings import egg

TEXT = """\
;; Status validated
(sort Tensor)
(sort Scalar)
(sort Idx)
(sort Ints (Vec i64))
(sort Idxs (Vec Idx))
(sort Scalars (Vec Scalar))
(sort Tensors (Vec Tensor))
(constructor Scope (Ints Ints String Scalar) Tensor)
(constructor Tok (i64) Tensor :unextractable)
(constructor Read (Tensor Idxs f64) Scalar)
(constructor Prod (Scalars) Scalar)
(constructor Sum (Scalars) Scalar)
(constructor Call (String Scalars) Scalar)
(constructor Num (f64) Scalar)
(constructor Value (Idx) Scalar)
(constructor It (i64 i64) Idx)
(constructor INum (i64) Idx)
(constructor IAdd (Idx Idx) Idx)
(function shape (Tensor) Ints :no-merge)
(ruleset analysis)
(ruleset r)
(constructor Input (String Ints) Tensor)
(constructor Matmul (Tensor Tensor) Tensor)
(constructor Add (Tensor Tensor) Tensor)
(constructor Relu (Tensor) Tensor)
(constructor Concat (Tensors i64) Tensor)
(rule ((= e (Input n s))) ((set (shape e) s)) :ruleset analysis :name "input-shape")
(rule ((= e (Relu a)) (= s (shape a))) ((set (shape e) s)) :ruleset analysis :name "relu-shape")
(rule ((= e (Add a b)) (= s (shape a)) (= s (shape b))) ((set (shape e) s))
  :ruleset analysis :name "add-shape")
(rule ((= e (Matmul a b)) (= x (shape a)) (= y (shape b)))
  ((set (shape e) (vec-of (vec-get x 0) (vec-get y 1)))) :ruleset analysis :name "matmul-shape")
(rewrite (Add (Matmul a b) (Matmul a c)) (Matmul a (Add b c)) :ruleset r :name "factor")
(rewrite (Relu (Relu a)) (Relu a) :ruleset r :name "relu-twice")
(rewrite (Add a b) (Add b a) :ruleset r :name "add-commute")
(rewrite (Matmul a b) (Matmul b a) :ruleset r :name "unsound")
(rewrite (IAdd (INum a) (INum b)) (INum (+ a b)) :ruleset r :name "fold")
(rewrite (Input n s) (Input n (vec-remove s 9)) :ruleset r :name "panics")
(rewrite (Concat ts k) (Concat (vec-pop ts) k) :ruleset r :name "concat-pop")
(rewrite (Concat (vec-of a (Relu b)) k) (Concat (vec-of b a) k) :ruleset r :name "concat-vec")
(law split (Tensor Ints) (Tensor Tensor))
(rule ((= e (Scope t s "sum" b)) (>= (vec-length s) 2)) ((split-request e s))
  :ruleset r :name "split")
(rule ((split-answer e x)) ((union e x)) :ruleset r :name "split-apply")
"""


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load_text(TEXT, "engine.egg")


@pytest.fixture
def engine(rules: RuleSet) -> Engine:
    return Engine(rules)


def leaf(name: str, *shape: int) -> tuple[Any, ...]:
    return ("Input", name, list(shape))


def factored(engine: Engine) -> tuple[Handle, ...]:
    a, b, c = engine.insert([leaf("a", 4, 5), leaf("b", 5, 6), leaf("c", 5, 6)])
    (e,) = engine.insert([("Add", ("Matmul", a, b), ("Matmul", a, c))])
    return a, b, c, e


def test_match_reads_apply_unites(engine: Engine) -> None:
    a, b, c, e = factored(engine)
    assert engine.analyse().saturated
    rule = engine.rules["factor"]
    before = engine.snapshot()
    (match,) = engine.match(rule)
    assert match == tuple(before.handles[handle] for handle in (e, a, b, c))
    assert engine.match(rule) == []
    assert engine.snapshot().enodes == before.enodes == engine.enodes()
    assert engine.apply(rule) and not engine.apply(rule)
    assert engine.analyse().saturated
    after = engine.snapshot()
    assert {node.function for node in after.classes[after.handles[e]]} == {"Add", "Matmul"}
    assert engine.match(rule) == []
    assert (after.handles[e], (4, 6)) in after.rows["shape"]
    assert engine.eclasses() == len(after.classes)
    left, right = rule.instance(match)
    assert left == ("Add", ("Matmul", match[1], match[2]), ("Matmul", match[1], match[3]))
    assert right == ("Matmul", match[1], ("Add", match[2], match[3]))


def test_new_matches_are_new_after_unions_renumber(engine: Engine) -> None:
    x, y = engine.insert([leaf("x", 2), leaf("y", 2)])
    engine.insert([("Add", x, y)])
    rule = engine.rules["add-commute"]
    assert len(engine.match(rule)) == 1
    assert engine.apply(rule)
    assert len(engine.match(rule)) == 1  # the commuted one
    engine.apply(rule)
    assert engine.match(rule) == []
    engine.insert(facts=[("split-answer", x, y)])
    engine.apply(engine.rules["split-apply"])
    assert engine.match(rule) == []  # both rows became (Add x x), which says nothing new
    engine.insert([("Add", leaf("z", 2), leaf("w", 2))])
    assert len(engine.match(rule)) == 1


def test_matches_wait_until_they_are_applied(engine: Engine) -> None:
    (x,) = engine.insert([("Relu", ("Relu", leaf("x", 2)))])
    rule = engine.rules["relu-twice"]
    assert len(engine.match(rule)) == 1
    engine.insert([("Relu", ("Relu", ("Relu", leaf("y", 2))))])
    assert len(engine.match(rule)) == 2
    engine.apply(rule)
    engine.match(rule), engine.apply(rule)
    relus = [n for nodes in engine.snapshot().classes.values() for n in nodes if n[0] == "Relu"]
    snapshot = engine.snapshot()
    assert ENode("Relu", (snapshot.handles[x],)) in snapshot.classes[snapshot.handles[x]]
    assert len(relus) == 4


def test_law_files_requests_and_takes_answers(engine: Engine) -> None:
    body = ("Read", leaf("x", 3), [("It", 0, 3)], 0.0)
    e, other = engine.insert([("Scope", [3], [2, 2], "sum", body), leaf("z", 3)])
    ((eclass, extents),) = engine.match(engine.rules["split"])
    assert extents == (2, 2) and engine.snapshot().handles[e] == eclass
    assert engine.match(engine.rules["split"]) == []
    engine.insert(facts=[("split-answer", e, ("Relu", other))])
    assert engine.apply(engine.rules["split-apply"])
    snapshot = engine.snapshot()
    assert {node.function for node in snapshot.classes[eclass]} == {"Scope", "Relu"}
    assert len(engine.rows("split-request")) == 1


def test_values_come_back_as_they_went_in(engine: Engine) -> None:
    numbers = [0.1, 1e-300, -0.0, math.inf, -math.inf, 5e300, math.nan]
    strings = ["", 'a"b', "back\\slash", "é\n"]
    body = ("Sum", [("Call", text, [("Num", number)]) for number in numbers for text in strings])
    engine.insert([("Scope", [2**63 - 1, -(2**63)], [], "max", body)])
    nodes = [node for found in engine.snapshot().classes.values() for node in found]
    read = [node.args[0] for node in nodes if node.function == "Num"]
    assert sorted(map(repr, read)) == sorted(map(repr, numbers))
    assert {node.args[0] for node in nodes if node.function == "Call"} == set(strings)
    (scope,) = (node for node in nodes if node.function == "Scope")
    assert scope.args[:3] == ((2**63 - 1, -(2**63)), (), "max")


def test_snapshot_is_plain_data(engine: Engine) -> None:
    factored(engine)
    snapshot = engine.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_name_gives_every_class_a_handle_and_no_new_enode(engine: Engine) -> None:
    *_, e = factored(engine)
    body = ("Read", e, [("IAdd", ("It", 0, 4), ("INum", 1)), ("It", 1, 6)], 0.0)
    engine.insert([("Relu", ("Scope", [4, 6], [], "sum", body))])
    before = engine.snapshot()
    tensors = [eclass for eclass in before.classes if eclass.sort == "Tensor"]
    named = engine.name(tensors, before)
    after = engine.snapshot()
    assert after.enodes == before.enodes
    assert {eclass: after.handles[handle] for eclass, handle in named.items()} == {
        eclass: eclass for eclass in tensors
    }
    assert named[before.handles[e]] == e
    assert engine.name(tensors, after) == named


def test_smallest_term_avoids_cycles(engine: Engine) -> None:
    (x,) = engine.insert([("Relu", ("Relu", leaf("x", 2)))])
    rule = engine.rules["relu-twice"]
    engine.match(rule), engine.apply(rule)
    snapshot = engine.snapshot()
    assert smallest_terms(snapshot)[snapshot.handles[x]] == x
    bare = type(snapshot)(snapshot.classes, snapshot.rows, {})
    assert smallest_terms(bare)[snapshot.handles[x]] == ("Relu", ("Input", "x", (2,)))


def test_unsound_rule_is_caught_and_named(engine: Engine) -> None:
    factored(engine)
    engine.analyse()
    rule = engine.rules["unsound"]
    assert engine.match(rule)
    with pytest.raises(SaturationError) as caught:
        engine.apply(rule)
        engine.analyse()
    assert caught.value.rules == ("unsound",)
    assert "shape" in caught.value.what
    with pytest.raises(SaturationError, match="dead"):
        engine.snapshot()
    with pytest.raises(SaturationError, match="dead"):
        engine.match(engine.rules["fold"])


def test_contradicting_input_is_caught_without_a_suspect(engine: Engine) -> None:
    (x,) = engine.insert([leaf("x", 2)], values=[(("shape", leaf("x", 2)), [2])])
    with pytest.raises(SaturationError) as caught:
        engine.insert(values=[(("shape", x), [3])])
    assert caught.value.rules == () and caught.value.where == "insert"


def test_panic_is_an_error_and_the_engine_is_dead(engine: Engine) -> None:
    engine.insert([leaf("x", 2)])
    with pytest.raises(SaturationError) as caught:
        engine.match(engine.rules["panics"])
    assert caught.value.rules == ("panics",)
    assert engine.dead


def test_overflow_is_no_match(engine: Engine) -> None:
    index = ("IAdd", ("INum", 2**63 - 1), ("INum", 1))
    engine.insert([("Scope", [1], [], "sum", ("Value", index))])
    assert engine.match(engine.rules["fold"]) == []


def test_vector_patterns_match_vectors_of_their_length(engine: Engine) -> None:
    x, y = engine.insert([leaf("x", 2), leaf("y", 2)])
    engine.insert([("Concat", [x, ("Relu", y)], 0), ("Concat", [x, y, ("Relu", y)], 0)])
    engine.insert([("Concat", [x], 0), ("Concat", [], 0)])
    rule = engine.rules["concat-vec"]
    (match,) = engine.match(rule)
    handles = engine.snapshot().handles
    assert rule.instance(match)[1] == ("Concat", (handles[y], handles[x]), 0)
    assert engine.apply(rule)


def test_analysis_stops_at_its_bounds(engine: Engine) -> None:
    term: Any = leaf("x", 2)
    for _ in range(20):
        term = ("Relu", term)
    engine.insert([term])
    assert not engine.analyse(rounds=3).saturated
    assert not engine.analyse(tuple_limit=1).saturated
    assert engine.analyse().saturated


@pytest.mark.parametrize(
    "term",
    [
        ("Nothing", 1), ("Relu",), ("Relu", 1), ("Num", 1.0), ("Input", "x", 3), ("Input", 1, []),
        ("Input", "x", [2**63]), ("Input", "x", [True]), ("Relu", EClass("Tensor", 1)), (), "x",
        ("Scope", [1], [], "sum", Handle(0)), ("shape", Handle(0)),
    ],
)  # fmt: skip
def test_terms_that_do_not_fit_change_nothing(engine: Engine, term: Any) -> None:
    with pytest.raises(SaturationError, match="does not fit") as caught:
        engine.insert([leaf("x", 2), term])
    assert caught.value.expected and not engine.dead
    assert engine.tuples() == 0
    assert engine.insert([leaf("x", 2)]) == [Handle(0)]


def test_deep_and_shared_terms(engine: Engine) -> None:
    shared: Any = leaf("x", 2)
    for _ in range(60):
        shared = ("Add", shared, shared)
    engine.insert([shared])
    assert engine.enodes() == 61
    deep: Any = leaf("y", 2)
    for _ in range(3_000):
        deep = ("Relu", deep)
    engine.insert([deep])
    assert engine.enodes() == 61 + 3_001


def test_what_has_a_name_is_not_built_again(rules: RuleSet) -> None:
    """Adding a chain of terms takes as many rows as new terms; terms of an earlier insertion take
    none."""
    names = Names(rules)
    term: Any = ("Input", "x", [2])
    for added in (300, 20):
        actions = Actions(names)
        for _ in range(added):
            term = ("Relu", term)
            actions.add_union(Handle(len(names.numbers) + len(actions.fresh) + 1), term)
        assert len(actions.rows) == len(actions.fresh) == added + (added == 300)
        assert not actions.others and list(names.commands(actions))


def test_equal_parts_that_are_two_objects_are_built_once(rules: RuleSet) -> None:
    names, handles = Names(rules), count()
    for fresh in (4, 0):
        actions = Actions(names)
        read = ("Read", Handle(100), [("It", int("0"), 3), ("It", 1, 4)], -0.0)
        actions.add_union(Handle(next(handles)), ("Scope", [3, 4], [], "sum", read))
        assert len(actions.fresh) == fresh and len(actions.rows) == max(fresh, 1)
        list(names.commands(actions))
    actions = Actions(names)
    other = ("Read", Handle(100), [("It", 0, 3), ("It", 1, 4)], 0.0)
    actions.add_union(Handle(next(handles)), ("Scope", [3, 4], [], "sum", other))
    assert len(actions.fresh) == 2  # another fill is another read


def rules_added(engine: Engine, monkeypatch: pytest.MonkeyPatch, term: Any) -> int:
    """The rules that inserting the term adds to the e-graph."""
    added: list[Any] = []
    step = engine._step

    def seen(doing: str, *commands: Any) -> Any:
        added.extend(c for c in commands if isinstance(c, egg.RuleCommand))
        return step(doing, *commands)

    monkeypatch.setattr(engine, "_step", seen)
    engine.insert([term])
    return len(added)


def test_an_e_graph_keeps_the_rules_of_the_forms_that_it_met(
    rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of one program have terms of the same forms, so the rules of these are added once.
    What the next engine inserts is what a new e-graph would hold."""
    rewind._threads.kept.owners.clear()
    term, other = ("Relu", leaf("x", 2)), ("Add", leaf("x", 2, 3), ("Relu", leaf("y", 2, 3)))
    found = []
    # Input with a shape of 2, Relu; then Input with a shape of 2, 3 and Add.
    for one, new in ((term, 2), (term, 0), (other, 2), (term, 0), (other, 0)):
        engine = Engine(rules)
        assert rules_added(engine, monkeypatch, one) == new
        found.append((engine.enodes(), engine.snapshot().classes))
        engine.close()
    rewind._threads.kept.owners.clear()
    for one, n in ((term, 3), (other, 4)):
        engine = Engine(rules)
        engine.insert([one])
        assert found[n] == (engine.enodes(), engine.snapshot().classes)
        rewind._threads.kept.owners.clear()


def test_an_e_graph_keeps_the_rules_of_so_many_forms(
    rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqsynth.egraph.engine.MOST_FORMS", 5)
    rewind._threads.kept.owners.clear()
    for _ in range(3):
        engine = Engine(rules)
        for rank in range(1, 10):
            engine.insert([leaf("x", *range(rank))])
        assert engine.enodes() == 9
        lasting = len(engine._lasting)
        engine.close()
    assert lasting == 5


def test_what_fits_no_row_goes_in_all_the_same(engine: Engine) -> None:
    leaves = engine.insert([leaf(f"x {n}", 2) for n in range(40)])
    (whole,) = engine.insert([("Concat", [*leaves, ("Relu", leaves[0])], 0)])
    (again,) = engine.insert([("Concat", [*leaves, ("Relu", leaves[0])], 0)])
    snapshot = engine.snapshot()
    assert snapshot.handles[whole] == snapshot.handles[again]
    (node,) = snapshot.classes[snapshot.handles[whole]]
    assert node.args[0][:40] == tuple(snapshot.handles[handle] for handle in leaves)
    assert engine.enodes() == 42 and set(snapshot.handles) == {*leaves, whole, again}
