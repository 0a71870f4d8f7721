"""The dtype in which a scope's reduction is added up: for float32 sums along whole axes, float64.

If a mean of numbers around 1e6 is added up in float32, it is off by some units in the last place,
and the mean of a constant row isn't that constant. Then the row's variance isn't 0, and a
normalization gives numbers where it should give 0. Memory bounds such sums, so the wider addition
costs next to nothing. Products, windows and maps are computed in the dtype of their scope.

Exponentials that the kernel itself computes are added up in the scope's own dtype, as they are
where the sum and the exponential are one scope: none is negative, so nothing cancels, and they are
in the cache, so memory bounds nothing. (Softmax of 96x128 rows of 128: the wider addition was a
tenth of the instructions.)
"""

from __future__ import annotations

import math

from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, factors_of, product
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
    made = reads[0].tensor
    if isinstance(made, Scope) and isinstance(made.body, Call) and made.body.fn == "exp":
        return scope.dtype, scope.body
    terms = [index.terms for index in reads[0].index if not index.const and len(index.terms) == 1]
    along = {atom.slot for ((atom, step),) in terms if isinstance(atom, It) and step == 1}
    if not scope.reduction or not along >= set(range(len(scope.traversal), len(scope.extents))):
        return scope.dtype, scope.body
    wide = [Cast("float64", factor) if isinstance(factor, Read) else factor for factor in factors]
    return "float64", product(wide)


def added_in_a_row(term: Tensor) -> int:
    """How many terms a kernel of this term may add up one after the other in the dtype of its
    result: the terms of a scope's sum, for which a loop is generated. Operators of libraries count
    as 0, since they add in blocks; so do 16-bit floats, which are added up in float32."""
    if isinstance(term, Region):
        return sum(map(added_in_a_row, topological(term.outputs)))
    if not isinstance(term, Scope) or term.reducer not in ("sum", "prod"):
        return 0
    if term.dtype not in ("float32", "float64") or accumulation(term)[0] != term.dtype:
        return 0
    return math.prod(term.reduction) if term.reduction else 0
