"""Selection by blocks: the answers to random problems are valid plans that cost no more than the
hint, and equal layers are solved once."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.extract import joint
from eqsynth.extract.blocks import Problem, Solved, improved, least_s, parted
from eqsynth.extract.joint import Joint, Way, reachable

COPY_S = 3.0

# Class n has two states: 2n, and 2n + 1 in the other layout.


def problem(ways: Mapping[int, Sequence[Way]], *wanted: int) -> Problem:
    return Problem(ways, wanted, lambda s: s // 2, lambda _a, _b: COPY_S, lambda state: state % 2)


def cost(asked: Problem, found: Joint) -> float:
    """The cost of the results: walks down from them, and counts each state once. Fails on a cycle,
    and on a state that nothing computes."""
    done: set[int] = set()

    def visit(state: int, above: tuple[int, ...]) -> float:
        assert state not in above
        if state in done:
            return 0.0
        way = found.ways[asked.class_of(state)]
        if way.state != state:
            total = COPY_S + visit(found.copies[state], (*above, state))
        else:
            assert way in asked.ways[asked.class_of(state)]
            total = way.cost_s + sum(visit(need, (*above, state)) for need in way.needs)
        done.add(state)
        return total

    return sum(visit(state, ()) for state in asked.wanted)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, dict[int, Way]]:
    """Draw a problem of up to 30 classes whose ways may form cycles, and a hint without cycles: the
    first way of each class."""
    count = draw(st.integers(4, 30))
    ways: dict[int, list[Way]] = {0: [Way(0, (), 0.0)]}
    for n in range(1, count):
        # A class mostly reads near classes, so that some classes dominate others.
        near = st.integers(max(0, 2 * n - 6), 2 * n - 1)
        ways[n] = [Way(2 * n, (draw(near), draw(near)), float(draw(st.integers(1, 50))))]
        for _ in range(draw(st.integers(0, 3))):
            needs = st.integers(max(0, 2 * n - 8), min(2 * n + 3, 2 * count - 1))
            below = tuple(s for s in draw(st.lists(needs, max_size=2)) if s // 2 != n)
            state = 2 * n + draw(st.integers(0, 1))
            ways[n].append(Way(state, below or (0,), float(draw(st.integers(1, 50)))))
    wanted = [2 * (count - 1), *draw(st.lists(st.integers(2, 2 * count - 1), max_size=1))]
    return problem(ways, *dict.fromkeys(wanted)), {n: own[0] for n, own in ways.items()}


def as_joint(asked: Problem, ways: Mapping[int, Way]) -> Joint:
    needed = {*asked.wanted, *(need for way in ways.values() for need in way.needs)}
    return Joint(ways, {s: ways[s // 2].state for s in needed if ways[s // 2].state != s})


@pytest.mark.rotating
@given(problems(), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_choice_by_blocks_is_valid_and_no_dearer(
    drawn: tuple[Problem, dict[int, Way]], least_ways: int
) -> None:
    asked, hint = drawn
    before_s = cost(asked, as_joint(asked, hint))
    used = {n: way for n, way in hint.items() if n in _used(asked, hint)}
    found = improved(asked, used, math.inf, Solved(), least_ways)
    if found is not None:
        assert cost(asked, found) < before_s
    best_s = before_s if found is None else cost(asked, found)
    assert least_s(asked, best_s, least_ways=least_ways) <= best_s * (1 + 1e-6)
    assert least_s(asked, 2 * best_s, least_ways=least_ways) <= best_s * (1 + 1e-6)
    useful = reachable(asked.ways, asked.wanted, asked.class_of)
    blocks = parted(useful, asked.wanted, asked.class_of, least_ways)
    assert sorted(place for block in blocks for place in block) == sorted(useful)


def _used(asked: Problem, ways: Mapping[int, Way]) -> set[int]:
    found: set[int] = set()
    stack = [state // 2 for state in asked.wanted]
    while stack:
        place = stack.pop()
        if place not in found:
            found.add(place)
            stack += [need // 2 for need in ways[place].needs]
    return found


def layers(count: int) -> tuple[Problem, dict[int, Way]]:
    """A problem of equal layers, and its greedy choice. In a layer, two products can be slices of
    one merged product, which pays only if both are (10 + 1 + 1 against 8 + 8). The next layer reads
    only the sum of both products."""
    ways: dict[int, list[Way]] = {0: [Way(0, (), 0.0)]}
    x = 0
    for n in range(count):
        whole, left, right, out = range(4 * n + 1, 4 * n + 5)
        ways[whole] = [Way(2 * whole, (2 * x,), 10.0)]
        for part in (left, right):
            ways[part] = [Way(2 * part, (2 * x,), 8.0), Way(2 * part, (2 * whole,), 1.0)]
        ways[out] = [Way(2 * out, (2 * left, 2 * right), 2.0)]
        x = out
    greedy = {n: own[0] for n, own in ways.items() if n % 4 != 1}
    return problem(ways, 2 * x), greedy


def test_equal_layers_are_solved_once() -> None:
    asked = []
    for count in (4, 8):
        solved = Solved()
        question, greedy = layers(count)
        found = improved(question, greedy, math.inf, solved, least_ways=5)
        assert found is not None
        assert cost(question, found) == count * 14.0
        asked.append(solved.asked)
        assert solved.known >= count - 2
        assert least_s(question, count * 28.0, least_ways=5) == pytest.approx(count * 14.0)
        # Starting from the answer, nothing better is found.
        again = Solved()
        assert improved(question, found.ways, math.inf, again, least_ways=5) is None
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("count", "proves"), [(60, True), (80, False)])
def test_only_a_small_problem_is_tried_to_be_solved_to_its_optimum(
    count: int, proves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 layers have 361 ways, 80 have 481. The search in turns finds better choices anyway."""
    runs: list[float] = []
    run = joint._Problem._run

    def seen(self: joint._Problem, until: float, work: float, **parameters: object) -> object:
        runs.append(work)
        return run(self, until, work, **parameters)

    monkeypatch.setattr(joint._Problem, "_run", seen)
    question, greedy = layers(count)
    found = improved(question, greedy, math.inf, Solved(), least_ways=10**6)
    assert (runs[0] == joint.PROVE_WORK) is proves and joint.PROVE_WORK not in runs[1:]
    assert found is not None and cost(question, found) < count * 18.0


