"""Detection of rules that the engine can only match by trying all combinations of terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eqsynth.rules import Rule, Tree, Var
from eqsynth.rules.sorts import Declarations


def joins_blindly(rule: Rule, known: Declarations) -> bool:
    """Whether the rule's patterns look into several elements of vectors.

    egglog has no index from a vector to its elements, so it tries all terms for each element:
    ``(Concat (vec-of (Concat v a) (Concat w a)) b)`` takes time in the cube of the number of terms.
    """
    elements: set[str] = set()
    calls: list[Tree] = []

    def visit(tree: Tree) -> None:
        if not isinstance(tree, tuple):
            return
        if tree[0] == "vec-of":
            elements.update(part.name for part in tree[1:] if isinstance(part, Var))
            calls.extend(part for part in tree[1:] if isinstance(part, tuple))
        for part in tree[1:]:
            visit(part)

    for fact in rule.body:
        visit(fact)
        if fact[0] == "=":
            for side, other in (fact[1:], fact[:0:-1]):
                if isinstance(other, tuple) and other[0] == "vec-get":
                    elements.update({side.name} if isinstance(side, Var) else ())
    looked_up = [
        name for tree in rule.body for name in elements
        if any(call[0] in known.signatures and Var(name) in call[1:] for call in _calls(tree))
    ]  # fmt: skip
    return len(calls) + len(looked_up) > 1


def _calls(tree: Tree) -> Iterator[tuple[Any, ...]]:
    if isinstance(tree, tuple):
        yield tree
        for part in tree[1:]:
            yield from _calls(part)
