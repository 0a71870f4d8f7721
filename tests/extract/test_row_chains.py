"""Which row chains an e-graph has, and that a plan takes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.extract.candidates import unplaced
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.row_chains import MOST_SCOPES, MOST_TRIES, RowChains
from eqsynth.extract.search import extract
from eqsynth.extract.timing import Timing
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Num, Prod, Read, Sum
from eqsynth.ir.tensor import ClassRef, Input, Region, Scope, Weight, args_of, over, topological
from eqsynth.ir.work import flops
from eqsynth.lower.assemble import assemble
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.loop_nest import row_chain
from eqsynth.rules import load_rules
from tests.extract.egraphs import egraph, leaf, ref
from tests.extract.test_cost import TARGET
from tests.terms import it

RULES = load_rules().select(numerics=("bitwise", "real"))


def saturated(e: Expr) -> EGraph:
    program = program_of(e)[0]
    return saturate_terms(program.outputs, RULES, DEFAULT_PHASES, Limits(), log_matches=False)


def chains_of(graph: EGraph) -> list[tuple[ClassRef, Region]]:
    found = RowChains(graph)
    return [(here, region) for here in graph.classes for region in found.regions(here)]


def of_root(graph: EGraph) -> list[Region]:
    return [region for here, region in chains_of(graph) if here == graph.roots[0]]


def names(graph: EGraph, region: Region) -> set[str]:
    """The labels of the program's leaves that a region reads."""
    return {
        member.label
        for arg in region.args
        if isinstance(arg, ClassRef)
        for member in graph.classes[arg]
        if isinstance(member, Input | Weight)
    }


def reducers(region: Region) -> list[str]:
    inner = topological(region.outputs)
    return sorted(s.reducer for s in inner if isinstance(s, Scope) and s.reduction)


def x(*shape: int) -> Expr:
    return eqsynth.input("x", shape)


@pytest.mark.parametrize("shape", [(6, 40), (2, 3, 40), (1, 6, 40), (6, 1, 40), (1, 40)], ids=str)
def test_a_softmax_is_a_chain(shape: tuple[int, ...]) -> None:
    graph = saturated(ops.softmax(x(*shape), len(shape) - 1))
    (region,) = of_root(graph)
    assert reducers(region) == ["max", "sum"] and names(graph, region) == {"x"}


def test_what_several_scopes_read_is_computed_in_it_too() -> None:
    """softmax(0.5 * x + mask): over the sum, over what is added, and over x and the mask."""
    mask = eqsynth.input("mask", (40,))
    graph = saturated(ops.softmax(x(6, 40) * 0.5 + mask, 1))
    assert [names(graph, region) for region in of_root(graph)] == [set(), {"mask"}, {"x", "mask"}]


def test_a_layer_norm_with_a_residual() -> None:
    y, w, b = eqsynth.input("y", (6, 40)), eqsynth.weight("w", (40,)), eqsynth.weight("b", (40,))
    graph = saturated(ops.layer_norm(x(6, 40) + y, (40,), w, b))
    found = of_root(graph)
    assert {"x", "y", "w", "b"} in [names(graph, region) for region in found]
    assert all(reducers(region) == ["sum", "sum"] for region in found)


@pytest.mark.parametrize(
    "e",
    [
        ops.softmax(x(40, 6), 0),  # the rows lie apart
        ops.relu(ops.matmul(x(32, 64), eqsynth.weight("w", (64, 32)))),  # bound by arithmetic
        ops.relu(x(6, 40) + 1.0),  # nothing is reduced
        x(6, 4) / ops.sum(x(6, 4), 1, keepdim=True),  # short rows
    ],
    ids=["columns", "product", "map", "short"],
)
def test_what_is_no_chain(e: Expr) -> None:
    assert not of_root(saturated(e))


def test_every_chain_computes_its_class() -> None:
    """Each chain, over values of the classes that it reads, against the value of its own class."""
    graph = saturated(ops.softmax(x(5, 32) * 0.5, 1) * ops.rsqrt(eqsynth.input("s", (5, 1))))
    found = chains_of(graph)
    assert len(found) > 3
    values = values_of(graph)
    for here, region in found:
        assert row_chain(unplaced(region)) is not None
        inner = [term for term in topological(region.outputs) if args_of(term)]
        assert 2 <= len(inner) <= MOST_SCOPES
        env = {str(n): values[arg] for n, arg in enumerate(region.args)}  # type: ignore[index]
        got = evaluate(region.outputs[0], env)
        np.testing.assert_allclose(got, values[here], rtol=1e-9, atol=1e-12)


