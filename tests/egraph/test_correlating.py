"""Windows by tiles in the e-graph: where the law answers, and that what it makes is equal."""

from __future__ import annotations

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op
from eqsynth.rules import load_rules
from eqsynth.testing import assert_egraph_consistent

RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))


def saturated(expression: Expr) -> EGraph:
    roots = program_of(expression)[0].outputs
    return saturate_terms(roots, RULES, DEFAULT_PHASES, Limits(), log_matches=False)


def conv(channels: int = 16, size: int = 4, **options: int) -> Expr:
    groups = options.get("groups", 1)
    x = eqsynth.input("x", (1, channels, size, size))
    w = eqsynth.weight("w", (channels, channels // groups, 3, 3))
    return ops.conv2d(x, w, **options)  # type: ignore[arg-type]


def both() -> Expr:
    x, w = eqsynth.input("x", (1, 16, 4, 4)), eqsynth.input("w", (16, 16, 3, 3))
    return ops.conv2d(x, w, padding=1)


@pytest.mark.parametrize(
    ("expression", "sizes"),
    [
        (conv(padding=1), {2, 4}),
        (conv(size=9), {4}),
        (conv(size=5), set()),
        (conv(size=7, padding=2, dilation=2), {4}),
        (conv(4, padding=1), set()),
        (conv(padding=1, stride=2), set()),
        (both(), set()),
    ],
    ids=[
        "padded", "odd", "tiles mostly beyond the end", "dilated", "few channels", "strided",
        "filters that are computed",
    ],
)
def test_where_fewer_products_are_less_work(expression: Expr, sizes: set[int]) -> None:
    graph = saturated(expression)
    assert {n for n in (2, 4) if graph.matches.get(f"correlate-{n}")} == sizes
    if sizes:
        names = [m for own in graph.classes.values() for m in own if isinstance(m, Op)]
        assert any(m.name == "Matmul" and m.shape[0] in (16, 36) for m in names), "no product"
    assert assert_egraph_consistent(graph)
