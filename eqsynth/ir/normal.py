"""The canonical form of a scope: scopes that differ in names and orders only become one term.

``L[i] sum[k0, k1] . b[k1] * a[i, k0, k1]`` and ``L[i] sum[k0, k1] . a[i, k1, k0] * b[k0]`` have one
canonical form. It fixes the slots of reduction iterators and the order of operands of sums,
products and commutative functions. It removes iterators of extent 1 and reductions over iterators
that the body doesn't use. A read that is always in range gets fill 0, and no read leaves its tensor
along an axis of extent 1 if the tensor has a longer axis. A quotient by a power of two is a
product, which is the same number. The order of the traversal stays, because it is the order of the
result's axes. Ties are broken by the digests of the tensors that are read.

Not here: algebra, as ``a * (b + c) = a * b + a * c``, which rules and laws state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Final, TypeVar, TypeVarTuple

from eqsynth.ir.functions import COMMUTATIVE
from eqsynth.ir.index import Atom, Index, It, number_of
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    digest_of,
    iterators,
    leaves,
    product,
    rebuild,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.tensor import Op, Scope, Tensor, over, topological

# If like iterators have more orders than this, not all orders are tried. The form is then an equal
# scope, but perhaps not unique.
_MAX_ORDERS = 720

Args = TypeVarTuple("Args")
R = TypeVar("R")

Colour = Callable[[It], object]

# If False, scopes keep the slots and orders that they were built with. A benchmark switches it off
# to measure what canonical forms save (EinNet's fingerprints, Fig. 19).
CANONICAL: Final = ContextVar("canonical", default=True)


def remembered(maxsize: int) -> Callable[[Callable[[*Args], R]], Callable[[*Args], R]]:
    """A decorator: cache up to ``maxsize`` results of a function that returns canonical scopes.

    The value of ``CANONICAL`` is part of the cache's key, because it changes the results.
    """

    def decorate(function: Callable[[*Args], R]) -> Callable[[*Args], R]:
        @lru_cache(maxsize=maxsize)
        def kept(_canonical: bool, *args: *Args) -> R:
            return function(*args)

        @wraps(function)
        def asked(*args: *Args) -> R:
            return kept(CANONICAL.get(), *args)

        _CACHES.append(kept.cache_clear)
        return asked

    return decorate


_CACHES: Final[list[Callable[[], None]]] = []


def forget() -> None:
    """Clear the cache of canonical forms and the caches of all ``remembered`` functions."""
    _FORMS.clear()
    _plain_key.cache_clear()
    for clear in _CACHES:
        clear()


def canonical(scope: Scope) -> Scope:
    """Return the canonical form of a scope; the tensors that it reads stay as they are.

    >>> from eqsynth.ir.types import TensorType
    >>> from eqsynth.ir.tensor import Input
    >>> a, b = (Input(n, TensorType((2, 2), "float32")) for n in "ab")
    >>> i, k = Index.iterator(0, 2), Index.iterator(1, 2)
    >>> p = Scope((2,), (2,), Prod((Read(a, (i, k)), Read(b, (k, i)))))
    >>> q = Scope((2,), (2,), Prod((Read(b, (k, i)), Read(a, (i, k)))))
    >>> canonical(p) == canonical(q)
    True
    """
    return canonical_form(scope) if CANONICAL.get() else _without_idle(scope)


def canonical_form(scope: Scope) -> Scope:
    """Return the canonical form for comparing two scopes, even if ``CANONICAL`` is off."""
    known = _FORMS.get(scope)
    if known is None:
        if len(_FORMS) >= _MAX_FORMS:
            _FORMS.clear()
        known = _FORMS[scope] = _canonical(scope)
        # A canonical form is its own form. Most scopes asked about next are results of laws, which
        # are canonical already.
        _FORMS[known] = known
    return known


# Scope -> its canonical form; cleared when it has _MAX_FORMS entries.
_FORMS: Final[dict[Scope, Scope]] = {}
_MAX_FORMS = 1 << 16


def _canonical(scope: Scope) -> Scope:
    scope = _without_idle(scope)
    width = len(scope.traversal)
    slots = range(width, len(scope.extents))
    colours: dict[int, object] = {s: ("r", scope.extents[s]) for s in slots}
    for _ in range(2 if len(slots) > 1 else 0):
        colours = {
            s: (scope.extents[s], _key(scope.body, _marked(s, width, colours))) for s in slots
        }
    ordered = sorted(slots, key=lambda s: repr(colours[s]))
    groups = [list(g) for _, g in itertools.groupby(ordered, key=lambda s: repr(colours[s]))]
    best = ordered
    if 1 < math.prod(math.factorial(len(g)) for g in groups) <= _MAX_ORDERS:
        orders = (
            [s for part in parts for s in part]
            for parts in itertools.product(*(itertools.permutations(g) for g in groups))
        )
        best = min(orders, key=lambda order: _key(scope.body, _numbered(order, width)))
    place = {slot: width + k for k, slot in enumerate(best)}

    def rename(it: It) -> Index:
        return Index(0, ((It(place.get(it.slot, it.slot), it.extent), 1),))

    body = sort_operands(substitute(scope.body, rename))
    return Scope(scope.traversal, tuple(scope.extents[s] for s in best), body, scope.reducer)


def canonical_term(root: Tensor) -> Tensor:
    """Return the term with all its scopes in canonical form, innermost first."""
    done: dict[Tensor, Tensor] = {}
    for term in topological([root]):
        image = over(term, done)
        done[term] = canonical(image) if isinstance(image, Scope) else image
    return done[root]


def sort_operands(scalar: Scalar) -> Scalar:
    """Sort the operands of commutative operations by their structure, and flatten nested sums and
    products."""
    done: dict[Scalar, Scalar] = {}

    def ordered(part: Scalar) -> Scalar:
        if not children(part):
            return part
        if part not in done:
            parts = [ordered(p) for p in children(part)]
            if _commutes(part):
                parts.sort(key=_plain_key)
            done[part] = rebuild(part, parts)
        return done[part]

    return ordered(scalar)


def _commutes(scalar: Scalar) -> bool:
    return isinstance(scalar, Prod | Sum) or (isinstance(scalar, Call) and scalar.fn in COMMUTATIVE)


def _without_idle(scope: Scope) -> Scope:
    """Replace iterators of extent 1 by 0, and carry out reductions over iterators that the body
    doesn't use: ``sum[k<5] . x[i]`` -> ``5 * x[i]``."""
    width = len(scope.traversal)
    body = substitute(scope.body, lambda it: Index.iterator(it.slot, it.extent))
    body = rewrite_leaves(body, lambda leaf: _without_units(_without_fill(leaf)))
    used = {it.slot for it in iterators(body)}
    kept, factor = [], 1
    for slot in range(width, len(scope.extents)):
        extent = scope.extents[slot]
        if slot in used or extent == 0 or (scope.reducer == "prod" and extent > 1):
            kept.append(slot)
        elif scope.reducer == "sum":
            factor *= extent
    if len(kept) == len(scope.reduction) and body == scope.body:
        return scope
    place = {slot: width + k for k, slot in enumerate(kept)}
    body = substitute(body, lambda it: Index(0, ((It(place.get(it.slot, it.slot), it.extent), 1),)))
    if factor != 1:
        body = product([Num(factor), body])
    result = Scope(scope.traversal, tuple(scope.extents[s] for s in kept), body, scope.reducer)
    return result if result.type == scope.type else scope


