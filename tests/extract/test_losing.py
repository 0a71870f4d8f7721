"""What the next plan does without, after a step has lost digits."""

from __future__ import annotations

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import candidates
from eqsynth.extract.losing import NOTHING, Without, losing
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.select import Selection
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor
from eqsynth.lower.torch_backend import TorchBackend
from tests.extract.egraphs import ref

X, A, B, Y = (ref(n, (4,)) for n in range(4))
"""x, a = x * x, b = x + x, and y = a - b."""

CLASSES: dict[ClassRef, tuple[Tensor, ...]] = {
    X: (Input("x", X.type),),
    A: (Op("Mul", (X, X)), Op("Abs", (X,)), Op("Neg", (X,))),
    B: (Op("Add", (X, X)), Op("Exp", (X,)), Op("Tanh", (X,))),
    Y: (Op("Sub", (A, B)), Op("Relu", (X,)), Op("Sigmoid", (X,))),
}
ORIGINAL = {ref: members[:1] for ref, members in CLASSES.items()}
GRAPH = EGraph(CLASSES, (Y,), 0, 4, {}, "", 0.0, None, original=ORIGINAL)


def plan_of(*members: tuple[ClassRef, int]) -> Plan:
    """A plan that computes each class by its member of that number."""
    found = candidates(GRAPH, [TorchBackend()])
    steps = []
    for made, number in members:
        member = CLASSES[made][number]
        (kernel, args) = next((c.kernel, c.args) for c in found[made] if c.member == member)
        states = tuple((arg, (0,)) for arg in args)
        steps.append(PlanStep(kernel, member, states, {}, (made, (0,)), 1.0))
    return Plan(tuple(steps), {"x": (X, (0,))}, ((Y, (0,)),), float(len(steps)))


def test_the_member_of_the_step_is_barred_and_then_its_class() -> None:
    first = losing(plan_of((Y, 1)), GRAPH, NOTHING, 0)
    assert first == Without(frozenset({(Y, CLASSES[Y][1])}))
    second = losing(plan_of((Y, 2)), GRAPH, first, 0)
    assert second.classes == {Y} and first.covers(NOTHING) and not first.covers(second)


def test_the_originals_own_members_stay_and_what_they_read_goes() -> None:
    plan = plan_of((A, 1), (B, 0), (Y, 0))
    assert losing(plan, GRAPH, NOTHING, 2).members == {(A, CLASSES[A][1])}
    assert not losing(plan_of((A, 0), (B, 0), (Y, 0)), GRAPH, NOTHING, 2)


def test_a_barred_member_is_no_candidate() -> None:
    found = candidates(GRAPH, [TorchBackend()])
    without = Without(frozenset({(A, CLASSES[A][1])}), frozenset({B}))
    left = {made: {c.member for c in options} for made, options in without.of(GRAPH, found).items()}
    assert left[A] == {CLASSES[A][0], CLASSES[A][2]} and left[B] == {CLASSES[B][0]}
    assert left[Y] == set(CLASSES[Y])
    plan = Selection(GRAPH, without.of(GRAPH, found)).best(lambda _kernel: 1.0)
    assert [step.member for step in plan.steps] == [CLASSES[Y][1]]
