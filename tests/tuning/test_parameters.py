"""Parameters with topologies: what the paper's Fig. 1 draws, and what every graph has."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from eqsynth.tuning.parameters import (
    Category,
    Discrete,
    Factorization,
    Parameter,
    Permutation,
    smooth,
)

PARAMETERS: list[Parameter] = [
    Factorization(8, 3), Factorization(360, 2), Factorization(12, 4), Factorization(7, 2),
    Factorization(1, 3), Factorization(30, 1), Permutation(1), Permutation(3), Permutation(5),
    Discrete((1, 2, 3, 4)), Discrete((5,)), Category(tuple("abcdef")), Category(("one",)),
]  # fmt: skip


@pytest.mark.parametrize("parameter", PARAMETERS, ids=repr)
def test_a_graph_is_undirected_connected_and_complete(parameter: Parameter) -> None:
    values = list(parameter.values())
    assert len(values) == len(set(values)) == parameter.size
    assert all(value in parameter for value in values)
    edges = {value: parameter.neighbours(value) for value in values}
    for value, others in edges.items():
        assert value not in others and len(set(others)) == len(others)
        assert all(value in edges[other] for other in others)
    reached, ends = {values[0]}, [values[0]]
    while ends:
        ends = [other for end in ends for other in edges[end] if other not in reached]
        reached |= set(ends)
    assert len(reached) == parameter.size


@pytest.mark.parametrize("parameter", PARAMETERS, ids=repr)
def test_samples_are_equally_probable(parameter: Parameter) -> None:
    rng, draws = Random(0), 400 * min(parameter.size, 130)
    seen = Counter(parameter.sample(rng) for _ in range(draws))
    expected = draws / parameter.size
    assert seen.keys() == set(parameter.values())
    # Six deviations of a count.
    assert all(abs(count - expected) < 6 * math.sqrt(expected) + 1 for count in seen.values())


def test_figure_1() -> None:
    """The graphs that the paper draws: 10 factorizations of 8 by moves of a 2, six permutations of
    three by swaps, four numbers in a row, six things each beside each."""
    cube = Factorization(8, 3)
    degrees = {value: len(cube.neighbours(value)) for value in cube.values()}
    assert degrees == {
        (8, 1, 1): 2, (1, 8, 1): 2, (1, 1, 8): 2,
        (4, 2, 1): 4, (4, 1, 2): 4, (2, 4, 1): 4, (1, 4, 2): 4, (2, 1, 4): 4, (1, 2, 4): 4,
        (2, 2, 2): 6,
    }  # fmt: skip
    assert set(cube.neighbours((8, 1, 1))) == {(4, 2, 1), (4, 1, 2)}
    assert all(len(Permutation(3).neighbours(v)) == 3 for v in Permutation(3).values())
    assert (1, 0, 2) in Permutation(3).neighbours((0, 1, 2))
    assert (1, 2, 0) not in Permutation(3).neighbours((0, 1, 2))
    line = Discrete((1, 2, 3, 4))
    assert [line.neighbours(n) for n in line.values()] == [(2,), (1, 3), (2, 4), (3,)]
    assert Category(tuple("abcdef")).neighbours("c") == tuple("abdef")


def test_what_is_no_value() -> None:
    assert (2, 3) not in Factorization(8, 2) and (-2, -4) not in Factorization(8, 2)
    assert (8,) not in Factorization(8, 2) and 8 not in Factorization(8, 1)
    assert (0, 0) not in Permutation(2) and 1 not in Permutation(1)
    assert 3 not in Discrete((1, 2)) and "c" not in Category(("a", "b"))


def test_numbers_with_many_factors() -> None:
    assert [smooth(n, 24) for n in (1, 24, 25, 197, 256, 1024)] == [24, 24, 48, 216, 288, 1080]
    assert smooth(49, math.lcm(24, 7)) == 168
