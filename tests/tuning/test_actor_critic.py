"""N-A2C: its steps are the topologies' edges, and the policy prefers what was rewarded."""

from __future__ import annotations

import pytest

from eqsynth.tuning.actor_critic import _Networks, features, moves
from eqsynth.tuning.parameters import Category, Discrete, Factorization, Parameter, Permutation
from eqsynth.tuning.space import Space

PARAMETERS: list[Parameter] = [
    Factorization(8, 3), Factorization(360, 2), Factorization(7, 2), Factorization(1, 2),
    Permutation(1), Permutation(4), Discrete((1, 2, 4, 8)), Discrete((3,)), Category(tuple("abc")),
]  # fmt: skip


@pytest.mark.parametrize("parameter", PARAMETERS, ids=repr)
def test_steps_lead_to_all_neighbours(parameter: Parameter) -> None:
    for value in parameter.values():
        led = [move(value) for move in moves(parameter)]
        reached = [other for other in led if other is not None]
        assert sorted(reached) == sorted(parameter.neighbours(value))


def test_points_are_told_apart() -> None:
    parameters = {str(k): p for k, p in enumerate(PARAMETERS) if p.size < 30}
    space: Space[object] = Space(parameters, lambda values: 0, lambda made: None)
    for k, parameter in enumerate(parameters.values()):
        base = [next(p.values()) for p in parameters.values()]
        told = set()
        for value in parameter.values():
            told.add(tuple(features(space, (*base[:k], value, *base[k + 1 :]))))
        assert len(told) == parameter.size and len({len(f) for f in told}) == 1
        assert all(0 <= number <= 1 for one in told for number in one)


def test_the_policy_learns() -> None:
    networks = _Networks(2, 3, seed=0)
    here = [0.0, 1.0]
    before = networks.policy(here, [0, 1, 2])
    assert abs(sum(before) - 1) < 1e-5
    for _ in range(100):
        networks.learn([(here, step, float(step == 2), [1.0, 0.0]) for step in range(3)])
    after = networks.policy(here, [0, 1, 2])
    assert after[2] > 0.8 > before[2]
    assert networks.policy(here, [1]) == [1.0]
    same = _Networks(2, 3, seed=0).policy(here, [0, 1, 2])
    assert same == before
