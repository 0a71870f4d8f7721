"""Whole saturations of small programs: they are sound and repeatable, and stay small."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_in_worker, saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits, Phase
from eqsynth.egraph.schedule import saturate as run
from eqsynth.egraph.session import Session
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.egraph.tactics.variants import GATE_VARIANTS, is_map_of_several
from eqsynth.errors import EquivalenceError, RuleError, SaturationError
from eqsynth.executor import Worker
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical, canonical_term
from eqsynth.ir.scalar import Read, Scalar, rewrite_leaves, terms_of
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, args_of, topological
from eqsynth.numerics import rules_of
from eqsynth.rules import RuleSet, load_rules, rewind
from eqsynth.rules.load import DEFAULT_FILES
from eqsynth.testing.consistency import assert_egraph_consistent
from eqsynth.testing.strategies import operator_programs, scopes
from tests.egraph.programs import (
    LIMITS,
    PROGRAMS,
    RULES,
    chain,
    least_flops,
    saturate,
    saturated,
    weight,
)
from tests.terms import leaf, op, times
from tests.turns import in_turns


def most_of(law: str) -> int:
    limit = LAWS[law].variants
    assert limit is not None
    return limit.most


def operators_in(graph: EGraph) -> set[str]:
    return {m.name for members in graph.classes.values() for m in members if isinstance(m, Op)}


# ---- what a program must turn into ---------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize(("length", "classes"), [(3, 12), (4, 20), (6, 120)])
def test_a_chain_of_products_has_few_classes(length: int, classes: int) -> None:
    """Associativity adds one e-class for each interval of the chain."""
    graph = saturate(chain(length))
    intervals = length * (length + 1) // 2
    assert intervals <= len(graph.classes) <= classes
    shapes = {ref.shape for ref in graph.classes}
    extents = [2, 3, 5, 4, 3, 2, 6][: length + 1]
    assert {(a, b) for n, a in enumerate(extents) for b in extents[n + 1 :]} <= shapes


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("residual-block", {"FusedConv2dAdd"}),
        ("strided-conv", {"Matmul", "Conv2d"}),
        ("mlp", {"FusedMatmul"}),
        ("unfold", {"Conv2d"}),
        ("transposed-products", {"Matmul"}),
    ],
)
def test_library_operators_are_found(name: str, operators: set[str]) -> None:
    assert operators <= operators_in(saturated(name))


@pytest.mark.rotating
def test_a_sum_of_products_of_one_operand_has_few_classes() -> None:
    """All products are merged at once, so there is no e-class for each subset of the terms."""

    def size(count: int) -> int:
        x = leaf("x", 3, 4)
        parts = [op("Matmul", x, weight(f"w{n}", 4, 2)) for n in range(count)]
        whole = reduce(partial(op, "Add"), parts)
        graph = saturate_terms((whole,), RULES, DEFAULT_PHASES, LIMITS, False)
        assert graph.stop == "saturated"
        return len(graph.classes)

    assert size(12) <= 3 * size(4)


def test_a_constant_that_is_its_own_maximum_is_no_window_of_windows() -> None:
    """``c = max_k c[max(i + k - 1, 0)]``: with this scope put into itself again and again, windows
    of 12 iterators filled the e-graph."""
    one = op("Full", attrs=((1, 2, 5, 4), 1.0, "float32"))
    largest = op("MaxPool2d", one, attrs=((3, 3), (1, 1), (1, 1), (1, 1)))
    rules = rules_of((), "cancels", where="a proof", proving=True)
    with closing(Session(rules, constants=True)) as session:
        session.add([canonical_term(largest), one])
        assert run(session, PROVE_PHASES, LIMITS).stop == "saturated"
        assert session.engine.enodes() < 100


@pytest.mark.rotating
def test_a_chain_of_additions_grows_with_its_length() -> None:
    """``x + tanh(x @ w)`` repeated: a sum of all layers is fused at once, so that the number of
    e-nodes grows linearly."""
    rules = load_rules().select()

    def layers(count: int) -> EGraph:
        x = leaf("x", 2, 3)
        for _ in range(count):
            x = op("Add", x, op("Tanh", op("Matmul", x, weight("w", 3, 3))))
        return saturate_terms((x,), rules, DEFAULT_PHASES, LIMITS, True)

    two, six, eight, twelve = map(layers, (2, 6, 8, 12))
    # By a polynomial of degree two it would be 2.5 times as many.
    assert twelve.enodes - eight.enodes < 1.5 * (six.enodes - two.enodes)
    assert_egraph_consistent(six)
    sums = [
        [type(term).__name__ for term in terms_of(member.body)]
        for member in six.classes[six.roots[0]]
        if isinstance(member, Scope)
    ]
    assert sorted(["Read", *["Call"] * 6]) in map(sorted, sums)


@pytest.mark.rotating
def test_steps_of_gates_are_fused_in_a_bounded_number_of_ways() -> None:
    """``c = sigmoid(f) * c + sigmoid(i) * tanh(g)`` repeated. Each map may be fused into the map
    that reads it or not, in hundreds of ways, and a single round could find most of them."""

    def steps(count: int) -> EGraph:
        c = leaf("c", 2, 3)
        for step in range(count):
            f, i, g = (leaf(f"{gate}{step}", 2, 3) for gate in "fig")
            kept = op("Mul", op("Sigmoid", f), c)
            c = op("Add", kept, op("Mul", op("Sigmoid", i), op("Tanh", g)))
        return saturate_terms((c,), load_rules().select(), DEFAULT_PHASES, LIMITS, True)

    two, four, six, eight = map(steps, (2, 4, 6, 8))
    for graph in (four, six, eight):
        scopes_of = [
            [m for m in members if isinstance(m, Scope)] for members in graph.classes.values()
        ]
        assert max(map(len, scopes_of)) <= most_of("expression-fusion") + 1
    # By a polynomial of degree two it would be 2.3 times as many.
    assert eight.enodes - six.enodes < 1.5 * (four.enodes - two.enodes)
    assert_egraph_consistent(four)


def test_a_gate_is_one_kernel() -> None:
    """A gate has a member that reads only inputs: ``sigmoid(o) * tanh(c)`` of an LSTM and
    ``silu(g) * u`` of a transformer."""
    gate, value = leaf("g", 2, 3), leaf("u", 2, 3)
    for product in (
        op("Mul", op("Sigmoid", gate), op("Tanh", value)),
        op("Mul", op("Mul", gate, op("Sigmoid", gate)), value),
    ):
        graph = saturate(product)
        inputs = {ref for ref, members in graph.classes.items() if leaf_of(members)}
        whole = [
            member
            for member in graph.classes[graph.roots[0]]
            if isinstance(member, Scope) and set(args_of(member)) <= inputs
        ]
        assert whole
        assert_egraph_consistent(graph)


def test_a_gate_is_fused_in_few_ways() -> None:
    """The arguments of a gate are sums of products and biases, and each partial sum is an e-class
    that could be fused or not."""

    def gate(name: str) -> Tensor:
        return op("Add", op("Add", leaf(f"a{name}", 2, 3), leaf(f"b{name}", 3)), leaf(name, 2, 3))

    product = op("Mul", op("Sigmoid", gate("o")), op("Tanh", gate("c")))
    graph = saturate_terms((product,), load_rules().select(), DEFAULT_PHASES, LIMITS, True)
    scopes_of = [m for m in graph.classes[graph.roots[0]] if isinstance(m, Scope)]
    assert 2 <= len(scopes_of) <= GATE_VARIANTS + 1


def leaf_of(members: Sequence[Tensor]) -> bool:
    return any(isinstance(member, Input) for member in members)


@pytest.mark.rotating
def test_the_mean_of_stacked_products_is_one_product() -> None:
    w = weight("w", 4, 5)
    parts = [op("Reshape", op("Matmul", leaf(n, 3, 4), w), attrs=((1, 3, 5),)) for n in "ab"]
    graph = saturate(op("ReduceMean", op("Concat", *parts, attrs=(0,)), attrs=((0,), 0)))
    # (a + b) @ (w / 2), where w / 2 is a constant.
    assert least_flops(graph) == 3 * 4 + 2 * 3 * 4 * 5


def test_one_product_does_for_two() -> None:
    """a @ b + a @ c has the member a @ (b + c)."""
    graph = saturated("distributivity")
    a, b, c = (_leaf(graph, name) for name in "abc")
    (root,) = graph.roots
    sums = {
        ref
        for ref, members in graph.classes.items()
        if ref.shape == b.shape and any(set(args_of(m)) == {b, c} for m in members)
    }
    products = [m for m in graph.classes[root] if isinstance(m, Op) and m.name == "Matmul"]
    assert any(m.args[0] == a and m.args[1] in sums for m in products)


def test_a_square_has_no_factor_in_common_with_a_product() -> None:
    graph = saturated("square")
    (root,) = graph.roots
    assert not any(isinstance(m, Op) and m.name == "Matmul" for m in graph.classes[root])


def _leaf(graph: EGraph, name: str) -> ClassRef:
    return next(
        ref
        for ref, members in graph.classes.items()
        if any(m.label == name and not args_of(m) for m in members)
    )


def test_the_mean_of_a_product_is_a_product_of_the_mean() -> None:
    """The mean of x @ w over the rows becomes the mean of x, times w."""
    graph = saturated("pooled-linear")
    assert {(3,), (2,)} <= {ref.shape for ref in graph.classes}
    assert "factor" in graph.matches


# ---- repeatable --------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["attention", "residual-block", "layer-norm"])
def test_the_same_program_twice_is_the_same_e_graph(name: str) -> None:
    first, second = saturated(name), saturate(PROGRAMS[name]())
    assert first.matches == second.matches
    assert (first.enodes, first.eclasses) == (second.enodes, second.eclasses)
    assert list(map(str, first.classes)) == list(map(str, second.classes))
    assert first.log == second.log


@pytest.mark.rotating
def test_an_e_graph_that_was_used_before_goes_the_same_way() -> None:
    """A used engine is reset and used again for the next session. Its numbers determine the order
    of rewrites, so they have to start anew."""
    rewind._threads.kept.owners.clear()
    names = ["distributivity", "attention", "pooled-linear"]
    fresh = {}
    for name in names:
        fresh[name] = saturate(PROGRAMS[name]())
        rewind._threads.kept.owners.clear()
    for name in [*names, *reversed(names)]:
        again = saturate(PROGRAMS[name]())
        assert len(rewind._threads.kept.owners) == 1
        assert replace(again, seconds=0.0) == replace(fresh[name], seconds=0.0)


@pytest.mark.rotating
def test_an_engine_that_failed_is_not_used_again(tmp_path: Path) -> None:
    rewind._threads.kept.owners.clear()
    text = ';; x\' = x\n(rewrite (Permute x o) x :ruleset simplify :name "shape-wrong")'
    with pytest.raises(SaturationError):
        saturate(op("Permute", leaf("x", 2, 3), attrs=((1, 0),)), with_rules(tmp_path, text))
    assert all(key[0] == "loader" for key, _ in rewind._threads.kept.owners)


def test_a_saturated_graph_has_nothing_left_to_do() -> None:
    session = Session(RULES)
    session.add([PROGRAMS["distributivity"]()])
    assert run(session, DEFAULT_PHASES, LIMITS).stop == "saturated"
    size = session.engine.enodes()
    assert run(session, DEFAULT_PHASES, LIMITS).stop == "saturated"
    assert session.engine.enodes() == size


def test_limits_end_a_run_and_are_told() -> None:
    root = PROGRAMS["residual-block"]()
    assert saturate(root, limits=Limits(enodes=60)).stop == "node_limit"
    assert saturate(root, limits=Limits(deadline_s=0.0)).stop == "deadline"
    once = saturate_terms((root,), RULES, (Phase("define", ("define",), 1),), LIMITS, False)
    assert once.stop in ("rounds", "saturated") and once.log is None
    for graph in (saturate(root, limits=Limits(enodes=60)), once):
        assert_egraph_consistent(graph)


def test_time_that_was_spent_before_the_session_counts() -> None:
    root, limits, spent = op("Relu", leaf("a", 2)), Limits(deadline_s=1000.0), 2000.0
    for begun, stop in ((time.monotonic() - spent, "deadline"), (time.monotonic(), "saturated")):
        assert saturate_terms((root,), RULES, DEFAULT_PHASES, limits, False, begun).stop == stop


@pytest.mark.parametrize(("bound", "stop"), [("until", "deadline"), ("growth", "growth")])
def test_what_exploring_is_cut_short_at_is_matched_all_the_same(bound: str, stop: str) -> None:
    """The exploring phases get no time or no room. The phase after them still matches the product,
    which is written as a sum of products, to an operator."""
    phases = [
        replace(phase, **{bound: 0.0}) if phase.name in ("contract", "stack", "derive") else phase
        for phase in DEFAULT_PHASES
    ]
    a, b = leaf("a", 7, 5), leaf("b", 5, 6)
    wide = op("Mul", op("Reshape", a, attrs=((7, 5, 1),)), op("Reshape", b, attrs=((1, 5, 6),)))
    root = op("ReduceSum", wide, attrs=((1,), 0))
    assert "Matmul" not in operators_in(saturate_terms((root,), RULES, phases[:5], LIMITS, False))
    graph = saturate_terms((root,), RULES, phases, LIMITS, False)
    assert graph.stop == stop
    assert "Matmul" in operators_in(graph)


@pytest.mark.rotating
def test_views_of_several_operands_are_not_combined() -> None:
    """Attention scores of one token with rotary positions, keys in two pieces, and two query heads
    for each key head: sums of three products with many views each. Combined, they made 1,958
    members of one e-class; within 2,000 e-nodes 162."""
    q, cache, new = leaf("q", 4, 6), leaf("cache", 2, 5, 6), leaf("new", 2, 1, 6)
    cos, sin = leaf("cos", 6), leaf("sin", 6)

    low, high = (op("Slice", q, attrs=(1, *part, 1)) for part in ((0, 3), (3, 6)))
    turned = op("Concat", op("Neg", high), low, attrs=(1,))
    rotated = op("Add", op("Mul", q, cos), op("Mul", turned, sin))
    keys = op("Concat", cache, new, attrs=(1,))
    shared = op(
        "Reshape",
        op("Expand", op("Reshape", keys, attrs=((2, 1, 6, 6),)), attrs=((2, 2, 6, 6),)),
        attrs=((4, 6, 6),),
    )
    row = op("Reshape", rotated, attrs=((4, 1, 6),))
    scores = op("Matmul", row, op("Permute", shared, attrs=((0, 2, 1),)))
    limits = replace(LIMITS, enodes=2000)
    graph = saturate_terms((scores,), RULES, DEFAULT_PHASES, limits, False)
    maps = [sum(map(is_map_of_several, members)) for members in graph.classes.values()]
    assert max(maps) <= 4 * most_of("view-merge")
    assert_egraph_consistent(graph)


# ---- encoding ----------------------------------------------------------------


def back(session: Session, term: Tensor) -> Tensor:
    """A term decoded from its e-node, with the added terms in the place of e-classes."""
    view = session.view()
    made: dict[Tensor, Tensor] = {}
    for part in topological([term]):
        ref = view.refs[view.by_handle(session.handle(part))]
        (member,) = view.members(ref)
        made[ref] = member if not args_of(member) else _over(member, made)
        assert ref.type == part.type and ref.constant == part.constant
    return made[ref]


def _over(member: Tensor, made: dict[Tensor, Tensor]) -> Tensor:
    if isinstance(member, Op):
        return Op(member.name, tuple(made[arg] for arg in member.args), member.attrs)
    assert isinstance(member, Scope)

    def read(part: Scalar) -> Scalar:
        return Read(made[part.tensor], part.index, part.fill) if isinstance(part, Read) else part

    body = rewrite_leaves(member.body, read)
    return Scope(member.traversal, member.reduction, body, member.reducer)


@in_turns
@settings(max_examples=times(0.3))
@given(st.one_of(scopes(), operator_programs(steps=4, dtypes=("float32", "int64"), empty=True)))
def test_terms_come_back_as_they_went_in(term: Tensor) -> None:
    with closing(Session(RULES)) as session:
        session.add([term])
        assert back(session, term) == term


def test_a_term_that_is_added_twice_is_one_class() -> None:
    session = Session(RULES)
    x = leaf("x", 2, 3)
    first, second = session.add([op("Relu", x), op("Relu", leaf("x", 2, 3))])
    assert first == second
    assert session.add([x]) == [session.handle(leaf("x", 2, 3))] != [first]


@pytest.mark.rotating(parts=4)
def test_what_is_cached_of_a_class_is_not_taken_for_it_when_it_is_constant(tmp_path: Path) -> None:
    """Both sessions have the same program. In the second one, a rule makes the difference constant.
    The scope that reads it has to be constant too, although the process has cached the first."""
    text = ';; a - b = exp(a)\n(rewrite (Sub a b) (Exp a) :ruleset simplify :name "sub-wrong")'
    w = weight("w", 2, 3)
    difference, exp = op("Sub", w, leaf("x", 2, 3)), op("Exp", w)
    constant = []
    for rules in (RULES, with_rules(tmp_path, text)):
        with closing(Session(rules)) as session:
            session.add([difference, exp])
            session.round("simplify", 100)
            view = session.view()
            ref = view.refs[view.by_handle(session.handle(difference))]
            read = Read(ref, (Index.iterator(1, 2), Index.iterator(0, 3)))
            constant.append((ref.constant, canonical(Scope((3, 2), (), read)).constant))
    assert constant == [(False, False), (True, True)]


# ---- rules that are wrong --------------------------------------------------------

HEADER = ";; wrong.egg\n;; Numerics   bitwise\n;; Status     validated\n\n"


def with_rules(tmp_path: Path, text: str) -> RuleSet:
    path = tmp_path / "wrong.egg"
    path.write_text(HEADER + text, encoding="utf-8")
    return load_rules([*DEFAULT_FILES, path])


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("text", "program"),
    [
        (";; exp(x) = relu(x)\n(rewrite (Exp x) (Relu x) :ruleset simplify :name \"exp-wrong\")",
         op("Exp", leaf("x", 2, 3))),
        (";; x // m = x\n(rewrite (IDiv x m) x :ruleset index :name \"div-wrong\")",
         op("Reshape", leaf("x", 2, 3), attrs=((6,),))),
        (";; relu = id\n(rewrite (Call \"relu\" v) (vec-get v 0)\n"
         "  :ruleset scalar :name \"relu-wrong\")",
         op("Relu", leaf("x", 2, 3))),
        (";; a - b = b - a\n(rewrite (Sub a b) (Sub b a) :ruleset simplify :name \"sub-wrong\")",
         op("Sub", leaf("x", 2, 3), leaf("y", 2, 3))),
    ],
    ids=["operator", "index", "scalar", "commuted"],
)  # fmt: skip
def test_an_unsound_rule_is_seen_in_the_values(tmp_path: Path, text: str, program: Tensor) -> None:
    graph = saturate(program, with_rules(tmp_path, text))
    with pytest.raises(EquivalenceError) as caught:
        assert_egraph_consistent(graph)
    assert caught.value.got and caught.value.expected
    assert_egraph_consistent(saturate(program))


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (";; x' = x\n(rewrite (Permute x o) x :ruleset simplify :name \"shape-wrong\")",
         op("Permute", leaf("x", 2, 3), attrs=((1, 0),))),
        (";; cast(x) = x\n(rewrite (Cast x d) x :ruleset simplify :name \"dtype-wrong\")",
         op("Cast", leaf("x", 2, 3), attrs=("int64",))),
    ],
    ids=["shape", "dtype"],
)  # fmt: skip
def test_a_rule_that_changes_a_type_is_refused(tmp_path: Path, text: str, program: Tensor) -> None:
    rules = with_rules(tmp_path, text)
    with pytest.raises(SaturationError) as caught:
        saturate(program, rules)
    assert caught.value.rules == (next(n for n in rules.names if n.endswith("-wrong")),)


def test_a_law_that_nobody_answers_is_refused(tmp_path: Path) -> None:
    text = """
