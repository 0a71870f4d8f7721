"""Evaluating constant terms at compile time: in float64, rounded once at the end.

Example: the constant ``Mul(scale, weight)`` of two float32 weights is multiplied in float64, and
the product is rounded to float32. Not here: how a program's constants are computed again for new
weights (``weights.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from eqsynth.errors import LoweringError
from eqsynth.ir.tensor import Op, Tensor, Weight, args_of, topological
from eqsynth.ir.types import is_float
from eqsynth.lower.torch_ops import Array, Opaque, run_term
from eqsynth.lower.torch_scalars import torch_dtype


def evaluate_constant(
    term: Tensor, weights: Mapping[str, Array], opaque: Opaque | None = None
) -> Array:
    """The value of a term over weights, computed in float64 and rounded once.

    Raises:
        LoweringError: the term depends on an input.
    """
    return evaluate_constants([term], weights, opaque)[0]


def evaluate_constants(
    terms: Sequence[Tensor], weights: Mapping[str, Array], opaque: Opaque | None = None
) -> list[Array]:
    """The values of several constant terms; shared subterms are computed once.

    A weight that is only moved (permuted, sliced, …) isn't converted to float64 on the way, and a
    result that is a weight without any change is that weight, not a copy. An ``Opaque`` operator is
    run by its function in ``opaque``, on arguments of the dtypes that it was captured with.

    Raises:
        LoweringError: a term depends on an input.
    """
    exact: dict[Tensor, Array] = {}
    moved: dict[Tensor, Array] = {}
    order = list(topological(terms))
    users: dict[Tensor, int] = dict.fromkeys(order, 0)
    for term in order:
        for arg in args_of(term):
            users[arg] += 1
    for term in terms:
        users[term] += 1
    with torch.no_grad():
        for term in order:
            args = term.args if isinstance(term, Op) else args_of(term)
            if not term.constant:
                raise LoweringError(
                    what="a term that should be constant depends on an input",
                    where=term.label,
                    got=str(term.type),
                    expected="a term over weights",
                    hint="compute it at run time",
                )
            if isinstance(term, Weight):
                moved[term] = weights[term.name].detach()
            elif isinstance(term, Op) and term.name == "Opaque":
                rounded = [_rounded(arg, exact, moved) for arg in args]
                moved[term] = run_term(term, rounded, opaque).detach()
            elif _only_moves(term) and all(arg in moved for arg in args):
                moved[term] = run_term(term, [moved[arg] for arg in args])
            else:
                wide = [_wide(arg, exact, moved) for arg in args]
                exact[term] = run_term(term, wide, exact=True)
            for arg in args_of(term):
                users[arg] -= 1
                if not users[arg]:
                    exact.pop(arg, None)
                    moved.pop(arg, None)
    return [_rounded(term, exact, moved) for term in terms]


def _only_moves(term: Tensor) -> bool:
    """Whether a term is a view of one tensor. (A concatenation isn't: it may also change the
    dtype.)"""
    return isinstance(term, Op) and term.row.kind == "view" and len(term.args) == 1


def _rounded(term: Tensor, exact: Mapping[Tensor, Array], moved: Mapping[Tensor, Array]) -> Array:
    """The value of a term in its own dtype."""
    return moved[term] if term in moved else exact[term].to(torch_dtype(term.dtype))


def _wide(term: Tensor, exact: Mapping[Tensor, Array], moved: Mapping[Tensor, Array]) -> Array:
    """The value of a term in float64, if it is a float."""
    if term in exact:
        return exact[term]
    return moved[term].double() if is_float(term.dtype) else moved[term]
