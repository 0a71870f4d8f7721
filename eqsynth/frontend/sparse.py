"""Buffers that are matrices with few elements, said as what their elements are and where.

    tridiagonal(a, b, c)             ->  L[i, j] . [-1 <= j - i <= 1] * t[i, j]
    2 * eye(n) - roll(eye(n), 1, 0)  ->  2 * [j == i] - [j == i - 1] - [j == i + n - 1]
    4 neighbours of each node        ->  L[i, j] sum[n<4] . one_hot(ids)[i, n, j] * a[i, n]

Rules then leave out the products with zeros. As one constant the matrix stays in the e-graph, so a
dense product is measured beside the others. Not here: matrices of two values, which are functions
of their places (``recognized.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from eqsynth.frontend.expr import Expr
from eqsynth.frontend.ops import creation, indexing, pointwise
from eqsynth.frontend.ops.reduction import sum as sum_
from eqsynth.frontend.ops.views import permute, reshape
from eqsynth.frontend.recognized import band_of
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Value
from eqsynth.ir.tensor import Scope

LEAST: Final = 16
"""A matrix with fewer rows or columns is data."""

MOST_DIAGONALS: Final = 8
"""The most diagonals that are said one by one, each a term of a sum."""

FEWER: Final = 4
"""Diagonals, or the elements of a row, are said if at most one position in ``FEWER`` is one."""

Kept = Callable[[torch.Tensor], Expr]
"""Makes a tensor a constant of the program."""


def sparse(tensor: torch.Tensor, kept: Kept, columns: bool = False) -> Expr | None:
    """A matrix of floats as its elements and their places; None if it has too many of them.

    >>> sparse(2 * torch.eye(64) - torch.eye(64).roll(1, 0), kept=input)
    Expr(Add: float32[64, 64])

    Args:
        columns: whether the elements of each column are said rather than those of each row.
    """
    if tensor.ndim != 2 or min(tensor.shape) < LEAST or not tensor.is_floating_point():
        return None
    shown = (tensor != 0).cpu().numpy()
    if 2 * shown.sum() > shown.size or not shown.any() or not tensor.isfinite().all():
        return None
    band = band_of(shown)
    if band is not None:
        return _masked(band.over(shown.shape, [0, 1]), kept(tensor))
    found = _diagonals(tensor, shown, kept)
    for across in (columns, not columns):
        if found is None and across:
            found = _rows(tensor.T, shown.T, kept)
            found = None if found is None else permute(found, (1, 0))
        elif found is None:
            found = _rows(tensor, shown, kept)
    return found


def sums_rows(node: torch.fx.Node) -> bool | None:
    """Whether the first product that reads a matrix sums over its first axis, as ``x @ a`` does,
    and not over its second, as ``a @ x`` and ``linear(x, a)``; None if no product reads it."""
    for user in node.users:
        name = str(user.target).split(".")[1:2]
        if name in (["t"], ["numpy_T"], ["mT"], ["transpose"], ["permute"]):
            turned = sums_rows(user)
            return None if turned is None else not turned
        if name in (["mm"], ["matmul"], ["bmm"]):
            return user.args[1] is node
        if name == ["einsum"]:
            read, _, result = str(user.args[0]).replace(" ", "").partition("->")
            operands: Any = user.args[1]
            letters = read.split(",")[list(operands).index(node)]
            return len(letters) == 2 and letters[0] not in result and letters[1] in result
    return None


def _masked(condition: Expr, values: Expr) -> Expr:
    return pointwise.mul(pointwise.to(condition, values.dtype), values)  # type: ignore[no-any-return]


def _diagonals(tensor: torch.Tensor, shown: Any, kept: Kept) -> Expr | None:
    """The sum of the diagonals that aren't zero, each by one number if it has one."""
    rows, columns = shown.shape
    dtype = str(tensor.dtype).removeprefix("torch.")
    i, j = np.nonzero(shown)
    offsets = np.unique(j - i)
    if len(offsets) > MOST_DIAGONALS or FEWER * len(i) > shown.size:
        return None
    found: Expr | None = None
    values: Expr | None = None
    for offset in map(int, offsets):
        along = tensor.diagonal(offset)
        q = Index.iterator(1, columns) - Index.iterator(0, rows) - offset
        at = Expr(Scope((rows, columns), (), Call("eq", (Num(0), Value(q)))))
        if (along == along[0]).all():
            term = _masked(at, creation.full((), along[0].item(), dtype))
        else:
            values = kept(tensor) if values is None else values
            term = _masked(at, values)
        found = term if found is None else pointwise.add(found, term)
    return found


def _rows(tensor: torch.Tensor, shown: Any, kept: Kept) -> Expr | None:
    """The elements of each row at their columns; None if a row has too many."""
    rows, columns = shown.shape
    most = int(shown.sum(1).max())
    if FEWER * most > columns:
        return None
    order = np.argsort(~shown, axis=1, kind="stable")[:, :most]
    taken = np.take_along_axis(shown, order, 1)
    # A row with fewer elements repeats its first place, with a zero.
    ids = torch.from_numpy(np.where(taken, order, order[:, :1])).to(tensor.device)
    values = torch.where(torch.from_numpy(taken).to(tensor.device), tensor.gather(1, ids), 0)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if most == 1:
        picked = pointwise.to(indexing.one_hot(kept(ids[:, 0]), columns), dtype)
        one = bool((values == 1).all())
        return picked if one else pointwise.mul(picked, kept(values))  # type: ignore[no-any-return]
    picked = pointwise.to(indexing.one_hot(kept(ids), columns), dtype)
    return sum_(pointwise.mul(picked, reshape(kept(values), (rows, most, 1))), 1)
