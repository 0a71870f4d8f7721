"""What formulas of operators and of scopes are put together from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from eqsynth.ir.tensor import Tensor

Formula = tuple[str, int]
"""A text, and how tightly it binds."""
Operands = Callable[[Tensor], Formula]
# A sum, a product of matrices, a product, what needs no parentheses.
SUM: Final = 1
MATMUL: Final = 2
PRODUCT: Final = 3
ATOM: Final = 4


def window(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents))


def infix(sign: str, binds: int, a: Formula, b: Formula) -> Formula:
    # To the right of a sign stands what binds more tightly: a - (b + c); a product of matrices
    # has its operands in parentheses on both sides.
    right = binds if sign in (" + ", " * ") else binds + 1
    left, right = (ATOM, ATOM) if binds == MATMUL else (binds, right)
    return tight(a, left) + sign + tight(b, right), binds


def tight(formula: Formula, binds: int) -> str:
    text, own = formula
    return text if own >= binds else f"({text})"


def permuted(source: Formula, shape: Sequence[int], order: Sequence[int]) -> Formula:
    """``xᵀ`` where the last two axes change places, as far as axes of extent 1 let one see."""
    seen = [axis for axis in order if shape[axis] != 1]
    kept = sorted(seen)
    if seen == kept:
        return source
    if seen == [*kept[:-2], kept[-1], kept[-2]]:
        return f"{tight(source, ATOM)}ᵀ", ATOM
    return f"permute({source[0]}, {' '.join(map(str, order))})", ATOM