def test_a_value_at_its_row_and_at_another_is_an_argument() -> None:
    """``e[i, j, k] + m[j, i]`` reads m at another row than ``e[i, j, k] = x[i, j, k] - m[i, j]``
    does."""
    own = x(4, 4, 32)
    most = ops.amax(own, 2, keepdim=True)
    graph = saturated(ops.tanh(own - most) + ops.permute(most, (1, 0, 2)))
    assert of_root(graph)
    for _, region in chains_of(graph):
        assert row_chain(unplaced(region)) is not None


def test_values_that_are_computed_from_each_other() -> None:
    """a = b + m and b = a - m stand in their classes beside b = x - m."""
    given, most, a, b = ref(0, (4, 32)), ref(1, (4,)), ref(2, (4, 32)), ref(3, (4, 32))
    i, j = it(0, 4), it(1, 32)
    m = Read(most, (i,))

    def map_of(source: ClassRef, factor: float) -> Scope:
        body = Sum((Read(source, (i, j)), Prod((Num(factor), m))))
        return Scope((4, 32), (), body)

    graph = egraph({
        given: [leaf(Input, 0, (4, 32))],
        most: [Scope((4,), (32,), Read(given, (i, j)), "max")],
        b: [map_of(a, -1.0), map_of(given, -1.0)],
        a: [map_of(b, 1.0)],
    }, a)  # fmt: skip
    (region,) = of_root(graph)
    assert len([t for t in topological(region.outputs) if args_of(t)]) == 3
    assert region.args == (given,)


def values_of(graph: EGraph) -> dict[ClassRef, np.ndarray]:
    """A value of each class, by the first member whose arguments have values."""
    rng = np.random.default_rng(0)
    values: dict[ClassRef, np.ndarray] = {}
    while len(values) < len(graph.classes):
        before = len(values)
        for here, members in graph.classes.items():
            for member in members:
                if here in values or not all(arg in values for arg in args_of(member)):
                    continue
                if isinstance(member, Input | Weight):
                    values[here] = rng.uniform(0.5, 2.0, member.shape)
                    continue
                leaves = {a: Input(str(n), a.type) for n, a in enumerate(args_of(member))}
                term = over(member, leaves)
                env = {str(n): values[a] for n, a in enumerate(args_of(member))}  # type: ignore[index]
                values[here] = np.asarray(evaluate(term, env))
        assert len(values) > before
    return values


def test_a_plan_takes_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel of a chain takes as long as the other kernels, one of them is the plan."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    e = ops.softmax(x(6, 40) * 0.5, 1) + 1.0
    program, graph = program_of(e)[0], saturated(e)

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        """A kernel takes 1 s, one of torch 2 s, and 1 s for every 1e6 FLOPs."""
        times = {k: 1 + (k.backend != "tvm") + flops(k.term) / 1e6 for k in kernels}
        return {kernel: Timing(s, s, s, 5) for kernel, s in times.items()}

    own = cpu_backends()[:3]
    profile = Profile(TARGET.key())
    plan = extract(graph, own, CostModel(TARGET, profile), measure, 60.0).plan
    profile.close()
    (step,) = plan.steps
    assert isinstance(step.member, Region) and step.kernel.implementation == "tvm.chain"
    made = assemble(program, graph, plan, {}, own, float("inf"))
    given = torch.randn(6, 40)
    result = made.steps[0].runner(given)
    torch.testing.assert_close(result, torch.softmax(given * 0.5, 1) + 1.0)


def test_a_map_with_many_choices_is_given_up_in_time() -> None:
    """Six values, each with four members that make the same work and read the next value: 4,096
    choices."""
    given, most = ref(0, (4, 32)), ref(1, (4,))
    values = [ref(number, (4, 32)) for number in range(2, 10)]
    i, j = it(0, 4), it(1, 32)
    m = Read(most, (i,))
    classes = {
        given: [leaf(Input, 0, (4, 32))],
        most: [Scope((4,), (32,), Read(given, (i, j)), "max")],
        values[-1]: [Scope((4, 32), (), Sum((Read(given, (i, j)), m)))],
    }
    for one, below in pairwise(values):
        read = Read(below, (i, j))
        classes[one] = [Scope((4, 32), (), Sum((read, m, Num(float(n))))) for n in range(1, 5)]
    member = classes[values[1]][0]
    assert isinstance(member, Scope)
    chain = RowChains(egraph(classes, values[1]))._least(values[1], member)
    assert len(chain.scopes) == MOST_SCOPES and chain.tries < 2 * MOST_TRIES
