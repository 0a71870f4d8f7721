"""Restricting: what a known mask hides isn't computed, nor summed over.

    L_x sum_j softmax(s)[x, j] * g(x, j)
      =  L_x sum_w softmax({L_{x,w} s[x, m(x) + d*w]})[x, w] * g(x, m(x) + d*w)

if a mask makes s[x, j] -inf at each j that isn't m(x) + d*w for some w. The mask reads no tensor,
so its values are known. Where m(x) + d*w is no value of j, the new scores are -inf too. Attention
in a window of 129 of 2,048 keys then computes 129. A row with no key is NaN on both sides. The
lowest finite number of the dtype hides like -inf (``torch.finfo(dtype).min``), if each row shows a
finite score. Scores are taken to be larger than that number, as tensors are taken to be finite: any
other float32 is larger by 2e31 or more, and exp of minus that is 0. Without the softmax the same
holds where the mask makes s[x, j] 0, and for ``max_j s[x, j]`` where it makes s[x, j] -inf.

    L_x f(where({max_j s[x, j]}[x] = -inf, a, b))  =  L_x f(b)                        ``reach``

if the mask shows at least one j for each x, so that the guarded case, a row of NaN, can't occur.

    softmax(s)  =  softmax(where(c, t, -inf))                                         ``hide``

if c is true at just those places where the mask shows s, and s is t there, so that masks that are
written in many ways are one condition. Scores that the lowest number hides are -inf on the right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import numpy as np

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_product
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.ir.index import Index, It
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.normal import canonical
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
    composites,
    dtype_of,
    factors_of,
    iterators,
    leaves,
    product,
    reads,
    rewrite_leaves,
    substitute,
    terms_of,
    total,
)
from eqsynth.ir.scopes import (
    bare,
    closed,
    read_all,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.ir.types import MOST, is_float

_require = partial(checking.require, law="restrict")

LARGEST: Final = 1 << 24
"""The most elements of a mask to evaluate: 4,096 queries by 4,096 keys take half a second."""

FAR: Final = 1e30
"""A number of at least this size counts as infinite beside scores."""

LOWEST: Final = {dtype: -most for dtype, most in MOST.items() if most > FAR}
"""The lowest finite number of each dtype, except float16, in which scores come near to it."""


@dataclass(frozen=True)
class Mask:
    """A read in a scope that makes the scope -inf where the read has one certain value.

    Attributes:
        read: a read of the scope's body.
        holds: the scope that the mask's tensor equals (a hypothesis); it reads no tensor.
        hides: the mask's value at hidden places.
    """

    read: Read
    holds: Scope
    hides: float


@dataclass(frozen=True)
class Restrict:
    """The attention weights, their scores, and the places ``start + step * w``, w < ``count``.

    Attributes:
        weights: the factor of the body that reads the weights; its powers go with it.
        softmax: the operator that the tensor of the weights equals (a hypothesis); None if the
            weights are the scores.
        axis: the axis of the weights along which the places lie.
        scores: the scope that the softmax's argument equals (a hypothesis).
        start: m(x), over the iterators of the scores.
        step: d, the distance of two places.
        count: the number of places w.
    """

    weights: Read
    softmax: Op | None
    axis: int
    scores: Scope
    mask: Mask
    start: Index
    step: int
    count: int


@dataclass(frozen=True)
class Reach:
    """A test of a maximum for -inf, and the mask that shows that the maximum isn't -inf.

    Attributes:
        guard: ``where(m[x] = -inf, a, b)``.
        peak: the scope that m equals (a hypothesis), the maximum of the masked scores.
        mask: the mask in the peak's body. All its elements that show a place have one value.
    """

    guard: Call
    peak: Scope
    mask: Mask


@dataclass(frozen=True)
class Hide:
    """The scores of a softmax, and a condition that is true where the mask shows one.

    Attributes:
        scores: the scope that the softmax's argument equals (a hypothesis).
        shows: a term of bools without leaves, along the last axes of the scores.
    """

    scores: Scope
    mask: Mask
    shows: Tensor


def restrict(scope: Scope, given: Restrict) -> Scope:
    """``L_x sum_j softmax(s)[x, j] g(j) = L_x sum_w softmax({L s[x, m(x) + d w]})[x, w] g(...)``.

    Raises:
        LawError: ``product``: the scope isn't a sum of products of finite factors, nor a maximum,
            minimum or product of the scores alone; ``softmax``: the weights aren't a factor, or
            aren't these scores or a softmax of them along an axis that the scope sums over;
            ``mask``: the mask isn't read in range with the place as the whole index of one axis,
            or it reads a tensor itself; ``rows``, ``finite``: the mask hides by the lowest number,
            and a row shows nothing or may show something infinite; ``hides``: the scores aren't
            known to be -inf (without a softmax: what the reduction leaves out) at the places that
            the mask hides; ``places``: the mask shows a place that isn't ``start + step * w``, or
            ``step`` or ``count`` isn't positive.
    """
    read, softmax, scores, axis = given.weights, given.softmax, given.scores, given.axis
    factors = factors_of(scope.body)
    rest = [factor for factor in factors if factor != read]
    alone = softmax is None and scope.body == read
    _require(is_product(scope) or alone, condition="product", what="no product of finite factors")
    fits = read in factors and scores.type == read.tensor.type and axis in range(len(scores.shape))
    if softmax is not None:
        fits = fits and (softmax.name, softmax.attrs) == ("Softmax", (axis,))
        fits = fits and softmax.type == softmax.args[0].type == scores.type
    _require(fits, condition="softmax", what="no softmax of these scores is a factor")
    key = read.index[axis].bare()
    others = {it for n, index in enumerate(read.index) if n != axis for it in index.iterators()}
    summed = key in set(reduction_iterators(scope)) - others and read.in_range()
    _require(summed and not scores.reduction, condition="softmax",
             what="the sum isn't over the weights of a map")  # fmt: skip
    assert key is not None
    own = traversal_iterators(scores)
    place = own[axis]
    _require(key.extent == place.extent, condition="softmax", what="a part of the weights is read")
    _is_known(scores, given.mask)
    mask = given.mask.read
    axes = zip(mask.index, mask.tensor.shape, strict=True)
    fits = any(index.bare() == place and extent == place.extent for index, extent in axes)
    _require(fits, condition="mask", what="the mask isn't read at the place of the weights")
    if softmax is not None and is_lowest(scores, mask, given.mask.hides):
        _shows(scores, given.mask, [place])
    else:
        hidden = REDUCERS[scope.reducer if softmax is None else "max"]
        known = known_where(scores.body, mask, given.mask.hides)
        _require(known == hidden, condition="hides", what=f"the scores aren't {hidden} there")
    _require(given.step > 0 and given.count > 0 and place not in given.start.iterators()
             and set(given.start.iterators()) <= set(own),
             condition="places", what="the places have no order")  # fmt: skip
    _require(_counts_all(given, place), condition="places", what="a place is left out")
    nth = It(len(scores.extents), given.count)
    inner = _inner(scores, given, place, nth)
    number = It(len(scope.extents), given.count)
    index = tuple(bare(number) if n == axis else at for n, at in enumerate(read.index))
    start = given.start.substitute(lambda it: read.index[it.slot])

    def at_place(it: It) -> Index:
        return start + bare(number) * given.step if it == key else bare(it)

    shown = inner if softmax is None else Op("Softmax", (inner,), softmax.attrs)
    powers = [Read(shown, index)] * (len(factors) - len(rest))
    body = product([*powers, *(substitute(factor, at_place) for factor in rest)])
    reduced = [number if it == key else it for it in reduction_iterators(scope)]
    return scope_over(traversal_iterators(scope), reduced, body, scope.reducer)


def _inner(scores: Scope, given: Restrict, place: It, nth: It) -> Scope:
    """Return the scores at ``start + step * nth``, traversed over ``nth`` in place of ``place``."""
    own = [nth if it == place else it for it in traversal_iterators(scores)]
    at = given.start + bare(nth) * given.step
    mask = given.mask.read

    def moved(leaf: Scalar) -> Scalar:
        there = substitute(leaf, lambda it: at if it == place else bare(it))
        if leaf != mask:
            return there
        # Outside of the mask the read gives `hides`; as a scope of its own it is a small constant.
        assert isinstance(there, Read)
        hidden = Read(there.tensor, there.index, given.mask.hides)
        return closed(hidden, iterators(hidden), "sum", ())

    return scope_over(own, [], rewrite_leaves(scores.body, moved))


def hide(softmax: Tensor, given: Hide) -> Op:
    """``softmax(s) = softmax(where(c, t, -inf))``, s = t where c holds.

    Raises:
        LawError: ``softmax``: no softmax of these scores, which are a map; ``mask``: the mask reads
            a tensor itself, or shows scores by several values; ``rows``, ``finite``: as of
            ``restrict``; ``hides``: the scores aren't known to be -inf where the mask hides them;
            ``places``: the condition shows other places than the mask; ``shown``: what the mask
            shows isn't known without the mask.
    """
    scores, mask = given.scores, given.mask
    fits = isinstance(softmax, Op) and softmax.name == "Softmax" and not scores.reduction
    _require(fits and softmax.type == scores.type, condition="softmax", what="no such softmax")
    assert isinstance(softmax, Op) and isinstance(softmax.attrs[0], int)
    _is_known(scores, mask)
    own, shape = traversal_iterators(scores), given.shows.shape
    if is_lowest(scores, mask.read, mask.hides):
        _shows(scores, mask, [own[softmax.attrs[0]]])
    else:
        known = known_where(scores.body, mask.read, mask.hides)
        _require(known == -math.inf, condition="hides", what="the scores aren't -inf there")
    others = _other_values(mask)
    _require(len(others) == 1, condition="mask", what="scores are shown by several values")
    last = own[len(own) - len(shape) :]
    fits = given.shows.dtype == "bool" and tuple(it.extent for it in last) == shape
    fits = fits and math.prod(shape) <= LARGEST and {*iterators(mask.read)} <= {*last}
    fits = fits and all(isinstance(t, Op | Scope) for t in topological([given.shows]))
    _require(fits and np.array_equal(np.broadcast_to(visible(mask, last)[1], shape),
                                     value_of(given.shows)),
             condition="places", what="the condition shows other scores")  # fmt: skip
    body = total(_parts(scores.body, mask.read, others.pop()))
    shown: Tensor = canonical(same_scope(scores, body, []))
    _require(shown.type == scores.type and mask.read not in leaves(body),
             condition="shown", what="the scores that are shown aren't known")  # fmt: skip
    if isinstance(body, Read) and body.tensor.type == scores.type:
        copy = canonical(same_scope(scores, read_all(body.tensor, own), []))
        shown = body.tensor if shown == copy else shown
    nothing = Op("Full", (), ((), -math.inf, scores.dtype))
    return Op("Softmax", (Op("Where", (given.shows, shown, nothing)),), softmax.attrs)


def _other_values(mask: Mask) -> set[float]:
    """Return the values of the mask where it shows a place."""
    return set(map(float, np.unique(value_of(mask.holds)).tolist())) - {mask.hides}


def _shows(scope: Scope, mask: Mask, places: Sequence[It]) -> None:
    """Check that the mask shows a finite number at some of ``places`` for all other iterators."""
    its = sorted(iterators(mask.read), key=lambda it: it.slot)
    _, shown = visible(mask, its)
    others = _other_values(mask)
    finite = len(others) == 1 and all(stays_finite(scope.body, mask.read, v) for v in others)
    _require(finite, condition="finite", what="what is let through may be infinite")
    axes = tuple(n for n, it in enumerate(its) if it in places)
    shown = np.broadcast_to(shown, [it.extent for it in its])
    _require(bool(shown.any(axis=axes).all()), condition="rows", what="a row is hidden")


def is_lowest(scope: Scope, read: Read, value: float) -> bool:
    """Whether the scope is the lowest number of its dtype where ``read`` has ``value``, or that
    number plus finite terms."""
    parts = _parts(scope.body, read, value)
    finite = all(stays_finite(part, read, value) for part in parts if not isinstance(part, Num))
    numbers = (part.value for part in parts if isinstance(part, Num))
    return finite and sum(numbers) == LOWEST.get(scope.dtype)


def _parts(body: Scalar, read: Read, value: float) -> list[Scalar]:
    """Return the terms of the body where ``read`` has ``value``, with choices made."""
    terms = terms_of(_chosen(body, read, value))
    return [Num(value) if part == read else _chosen(part, read, value) for part in terms]


def _chosen(body: Scalar, read: Read, value: float) -> Scalar:
    """The case that a choice takes where ``read`` has ``value``; the body if that isn't known."""
    match body:
        case Call(fn="where", args=(condition, yes, no)):
            which = known_where(condition, read, value)
            return body if which is None else _chosen(yes if which else no, read, value)
    return body


