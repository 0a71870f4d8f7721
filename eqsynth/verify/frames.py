"""Permutations in a rule of any rank: which axes of its tensors are one axis.

    (Slice (Permute x o) a f g 1) = (Permute (Slice x b f g 1) o),  b = o[a]

Behind a permutation the axes stand in another order: in another frame. The rule above has two, that
of the result and that behind ``o``, of which ``x`` is. An axis of the one is the axis of the other
to which ``o`` leads, if every tensor of the rule is always seen in one frame. Then an axis that
nothing names, in neither frame, can be left out of all tensors and of ``o``; ``rewrites.py`` argues
that this covers all ranks. In ``permute(permute(x, o), o) = x`` the tensor x is seen in two frames.
There axes are connected in cycles of any length, and of three axes it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from eqsynth.ir.operators import OPERATORS
from eqsynth.rules.tree import Tree, Var, is_call
from eqsynth.verify.facts import COMPARISONS
from eqsynth.verify.operators import KINDS

RESULT, BEHIND = 0, 1
# Operators whose result has the axes of each operand, one for one.
_AXIS_FOR_AXIS: Final = frozenset({
    *(name for name, row in OPERATORS.items() if row.kind == "elementwise" and name != "Cast"),
    "Slice", "Stride", "Shift", "Reverse", "Concat", "Expand", "Full", "Iota", "ReduceSum",
    "ReduceMax", "ReduceMin", "ReduceProd",
})  # fmt: skip


class _TwoFrames(Exception):
    """Raised if a tensor is seen in two frames, or it isn't known in which one."""


