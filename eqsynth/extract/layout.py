"""Layouts of views: which permutations and reshapes of a dense tensor move no elements.

    Permute(x, (0, 2, 1)), x in layout (0, 1, 2)    ->    a view in layout (0, 2, 1)

Not here: what a layout is (``kernel.py``), copies into another layout (``candidates.py``).
"""

from __future__ import annotations

from functools import lru_cache

from eqsynth.extract.kernel import Kernel, Layout
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import Shape


def free_view(term: Tensor, layout: Layout) -> Layout | None:
    """The layout of a view's result, if its one argument is dense in ``layout``. None if the term
    is no view, or if elements would have to move.

    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> x = Input("0", TensorType((2, 3, 4), "float32"))
    >>> free_view(Op("Permute", (x,), ((0, 2, 1),)), (0, 1, 2))
    (0, 2, 1)
    """
    if isinstance(term, Op) and term.name == "Permute":
        (order,) = term.attrs
        assert isinstance(order, tuple)
        return permuted(order, layout)
    if isinstance(term, Op) and term.name in ("Reshape", "Split", "Merge"):
        return reshaped(term.args[0].shape, layout, term.shape)
    if isinstance(term, Scope):
        parts = permutation(term)
        if parts is None:
            return None
        squeezed, order = parts
        inner = reshaped(term_shape(term), layout, squeezed)
        if inner is None:
            return None
        moved = tuple(squeezed[axis] for axis in order)
        return reshaped(moved, permuted(order, inner), term.shape)
    return None


@lru_cache(maxsize=1 << 14)
def view_kernel(term: Tensor, layout: Layout) -> Kernel | None:
    """The kernel that computes a term as a view of its one argument, which is dense in ``layout``;
    None if elements would have to move."""
    out = free_view(term, layout)
    return None if out is None else Kernel(term, (False,), "torch.view", (layout,), out)


def term_shape(scope: Scope) -> Shape:
    """The shape of the tensor that a scope with a single read reads."""
    assert isinstance(scope.body, Read)
    return scope.body.tensor.shape


def permutation(scope: Scope) -> tuple[Shape, tuple[int, ...]] | None:
    """For a scope that only permutes axes, and adds or drops axes of extent 1: the argument's shape
    without axes of extent 1, and the order of these axes that gives the result's. None for other
    scopes."""
    body = scope.body
    if scope.reduction or not isinstance(body, Read):
        return None
    shape = body.tensor.shape
    axes = [index.bare() for index in body.index]
    for it, index, extent in zip(axes, body.index, shape, strict=True):
        if extent == 1 and not index.terms and index.const == 0:
            continue
        if it is None or it.extent != extent:
            return None
    its = [it for it, extent in zip(axes, shape, strict=True) if extent != 1 and it is not None]
    wide = [slot for slot, extent in enumerate(scope.traversal) if extent != 1]
    if sorted(it.slot for it in its) != wide:
        return None
    place = {it.slot: n for n, it in enumerate(its)}
    return tuple(it.extent for it in its), tuple(place[slot] for slot in wide)


def permuted(order: tuple[int, ...], layout: Layout) -> Layout:
    """The layout of ``x.permute(order)`` for x dense in ``layout``."""
    place = {axis: n for n, axis in enumerate(order)}
    return tuple(place[axis] for axis in layout)


def reshaped(source: Shape, layout: Layout, target: Shape) -> Layout | None:
    """The layout of ``x.reshape(target)`` for x dense in ``layout``; None if the reshape would
    copy."""
    if 0 in source:
        return None
    groups = _groups(source, target)
    memory = [axis for axis in layout if source[axis] != 1]
    result: list[int] = []
    at = 0
    own = {axis: (ins, outs) for ins, outs in groups for axis in ins}
    while at < len(memory):
        ins, outs = own[memory[at]]
        wide = [axis for axis in ins if source[axis] != 1]
        if memory[at : at + len(wide)] != wide:
            return None
        result += [axis for axis in outs if target[axis] != 1]
        at += len(wide)
    # Axes of extent 1 may have any place in a layout: they don't change the strides of other axes.
    units = [axis for axis in range(len(target)) if target[axis] == 1]
    return normalized((*units, *result), target)


def normalized(layout: Layout, shape: Shape) -> Layout:
    """The canonical form of a layout. Layouts that differ only in the places of axes of extent 1
    have the same one."""
    wide = [axis for axis in layout if shape[axis] != 1]
    rest = iter(wide)
    return tuple(axis if shape[axis] == 1 else next(rest) for axis in range(len(shape)))


def _groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Split the axes of two shapes, from left to right, into runs with equal products: (6, 4) and
    (2, 3, 4) -> ([0], [0, 1]), ([1], [2])."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        ins: list[int] = []
        outs: list[int] = []
        left = right = 1
        while not (left == right and (ins or outs)):
            if i < len(source) and (left <= right or j >= len(target)):
                left *= source[i]
                ins.append(i)
                i += 1
            else:
                right *= target[j]
                outs.append(j)
                j += 1
        groups.append((ins, outs))
    return groups
