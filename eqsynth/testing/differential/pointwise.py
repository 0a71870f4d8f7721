"""Rows of the operators that map elements: unary, binary and ternary, comparisons, activations."""

from __future__ import annotations

from typing import Final

from eqsynth.testing.differential.row import ALL, NUMBERS, Operand, Row

_X: Final = Operand()

# Operators of one tensor, with the dtypes that they are tried with.
_UNARY: Final = {
    "neg": NUMBERS, "abs": NUMBERS, "floor": NUMBERS, "ceil": NUMBERS,
    "relu": NUMBERS, "sqrt": ALL, "isinf": ALL,
}  # fmt: skip

ROWS: Final = (
    *(Row(f"aten::{name}", (_X,), dtypes=dtypes) for name, dtypes in _UNARY.items()),
    *(Row(f"aten::{name}", (_X, _X), dtypes=ALL) for name in ("maximum", "minimum")),
)