def _is_known(scope: Scope, mask: Mask) -> None:
    """Check that the mask is a read of the scope's body whose values can be computed."""
    read, holds = mask.read, mask.holds
    fits = read in leaves(scope.body) and holds.type == read.tensor.type and read.in_range()
    fits = fits and not any(True for _ in reads(holds.body))
    fits = fits and (is_float(holds.dtype) or mask.hides in (0, 1))
    sizes = math.prod(holds.extents), math.prod(it.extent for it in iterators(read))
    _require(fits and max(sizes) <= LARGEST, condition="mask",
             what="what the mask is isn't known place by place")  # fmt: skip


def known_where(body: Scalar, read: Read, value: float) -> float | None:
    """Return the body's value where ``read`` has ``value`` and all other reads are finite; None if
    it isn't known. All numbers must be small integers or infinities, which every dtype holds.

    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> m, x = (Read(Input(n, TensorType((), t)), ()) for n, t in (("m", "bool"), ("x", "float32")))
    >>> known_where(Call("where", (m, Num(float("-inf")), x)), m, 1.0)
    -inf
    """
    found = _known(body, read, value) if _is_exact(body) else None
    held = found is not None and (math.isinf(found) or (found.is_integer() and abs(found) <= 100))
    return found if held else None


def _known(body: Scalar, read: Read, value: float) -> float | None:
    match body:
        case Num(value=number):
            return number
        case Read():
            return value if body == read else None
        case Call(fn="where", args=(condition, yes, no)):
            which = known_where(condition, read, value)
            return None if which is None else known_where(yes if which else no, read, value)
        case Cast(arg=arg, dtype=dtype):
            return known_where(arg, read, value) if is_float(dtype) else None
    known = [known_where(part, read, value) for part in children(body)]
    numbers = [number for number in known if number is not None]
    combine = math.prod if isinstance(body, Prod) else sum
    if (-math.inf if isinstance(body, Sum) else 0) in numbers and isinstance(body, Sum | Prod):
        rest = [part for part, n in zip(children(body), known, strict=True) if n is None]
        return combine(numbers) if all(stays_finite(part, read, value) for part in rest) else None
    if len(numbers) < len(known) or not known:
        return None
    if isinstance(body, Call):
        # The sign of a zero isn't known: 1 / 0 is inf or -inf.
        signs = numbers, [-number if number == 0 else number for number in numbers]
        with np.errstate(all="ignore"):
            found = {float(FUNCTIONS[body.fn].value(*parts)) for parts in signs}
        return found.pop() if len(found) == 1 else None
    return combine(numbers)


