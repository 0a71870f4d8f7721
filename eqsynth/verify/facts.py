"""What the facts of a rule say of integers: its expressions and conditions as formulas.

The engine's integers are integers, its ``/`` and ``%`` truncate, a division by 0 is no match. What
a fact says that isn't known here (a relation of a user's, an operation on bits) is left out, or is
any number: then less is known, and what is proved holds all the more.
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
        of: what a variable or a call that isn't arithmetic is.
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
    """The formula of a comparison of integers, or of a guard; None of any other fact."""
    if not isinstance(fact, tuple):
        return None
    head, *args = fact
    if head in _COMPARISONS:
        return _COMPARISONS[head](*(integer(arg, ints, of) for arg in args))
    if head == "guard":
        return _guard(args[0], ints, of)
    return None


def _guard(tree: Tree, ints: Integers, of: Of) -> Any | None:
    """A condition of sort bool, as far as it is known."""
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
    return tree.name if isinstance(tree, Var) else render(tree)