(law unheard (Tensor) (Tensor Tensor))
;; e = whatever the law says
(rule ((= e (Relu x))) ((unheard-request e)) :ruleset define :name "unheard")
(rule ((unheard-answer e q)) ((union e q)) :ruleset define :name "unheard-apply")
"""
    with pytest.raises(RuleError) as caught:
        Session(with_rules(tmp_path, text))
    assert caught.value.got == "unheard"


# ---- what is found is kept -----------------------------------------------------------


# Runs in the worker: e-graphs are handed over as often as possible, and one law kills the process.
PLANTED = """
import os
from dataclasses import replace
from eqsynth.egraph import saturation
from eqsynth.egraph.tactics.table import LAWS
saturation._CHECKPOINT_S = saturation._CHECKPOINT_SHARE = 0.0
LAWS["match-epilogue"] = replace(LAWS["match-epilogue"], tactic=lambda view, row: os._exit(3))
"""


@pytest.mark.rotating(parts=4)
def test_the_end_of_a_worker_takes_nothing_away() -> None:
    """If the worker is killed, the e-graph that it found so far comes back, with its log."""
    product = op("Matmul", op("Matmul", leaf("a", 2, 8), leaf("b", 8, 8)), leaf("c", 8, 1))
    roots = (op("Relu", product), op("Add", product, leaf("d", 2, 1)))
    whole = saturate_terms(roots, RULES, DEFAULT_PHASES, LIMITS, True)
    with Worker() as worker:
        worker.run(exec, PLANTED, {})
        found = saturate_in_worker(worker, roots, RULES, limits=LIMITS)
        assert worker.run(pow, 2, 2) == 4
    assert found.stop == "worker killed" and whole.stop == "saturated"
    assert found.matches["factor"] == whole.matches["factor"]
    assert len(list(topological(roots))) < found.enodes < whole.enodes
    assert found.log is not None and whole.log is not None
    log = found.log.equalities
    assert log == whole.log.equalities[: len(log)] and len(log) == sum(found.matches.values())
    assert_egraph_consistent(found)


def test_a_fault_in_a_law_costs_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_view: object, _row: object) -> list[Tensor]:
        raise ZeroDivisionError("a fault in a law")

    product = op("Matmul", leaf("w", 8, 8), leaf("x", 8, 8))
    roots = (op("Relu", op("Matmul", product, leaf("y", 8, 1))),)
    whole = saturate_terms(roots, RULES, DEFAULT_PHASES, LIMITS, False)
    monkeypatch.setitem(LAWS, "factor", replace(LAWS["factor"], tactic=broken))
    found = saturate_terms(roots, RULES, DEFAULT_PHASES, LIMITS, False)
    assert not whole.faults and found.faults == {"factor": "ZeroDivisionError('a fault in a law')"}
    assert whole.matches["factor"] and not found.matches.get("factor")
    assert found.matches["match-matmul"] and found.stop == "saturated"
    assert_egraph_consistent(found)
