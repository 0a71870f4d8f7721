"""Hash-consed ground terms, which proofs are about: equal terms have one number.

``bank.add("f", (x, x))`` is the term f(x, x). Not here: the meaning of a head (``explanation.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

Term = int
"""The number of a term in its bank."""


@dataclass(frozen=True, slots=True)
class Node:
    """A head and its child terms. Heads that are equal in Python (1 == True) are one head."""

    head: Hashable
    children: tuple[Term, ...]


class TermBank:
    """A store of hash-consed terms; the number of a child is smaller than its parent's."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._ids: dict[Node, Term] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, term: Term) -> Node:
        return self._nodes[term]

    def add(self, head: Hashable, children: Iterable[Term] = ()) -> Term:
        node = Node(head, tuple(children))
        known = self._ids.get(node)
        if known is not None:
            return known
        for child in node.children:
            if not 0 <= child < len(self._nodes):
                raise IndexError(f"term {child}, a child of {head!r}, is not in this bank")
        self._ids[node] = len(self._nodes)
        self._nodes.append(node)
        return len(self._nodes) - 1

    def subterms(self, term: Term) -> list[Term]:
        """Return the distinct subterms, including `term`, children before parents."""
        seen, stack = {term}, [term]
        while stack:
            for child in self._nodes[stack.pop()].children:
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
        return sorted(seen)

    def replace(self, term: Term, old: Term, new: Term) -> Term:
        """Return `term` with `old` replaced by `new` everywhere; `new` itself isn't searched."""
        image: dict[Term, Term] = {}
        for sub in self.subterms(term):
            if sub == old:
                image[sub] = new
                continue
            node = self._nodes[sub]
            children = tuple(image[child] for child in node.children)
            image[sub] = sub if children == node.children else self.add(node.head, children)
        return image[term]
