"""Strategies: what they draw is well formed and varied, and shrinks to the smallest of its kind."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.ir.data import FLOATS, sample, sample_all
from eqsynth.ir.data import INTEGERS as INTEGER_KINDS
from eqsynth.ir.index import Atom, FloorDiv, Index, It, Max, Min, Mod
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, composites, reads
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, topological
from eqsynth.ir.types import DTYPES, INTEGERS, TensorType, is_float
from eqsynth.rules import load_rules
from eqsynth.testing import assert_search_sound, strategies
from tests.terms import leaf, op

SEARCH = settings(max_examples=3000, derandomize=True, suppress_health_check=list(HealthCheck))


def smallest(strategy: st.SearchStrategy[Any], wanted: Any) -> Any:
    return find(strategy, wanted, settings=SEARCH)


def names(root: Tensor) -> list[str]:
    return [term.name for term in topological([root]) if isinstance(term, Op)]


# ---- shrinking -----------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["Softmax", "Matmul", "Concat", "ReduceSum", "LayerNorm"])
def test_a_program_shrinks_to_the_operator_that_matters(name: str) -> None:
    root = smallest(strategies.operator_programs(steps=5), lambda t: name in names(t))
    assert names(root) == [name]
    assert all(extent == 1 for term in topological([root]) for extent in term.shape)


@pytest.mark.rotating
def test_two_operators_that_matter_stay() -> None:
    def both(root: Tensor) -> bool:
        return {"Relu", "Permute"} <= set(names(root))

    root = smallest(strategies.operator_programs(steps=5), both)
    assert sorted(names(root)) == ["Permute", "Relu"] and root.type.size == 1


@pytest.mark.rotating
def test_a_size_that_matters_stays() -> None:
    """Of the input: what an operator makes larger would have to stay for its size."""

    def large(root: Tensor) -> bool:
        inputs = [t for t in topological([root]) if isinstance(t, Input) and t.name[0] == "x"]
        return "Relu" in names(root) and any(t.type.size >= 4 for t in inputs)

    root = smallest(strategies.operator_programs(steps=5), large)
    assert names(root) == ["Relu"] and root.type.size == 4


@pytest.mark.rotating
def test_values_that_are_shared_can_be_found() -> None:
    def shared(root: Tensor) -> bool:
        return isinstance(root, Op) and root.name == "Add" and len({*root.args}) == 1

    root = smallest(strategies.operator_programs(steps=1), shared)
    assert names(root) == ["Add"] and root.shape == (1,)


def divides(scope: Scope) -> bool:
    indices = [index for read in reads(scope.body) for index in read.index]
    return any(isinstance(atom, FloorDiv) for index in indices for atom, _ in index.terms)


def bounds_a_bound(scope: Scope) -> bool:
    atoms = [a for read in reads(scope.body) for index in read.index for a in parts_of(index)]
    return any(isinstance(a, Min) and isinstance(v, Max) for a in atoms for v in values_of(a))


def values_of(atom: Atom) -> list[Atom]:
    return [] if isinstance(atom, It) else [value for value, _ in atom.value.terms]


Finding = tuple[st.SearchStrategy[Scope], Callable[[Scope], Any], Callable[[Scope], bool]]
# What is looked for -> the strategy, whether a scope has it, and whether it is the smallest one.
SMALLEST: dict[str, Finding] = {
    "a reduction over three": (
        strategies.scopes(), lambda s: s.reduction and s.reduction[0] == 3,
        lambda s: (s.traversal, s.reduction) == ((), (3,)) and isinstance(s.body, Read),
    ),
    "a division": (
        strategies.products(), divides,
        lambda s: isinstance(s.body, Read) and max(s.extents) == 2,
    ),
    "a bound of a bound": (
        strategies.products(kinds=strategies.NESTED), bounds_a_bound,
        lambda s: isinstance(s.body, Read) and len(s.body.index) == 1 and max(s.extents) == 2,
    ),
    "a product of reads": (
        strategies.products(),
        lambda s: isinstance(s.body, Prod) and all(isinstance(f, Read) for f in s.body.factors),
        lambda s: s.extents == () and s.body.factors[1:] == s.body.factors[:1],
    ),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("wanted", SMALLEST)
def test_a_scope_shrinks_to_one_read(wanted: str) -> None:
    strategy, has, is_smallest = SMALLEST[wanted]
    assert is_smallest(smallest(strategy, has))


@pytest.mark.rotating
def test_an_array_shrinks_to_the_element_that_matters() -> None:
    kind = TensorType((2, 3), "float32")
    array = smallest(strategies.arrays(kind, ["few"]), lambda a: (a < 0).any())
    assert sorted(array.ravel()) == [-1, 0, 0, 0, 0, 0]
    assert smallest(strategies.shapes((1, 3)), lambda s: max(s) >= 3) == (3,)
    assert smallest(strategies.dtypes(), lambda d: not is_float(d)) == "uint8"


# ---- variety -------------------------------------------------------------------


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @seed(7)
    @settings(max_examples=count, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


@cache
def drawn_programs() -> list[Tensor]:
    dtypes = ("float32", "float32", "int64", "bool")
    return drawn(strategies.operator_programs(steps=6, dtypes=dtypes), 1500)


@pytest.mark.rotating
def test_programs_use_most_of_the_table() -> None:
    roots = drawn_programs()
    counts = Counter(name for root in roots for name in names(root))
    wanted = {row.name for row in OPERATORS.values() if not row.vendor and row.name != "Opaque"}
    missing = wanted - set(counts)
    assert len(missing) <= len(wanted) // 6, missing
    uses = Counter(
        len([1 for user in topological([root]) if isinstance(user, Op) and user.args.count(term)])
        for root in roots
        for term in topological([root])
    )
    assert sum(count for times, count in uses.items() if times > 1) > 100, "values are shared"


@pytest.mark.rotating
def test_no_window_of_a_maximum_is_padding_alone() -> None:
    """Its maximum would be -inf, and what rules make of -inf isn't judged."""
    pools = [t for root in drawn_programs() for t in topological([root]) if isinstance(t, Op)]
    pools = [pool for pool in pools if pool.name == "MaxPool2d"]
    assert len(pools) > 20 and any(pool.attrs[2] != (0, 0) for pool in pools)
    for pool in pools:
        x = Input("x", pool.args[0].type)
        value = evaluate(Op(pool.name, (x,), pool.attrs), {"x": np.zeros(x.shape)})
        assert np.isfinite(value).all(), str(pool)


