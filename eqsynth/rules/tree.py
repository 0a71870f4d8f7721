"""Patterns and terms as plain syntax trees, and their egglog text.

A call is a tuple `("Matmul", a, b)`, a variable is a `Var`, a literal is an int, float, str or
bool. The same trees with variables replaced are ground terms. Sorts are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

# A union of tuple, Var and literals; recursive, which mypy can say only at the price of casts.
Tree: TypeAlias = Any

VEC_BUILDERS = frozenset({"vec-of", "vec-empty", "vec-append", "vec-push"})


@dataclass(frozen=True)
class Var:
    """A rule's variable."""

    name: str


def is_call(tree: Tree) -> bool:
    return isinstance(tree, tuple)


def variables(tree: Tree) -> Iterator[str]:
    """Yield the names of a tree's variables, in order of appearance, with repetitions."""
    if isinstance(tree, Var):
        yield tree.name
    elif isinstance(tree, tuple):
        for child in tree[1:]:
            yield from variables(child)


def literals(tree: Tree) -> Iterator[int | float | str]:
    """Yield a tree's literals, in order of appearance, with repetitions."""
    if isinstance(tree, tuple):
        for child in tree[1:]:
            yield from literals(child)
    elif not isinstance(tree, Var):
        yield tree


def size(tree: Tree) -> int:
    return 1 + sum(map(size, tree[1:])) if isinstance(tree, tuple) else 1


def depth(tree: Tree) -> int:
    return 1 + max(map(depth, tree[1:]), default=0) if isinstance(tree, tuple) else 1


def replace_vars(tree: Tree, replacement: Callable[[Var], Tree]) -> Tree:
    if isinstance(tree, Var):
        return replacement(tree)
    if isinstance(tree, tuple):
        return (tree[0], *(replace_vars(child, replacement) for child in tree[1:]))
    return tree


def render(tree: Tree) -> str:
    """Return the tree as egglog text."""
    if isinstance(tree, Var):
        return tree.name
    if isinstance(tree, tuple):
        return "(" + " ".join([tree[0], *map(render, tree[1:])]) + ")"
    if isinstance(tree, bool):
        return "true" if tree else "false"
    if isinstance(tree, str):
        return '"' + tree.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(tree, float):
        return "NaN" if math.isnan(tree) else repr(tree)
    return str(tree)


def instantiate(pattern: Tree, binding: Mapping[str, Any]) -> Tree:
    """Return the ground term of a pattern. A Vec becomes a tuple of its elements without a head, as
    in a snapshot: `("Prod", ("vec-of", Var("a"), Var("b")))` becomes `("Prod", (A, B))`.
    """
    if isinstance(pattern, Var):
        return binding[pattern.name]
    if not isinstance(pattern, tuple):
        return pattern
    head = pattern[0]
    children = [instantiate(child, binding) for child in pattern[1:]]
    if head in ("vec-of", "vec-empty"):
        return tuple(children)
    if head == "vec-append":
        return tuple(element for vec in children for element in vec)
    if head == "vec-push":
        return (*children[0], children[1])
    return (head, *children)