def _without_fill(leaf: Scalar) -> Scalar:
    """Return the leaf; a read that is always in range gets fill 0."""
    if isinstance(leaf, Read) and leaf.fill and leaf.in_range():
        return Read(leaf.tensor, leaf.index)
    return leaf


def _without_units(leaf: Scalar) -> Scalar:
    """Return the leaf; a read that may leave its tensor along an axis of extent 1 is changed to
    leave it along a longer axis instead.

    ``t[i, q]``, whose second axis has extent 1, becomes ``t'[i + n*q]``: t' is t without that axis,
    and n is so large that i + n*q is out of range for every q but 0. Other scopes can then be
    inlined into the read, which an axis without an iterator (extent 1) would prevent.
    """
    if not isinstance(leaf, Read):
        return leaf
    shape, index = list(leaf.tensor.shape), list(leaf.index)
    units = [n for n, e in enumerate(shape) if e == 1 and index[n].range() != (0, 0)]
    wide = [n for n, e in enumerate(shape) if e > 1]
    if not units or not wide:
        return leaf
    for axis in reversed(units):
        into = max((n for n in wide if n < axis), default=wide[0])
        low, high = index[into].range()
        index[into] = index[into] + index[axis] * max(shape[into] - low, high + 1)
        del shape[axis], index[axis]
        wide = [n - (n > axis) for n in wide]
    tensor = leaf.tensor
    if isinstance(tensor, Op) and tensor.name == "Reshape":
        tensor = tensor.args[0]
    if tensor.shape != tuple(shape):
        tensor = Op("Reshape", (tensor,), (tuple(shape),))
    return Read(tensor, tuple(index), leaf.fill)