def _is_exact(body: Scalar) -> bool:
    """Whether the body's operands keep their values: not beside integers or bools, whose dtype
    numbers take. ``min(b, -1)`` of a bool b is b, since -1 is stored as True."""
    compares = isinstance(body, Call) and FUNCTIONS[body.fn].result == "bool"
    return not children(body) or compares or is_float(dtype_of(body) or "float32")


def stays_finite(body: Scalar, read: Read, value: float) -> bool:
    """Whether the body is finite where ``read`` has ``value`` and all other reads are finite."""
    match body:
        case Num(value=number):
            return abs(number) < FAR
        case Read():
            return abs(value if body == read else body.fill) < FAR
        case Value():
            return True
        case Call(fn="where", args=(condition, yes, no)):
            which = known_where(condition, read, value)
            ways = (yes, no) if which is None else (yes if which else no,)
            return all(stays_finite(way, read, value) for way in ways)
        case Call(fn="div", args=(over, Num(value=under))):
            return abs(under) > 0 and stays_finite(over, read, value)
    kept = isinstance(body, Sum | Prod) or (isinstance(body, Call) and FUNCTIONS[body.fn].finite)
    return kept and all(stays_finite(part, read, value) for part in children(body))


@lru_cache(maxsize=16)
def value_of(holds: Tensor) -> Array:
    """Evaluate a term that reads no tensor."""
    return evaluate(holds, {})


