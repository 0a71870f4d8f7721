"""Hypothesis strategies of scopes: index expressions, reads, scalar bodies, nested scopes.

A tensor is named by its type, so that two reads of one shape often read one tensor. The shapes of
tensors follow from the indices, so that most reads are in range and many lie partly outside. The
simplest scope reads one element of one tensor at a bare iterator.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from eqsynth.ir.functions import FUNCTIONS as known_functions
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, product, total
from eqsynth.ir.tensor import Input, Scope, Tensor, Weight
from eqsynth.ir.types import TensorType, is_float

INF = float("inf")
FLOAT = ("float32",)
FUNCTIONS = ("max", "relu")
EXTENTS = st.sampled_from([1, 2, 2, 3, 3, 4])

BARE = ("bare",)
# Bare and mixed indices, as in convolutions.
WINDOWS = ("bare", "mixed", "mixed")
ANY = ("bare", "bare", "bare", "bare", "mixed", "mixed", "scaled", "divided", "number")
# Also minima and maxima of an index and a number, as in padding by repetition.
BOUNDED = (*ANY, "bounded", "bounded", "bounded")
# Nested operations, and terms that only a law shows to be related, as views of views leave them.
NESTED = ("bare", "bounded", "nested", "nested", "alike", "alike")


@st.composite
def indices(draw: st.DrawFn, iterators: Sequence[It], kinds: Sequence[str] = ANY) -> Index:
    """Indices over some of the iterators: bare, affine, or under ``//`` and ``%``.

    Args:
        kinds: the kinds that are drawn; a kind that occurs more often is more likely. There are
            ``bare``, ``mixed`` (a*i + b*j + c), ``scaled`` (a*i + c), ``divided``, ``bounded``
            (min(a*i + c, n), max, and these under //), ``nested`` (//, %, min and max in each
            other), ``alike`` (sums of x // n, x % n and (x + k*n) // n) and ``number``. Lists of
            kinds are ``ANY``, ``BARE``, ``WINDOWS``, ``BOUNDED`` and ``NESTED``.
    """
    if not iterators:
        return Index(draw(st.integers(0, 2)))
    kind = draw(st.sampled_from(list(kinds)))
    first, second = (draw(st.sampled_from(list(iterators))) for _ in range(2))
    a, b = (Index.iterator(i.slot, i.extent) for i in (first, second))
    if kind == "bare":
        return a
    offset = draw(st.integers(-2, 2))
    if kind == "mixed":
        scale = st.sampled_from([1, 1, 2, -1])
        return a * draw(st.sampled_from([1, 1, 2])) + b * draw(scale) + offset
    if kind == "scaled":
        return a * draw(st.sampled_from([1, -1, 2, -2])) + offset
    if kind == "number":
        return Index(draw(st.integers(0, 1)))
    if kind == "bounded":
        index = a * draw(st.sampled_from([1, 1, 2, -1, -2])) + offset
        bound = draw(st.integers(-2, 3))
        index = index.minimum(bound) if draw(st.booleans()) else index.maximum(bound)
        return index // 2 if draw(st.integers(0, 3)) == 3 else index
    if kind == "nested":
        index = a * draw(st.sampled_from([1, 2, 4, -2])) + b + offset
        for _ in range(draw(st.integers(1, 3))):
            index = draw(_operations(index))
        return index
    if kind == "alike":
        return draw(_alike(a * draw(st.sampled_from([1, 2, 3])) + offset, b))
    divisor = draw(st.integers(1, 3))
    whole = a * draw(st.sampled_from([1, 2, -1])) + b + offset
    return whole // divisor if draw(st.booleans()) else whole % divisor


@st.composite
def _operations(draw: st.DrawFn, index: Index) -> Index:
    """An operation on an index and a number: min, max, // or %."""
    name = draw(st.sampled_from(["min", "max", "//", "%"]))
    if name == "min":
        return index.minimum(draw(st.integers(-2, 4)))
    if name == "max":
        return index.maximum(draw(st.integers(-2, 4)))
    number = draw(st.sampled_from([2, 3, 4]))
    return index // number if name == "//" else index % number


@st.composite
def _alike(draw: st.DrawFn, x: Index, y: Index) -> Index:
    """A sum of indices that a law can join: ``x // n`` and ``x % n``, or ``x // n`` and
    ``(x + k*n) // n``."""
    n, scale = draw(st.integers(2, 3)), draw(st.sampled_from([1, 1, 2, -1, 3]))
    if draw(st.booleans()):
        index = (x // n * n + x % n) * scale
    else:
        shifted = x + n * draw(st.sampled_from([1, -1, 2]))
        pair = (x // n, shifted // n) if draw(st.booleans()) else (x % n, shifted % n)
        index = pair[0] * scale + pair[1] * draw(st.sampled_from([1, 1, 2, -1]))
    return index + y * draw(st.sampled_from([0, 1, -1])) + draw(st.integers(0, 1))


@st.composite
def reads(
    draw: st.DrawFn,
    iterators: Sequence[It],
    *,
    fills: Sequence[float] = (0.0,),
    kinds: Sequence[str] = ANY,
    dtypes: Sequence[str] = FLOAT,
) -> Read:
    """Reads at random indices, of a tensor that is mostly large enough for them."""
    rank = draw(st.integers(0 if kinds == BARE else 1, 3))
    at = [draw(indices(iterators, kinds)) for _ in range(rank)]
    slack = st.just(0) if kinds == BARE else st.sampled_from([0, 0, 0, -1, -2, 1])
    shape = [max(1, index.range()[1] + 1 + draw(slack)) for index in at]
    dtype = draw(st.sampled_from(list(dtypes)))
    name = draw(st.sampled_from("aabw")) + "_" + "x".join(map(str, shape))
    name += "" if dtype == "float32" else f"_{dtype}"
    tensor = (Weight if name[0] == "w" else Input)(name, TensorType(tuple(shape), dtype))
    return Read(tensor, tuple(at), draw(st.sampled_from(list(fills))))


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
    outer = draw(st.lists(extents, min_size=traversal[0], max_size=traversal[1]))
    reduced = draw(st.lists(extents, min_size=reduction[0], max_size=reduction[1]))
    iterators = [It(slot, extent) for slot, extent in enumerate((*outer, *reduced))]
    parts: list[Scalar] = [
        draw(reads(iterators, fills=fills, kinds=kinds)) for _ in range(draw(st.integers(*factors)))
    ]
    if draw(st.integers(0, 3)) == 3:
        parts.append(Num(draw(st.sampled_from([-1.0, 0.5, 3.0]))))
    return Scope(tuple(outer), tuple(reduced), product(parts))


@st.composite
def bodies(
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
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from(["read", "read", "read", "number", "value"]))
        if kind == "number":
            return Num(draw(st.sampled_from([2.0, -1.0, 0.5])))
        if kind == "value":
            return Value(draw(indices(iterators)))
        return draw(reads(iterators, fills=(0.0, 0.0, 1.5, -INF, INF), dtypes=dtypes))

    def part() -> Scalar:
        return draw(bodies(iterators, depth - 1, dtypes=dtypes, functions=functions))

    kind = draw(st.sampled_from(["sum", "sum", "prod", *functions]))
    if kind == "cast":
        return Cast(draw(st.sampled_from(list(dtypes))), part())
    if kind == "one":
        pair = tuple(Value(draw(indices(iterators))) for _ in range(2))
        return Cast(draw(st.sampled_from([d for d in dtypes if is_float(d)])), Call("eq", pair))
    if kind not in ("sum", "prod"):
        args = [part() for _ in range(known_functions[kind].arity)]
        if len(args) == 2:
            other = draw(st.sampled_from([args[1], args[1], args[0], Num(0.0)]))
            args = [args[0], other] if draw(st.booleans()) else [other, args[0]]
        return Call(kind, tuple(args))
    parts = [part(), part()]
    return product(parts) if kind == "prod" else total(parts)


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
    extents = st.sampled_from([1, 2, 2, 3, 3, 4, *([0] if empty else [])])
    traversal = draw(st.lists(extents, min_size=0, max_size=3))
    reduced = draw(st.lists(extents, min_size=0, max_size=3))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    reducer = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
    body = draw(bodies(iterators, dtypes=dtypes, functions=functions))
    return Scope(tuple(traversal), tuple(reduced), body, reducer)


@st.composite
def reads_of(
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
        if fitting and draw(st.integers(0, 3)) < often:
            base = draw(st.sampled_from(fitting))
            at.append(Index.iterator(base.slot, base.extent))
        else:
            at.append(draw(indices(iterators, kinds)))
        if draw(st.integers(0, 3)) == 3:
            at[-1] = at[-1] + draw(st.sampled_from([-1, 1]))
    return Read(tensor, tuple(at), fill)


@st.composite
def nested_scopes(
    draw: st.DrawFn, inners: st.SearchStrategy[Scope], kinds: Sequence[str] = ANY
) -> tuple[Scope, Read, Scope]:
    """A scope, a read in it at indices of these kinds, and the inner scope that is read."""
    inner = draw(inners)
    traversal = draw(st.lists(EXTENTS, min_size=1, max_size=3))
    reduced = draw(st.lists(EXTENTS, min_size=0, max_size=2))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    fill = draw(st.sampled_from([0.0, 0.0, 0.0, -INF, 1.5]))
    read = draw(reads_of(inner, iterators, fill, kinds))
    body: Scalar = read
    kind = draw(st.sampled_from(["alone", "product", "product", "square", "sum", "relu", "max"]))
    if kind == "product":
        body = product([read, draw(reads(iterators))])
    elif kind == "square":
        body = Prod((read, read))
    elif kind == "sum":
        body = Sum((read, draw(reads(iterators))))
    elif kind == "relu":
        body = Call("relu", (read,))
    elif kind == "max":
        body = Call("max", (read, draw(reads(iterators))))
    reducer = draw(st.sampled_from(["sum", "sum", "sum", "max"]))
    return Scope(tuple(traversal), tuple(reduced), body, reducer), read, inner
