"""N-A2C: a tuner in which a network, the actor, learns which step to take, and another one, the
critic, learns the value of a point.

An episode begins at the best point and takes a few steps, each to a neighbour. A step is chosen by
the actor, or at random with a probability that falls from 1. New points on the way are collected
and measured together; then both networks learn from the results of all steps.

Source: Zhang et al. 2019, with the settings with which OpEvo compares it (§2, Appendix B). There, a
state is a factorization of the extents of a product (powers of two), and a step moves a factor.
Here, a step changes any one parameter, so that every space can be searched: see :func:`moves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from eqsynth.tuning.parameters import Category, Discrete, Factorization, Parameter, Permutation
from eqsynth.tuning.parameters import primes as primes_of
from eqsynth.tuning.search import Search
from eqsynth.tuning.space import Point, Refused, Space

STEPS: Final = 3
"""Steps of an episode [OpEvo Appendix B]."""

TOGETHER: Final = 8
"""Number of new points that are collected before they are measured."""

EPISODES: Final = 32
"""After this many episodes the new points are measured, even if there are fewer than `TOGETHER`."""

LUCK: Final = (1.0, 0.1, 0.95)
"""The probability of a random step: at the beginning, at least, and the factor by which it falls
each time points were measured."""

WIDTH: Final = 64
DISCOUNT: Final = 0.9
RATE: Final = 0.1

Move = Callable[[Any], Any]
"""A function that returns the value one step away; None if the step leads to no value."""


def moves(parameter: Parameter) -> list[Move]:
    """The steps of a parameter. Together they lead from a value to all of its neighbours, each step
    to one.

    >>> [move((4, 2)) for move in moves(Factorization(8, 2))]
    [(2, 4), (8, 1)]
    """
    match parameter:
        case Factorization(product=product, parts=parts):
            pairs = [(a, b) for a in range(parts) for b in range(parts) if a != b]
            return [_factor_moved(a, b, p) for a, b in pairs for p in primes_of(product)]
        case Permutation(count=count):
            return [_swapped(a, b) for a in range(count) for b in range(a + 1, count)]
        case Discrete(numbers=numbers):
            return [_along(numbers, step) for step in (-1, 1)]
        case Category(things=things):
            return [_chosen(thing) for thing in things]
    raise TypeError(f"steps of {type(parameter).__name__} aren't known")


def _factor_moved(source: int, target: int, prime: int) -> Move:
    def move(value: tuple[int, ...]) -> tuple[int, ...] | None:
        if value[source] % prime:
            return None
        moved = list(value)
        moved[source], moved[target] = moved[source] // prime, moved[target] * prime
        return tuple(moved)

    return move


def _swapped(first: int, second: int) -> Move:
    def move(value: tuple[int, ...]) -> tuple[int, ...]:
        swapped = list(value)
        swapped[first], swapped[second] = value[second], value[first]
        return tuple(swapped)

    return move


def _along(numbers: Sequence[int], step: int) -> Move:
    def move(value: int) -> int | None:
        at = numbers.index(value) + step
        return numbers[at] if 0 <= at < len(numbers) else None

    return move


def _chosen(thing: Any) -> Move:
    return lambda value: None if value == thing else thing


def features(space: Space[Any], point: Point) -> list[float]:
    """A point as numbers from 0 to 1, the input of the networks: logarithms of factors, positions
    in an order of numbers, and one-hot vectors for permutations and categories."""
    found: list[float] = []
    for parameter, value in zip(space.parameters.values(), point, strict=True):
        match parameter:
            case Factorization(product=product):
                found += [math.log(f) / max(math.log(product), 1.0) for f in value]
            case Permutation(count=count):
                found += [float(v == k) for v in value for k in range(count)]
            case Discrete(numbers=numbers):
                found.append(numbers.index(value) / max(len(numbers) - 1, 1))
            case _:
                found += [float(value == thing) for thing in parameter.values()]
    return found


class _Networks:
    """The actor and the critic. They learn from tuples (state, step, reward, state
    after the step)."""

    def __init__(self, inputs: int, steps: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critic = _network(inputs, steps), _network(inputs, 1)
        self._weights = [*self.actor.parameters(), *self.critic.parameters()]

    @torch.no_grad()
    def policy(self, state: Sequence[float], open_steps: Sequence[int]) -> list[float]:
        """Probabilities of the steps in ``open_steps``, those that lead to a point."""
        scores = self.actor(torch.tensor([state]))[0, list(open_steps)]
        return [float(p) for p in torch.softmax(scores, 0)]

    def learn(self, episodes: Sequence[tuple[list[float], int, float, list[float]]]) -> None:
        with torch.enable_grad():
            states, steps, rewards, after = zip(*episodes, strict=True)
            value = self.critic(torch.tensor(states))[:, 0]
            with torch.no_grad():
                worth = torch.tensor(rewards) + DISCOUNT * self.critic(torch.tensor(after))[:, 0]
            advantage = worth - value
            chosen = torch.log_softmax(self.actor(torch.tensor(states)), 1)
            gained = chosen[torch.arange(len(steps)), torch.tensor(steps)] * advantage.detach()
            loss = advantage.square().mean() - gained.mean()
            gradients = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            # torch.optim isn't used, since importing it loads torch's compiler, which takes
            # seconds.
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.sub_(gradient, alpha=RATE)


def _network(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, outputs)
    )


def actor_critic(search: Search[Any]) -> None:
    """The tuner N-A2C. If the episodes around the best point find nothing new, other points are
    drawn."""
    space, rng, luck = search.space, search.rng, LUCK[0]
    ways = [
        (k, move) for k, parameter in enumerate(space.parameters.values())
        for move in moves(parameter)
    ]  # fmt: skip
    starts = list(space.starts) or [search.anywhere()]
    scores = search.score(starts)
    best_score, best = max(zip(scores, starts, strict=True), key=lambda pair: pair[0])
    around: dict[Point, dict[int, Point]] = {}
    spent: Point | None = None
    networks = _Networks(len(features(space, best)), len(ways), rng.randrange(1 << 31))
    while True:
        steps: list[tuple[Point, int, Point]] = []
        fresh: list[Point] = []
        for _ in range(EPISODES if best != spent else 0):
            if len(fresh) >= TOGETHER:
                break
            here = best
            for _ in range(STEPS):
                if here not in around:
                    around[here] = _near(space, here, ways)
                near = around[here]
                if not near:
                    break
                chosen = rng.choice(list(near))
                if rng.random() >= luck:
                    odds = networks.policy(features(space, here), list(near))
                    chosen = rng.choices(list(near), odds)[0]
                steps.append((here, chosen, near[chosen]))
                here = near[chosen]
                made = {space.made(point) for point in fresh}
                if search.fresh(here) and space.made(here) not in made:
                    fresh.append(here)
        if not fresh:
            spent, fresh = best, search.some(TOGETHER)
        for score, point in zip(search.score(fresh), fresh, strict=True):
            if score > best_score:
                best_score, best = score, point
        luck = max(LUCK[1], luck * LUCK[2])
        told = [
            (features(space, a), way, _known(search, b) / (best_score or 1.0), features(space, b))
            for a, way, b in steps
        ]
        if told:
            networks.learn(told)


def _known(search: Search[Any], point: Point) -> float:
    """The score of a point that was tried; 0 if it wasn't."""
    return float(search.scores.get(search.space.made(point), 0.0))


def _near(space: Space[Any], here: Point, ways: Sequence[tuple[int, Move]]) -> dict[int, Point]:
    """The point that each step leads to, without steps that lead to no point or to a
    refused one."""
    found = {}
    for number, (k, move) in enumerate(ways):
        value = move(here[k])
        if value is not None:
            point = (*here[:k], value, *here[k + 1 :])
            if not isinstance(space.made(point), Refused):
                found[number] = point
    return found
