"""Correlation by tiles (Winograd's algorithms): the matrices are proved exact, their rounding
errors are bounded, and windows computed by tiles equal the windows."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product as places

import numpy as np
import pytest
import sympy

from eqsynth.egraph.tactics.correlating import GROWN, Window, by_windows
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.toom_cook import Algorithm, correlation, growth, toom_cook, worst_growth
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar
from eqsynth.ir.tensor import Scope
from eqsynth.lower.rounding import SURE
from eqsynth.testing.judging import Sides
from tests.calculus.proposals import assert_one_value
from tests.terms import INF, it, leaf

KNOWN = ((1, 3), (2, 2), (2, 3), (3, 3), (4, 2), (4, 3), (6, 3), (2, 4), (2, 5), (3, 5), (4, 5))
POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
SIZES = {size: toom_cook(*size, POINTS[: sum(size) - 2]) for size in KNOWN}
CHOSEN = {size: correlation(*size) for size in ((2, 3), (4, 3), (6, 3), (2, 5), (4, 5))}


# ---- the matrices --------------------------------------------------------------------------


def outputs_of(algorithm: Algorithm) -> list[sympy.Expr]:
    """The outputs of the algorithm for symbolic inputs, minus the outputs of a correlation."""

    def matrix(rows: object) -> sympy.Matrix:
        return sympy.Matrix([[sympy.Rational(e.numerator, e.denominator) for e in r] for r in rows])

    d = sympy.Matrix(sympy.symbols(f"d:{algorithm.inputs}"))
    w = sympy.Matrix(sympy.symbols(f"w:{algorithm.taps}"))
    products = (matrix(algorithm.filter) * w).multiply_elementwise(matrix(algorithm.data) * d)
    given = matrix(algorithm.output) * products
    return [
        sympy.expand(given[j] - sum(d[j + k] * w[k] for k in range(algorithm.taps)))
        for j in range(algorithm.outputs)
    ]


@pytest.mark.parametrize("algorithm", [*SIZES.values(), *CHOSEN.values()])
def test_an_algorithm_is_a_correlation_of_all_filters_and_data(algorithm: Algorithm) -> None:
    assert outputs_of(algorithm) == [0] * algorithm.outputs
    assert algorithm.products == algorithm.outputs + algorithm.taps - 1


def test_an_entry_that_is_off_is_seen() -> None:
    right = CHOSEN[2, 3]
    for name, size in (("output", (2, 4)), ("filter", (4, 3)), ("data", (4, 4))):
        for row, column in places(*map(range, size)):
            rows = [list(entries) for entries in getattr(right, name)]
            rows[row][column] += Fraction(1, 1 << 40)
            wrong = replace(right, **{name: tuple(map(tuple, rows))})
            assert by_one(wrong)[1] is None
            assert any(difference != 0 for difference in outputs_of(wrong))


def test_points_have_to_be_different_and_enough() -> None:
    for points in (POINTS[:2], (*POINTS[:2], POINTS[0])):
        with pytest.raises(ValueError):
            toom_cook(2, 3, points)
    with pytest.raises(ValueError):
        correlation(9, 3)


# ---- the error of float32 ----------------------------------------------------------------------

CHANNELS = 64
HALF_EPS = 2.0**-24


def floats(rows: object) -> np.ndarray:
    return np.array([[float(entry) for entry in row] for row in rows])  # type: ignore[attr-defined]


def along(matrix: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    """The matrix times the values along an axis. Terms are added one after the other."""
    columns = np.moveaxis(values, axis, 0)
    rows = [sum(np.asarray(e, values.dtype) * c for e, c in zip(row, columns, strict=True))
            for row in matrix]  # fmt: skip
    return np.moveaxis(np.array(rows, values.dtype), 0, axis)


def by_tiles(algorithm: Algorithm, axes: int, data: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The outputs of tiles (tiles, channels, *inputs) and filters (channels, *taps), computed in
    the dtype of the data. The filters are transformed in float64, as constants are, and rounded."""
    kind, u = data.dtype, filters.astype(np.float64)
    for axis in range(axes):
        data = along(floats(algorithm.data), data, 2 + axis)
        u = along(floats(algorithm.filter), u, 1 + axis)
    products = np.zeros_like(data[:, 0])
    for channel, filter_ in enumerate(u.astype(kind)):
        products = products + data[:, channel] * filter_
    for axis in range(axes):
        products = along(floats(algorithm.output), products, 1 + axis)
    return products


