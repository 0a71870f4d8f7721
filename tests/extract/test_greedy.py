"""Greedy choices by parts equal the choices in the whole program, and equal parts are solved
once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from eqsynth.egraph.graph import EGraph
from eqsynth.extract import parts, states
from eqsynth.extract.candidates import Candidate
from eqsynth.extract.kernel import Kernel, Layout
from eqsynth.extract.one_part import OnePart
from eqsynth.extract.select import Selection
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor
from eqsynth.testing.choices import Choices, RandomChoices, chance, several
from tests.extract.egraphs import Given, check_plan, egraph, kernel, leaf, ref, selection
from tests.turns import TURNS, by_turns

COPIES_S = (1.0, 3000.0, 40000.0)
LAYOUTS: tuple[Layout, ...] = ((0, 1), (1, 0))


@dataclass
class Costing:
    """A cost function: a kernel costs what its schedule says, times the factor of that schedule.
    Copies in the two directions cost ``copy_s`` and ``copy_s + 1``."""

    copy_s: float
    factors: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, asked: Kernel) -> float:
        if asked.implementation == "given":
            return float(asked.schedule) * self.factors.get(asked.schedule, 1.0)
        return self.copy_s + asked.output[0]


@dataclass(frozen=True)
class Member:
    """A member of a class of a layer. ``args`` are numbers of classes: 0 is the class that the
    layer reads of the layer below, n is the layer's n-th class."""

    name: str
    args: tuple[int, ...]
    kernels: tuple[tuple[float, tuple[Layout, ...], Layout], ...]


Layer = Sequence[Sequence[Member]]
Drawn = tuple[EGraph, dict[ClassRef, list[Candidate]]]


def layer(choices: Choices, classes: range) -> Layer:
    """Make a layer of random classes, which mostly read classes before them but may form cycles."""
    count, found = choices.pick(classes), []
    for n in range(1, count + 1):
        wanted = [("Add", (choices.pick(range(n)), n - 1))]
        for _ in range(choices.pick(range(3))):
            pair = choices.pick(range(count + 1)), choices.pick(range(count + 1))
            wanted.append((choices.pick(("Mul", "Sub", "Div")), pair))
        if chance(choices, 3):
            wanted.append(("Permute", (choices.pick(range(n)),)))
        found.append(
            [
                Member(
                    name,
                    args,
                    tuple(
                        (
                            float(1000 * choices.pick(range(1, 51)) + choices.pick(range(1000))),
                            tuple(choices.pick(LAYOUTS) for _ in set(args)),
                            choices.pick(LAYOUTS),
                        )
                        for m in range(choices.pick((1, 2)))
                    ),
                )
                for name, args in dict.fromkeys(wanted)
                if n not in args
            ]
        )
    return found


def chained(
    layers: Sequence[Layer], roots: Sequence[tuple[int, int]] = (), given: Sequence[int] = ()
) -> Drawn:
    """Return the e-graph of a chain of layers, and its candidates.

    Args:
        roots: further results: (number of the layer, number of the class in the layer).
        given: numbers of layers whose first class also has an input of the program as a member.
    """
    shape = (3, 3)
    border = ref(0, shape)
    classes: dict[ClassRef, list[Tensor]] = {border: [leaf(Input, 0, shape)]}
    found: dict[ClassRef, list[Candidate]] = {border: []}
    results: list[ClassRef] = []
    for at, own in enumerate(layers):
        refs = [border, *(ref(len(classes) + n, shape) for n in range(len(own)))]
        for r, members in zip(refs[1:], own, strict=True):
            terms = [
                (Op(m.name, tuple(refs[a] for a in m.args), ((1, 0),) * (m.name == "Permute")), m)
                for m in members
            ]
            classes[r] = [term for term, _ in terms]
            found[r] = [kernel(term, *k) for term, m in terms for k in m.kernels]
        if at in given:
            classes[refs[1]].append(leaf(Input, at + 1, shape))
        results += [refs[n] for where, n in roots if where == at and n < len(refs)]
        border = refs[-1]
    return egraph(classes, *dict.fromkeys([border, *results])), found


def wholly(monkeypatch: pytest.MonkeyPatch, drawn: Drawn) -> Selection:
    """A selection with a single part, so that choices are made in the whole program."""
    whole = Selection(*drawn)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "_pieces", lambda below: [(None, list(below))])
        assert len(whole._greedy.parts) == 1
    return whole


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST_CLASSES", 1)


