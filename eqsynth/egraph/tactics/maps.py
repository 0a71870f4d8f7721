"""Derivations that hold for functions that aren't linear.

    part       exp(t[i, 0])     ->  exp(u[i]), u[i] = t[i, 0]     only what is read is computed
    extremum   max_y exp(g(y))  ->  exp(max_y g(y))               exp doesn't decrease

A scope may read only a part of an operand; that part becomes a scope. A maximum or minimum moves
inward through a function that doesn't decrease.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsynth.calculus.commute import Commute
from eqsynth.calculus.conditions import is_finite
from eqsynth.calculus.deriving import Inside
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.tactics.moving import read_by
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Num, Prod, Read, Scalar, Sum, children, iterators, reads
from eqsynth.ir.scopes import read_all, scope_over, traversal_iterators
from eqsynth.ir.tensor import Scope

# ---- parts -----------------------------------------------------------------------------------


def part(scope: Scope, read: Read) -> Path | None:
    """``L_x f(t[m(x)]) = L_x f({L_u t[l(u)]}[n(x)])`` if ``read`` reads fewer places than t has.

    Two parts are compared, and the smaller is taken: one element for each value of the iterators
    of the index (a diagonal, a row), and the box of the places along each axis (a window over a
    slice, every second column).
    """
    found = [candidate for candidate in (_box(read), _by_iterators(read)) if candidate]
    smallest = min(found, key=lambda c: c.tensor.type.size, default=None)
    if smallest is None:
        return None
    return path(scope, read_by(scope, read, smallest))


def _by_iterators(read: Read) -> Read | None:
    """The read of ``L_I t[m(I)]`` over the iterators of the index, in the order of t's axes.

    None if that tensor isn't smaller than t, or if the read has an infinite fill: the fill would
    become an element, and elements are assumed to be finite.
    """
    own = list(dict.fromkeys(it for index in read.index for it in index.iterators()))
    if not own or math.prod(it.extent for it in own) >= read.tensor.type.size:
        return None
    return read_all(scope_over(own, [], read), own) if is_finite(read) else None


def _box(read: Read) -> Read | None:
    """The read of ``L_u t[first + step * u]``, the box that ``read`` reaches, with the same fill.

    None if the box isn't smaller than t.
    """
    inner, outer, extents = [], [], []
    for slot, (index, size) in enumerate(zip(read.index, read.tensor.shape, strict=True)):
        step = math.gcd(*(c for _, c in index.terms)) or 1
        low, high = index.range()
        # `first` is the first place inside of t that is a whole number of steps from `low`.
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


def extremum(scope: Scope) -> Path | None:
    """``max_y f(g(x, y)) = f(max_y g(x, y))`` for an f that doesn't decrease, and for min.

    The reduction is moved inward as far as possible: the scope that is left to reduce after one
    step is tried again.
    """
    body, outside = scope.body, set(traversal_iterators(scope))
    operands = list(enumerate(children(body)))
    if isinstance(body, Sum):
        groups = _groups(body.terms, outside)
    elif isinstance(body, Prod):
        groups = [frozenset(n for n, factor in operands if not isinstance(factor, Num))]
    else:
        groups = [frozenset({n}) for n, operand in operands if not iterators(operand) <= outside]
    if not groups or (isinstance(body, Sum | Prod) and len(groups[0]) == len(operands)):
        return None  # all of the body stays together
    pushed = path(scope, Commute(tuple(groups)))
    for read in dict.fromkeys(reads(pushed.scope.body)) if pushed else ():
        inner = read.tensor
        further = extremum(inner) if isinstance(inner, Scope) and inner.reduction else None
        if pushed and further and isinstance(inner, Scope):
            pushed = _put_in(pushed, inner, further) or pushed
    return pushed


def _put_in(around: Path, inner: Scope, further: Path) -> Path | None:
    """Apply the steps of ``further`` to ``inner``, a scope inside ``around``; inline the result."""
    moved = around.then(Inside(inner, further.steps))
    found = [r for r in reads(moved.scope.body) if r.tensor == further.scope] if moved else []
    return moved.then(Inline(found[0], further.scope)) if moved and found else None


def _groups(terms: Sequence[Scalar], outside: set[It]) -> list[frozenset[int]]:
    """The terms in groups that share reduced iterators; a group holds positions in ``terms``."""
    groups: list[tuple[set[It], frozenset[int]]] = []
    for n, term in enumerate(terms):
        shared = set(iterators(term)) - outside
        if shared:
            meeting = [g for g in groups if shared & g[0]]
            groups = [g for g in groups if g not in meeting]
            joined = shared.union(*(its for its, _ in meeting))
            groups.append((joined, frozenset({n}).union(*(ns for _, ns in meeting))))
    return [ns for _, ns in groups]