@pytest.mark.rotating
def test_structures_are_what_chance_rarely_makes() -> None:
    roots = drawn(strategies.operator_programs(steps=4, structures=True), 400)
    found = {name for root in roots for name in names(root)}
    assert {"G2BMM", "GBMM", "UpsampleBilinear2d", "Iota", "Embedding", "Gather"} <= found
    pairs = Counter(
        f"{term.name} of {arg.name}"
        for root in roots
        for term in topological([root])
        if isinstance(term, Op)
        for arg in term.args
        if isinstance(arg, Op)
    )
    for pair in ("Split of Merge", "Embedding of Matmul", "Matmul of Embedding", "Cast of Equal"):
        assert pairs[pair], pairs


@pytest.mark.rotating
def test_bounded_indices_are_drawn() -> None:
    iterators = [It(0, 3), It(1, 4)]
    found = drawn(strategies.indices(iterators, ("bounded",)), 200)
    atoms = {type(atom).__name__ for index in found for atom, _ in index.terms}
    assert {"Min", "Max", "FloorDiv"} <= atoms


def parts_of(index: Index) -> list[Atom]:
    """The atoms of an index and of what they operate on."""
    inner = [a for atom, _ in index.terms if not isinstance(atom, It) for a in parts_of(atom.value)]
    return [atom for atom, _ in index.terms] + inner


@pytest.mark.rotating
def test_operations_on_operations_are_drawn() -> None:
    iterators = [It(0, 3), It(1, 4)]
    pairs = Counter(
        f"{type(atom).__name__} of {type(value).__name__}"
        for index in drawn(strategies.indices(iterators, ("nested",)), 1000)
        for atom in parts_of(index)
        for value in values_of(atom)
    )
    names = ("FloorDiv", "Mod", "Min", "Max")
    assert all(pairs[f"{outer} of {inner}"] for outer in names for inner in names), pairs


@pytest.mark.rotating
def test_terms_that_laws_join_are_drawn() -> None:
    found = drawn(strategies.indices([It(0, 3), It(1, 4)], ("alike",)), 300)
    kinds: Counter[str] = Counter()
    for index in found:
        atoms = [(atom, c) for atom, c in index.terms if isinstance(atom, FloorDiv | Mod)]
        for (a, c), (b, d) in itertools.combinations(atoms, 2):
            if a.divisor != b.divisor or not isinstance(a, FloorDiv):
                continue
            whole = isinstance(b, Mod) and a.value == b.value and c == d * a.divisor
            kinds["scaled" if whole and d != 1 else "whole" if whole else "apart"] += 1
            kinds["multiples"] += isinstance(b, FloorDiv) and 1 not in (c, d)
    assert {"scaled", "whole", "apart", "multiples"} <= set(+kinds), kinds


