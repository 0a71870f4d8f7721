"""Building blocks of formulas: a text with its precedence, infix operators, parentheses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from eqsynth.ir.tensor import Tensor

Formula = tuple[str, int]
"""A text and its precedence: ``("a + b", SUM)``."""
Operands = Callable[[Tensor], Formula]
# Precedences: a sum, a product of matrices, a product, and a text that never needs parentheses.
SUM: Final = 1
MATMUL: Final = 2
PRODUCT: Final = 3
ATOM: Final = 4


def window(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents))


def infix(sign: str, binds: int, a: Formula, b: Formula) -> Formula:
    # The right operand of - and / must bind more tightly: a - (b + c). Both operands of @ must be
    # atoms: (a @ b) @ c.
    right = binds if sign in (" + ", " * ") else binds + 1
    left, right = (ATOM, ATOM) if binds == MATMUL else (binds, right)
    return tight(a, left) + sign + tight(b, right), binds


def tight(formula: Formula, binds: int) -> str:
    text, own = formula
    return text if own >= binds else f"({text})"


def permuted(source: Formula, shape: Sequence[int], order: Sequence[int]) -> Formula:
    """Write a permutation: nothing if only axes of extent 1 move, ``xᵀ`` if the last two other axes
    are swapped, else ``permute(x, 2 0 1)``."""
    seen = [axis for axis in order if shape[axis] != 1]
    kept = sorted(seen)
    if seen == kept:
        return source
    if seen == [*kept[:-2], kept[-1], kept[-2]]:
        return f"{tight(source, ATOM)}ᵀ", ATOM
    return f"permute({source[0]}, {' '.join(map(str, order))})", ATOM
