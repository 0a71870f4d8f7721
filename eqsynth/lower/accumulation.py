"""What a scope's reduction is added up in: sums of float32 along whole axes in float64.

A mean of numbers around 1e6, added up in float32, is off by some units of their last place, and
that of a constant row isn't the constant: its variance isn't 0, and a normalization of it makes
numbers of what should be 0. Such sums are bound by memory, so the wider addition costs next to
nothing. Products, windows and maps stay in the dtype of their scope.
"""

from __future__ import annotations

import math

from eqsynth.ir.index import It
from eqsynth.ir.scalar import Cast, Num, Read, Scalar, factors_of, product
from eqsynth.ir.tensor import Region, Scope, Tensor, topological


def accumulation(scope: Scope) -> tuple[str, Scalar]:
    """The dtype in which the reduction is added up, and the body in that dtype.

    ``L sum[k<9] 0.1 * x[i, k]`` is added up in float64, ``L sum[k<9] x[i, k] * y[k, j]`` in the
    scope's own dtype.
    """
    factors = factors_of(scope.body)
    reads = [factor for factor in factors if isinstance(factor, Read)]
    plain = all(isinstance(factor, Read | Num) for factor in factors)
    if scope.reducer != "sum" or len(reads) != 1 or not plain or scope.dtype != "float32":
        return scope.dtype, scope.body
    terms = [index.terms for index in reads[0].index if not index.const and len(index.terms) == 1]
    along = {atom.slot for ((atom, step),) in terms if isinstance(atom, It) and step == 1}
    if not scope.reduction or not along >= set(range(len(scope.traversal), len(scope.extents))):
        return scope.dtype, scope.body
    wide = [Cast("float64", factor) if isinstance(factor, Read) else factor for factor in factors]
    return "float64", product(wide)


def added_in_a_row(term: Tensor) -> int:
    """How many terms a kernel of this term may add up one after the other, in the dtype of its
    result: those of a scope's sum, for which a loop is generated. The operators of libraries add in
    blocks, and 16 bits are added up in 32.
    """
    if isinstance(term, Region):
        return sum(map(added_in_a_row, topological(term.outputs)))
    if not isinstance(term, Scope) or term.reducer not in ("sum", "prod"):
        return 0
    if term.dtype not in ("float32", "float64") or accumulation(term)[0] != term.dtype:
        return 0
    return math.prod(term.reduction) if term.reduction else 0
