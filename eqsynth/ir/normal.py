"""The canonical form of a scope: equal up to names, equal term.

Canonical are the names of iterators (slots), the order of the reduction, the order of operands of
sums, products and commutative functions; iterators of extent 1 and reductions that the body
doesn't use are gone; a read that is always in range has fill 0, and none leaves its tensor along an
axis of extent 1 if there is a longer one. The traversal's order is the order of the result's axes
and stays. Ties are broken by structure: by the digests of what is read.

Nothing here is a law of algebra that a rule could state (``rules/``); this is one name for one
thing.
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

# More orders than this of iterators that nothing distinguishes are not all tried: the form is
# then still correct, only perhaps not unique.
_MAX_ORDERS = 720

Args = TypeVarTuple("Args")
R = TypeVar("R")

Colour = Callable[[It], object]

# Off, scopes keep the names and orders that they were made with: what one name for one thing
# saves is measured so (EinNet's fingerprints, Fig. 19).
CANONICAL: Final = ContextVar("canonical", default=True)


def remembered(maxsize: int) -> Callable[[Callable[[*Args], R]], Callable[[*Args], R]]:
    """A cache for functions whose results hold scopes in canonical form, of so many results.

    Whether forms are made is part of what a result is kept under: without them it is another.
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
    """Clears the canonical forms and all that is remembered over them."""
    _FORMS.clear()
    _plain_key.cache_clear()
    for clear in _CACHES:
        clear()


def canonical(scope: Scope) -> Scope:
    """The canonical form of a scope (over the tensors that it reads, as they are).

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
    """The canonical form by which two scopes are compared: also where programs keep the names and
    orders that they were made with (``CANONICAL``), two scopes that differ in these are equal."""
    known = _FORMS.get(scope)
    if known is None:
        if len(_FORMS) >= _MAX_FORMS:
            _FORMS.clear()
        known = _FORMS[scope] = _canonical(scope)
        # Most forms are asked for theirs next: laws answer in canonical form, and wait for it.
        _FORMS[known] = known
    return known


# Scopes and their forms, so many at most.
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
    """The term with every scope in canonical form, from the inside out."""
    done: dict[Tensor, Tensor] = {}
    for term in topological([root]):
        image = over(term, done)
        done[term] = canonical(image) if isinstance(image, Scope) else image
    return done[root]


def sort_operands(scalar: Scalar) -> Scalar:
    """Operands of commutative nodes in the order of their structure; sums and products flat."""
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
    return isinstance(scalar, Prod | Sum) or (
        isinstance(scalar, Call) and scalar.fn in COMMUTATIVE
    )


def _without_idle(scope: Scope) -> Scope:
    """Iterators of extent 1 are 0; a reduction that the body doesn't use is carried out."""
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
    body = substitute(
        body, lambda it: Index(0, ((It(place.get(it.slot, it.slot), it.extent), 1),))
    )
    if factor != 1:
        body = product([Num(factor), body])
    result = Scope(scope.traversal, tuple(scope.extents[s] for s in kept), body, scope.reducer)
    return result if result.type == scope.type else scope


def _without_fill(leaf: Scalar) -> Scalar:
    """The leaf; a read that is always in range has fill 0."""
    if isinstance(leaf, Read) and leaf.fill and leaf.in_range():
        return Read(leaf.tensor, leaf.index)
    return leaf


def _without_units(leaf: Scalar) -> Scalar:
    """The leaf; a read that leaves its tensor along an axis of extent 1 leaves it along another.

    ``t[i, q]`` with q in [0, 1) or outside is ``t'[i + n*q]``, t' without the axis and n so large
    that i + n*q is outside for every q but 0. So what is read says where it is zero (an iterator
    of extent 1 couldn't), and scopes can be merged into such reads.
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
    """The digest that operands are ordered by: it sees iterators by their slots."""
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
    """A digest of the expression that sees iterators by colour and not the order of operands.

    ``done`` holds what is known for this colour.
    """
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
    """The kept iterators in an order that depends on the structure of the body only.

    For scopes that a derivation makes: the order of their axes is free, so it is chosen once and
    layouts are left to extraction.
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
    # What all factors share comes first, as the batch does in a library's product.
    return sorted(kept, key=lambda it: (-uses[it], repr(colours[it.slot]), it.slot))
