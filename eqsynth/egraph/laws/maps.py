"""What passes through functions that aren't linear.

Which part of an operand a scope reads at all, so that no more of it is computed; and reductions
other than sums pushed inward: the largest value of a function that doesn't decrease.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eqsynth.calculus.conditions import is_finite
from eqsynth.calculus.scopes import (
    closed,
    read_all,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    dtype_of,
    iterators,
    product,
    rebuild,
    rewrite_leaves,
    total,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

_OPPOSITE = {"max": "min", "min": "max"}


# ---- parts -----------------------------------------------------------------------------------


def part(scope: Scope, read: Read) -> Scope | None:
    """``L_x f(t[m(x)]) = L_x f({L_u t[l(u)]}[n(x)])`` where fewer places than t has are read.

    Two parts are compared, and the smaller is taken: one element for each value of the iterators
    of the index (a diagonal, a row), and the box of the places along each axis (a window over a
    slice, every second column).
    """
    found = [candidate for candidate in (_box(read), _by_iterators(read)) if candidate]
    smallest = min(found, key=lambda c: c.tensor.type.size, default=None)
    if smallest is None:
        return None
    body = rewrite_leaves(scope.body, lambda leaf: smallest if leaf == read else leaf)
    return same_scope(scope, body, reduction_iterators(scope))


def _by_iterators(read: Read) -> Read | None:
    """The read of ``L_I t[m(I)]`` over the iterators of the index, in the order of t's axes, where
    that is smaller than t.

    An infinite fill would be an element there, and elements are taken to be finite.
    """
    own = list(dict.fromkeys(it for index in read.index for it in index.iterators()))
    if not own or math.prod(it.extent for it in own) >= read.tensor.type.size:
        return None
    return read_all(scope_over(own, [], read), own) if is_finite(read) else None


def _box(read: Read) -> Read | None:
    """The read of ``L_u t[first + step * u]``, zero or what else the read gives outside of t, where
    that is smaller than t."""
    inner, outer, extents = [], [], []
    for slot, (index, size) in enumerate(zip(read.index, read.tensor.shape, strict=True)):
        step = math.gcd(*(c for _, c in index.terms)) or 1
        low, high = index.range()
        # The first place in t of those a step apart.
        first, last = low + -(min(low, 0) // step) * step, min(high, size - 1)
        if first > last:
            return None
        extents.append((last - first) // step + 1)
        inner.append(Index.iterator(slot, extents[-1]) * step + first)
        outer.append(Index((index.const - first) // step, tuple(
            (atom, c // step) for atom, c in index.terms
        )))  # fmt: skip
    if math.prod(extents) >= read.tensor.type.size:
        return None
    whole = Read(read.tensor, tuple(inner))
    kept = [It(slot, extent) for slot, extent in enumerate(extents)]
    return Read(scope_over(kept, [], whole), tuple(outer), read.fill)


# ---- the largest and the smallest ----------------------------------------------------------------


def extremum(scope: Scope) -> Scope | None:
    """``max_y f(g(x, y)) = f(max_y g(x, y))`` for an f that doesn't decrease, and for min.

    Also ``max_{y,z} (g(x, y) + h(x, z)) = max_y g + max_z h``, a positive factor, and a negative
    one, which turns max into min. Exact where f rounds as functions should: f of the largest is
    the largest f.
    """
    if scope.reducer not in _OPPOSITE or 0 in scope.reduction:
        return None
    outside = set(traversal_iterators(scope))
    body = _inward(scope.body, scope.reducer, outside)
    if body is None:
        return None
    result = same_scope(scope, body, [], "sum")
    return result if result.type == scope.type else None


def _inward(body: Scalar, reducer: str, outside: set[It]) -> Scalar | None:
    """The reduced body with the reduction on parts of it; None if it stays outermost."""
    if not is_float(dtype_of(body) or "bool"):
        return None  # sums and products of integers come round again
    if isinstance(body, Sum):
        groups = _groups(body.terms, outside)
        return total([_reduced(total(g), reducer, outside) for g in groups]) if groups else None
    if isinstance(body, Prod):
        numbers = [f for f in body.factors if isinstance(f, Num)]
        scale = math.prod(n.value for n in numbers)
        rest = [f for f in body.factors if not isinstance(f, Num)]
        if not numbers or not rest or scale == 0 or not math.isfinite(scale):
            return None
        turned = reducer if scale > 0 else _OPPOSITE[reducer]
        return product([Num(scale), _reduced(product(rest), turned, outside)])
    if isinstance(body, Call) and FUNCTIONS[body.fn].increasing:
        # The largest of the smaller of two needs both at the same place.
        if body.fn != reducer and not _apart(body.args, outside):
            return None
        return rebuild(body, [_reduced(arg, reducer, outside) for arg in children(body)])
    return None


def _reduced(body: Scalar, reducer: str, outside: set[It]) -> Scalar:
    """The reduction of a part, over the iterators that it uses: the same value twice is no more."""
    if iterators(body) <= outside:
        return body
    return _inward(body, reducer, outside) or closed(body, outside, reducer)


def _apart(parts: Sequence[Scalar], outside: set[It]) -> bool:
    """No reduced iterator is used by two of the parts."""
    used = [it for part in parts for it in iterators(part) - outside]
    return len(used) == len(set(used))


def _groups(terms: Sequence[Scalar], outside: set[It]) -> list[list[Scalar]]:
    """Terms that share a reduced iterator, together; none if all do."""
    groups: list[tuple[set[It], list[Scalar]]] = []
    for term in terms:
        shared = set(iterators(term)) - outside
        meeting = [g for g in groups if shared & g[0]]
        groups = [g for g in groups if g not in meeting]
        joined = shared.union(*(its for its, _ in meeting))
        groups.append((joined, [*_flatten(ts for _, ts in meeting), term]))
    return [ts for _, ts in groups] if len(groups) > 1 else []


def _flatten(lists: Iterable[Sequence[Scalar]]) -> Iterable[Scalar]:
    return (term for terms in lists for term in terms)
