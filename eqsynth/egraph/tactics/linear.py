"""Sums taken apart, and parts that don't depend on an iterator computed once.

    term_split     sum_y (f + g)       ->  {sum_y f} + {sum_y g}
    like_terms     2*f + 3*f           ->  5*f
    spread         f - (g + h)         ->  f - g - h
    fold_terms     f + c(j) + d(j)     ->  f + {L_j c + d}[j]         c, d constant
    quotient       L_h f(h // 2)       ->  L_h {L_u f(u)}[h // 2]
    invariants     f(i, j) * g(i)      ->  {L f}[i, j] * {L_i g}[i]   g a function
    multiply_out   sum_y (f - g)^2     ->  sum_y (f^2 - 2*f*g + g^2)

Not here: factoring and distributing products (``contraction.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsynth.calculus.close import Close, Part
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics.moving import reindexed, termwise
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.ir.index import Atom, Index, It
from eqsynth.ir.indices import with_indices
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    dtype_of,
    factors_of,
    iterators,
    leaves,
    product,
    terms_of,
    total,
)
from eqsynth.ir.scopes import (
    closed,
    reduction_iterators,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

# A sum of more terms than this is neither pulled apart nor multiplied out.
MAX_TERMS = 8


def term_split(scope: Scope) -> Path | None:
    """``L_x sum_y (f + g) = L_x ({L_x sum_y f}[x] + {L_x sum_y g}[x])``.

    Each term then has a reduction of its own to push inward.
    """
    terms = terms_of(scope.body)
    if not is_float(scope.dtype) or not 2 <= len(terms) <= MAX_TERMS:
        return None
    return path(scope, termwise(scope))


def like_terms(scope: Scope) -> Path | None:
    """``L_x c*f + d*f + g = L_x (c + d)*f + g``, c and d numbers of one sign: nothing cancels."""
    if not isinstance(scope.body, Sum) or not is_float(scope.dtype):
        return None
    numbers: dict[tuple[Scalar, bool], float] = {}
    for term in scope.body.terms:
        number = math.prod(f.value for f in factors_of(term) if isinstance(f, Num))
        rest = product([f for f in factors_of(term) if not isinstance(f, Num)])
        key = rest, number > 0
        numbers[key] = numbers.get(key, 0.0) + number
    if len(numbers) == len(scope.body.terms):
        return None
    collected = total([product([Num(n), rest]) for (rest, _), n in numbers.items()])
    return path(scope, Rearrange(collected))


def spread(scope: Scope) -> Path | None:
    """``L_x f + c*(g + h) = L_x f + c*g + c*h``, c a number, and like terms as one.

    None if no number multiplies a sum. Terms whose numbers add up to 0 fall away, and with them
    what their difference would have been rounded to.
    """
    if not isinstance(scope.body, Sum) or not is_float(scope.dtype):
        return None
    terms: list[Scalar] = []
    for term in scope.body.terms:
        factors = factors_of(term)
        sums = [factor for factor in factors if isinstance(factor, Sum)]
        others = [factor for factor in factors if not isinstance(factor, Sum)]
        if len(sums) == 1 and others and all(isinstance(factor, Num) for factor in others):
            terms += [product([*others, inner]) for inner in sums[0].terms]
        else:
            terms.append(term)
    if len(terms) == len(scope.body.terms):
        return None
    return path(scope, Rearrange(total(_collected(terms))))


def fold_terms(scope: Scope) -> Path | None:
    """``L_{i,j} f + c(j) + d(j) = L_{i,j} f + {L_j c + d}[j]``, c and d constant: computed once.

    All iterators of the folded terms occur in one of them, so the folded tensor is no larger.
    """
    terms = terms_of(scope.body)
    constants = [t for t in terms if is_constant(t)]
    for largest in constants:
        small = [is_constant(t) and iterators(t) <= iterators(largest) for t in terms]
        found = frozenset(n for n, fits in enumerate(small) if fits)
        if 1 < len(found) < len(terms):
            return path(scope, Close((Part(found),)))
    return None


def is_constant(term: Scalar) -> bool:
    """Whether a term reads tensors, and only constant ones."""
    found = [leaf for leaf in leaves(term) if isinstance(leaf, Read)]
    return bool(found) and all(leaf.tensor.constant for leaf in found)


def broadcasts_beyond(read: Read, inner: Scope) -> bool:
    """Whether a read leaves ``inner`` along an axis on which it is the same everywhere.

    ``L_{c,h} z[c]``, read at ``h + k - 1``: an image of one value a channel, with padding.
    """
    used = {it.slot for it in iterators(inner.body)}
    return any(
        axis not in used and not (index.range()[0] >= 0 and index.range()[1] < extent)
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
    )


def quotient(scope: Scope) -> Path | None:
    """``L_h f(h // 2) = L_h {L_u f(u)}[h // 2]``: repeated elements are computed once.

    It applies to traversal iterators that occur in the body only under one ``//`` or ``%``, which
    takes fewer values than the iterator.
    """
    images: dict[Atom, Index] = {}
    at: dict[int, Index] = {}
    for it in traversal_iterators(scope):
        atom = _only_atom(scope.body, it)
        if atom is None:
            continue
        whole = Index(0, ((atom, 1),))
        low, high = whole.range()
        if high - low + 1 >= it.extent:
            continue
        images[atom] = Index.iterator(it.slot, high - low + 1) + low
        at[it.slot] = whole - low
    moves = not scope.reduction and isinstance(scope.body, Read | Num | Value)
    if not images or moves:
        return None

    def image(index: Index) -> Index:
        result = Index(index.const)
        for atom, step in index.terms:
            part = images.get(atom)
            result = result + (Index(0, ((atom, 1),)) if part is None else part) * step
        return result

    sizes = {slot: index.range()[1] + 1 for slot, index in at.items()}
    kept = [It(it.slot, sizes.get(it.slot, it.extent)) for it in traversal_iterators(scope)]
    inner = scope_over(
        kept, reduction_iterators(scope), with_indices(scope.body, image), scope.reducer
    )
    index = tuple(
        at.get(it.slot, Index.iterator(it.slot, it.extent)) for it in traversal_iterators(scope)
    )
    return path(scope, reindexed(scope, inner, index))


def _only_atom(body: Scalar, it: It) -> Atom | None:
    """The one ``//`` or ``%`` under which ``it`` occurs in the body, without other iterators."""
    found: set[Atom | None] = set()
    for leaf in leaves(body):
        indices: Sequence[Index] = ()
        if isinstance(leaf, Read):
            indices = leaf.index
        elif isinstance(leaf, Value):
            indices = (leaf.index,)
        for index in indices:
            for atom, _ in index.terms:
                if isinstance(atom, It):
                    found |= {None} if atom == it else set()
                elif it in atom.value.iterators():
                    found.add(atom if set(atom.value.iterators()) == {it} else None)
    return next(iter(found)) if len(found) == 1 else None


def invariants(scope: Scope, shifts: bool = False) -> Path | None:
    """``L_{i,j} f(i, j) * g(i) = L_{i,j} {L f}[i, j] * {L_i g(i)}[i]``, g a function.

    ``f / g`` becomes ``f * (1 / g)`` if g is a number or broadcasts. The result is a product of
    reads, so a contraction that reads it can take g out of its sum.

    Args:
        shifts: whether ``(f + c) / d`` becomes ``(f + c) * {1/d}`` and not ``{f + c} * {1/d}`` for
            constant d. The rule "scale-of-shifted" then takes it apart.
    """
    if not is_float(scope.dtype) or scope.reducer != "sum":
        return None
    everything = set(it for it in iterators(scope.body) if it.extent > 1)
    body = _split(scope.body, everything, shifts)
    if body == scope.body:
        return None
    return path(scope, Same(canonical(Scope(scope.traversal, scope.reduction, body))))


def _split(body: Scalar, everything: set[It], shifts: bool) -> Scalar:
    if isinstance(body, Sum):
        return total([_split(term, everything, shifts) for term in body.terms])
    factors: list[Scalar] = []
    broadcast: list[Scalar] = []
    for factor in factors_of(body):
        rest = factor
        if isinstance(factor, Call) and factor.fn == "div" and _is_floating(factor):
            over, under = factor.args
            if isinstance(under, Num) and under.value != 0 and math.isfinite(1 / under.value):
                rest = product([Num(1 / under.value), over])
            elif is_constant(under) or _broadcasts(under, everything):
                broadcast.append(_closed(Call("reciprocal", (under,))))
                rest = over
        for part in factors_of(rest):
            if isinstance(part, Call) and _is_floating(part) and _broadcasts(part, everything):
                broadcast.append(_closed(part))
            else:
                factors.append(part)
    if broadcast:
        shifted = shifts and all(map(is_constant, broadcast))
        open_ = [
            f
            for f in factors
            if not isinstance(f, Read | Num) and not (shifted and isinstance(f, Sum))
        ]
        if open_ and all(dtype_of(f) is not None for f in open_):
            factors = [f for f in factors if f not in open_]
            factors.append(_closed(product(open_)))
    return product([*factors, *broadcast])


def _closed(part: Scalar) -> Read:
    return closed(part, iterators(part), "sum", ())


def _is_floating(part: Scalar) -> bool:
    """Whether a term has a float dtype and reads that dtype only: integers would change theirs."""
    dtype = dtype_of(part)
    return (
        dtype is not None
        and is_float(dtype)
        and all(dtype_of(leaf) in (None, dtype) for leaf in leaves(part))
    )


def _broadcasts(part: Scalar, everything: set[It]) -> bool:
    """Whether ``part`` lacks an iterator of the body, and reads a tensor that isn't constant."""
    used = {it for it in iterators(part) if it.extent > 1}
    reads = [leaf for leaf in leaves(part) if isinstance(leaf, Read)]
    return used < everything and any(not read.tensor.constant for read in reads)


def multiply_out(scope: Scope) -> Path | None:
    """``sum_y (f - g)^2 = sum_y (f^2 - 2 f g + g^2)``: products of sums as sums of products.

    Exact over the reals; in floats digits are lost if f and g are close to each other.
    """
    terms = _expanded(scope.body) if scope.reducer == "sum" and scope.reduction else None
    if terms is None or not is_float(scope.dtype) or not 2 <= len(terms) <= MAX_TERMS:
        return None
    result = path(scope, Rearrange(total(terms)))
    return result if result and result.scope != scope else None


def _expanded(body: Scalar) -> list[Scalar] | None:
    """The terms of a body that is a polynomial in reads; None if it isn't or has too many."""
    match body:
        case Read() | Num():
            return [body]
        case Call(fn="pow", args=(base, Num(value=power))) if power in (2, 3, 4):
            return _expanded(Prod((base,) * int(power)))
        case Sum():
            found: list[Scalar] = []
            for term in body.terms:
                part = _expanded(term)
                if part is None:
                    return None
                found += part
            return _collected(found)
        case Prod():
            result: list[Scalar] = [Num(1)]
            for factor in body.factors:
                part = _expanded(factor)
                if part is None or len(result) * len(part) > MAX_TERMS**2:
                    return None
                result = _collected([product([a, b]) for a in result for b in part])
            return result
    return None


def _collected(terms: Sequence[Scalar]) -> list[Scalar]:
    """Collect equal terms: ``f g + g f`` becomes ``2 f g``."""
    numbers: dict[tuple[bytes, ...], float] = {}
    rest: dict[tuple[bytes, ...], list[Scalar]] = {}
    for term in terms:
        factors = factors_of(term)
        others = sorted((f for f in factors if not isinstance(f, Num)), key=lambda f: f.digest)
        key = tuple(f.digest for f in others)
        number = math.prod(f.value for f in factors if isinstance(f, Num))
        numbers[key] = numbers.get(key, 0.0) + number
        rest[key] = others
    return [product([Num(numbers[key]), *others]) for key, others in rest.items() if numbers[key]]
