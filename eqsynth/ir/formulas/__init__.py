"""Terms as formulas for people: ``relu(x @ wᵀ + b)``. A scope that computes an operator is written
as the operator.

A formula is short: it omits leading axes of extent 1, and attributes with their usual value. Not
here: the complete text of a term (``printing.py``).
"""

from eqsynth.ir.formulas.listing import Line, in_one, lines
from eqsynth.ir.formulas.parts import ATOM, Formula, Operands
from eqsynth.ir.formulas.terms import formula, kind_of

__all__ = ["ATOM", "Formula", "Line", "Operands", "formula", "in_one", "kind_of", "lines"]
