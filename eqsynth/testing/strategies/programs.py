"""Hypothesis strategies of operator programs: terms over the operators of the IR.

A program grows operator by operator. Each reads one or two of the values so far, so that values are
shared. The simplest program is one unary operator on one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.ir.types import is_float
from eqsynth.testing.strategies.structures import structure
from eqsynth.testing.strategies.terms import Build, axis_of, leaf, number, op, simple
from eqsynth.testing.strategies.types import shapes

_UNARY = [
    row.name
    for row in OPERATORS.values()
    if row.kind == "elementwise" and row.arity == 1 and not row.attrs
]
_BINARY = [row.name for row in OPERATORS.values() if row.kind == "elementwise" and row.arity == 2]

Join = Callable[[st.DrawFn, Tensor, Sequence[Tensor]], Op]
"""Draws an operator over a tensor and, if it takes a second one, another value of the program."""


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
    own = tuple(number(draw, 0, 3) if e == 1 else e for e in x.shape)
    front = tuple(draw(st.lists(st.integers(1, 2), max_size=1)))
    return op("Expand", x, attrs=((*front, *own),))


def _slice(draw: st.DrawFn, x: Tensor) -> Op:
    axis = axis_of(draw, x)
    start = number(draw, 0, x.shape[axis])
    stop = number(draw, start, x.shape[axis])
    return op("Slice", x, attrs=(axis, start, stop, number(draw, 1, 3)))


def _pad(draw: st.DrawFn, x: Tensor) -> Op:
    before, after = (tuple(number(draw, 0, 2) for _ in x.shape) for _ in range(2))
    return op("Pad", x, attrs=(before, after, draw(st.sampled_from([0.0, 0.0, 1.0]))))


def _concat(draw: st.DrawFn, x: Tensor) -> Op:
    axis = axis_of(draw, x)
    extents = draw(st.lists(st.integers(0, 3), max_size=2))
    parts = [
        leaf(f"p{n}_", *x.shape[:axis], e, *x.shape[axis + 1 :], dtype=x.dtype)
        for n, e in enumerate(extents)
    ]
    return op("Concat", x, *parts, attrs=(axis,))


def _reverse(draw: st.DrawFn, x: Tensor) -> Op:
    axes = draw(st.sets(st.integers(0, len(x.shape) - 1))) if x.shape else set()
    return op("Reverse", x, attrs=(tuple(sorted(axes)),))


def _shift(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Shift", x, attrs=(axis_of(draw, x), number(draw, -2, 2)))


def _unfold(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Unfold", x, attrs=(axis_of(draw, x), number(draw, 1, 4)))


def _stride(draw: st.DrawFn, x: Tensor) -> Op:
    axis = axis_of(draw, x)
    steps = [s for s in range(1, max(x.shape[axis], 1) + 1) if x.shape[axis] % s == 0]
    return op("Stride", x, attrs=(axis, draw(st.sampled_from(steps))))


def _split(draw: st.DrawFn, x: Tensor) -> Op:
    axis = axis_of(draw, x)
    blocks = [s for s in range(1, max(x.shape[axis], 1) + 1) if x.shape[axis] % s == 0]
    return op("Split", x, attrs=(axis, draw(st.sampled_from(blocks))))


def _merge(draw: st.DrawFn, x: Tensor) -> Op:
    if len(x.shape) < 2:
        return _split(draw, x)
    return op("Merge", x, attrs=(number(draw, 0, len(x.shape) - 2),))


VIEWS: Mapping[str, Build] = {
    "Permute": _permute, "Reshape": _reshape, "Expand": _expand, "Slice": _slice, "Pad": _pad,
    "Concat": _concat, "Shift": _shift, "Unfold": _unfold, "Stride": _stride,
    "Split": _split, "Merge": _merge, "Reverse": _reverse,
}  # fmt: skip


def _unary(draw: st.DrawFn, x: Tensor) -> Op:
    names = _UNARY if x.dtype != "bool" else ["LogicalNot", "Exp", "Sign"]
    return op(draw(st.sampled_from(names)), x)


def _binary(draw: st.DrawFn, x: Tensor) -> Op:
    names = _BINARY if x.dtype != "bool" else ["LogicalAnd", "LogicalOr", "Equal", "Maximum"]
    shape = tuple(e if draw(st.booleans()) else 1 for e in x.shape)
    y = leaf("y", *shape, dtype=x.dtype)
    args = (x, y) if draw(st.booleans()) else (y, x)
    return op(draw(st.sampled_from(names)), *args)


def _where(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Where", op("Greater", x, leaf("zero", 1, dtype=x.dtype)), x, x)


def _cast(draw: st.DrawFn, x: Tensor) -> Op:
    return op("Cast", x, attrs=(draw(st.sampled_from(["float32", "float16", "int64"])),))


def _matmul(draw: st.DrawFn, x: Tensor) -> Op:
    if len(x.shape) < 2 or x.dtype == "bool":
        return simple(x)
    n = number(draw, 1, 3)
    batch = x.shape[:-2] if draw(st.booleans()) else ()
    shape = (*batch, x.shape[-1], n)
    w = leaf("w", *shape, dtype=x.dtype, constant=True)
    return op("Matmul", x, w)


def _reduce(draw: st.DrawFn, x: Tensor) -> Op:
    kinds = ["ReduceSum", "ReduceProd"]
    if 0 not in x.shape:
        kinds += ["ReduceMax", "ReduceMin"] + (["ReduceMean"] if is_float(x.dtype) else [])
    axes = tuple(axis for axis in range(len(x.shape)) if draw(st.booleans()))
    return op(draw(st.sampled_from(kinds)), x, attrs=(axes, number(draw, 0, 1)))


def _along_axis(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape or not is_float(x.dtype):
        return simple(x)
    return op(draw(st.sampled_from(("Softmax", "CumSum"))), x, attrs=(axis_of(draw, x),))


def _window(draw: st.DrawFn, x: Tensor, name: str) -> Op:
    """A convolution or pooling over the tensor reshaped to an image."""
    if 0 in x.shape or x.type.size > 64 or not is_float(x.dtype):
        return simple(x)
    height = max(d for d in range(1, 5) if x.type.size % d == 0)
    image = op("Reshape", x, attrs=((1, 1, height, x.type.size // height),))
    stride, dilation = ((number(draw, 1, 2), number(draw, 1, 2)) for _ in range(2))
    padding = (number(draw, 0, 1), number(draw, 0, 1))
    fits = [
        max(k for k in (1, 2, 3) if e + 2 * p - d * (k - 1) >= 1)
        for e, p, d in zip(image.shape[2:], padding, dilation, strict=True)
    ]
    kernel = tuple(number(draw, 1, k) for k in fits)
    if name == "Conv2d":
        w = leaf("w", 2, 1, *kernel, dtype=x.dtype, constant=True)
        return op(name, image, w, attrs=(stride, padding, dilation, 1))
    windows = zip(image.shape[2:], kernel, stride, padding, dilation, strict=True)
    if not all(_meets_data(*window) for window in windows):  # its maximum would be -inf
        kernel, padding = (1, 1), (0, 0)
    return op(name, image, attrs=(kernel, stride, padding, dilation))


def _meets_data(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether each window contains an element of the tensor, and not only padding."""
    starts = range(-padding, extent + padding - dilation * (kernel - 1), stride)
    taps = range(0, dilation * kernel, dilation)
    return all(any(0 <= start + tap < extent for tap in taps) for start in starts)


