"""Answers to the e-graph's requests for the algebra of contractions.

Each function decides whether the scope of a request is worth an answer, and chooses members of the
e-classes that the scope reads. Not here: the derivations themselves, functions of one scope
(``contraction.py``, ``common_factor.py``, ``linear.py``, ``selection.py``, ``splitting.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.restrict import Mask, Reach, guarded
from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics import (
    contraction,
    linear,
    maps,
    masks,
    merging,
    ordering,
    selection,
    splitting,
)
from eqsynth.egraph.tactics.common_factor import common_factor
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import (
    Later,
    flat,
    flat_or_tight,
    inlinable,
    is_made_of_smaller,
    normalized,
    number_of,
    products_of,
    reads_a_sum,
    settled,
    some,
    tight_products_of,
    underived,
    without_constants,
)
from eqsynth.egraph.view import View
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Call,
    Num,
    Read,
    Scalar,
    Sum,
    composites,
    factors_of,
    product,
    reads,
    substitute,
    terms_of,
)
from eqsynth.ir.scopes import reduction_iterators
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight

# An e-class with more scopes than this gets no more folded sums: each way of fusing has
# its own.
MAX_FOLDED = 8
# At most so many sums are inlined in one sum.
MAX_TERMS = 64


def factor(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return list(contraction.factor(flat(view, row)))


def fold_constants(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    if without_constants(view, scope) is not None:
        raise Later
    folded = contraction.fold_constants(scope)
    return [] if folded is None else [folded]


def maps_of(view: View, ref: ClassRef) -> list[Scope]:
    """The scopes of an e-class without a reduction that don't read the e-class itself.

    A scope that reads its own e-class could be inlined for ever.
    """
    return [
        scope
        for scope in view.scopes(ref)
        if not scope.reduction and all(read.tensor != ref for read in reads(scope.body))
    ]


def distribute(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = flat_or_tight(view, row)
    for factor in factors_of(scope.body):
        if not isinstance(factor, Read) or not isinstance(factor.tensor, ClassRef):
            continue
        if factor.tensor.constant and scope.constant:
            continue  # it is computed once
        others = {read.tensor for read in reads(scope.body)} - {factor.tensor}
        if normalized(view, factor.tensor) and not all(other.constant for other in others):
            continue  # a LayerNorm's scale and shift are distributed to weights only
        # The sum with the most terms first: it is the one in which everything is fused.
        inners = sorted(maps_of(view, factor.tensor), key=lambda s: -len(terms_of(s.body)))
        for inner in inners:
            parts = contraction.distribute(
                scope, factor, inner, partial(_inlined, view), partial(_is_of_rows, view),
                partial(_broadcasts, view), partial(_constant_sums, view), partial(number_of, view),
            )  # fmt: skip
            if parts is not None:
                return [parts]
    raise Later


def _constant_sums(view: View, read: Read) -> list[Scope]:
    return maps_of(view, _class(read)) if read.tensor.constant else []


def broadcast_beyond(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = flat(view, row)
    for read in factors_of(scope.body):
        if isinstance(read, Read) and not read.in_range() and not read.tensor.constant:
            for inner in maps_of(view, _class(read)):
                if linear.broadcasts_beyond(read, inner):
                    if answer := path(scope, Inline(read, inner, bounded=True)):
                        return [answer]
    raise Later


def _broadcasts(view: View, terms: Sequence[Scalar]) -> bool:
    """Whether a term reads a tensor outside of it, along an axis on which it is the same."""
    return any(
        linear.broadcasts_beyond(factor, inner)
        for term in terms
        for factor in factors_of(term)
        if isinstance(factor, Read) and not factor.tensor.constant
        for inner in maps_of(view, _class(factor))
    )


def _is_of_rows(view: View, part: Scalar) -> bool:
    """Whether a product is worth computing for the rows of a table, of which it reads picked ones.

    It is so if the table and all other factors are constant, or if rows are picked often."""
    factors = [factor for factor in factors_of(part) if isinstance(factor, Read)]
    for factor in factors:
        others = [other for other in factors if other is not factor]
        constant = all(other.tensor.constant for other in others)
        for op in view.operators(_class(factor)):
            if op.name == "Embedding":
                if (op.args[0].constant and constant) or selection.picks_often(op):
                    return True
    return False


def _inlined(view: View, scope: Scope) -> Iterator[Scope]:
    """A product with its reads of products inlined, one more each time. The number is bounded,
    since views may lead back to what they view."""
    for _ in range(ordering.MAX_ORDERED):
        found = inlinable(view, scope)
        if found is None:
            return
        scope = found.scope
        yield scope


def expression_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Split by the operand and the sum equal to it whose parts have the fewest points."""
    scope = flat(view, row)
    found: list[tuple[int, Same]] = []
    for read in factors_of(scope.body):
        if not isinstance(read, Read) or not isinstance(read.tensor, ClassRef):
            continue
        for inner in sorted(maps_of(view, read.tensor), key=lambda s: -len(terms_of(s.body))):
            used: dict[Tensor, Scope] = {read.tensor: inner}
            parts = splitting.expression_split(scope, read, inner, _pieces(view, used))
            if parts is not None:
                found.append((splitting.points(parts), Same(parts, tuple(used.items()))))
    ways = (path(scope, step) for _, step in sorted(found, key=lambda one: one[0]))
    if answer := next(filter(None, ways), None):
        return [answer]
    raise Later


