"""Hypothesis strategies of scopes and operator programs, and what it takes to compare them.

Tensors are named by their type, so two reads of one shape are often reads of one tensor; extents
come from the indices, so that most reads are in range and many lie partly outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from eqsynth.ir.index import Index, It
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS, Attr
from eqsynth.ir.reference import storage
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, Value, product, total
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight, topological
from eqsynth.ir.types import TensorType, is_float

INF = float("inf")
EXTENTS = st.sampled_from([1, 2, 2, 3, 3, 4])


def times(factor: float) -> int:
    """So many times the number of examples of the hypothesis profile in use."""
    return int(settings.default.max_examples * factor)


def leaf(name: str, *shape: int, dtype: str = "float32", constant: bool = False) -> Input | Weight:
    return (Weight if constant else Input)(name, TensorType(shape, dtype))


def op(name: str, *args: Tensor, attrs: tuple[Attr, ...] = ()) -> Op:
    return Op(name, args, attrs)


def it(slot: int, extent: int) -> Index:
    return Index.iterator(slot, extent)


def values_of(*terms: Tensor) -> dict[str, Any]:
    """Arrays for the inputs and weights of terms, by name; the same for the same type."""
    env = {}
    for term in topological(terms):
        if isinstance(term, Input | Weight):
            rng = np.random.default_rng(crc32(f"{term.name}{term.type}".encode()))
            if is_float(term.dtype):
                env[term.name] = rng.normal(size=term.shape)
            else:
                drawn = rng.integers(0, 2 if term.dtype == "bool" else 100, size=term.shape)
                env[term.name] = drawn.astype(storage(term.dtype))
    return env


def assert_equal(left: Tensor, right: Tensor) -> None:
    """One type and, in float64, one value."""
    assert left.type == right.type, f"{left}\nis not of the type of\n{right}"
    env = values_of(left, right)
    a, b = evaluate(left, env), evaluate(right, env)
    assert a.shape == b.shape == left.shape
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{left}\nagainst\n{right}")


# ---- scopes ------------------------------------------------------------------


BARE = ("bare",)
# Bare indices and windows: what convolutions are made of.
WINDOWS = ("bare", "mixed", "mixed")
ANY = ("bare", "bare", "bare", "bare", "mixed", "mixed", "scaled", "divided", "number")


@st.composite
def indices(draw: st.DrawFn, iterators: Sequence[It], kinds: Sequence[str] = ANY) -> Index:
    """An index over some of the iterators: bare, affine, or under ``//`` and ``%``."""
    if not iterators:
        return Index(draw(st.integers(0, 2)))
    kind = draw(st.sampled_from(list(kinds)))
    first, second = (draw(st.sampled_from(list(iterators))) for _ in range(2))
    a, b = it(first.slot, first.extent), it(second.slot, second.extent)
    if kind == "bare":
        return a
    offset = draw(st.integers(-2, 2))
    if kind == "mixed":
        scale = st.sampled_from([1, 1, 2, -1])
        return a * draw(st.sampled_from([1, 1, 2])) + b * draw(scale) + offset
    if kind == "scaled":
        return a * draw(st.sampled_from([-2, -1, 1, 2])) + offset
    if kind == "number":
        return Index(draw(st.integers(0, 1)))
    divisor = draw(st.integers(1, 3))
    whole = a * draw(st.sampled_from([1, 2, -1])) + b + offset
    return whole // divisor if draw(st.booleans()) else whole % divisor