def _layer_norm(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape or not is_float(x.dtype):
        return simple(x)
    last = x.shape[-1]
    scale, shift = (leaf(n, last, dtype=x.dtype, constant=True) for n in ("g", "h"))
    return op("LayerNorm", x, scale, shift, attrs=(1, 1e-5))


def _conv_transpose(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape or x.type.size > 32 or not is_float(x.dtype):
        return simple(x)
    image = op("Reshape", x, attrs=((1, 1, 1, x.type.size),))
    stride = (1, number(draw, 1, 2))
    kernel = (1, number(draw, 1, 3))
    w = leaf("w", 1, 2, *kernel, dtype=x.dtype, constant=True)
    padding = (0, number(draw, 0, (kernel[1] - 1) // 2))
    return op("ConvTranspose2d", image, w, attrs=(stride, padding, (0, 0), (1, 1), 1))


def _grouped_conv(draw: st.DrawFn, x: Tensor) -> Op:
    """A dense, grouped or depthwise convolution, with the first axis as channels."""
    if 0 in x.shape or x.type.size > 64 or not is_float(x.dtype):
        return simple(x)
    channels = x.shape[0]
    image = op("Reshape", x, attrs=((1, channels, 1, x.type.size // channels),))
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    filters = groups * number(draw, 1, 2)
    pad = number(draw, 0, 1)
    kernel = number(draw, 1, min(3, image.shape[3] + 2 * pad))
    w = leaf("w", filters, channels // groups, 1, kernel, dtype=x.dtype, constant=True)
    return op("Conv2d", image, w, attrs=((1, 1), (0, pad), (1, 1), groups))


def _gather(draw: st.DrawFn, x: Tensor) -> Op:
    if 0 in x.shape:
        return simple(x)
    axis = axis_of(draw, x)
    shape = (*x.shape[:axis], number(draw, 1, 3), *x.shape[axis + 1 :])
    return op("Gather", x, leaf(f"at{x.shape[axis]}_", *shape, dtype="int64"), attrs=(axis,))


def _with_constant(draw: st.DrawFn, x: Tensor) -> Op:
    """The tensor plus or times a constant or its positions."""
    name = draw(st.sampled_from(["Add", "Mul"] if x.dtype != "bool" else ["Maximum"]))
    if draw(st.booleans()):
        values = [2.0, 1.0, 0.0, -1.0, 0.5] if is_float(x.dtype) else [1.0, 0.0]
        return op(name, x, op("Full", attrs=((1,), draw(st.sampled_from(values)), x.dtype)))
    return op(name, x, op("Iota", attrs=(x.shape, axis_of(draw, x), x.dtype)))


def _combined(draw: st.DrawFn, x: Tensor, pool: Sequence[Tensor]) -> Op:
    """A binary operator on two values of the program whose shapes broadcast."""
    fitting = [
        y
        for y in pool
        if all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))
        and (x.dtype == "bool") == (y.dtype == "bool")
    ]
    y = draw(st.sampled_from(fitting)) if fitting else x
    common = ["Add", "Mul", "Sub", "Maximum", "Minimum"]
    names = [*common, *_BINARY] if x.dtype != "bool" else ["LogicalAnd", "LogicalOr", "Maximum"]
    return op(draw(st.sampled_from(names)), *((x, y) if draw(st.booleans()) else (y, x)))


def _product(draw: st.DrawFn, x: Tensor, pool: Sequence[Tensor]) -> Op:
    """A product of two matrices of the program, the second one perhaps transposed."""
    if len(x.shape) != 2 or x.dtype == "bool":
        return simple(x)
    options: list[Tensor] = []
    for y in pool:
        if len(y.shape) == 2 and y.dtype == x.dtype:
            turned = op("Permute", y, attrs=((1, 0),))
            options += [z for z in (y, turned) if z.shape[0] == x.shape[1]]
    return op("Matmul", x, draw(st.sampled_from(options))) if options else simple(x)


def _joined(draw: st.DrawFn, x: Tensor, pool: Sequence[Tensor]) -> Op:
    """A concatenation of values of the program."""
    axis = axis_of(draw, x)

    def rest(y: Tensor) -> tuple[int, ...]:
        return (*y.shape[:axis], *y.shape[axis + 1 :])

    fitting = [y for y in pool if len(y.shape) == len(x.shape) and rest(y) == rest(x)]
    fitting = [y for y in fitting if y.dtype == x.dtype]
    parts = draw(st.lists(st.sampled_from(fitting), max_size=2)) if fitting else []
    return op("Concat", x, *parts, attrs=(axis,))


_BUILDERS: Sequence[Build] = (
    _unary, _unary, _binary, _binary, _where, _cast, _matmul, _matmul, _reduce, _reduce,
    _along_axis, _layer_norm, *VIEWS.values(), _with_constant, _gather, _conv_transpose,
    _grouped_conv,
    *(lambda d, x, n=n: _window(d, x, n) for n in ("Conv2d", "MaxPool2d", "AvgPool2d")),
)  # fmt: skip
_JOINS: Sequence[Join] = (
    *(lambda d, x, _pool, b=b: b(d, x) for b in _BUILDERS),
    _combined, _combined, _combined, _combined, _product, _product, _joined, _joined,
)  # fmt: skip


@st.composite
def operator_programs(
    draw: st.DrawFn,
    *,
    steps: int = 3,
    dtypes: Sequence[str] = ("float32",),
    empty: bool = False,
    largest: int = 4,
    size: int = 512,
    structures: bool = False,
) -> Tensor:
    """Terms of a few operators, some of which read results of the others.

    Args:
        steps: the most operators, without those that a step needs to be well typed (a reshape).
        dtypes: the dtypes of the input, the simplest first.
        empty: whether extents may be 0.
        largest: the largest extent of the input.
        size: the most elements of a value.
        structures: whether a step may also be a structure that some law needs, and that single
            random operators seldom form (``structures.py``: bands, look-ups of rows, identity
            matrices). A failure then shrinks less far.
    """
    joins = [*_JOINS, *[lambda d, x, _pool: structure(d, x)] * 16] if structures else _JOINS
    shape = draw(shapes((1, 3), largest, empty=empty))
    pool: list[Tensor] = [leaf("x", *shape, dtype=draw(st.sampled_from(list(dtypes))))]
    for _ in range(steps):
        built = draw(_steps(pool, joins))
        if built is None:
            break
        if built.type.size <= size:
            pool.append(built)
    return pool[-1] if len(pool) > 1 else simple(pool[0])


@st.composite
def _steps(draw: st.DrawFn, pool: Sequence[Tensor], joins: Sequence[Join]) -> Op | None:
    """One more operator, or None, which ends the program. It is one draw, so that shrinking removes
    it as a whole."""
    if draw(st.integers(0, 7)) == 0:
        return None
    x = pool[-1 - draw(st.sampled_from([0, 0, 0, 1, 2])) % len(pool)]
    return draw(st.sampled_from(joins))(draw, x, pool) if x.shape else simple(x)