def test_a_plan_with_a_kernel_that_does_not_work_bounds_nothing() -> None:
    """A worker that died while it timed a kernel leaves an infinite cost in the plan."""
    asked, hint = layers(1)
    broken = {n: way._replace(cost_s=math.inf) if n == 2 else way for n, way in hint.items()}
    assert least_s(asked, math.inf, least_ways=5) == 0.0
    assert improved(asked, broken, math.inf, Solved(), least_ways=5) is None


@pytest.mark.parametrize("cost_s", [math.inf, 9.0])
def test_a_class_without_any_kernel_that_works_bounds_nothing(cost_s: float) -> None:
    """All kernels of class 1 died, so no choice of ways reaches the result."""
    ways: dict[int, list[Way]] = {0: [Way(0, (), 0.0)], 1: [], 2: [Way(4, (2,), 3.0)]}
    assert least_s(problem(ways, 4), cost_s, least_ways=2) == 0.0


def test_a_class_that_a_plan_can_do_without_heads_no_block() -> None:
    """Class 1 isn't needed if class 3 reads the input (cost 4, not 3 + 3 + 1). If class 1 were the
    head of a block of its own, it would cost nothing in the block above, which would keep it."""
    ways = {
        0: [Way(0, (), 0.0)],
        1: [Way(2, (0,), 3.0), Way(3, (0,), 2.0)],
        2: [Way(4, (2,), 3.0)],
        3: [Way(6, (4,), 1.0), Way(6, (0,), 4.0)],
    }
    question = problem(ways, 6)
    found = improved(question, {n: own[0] for n, own in ways.items()}, math.inf, Solved(), 2)
    assert found is not None and cost(question, found) == 4.0


def test_a_plan_whose_copies_have_no_time_is_left_as_it_is() -> None:
    """A plan may compute a class in two layouts. A block's hint has one way for each class, so the
    other layout counts as a copy, and a copy without a measured time costs infinitely much."""
    ways = {
        0: [Way(0, (), 0.0)],
        1: [Way(2, (0,), 3.0), Way(3, (0,), 4.0)],
        2: [Way(4, (2, 3), 1.0), Way(4, (3,), 2.0)],
    }
    plain = problem(ways, 4)
    question = replace(plain, copy_s=lambda _a, _b: math.inf)
    hint = {n: own[0] for n, own in ways.items()}
    assert improved(question, hint, math.inf, Solved(), 2) is None
    assert least_s(question, math.inf, least_ways=2) == 0.0


def test_ctrl_c_is_heard_after_the_solver_has_run() -> None:
    """Without our setting, CP-SAT would leave the default action of SIGINT behind, which ends the
    process without a message."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asked, hint = layers(2)
        hint_s = cost(asked, as_joint(asked, hint))
        joint.improved(asked.ways, asked.wanted, asked.class_of, asked.copy_s, hint, hint_s)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
