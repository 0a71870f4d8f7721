"""Hash-consed ground terms: what proofs are made of. What a head means is unknown here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

Term = int
"""The number of a term in its bank."""


@dataclass(frozen=True, slots=True)
class Node:
    """A head over child terms. Heads equal in Python are one head (1 == True, 0.0 == -0.0)."""

    head: Hashable
    children: tuple[Term, ...]


class TermBank:
    """Hash-consed terms; a child's id is always smaller than its parent's."""

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
        """The distinct subterms, `term` included, children before parents."""
        seen, stack = {term}, [term]
        while stack:
            for child in self._nodes[stack.pop()].children:
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
        return sorted(seen)

    def replace(self, term: Term, old: Term, new: Term) -> Term:
        """`term` with `old` replaced by `new` everywhere, at once: `new` is not searched again."""
        image: dict[Term, Term] = {}
        for sub in self.subterms(term):
            if sub == old:
                image[sub] = new
                continue
            node = self._nodes[sub]
            children = tuple(image[child] for child in node.children)
            image[sub] = sub if children == node.children else self.add(node.head, children)
        return image[term]