def random_chain(choices: Choices) -> Drawn:
    kinds = [layer(choices, range(1, 9)) for _ in range(choices.pick((1, 2, 3)))]
    stack = [choices.pick(kinds) for _ in range(choices.pick(range(1, 7)))]
    spots = [(choices.pick(range(6)), choices.pick(range(9))) for _ in range(2)]
    given = several(choices, range(6), 0, 1) if chance(choices, 3) else ()
    return chained(stack, several(choices, spots, 0, 2), given)


@by_turns
def test_choices_by_parts_are_those_of_the_whole(
    turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and third selections may reuse runs of the one before. All costs are whole
    numbers, so sums aren't rounded. With rounding, two choices of equal cost may differ in the last
    digit, and then either may be taken."""
    monkeypatch.setattr(states, "VIEW_S", 1.0)
    cut = equal = 0
    for seed in range(turn, 800, TURNS):
        choices = RandomChoices(seed)
        drawn, copy_s = random_chain(choices), choices.pick(COPIES_S)
        by_parts, whole = Selection(*drawn), wholly(monkeypatch, drawn)
        found = by_parts._greedy.parts
        cut += len(found) > 1
        equal += any(part.like != n for n, part in enumerate(found))
        dearer = {kernel.schedule: 3.0 for kernel in by_parts._states.kernels[::3]}
        for costs in (Costing(copy_s), Costing(copy_s, dearer), Costing(copy_s + 7.0, dearer)):
            plan = by_parts.one_by_one(costs)
            check_plan(plan)
            for step in plan.steps:
                own = step.result[0]
                assert step.member in drawn[0].classes[own] or step.member == own
            assert plan.cost_s == whole.one_by_one(costs).cost_s, f"seed {seed}"
    assert cut > 60 and equal > 15


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[OnePart]:
    """The runs of parts that were made so far."""
    made: list[OnePart] = []
    choose = OnePart.choose

    def counted(run: OnePart, until: float) -> None:
        made.append(run)
        choose(run, until)

    monkeypatch.setattr(OnePart, "choose", counted)
    return made


def test_equal_layers_are_chosen_for_once(runs: list[OnePart]) -> None:
    own, plans, made = layer(RandomChoices(3), range(6, 9)), [], []
    for count in (4, 5, 12):
        runs.clear()
        plans.append(Selection(*chained([own] * count)).one_by_one(Costing(10.0)))
        made.append(len(runs))
        check_plan(plans[-1])
    assert made[0] == made[1] == made[2]
    one_more_s = plans[1].cost_s - plans[0].cost_s
    assert plans[2].cost_s == pytest.approx(plans[0].cost_s + 8 * one_more_s)


def test_only_parts_whose_prices_have_changed_are_chosen_for_again(runs: list[OnePart]) -> None:
    """Of two different layers, the second becomes more expensive. Only its part is solved again;
    the run of the first layer is reused."""
    first, second = (layer(RandomChoices(n), range(6, 9)) for n in (3, 4))
    two = Selection(*chained([first, second]))
    assert len(two._greedy.parts) == 3
    two.one_by_one(Costing(10.0))
    of_first, of_second = (
        {repr(cost) for members in own for m in members for cost, *_ in m.kernels}
        for own in (first, second)
    )
    assert not of_first & of_second
    runs.clear()
    two.one_by_one(Costing(10.0))
    assert not runs
    two.one_by_one(Costing(10.0, dict.fromkeys(of_second, 2.0)))
    assert {run.part for run in runs} == {two._greedy.parts[2]}
    runs.clear()
    two.one_by_one(Costing(11.0, dict.fromkeys(of_second, 2.0)))  # copies
    assert {run.part for run in runs} == {*two._greedy.parts[1:]}


def test_what_lies_below_a_border_counts_where_it_may_be_gone_around() -> None:
    """relu(exp(x)) costs 10 + 5 and tanh(y) costs 12. If exp(x) were a border, its cost wouldn't
    count in the part above it, where relu (5) would win over tanh (12)."""
    x, a, y, result = (ref(n) for n in range(4))
    first, last, other = Op("Exp", (x,)), Op("Relu", (a,)), Op("Tanh", (y,))
    classes: dict[ClassRef, list[Tensor]] = {
        x: [leaf(Input, 0)], a: [first], y: [leaf(Input, 1)], result: [last, other]
    }  # fmt: skip
    ways = (kernel(first, 10.0), kernel(last, 5.0), kernel(other, 12.0))
    around = selection(egraph(classes, result), *ways)
    assert len(around._greedy.parts) == 1
    assert around.one_by_one(Given()).cost_s == 12.0
    through = selection(egraph(classes | {result: [last]}, result), *ways)
    assert len(through._greedy.parts) == 3
    assert through.one_by_one(Given()).cost_s == 15.0
