"""The least form of indices: ``i // 4 * 4 + i % 4`` -> ``i``; bodies with other indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod, applied
from eqsynth.ir.normal import canonical_form, remembered
from eqsynth.ir.scalar import Read, Scalar, Value, leaves, rewrite_leaves
from eqsynth.ir.tensor import Scope, Tensor


def expressions(index: Index) -> Iterator[Index]:
    """Yield the affine part of an index, then the affine parts inside of its operations.

    >>> i, k = Index.iterator(0, 4), Index.iterator(1, 3)
    >>> [str(e) for e in expressions((i - k + 1) // 2 + 3 * i)]
    ['3*i0', 'i0 - i1 + 1']
    """
    yield Index(index.const, tuple((a, c) for a, c in index.terms if isinstance(a, It)))
    for atom, _ in index.terms:
        if not isinstance(atom, It):
            yield from expressions(atom.value)


def moduli(index: Index) -> Iterator[FloorDiv | Mod]:
    """Every ``//`` and ``%`` of an index, from the outside in."""
    for atom, _ in index.terms:
        if isinstance(atom, FloorDiv | Mod):
            yield atom
        if not isinstance(atom, It):
            yield from moduli(atom.value)


def rebuilt(index: Index, affine: Callable[[Index], Index]) -> Index:
    """Return the index with each of its :func:`expressions` replaced by ``affine`` of it.

    Multiples of a divisor move out of ``//`` and ``%``, ``(d*q + r) // d = q + r // d``, and
    operations that their range decides are removed.
    """
    result = affine(next(expressions(index)))
    for atom, c in index.terms:
        if isinstance(atom, It):
            continue
        value = rebuilt(atom.value, affine)
        if isinstance(atom, Min | Max):
            result = result + applied(atom, value) * c
            continue
        d = atom.divisor
        value, taken = _unwrapped(value, d)
        whole = Index(value.const // d, tuple((a, x // d) for a, x in value.terms if x % d == 0))
        rest = value - whole * d
        low, high = rest.range()
        within = low >= 0 and high < d
        if isinstance(atom, FloorDiv):
            result = result + (whole if within else whole + rest // d) * c - taken * c
        else:
            result = result + (rest if within else rest % d) * c
    return _folded(result)


def _unwrapped(value: Index, d: int) -> tuple[Index, Index]:
    """Return ``value + d * taken``, in which no term is a remainder by d, and ``taken``.

    It replaces ``x % d`` by ``x - d * (x // d)``: so (i - i % d) // d becomes i // d, and
    (i % d + 1) // d becomes (i + 1) // d - i // d. A value already in [0, d) stays.
    """
    taken = Index(0)
    low, high = value.range()
    for atom, c in value.terms:
        if isinstance(atom, Mod) and atom.divisor == d and not (low >= 0 and high < d):
            value = value - Index(0, ((atom, c),)) + atom.value * c
            taken = taken + atom.value // d * c
    return value, taken


def _folded(index: Index) -> Index:
    """Fold ``x - d * (x // d)`` into ``x % d``, and ``x % d + d * (x // d % n)`` into
    ``x % (d * n)``, where the result has fewer terms."""
    for atom, c in index.terms:
        if isinstance(atom, FloorDiv) and c % atom.divisor == 0:
            x, m = atom.value, -(c // atom.divisor)
            folded = x % atom.divisor * m - x * m
        elif isinstance(atom, Mod) and (digit := _digit(atom.value)) and c % digit.divisor == 0:
            x, d, m = digit.value, digit.divisor, c // digit.divisor
            folded = x % (d * atom.divisor) * m - x % d * m
        else:
            continue
        shorter = index - Index(0, ((atom, c),)) + folded
        if len(shorter.terms) < len(index.terms):
            return _folded(shorter)
    return index


def _digit(value: Index) -> FloorDiv | None:
    """Return the atom ``x // d`` if the index is just this atom; otherwise None."""
    match value:
        case Index(const=0, terms=((FloorDiv() as atom, 1),)):
            return atom
    return None


@lru_cache(maxsize=1 << 14)
def least(index: Index) -> Index:
    """Return the index in its least form, as :func:`rebuilt` finds it.

    >>> i = Index.iterator(0, 12)
    >>> str(least(i // 4 * 4 + i % 4))
    'i0'
    """
    return rebuilt(index, lambda affine: affine)


def with_indices(body: Scalar, image: Callable[[Index], Index]) -> Scalar:
    """Return the body with each of its indices replaced by its image."""

    def leaf(part: Scalar) -> Scalar:
        if isinstance(part, Read):
            index = tuple(map(image, part.index))
            return part if index == part.index else Read(part.tensor, index, part.fill)
        return Value(image(part.index)) if isinstance(part, Value) else part

    return rewrite_leaves(body, leaf)


def substituted(body: Scalar, image: Mapping[It, Index]) -> Scalar:
    """Return the body with iterators replaced by their images, and its indices in least form."""

    def affine(expression: Index) -> Index:
        return expression.substitute(lambda it: image.get(it, Index.iterator(it.slot, it.extent)))

    return with_indices(body, lambda index: rebuilt(index, affine))


@remembered(maxsize=1 << 14)
def least_form(scope: Scope) -> Scope:
    """Return the scope in canonical form, with its indices in least form."""
    body = with_indices(scope.body, least)
    return canonical_form(Scope(scope.traversal, scope.reduction, body, scope.reducer))


def axes_at(scope: Scope, own: Sequence[int], tensor: Tensor) -> tuple[int, ...] | None:
    """The axes along which a scope reads a tensor at some of its own iterators; None if it doesn't,
    or if two reads differ in them.

    >>> from eqsynth.ir.scalar import Prod
    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> i, j = Index.iterator(0, 4), Index.iterator(1, 8)
    >>> x = Input("x", TensorType((8, 4), "float32"))
    >>> axes_at(Scope((4, 8), (), Prod((Read(x, (j, i)), Read(x, (j - 1, i))))), (0,), x)
    (1,)
    """
    found: set[tuple[int, ...]] = set()
    for leaf in leaves(scope.body):
        if isinstance(leaf, Read) and leaf.tensor == tensor:
            here = []
            for slot in own:
                extent = scope.traversal[slot]
                places = [
                    axis
                    for axis, index in enumerate(leaf.index)
                    if tensor.shape[axis] == extent and index == Index.iterator(slot, extent)
                ]
                if not places:
                    return None
                here.append(places[0])
            found.add(tuple(here))
    return found.pop() if len(found) == 1 else None


def is_whole(read: Read, scope: Scope) -> bool:
    """Whether the read is ``t[i, j, …]`` at the scope's traversal iterators, over all of ``t``."""
    own = tuple(Index.iterator(slot, extent) for slot, extent in enumerate(scope.traversal))
    return read.index == own and read.tensor.shape == scope.traversal
