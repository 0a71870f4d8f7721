"""Windows computed by tiles, in the e-graph: where the law answers, and that its answers are equal
to the windows."""

from __future__ import annotations

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.tactics.correlating import GROWN
from eqsynth.egraph.tactics.toom_cook import correlation, growth, sizes
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op, is_literal
from eqsynth.rules import RuleSet, load_rules
from eqsynth.testing import assert_egraph_consistent

RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))


def saturated(expression: Expr, rules: RuleSet = RULES) -> EGraph:
    roots = program_of(expression)[0].outputs
    return saturate_terms(roots, rules, DEFAULT_PHASES, Limits(), log_matches=False)


def sides(graph: EGraph) -> set[int]:
    """The outputs along a side of the e-graph's tiles: the rows of each literal matrix that has
    more columns than rows (the output matrix)."""
    members = [m for own in graph.classes.values() for m in own if isinstance(m, Op)]
    shapes = [member.shape for member in members if is_literal(member)]
    return {rows for rows, columns in shapes if rows < columns}


def conv(channels: int = 16, size: int = 4, **options: int) -> Expr:
    groups = options.get("groups", 1)
    x = eqsynth.input("x", (1, channels, size, size))
    w = eqsynth.weight("w", (channels, channels // groups, 3, 3))
    return ops.conv2d(x, w, **options)  # type: ignore[arg-type]


def both() -> Expr:
    x, w = eqsynth.input("x", (1, 16, 4, 4)), eqsynth.input("w", (16, 16, 3, 3))
    return ops.conv2d(x, w, padding=1)


def along_one(taps: int, channels: int = 64, size: int = 24) -> Expr:
    """A convolution whose kernel has one row."""
    x = eqsynth.input("x", (1, channels, 2, size))
    w = eqsynth.weight("w", (channels, channels, 1, taps))
    return ops.conv2d(x, w, padding=(0, taps // 2))


def transposed(taps: int, stride: int, size: int = 8) -> Expr:
    """A transposed convolution: each phase of its outputs is a window that runs backward."""
    x = eqsynth.input("x", (1, 24, size, size))
    w = eqsynth.weight("w", (24, 24, taps, taps))
    return ops.conv_transpose2d(x, w, stride=stride, padding=stride // 2)


def square(taps: int, size: int = 8) -> Expr:
    x = eqsynth.input("x", (1, 24, size, size))
    return ops.conv2d(x, eqsynth.weight("w", (24, 24, taps, taps)), padding=taps // 2)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("expression", "real", "losing"),
    [
        (conv(padding=1), {2, 4}, {4}),
        (conv(size=9), {2, 4}, {4}),
        (conv(size=5), set(), set()),
        (conv(size=7, padding=2, dilation=2), set(), {4}),
        (square(3, 12), {2, 4}, {4, 6}),
        (square(2), {3}, set()),
        (square(5), set(), {2, 4}),
        (along_one(3), {4}, {6}),
        (along_one(5), {2}, {4}),
        (conv(4, padding=1), set(), set()),
        (conv(padding=1, stride=2), set(), set()),
        (conv(padding=1, groups=16), set(), set()),
        (conv(32, padding=1, groups=2), {2, 4}, {4}),
        (conv(14, padding=1), {4}, {4}),  # along one axis
        (conv(1, size=3, padding=1), set(), set()),
        (both(), set(), set()),
        (transposed(3, 1), {2, 4}, {4, 6}),
        (transposed(4, 2), {3}, {5}),
        (transposed(6, 2), {2, 4}, {4, 6}),
        (transposed(2, 2), set(), set()),
    ],
    ids=[
        "padded",
        "odd",
        "tiles mostly beyond the end",
        "dilated",
        "large",
        "2 by 2",
        "5 by 5",
        "1 by 3",
        "1 by 5",
        "few channels",
        "strided",
        "a channel a group",
        "groups",
        "not many channels",
        "one channel",
        "filters that are computed",
        "backward",
        "2 phases of 2 taps",
        "2 phases of 3 taps",
        "2 phases of 1 tap",
    ],
)
def test_where_fewer_products_are_less_work(
    expression: Expr, real: set[int], losing: set[int]
) -> None:
    """The law is used only where tiles are less work. ``real`` and ``losing`` are the outputs along
    a side of the tiles of `real` and of `cancels` numerics."""
    graph = saturated(expression)
    assert bool(graph.matches.get("correlate")) == bool(real)
    assert bool(graph.matches.get("correlate-losing")) == bool(losing)
    assert sides(graph) == real | losing
    assert sides(saturated(expression, RULES.select(numerics=("bitwise", "real")))) == real
    assert assert_egraph_consistent(graph)


def test_what_is_real_is_decided_by_how_roundings_grow() -> None:
    """Of all algorithms, those whose roundings grow at most by ``GROWN`` are `real`. Along two axes
    the growths multiply. No growth is close to the limit."""
    grown = {size: growth(correlation(*size)) for size in sizes()}
    assert {size for size in grown if grown[size] <= GROWN} == {
        (3, 2), (2, 3), (5, 2), (4, 3), (3, 4), (2, 5)
    }  # fmt: skip
    assert grown[2, 3] * grown[4, 3] <= GROWN <= grown[4, 3] ** 2 / 2
