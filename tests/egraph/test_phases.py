"""Sums over the taps of one phase: transposed convolutions, sub-pixel convolutions, and sums that
are neither."""

from __future__ import annotations

import itertools
import math

import pytest

from eqsynth.egraph.tactics.phases import phase_select as _phase_select
from eqsynth.egraph.tactics.phases import shared_places as _shared_places
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Prod, Read, Sum, factors_of
from eqsynth.ir.tensor import Scope
from tests.egraph.programs import weight
from tests.terms import INF, assert_equal, it, leaf

CHANNELS, FAR = 2, 99


def phase_select(scope: Scope) -> Scope | None:
    found = _phase_select(scope)
    return found and found.scope


def shared_places(scope: Scope) -> Scope | None:
    found = _shared_places(scope)
    return found and found.scope


def read(name: str, extent: int, index: Index, fill: float = 0.0) -> Read:
    """A read at [c, index] of a tensor with ``extent`` elements in each channel. c is the first
    iterator of the reduction."""
    return Read(leaf(name, CHANNELS, extent), (it(1, CHANNELS), index), fill)


def transposed(
    s: int, p: int, d: int, taps: int, far: int = FAR, weights: int = 0, fill: float = 0.0
) -> Scope:
    """[i] = sum_{c,k} x[c, (i + p - d*k) / s] * w[c, k]. If s doesn't divide i + p - d*k, the read
    of x is far out of range."""
    i, k = it(0, 8), it(2, taps)
    u = i + p - d * k
    x, w = read("x", 4, u // s + u % s * far, fill), read("w", weights or taps, k)
    return canonical(Scope((8,), (CHANNELS, taps), Prod((x, w))))


def indices(scope: Scope, name: str) -> list[str]:
    assert isinstance(scope.body, Prod)
    reads = [f for f in scope.body.factors if isinstance(f, Read)]
    return [str(read.index[1]) for read in reads if read.tensor.label == name]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("s", "p", "d", "taps"),
    list(itertools.product((2, 3, 4, 6), (0, 1, 2), (1, 2, 3), (2, 3, 4, 7))),
)
def test_only_the_taps_of_one_phase_are_summed(s: int, p: int, d: int, taps: int) -> None:
    scope = transposed(s, p, d, taps)
    selected = phase_select(scope)
    if d % s == 0:
        # All taps of an output are of one phase, so either all are in range or none is.
        assert selected is None
        return
    assert selected is not None
    few = -(-taps // (s // math.gcd(s, d)))
    assert math.prod(selected.reduction) == CHANNELS * few
    assert_equal(scope, selected)
    assert phase_select(selected) is None


def test_what_runs_backward_here_and_forward_there_is_not_turned_round() -> None:
    """a[2k, 2 - 2k] with k reversed is a[2 - 2q, 2q], which would be reversed again, forever."""
    k = it(1, 2)
    read = Read(leaf("a", 3, 3), (2 * k, 2 - 2 * k))
    scope = canonical(Scope((3,), (2,), Prod((read, Read(leaf("b", 8), (k + it(0, 3) + 1,))))))
    assert phase_select(scope) is None


def test_two_axes_are_selected_together() -> None:
    i, j, k, h = it(0, 4), it(1, 4), it(2, 4), it(3, 3)
    u, v = i - k + 1, j - h
    x = Read(leaf("x", 2, 2), (u // 2 + u % 2 * FAR, v // 3 + v % 3 * FAR))
    scope = canonical(Scope((4, 4), (4, 3), Prod((x, Read(leaf("w", 4, 3), (k, h))))))
    selected = phase_select(scope)
    assert selected is not None and selected.reduction == (2,)
    assert_equal(scope, selected)


def sub_pixel(weight: Index, taps: int, weights: int, positions: int = 8) -> Scope:
    i, k = it(0, positions), it(2, taps)
    x, w = read("x", 4, i // 2 + k - 1), read("w", weights, weight)
    return canonical(Scope((positions,), (CHANNELS, taps), Prod((x, w))))


def test_a_sub_pixel_convolution_is_the_transposed_one() -> None:
    """A sub-pixel convolution with three taps, two of which aren't zero, and one with two taps in
    reverse order, both become the sum of the transposed convolution."""
    i, k = it(0, 8), it(2, 3)
    wide, wanted = sub_pixel(i % 2 - 2 * k + 3, 3, 4), phase_select(transposed(2, 1, 1, 4))
    assert phase_select(wide) == wanted
    assert wanted is not None and wanted.reduction == (2, 2)
    assert indices(wanted, "x") == ["-i1 + ((i0 + 1) // 2)"]
    assert indices(wanted, "w") == ["2*i1 + ((i0 + 1) % 2)"]
    assert_equal(wide, wanted)
    i, k = it(0, 8) + 1, it(2, 2)
    x, w = read("x", 4, i // 2 + k - 1), read("w", 4, 2 - 2 * k + i % 2)
    assert phase_select(canonical(Scope((8,), (CHANNELS, 2), Prod((x, w))))) == wanted


@pytest.mark.parametrize(
    "scope",
    [
        transposed(2, 1, 1, 4, far=1),
        transposed(2, 1, 1, 4, far=-3),
        transposed(2, 1, 1, 4, fill=1.0),
        transposed(2, 1, 1, 3, weights=4),
        sub_pixel(2 * it(2, 3), 3, 6),
        sub_pixel(it(0, 8) - 2 * it(2, 3) + 3, 3, 4),
    ],
    ids=["in range", "in range below", "fill", "a weight goes on", "all taps", "a window"],
)
def test_taps_that_may_count_stay(scope: Scope) -> None:
    assert phase_select(scope) is None


def test_nothing_but_a_product_is_zero_where_a_part_is() -> None:
    scope = transposed(2, 1, 1, 4)
    assert isinstance(scope.body, Prod)
    x, w = scope.body.factors
    for other in (
        Scope((8,), scope.reduction, Sum((x, w))),
        Scope((8,), scope.reduction, Prod((x, w)), "max"),
        Scope((8,), scope.reduction, Prod((x, w)), "prod"),
        Scope((8,), scope.reduction, Prod((x, Read(leaf("v", 3), (it(2, 4),), INF)))),
    ):
        assert phase_select(canonical(other)) is None


# ---- taps that share a place --------------------------------------------------------


def repeated(s: int, shift: int, taps: int, weights: int = 0, fill: float = 0.0) -> Scope:
    """[i] = sum_{c,k} x[c, (i + k - shift) // s] * w[c, k]: each pixel of x is there s times."""
    i, k = it(0, 12), it(2, taps)
    x, w = read("x", 4, (i + k - shift) // s, fill), read("w", weights or taps, k)
    return canonical(Scope((12,), (CHANNELS, taps), Prod((x, w))))


@pytest.mark.parametrize(
    ("s", "taps"), [(2, 3), (2, 4), (2, 5), (3, 3), (3, 4), (3, 7), (4, 3), (5, 3)]
)
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_taps_that_read_one_place_are_added_first(s: int, taps: int, shift: int) -> None:
    scope = repeated(s, shift, taps)
    shared = shared_places(scope)
    assert shared is not None
    places = -(-(taps + s - 1) // s)
    assert sorted(shared.reduction) == sorted((CHANNELS, places, s))
    # x isn't read by the taps of one place any more.
    (x,) = (r for r in factors_of(shared.body) if isinstance(r, Read) and r.tensor.name == "x")
    assert len({each for index in x.index for each in index.iterators()}) == 3
    assert_equal(scope, shared)
    assert shared_places(shared) is None


def test_two_axes_of_repeated_pixels() -> None:
    i, j, k, h = it(0, 4), it(1, 6), it(2, 3), it(3, 4)
    x = Read(leaf("x", 2, 2), ((i + k - 1) // 2, (j + h - 1) // 3))
    scope = canonical(Scope((4, 6), (3, 4), Prod((x, Read(leaf("w", 3, 4), (k, h))))))
    shared = shared_places(scope)
    assert shared is not None and sorted(shared.reduction) == [2, 2, 2, 3]
    assert_equal(scope, shared)


def test_taps_that_share_no_place_stay() -> None:
    # Two taps read two places for every second output, and one tap one place.
    assert shared_places(repeated(2, 1, 2)) is None
    assert shared_places(repeated(2, 0, 1)) is None
    # There are weights beyond the taps, which the recount would reach.
    assert shared_places(repeated(2, 1, 3, weights=5)) is None
    # The taps are spread out: places aren't shared by neighbours.
    i, k = it(0, 8), it(2, 3)
    apart = Prod((read("x", 4, (i + 2 * k) // 2), read("w", 3, k)))
    assert shared_places(canonical(Scope((8,), (CHANNELS, 3), apart))) is None
    # The place depends on another tap as well.
    both = Prod((read("x", 4, (i + k + it(1, CHANNELS)) // 2), read("w", 3, k)))
    assert shared_places(canonical(Scope((8,), (CHANNELS, 3), both))) is None


def test_taps_whose_sum_is_a_place_are_added_first() -> None:
    """[i] = sum_{c,k,l} x[c, i + k + d*l] * w[c, k] * v[l]: 9 pairs of taps read 5 or 7 places."""
    i, k, m = it(0, 8), it(2, 3), it(3, 3)
    for d in (1, 2):
        x, w = read("x", 15, i + k + d * m), Read(weight("w", CHANNELS, 3), (it(1, CHANNELS), k))
        scope = canonical(Scope((8,), (CHANNELS, 3, 3), Prod((x, w, filter_of(m)))))
        shared = shared_places(scope)
        assert shared is not None and sorted(shared.reduction) == [CHANNELS, 3, 3 + 2 * d]
        (at,) = (f.index for f in factors_of(shared.body) if isinstance(f, Read)
                 and f.tensor == x.tensor)  # fmt: skip
        assert len({each for index in at for each in index.iterators()}) == 3
        assert_equal(scope, shared)
        assert shared_places(shared) is None


def test_taps_whose_sum_is_no_place_stay() -> None:
    i, k, m = it(0, 8), it(2, 3), it(3, 3)
    w = Read(weight("w", CHANNELS, 3), (it(1, CHANNELS), k))
    for case, factors in {
        "9 places": (read("x", 16, i + k + 3 * m), w, filter_of(m)),
        "data by one tap": (read("x", 12, i + k + m), w, read("y", 3, m)),
        "two places": (read("x", 12, i + k + m), read("x", 12, i + k + 2 * m), w, filter_of(m)),
        "constant": (filter_of(i + k + m, 12), w, filter_of(m)),
    }.items():
        scope = canonical(Scope((8,), (CHANNELS, 3, 3), Prod(factors)))
        assert shared_places(scope) is None, case


def filter_of(index: Index, taps: int = 3) -> Read:
    return Read(weight("v", taps), (index,))