@st.composite
def reads(
    draw: st.DrawFn,
    iterators: Sequence[It],
    *,
    fills: Sequence[float] = (0.0,),
    kinds: Sequence[str] = ANY,
) -> Read:
    """A read at random indices of a tensor that mostly holds them."""
    rank = draw(st.integers(0 if kinds == BARE else 1, 3))
    at = [draw(indices(iterators, kinds)) for _ in range(rank)]
    slack = st.just(0) if kinds == BARE else st.sampled_from([0, 0, 0, -1, -2, 1])
    shape = [max(1, index.range()[1] + 1 + draw(slack)) for index in at]
    name = draw(st.sampled_from("aabw")) + "_" + "x".join(map(str, shape))
    tensor = leaf(name, *shape, constant=name[0] == "w")
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
    """``L sum . number * read * …``."""
    outer = draw(st.lists(extents, min_size=traversal[0], max_size=traversal[1]))
    reduced = draw(st.lists(extents, min_size=reduction[0], max_size=reduction[1]))
    iterators = [It(slot, extent) for slot, extent in enumerate((*outer, *reduced))]
    parts: list[Scalar] = [
        draw(reads(iterators, fills=fills, kinds=kinds))
        for _ in range(draw(st.integers(*factors)))
    ]
    if draw(st.integers(0, 3)) == 0:
        parts.append(Num(draw(st.sampled_from([-1.0, 0.5, 3.0]))))
    return Scope(tuple(outer), tuple(reduced), product(parts))