def off_by(algorithm: Algorithm, axes: int, data: np.ndarray, filters: np.ndarray) -> np.ndarray:
    exact = by_tiles(algorithm, axes, data.astype(np.float64), filters.astype(np.float64))
    return np.asarray(by_tiles(algorithm, axes, data, filters) - exact)


def random_tiles(algorithm: Algorithm, axes: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    inputs, taps = (algorithm.inputs,) * axes, (algorithm.taps,) * axes
    data = random.standard_normal((400, CHANNELS, *inputs)).astype(np.float32)
    return data, random.standard_normal((CHANNELS, *taps)).astype(np.float32)


def worst_tiles(algorithm: Algorithm, axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Data and filters whose signs are those of a matrix row, so that the sums grow as large as
    possible. Their absolute values aren't powers of two, so that every operation rounds."""
    random = np.random.default_rng(1)

    def signs(matrix: np.ndarray, number: int) -> np.ndarray:
        row = np.where(matrix[number] < 0, -1.0, 1.0)
        return row if axes == 1 else np.multiply.outer(row, row)

    b, g = floats(algorithm.data), floats(algorithm.filter)
    tiles = []
    for number in range(algorithm.products):
        tile = signs(b, number) * random.uniform(0.9, 1.0, (CHANNELS, *b.shape[1:] * axes))
        tiles.append(tile)
    number = max(range(algorithm.products), key=lambda p: abs(b[p]).sum() * abs(g[p]).sum())
    filters = signs(g, number) * random.uniform(0.9, 1.0, (CHANNELS, *g.shape[1:] * axes))
    return np.array(tiles, np.float32), filters.astype(np.float32)


ERRORS = [(a, n) for a in CHOSEN.values() for n in (1, 2)]
ERRORS_IDS = [f"F{size} {n}" for size in CHOSEN for n in (1, 2)]


@pytest.mark.rotating
@pytest.mark.parametrize(("algorithm", "axes"), ERRORS, ids=ERRORS_IDS)
def test_the_error_is_within_its_bound_on_any_data(algorithm: Algorithm, axes: int) -> None:
    """``passes`` is the number of operations on the way of a term: those of each transform (the
    filter's rounds once), and the sum over the channels. Data and filters are at most 1."""
    passes = axes * (2 * algorithm.inputs + 2 * algorithm.products) + CHANNELS + 2
    largest = CHANNELS * (algorithm.taps * worst_growth(algorithm)) ** axes
    bound = passes * HALF_EPS * largest
    found = 0.0
    for data, filters in (random_tiles(algorithm, axes), worst_tiles(algorithm, axes)):
        scale = np.float32(max(abs(data).max(), 1.0)), np.float32(max(abs(filters).max(), 1.0))
        off = off_by(algorithm, axes, data / scale[0], filters / scale[1])
        found = max(found, float(abs(off).max()))
    assert found <= bound
    assert found >= bound / 3000, "a bound that says nothing"


@pytest.mark.rotating
@pytest.mark.parametrize(("algorithm", "axes"), ERRORS, ids=ERRORS_IDS)
def test_roundings_grow_as_the_matrices_say(algorithm: Algorithm, axes: int) -> None:
    """``growth`` predicts the root mean square error at the worst output of a tile, divided by that
    of a plain sum over the channels, both relative to the results."""
    data, filters = random_tiles(algorithm, axes)
    error = np.sqrt((off_by(algorithm, axes, data, filters).astype(float) ** 2).mean(0)).max()
    typical = np.sqrt(CHANNELS * algorithm.taps**axes)
    plain, exact = np.zeros(4000, np.float32), np.zeros(4000)
    random = np.random.default_rng(2)
    for _ in range(CHANNELS):
        a, b = random.standard_normal((2, 4000)).astype(np.float32)
        plain, exact = plain + a * b, exact + a.astype(float) * b
    own = np.sqrt(((plain - exact) ** 2).mean()) / np.sqrt(CHANNELS)
    assert 0.7 <= error / typical / (own * growth(algorithm) ** axes) <= 1.7


@pytest.mark.rotating
@pytest.mark.parametrize(("algorithm", "axes"), ERRORS, ids=ERRORS_IDS)
def test_what_is_real_is_off_by_what_the_check_lets_pass(algorithm: Algorithm, axes: int) -> None:
    """The largest error on random data, in roundings of a typical result, is within the checker's
    bound if the algorithm is `real`, and beyond it if its roundings grow much more."""
    data, filters = random_tiles(algorithm, axes)
    typical = np.sqrt(CHANNELS * algorithm.taps**axes)
    largest = abs(off_by(algorithm, axes, data, filters)).max() / typical / HALF_EPS / 2
    grown = growth(algorithm) ** axes
    if grown <= GROWN:
        assert largest <= SURE / 2
    if grown > 8 * GROWN:
        assert largest > SURE


def test_what_the_data_are_multiplied_by_is_exact_in_float32() -> None:
    for algorithm in CHOSEN.values():
        for entry in (e for m in (algorithm.data, algorithm.output) for row in m for e in row):
            assert float(np.float32(float(entry))) == entry


# ---- scopes by tiles -----------------------------------------------------------------------

Y, K = It(0, 5), It(1, 3)
D = Read(leaf("d", 7), (it(0, 5) + it(1, 3),))
W = Read(leaf("w", 3), (it(1, 3),))
TWO = CHOSEN[2, 3]
WINDOW = Window(Y, K, TWO)


def over(body: Scalar, reducer: str = "sum") -> Scope:
    return Scope((5,), (3,), body, reducer)


def slid(index: object, extent: int = 7, fill: float = 0.0) -> Read:
    return Read(leaf("d", extent), (index,), fill)  # type: ignore[arg-type]


def by_one(algorithm: Algorithm) -> tuple[Scope, Path | None]:
    """A padded window with the algorithm's number of taps, and the window computed by tiles."""
    taps = algorithm.taps
    data = Read(leaf("d", 8), (it(0, 7) + it(1, taps) - 1,))
    scope = Scope((7,), (taps,), Prod((data, Read(leaf("w", taps), (it(1, taps),)))))
    return scope, by_windows(scope, [Window(It(0, 7), It(1, taps), algorithm)])


@pytest.mark.parametrize("algorithm", [*SIZES.values(), *CHOSEN.values()])
def test_every_size_is_equal_in_finite_fields(algorithm: Algorithm) -> None:
    scope, tiled = by_one(algorithm)
    assert tiled is not None and tiled.scope != scope
    assert Sides(scope, tiled.scope).exactly() == (True, None)


@pytest.mark.parametrize("size", [(2, 3), (4, 3), (6, 3)])
@pytest.mark.parametrize(
    "body",
    [
        Prod((D, W)),
        Prod((D, W, Num(2.0))),
        Prod((slid(it(0, 5) + it(1, 3) - 1, 5), W)),
        Prod((slid(it(0, 5) + it(1, 3) * 2, 9), W)),
        Prod((slid(it(0, 5) + it(1, 3) * 3 - 3, 5, 1.5), W)),
        Prod((slid(it(0, 5) - it(1, 3) + 2), W)),
        Prod((slid(it(0, 5) - it(1, 3), 5), W)),
        Prod((slid(it(0, 5) - it(1, 3) * 2 + 2, 5), W, Num(2.0))),
        D,
        slid(it(0, 5) - it(1, 3) + 2),
        Prod((D, W, W)),
        Prod((D, Read(leaf("v", 5), (it(1, 3) * 2,)))),
    ],
)
def test_a_window_by_tiles_is_equal(size: tuple[int, int], body: Scalar) -> None:
    tiled = by_windows(over(body), [Window(Y, K, CHOSEN[size])])
    assert tiled is not None and tiled.scope != over(body)
    assert_one_value(over(body), tiled.scope)


@pytest.mark.parametrize("size", [2, 7, 9, 54])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_a_dilated_window_of_two_axes_is_known_by_its_matrices(size: int, dilation: int) -> None:
    """A dilated window along two axes is computed by tiles at all sizes: a position is made of its
    phase, its tile and its place in the tile."""
    i, j, k, h = (it(slot, extent) for slot, extent in enumerate((size, size, 3, 3)))
    data = Read(leaf("d", size, size), (i + k * dilation - 1, j + h * dilation - 1))
    scope = Scope((size, size), (3, 3), Prod((data, Read(leaf("w", 3, 3), (k, h)))))
    windows = [Window(It(n, size), It(2 + n, 3), CHOSEN[4, 3]) for n in range(2)]
    assert by_windows(scope, windows) is not None


@pytest.mark.parametrize(
    ("scope", "windows"),
    [
        (over(Prod((D, Call("exp", (W,))))), [WINDOW]),
        (over(Prod((D, W)), "max"), [WINDOW]),
        (over(Prod((slid(it(0, 5) + it(1, 3) - 1, 5, INF), W))), [WINDOW]),
        (over(slid(it(0, 5) + it(1, 3) - 1, 5, INF)), [WINDOW]),
        (over(Prod((replace(D, tensor=leaf("d", 7, dtype="float64")), W))), [WINDOW]),
        (over(Prod((replace(D, tensor=leaf("d", 7, dtype="int32")), Num(2.0)))), [WINDOW]),
        (over(Prod((D, W))), []),
        (over(Prod((D, W))), [Window(K, K, TWO)]),
        (over(Prod((D, W))), [Window(Y, Y, TWO)]),
        (over(Prod((D, W))), [WINDOW] * 2),
        (over(Prod((D, W))), [Window(Y, K, SIZES[2, 2])]),
        (over(Prod((D, W))), [Window(Y, K, replace(TWO, data=TWO.data[::-1]))]),
        (over(Prod((D, D))), [WINDOW]),
        (over(W), [WINDOW]),
        (over(Prod((D, Read(leaf("b", 5), (it(0, 5),))))), [WINDOW]),
        (over(Prod((slid(it(0, 5) * 2 + it(1, 3), 11), W))), [WINDOW]),
        (over(Prod((slid(it(0, 5) * 2 - it(1, 3) + 2, 11), W))), [WINDOW]),
        (over(Prod((slid(it(0, 5) - it(1, 3) + 2), W))), [Window(Y, K, TWO.backward())]),
        (over(Prod((slid((it(0, 5) + it(1, 3)) // 2), W))), [WINDOW]),
        (over(Prod((slid(it(0, 5) + it(1, 3) + it(0, 5) % 2, 8), W))), [WINDOW]),
        (over(Prod((Read(leaf("d", 7, 5), (it(0, 5) + it(1, 3), it(0, 5))), W))), [WINDOW]),
        (over(Prod((Read(leaf("d", 5, 3), (it(0, 5), it(1, 3))), W))), [WINDOW]),
    ],
)
def test_what_is_no_window_stays(scope: Scope, windows: list[Window]) -> None:
    assert by_windows(scope, windows) is None
