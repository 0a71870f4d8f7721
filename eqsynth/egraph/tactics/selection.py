"""Proposals for the laws of ``calculus/select.py``.

Reads of constant tensors become numbers; a product of gathered rows becomes rows of a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.define import opened
from eqsynth.calculus.deriving import Match
from eqsynth.calculus.select import Numbers, rows
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Num, Read, factors_of, iterators, product, reads, tensors
from eqsynth.ir.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor

# A product with gathered rows is computed for the rows of the table if each is picked so often.
OFTEN = 2


def read_constants(scope: Scope, constant: Callable[[Tensor], float | None]) -> Path | None:
    """Replace each read of a tensor whose elements are all one number by that number, and each read
    that is always outside of its tensor by its fill: the first row of ``cat(x, y)`` reads no y.

    Args:
        constant: the number that all elements of a tensor are; None if they aren't one number.
    """
    known = [(tensor, constant(tensor)) for tensor in tensors(scope.body)]
    numbers = tuple((tensor, value) for tensor, value in known if value is not None)
    if not numbers and not any(map(Read.is_outside, reads(scope.body))):
        return None
    found = path(scope, Numbers(numbers))
    return found if found is not None and found.scope != scope else None


def inside(found: Path) -> Path:
    """The path, and one step further if its scope has a read that is always outside of its tensor.

    A scope that reads ``cat(x, y)`` at its first row reads y at -1 after ``cat`` is inlined.
    """
    if any(map(Read.is_outside, reads(found.scope.body))):
        return found.then(Numbers(())) or found
    return found


def ungather_rows(
    scope: Scope,
    read: Read,
    gathered: Op,
    diagonal: Callable[[Tensor], bool] = lambda _table: False,
) -> Path | None:
    """``L_{i,j} sum_k t[ids[i], k] f(k, j) = L_{i,j} {L_{v,j} sum_k t[v, k] f(k, j)}[ids[i], j]``.

    Also of rows that are added, ``sum_{n,k} t[ids[i, n], k] f(k, j)``: n stays in a sum over rows
    of the table, and so does what they are multiplied by, ``a[i, n]``. Only where ``t`` and ``f``
    are constant: their product is then a table that is computed once, and each run only gathers its
    rows. Or where the rows are picked many times: of a graph with more edges than nodes, what is
    linear in a node is computed for each node. Or where ``t`` has one diagonal: the rows of
    ``t @ f`` are those of ``f``, so ``one_hot(ids) @ x`` is rows of x.

    Args:
        read: the factor of ``scope`` that reads the gathered rows.
        gathered: the operator ``Embedding(t, ids)`` that is equal to the tensor of ``read``.
        diagonal: whether a table is zero except on one diagonal.
    """
    table, ids = gathered.args
    factors = list(factors_of(scope.body))
    if not is_product(scope) or read not in factors or not read.in_range():
        return None
    factors.remove(read)
    width = len(ids.shape)
    picked = read.index[:width]
    chosen = {it for index in picked for it in index.iterators()}
    reduced = [it for it in reduction_iterators(scope) if it not in chosen]
    if not reduced:
        return None
    beside = [f for f in factors if chosen & iterators(f) and not iterators(f) & {*reduced}]
    factors = [f for f in factors if f not in beside]
    others = [*factors, Read(table, (Index(0), *read.index[width:]))]
    if any(chosen & iterators(f) for f in others):
        return None
    constant = all(
        isinstance(f, Num) or (isinstance(f, Read) and f.tensor.constant) for f in others
    )
    if not constant and not picks_often(gathered) and not diagonal(table):
        return None
    needed = {it for f in others for it in iterators(f)}
    rest = [it for it in traversal_iterators(scope) if it not in chosen and it in needed]
    value = It(len(scope.extents), table.shape[0])
    body = product([*factors, Read(table, (bare(value), *read.index[width:]))])
    looked_up = scope_over([value, *rest], reduced, body)
    try:
        by_rows = Read(_embedded(looked_up, ids), (*picked, *map(bare, rest)))
    except LawError:
        return None
    added = [it for it in reduction_iterators(scope) if it in chosen]
    rows_ = scope_over(traversal_iterators(scope), added, product([*beside, by_rows]))
    return path(scope, Match(rows_, ((read.tensor, gathered),)))


def picks_often(gathered: Op) -> bool:
    """Whether an embedding picks a row of its table ``OFTEN`` times or more on average."""
    table, ids = gathered.args
    return OFTEN * table.shape[0] <= math.prod(ids.shape)


def _embedded(table: Scope, ids: Tensor) -> Tensor:
    """Return ``table[ids[i], k, …]``: the embedding of a table with one axis for all of its axes
    but the first, with the axes as before.

    Raises:
        LawError: the table is too large to be written with one axis."""
    rest = table.traversal[1:]
    if len(rest) == 1:
        return rows(table, ids)
    flat = opened(Op("Reshape", (table,), ((table.traversal[0], math.prod(rest)),)), {})
    return Op("Reshape", (rows(flat, ids),), ((*ids.shape, *rest),))
