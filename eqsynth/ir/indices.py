"""Indices in least form, and bodies with other indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod, applied
from eqsynth.ir.normal import canonical_form
from eqsynth.ir.scalar import Read, Scalar, Value, rewrite_leaves
from eqsynth.ir.tensor import Scope


def expressions(index: Index) -> Iterator[Index]:
    """The affine part of an index, and of what it takes ``//`` and ``%`` of, from the outside in.

    >>> i, k = Index.iterator(0, 4), Index.iterator(1, 3)
    >>> [str(e) for e in expressions((i - k + 1) // 2 + 3 * i)]
    ['3*i0', 'i0 - i1 + 1']
    """
    yield Index(index.const, tuple((a, c) for a, c in index.terms if isinstance(a, It)))
    for atom, _ in index.terms:
        if not isinstance(atom, It):
            yield from expressions(atom.value)


def rebuilt(index: Index, affine: Callable[[Index], Index]) -> Index:
    """The index with each of its :func:`expressions` replaced.

    What is a multiple of a divisor is taken out, so that no law sees more of ``//`` and ``%`` than
    is there: ``(d*q + r) // d = q + r // d``.
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
    """``value + d * taken`` and ``taken``, without remainders by d that other terms meet.

    ``x % d = x - d * (x // d)``: so (i - i % d) // d is i // d, and (i % d + 1) // d is
    (i + 1) // d - i // d.
    """
    taken = Index(0)
    low, high = value.range()
    for atom, c in value.terms:
        if isinstance(atom, Mod) and atom.divisor == d and not (low >= 0 and high < d):
            value = value - Index(0, ((atom, c),)) + atom.value * c
            taken = taken + atom.value // d * c
    return value, taken


def _folded(index: Index) -> Index:
    """The index with ``x - d * (x // d)`` as ``x % d``, and ``x % d + d * (x // d % n)`` as
    ``x % (d * n)``, where that is shorter."""
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
    """``x // d``, if the index is that."""
    match value:
        case Index(const=0, terms=((FloorDiv() as atom, 1),)):
            return atom
    return None


def least(index: Index) -> Index:
    """The index in the least form that :func:`rebuilt` finds.

    >>> i = Index.iterator(0, 12)
    >>> str(least(i // 4 * 4 + i % 4))
    'i0'
    """
    return rebuilt(index, lambda affine: affine)


def with_indices(body: Scalar, image: Callable[[Index], Index]) -> Scalar:
    """The body with each of its indices replaced."""

    def leaf(part: Scalar) -> Scalar:
        if isinstance(part, Read):
            return Read(part.tensor, tuple(map(image, part.index)), part.fill)
        return Value(image(part.index)) if isinstance(part, Value) else part

    return rewrite_leaves(body, leaf)


def substituted(body: Scalar, image: Mapping[It, Index]) -> Scalar:
    """The body with iterators replaced by their images, its indices in least form."""

    def affine(expression: Index) -> Index:
        return expression.substitute(lambda it: image.get(it, Index.iterator(it.slot, it.extent)))

    return with_indices(body, lambda index: rebuilt(index, affine))


def least_form(scope: Scope) -> Scope:
    """The canonical form, with indices in least form."""
    body = with_indices(scope.body, least)
    return canonical_form(Scope(scope.traversal, scope.reduction, body, scope.reducer))


def is_whole(read: Read, scope: Scope) -> bool:
    """Whether the read is at the scope's own traversal iterators, over the whole tensor."""
    own = tuple(Index.iterator(slot, extent) for slot, extent in enumerate(scope.traversal))
    return read.index == own and read.tensor.shape == scope.traversal