def _plain(it: It) -> object:
    return ("i", it.slot, it.extent)


def _marked(marked: int, width: int, colours: dict[int, object]) -> Colour:
    def colour(it: It) -> object:
        if it.slot == marked:
            return "*"
        return it.slot if it.slot < width else colours[it.slot]

    return colour


def _numbered(order: list[int], width: int) -> Colour:
    place = {slot: width + k for k, slot in enumerate(order)}
    return lambda it: ("i", place.get(it.slot, it.slot), it.extent)


@lru_cache(maxsize=1 << 15)
def _plain_key(scalar: Scalar) -> bytes:
    """Return the digest by which operands are sorted; iterators count by slot and extent."""
    if not children(scalar):
        return _key(scalar, _plain)
    return _combined(scalar, [_plain_key(part) for part in children(scalar)])


def _combined(scalar: Scalar, parts: list[bytes]) -> bytes:
    if isinstance(scalar, Cast):
        return digest_of("cast", scalar.dtype, *parts)
    if _commutes(scalar):
        parts.sort()
    fn = scalar.fn if isinstance(scalar, Call) else ""
    return digest_of(type(scalar).__name__, fn, *parts)


def _key(scalar: Scalar, colour: Colour, done: dict[Scalar, bytes] | None = None) -> bytes:
    """Return a digest of the expression in which iterators count by their colour and the order of
    commutative operands doesn't count. ``done`` caches digests for this ``colour``."""
    match scalar:
        case Num(value=value):
            return digest_of("0num", value)
        case Read(tensor=tensor, index=index, fill=fill):
            return digest_of("read", tensor.order, [_index(i, colour) for i in index], fill)
        case Value(index=index):
            return digest_of("value", _index(index, colour))
    done = {} if done is None else done
    if scalar not in done:
        done[scalar] = _combined(scalar, [_key(part, colour, done) for part in children(scalar)])
    return done[scalar]


def _index(index: Index, colour: Colour) -> tuple[object, ...]:
    return (index.const, sorted((repr(_atom(a, colour)), c) for a, c in index.terms))


def _atom(atom: Atom, colour: Colour) -> object:
    if isinstance(atom, It):
        return colour(atom)
    return (type(atom).__name__, _index(atom.value, colour), number_of(atom))


def canonical_order(body: Scalar, kept: list[It], reduced: list[It]) -> list[It]:
    """Return the kept iterators in an order that depends only on the structure of the body.

    A derivation may choose the axis order of a scope that it builds. This function chooses it, so
    that equal scopes get one order; extraction chooses layouts.
    """
    colours: dict[int, object] = {it.slot: ("k", it.extent) for it in kept}
    colours |= {it.slot: ("r", it.extent) for it in reduced}
    for _ in range(2):
        colours = {
            it.slot: (group, it.extent, _key(body, _marked(it.slot, 0, colours)))
            for group, its in enumerate((kept, reduced))
            for it in its
        }
    uses = {it: sum(it in iterators(leaf) for leaf in leaves(body)) for it in kept}
    # Iterators that most factors use come first, as the batch axis does in a library's matmul.
    return sorted(kept, key=lambda it: (-uses[it], repr(colours[it.slot]), it.slot))
