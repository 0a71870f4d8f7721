"""Translate a rule's integer expressions and conditions to formulas of Z3.

    (< (+ a 1) (/ b 2))   ->   a + 1 < q,  where b = 2*q + r, |r| < 2, and r has the sign of b

As in the engine, ``/`` and ``%`` truncate, and a division by 0 means that the rule doesn't match.
A fact that this module doesn't know (a relation that a user declares) is left out, and an unknown
expression (an operation on bits) becomes an arbitrary integer. Both weaken the hypotheses, so a
rule that is proved without them holds with them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import z3

from eqsynth.rules.tree import Tree, Var, render
from eqsynth.verify.integers import Integers, number

Of = Callable[[Tree], Any]

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "min": lambda a, b: z3.If(number(a) <= b, a, b),
    "max": lambda a, b: z3.If(number(a) >= b, a, b),
    "abs": lambda a: z3.If(number(a) >= 0, a, -a),
}  # fmt: skip
_COMPARISONS: Final[dict[str, Callable[..., Any]]] = {
    "<": lambda a, b: number(a) < b, "<=": lambda a, b: number(a) <= b,
    ">": lambda a, b: number(a) > b, ">=": lambda a, b: number(a) >= b,
    "!=": lambda a, b: number(a) != b,
}  # fmt: skip
COMPARISONS: Final = frozenset(_COMPARISONS)
_BOOLS: Final = {f"bool-{head}": head for head in ("<", "<=", ">", ">=")}


def integer(tree: Tree, ints: Integers, of: Of) -> Any:
    """The value of an expression of sort i64.

    Args:
        of: gives the value of a variable, and of a call that isn't arithmetic.
    """
    if isinstance(tree, bool) or not isinstance(tree, tuple):
        return tree if isinstance(tree, int) and not isinstance(tree, bool) else of(tree)
    head, *args = tree
    if head in _ARITHMETIC:
        return _ARITHMETIC[head](*(integer(arg, ints, of) for arg in args))
    if head in ("/", "%") and len(args) == 2:
        pair = ints.truncated(*(integer(arg, ints, of) for arg in args))
        return pair[head == "%"]
    return of(tree)


def comparison(fact: Tree, ints: Integers, of: Of) -> Any | None:
    """The formula of a comparison of integers or of a guard; None for any other fact."""
    if not isinstance(fact, tuple):
        return None
    head, *args = fact
    if head in _COMPARISONS:
        return _COMPARISONS[head](*(integer(arg, ints, of) for arg in args))
    if head == "guard":
        return _guard(args[0], ints, of)
    return None


def _guard(tree: Tree, ints: Integers, of: Of) -> Any | None:
    """The formula of an expression of sort bool; None if a part of it isn't known here."""
    if not isinstance(tree, tuple):
        return z3.BoolVal(tree) if isinstance(tree, bool) else None
    head, *args = tree
    if head in _BOOLS:
        return comparison((_BOOLS[head], *args), ints, of)
    if head == "bool-=":
        a, b = (integer(arg, ints, of) for arg in args)
        return number(a) == b
    if head in ("and", "or", "not", "xor", "=>"):
        parts = [_guard(arg, ints, of) for arg in args]
        if any(part is None for part in parts):
            return None
        join = {"and": z3.And, "or": z3.Or, "not": z3.Not, "xor": z3.Xor, "=>": z3.Implies}
        return join[head](*parts)
    return None


def name_of(tree: Tree) -> str:
    """The name under which a value is kept: a variable's name, or the text of another tree."""
    return tree.name if isinstance(tree, Var) else render(tree)
