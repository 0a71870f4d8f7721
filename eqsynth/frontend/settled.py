"""Constants that ``forward`` computes and that jump: they are what torch computes.

    (torch.log(distance / 8) / math.log(16) * 8).long()    T5's buckets of positions

The logarithm is -6 in float32 and -5.999999999999999 in float64. Over the reals both are one
number; after ``long`` they are -6 and -5. Rules and constants are right over the reals, so such a
constant is computed once, by the calls of torch that compute it in the module, and its value goes
into the program: as a function of its places if it is one (``recognized.py``), else as a tensor.

Integers are exact, and so are floats that are whole numbers: ``torch.arange(n).float() >= 3`` is a
function of places, ``triu(ones(n, n)).bool()`` a triangle, and what has no such form stays as it is
written. Of a parameter the value may change. A constant that jumps and depends on one,

    torch.round(weight / scale)                            a weight in steps of its scale

is left to torch with all calls before it, as one ``Opaque`` operator that is run at compile time.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.utils._pytree import tree_map_only

from eqsynth.frontend.recognized import MOST
from eqsynth.ir.types import DTYPES

# Functions of floats that aren't continuous, and whose results are floats.
_STEPS: Final = frozenset(
    "aten::" + name
    for name in (
        "ceil", "fix", "floor", "floor_divide", "fmod", "frac", "heaviside", "remainder", "round",
        "sgn", "sign", "trunc",
    )
)  # fmt: skip
# Functions of floats that round nothing, besides views.
_EXACT: Final = frozenset(
    "aten::" + name
    for name in (
        "abs", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "maximum",
        "minimum", "neg", "relu", "stack", "where",
    )
)  # fmt: skip
# Functions that give whole numbers for whole numbers, exactly, however they are written: not
# quotients, since rules write ``c * 49 / 49`` as ``c * 49 * (1 / 49)``, and 49 * (1 / 49) is less
# than 1 in float64.
_WHOLE: Final = frozenset(
    "aten::" + name
    for name in (
        "_to_copy", "add", "cumsum", "fill", "full_like", "lift_fresh_copy", "masked_fill", "mul",
        "rsub", "sub", "sum", "to", "tril", "triu",
    )
)  # fmt: skip
# These take only the shape and the dtype of their first argument.
_SHAPED: Final = {"aten::ones_like": 1, "aten::zeros_like": 0, "aten::new_ones": 1,
                  "aten::new_zeros": 0}  # fmt: skip
LARGEST_TREE: Final = 64
"""So many calls may become one ``Opaque`` operator; a call that is used twice counts twice."""

# What these compute isn't determined by their arguments.
_UNSET: Final = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided",
                           "aten::new_empty", "aten::new_empty_strided"})  # fmt: skip


class Settled:
    """The nodes of a graph that depend on no input and no parameter, and the values of some."""

    def __init__(self) -> None:
        self._known: set[torch.fx.Node] = set()
        self._values: dict[torch.fx.Node, torch.Tensor] = {}
        self._leaves: set[torch.fx.Node] = set()  # the nodes whose values were given
        # Nodes that depend on parameters too, those of them that were rounded, and how many calls
        # each is.
        self._constant: dict[torch.fx.Node, int] = {}
        self._rounded: set[torch.fx.Node] = set()

    def give_parameter(self, node: torch.fx.Node) -> None:
        """Say that a node is a parameter."""
        self._constant[node] = 0

    def give(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        """Say what a node's value is: that of a constant tensor of the graph."""
        self._known.add(node)
        self._leaves.add(node)
        self._values[node] = tensor

    def jump(self, node: torch.fx.Node) -> tuple[torch.Tensor, bool] | None:
        """The value of a node that jumps, and whether nothing was rounded for it; None of others.

        Called for each node of the graph in turn."""
        if not _is_determined(node):
            return None
        number = _SHAPED.get(node.target._schema.name)  # type: ignore[union-attr]
        if number is not None:
            meant = node.meta["val"]
            self.give(node, torch.tensor(number, dtype=meant.dtype).expand(meant.shape))
            return None
        if not self._known.issuperset(node.all_input_nodes):
            return None
        self._known.add(node)
        if not _jumps(node):
            return None
        # All of them are computed, in this order.
        before = [(other, self._value(other)) for other in self._before(node)]
        exact = all(self._is_exact(other) and _is_whole(value) for other, value in before)
        return self._value(node), exact

    def is_blurred(self, node: torch.fx.Node) -> bool:
        """Whether a node depends on parameters and on no input, jumps, and something was rounded
        before. Called for each node of the graph in turn, after ``jump``."""
        args = node.all_input_nodes
        if node in self._known or not _is_determined(node):
            return False
        if not all(arg in self._constant or arg in self._known for arg in args):
            return False
        self._constant[node] = 1 + sum(self._constant.get(arg, 1) for arg in args)
        jumps, rounded = _jumps(node), any(map(self._may_be_rounded, args))
        if rounded and jumps:
            return self._constant[node] <= LARGEST_TREE
        if rounded or not (jumps or _rounds_nothing(node)):
            self._rounded.add(node)
        return False

    def _is_exact(self, node: torch.fx.Node) -> bool:
        """Whether a node is given, made of no tensor, or exact if all are whole numbers."""
        if node in self._leaves or not node.all_input_nodes or _jumps(node):
            return True
        assert isinstance(node.target, torch._ops.OpOverload)
        return node.target._schema.name in _WHOLE or _rounds_nothing(node)

    def _may_be_rounded(self, node: torch.fx.Node) -> bool:
        if node not in self._known:
            return node in self._rounded
        return bool(node.all_input_nodes) and bool(node.meta["val"].is_floating_point())

    def _before(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes that a node is computed from, arguments before users."""
        found: dict[torch.fx.Node, None] = {}
        stack = [(node, False)]
        while stack:
            one, done = stack.pop()
            if done or one in self._leaves:
                found[one] = None
            elif one not in found:
                stack.append((one, True))
                stack += [(arg, False) for arg in one.all_input_nodes]
        return [one for one in found if one is not node]

    def _value(self, node: torch.fx.Node) -> torch.Tensor:
        """Compute a node whose arguments were computed before."""
        if node not in self._values:
            assert isinstance(node.target, torch._ops.OpOverload)
            given = (node.args, dict(node.kwargs))
            args, kwargs = tree_map_only(torch.fx.Node, self._values.__getitem__, given)
            with torch.no_grad():
                self._values[node] = node.target(*args, **kwargs)
        return self._values[node]


def _is_determined(node: torch.fx.Node) -> bool:
    """Whether a node is a call of torch whose one result, a tensor of the IR's dtypes that isn't
    too large, is determined by its arguments."""
    target, meant = node.target, node.meta.get("val")
    return (
        isinstance(target, torch._ops.OpOverload)
        and isinstance(meant, torch.Tensor)
        and str(meant.dtype).removeprefix("torch.") in DTYPES
        and all(isinstance(size, int) for size in meant.shape)
        and meant.numel() <= MOST
        and torch.Tag.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
        and target._schema.name not in _UNSET
    )


def _is_whole(value: torch.Tensor) -> bool:
    """Whether a tensor holds whole numbers only, with which floats are exact."""
    if not value.is_floating_point():
        return True
    return bool((value == value.round()).all()) and bool((value.abs() < 2**24).all())


def _jumps(node: torch.fx.Node) -> bool:
    """Whether a node's function isn't continuous in an argument: it gives integers or bools for
    floats, or is a step function. (A conversion to fewer digits is rounded in any case.)"""
    given = [arg.meta.get("val") for arg in node.all_input_nodes]
    if not any(isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in given):
        return False
    assert isinstance(node.target, torch._ops.OpOverload)
    steps = node.target._schema.name in _STEPS or "rounding_mode" in node.kwargs
    return steps or not node.meta["val"].is_floating_point()


def _rounds_nothing(node: torch.fx.Node) -> bool:
    """Whether a node's function gives elements of its arguments, or computes with integers."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema
    views = bool(schema.arguments) and schema.arguments[0].alias_info is not None
    return views or schema.name in _EXACT or not node.meta["val"].is_floating_point()
