"""Argument types and attributes for an operator whose rule file defines it by a comprehension.

Each tensor gets the axes that the comprehension reads it at: `x[*n, s*i + k]` gives x some leading
axes, and a last axis long enough for most of the indices. Not here: an operator that is defined by
a term, which is drawn like any pattern (``patterns.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsynth.errors import RuleError
from eqsynth.ir.index import Index
from eqsynth.ir.notation import Parts, index_of, parts_of
from eqsynth.ir.types import Shape, TensorType
from eqsynth.rules.definitions import Case, Comprehension
from eqsynth.rules.tree import Tree, Var
from eqsynth.testing.choices import chance
from eqsynth.testing.world import World

# How much longer an axis is than the indices that read it; a negative number is shorter.
_SLACK = (0, 0, 0, 1, -1, 2)


def fit_comprehension(
    case: Case, world: World, want: TensorType | None,
    types: Sequence[TensorType | None], attrs: Sequence[Any],
) -> tuple[list[TensorType | None], list[Any]]:  # fmt: skip
    """Fill in the unknown (None) types and attributes of an operator, from its comprehension.

    A type or attribute that the definition doesn't name by itself, but computes (a sum of two
    attributes), stays unknown.

    Args:
        case: a case of the operator's definition.
        want: the type that the result should have, if any.
    """
    said = case.value
    assert isinstance(said, Comprehension)
    parts = parts_of(said.text)
    if parts is None:
        return list(types), list(attrs)
    place = {part.name: n for n, part in enumerate(case.arguments) if isinstance(part, Var)}
    tensors = _places(said.tensors, parts.tensors, place)
    count = len(case.arguments) - len(attrs)
    known = {name: types[at] for name, at in tensors.items() if at < count}
    numbers, given = _numbers(said.numbers, parts, place, count, world, attrs)
    drawn = _Axes(world, parts, numbers, want, known).shapes()
    found, first = list(types), next((t for t in types if t is not None), None)
    dtype = first.dtype if first is not None else want.dtype if want is not None else world.dtype
    for name, at in tensors.items():
        if at < count and found[at] is None and name in drawn:
            found[at] = TensorType(drawn[name], dtype)
    return found, given


def _places(tree: Tree, names: Sequence[str], place: dict[str, int]) -> dict[str, int]:
    """Name in the comprehension -> position of the argument that it is, if it is one by itself."""
    parts = tree[1:] if isinstance(tree, tuple) and tree[0] == "vec-of" else (tree,)
    return {
        name: place[part.name] for name, part in zip(names, parts, strict=False)
        if isinstance(part, Var) and part.name in place
    }  # fmt: skip


def _numbers(
    tree: Tree, parts: Parts, place: dict[str, int], count: int, world: World, attrs: Sequence[Any]
) -> tuple[dict[str, int], list[Any]]:
    """Draw the comprehension's integers.

    Returns:
        The integers by name, and the attributes with those that they determine filled in.
    """
    lengths = {item.partition(":")[2] for item in parts.head}
    given, drawn = list(attrs), {
        n: _number(world, n in parts.reduced, n in lengths) for n in parts.numbers
    }  # fmt: skip
    rest = list(parts.numbers)
    vectors = tree[1:] if isinstance(tree, tuple) and tree[0] == "vec-append" else (tree,)
    single = sum(
        len(v) - 1 if isinstance(v, tuple) and v[0] == "vec-of" else 0 for v in vectors
    )  # fmt: skip
    open_ = sum(isinstance(v, Var) for v in vectors)
    each = (len(rest) - single) // open_ if open_ else 0
    for vector in vectors:
        if isinstance(vector, Var):
            names, rest = rest[:each], rest[each:]
            at = place.get(vector.name, 0) - count
            if 0 <= at < len(given):
                if given[at] is None:
                    given[at] = tuple(drawn[name] for name in names)
                drawn.update(zip(names, given[at], strict=False))
        elif isinstance(vector, tuple) and vector[0] == "vec-of":
            for part in vector[1:]:
                name, rest = rest[:1], rest[1:]
                at = place.get(part.name, 0) - count if isinstance(part, Var) else -1
                if name and 0 <= at < len(given):
                    given[at] = drawn[name[0]] if given[at] is None else given[at]
                    drawn[name[0]] = given[at]
    return drawn, given


def _number(world: World, extent: bool, length: bool) -> int:
    """An integer: an extent, the number of axes in a group, or any."""
    if extent:
        return world.number((2, 1, 3, 4), least=1)
    return world.number((1, 2, 1, 0, 3) if length else (1, 2, 1, 0, 3, -1))


class _Axes:
    """The extents of a comprehension's iterators and starred groups of axes, found step by step.

    Attributes:
        extents: iterator -> its extent.
        stars: name of a group (``*n``) -> the extents of its axes.
        found: tensor -> its shape.
    """

    def __init__(
        self, world: World, parts: Parts, numbers: dict[str, int], want: TensorType | None,
        known: dict[str, TensorType | None],
    ) -> None:  # fmt: skip
        self.world, self.parts, self.numbers = world, parts, numbers
        self.extents = {name: n for name, n in numbers.items() if name in parts.reduced}
        self.stars: dict[str, Shape] = {}
        self.found: dict[str, Shape] = {n: t.shape for n, t in known.items() if t is not None}
        for tensor, items in parts.reads:
            if tensor in self.found:
                self._learn(items, self.found[tensor])
        if want is not None:
            self._learn([item.partition(":")[0] for item in parts.head], want.shape)

    def _learn(self, items: Sequence[str], shape: Shape) -> None:
        """Learn extents from the shape of a tensor that is read at these items."""
        stars = [item for item in items if item[0] in "*^"]
        length = len(shape) - (len(items) - len(stars))
        if len(stars) > 1 or length < 0 or (not stars and length):
            return
        place = 0
        for item in items:
            if item[0] in "*^":
                self.stars.setdefault(item[1:], shape[place : place + length])
                place += length
            else:
                self.extents.setdefault(item, shape[place])
                place += 1

    def shapes(self) -> dict[str, Shape]:
        """A shape for each tensor of the comprehension; unknown extents are drawn."""
        for tensor, items in self.parts.reads:
            if tensor not in self.found:
                self.found[tensor] = self._shape(items)
        return self.found

    def _shape(self, items: Sequence[str]) -> Shape:
        shape: list[int] = []
        for item in items:
            if item[0] in "*^":
                shape += self._star(item)
            else:
                shape.append(self._extent(item))
        return tuple(shape)

    def _star(self, item: str) -> Shape:
        name, world = item[1:], self.world
        if name not in self.stars:
            counts = [i[len(name) + 2 :] for i in self.parts.head if i.startswith(f"*{name}:")]
            free = world.choices.pick((1, 0, 2, 3))
            self.stars[name] = world.shape(self.numbers[counts[0]] if counts else free)
        own = self.stars[name]
        if item[0] == "^" and chance(world.choices, 2):
            start = world.choices.pick(range(len(own) + 1))
            return tuple(1 if chance(world.choices, 2) else e for e in own[start:])
        return own

    def _extent(self, item: str) -> int:
        if item.isidentifier():
            if item in self.numbers and item not in self.parts.head and item not in self.extents:
                return max(1, self.numbers[item] + 1)
            return self.extents.setdefault(item, self.world.extent())
        names = [*self.parts.head, *self.parts.reduced]
        iterators = {
            name: Index.iterator(slot, max(1, self.extents.get(name) or self.world.extent()))
            for slot, name in enumerate(n for n in names if n.isidentifier())
        }
        try:
            last = index_of(item, iterators, self.numbers).range()[1]
        except (RuleError, ArithmeticError):
            return self.world.extent()
        return max(1, last + 1 + self.world.choices.pick(_SLACK))
