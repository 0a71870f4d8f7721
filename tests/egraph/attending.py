"""Attention as models write it, for ``programs.py``: scaled, masked, of what came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eqsynth.ir.tensor import Tensor
from tests.terms import INF, leaf, op

QUERIES, KEYS, VALUES = leaf("q", 3, 4), leaf("t", 4, 5), leaf("v", 5, 2)
SCORES = op("Matmul", QUERIES, KEYS)
HALF = op("Mul", SCORES, op("Full", attrs=((), 0.5, "float32")))
THIRD = op("Div", SCORES, op("Full", attrs=((), 3.0, "float32")))
LEAST = op("Full", attrs=((), -INF, "float32"))
ROW, KEY = (op("Iota", attrs=((3, 5), axis, "int64")) for axis in (0, 1))
SEEN = op("GreaterEqual", ROW, KEY)
# The same places as ``torch.tril`` and ``triu`` say them.
LOWER = op("LessEqual", op("Sub", KEY, ROW), op("Full", attrs=((), 0.0, "int64")))
UPPER = op("GreaterEqual", op("Sub", KEY, ROW), op("Full", attrs=((), 1.0, "int64")))


def number(value: float) -> Tensor:
    return op("Full", attrs=((), value, "float32"))


def attended(scores: Tensor) -> Tensor:
    return op("Matmul", op("Softmax", scores, attrs=(1,)), VALUES)


def attended_mask() -> Tensor:
    """softmax(scores + m) @ v, and 0 where m is -inf throughout."""
    mask = leaf("m", 3, 5)
    nothing = op("Equal", op("ReduceMax", mask, attrs=((1,), 1)), LEAST)
    return op("Where", nothing, number(0.0), attended(op("Add", HALF, mask)))


def attended_seen() -> Tensor:
    """softmax(scores where seen, else -inf) @ v, and 0 where nothing is seen."""
    seen = op("GreaterEqual", leaf("m", 3, 5), number(0.0))
    one, zero = number(1.0), number(0.0)
    most = op("ReduceMax", op("Where", seen, one, zero), attrs=((1,), 1))
    scores = op("Add", HALF, op("Where", seen, zero, LEAST))
    return op("Where", op("Equal", most, zero), zero, attended(scores))


def hidden(condition: Tensor, scores: Tensor, least: float = -INF) -> Tensor:
    """softmax(scores where not the condition, else the least number) @ v."""
    return attended(op("Where", condition, number(least), scores))


PROGRAMS: Final[dict[str, Callable[[], Tensor]]] = {
    "attended": lambda: attended(SCORES),
    "attended-half": lambda: attended(HALF),
    "attended-quotient": lambda: attended(THIRD),
    "attended-below": lambda: attended(op("Where", SEEN, HALF, LEAST)),
    "attended-mask": attended_mask,
    "attended-seen": attended_seen,
    "hidden-half": lambda: attended(op("Add", HALF, op("Where", LOWER, number(0.0), LEAST))),
    "hidden-quotient": lambda: hidden(UPPER, THIRD),
    "hidden-scores": lambda: hidden(op("LogicalNot", LOWER), SCORES),
}
