"""Evaluates expressions and conditions of rules on plain values: ``(vec-get p 0)`` for p = (1, 2).

It serves to compute definitions of operators (``egraph/defined.py``), and the checker of rules uses
it to choose samples and to report conditions that never held. Not here: matching of rules, which
egglog does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from eqsynth.ir.tensor import Tensor
from eqsynth.rules.tree import Tree, Var


class Unknown(Exception):
    """An expression whose value doesn't follow from the variables' values."""


def _truncated(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


def _remainder(a: Any, b: Any) -> Any:
    return a - b * _truncated(a, b)


def _append(*vecs: Any) -> Any:
    return tuple(element for vec in vecs for element in vec)


def _get(vec: Any, at: int) -> Any:
    if not 0 <= at < len(vec):
        raise Unknown
    return vec[at]


_PRIMITIVES: Final[dict[str, Callable[..., Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _truncated, "%": _remainder,
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "!=": operator.ne, "=": operator.eq, "min": min, "max": max, "abs": abs,
    "neg": operator.neg, "to-f64": float, "to-i64": int, "vec-of": lambda *parts: parts,
    "vec-empty": tuple,
    "vec-append": _append, "vec-push": lambda vec, part: (*vec, part), "vec-get": _get,
    "vec-pop": lambda vec: vec[:-1], "vec-length": len,
    "vec-contains": lambda vec, part: part in vec,
    "vec-not-contains": lambda vec, part: part not in vec,
    "vec-set": lambda vec, at, part: (*vec[:at], part, *vec[at + 1 :]),
    "vec-remove": lambda vec, at: (*vec[:at], *vec[at + 1 :]),
    "bool-=": operator.eq, "bool-<": operator.lt, "bool-<=": operator.le, "bool->": operator.gt,
    "bool->=": operator.ge, "not": operator.not_, "guard": bool,
    "and": lambda a, b: a and b, "or": lambda *parts: any(parts),
}  # fmt: skip


COMPUTED: Final = frozenset((*_PRIMITIVES, "shape", "dtype"))
"""The heads that can be evaluated; other heads are terms, analyses, or primitives of egglog only.
"""

# (constructor, arguments) -> the term.
Build = Callable[[str, list[Any]], Any]


def evaluate(tree: Tree, bound: Mapping[str, Any], build: Build | None = None) -> Any:
    """Return the value of an expression over the variables in ``bound``.

    Args:
        build: builds terms for the constructors in the expression; without it, an expression with
            a constructor is ``Unknown``.

    >>> evaluate(("=", ("vec-get", Var("p"), 0), 1), {"p": (1, 2)})
    True

    Raises:
        Unknown: the expression contains a variable without a value, a term that can't be built, or
            an analysis other than shape and dtype.
    """
    if isinstance(tree, Var):
        if tree.name not in bound:
            raise Unknown
        return bound[tree.name]
    if not isinstance(tree, tuple):
        return tree
    head = tree[0]
    if head not in COMPUTED and build is None:
        raise Unknown
    args = [evaluate(part, bound, build) for part in tree[1:]]
    if head not in COMPUTED:
        assert build is not None
        return build(head, args)
    if head in ("shape", "dtype"):
        if not isinstance(args[0], Tensor):
            raise Unknown
        return args[0].shape if head == "shape" else args[0].dtype
    try:
        return _PRIMITIVES[head](*args)
    except TypeError:
        raise Unknown from None
