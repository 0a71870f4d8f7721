"""The formula of one term over its arguments' formulas, and the name of its kind."""

from __future__ import annotations

from eqsynth.ir.formulas.operators import call_name, operator_formula
from eqsynth.ir.formulas.parts import ATOM, Formula, Operands
from eqsynth.ir.formulas.scopes import is_written_out, scope_formula, scope_kind
from eqsynth.ir.printing import render_term
from eqsynth.ir.tensor import Op, Region, Scope, Tensor, args_of


def formula(term: Tensor, operands: Operands, brief: bool = False) -> Formula:
    """Return a term's formula, given the formulas of its arguments.

    Args:
        brief: omit shapes, and write a scope that isn't an operator by its kind: ``map(x, y)``.
    """
    named = is_written_out(term) if isinstance(term, Scope) else _is_reshape(term)
    if brief and named:
        inner = ", ".join(operands(arg)[0] for arg in args_of(term))
        name = "reshape" if _is_reshape(term) else kind_of(term)
        return f"{name}({inner})", ATOM
    if isinstance(term, Op):
        return operator_formula(term, operands)
    if isinstance(term, Scope):
        return scope_formula(term, operands)
    if isinstance(term, Region):
        return render_term(term, {arg: operands(arg)[0] for arg in term.args}), ATOM
    return term.label, ATOM


def _is_reshape(term: Tensor) -> bool:
    return isinstance(term, Op) and term.name == "Reshape"


def kind_of(term: Tensor) -> str:
    """Return the name of a term's kind, without its arguments: ``conv3x3``, ``matmul``.

    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> x = Input("x", TensorType((1, 3, 8, 8), "float32"))
    >>> w = Input("w", TensorType((4, 3, 3, 3), "float32"))
    >>> kind_of(Op("Conv2d", (x, w), ((1, 1), (1, 1), (1, 1), 1)))
    'conv3x3'
    """
    if isinstance(term, Op):
        return "view" if term.row.kind == "view" else call_name(term)
    if not isinstance(term, Scope):
        return type(term).__name__.lower()
    return scope_kind(term)


def is_heavy(term: Tensor) -> bool:
    """Whether a term gets a line of its own in a listing: a contraction, a reduction, an operator
    that reads at indices that are data, or an opaque operator."""
    if isinstance(term, Op):
        return term.row.kind in ("contraction", "reduction", "data", "opaque")
    return isinstance(term, Region) or (isinstance(term, Scope) and bool(term.reduction))
