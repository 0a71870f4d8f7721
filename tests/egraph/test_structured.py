"""Products with structured operands: a search finds the FLOPs that the structure needs.

A row is a program, with the FLOPs of its best form. Every member of its e-graph is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.ir.tensor import Tensor
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import LIMITS, RULES, least_flops, weight
from tests.terms import leaf, op

# m rows of n elements, and products with p columns.
M, N, P = 3, 4, 5
IDS = leaf("ids", M, dtype="int64")
X, Y = leaf("x", M, N), leaf("y", M, N)


def product_of(*pieces: Tensor) -> Tensor:
    """``cat(pieces, -1) @ w``."""
    rows = sum(piece.shape[-1] for piece in pieces)
    return op("Matmul", op("Concat", *pieces, attrs=(1,)), weight("w", rows, P))


def embedded(name: str) -> Tensor:
    return op("Embedding", weight(name, 7, N), IDS)


def layer(x: Tensor) -> Tensor:
    """``x @ w + b``."""
    return op("Add", op("Matmul", x, weight("w", N, P)), weight("b", P))


def mean_of(*layers: Tensor) -> Tensor:
    stacked = [op("Reshape", one, attrs=((1, M, P),)) for one in layers]
    return op("ReduceMean", op("Concat", *stacked, attrs=(0,)), attrs=((0,), 0))


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int]] = {
    # x @ (w1 + w2)
    "twice": (lambda: product_of(X, X), 2 * M * N * P),
    # x @ (w1 - w2)
    "negated": (lambda: product_of(X, op("Neg", X)), 2 * M * N * P),
    # x @ (w1 + w3) + y @ w2
    "around": (lambda: product_of(X, Y, X), 2 * 2 * M * N * P),
    # embedding(t @ w1, ids) + embedding(u @ w2, ids)
    "rows": (lambda: product_of(embedded("t"), embedded("u")), M * P),
    # (x - y) @ w
    "difference": (lambda: op("Sub", layer(X), layer(Y)), M * N + 2 * M * N * P),
    # (x + y) @ (w / 2) + b
    "mean": (lambda: mean_of(layer(X), layer(Y)), M * N + 2 * M * N * P + M * P),
    # embedding(t @ w1, ids) + x @ w2
    "rows-beside": (lambda: product_of(embedded("t"), X), 2 * M * N * P + M * P),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_structure_is_used(name: str) -> None:
    program, least = PROGRAMS[name]
    graph = saturate_terms((program(),), RULES, DEFAULT_PHASES, LIMITS, True)
    assert graph.stop == "saturated"
    # An addition of the parts may stand in a step of its own.
    assert least <= least_flops(graph) <= least + M * P
    assert_egraph_consistent(graph, seed=5)