@pytest.mark.rotating
def test_bodies_of_every_function_are_drawn() -> None:
    functions = ("max", "abs", "one")
    dtypes = ("float32", "float64")
    found = drawn(strategies.scopes(dtypes=dtypes, functions=functions, empty=False), 600)
    calls = [c for s in found for c in composites(s.body) if isinstance(c, Call)]
    assert {c.fn for c in calls} == {"max", "abs", "eq"}
    assert any(c.fn == "max" and c.args[0] == c.args[1] for c in calls)
    assert all(any(c.fn == "max" and c.args[at] == Num(0.0) for c in calls) for at in (0, 1))
    ones = {c.dtype for s in found for c in composites(s.body) if isinstance(c, Cast)}
    assert ones == {"float32", "float64"}


@pytest.mark.rotating
def test_scopes_read_inside_and_outside() -> None:
    scopes = drawn(strategies.scopes(dtypes=("float32", "int8")), 300)
    inside = Counter(read.in_range() for scope in scopes for read in reads(scope.body))
    assert min(inside.values()) > 50
    assert {scope.reducer for scope in scopes} == {"sum", "max", "min", "prod"}
    assert any(0 in scope.extents for scope in scopes)


def test_indices_are_of_the_kinds_asked_for() -> None:
    iterators = [It(0, 3), It(1, 4)]
    for index in drawn(strategies.indices(iterators, strategies.BARE), 50):
        assert index.bare() in iterators


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_of_their_type(dtype: str) -> None:
    for array in drawn(strategies.arrays(TensorType((2, 3), dtype)), 60):
        assert array.shape == (2, 3)
        assert array.dtype == (np.float64 if is_float(dtype) else np.dtype(dtype))


def test_kinds_of_data_are_what_they_say() -> None:
    rng, kind = np.random.default_rng(0), TensorType((40,), "float32")
    data = {name: sample(name, kind, rng) for name in FLOATS}
    assert not data["zeros"].any() and (data["negative"] <= 0).all()
    assert len(set(data["ties"])) < len(data["ties"])
    assert data["offset"].min() > 50 and np.ptp(data["near-equal"]) < 0.1
    assert (data["normal"].astype(np.float32) == data["normal"]).all(), "float32 can hold it"
    for dtype in INTEGERS:
        large = sample("limits", TensorType((200,), dtype), rng)
        assert large.max() > np.iinfo(dtype).max // 2
        assert all(sample(k, TensorType((3,), dtype), rng).dtype == dtype for k in INTEGER_KINDS)


@given(st.data())
def test_positions_lie_in_range(data: st.DataObject) -> None:
    at = leaf("at", 5, dtype="int64")
    for root in (
        op("Gather", leaf("x", 3), at, attrs=(0,)), op("Embedding", leaf("t", 2, 3), at)
    ):
        env = data.draw(strategies.environments(root))
        assert evaluate(root, env).shape == root.shape
        assert evaluate(root, sample_all(root, integers="limits")).shape == root.shape


def test_a_scope_of_scopes_is_read_by_the_outer_one() -> None:
    for outer, read, inner in drawn(strategies.nested_scopes(strategies.products()), 30):
        assert isinstance(outer, Scope) and read.tensor == inner and read in set(reads(outer.body))


# ---- what a search makes of them -----------------------------------------------


@pytest.mark.slow
def test_every_law_of_indices_and_of_functions_fires() -> None:
    """Within some thousand programs, so that a long run tries each of them on many.

    Rules of proofs hold where both sides are finite: ``sqrt(x[i - 1 else -inf]) * i`` is NaN at
    i = 0, and 0 in the form in which a proof meets. So such programs have the other rules only."""
    nested = strategies.products(factors=(1, 2), traversal=(1, 3), kinds=strategies.NESTED)
    functions = strategies.scopes(
        empty=False,
        dtypes=("float32", "float64"),
        functions=("relu", "abs", "abs", "max", "min", "one"),
    )
    roots = strategies.scopes(empty=False, functions=("sqrt", "reciprocal"))
    programs = drawn(st.one_of(nested, nested, functions, functions, roots), 3000)
    rules, fired = load_rules(), set[str]()
    computing = rules.select(numerics=("bitwise", "real", "cancels"))
    wanted = {
        rule.name
        for rule in rules.rules
        if rule.kind == "rewrite" and rule.ruleset in ("index", "scalar")
    }
    for first in range(0, len(programs), 8):
        groups: dict[bool, list[Tensor]] = {}
        for program in programs[first : first + 8]:
            finite = bool(np.isfinite(evaluate(program, sample_all(program))).all())
            groups.setdefault(finite, []).append(program)
        for finite, group in groups.items():
            own = rules if finite else computing
            found = assert_search_sound(group, rules=own, phases=PROVE_PHASES)
            fired |= {name for name, count in found.graph.matches.items() if count}
        if wanted <= fired:
            break
    assert wanted <= fired, wanted - fired