def visible(mask: Mask, its: Sequence[It]) -> tuple[list[Array], Array]:
    """Return the values of the iterators ``its``, as arrays that broadcast, and an array of bools:
    True where the mask shows the place. ``its`` holds at least the iterators of the mask's read."""
    grid = np.meshgrid(*(np.arange(it.extent) for it in its), indexing="ij", sparse=True)
    values = {it.slot: array for it, array in zip(its, grid, strict=True)}
    places = tuple(index.evaluate(values) for index in mask.read.index)
    return list(grid), value_of(mask.holds)[places] != mask.hides


def _counts_all(given: Restrict, place: It) -> bool:
    """Whether each place that the mask shows is ``start + step * w`` for some w < ``count``."""
    its = sorted({*iterators(given.mask.read), *given.start.iterators()}, key=lambda it: it.slot)
    if math.prod(it.extent for it in its) > LARGEST:
        return False
    grid, shown = visible(given.mask, its)
    start = given.start.evaluate({it.slot: values for it, values in zip(its, grid, strict=True)})
    number, rest = np.divmod(grid[its.index(place)] - start, given.step)
    counts = (rest == 0) & (number >= 0) & (number < given.count)
    return bool(np.all(counts | ~shown))


def reach(scope: Scope, given: Reach) -> Scope:
    """``L_x f(where({max_j s[x, j]}[x] = -inf, a, b)) = L_x f(b)``.

    Raises:
        LawError: ``guard``: the body doesn't test that maximum for -inf; ``dtype``: b is a number,
            or of another dtype than the guarded value; ``mask``: the mask reads a tensor itself, or
            isn't read in range; ``finite``: the scores that the mask shows aren't known to be
            finite; ``rows``: the mask hides every place of some row.
    """
    guard, peak = given.guard, given.peak
    asked = guarded(guard)
    fits = asked is not None and asked.in_range() and asked.tensor.type == peak.type
    fits = fits and guard in composites(scope.body) and peak.reducer == "max"
    _require(fits and 0 not in peak.extents, condition="guard", what="no question of a maximum")
    # A number, or a case of another dtype, would change how the operands beside it are computed.
    kept = dtype_of(guard.args[2])
    _require(kept is not None and kept == dtype_of(guard), condition="dtype", what="other dtypes")
    _is_known(peak, given.mask)
    _shows(peak, given.mask, reduction_iterators(peak))
    body = rewrite_leaves(
        scope.body, lambda leaf: leaf, lambda part: guard.args[2] if part == guard else part
    )
    return same_scope(scope, body, reduction_iterators(scope))


def guarded(guard: Scalar) -> Read | None:
    """Return the read ``m[x]`` of ``where(m[x] = -inf, a, b)``; None of another function."""
    match guard:
        case Call(fn="where", args=(Call(fn="eq", args=parts), _, _)):
            found = [part for part in parts if isinstance(part, Read)]
            return found[0] if len(found) == 1 and Num(-math.inf) in parts else None
    return None
