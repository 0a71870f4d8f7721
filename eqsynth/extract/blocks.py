"""Split a selection problem into blocks that are solved one after another, equal blocks once.

A large program is a chain of parts between which few values pass. The e-graph is split at classes
that every plan computes, and through which alone the results depend on the classes below (the class
*dominates* them):

    y = f(x), x = f(u)   ->   two blocks, {y, ...} and {x, ...}, which are the same problem

While one block is solved, the other blocks keep their ways of the present plan: states that they
compute cost nothing, and states that they read have to be computed. Classes that need each other in
a circle are in one block, so combining the answers of two blocks makes no circle. Not here: the
solver (``joint.py``), the costs of ways (``cost.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import networkx as nx

from eqsynth.extract import joint
from eqsynth.extract.joint import Joint, Way

LEAST_WAYS = 100
"""The fewest ways of a block. Smaller blocks would fix layouts at more borders and gain nothing."""

MOST_WAYS = 2000
"""If a block has more ways than this, no lower bound is computed, since it would be too low to be
of use: with one block of 2,770 ways (LSTM) it was a hundredth of the plan's cost, with blocks of
2,290 ways (GPT-2) a ninth."""

_TOP = -1  # the number of an artificial root that reads the results; no class has it
_LESS = 1 - 1e-9


@dataclass(frozen=True)
class Problem:
    """A selection problem. Classes and states are numbers (see ``joint.improved``).

    Attributes:
        label: the type and the layout of a state, which are the same for equal states of different
            layers.
    """

    ways: Mapping[int, Sequence[Way]]
    wanted: Sequence[int]
    class_of: Callable[[int], int]
    copy_s: Callable[[int, int], float]
    label: Callable[[int], Hashable]


@dataclass
class Solved:
    """Answers that are reused for equal blocks. The key is the block's problem with classes and
    states renumbered. The answer lists the better way of each class, class and way by their
    positions in the problem; it is empty if nothing better was found.

    Attributes:
        bounds: lower bounds of the costs of blocks, by the same kind of key.
        asked, known: number of blocks that the solver was asked about, and of those that were
            answered from here.
    """

    answers: dict[Hashable, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    bounds: dict[Hashable, float] = field(default_factory=dict)
    asked: int = 0
    known: int = 0


def improved(
    problem: Problem,
    hint: Mapping[int, Way],
    until: float,
    solved: Solved,
    least_ways: int = LEAST_WAYS,
    share: float = 1.0,
) -> Joint | None:
    """Return a cheaper choice than the hint, found block by block from the results on; None if none
    was found.

    Args:
        hint: a way for each class of the plan to improve.
        until: the monotonic clock at which the search ends with what it has found.
        share: part of the solver's work that may be done.
    """
    ways = joint.reachable(problem.ways, problem.wanted, problem.class_of)
    whole = sum(map(len, ways.values()))
    present, better = dict(hint), False
    for block in parted(ways, problem.wanted, problem.class_of, least_ways):
        if time.monotonic() >= until:
            break
        part = share * sum(len(ways[place]) for place in block) / whole
        found = _improved(problem, {p: ways[p] for p in block}, present, until, solved, part)
        if found is not None:
            better = True
            rest = {place: way for place, way in present.items() if place not in block}
            present = _needed(problem, {**rest, **found})
    return Joint(present, _copies(problem, present)) if better else None


def least_s(
    problem: Problem,
    most_s: float,
    until: float = math.inf,
    solved: Solved | None = None,
    least_ways: int = LEAST_WAYS,
) -> float:
    """Return a lower bound of the cost of any choice. It is at most ``most_s``, the cost of a known
    choice.

    For each block, the solver finds the least cost of computing those of its classes that every
    plan computes, in any layout, while values of other blocks are free. Each way belongs to one
    class, so the costs of the blocks add up. For problems with large blocks the bound isn't worth
    the time, and 0 is returned.
    """
    ways = joint.reachable(problem.ways, problem.wanted, problem.class_of)
    blocks = parted(ways, problem.wanted, problem.class_of, least_ways)
    if any(sum(len(ways[place]) for place in block) > MOST_WAYS for block in blocks):
        return 0.0
    always = _always_needed(ways, problem.wanted, problem.class_of)
    known = {} if solved is None else solved.bounds
    total_s = 0.0
    for block in blocks:
        needed = sorted(always & block)
        if needed and time.monotonic() < until:
            own = {place: ways[place] for place in sorted(block)}
            total_s += _least_s(problem, own, needed, most_s, until, known)
    return min(total_s, most_s)


def _least_s(
    problem: Problem,
    own: Mapping[int, Sequence[Way]],
    needed: Sequence[int],
    most_s: float,
    until: float,
    known: dict[Hashable, float],
) -> float:
    """Return a lower bound of the cost of the ``needed`` classes of one block, from ``known`` if an
    equal block was solved before."""
    class_of = problem.class_of
    read = {need for ways in own.values() for way in ways for need in way.needs}
    given: dict[int, list[Way]] = {}
    for state in sorted(read):
        if class_of(state) not in own:
            given.setdefault(class_of(state), []).append(Way(state, (), 0.0))
    wanted = sorted(state for state in problem.wanted if class_of(state) in own)
    part = {**own, **given}
    places = {place: n for n, place in enumerate(part)}
    asked = tuple(places[place] for place in needed)
    key = _up_to_numbers(problem, part, len(own), wanted, {}), asked, most_s
    if key not in known:
        found = joint.least_s(
            part, wanted, needed, class_of, problem.copy_s, most_s, until, frozenset(given)
        )
        if time.monotonic() >= until:
            return found
        known[key] = found
    return known[key]


# ---- parting -----------------------------------------------------------------------------------


def parted(
    ways: Mapping[int, Sequence[Way]],
    wanted: Sequence[int],
    class_of: Callable[[int], int],
    least_ways: int = LEAST_WAYS,
) -> list[Set[int]]:
    """Split the classes that the results may need into blocks, the blocks of the results first."""
    graph = nx.DiGraph()
    graph.add_nodes_from([_TOP, *ways])
    graph.add_edges_from((_TOP, class_of(state)) for state in wanted)
    graph.add_edges_from(
        (place, class_of(need)) for place, own in ways.items() for way in own for need in way.needs
    )
    circles = nx.condensation(graph)
    members: Mapping[int, Set[int]] = circles.nodes(data="members")
    top: int = circles.graph["mapping"][_TOP]
    parent = {n: p for n, p in nx.immediate_dominators(circles, top).items() if p not in (None, n)}
    order = [node for node in nx.topological_sort(circles) if node in parent]
    always = _always_needed(ways, wanted, class_of)
    weight = {node: sum(len(ways.get(p, ())) for p in members[node]) for node in [top, *order]}
    heads = {top}
    for node in reversed(order):
        if weight[node] >= least_ways and always.intersection(members[node]):
            heads.add(node)
        else:
            weight[parent[node]] += weight[node]
    head_of, block_of = {top: top}, dict[int, int]()
    for node in order:
        head_of[node] = node if node in heads else head_of[parent[node]]
        block_of.update(dict.fromkeys(members[node], head_of[node]))
    # Parts of a block that are connected only through classes of other blocks become blocks of
    # their own.
    graph.remove_node(_TOP)
    graph.remove_edges_from([(a, b) for a, b in graph.edges if block_of[a] != block_of[b]])
    place_of = {place: n for n, node in enumerate(order) for place in members[node]}
    blocks = list(nx.weakly_connected_components(graph))
    return sorted(blocks, key=lambda block: min(place_of[place] for place in block))


def _always_needed(
    ways: Mapping[int, Sequence[Way]], wanted: Sequence[int], class_of: Callable[[int], int]
) -> set[int]:
    """The classes that every plan computes. A set of classes is represented by the bits of an
    integer."""
    bit = {place: 1 << n for n, place in enumerate(ways)}
    every = (1 << len(ways)) - 1
    needed = dict.fromkeys(ways, every)
    users: dict[int, set[int]] = {place: set() for place in ways}
    for place, own in ways.items():
        for way in own:
            for need in way.needs:
                users[class_of(need)].add(place)
    # Arguments mostly have lower numbers than the classes that read them.
    work = dict.fromkeys(sorted(ways))
    while work:
        place = next(iter(work))
        del work[place]
        common = every
        for way in ways[place]:
            below = 0
            for need in way.needs:
                below |= needed[class_of(need)]
            common &= below
        common |= bit[place]
        if common != needed[place]:
            needed[place] = common
            work.update(dict.fromkeys(users[place]))
    results = 0
    for state in wanted:
        results |= needed[class_of(state)]
    return {place for place, own in bit.items() if own & results}


# ---- one block ---------------------------------------------------------------------------------


def _improved(
    problem: Problem,
    own: Mapping[int, Sequence[Way]],
    present: Mapping[int, Way],
    until: float,
    solved: Solved,
    share: float,
) -> dict[int, Way] | None:
    """Return better ways for the classes of a block that the improved plan needs; None if there are
    none.

    Args:
        share: part of the work for the whole problem, which bounds the work on this block.
    """
    class_of = problem.class_of
    hint = {place: way for place, way in present.items() if place in own}
    if not hint or all(len(ways) < 2 for ways in own.values()):
        return None
    outside = [way for place, way in present.items() if place not in own]
    asked = {*problem.wanted, *(need for way in outside for need in way.needs)}
    wanted = sorted(state for state in asked if class_of(state) in own)
    read = {class_of(need) for ways in own.values() for way in ways for need in way.needs}
    given: dict[int, list[Way]] = {place: [] for place in sorted(read - set(own))}
    for state in sorted(asked | {way.state for way in outside}):
        if class_of(state) in given:
            given[class_of(state)].append(Way(state, (), 0.0))
    part = {**{place: own[place] for place in sorted(own)}, **given}
    key = _up_to_numbers(problem, part, len(own), wanted, hint)
    if key in solved.answers:
        solved.known += 1
    else:
        solved.asked += 1
        hint_s = _cost_s(problem, hint, given, wanted)
        found = joint.improved(
            part, wanted, class_of, problem.copy_s, hint, hint_s, until, frozenset(given), share
        )
        better = {} if found is None else {p: w for p, w in found.ways.items() if p in own}
        if better and _cost_s(problem, better, given, wanted) >= hint_s * _LESS:
            better = {}  # the solver rounds costs, so its answer may be no better than the hint
        if time.monotonic() >= until:
            return better or None
        places = {place: n for n, place in enumerate(part)}
        solved.answers[key] = tuple((places[p], part[p].index(w)) for p, w in better.items())
    order = list(part)
    return {order[n]: part[order[n]][way] for n, way in solved.answers[key]} or None


def _up_to_numbers(
    problem: Problem,
    part: Mapping[int, Sequence[Way]],
    own: int,
    wanted: Sequence[int],
    hint: Mapping[int, Way],
) -> Hashable:
    """The key of a block's problem: states are numbered in the order in which they occur, so equal
    layers have equal keys."""
    number: dict[int, int] = {}

    def of(state: int) -> int:
        return number.setdefault(state, len(number))

    ways = tuple(
        tuple((of(w.state), tuple(map(of, w.needs)), w.cost_s) for w in ways)
        for ways in part.values()
    )
    chosen = tuple(
        (of(hint[place].state), tuple(map(of, hint[place].needs))) if place in hint else None
        for place in part
    )
    return ways, own, tuple(map(of, wanted)), chosen, tuple(map(problem.label, number))


# ---- copies ------------------------------------------------------------------------------------


def _cost_s(
    problem: Problem,
    hint: Mapping[int, Way],
    given: Mapping[int, Sequence[Way]],
    wanted: Sequence[int],
) -> float:
    """The cost of a block's ways, and of the copies between layouts that they need."""
    made = {place: [way.state] for place, way in hint.items()}
    made |= {place: [way.state for way in own] for place, own in given.items()}
    needed = {*wanted, *(need for way in hint.values() for need in way.needs)}
    copies = sum(
        min(problem.copy_s(source, state) for source in made[problem.class_of(state)])
        for state in needed
        if state not in made[problem.class_of(state)]
    )
    return copies + sum(way.cost_s for way in hint.values())


def _needed(problem: Problem, present: Mapping[int, Way]) -> dict[int, Way]:
    """The ways that the results depend on."""
    found: dict[int, Way] = {}
    stack = list(map(problem.class_of, problem.wanted))
    while stack:
        place = stack.pop()
        if place not in found:
            found[place] = present[place]
            stack.extend(map(problem.class_of, present[place].needs))
    return found


def _copies(problem: Problem, present: Mapping[int, Way]) -> dict[int, int]:
    """For each state that is needed and isn't native, the native state of its class."""
    needed = {*problem.wanted, *(need for way in present.values() for need in way.needs)}
    native = {state: present[problem.class_of(state)].state for state in sorted(needed)}
    return {state: source for state, source in native.items() if state != source}
