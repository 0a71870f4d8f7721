"""Shape distance against its definition, breadth-first search, on all small cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import pytest

from eqsynth.ir.extent import Monomial
from eqsynth.ir.shape_distance import is_extent, shape_distance

State = tuple[Monomial, ...]
ONE = Monomial(1)


def as_state(shape: Iterable[int | Monomial]) -> State:
    extents = [e if isinstance(e, Monomial) else Monomial(e) for e in shape]
    return tuple(sorted((e for e in extents if e != ONE), key=str))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@cache
def factors(extent: Monomial, primary: frozenset[str], names: Sequence[str]) -> list[State]:
    """Every way of writing an extent as a product of two, powers up to 2."""
    found = set()
    for c in divisors(extent.coefficient):
        for powers in itertools.product(range(-2, 3), repeat=len(names)):
            kept = tuple(sorted((n, p) for n, p in zip(names, powers, strict=True) if p))
            part = Monomial(c, kept)
            rest = extent / part
            if ONE not in (part, rest) and is_extent(part, primary) and is_extent(rest, primary):
                found.add(as_state((part, rest)))
    return sorted(found, key=str)


def moves(state: State, primary: frozenset[str], names: Sequence[str]) -> Iterator[State]:
    for n, extent in enumerate(state):
        others = state[:n] + state[n + 1 :]
        for parts in factors(extent, primary, names):
            yield as_state((*others, *parts))
    for a, b in itertools.combinations(range(len(state)), 2):
        others = tuple(e for n, e in enumerate(state) if n not in (a, b))
        yield as_state((*others, state[a] * state[b]))
    for size in range(len(state)):
        yield from itertools.combinations(state, size)


def search(start: State, primary: frozenset[str] = frozenset(), names: Sequence[str] = (),
           depth: int = 4) -> dict[State, int]:  # fmt: skip
    """The distance of every shape that ``depth`` moves reach."""
    found, edge = {start: 0}, [start]
    for steps in range(1, depth + 1):
        new: list[State] = []
        for state in edge:
            for after in moves(state, primary, names):
                if after not in found:
                    found[after] = steps
                    new.append(after)
        edge = new
    return found


SMALL = [s for n in range(4) for s in itertools.combinations_with_replacement((2, 3, 4, 6, 8), n)]


@pytest.mark.rotating
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_it_is_the_search_on_all_small_shapes(shape: tuple[int, ...]) -> None:
    start = as_state(shape)
    found = search(start, depth=12)
    size = math.prod(shape)
    # Every multiset of divisors whose product divides the size, and a few out of reach.
    for wanted in shapes_within(size):
        expected = found.get(as_state(wanted), math.inf)
        assert shape_distance(shape, wanted) == expected, (shape, wanted)
    assert shape_distance(shape, (5,)) == math.inf
    assert shape_distance(shape, (size * 2,)) == math.inf


def shapes_within(size: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    yield ()
    for d in divisors(size):
        if d >= least:
            for rest in shapes_within(size // d, d):
                yield d, *rest


C, H, W, K, S = (Monomial.variable(name) for name in ("C", "H", "W", "k", "s"))
PRIMARY = frozenset("CHW")
DIMS = (H, W, K, S, H / S, W * S, H * K, S * K)
WANTED = [s for n in range(3) for s in itertools.combinations_with_replacement(DIMS, n)]


@pytest.mark.rotating
@pytest.mark.parametrize("shape", [s for s in WANTED if s], ids=lambda s: " ".join(map(str, s)))
def test_it_is_the_search_on_small_shapes_of_variables(shape: State) -> None:
    found = search(as_state(shape), PRIMARY, ("H", "W", "k", "s"), depth=3)
    for wanted in WANTED:
        ours = shape_distance(shape, wanted, PRIMARY)
        # The search is cut at three moves: beyond, only that nothing nearer was missed.
        assert ours == found.get(as_state(wanted), ours if ours > 3 else None), (shape, wanted)


def test_the_papers_example_is_three_steps_away() -> None:
    """[Cin, H/s, s*W, k] to [Cin, H, W]: Merge, Split, Unfold (Syno §7.1)."""
    assert shape_distance((C, H / S, S * W, K), (C, H, W), "CHW") == 3
    assert shape_distance((H / S, S * W), (H, W), "CHW") == 2
    assert shape_distance((K,), (), "CHW") == 1


def test_one_contraction_eliminates_several_extents() -> None:
    """A convolution's [C, H, W, k, k] to [C, H, W], and two extents that go unequal ways."""
    assert shape_distance((C, H, W, K, K), (C, H, W), "CHW") == 1
    assert shape_distance((6, 35), (2, 5)) == 3
    assert shape_distance((2, 3, 5, 7), ()) == 1


def test_order_and_extents_of_one_count_nothing() -> None:
    assert shape_distance((2, 1, 3), (3, 2)) == 0
    assert shape_distance((0, 3), (3, 0)) == 0
    assert shape_distance((0, 3), (3,)) == math.inf


def test_variables_are_primary_or_coefficients() -> None:
    """Only a coefficient may stand in a denominator, and only beside a primary variable."""
    assert shape_distance((H,), (H / S, S), "H") == 1
    assert shape_distance((H,), (H / S, S), "HS") == 1
    for shape, primary in (((H / S, S), "Hs"), ((K / S, S), "H")):
        with pytest.raises(ValueError, match="no extent"):
            shape_distance((H, K), shape, primary)


def test_many_axes_take_as_many_steps_as_their_groups_say() -> None:
    """Four pairs to merge; eight extents against one; a rank that no search reaches."""
    assert shape_distance((2, 3, 5, 7, 11, 13, 17, 19), (6, 35, 143, 323)) == 4
    assert shape_distance((2, 3, 5, 7, 11, 13, 17, 19), (9699690,)) == 7
    assert shape_distance((210, 143), (2, 3, 5, 7, 11, 13)) == 4
