"""Operator matching through iterator mapping tables (EinNet §5.1, Table 2).

A scope of two reads is grouped by where its iterators occur: in both inputs and the output
(batch), in one input and the output (m, n), in both inputs only (k). Operands whose axes
don't fit the operator are rearranged by views, or gathered by a scope (im2col, as an eOperator).
Not here: convolutions and band products, which have windows (``windows.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eqsynth.ir.index import Index, It, row_major
from eqsynth.ir.scalar import Read, factors_of, iterators
from eqsynth.ir.scopes import reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor

# An operand may be gathered into at most this many times its own size (im2col of a 3x3 window: 9).
MAX_REPLICATION = 64


def reshape(t: Tensor, shape: Sequence[int]) -> Tensor:
    if isinstance(t, Op) and t.name == "Reshape":
        t = t.args[0]
    return t if t.shape == tuple(shape) else Op("Reshape", (t,), (tuple(shape),))


def permute(t: Tensor, order: Sequence[int]) -> Tensor:
    return t if list(order) == list(range(len(order))) else Op("Permute", (t,), (tuple(order),))


def size(its: Sequence[It]) -> int:
    return math.prod(it.extent for it in its)


@dataclass(frozen=True)
class Groups:
    """The iterators of a two-operand scope, grouped by where they occur (Table 2's columns).

    ``sum_k a[b, m, k] * b[b, k, n]`` has one iterator in each group.
    """

    batch: tuple[It, ...]
    m: tuple[It, ...]
    n: tuple[It, ...]
    k: tuple[It, ...]

    @staticmethod
    def of(scope: Scope, a: Read, b: Read) -> Groups | None:
        """Group the iterators; None if one of them fits no group.

        Such an iterator occurs in no operand, or is reduced and occurs in one operand only.
        """
        in_a, in_b = iterators(a), iterators(b)
        traversal = [it for it in traversal_iterators(scope) if it.extent != 1]
        reduced = reduction_iterators(scope)
        if any(it not in in_a | in_b for it in traversal):
            return None
        if any(it not in in_a & in_b for it in reduced):
            return None
        # Any order within a group is right; in the order of the operand's axes views suffice.
        return Groups(
            _ordered((it for it in traversal if it in in_a and it in in_b), a),
            _ordered((it for it in traversal if it in in_a and it not in in_b), a),
            _ordered((it for it in traversal if it not in in_a and it in in_b), b),
            _ordered(reduced, a),
        )


def _ordered(its: Iterable[It], read: Read) -> tuple[It, ...]:
    place = {it: axis for axis, index in enumerate(read.index) for it in index.iterators()}
    return tuple(sorted(its, key=lambda it: (place[it], it.slot)))


def operands(scope: Scope) -> tuple[Read, Read] | None:
    """The two reads of a sum of products, the constant one (a weight) second."""
    factors = factors_of(scope.body)
    if scope.reducer != "sum" or not scope.reduction or len(factors) != 2:
        return None
    a, b = factors
    if not isinstance(a, Read) or not isinstance(b, Read) or scope.dtype != a.tensor.dtype:
        return None
    if a.tensor.dtype != b.tensor.dtype:
        return None
    if a.tensor.constant != b.tensor.constant:
        return (b, a) if a.tensor.constant else (a, b)
    # Otherwise the operand whose own iterators come first in the result is the left one.
    own = [it for it in traversal_iterators(scope) if (it in iterators(a)) != (it in iterators(b))]
    return (b, a) if own and own[0] in iterators(b) else (a, b)


def gathered(read: Read, order: Sequence[It], groups: Sequence[Sequence[It]]) -> Tensor | None:
    """``read`` with one axis a group: by views if its strides allow, else by a scope."""
    shape = [size(group) for group in groups]
    axes = dense_axes(read)
    if axes is not None and len(axes) == len(order):
        return reshape(moved(read.tensor, axes, order), shape)
    if size(order) > MAX_REPLICATION * max(read.tensor.type.size, 1):
        return None
    return reshape(scope_over(list(order), [], read), shape)


def moved(value: Tensor, source: Sequence[It], target: Sequence[It]) -> Tensor:
    """A tensor whose memory runs over ``source``, with its axes in the order of ``target``.

    Axes that follow each other in both orders are merged: (t, s, p, q, c) -> (p, q, t, s, c) is
    permuted as (ts, pq, c) -> (pq, ts, c), a layout that libraries support.
    """
    runs: list[list[It]] = []
    for it in source:
        if runs and list(target).index(it) == list(target).index(runs[-1][-1]) + 1:
            runs[-1].append(it)
        else:
            runs.append([it])
    order = sorted(range(len(runs)), key=lambda n: list(target).index(runs[n][0]))
    return permute(reshape(value, [size(run) for run in runs]), order)


def dense_axes(read: Read) -> list[It] | None:
    """The iterators of a read that goes through its whole tensor, slowest first.

    The tensor is flattened to one dimension, and the coefficients of the iterators are compared
    with the strides of a tensor with their extents [EinNet §5.1 step 3, Fig. 8].

    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> i, j, k = (Index.iterator(slot, extent) for slot, extent in enumerate((2, 3, 4)))
    >>> x = Input("x", TensorType((4, 6), "float32"))
    >>> [it.slot for it in dense_axes(Read(x, (k, j + 3 * i))) or ()]
    [2, 0, 1]
    """
    if not read.in_range():
        return None
    flat = Index(0)
    for index, stride in zip(read.index, row_major(read.tensor.shape), strict=True):
        flat = flat + index * stride
    terms = sorted(flat.terms, key=lambda term: -term[1])
    axes = [atom for atom, _ in terms if isinstance(atom, It)]
    strides = row_major(tuple(it.extent for it in axes))
    whole = size(axes) == read.tensor.type.size and not flat.const
    fits = flat.is_affine and whole and strides == tuple(c for _, c in terms)
    return axes if fits else None


def arranged(value: Tensor, axes: Sequence[It], scope: Scope) -> Tensor:
    """The operator's result, whose axes run over ``axes`` in order, as the scope's result."""
    traversal = [it for it in traversal_iterators(scope) if it.extent != 1]
    return reshape(moved(value, axes, traversal), scope.traversal)


def match_matmul(scope: Scope) -> Tensor | None:
    """``sum_k a[b, m, k] * b[b, k, n]`` as ``Matmul``, batched if an iterator is in all three."""
    pair = operands(scope)
    groups = Groups.of(scope, *pair) if pair else None
    if pair is None or groups is None or not groups.k or not (groups.m or groups.n):
        return None
    batch = [groups.batch] if groups.batch else []
    left = gathered(pair[0], [*groups.batch, *groups.m, *groups.k], [*batch, groups.m, groups.k])
    right = gathered(pair[1], [*groups.batch, *groups.k, *groups.n], [*batch, groups.k, groups.n])
    if left is None or right is None:
        return None
    product = Op("Matmul", (left, right))
    return arranged(product, [*groups.batch, *groups.m, *groups.n], scope)