def _pieces(view: View, used: dict[Tensor, Scope]) -> splitting.Piece:
    """Return a function that maps a read of a sum to the one piece of it that is read.

    The members of e-classes that this takes are added to ``used``.
    """

    def piece_of(read: Read) -> Scalar | None:
        ref = read.tensor
        for inner in maps_of(view, ref) if isinstance(ref, ClassRef) else ():
            found = splitting.piece(read, inner) if used.get(ref, inner) == inner else None
            if found is not None:
                used[ref] = inner
                return found
        return None

    return piece_of


def tap_merge(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    if merged := splitting.tap_merge(scope, lambda read: products_of(view, _class(read))):
        return [merged]
    raise Later


def _class(read: Read) -> ClassRef:
    assert isinstance(read.tensor, ClassRef)
    return read.tensor


def like_terms(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return some(linear.like_terms(underived(view, row)))


def reaches(scope: Scope, ref: ClassRef, members: Mapping[Tensor, Tensor]) -> bool:
    """Whether ``scope`` is computed from ``ref``, by way of the scopes in ``members``."""
    seen: set[Tensor] = set()
    stack = [read.tensor for read in reads(scope.body)]
    while stack:
        tensor = stack.pop()
        if tensor == ref:
            return True
        inner = members.get(tensor)
        if tensor not in seen and isinstance(inner, Scope):
            stack += [read.tensor for read in reads(inner.body)]
        seen.add(tensor)
    return False


def common_factors(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = settled(view, row)
    opened = opened_sum(view, scope) if scope else None
    if scope is None or (opened and scope not in view.derived):
        raise Later  # the sum in which all is inlined is asked about, once fusion has made it
    start = opened or Path(scope)

    # A sum that distribution made must not be factored back to the product it was made from.
    known = products_of(view, row[0]) if scope in view.derived else []
    before = {read.tensor for inner in known for read in reads(inner.body)}

    def is_factor(read: Read) -> bool:
        # A tensor of ones only marks where a window lies; taking it out saves nothing.
        return read.tensor not in before and number_of(view, read.tensor) is None

    steps = common_factor(
        start.scope, lambda read: tight_products_of(view, _class(read)), is_factor
    )
    return [answer for step in steps if (answer := start.then(step))]


def opened_sum(view: View, scope: Scope) -> Path | None:
    """The sum with all of its terms that are sums inlined, repeatedly; None if there are none.

    ``{a + {b + c}}`` becomes ``a + b + c``. Inlining everything gives one answer for a chain of
    additions, where inlining any part of it would give many.
    """
    members: dict[Tensor, Tensor] = {}
    opened = Path(scope)
    while len(members) < MAX_TERMS:
        step = _open_term(view, opened.scope, members)
        further = opened.then(step) if step else None
        if step is None or further is None:
            break
        opened, members[step.read.tensor] = further, step.inner
    return opened if members else None


def _open_term(view: View, scope: Scope, members: Mapping[Tensor, Tensor]) -> Inline | None:
    for term in terms_of(scope.body) if isinstance(scope.body, Sum) else ():
        others = [f for f in factors_of(term) if not isinstance(f, Num)]
        read = others[0] if len(others) == 1 else None
        if (
            not isinstance(read, Read)
            or not isinstance(read.tensor, ClassRef)
            or read.tensor.constant
            or normalized(view, read.tensor)
        ):
            continue
        sums = [
            inner
            for inner in maps_of(view, read.tensor)
            if isinstance(inner.body, Sum)
            and inner not in view.derived
            and canonical(inner) == inner
            and without_constants(view, inner) is None
            # This would not end: a concatenation is the sum of its pieces, each a slice of it.
            and not reaches(inner, read.tensor, members)
        ]
        for inner in sorted(sums, key=lambda s: -len(terms_of(s.body))):
            merged = merging.merge(scope, read, inner, adds_rows(view, inner))
            if merged is not None and merged != scope:
                return Inline(read, inner)
    return None


def adds_rows(view: View, inner: Scope) -> bool:
    """Whether a scope adds rows that are picked by data. In ``cat(x[i], x[j] - x[i])`` the
    difference is inlined, so that a product with it is one with x."""
    return all(
        any(op.name == "Embedding" for op in view.operators(_class(read)))
        for read in reads(inner.body)
    )


def _with_maps(view: View, scope: Scope) -> Iterable[Path]:
    """The scope itself, and, if it is a sum of one read, the scope with a map inlined."""
    yield Path(scope)
    found = list(reads(scope.body))
    if len(found) == 1 and conditions.is_product(scope) and isinstance(found[0].tensor, ClassRef):
        read, ref = found[0], found[0].tensor
        for inner in maps_of(view, ref):
            if conditions.is_product(inner) or canonical(inner) != inner:
                continue
            if inner not in view.derived:
                if merging.merge(scope, read, inner) is not None:
                    yield from some(path(scope, Inline(read, inner)))


def _first(view: View, scope: Scope, tactic: Callable[[Scope], Path | None]) -> Iterable[Path]:
    for form in _with_maps(view, scope):
        answer = form.along(tactic)
        if answer is not None:
            return [answer]
    raise Later


def term_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return _first(view, underived(view, row), linear.term_split)


def fold_terms(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Fold the constant terms of the sum, also with those of a derived sum that it reads.

    A derivation makes such a sum if, for example, it moves a bias through a weight.
    """
    scope = underived(view, row)
    forms = [Path(scope)]
    if len(view.scopes(row[0])) > MAX_FOLDED:
        return []
    if any(map(linear.is_constant, terms_of(scope.body))):
        for read in terms_of(scope.body):
            if isinstance(read, Read) and isinstance(read.tensor, ClassRef):
                for inner in maps_of(view, read.tensor):
                    # A sum that isn't derived is fused by "expression-fusion" anyway.
                    constant = map(linear.is_constant, terms_of(inner.body))
                    if inner in view.derived and any(constant):
                        if merging.merge(scope, read, inner):
                            forms += some(path(scope, Inline(read, inner)))
    found = [folded for form in forms if (folded := form.along(linear.fold_terms))]
    if not found:
        raise Later
    return found


def quotient(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    if conditions.is_product(scope):
        scope = flat(view, row)
    return some(linear.quotient(scope))


def invariants(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    if without_constants(view, scope) is not None:
        return []  # the scope with the numbers is asked about
    if scope.constant and not _is_scaled_quotient(view, scope):
        return []  # it is computed once
    return some(linear.invariants(scope, shifts=reads_a_sum(view, scope)))


def divided(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """``L_{i,j} f(i, j) * {1 / g(i)}[i] = L_{i,j} f(i, j) / g(i)``, where a law has let the factor
    pass out of a sum. 1 / g is infinite where g is less than 2.9e-39; f / g needn't be."""
    scope = settled(view, row)
    if scope is None:
        raise Later
    factors = factors_of(scope.body)
    for factor in factors:
        if isinstance(factor, Read) and isinstance(factor.tensor, ClassRef):
            for inner in maps_of(view, factor.tensor):
                match inner.body:
                    case Call(fn="reciprocal", args=(under,)) if not inner.constant:
                        below = substitute(under, partial(_place_of, factor))
                        over = product([f for f in factors if f is not factor])
                        quotient = Rearrange(Call("div", (over, below)))
                        return some(path(scope, Inline(factor, inner), quotient))
    raise Later


def _place_of(read: Read, it: It) -> Index:
    return read.index[it.slot]


def _is_scaled_quotient(view: View, scope: Scope) -> bool:
    """Whether a constant is another one, made of smaller tensors, by a number or a smaller tensor:
    ``outer(g, g) / 36``, ``k / sum(k)``, ``tril(ones) / rows`` of means over all rows so far."""
    match scope.body:
        case Call(fn="div", args=(over, under)):
            smaller = all(read.tensor.type.size < math.prod(scope.extents) for read in reads(under))
            made = [is_made_of_smaller(view, read.tensor) for read in reads(over)]
            return smaller and not scope.reduction and any(made)
    return False


def multiply_out(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    opened = _opened(view, scope)
    answer = opened and opened.along(linear.multiply_out)
    if answer is not None:
        return [answer]
    return _first(view, scope, linear.multiply_out)


def _opened(view: View, scope: Scope) -> Path | None:
    """A product of reads with up to two sums inlined for their reads, such as a square."""
    opened: Path | None = Path(scope) if conditions.is_product(scope) else None
    for _ in range(2):
        step = _open_one(view, opened.scope) if opened else None
        opened = opened.then(step) if opened and step else None
    return opened


def _open_one(view: View, scope: Scope) -> Inline | None:
    for read in reads(scope.body):
        ref = read.tensor
        assert isinstance(ref, ClassRef)
        for inner in maps_of(view, ref):
            if isinstance(inner.body, Sum):
                if merging.merge(scope, read, inner) is not None:
                    return Inline(read, inner)
    return None


def read_constants(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return _with_numbers(view, underived(view, row))


def derived_constants(view: View, row: Sequence[Any]) -> Iterable[Path]:
    if (scope := settled(view, row)) is None or scope not in view.derived:
        raise Later
    return _with_numbers(view, scope)


def _with_numbers(view: View, scope: Scope) -> Iterable[Path]:
    known = without_constants(view, scope)
    if known is None and any(read.tensor.constant for read in reads(scope.body)):
        raise Later  # a constant that is computed may still turn out to be one number
    return some(known)


def extremum(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return some(maps.extremum(underived(view, row)))


def restrict(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """A reduction of masked weights, or of their softmax, over the positions that the mask shows.

    The scope needn't be flat: the weights may have been inlined before the mask's values are known.
    """
    if (scope := settled(view, row)) is None:
        raise Later
    if not conditions.is_product(scope) and not isinstance(scope.body, Read):
        raise Later
    for weights in dict.fromkeys(reads(scope.body)):
        for softmax, axis, scores, mask in _masked(view, scope, weights):
            found = masks.restricted(scope, weights, softmax, axis, scores, mask)
            if found is not None:
                return [found]
    raise Later


def hide(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    """A softmax with a mask of what comes later as one condition."""
    e, argument, axis = row
    if view.eclass(e) in view.instantiated or not 2 <= len(argument.shape) == axis + 1:
        return []
    for scores in maps_of(view, argument):
        for mask in _masks(view, scores, lowest=True):
            found = masks.causal(Op("Softmax", (argument,), (axis,)), scores, mask)
            if found is not None:
                return [found]
    raise Later


def _masked(
    view: View, scope: Scope, weights: Read
) -> Iterator[tuple[Op | None, int, Scope, Mask]]:
    """The softmax that the weights are, None if they are a map; its axis, scores and mask."""
    for softmax in (op for op in view.operators(_class(weights)) if op.name == "Softmax"):
        argument, axis = softmax.args[0], softmax.attrs[0]
        assert isinstance(argument, ClassRef) and isinstance(axis, int)
        for scores in maps_of(view, argument):
            for mask in _masks(view, scores, lowest=True):
                yield softmax, axis, scores, mask
    summed = reduction_iterators(scope)
    axes = [axis for axis, index in enumerate(weights.index) if index.bare() in summed]
    # The largest body first: it is the one in which everything is fused.
    computed = sorted(
        maps_of(view, _class(weights)), key=lambda s: -sum(1 for _ in composites(s.body))
    )
    for scores in computed if axes else ():
        for mask in _masks(view, scores, REDUCERS[scope.reducer]):
            yield from ((None, axis, scores, mask) for axis in axes)


def reach(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """A map without its guard against a maximum of -inf, if the mask hides no row completely."""
    scope = underived(view, row)
    for guard in composites(scope.body):
        asked = guarded(guard)
        if not isinstance(guard, Call):
            continue
        for peak in view.scopes(_class(asked)) if asked else ():
            for mask in _masks(view, peak):
                found = path(scope, Reach(guard, peak, mask))
                if found is not None:
                    return [found]
    raise Later


def _masks(
    view: View, scope: Scope, hidden: float = -math.inf, lowest: bool = False
) -> Iterator[Mask]:
    """The masks that make a scope ``hidden``, or the lowest number if ``lowest``: its reads of
    constants whose values are known."""
    for read in dict.fromkeys(reads(scope.body)):
        for holds in view.scopes(_class(read)) if read.tensor.constant else ():
            yield from masks.masks_of(scope, read, holds, hidden, lowest)


def part(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = settled(view, row)
    if scope is None or (conditions.is_product(scope) and inlinable(view, scope) is not None):
        raise Later
    for read in dict.fromkeys(reads(scope.body)):
        assert isinstance(read.tensor, ClassRef)
        if read.tensor.constant or read.tensor == row[0]:
            continue
        if not _is_computed(view, scope, read) and not _is_beside_a_part(view, scope, read):
            continue
        smaller = maps.part(scope, read)
        if smaller is not None:
            return [smaller]
    raise Later


def _is_beside_a_part(view: View, scope: Scope, read: Read) -> bool:
    """Whether a map reads an input beside a part of a computed tensor.

    In ``x[0, j] + tanh(y[0, j])`` only row 0 of ``tanh(y)`` is computed. ``x`` may be computed by
    another segment of the program: if it is read as a part too, that segment need only compute row
    0 of it.
    """
    assert isinstance(read.tensor, ClassRef)
    if conditions.is_product(scope) or not any(
        isinstance(member, Input) for member in view.members(read.tensor)
    ):
        return False
    return any(
        isinstance(inner.body, Read) and inner.body.tensor.type.size > other.tensor.type.size
        for other in reads(scope.body)
        if other.tensor != read.tensor and isinstance(other.tensor, ClassRef)
        for inner in view.scopes(other.tensor)
        if isinstance(inner, Scope)
    )


def _is_computed(view: View, scope: Scope, read: Read) -> bool:
    """Whether the tensor of ``read`` is computed, and not by a map that fusion would inline."""
    assert isinstance(read.tensor, ClassRef)
    if any(isinstance(member, Input | Weight) for member in view.members(read.tensor)):
        return False
    found = [s for s in view.scopes(read.tensor) if s not in view.derived]
    if conditions.is_product(scope):
        return any(not conditions.is_view(s) for s in found)
    return any(s.reduction for s in found) and all(s.reduction for s in found)
