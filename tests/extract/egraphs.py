"""Helpers of the tests of extraction: small e-graphs, and kernels whose costs the test states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import Candidate, placeholder
from eqsynth.extract.kernel import Kernel, Layout, contiguous
from eqsynth.extract.plan import Plan
from eqsynth.extract.select import Selection
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor, Weight, args_of
from eqsynth.ir.types import Shape, TensorType

COPY_S = 1000.0
"""The cost of a copy into another layout, unless a test says otherwise."""


def ref(number: int, shape: Shape = (2, 3), constant: bool = False) -> ClassRef:
    return ClassRef(number, TensorType(shape, "float32"), constant, digest_of("class", number))


def leaf(kind: type[Input] | type[Weight], number: int, shape: Shape = (2, 3)) -> Tensor:
    return kind(f"leaf{number}", TensorType(shape, "float32"))


def egraph(classes: Mapping[ClassRef, Sequence[Tensor]], *roots: ClassRef) -> EGraph:
    members = {r: tuple(terms) for r, terms in classes.items()}
    return EGraph(members, roots, len(members), len(members), {}, "saturated", 0.0, None)


def kernel(
    member: Tensor,
    cost_s: float,
    inputs: Sequence[Layout] | None = None,
    output: Layout | None = None,
) -> Candidate:
    """A candidate for a member. The kernel's schedule is the text of its cost."""
    term, args = placeholder(member, {})
    layouts = inputs or [contiguous(len(a.shape)) for a in args_of(member)]
    made = Kernel(
        term,
        tuple(a.constant for a in args),
        "given",
        tuple(layouts),
        output or contiguous(len(member.shape)),
        repr(cost_s),
    )
    return Candidate(member, made, args)


@dataclass
class Given:
    """A cost function: a kernel of :func:`kernel` has its stated cost, a copy costs ``copy_s``.
    ``asked`` lists the kernels in the order of the calls."""

    copy_s: float = COPY_S
    asked: list[Kernel] = field(default_factory=list)

    def __call__(self, kernel: Kernel) -> float:
        self.asked.append(kernel)
        return float(kernel.schedule) if kernel.implementation == "given" else self.copy_s


def best(graph: EGraph, *found: Candidate, copy_s: float = COPY_S) -> Plan:
    return selection(graph, *found).best(Given(copy_s))


def selection(graph: EGraph, *found: Candidate) -> Selection:
    by_class: dict[ClassRef, list[Candidate]] = {r: [] for r in graph.classes}
    for candidate in found:
        for r, members in graph.classes.items():
            if candidate.member in members:
                by_class[r].append(candidate)
    return Selection(graph, by_class)


def unary(name: str, arg: ClassRef) -> Op:
    return Op(name, (arg,))


def check_plan(plan: Plan) -> None:
    """Check that each step's arguments are computed before it, that no value is computed twice, and
    that the plan's cost is the sum of its steps' costs."""
    known = set(plan.inputs.values())
    for step in plan.steps:
        assert set(step.args) <= known
        assert step.result not in known
        known.add(step.result)
    assert all(state in known or state[0].constant for state in plan.outputs)
    total = sum(step.cost_s for step in plan.steps)
    assert abs(plan.cost_s - total) <= 1e-9 * max(1.0, total)
