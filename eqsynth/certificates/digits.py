"""Remove ``//`` and ``%`` from indices, so that they are sums of multiples of iterators.

    (9*i + k) // 9, k < 9      ->  i                                             ``simple``
    k // 9, k % 9, k < 4608    ->  k = 9*p + q, p < 512, q < 9:  p, q            ``to_split``

This module is written for certificates alone: it shares nothing with the laws of indices that a
search uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod, Operation, number_of


def simple(index: Index) -> Index:
    """Simplify the operations in an index whose value follows from ranges and multiples."""
    result = Index(index.const)
    for atom, c in index.terms:
        if isinstance(atom, It):
            result = result + Index.iterator(atom.slot, atom.extent) * c
        else:
            result = result + _operated(atom, simple(atom.value)) * c
    return result


def _operated(atom: Operation, value: Index) -> Index:
    low, high = value.range()
    bound = number_of(atom)
    if isinstance(atom, Min):
        return value if high <= bound else Index(bound) if low >= bound else value.minimum(bound)
    if isinstance(atom, Max):
        return value if low >= bound else Index(bound) if high <= bound else value.maximum(bound)
    if bound == 1:
        return value if isinstance(atom, FloorDiv) else Index(0)
    if isinstance(atom, Mod):
        # x % (d*n) % d = x % d
        opened = Index(value.const)
        for part, c in value.terms:
            within = isinstance(part, Mod) and part.divisor % bound == 0
            bare = Index(0, ((part, 1),))
            opened = opened + (part.value if isinstance(part, Mod) and within else bare) * c
        value = opened
    match value:
        case Index(const=0, terms=((FloorDiv(value=inner, divisor=d), 1),)) if isinstance(
            atom, FloorDiv
        ):
            return _operated(FloorDiv(inner, d * bound), inner)
    terms = tuple((a, c // bound) for a, c in value.terms if c % bound == 0)
    whole = Index(value.const // bound, terms)
    rest = value - whole * bound
    low, high = rest.range()
    if low // bound == high // bound:
        quotient = low // bound
        return whole + quotient if isinstance(atom, FloorDiv) else rest + -quotient * bound
    return whole + rest // bound if isinstance(atom, FloorDiv) else rest % bound


def to_split(indices: Iterable[Index]) -> tuple[It, int] | None:
    """The first ``(iterator, block)`` that has to be split, as ``block * p + q``, because ``//`` or
    ``%`` selects p or q; None if there is none."""
    for index in indices:
        for atom, _ in index.terms:
            if isinstance(atom, FloorDiv | Mod):
                found = to_split([atom.value]) or _digit(atom.value, atom.divisor)
                if found is not None:
                    return found
            elif isinstance(atom, Min | Max) and (found := to_split([atom.value])):
                return found
    return None


def _digit(value: Index, divisor: int) -> tuple[It, int] | None:
    for atom, c in value.terms:
        if isinstance(atom, It) and c and divisor % c == 0:
            block = divisor // abs(c)
            if 1 < block < atom.extent and atom.extent % block == 0:
                return atom, block
    return None
