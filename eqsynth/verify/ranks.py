"""Which tensors of a rule surely have equally many axes, and where tensors of several ranks meet.

    (Matmul (Slice x 0 s t 1) (Slice y 0 s t 1))   ->   x and y may differ in rank, and meet

Axes are numbered from the left, and broadcast operands are aligned at the right. So one number
means two places of the result where the operands of a broadcast differ in rank: axis 0 of ``x``, of
rank 4, is the first batch axis of the product; axis 0 of ``y``, of rank 3, is the second one. A
proof at few ranks covers such a rule only if these ranks have room for all relative places
(``forms.py``).

Each term has a class of terms with equally many axes. Terms whose ranks are equal by chance only
are in two classes, so that more ranks are looked at than needed, and never fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from eqsynth.ir.operators import OPERATORS
from eqsynth.rules.tree import Tree, Var, is_call, render
from eqsynth.verify.operators import KINDS

_SCALAR: Final = "rank 0"
# Operators whose result has as many axes as their first operand.
_KEEP_RANK: Final = frozenset({
    "Slice", "Stride", "Shift", "Reverse", "Pad", "Permute", "Concat", "Softmax", "CumSum",
    "LayerNorm", "MaxPool2d", "AvgPool2d",
})  # fmt: skip
_SHAPES: Final = frozenset({"Full", "Iota", "Expand", "Reshape"})


class Ranks:
    """The classes of rank of a rule's terms.

    Attributes:
        meeting: the classes of all tensors that are broadcast together with a tensor of another
            class, and of all tensors of different classes in which one variable names axes.
    """

    def __init__(
        self, trees: Sequence[Tree], sorts: Mapping[str, str],
        along: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """
        Args:
            along: the operators of rule files that name one axis of their first operand and keep
                the others, with the kinds of their attributes (``comprehensions.py``).
        """
        self._sorts, self._along = sorts, along
        self._parents: dict[str, str] = {}
        facts = [tree for tree in trees if tree[0] == "="]
        for _, one, two in facts:
            self._equate(one, two)
        for term in (term for tree in trees for term in self._terms(tree)):
            if term[0] == "Permute":
                # A permutation has an entry for each axis.
                self._join(self._of_shape(term[2]), self.of(term[1]))
        broadcast: list[tuple[str, ...]] = []
        named: dict[str, set[str]] = {}
        for tree in trees:
            for term in self._terms(tree):
                operands = self._operands(term)
                if operands:
                    broadcast.append(operands)
                where = self.of(term if term[0] in _SHAPES else _first(term))
                for name in self._naming(term):
                    named.setdefault(name, set()).add(where)
            for shape, name in _extents(tree):
                named.setdefault(name, set()).add(self._of_shape(shape))
        groups = [*broadcast, *named.values()]
        classes = [{self._root(name) for name in group} - {_SCALAR} for group in groups]
        self.meeting = frozenset().union(*(group for group in classes if len(group) > 1))

    def of(self, term: Tree) -> str:
        """The class of a term, as the name of one of its members."""
        if not is_call(term):
            return self._root(render(term))
        head, *args = term
        row = OPERATORS.get(head)
        kept = row is not None and row.kind == "reduction" and args[-1] == 1
        if args and (head in _KEEP_RANK or head in self._along or kept):
            return self.of(_first(term))
        if head in _SHAPES:
            return self._of_shape(args[1 if head in ("Expand", "Reshape") else 0])
        operands = {self._root(name) for name in self._operands(term)}
        if len(operands - {_SCALAR}) == 1:
            return next(iter(operands - {_SCALAR}))
        if operands == {_SCALAR}:
            return _SCALAR
        # The number of axes depends on those of the operands and on the attributes.
        what = "reduction" if row is not None and row.kind == "reduction" else head
        parts = (self.of(arg) if self._is_tensor(arg) else render(arg) for arg in args)
        return self._root(f"({what} {' '.join(parts)})")

    def _of_shape(self, shape: Tree) -> str:
        """The class of the tensors of a shape."""
        if is_call(shape):
            if shape[0] == "shape":
                return self.of(shape[1])
            if shape[0] in ("vec-of", "vec-empty"):
                return f"rank {len(shape) - 1}"
        return self._root(f"shape {render(shape)}")

    def _operands(self, term: Tree) -> tuple[str, ...]:
        """The classes of the operands that an operator broadcasts together."""
        row = OPERATORS.get(term[0])
        if term[0] == "Expand":
            return (self.of(term[1]), self._of_shape(term[2]))
        if term[0] == "Matmul" or (row is not None and row.kind == "elementwise"):
            return tuple(self.of(arg) for arg in term[1:] if self._is_tensor(arg))
        return ()

    def _equate(self, one: Tree, two: Tree) -> None:
        """Join the classes of two terms, or of the tensors of two shapes, that a fact equates."""
        if is_rank(one) and is_rank(two):
            self._join(self._of_shape(one[1]), self._of_shape(two[1]))
            return
        for a, b in ((one, two), (two, one)):
            if is_rank(a) and isinstance(b, int):
                self._join(self._of_shape(a[1]), f"rank {b}")
                return
        if self._is_shape(one) and self._is_shape(two):
            self._join(self._of_shape(one), self._of_shape(two))
        elif self._is_tensor(one) and self._is_tensor(two):
            self._join(self.of(one), self.of(two))

    def _is_shape(self, tree: Tree) -> bool:
        if isinstance(tree, Var):
            return self._sorts.get(tree.name) == "Ints"
        return is_call(tree) and tree[0] in ("shape", "vec-of", "vec-empty")

    def _is_tensor(self, tree: Tree) -> bool:
        if isinstance(tree, Var):
            return self._sorts.get(tree.name, "Tensor") == "Tensor"
        return is_call(tree) and (tree[0] in OPERATORS or tree[0] in self._along)

    def _terms(self, tree: Tree) -> Iterator[Tree]:
        """The terms of operators in a tree."""
        if is_call(tree):
            if self._is_tensor(tree):
                yield tree
            for part in tree[1:]:
                yield from self._terms(part)

    def _naming(self, term: Tree) -> Iterator[str]:
        """The variables and numbers by which an operator names axes."""
        names = self._along.get(term[0]) or KINDS.get(term[0], ())
        for kind, arg in zip(reversed(names), reversed(term[1:]), strict=False):
            if kind in ("axis", "axes"):
                yield from map(render, arg[1:] if is_call(arg) else (arg,))

    def _root(self, name: str) -> str:
        while name in self._parents:
            name = self._parents[name]
        return name

    def _join(self, one: str, two: str) -> None:
        a, b = self._root(one), self._root(two)
        if a != b:
            # A class that is known by its number of axes keeps that name.
            a, b = (b, a) if a.startswith("rank ") else (a, b)
            self._parents[a] = b


def is_rank(tree: Tree) -> bool:
    """Whether an expression is the length of a shape: ``(vec-length (shape x))``."""
    return is_call(tree) and tree[0] == "vec-length"


def _extents(tree: Tree) -> Iterator[tuple[Tree, str]]:
    """The shape and the axis, wherever an extent is taken: ``(vec-get (shape x) a)``."""
    if is_call(tree):
        if tree[0] == "vec-get" and isinstance(tree[2], Var):
            yield tree[1], tree[2].name
        for part in tree[1:]:
            yield from _extents(part)


def _first(term: Tree) -> Tree:
    """The first operand of an operator, or the first tensor of its list of operands."""
    operand = term[1]
    return operand[1] if is_call(operand) and operand[0] == "vec-of" else operand