class Frames:
    """The frames of a rule whose tensors have one rank.

    Attributes:
        consistent: whether each tensor is seen in one frame.
        named: the pairs of a variable and a frame in which it names an axis.
        followed: the variables that name an axis behind the permutation which another variable
            names in the result: ``b`` in ``b = o[a]``.
    """

    def __init__(
        self, facts: Sequence[Tree], sides: Sequence[Tree], sorts: Mapping[str, str],
        along: Mapping[str, tuple[str, ...]],
    ) -> None:  # fmt: skip
        """
        Args:
            along: operators of rule files along one axis, with the kinds of their attributes.
        """
        self._sorts, self._along = sorts, along
        self._frames: dict[str, int] = {}
        self._terms: dict[Tree, int] = {}
        self._extents: list[tuple[str, str]] = []
        self.order = ""
        self.named: set[tuple[str, int]] = set()
        self.followed: set[str] = set()
        try:
            for side in sides:
                self._see(side, RESULT)
            self._suppose(facts)
            self.named |= {(axis, self._frames[shape]) for axis, shape in self._extents}
            self._follow(facts)
            self.consistent = True
        except (_TwoFrames, KeyError):
            self.consistent = False
            self.followed = set()

    def _set(self, name: str, frame: int) -> None:
        if self._frames.setdefault(name, frame) != frame:
            raise _TwoFrames

    def _see(self, term: Tree, frame: int) -> None:
        """Record that a tensor is seen in a frame."""
        if isinstance(term, Var):
            self._set(term.name, frame)
            return
        if not is_call(term):
            raise _TwoFrames
        if self._terms.setdefault(term, frame) != frame:
            raise _TwoFrames
        head, *args = term
        if head == "Permute":
            order = args[1]
            if not isinstance(order, Var) or frame != RESULT or self.order not in ("", order.name):
                raise _TwoFrames
            self.order = order.name
            self._see(args[0], BEHIND)
            return
        row = OPERATORS.get(head)
        lost = row is not None and row.kind == "reduction" and args[-1] != 1
        if lost or (head not in _AXIS_FOR_AXIS and head not in self._along):
            raise _TwoFrames
        kinds = self._along.get(head) or KINDS.get(head, ())
        tensors, attributes = args[: len(args) - len(kinds)], args[len(args) - len(kinds) :]
        for tensor in tensors:
            members = tensor[1:] if is_call(tensor) and tensor[0] == "vec-of" else (tensor,)
            for member in members:
                self._see(member, frame)
        for kind, attribute in zip(kinds, attributes, strict=True):
            self._attribute(kind, attribute, frame)

    def _attribute(self, kind: str, tree: Tree, frame: int) -> None:
        if kind == "shape":
            if tree != ("vec-empty",):
                self._see_shape(tree, frame)
        elif kind in ("axis", "axes"):
            listed = is_call(tree) and tree[0] == "vec-of"
            for axis in tree[1:] if listed and is_call(tree) else (tree,):
                if not isinstance(axis, Var) or self._sorts.get(axis.name) != "i64":
                    raise _TwoFrames
                self.named.add((axis.name, frame))
        else:
            self._number(tree)

    def _see_shape(self, shape: Tree, frame: int) -> None:
        match shape:
            case Var(name=name) | ("shape", Var(name=name)):
                self._set(name, frame)
            case _:
                raise _TwoFrames

    def _number(self, tree: Tree) -> None:
        """Record the axes whose extents a number is computed from."""
        match tree:
            case ("vec-get", Var(name=name) | ("shape", Var(name=name)), Var(name=axis)):
                self._extents.append((axis, name))
            case ("dtype", _):
                pass
            case (str(), *parts):
                if tree[0] in ("vec-get", "vec-length", "shape"):
                    raise _TwoFrames
                for part in parts:
                    self._number(part)

    def _suppose(self, facts: Sequence[Tree]) -> None:
        """Take what the facts say of frames, until all facts have been taken."""
        waiting = list(facts)
        while waiting:
            left = [fact for fact in waiting if not self._taken(fact)]
            if len(left) == len(waiting):
                raise _TwoFrames
            waiting = left

    def _taken(self, fact: Tree) -> bool:
        head, *sides = fact
        if head != "=":
            if head not in COMPARISONS:
                raise _TwoFrames
            for side in sides:
                self._number(side)
            return True
        if any(map(self._follows, sides)):
            return True
        if all(self._is_tensor(side) for side in sides):
            for one, two in (sides, sides[::-1]):
                known = self._frames.get(one.name) if isinstance(one, Var) else self._terms.get(one)
                if known is not None:
                    self._see(two, known)
                    return True
            return False
        if any(self._is_shape(side) for side in sides):
            for one, two in (sides, sides[::-1]):
                name = next(_names(one), "")
                if name in self._frames:
                    self._see_shape(two, self._frames[name])
                    return True
            return False
        for side in sides:
            self._number(side)
        return True

    def _is_tensor(self, tree: Tree) -> bool:
        if isinstance(tree, Var):
            return self._sorts.get(tree.name) == "Tensor"
        return is_call(tree) and (tree[0] in OPERATORS or tree[0] in self._along)

    def _is_shape(self, tree: Tree) -> bool:
        if isinstance(tree, Var):
            return self._sorts.get(tree.name) == "Ints"
        return is_call(tree) and tree[0] in ("shape", "vec-of", "vec-empty", "vec-append")

    def _follows(self, tree: Tree) -> bool:
        return is_call(tree) and tree[0] == "vec-get" and bool(self.order) and (
            tree[1] == Var(self.order)
        )  # fmt: skip

    def _follow(self, facts: Sequence[Tree]) -> None:
        """Find the axes behind the permutation that facts give, and compare axes of one frame."""
        for fact in facts:
            for one, two in (fact[1:], fact[:0:-1]) if len(fact) == 3 else ():
                if fact[0] == "=" and self._follows(two):
                    if not (isinstance(one, Var) and is_call(two) and isinstance(two[2], Var)):
                        raise _TwoFrames
                    if self._where(one) != {BEHIND} or self._where(two[2]) != {RESULT}:
                        raise _TwoFrames
                    self.followed.add(one.name)
            if fact[0] == "!=" and any(map(self._where, fact[1:])):
                first, second = map(self._where, fact[1:])
                if first != second or len(first) != 1:
                    raise _TwoFrames

    def _where(self, tree: Tree) -> set[int]:
        """The frames in which a variable names axes."""
        return {frame for name, frame in self.named if tree == Var(name)}


def _names(tree: Tree) -> Iterator[str]:
    if isinstance(tree, Var):
        yield tree.name
    elif is_call(tree):
        for part in tree[1:]:
            yield from _names(part)
