"""Hypothesis strategies of scopes: index expressions, reads, scalar bodies, nested scopes.

A tensor is named by its type, so that two reads of one shape often read one tensor. The shapes of
tensors follow from the indices, so that most reads are in range and many lie partly outside. The
simplest scope reads one element of one tensor at a bare iterator.

The parts of a scope are drawn by calls of functions, of which the strategies are made too:
hypothesis takes longer to make a strategy than to draw from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import strategies as st

from eqsynth.ir.functions import FUNCTIONS as known_functions
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, product, total
from eqsynth.ir.tensor import Input, Scope, Tensor, Weight
from eqsynth.ir.types import TensorType, is_float
from eqsynth.testing.choices import pick

INF = float("inf")
FLOAT = ("float32",)
FUNCTIONS = ("max", "relu")
EXTENTS = st.sampled_from([1, 2, 2, 3, 3, 4])
EXTENTS_OR_EMPTY = st.sampled_from([1, 2, 2, 3, 3, 4, 0])
# Whether a tensor is too small or larger than its indices need.
SLACK = (0, 0, 0, -1, -2, 1)

BARE = ("bare",)
# Bare and mixed indices, as in convolutions.
WINDOWS = ("bare", "mixed", "mixed")
ANY = ("bare", "bare", "bare", "bare", "mixed", "mixed", "scaled", "divided", "number")
# Also minima and maxima of an index and a number, as in padding by repetition.
BOUNDED = (*ANY, "bounded", "bounded", "bounded")
# Nested operations, and terms that only a law shows to be related, as views of views leave them.
NESTED = ("bare", "bounded", "nested", "nested", "alike", "alike")


@cache
def _lists(extents: st.SearchStrategy[int], least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(extents, min_size=least, max_size=most)


def _index(draw: st.DrawFn, iterators: Sequence[It], kinds: Sequence[str] = ANY) -> Index:
    """Indices over some of the iterators: bare, affine, or under ``//`` and ``%``.

    Args:
        kinds: the kinds that are drawn; a kind that occurs more often is more likely. There are
            ``bare``, ``mixed`` (a*i + b*j + c), ``scaled`` (a*i + c), ``divided``, ``bounded``
            (min(a*i + c, n), max, and these under //), ``nested`` (//, %, min and max in each
            other), ``alike`` (sums of x // n, x % n and (x + k*n) // n) and ``number``. Lists of
            kinds are ``ANY``, ``BARE``, ``WINDOWS``, ``BOUNDED`` and ``NESTED``.
    """
    if not iterators:
        return Index(pick(draw, range(3)))
    kind = pick(draw, kinds)
    first, second = (pick(draw, iterators) for _ in range(2))
    a, b = (Index.iterator(i.slot, i.extent) for i in (first, second))
    if kind == "bare":
        return a
    offset = draw(st.integers(-2, 2))
    if kind == "mixed":
        return a * pick(draw, (1, 1, 2)) + b * pick(draw, (1, 1, 2, -1)) + offset
    if kind == "scaled":
        return a * pick(draw, (1, -1, 2, -2)) + offset
    if kind == "number":
        return Index(pick(draw, range(2)))
    if kind == "bounded":
        index = a * pick(draw, (1, 1, 2, -1, -2)) + offset
        bound = draw(st.integers(-2, 3))
        index = index.minimum(bound) if pick(draw, (False, True)) else index.maximum(bound)
        return index // 2 if pick(draw, range(4)) == 3 else index
    if kind == "nested":
        index = a * pick(draw, (1, 2, 4, -2)) + b + offset
        for _ in range(pick(draw, range(1, 4))):
            index = _operation(draw, index)
        return index
    if kind == "alike":
        return _like(draw, a * pick(draw, (1, 2, 3)) + offset, b)
    divisor = pick(draw, range(1, 4))
    whole = a * pick(draw, (1, 2, -1)) + b + offset
    return whole // divisor if pick(draw, (False, True)) else whole % divisor


indices = st.composite(_index)


def _operation(draw: st.DrawFn, index: Index) -> Index:
    """An operation on an index and a number: min, max, // or %."""
    name = pick(draw, ("min", "max", "//", "%"))
    if name == "min":
        return index.minimum(draw(st.integers(-2, 4)))
    if name == "max":
        return index.maximum(draw(st.integers(-2, 4)))
    number = pick(draw, (2, 3, 4))
    return index // number if name == "//" else index % number


def _like(draw: st.DrawFn, x: Index, y: Index) -> Index:
    """A sum of indices that a law can join: ``x // n`` and ``x % n``, or ``x // n`` and
    ``(x + k*n) // n``."""
    n, scale = pick(draw, range(2, 4)), pick(draw, (1, 1, 2, -1, 3))
    if pick(draw, (False, True)):
        index = (x // n * n + x % n) * scale
    else:
        shifted = x + n * pick(draw, (1, -1, 2))
        pair = (x // n, shifted // n) if pick(draw, (False, True)) else (x % n, shifted % n)
        index = pair[0] * scale + pair[1] * pick(draw, (1, 1, 2, -1))
    return index + y * pick(draw, (0, 1, -1)) + pick(draw, range(2))


def _read(
    draw: st.DrawFn,
    iterators: Sequence[It],
    *,
    fills: Sequence[float] = (0.0,),
    kinds: Sequence[str] = ANY,
    dtypes: Sequence[str] = FLOAT,
) -> Read:
    """Reads at random indices, of a tensor that is mostly large enough for them."""
    rank = pick(draw, range(0 if kinds == BARE else 1, 4))
    at = [_index(draw, iterators, kinds) for _ in range(rank)]
    slack = (0,) if kinds == BARE else SLACK
    shape = [max(1, index.range()[1] + 1 + pick(draw, slack)) for index in at]
    dtype = pick(draw, dtypes)
    name = pick(draw, "aabw") + "_" + "x".join(map(str, shape))
    name += "" if dtype == "float32" else f"_{dtype}"
    tensor = (Weight if name[0] == "w" else Input)(name, TensorType(tuple(shape), dtype))
    return Read(tensor, tuple(at), pick(draw, fills))


reads = st.composite(_read)


@st.composite
def products(
    draw: st.DrawFn,
    *,
    factors: tuple[int, int] = (1, 3),
    traversal: tuple[int, int] = (0, 3),
    reduction: tuple[int, int] = (0, 3),
    extents: st.SearchStrategy[int] = EXTENTS,
    kinds: Sequence[str] = ANY,
    fills: Sequence[float] = (0.0,),
) -> Scope:
    """Scopes ``L sum . number * read * …``, the form of contractions.

    Args:
        factors: the least and largest number of reads.
        traversal, reduction: the least and largest number of iterators.
    """
    outer, reduced = draw(_lists(extents, *traversal)), draw(_lists(extents, *reduction))
    iterators = [It(slot, extent) for slot, extent in enumerate((*outer, *reduced))]
    parts: list[Scalar] = [
        _read(draw, iterators, fills=fills, kinds=kinds)
        for _ in range(pick(draw, range(factors[0], factors[1] + 1)))
    ]
    if pick(draw, range(4)) == 3:
        parts.append(Num(pick(draw, (-1.0, 0.5, 3.0))))
    return Scope(tuple(outer), tuple(reduced), product(parts))


def _body(
    draw: st.DrawFn,
    iterators: Sequence[It],
    depth: int = 2,
    *,
    dtypes: Sequence[str] = FLOAT,
    functions: Sequence[str] = FUNCTIONS,
) -> Scalar:
    """Any body: sums, products, functions, values of indices, reads with any fill.

    Args:
        functions: the functions besides sums and products: names of ``eqsynth/ir/functions.py``,
            ``cast``, and ``one``, which is 1 where two indices are equal and else 0. For a function
            of two arguments, one is often 0 or equal to the other.
    """
    if depth == 0 or pick(draw, range(3)) == 0:
        kind = pick(draw, ("read", "read", "read", "number", "value"))
        if kind == "number":
            return Num(pick(draw, (2.0, -1.0, 0.5)))
        if kind == "value":
            return Value(_index(draw, iterators))
        return _read(draw, iterators, fills=(0.0, 0.0, 1.5, -INF, INF), dtypes=dtypes)

    def part() -> Scalar:
        return _body(draw, iterators, depth - 1, dtypes=dtypes, functions=functions)

    kind = pick(draw, ["sum", "sum", "prod", *functions])
    if kind == "cast":
        return Cast(pick(draw, dtypes), part())
    if kind == "one":
        pair = tuple(Value(_index(draw, iterators)) for _ in range(2))
        return Cast(pick(draw, [d for d in dtypes if is_float(d)]), Call("eq", pair))
    if kind not in ("sum", "prod"):
        args = [part() for _ in range(known_functions[kind].arity)]
        if len(args) == 2:
            other = pick(draw, (args[1], args[1], args[0], Num(0.0)))
            args = [args[0], other] if pick(draw, (False, True)) else [other, args[0]]
        return Call(kind, tuple(args))
    parts = [part(), part()]
    return product(parts) if kind == "prod" else total(parts)


bodies = st.composite(_body)


@st.composite
def scopes(
    draw: st.DrawFn,
    *,
    empty: bool = True,
    dtypes: Sequence[str] = FLOAT,
    functions: Sequence[str] = FUNCTIONS,
) -> Scope:
    """Any scope.

    Args:
        empty: whether extents may be 0.
        dtypes: the dtypes of tensors and of casts.
        functions: see :func:`bodies`.
    """
    extents = EXTENTS_OR_EMPTY if empty else EXTENTS
    traversal, reduced = (draw(_lists(extents, 0, 3)) for _ in range(2))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    reducer = pick(draw, ("sum", "sum", "max", "min", "prod"))
    body = _body(draw, iterators, dtypes=dtypes, functions=functions)
    return Scope(tuple(traversal), tuple(reduced), body, reducer)


def _read_of(
    draw: st.DrawFn,
    tensor: Tensor,
    iterators: Sequence[It],
    fill: float = 0.0,
    kinds: Sequence[str] = ANY,
) -> Read:
    """Reads of a given tensor. Indices are mostly iterators that fit its extents; for other kinds
    than ``ANY``, more of them are of these kinds."""
    at, often = [], 3 if kinds == ANY else 1
    for extent in tensor.shape:
        fitting = [i for i in iterators if i.extent <= extent]
        if fitting and pick(draw, range(4)) < often:
            base = pick(draw, fitting)
            at.append(Index.iterator(base.slot, base.extent))
        else:
            at.append(_index(draw, iterators, kinds))
        if pick(draw, range(4)) == 3:
            at[-1] = at[-1] + pick(draw, (-1, 1))
    return Read(tensor, tuple(at), fill)


reads_of = st.composite(_read_of)


@st.composite
def nested_scopes(
    draw: st.DrawFn, inners: st.SearchStrategy[Scope], kinds: Sequence[str] = ANY
) -> tuple[Scope, Read, Scope]:
    """A scope, a read in it at indices of these kinds, and the inner scope that is read."""
    inner = draw(inners)
    traversal, reduced = draw(_lists(EXTENTS, 1, 3)), draw(_lists(EXTENTS, 0, 2))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    fill = pick(draw, (0.0, 0.0, 0.0, -INF, 1.5))
    read = _read_of(draw, inner, iterators, fill, kinds)
    body: Scalar = read
    kind = pick(draw, ("alone", "product", "product", "square", "sum", "relu", "max"))
    if kind == "product":
        body = product([read, _read(draw, iterators)])
    elif kind == "square":
        body = Prod((read, read))
    elif kind == "sum":
        body = Sum((read, _read(draw, iterators)))
    elif kind == "relu":
        body = Call("relu", (read,))
    elif kind == "max":
        body = Call("max", (read, _read(draw, iterators)))
    reducer = pick(draw, ("sum", "sum", "sum", "max"))
    return Scope(tuple(traversal), tuple(reduced), body, reducer), read, inner
