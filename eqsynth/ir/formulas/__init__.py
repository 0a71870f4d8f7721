"""Terms as formulas, for people: ``relu(x @ wᵀ + b)``; a scope that is an operator as the operator.

A formula says what is computed; axes of extent 1 at the front, and attributes that have their usual
value, are left out. What can be read back, and leaves nothing out, is ``printing.py``.
"""

from eqsynth.ir.formulas.listing import Line, in_one, lines
from eqsynth.ir.formulas.parts import ATOM, Formula, Operands
from eqsynth.ir.formulas.terms import formula, kind_of

__all__ = ["ATOM", "Formula", "Line", "Operands", "formula", "in_one", "kind_of", "lines"]
