"""Samples of a rule with an attribute at the boundary of one of the rule's comparisons.

For the condition `(<= e (vec-get (shape x) 0))`, a fault shows where e is the extent, or one more
or less. A random e seldom is. Therefore some samples are rebuilt with one attribute moved there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from eqsynth.egraph.encode import decode_tensor
from eqsynth.errors import EqsynthError
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import Tree, Var
from eqsynth.rules.tree import replace_vars
from eqsynth.rules.values import Unknown, evaluate
from eqsynth.testing.choices import Choices
from eqsynth.testing.templates import Template

_NO_VALUE = (Unknown, EqsynthError, ArithmeticError, LookupError, TypeError, ValueError)


def at_a_boundary(template: Template, choices: Choices, bound: dict[str, Any]) -> dict[str, Any]:
    """Move one attribute of a sample to a boundary, and rebuild the sample's terms.

    Args:
        bound: the values of the rule's variables.

    Returns:
        The new values of the variables; ``bound`` if no attribute can be moved.
    """
    side, other = choices.pick(template.compared)
    at = -1
    if isinstance(side, tuple) and side[0] == "vec-get" and isinstance(side[2], int):
        side, at = side[1], side[2]
    if not isinstance(side, Var):
        return bound
    try:
        number = evaluate(other, bound)
    except _NO_VALUE:
        return bound
    if isinstance(number, bool) or not isinstance(number, int):
        return bound
    number += choices.pick((0, 1, -1))
    old, new = bound.get(side.name), bound.get(side.name)
    if at < 0 and isinstance(old, int):
        new = number
    elif isinstance(old, tuple) and 0 <= at < len(old) and isinstance(old[at], int):
        new = (*old[:at], number, *old[at + 1 :])
    return bound if new == old else _written({**bound, side.name: new}, bound, template)


def _written(new: dict[str, Any], old: dict[str, Any], template: Template) -> dict[str, Any]:
    """Rebuild all terms that the rule's patterns define from the new values of the variables.

    Args:
        new: the values with the moved attribute.
        old: the values before; they are returned if the new terms don't fit together.
    """
    definitions = template.definitions

    def whole(tree: Tree) -> Tree:
        return replace_vars(
            tree, lambda v: whole(definitions[v.name]) if v.name in definitions else v
        )

    build = partial(decode_tensor, defined=template.defined)
    terms = [name for name in definitions if isinstance(old.get(name), Tensor)]
    try:
        for name, said in template.hints.items():
            new[name] = evaluate(said[0], new)
        for name in terms:
            new[name] = evaluate(whole(definitions[name]), new, build)
    except _NO_VALUE:
        return old
    return new if terms else old
