"""Cuts at sums of a residual stream, ``x + tanh(x @ w)``: where they are, and that they don't make
the program take more work."""

from __future__ import annotations

from functools import reduce

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, stitch
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.rules import load_rules
from tests.egraph.programs import least_flops

RULES = load_rules().select(numerics=("bitwise", "real"))
ROWS, WIDTH = 16, 8
X = eqsynth.input("x", (ROWS, WIDTH))
LONG = eqsynth.input("long", (ROWS, 100))
COLUMN = eqsynth.input("column", (ROWS, 1))
IMAGE = eqsynth.input("image", (1, 3, 6, 6))


def weight(name: str, *shape: int) -> Expr:
    return eqsynth.weight(name, shape or (WIDTH, WIDTH))


def layers(count: int, x: Expr = X, tied: bool = False) -> Expr:
    for n in range(count):
        x = x + ops.tanh(x @ weight("w" if tied else f"w{n}"))
    return x


def bottlenecks(x: Expr) -> Expr:
    """Two layers, each of which multiplies the stream by a matrix of one column."""
    for n in range(2):
        x = x + ops.tanh(ops.relu(x @ weight(f"u{n}", WIDTH, 1)) @ weight(f"v{n}", 1, WIDTH))
    return x


def convolutions() -> Expr:
    x = IMAGE
    for n in range(2):
        x = x + ops.relu(ops.conv2d(x, weight(f"w{n}", 3, 3, 3, 3), padding=1))
    return x


def read_by(addend: Expr, x: Expr = X) -> Expr:
    """A layer that reads the sum x + addend."""
    return ops.relu((x + addend) @ weight("out"))


BRANCH = ops.tanh(X @ weight("w0"))

LATE = reduce(lambda x, _: ops.sin(x), range(8), COLUMN)

CUT = {
    "layers": layers(3),
    "tied": layers(3, tied=True),
    "a head": layers(3) @ weight("head", WIDTH, 2),
    "averaged": ops.mean(layers(3), 0),
    "embedded": layers(3, LONG @ weight("embedding", 100, WIDTH)),
    "a part": ops.slice(layers(3), 1, 0, 1),
    "scaled": read_by(0.5 * BRANCH),
    "two functions": read_by(ops.sigmoid(X @ weight("w1")) + BRANCH),
    "convolutions": convolutions(),
    "subtracted": read_by(ops.neg(BRANCH)),
}
WHOLE = {
    "linear layers": read_by(X @ weight("w0")),
    # The constant goes into the bias of what reads the sum.
    "a constant": read_by(BRANCH + weight("c", WIDTH)),
    # The embedding goes into what reads the sums, all of which is thin.
    "thin readers": bottlenecks(LONG @ weight("embedding", 100, WIDTH)) @ weight("h", WIDTH, 1),
    # A product of the column takes less than a product of the sum.
    "a repeated column": read_by(ops.tanh(ops.expand(COLUMN, (ROWS, WIDTH)))),
    "a smaller addend": read_by(ops.tanh(COLUMN)),
    # y = f @ out is known, so that (y @ p + f) @ out = y @ (p @ out + 1). The other addend takes a
    # longer chain of terms, so it is live at f, where a cut would lose nothing.
    "a function that others read": read_by(BRANCH @ weight("out") @ weight("p") + BRANCH, LATE),
    "a wide part": ops.relu(ops.slice((X + BRANCH) @ weight("out"), 1, 0, 1)),
}


def saturated(expression: Expr, whole: bool) -> int:
    """The least FLOPs of the program, saturated as a whole or in segments."""
    program = capture_expression(expression).program
    segments = cut(program)
    roots = [program.outputs] if whole else [segment.roots for segment in segments]
    graphs = [saturate_terms(r, RULES, DEFAULT_PHASES, Limits(), False) for r in roots]
    return least_flops(graphs[0] if whole else stitch(program, segments, graphs))


def test_equal_residual_layers_are_one_segment() -> None:
    for count in (2, 8):
        segments = cut(capture_expression(layers(count)).program)
        assert len(segments) == count and len({segment.key for segment in segments}) == 1


@pytest.mark.rotating
@pytest.mark.parametrize("name", CUT)
def test_a_cut_at_a_residual_sum_adds_no_work(name: str) -> None:
    assert len(cut(capture_expression(CUT[name]).program)) > 1
    assert saturated(CUT[name], whole=False) == saturated(CUT[name], whole=True)


@pytest.mark.parametrize("name", WHOLE)
def test_no_cut_where_contractions_may_move_through_the_sum(name: str) -> None:
    assert len(cut(capture_expression(WHOLE[name]).program)) == 1