@st.composite
def bodies(draw: st.DrawFn, iterators: Sequence[It], depth: int = 2) -> Scalar:
    """Any body: sums, products, functions, values of indices, reads with any fill."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from(["read", "read", "read", "number", "value"]))
        if kind == "number":
            return Num(draw(st.sampled_from([-1.0, 0.5, 2.0])))
        if kind == "value":
            return Value(draw(indices(iterators)))
        return draw(reads(iterators, fills=(0.0, 0.0, 1.5, -INF, INF)))
    kind = draw(st.sampled_from(["sum", "prod", "max", "relu", "sub"]))
    one = draw(bodies(iterators, depth - 1))
    if kind == "relu":
        return Call("relu", (one,))
    two = draw(bodies(iterators, depth - 1))
    if kind == "max":
        return Call("max", (one, two))
    return product([one, two]) if kind == "prod" else total([one, two])


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """Any scope."""
    extents = st.sampled_from([1, 2, 2, 3, 3, 4, 0])
    traversal = draw(st.lists(extents, min_size=0, max_size=3))
    reduced = draw(st.lists(extents, min_size=0, max_size=3))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    reducer = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
    return Scope(tuple(traversal), tuple(reduced), draw(bodies(iterators)), reducer)


@st.composite
def read_of(draw: st.DrawFn, tensor: Tensor, iterators: Sequence[It], fill: float = 0.0) -> Read:
    """A read of a given tensor, mostly near its extents."""
    at = []
    for extent in tensor.shape:
        fitting = [i for i in iterators if i.extent <= extent]
        if fitting and draw(st.integers(0, 3)):
            base = draw(st.sampled_from(fitting))
            at.append(it(base.slot, base.extent))
        else:
            at.append(draw(indices(iterators)))
        if draw(st.integers(0, 3)) == 0:
            at[-1] = at[-1] + draw(st.sampled_from([-1, 1]))
    return Read(tensor, tuple(at), fill)


@st.composite
def nested(draw: st.DrawFn, inners: st.SearchStrategy[Scope]) -> tuple[Scope, Read, Scope]:
    """A scope, a read in it, and the scope that the read reads."""
    inner = draw(inners)
    traversal = draw(st.lists(EXTENTS, min_size=1, max_size=3))
    reduced = draw(st.lists(EXTENTS, min_size=0, max_size=2))
    iterators = [It(slot, extent) for slot, extent in enumerate((*traversal, *reduced))]
    fill = draw(st.sampled_from([0.0, 0.0, 0.0, -INF, 1.5]))
    read = draw(read_of(inner, iterators, fill))
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


# ---- operators ---------------------------------------------------------------

_UNARY = [
    row.name
    for row in OPERATORS.values()
    if row.kind == "elementwise" and row.arity == 1 and not row.attrs
]
_BINARY = [
    row.name for row in OPERATORS.values() if row.kind == "elementwise" and row.arity == 2
]

Build = Callable[[st.DrawFn, Tensor], Op]


def _int(draw: st.DrawFn, low: int, high: int) -> int:
    return draw(st.integers(low, high))


def _axis(draw: st.DrawFn, x: Tensor) -> int:
    return _int(draw, 0, len(x.shape) - 1)


def _permute(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Permute", x, attrs=(tuple(draw(st.permutations(range(len(x.shape))))),))


def _reshape(draw: st.DrawFn, x: Tensor) -> Op:
    rest, shape = x.type.size, list[int]()
    while rest > 1 and len(shape) < 3:
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        rest //= shape[-1]
    return op("Reshape", x, attrs=((*shape, rest),))


def _expand(draw: st.DrawFn, x: Tensor) -> Op:
    own = tuple(_int(draw, 0, 3) if e == 1 else e for e in x.shape)
    front = tuple(draw(st.lists(st.integers(1, 2), max_size=1)))
    return op("Expand", x, attrs=((*front, *own),))


def _slice(draw: st.DrawFn, x: Tensor) -> Op:
    axis = _axis(draw, x)
    start = _int(draw, 0, x.shape[axis])
    stop = _int(draw, start, x.shape[axis])
    return op("Slice", x, attrs=(axis, start, stop, _int(draw, 1, 3)))


def _pad(draw: st.DrawFn, x: Tensor) -> Op:
    before, after = (tuple(_int(draw, 0, 2) for _ in x.shape) for _ in range(2))
    return op("Pad", x, attrs=(before, after, draw(st.sampled_from([0.0, 0.0, 1.0]))))


def _concat(draw: st.DrawFn, x: Tensor) -> Op:
    axis = _axis(draw, x)
    extents = draw(st.lists(st.integers(0, 3), max_size=2))
    parts = [
        leaf(f"p{n}x{e}", *x.shape[:axis], e, *x.shape[axis + 1 :], dtype=x.dtype)
        for n, e in enumerate(extents)
    ]
    return op("Concat", x, *parts, attrs=(axis,))


def _shift(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Shift", x, attrs=(_axis(draw, x), _int(draw, -2, 2)))


def _unfold(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Unfold", x, attrs=(_axis(draw, x), _int(draw, 1, 4)))


def _stride(draw: st.DrawFn, x: Tensor) -> Op:
    axis = _axis(draw, x)
    steps = [s for s in range(1, max(x.shape[axis], 1) + 1) if x.shape[axis] % s == 0]
    return op("Stride", x, attrs=(axis, draw(st.sampled_from(steps))))


def _split(draw: st.DrawFn, x: Tensor) -> Op:
    axis = _axis(draw, x)
    blocks = [s for s in range(1, max(x.shape[axis], 1) + 1) if x.shape[axis] % s == 0]
    return op("Split", x, attrs=(axis, draw(st.sampled_from(blocks))))


def _merge(draw: st.DrawFn, x: Tensor) -> Op:
    if len(x.shape) < 2:
        return _split(draw, x)
    return op("Merge", x, attrs=(_int(draw, 0, len(x.shape) - 2),))


VIEWS: Mapping[str, Build] = {
    "Permute": _permute, "Reshape": _reshape, "Expand": _expand, "Slice": _slice, "Pad": _pad,
    "Concat": _concat, "Shift": _shift, "Unfold": _unfold, "Stride": _stride,
    "Split": _split, "Merge": _merge,
}  # fmt: skip


def _unary(draw: st.DrawFn, x: Tensor) -> Op:
    names = _UNARY if x.dtype != "bool" else ["LogicalNot", "Relu", "Exp"]
    return op(draw(st.sampled_from(names)), x)


def _binary(draw: st.DrawFn, x: Tensor) -> Op:
    names = _BINARY if x.dtype != "bool" else ["LogicalAnd", "LogicalOr", "Equal", "Maximum"]
    shape = tuple(e if draw(st.booleans()) else 1 for e in x.shape)
    y = leaf("y" + "x".join(map(str, shape)), *shape, dtype=x.dtype)
    args = (x, y) if draw(st.booleans()) else (y, x)
    return op(draw(st.sampled_from(names)), *args)


def _where(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Where", op("Greater", x, leaf("zero", 1, dtype=x.dtype)), x, x)


def _cast(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Cast", x, attrs=(draw(st.sampled_from(["float32", "float16", "int64"])),))


def _matmul(draw: st.DrawFn, x: Tensor) -> Op:
    if len(x.shape) < 2:
        return op("Relu", x)
    n = _int(draw, 1, 3)
    batch = x.shape[:-2] if draw(st.booleans()) else ()
    shape = (*batch, x.shape[-1], n)
    w = leaf("w" + "x".join(map(str, shape)), *shape, dtype=x.dtype, constant=True)
    return op("Matmul", x, w)


def _reduce(draw: st.DrawFn, x: Tensor) -> Op:
    kinds = ["ReduceSum", "ReduceProd"]
    if 0 not in x.shape:
        kinds += ["ReduceMax", "ReduceMin"] + (["ReduceMean"] if is_float(x.dtype) else [])
    axes = tuple(axis for axis in range(len(x.shape)) if draw(st.booleans()))
    return op(draw(st.sampled_from(kinds)), x, attrs=(axes, _int(draw, 0, 1)))


def _softmax(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape or not is_float(x.dtype):
        return op("Relu", x)
    return op("Softmax", x, attrs=(_axis(draw, x),))


def _window(draw: st.DrawFn, x: Tensor, name: str) -> Op:
    """A convolution or pooling over the tensor as an image."""
    if 0 in x.shape or x.type.size > 64 or not is_float(x.dtype):
        return op("Relu", x)
    height = max(d for d in range(1, 5) if x.type.size % d == 0)
    image = op("Reshape", x, attrs=((1, 1, height, x.type.size // height),))
    stride, dilation = ((_int(draw, 1, 2), _int(draw, 1, 2)) for _ in range(2))
    padding = (_int(draw, 0, 1), _int(draw, 0, 1))
    fits = [
        max(k for k in (1, 2, 3) if e + 2 * p - d * (k - 1) >= 1)
        for e, p, d in zip(image.shape[2:], padding, dilation, strict=True)
    ]
    kernel = tuple(_int(draw, 1, k) for k in fits)
    if name == "Conv2d":
        w = leaf("w2x1x{}x{}".format(*kernel), 2, 1, *kernel, dtype=x.dtype, constant=True)
        return op(name, image, w, attrs=(stride, padding, dilation, 1))
    return op(name, image, attrs=(kernel, stride, padding, dilation))


def _layer_norm(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape or not is_float(x.dtype):
        return op("Relu", x)
    last = x.shape[-1]
    scale, shift = (leaf(f"{n}{last}", last, dtype=x.dtype, constant=True) for n in ("g", "h"))
    return op("LayerNorm", x, scale, shift, attrs=(1, 1e-5))


_BUILDERS: Sequence[Build] = (
    _unary, _unary, _binary, _binary, _where, _cast, _matmul, _matmul, _reduce, _reduce,
    _softmax, _layer_norm, *VIEWS.values(),
    *(lambda d, x, n=n: _window(d, x, n) for n in ("Conv2d", "MaxPool2d", "AvgPool2d")),
)  # fmt: skip


@st.composite
def operator_programs(
    draw: st.DrawFn, *, steps: int = 3, dtypes: Sequence[str] = ("float32",), empty: bool = False
) -> Tensor:
    """A term of some operators, one applied to the result of the other."""
    extents = st.integers(0 if empty else 1, 4)
    shape = draw(st.lists(extents, min_size=1, max_size=3))
    dtype = draw(st.sampled_from(list(dtypes)))
    x: Tensor = leaf("x", *shape, dtype=dtype)
    for _ in range(draw(st.integers(1, steps))):
        built = draw(st.sampled_from(_BUILDERS))(draw, x) if x.shape else op("Relu", x)
        if built.type.size <= 512:
            x = built
    return x
