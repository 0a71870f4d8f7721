"""Terms that the tests of ``lower`` run: examples of every operator, and random scopes.

Arguments are inputs named by their position, as in kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from eqsynth.extract.kernel import Backend, Kernel, Layout, strides
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, args_of
from eqsynth.ir.types import TensorType, is_float
from eqsynth.lower.torch_backend import VIEW, lies_in

# Error allowed, in units of the largest value of the result.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}


def tensor(position: int, *shape: int, dtype: str = "float32") -> Input:
    return Input(str(position), TensorType(shape, dtype))


def op(
    name: str, *shapes: tuple[int, ...], attrs: tuple[Any, ...] = (), dtype: str = "float32"
) -> Op:
    args = tuple(tensor(k, *shape, dtype=dtype) for k, shape in enumerate(shapes))
    return Op(name, args, attrs)


def with_dtypes(name: str, *types: tuple[tuple[int, ...], str], attrs: tuple[Any, ...] = ()) -> Op:
    args = tuple(tensor(k, *shape, dtype=dtype) for k, (shape, dtype) in enumerate(types))
    return Op(name, args, attrs)


CONV = ((1, 1), (1, 1), (1, 1), 1)
STRIDED = ((2, 1), (1, 2), (1, 2), 2)
POOL = ((3, 2), (2, 1), (1, 1), (1, 2))

# Examples of the operators that aren't a scalar function mapped over tensors.
SPECIAL: dict[str, list[Op]] = {
    "Cast": [
        with_dtypes("Cast", ((2, 3), "float32"), attrs=("float16",)),
        with_dtypes("Cast", ((2, 3), "float32"), attrs=("int32",)),
        with_dtypes("Cast", ((2, 3), "float32"), attrs=("float32",)),
        with_dtypes("Cast", ((2, 3), "bool"), attrs=("bfloat16",)),
    ],
    "Matmul": [
        op("Matmul", (5, 3), (3, 4)),
        op("Matmul", (2, 5, 3), (3, 4)),
        op("Matmul", (5, 3), (2, 3, 4)),
        op("Matmul", (2, 1, 5, 3), (1, 3, 3, 4)),
        op("Matmul", (5, 0), (0, 4)),
        op("Matmul", (0, 3), (3, 4)),
        op("Matmul", (3, 3), (3, 4), dtype="int64"),
    ],
    "Conv2d": [
        op("Conv2d", (2, 3, 6, 7), (4, 3, 3, 3), attrs=CONV),
        op("Conv2d", (1, 4, 9, 8), (6, 2, 3, 2), attrs=STRIDED),
        op("Conv2d", (1, 6, 5, 5), (6, 1, 3, 3), attrs=(*CONV[:3], 6)),
        op("Conv2d", (0, 3, 6, 7), (4, 3, 3, 3), attrs=CONV),
        op("Conv2d", (1, 4, 5, 5), (4, 2, 3, 3), attrs=(*CONV[:3], 2), dtype="int32"),
    ],
    "ConvTranspose2d": [
        op(
            "ConvTranspose2d", (2, 4, 5, 3), (4, 3, 3, 2), attrs=((2, 1), (1, 0), (1, 0), (1, 1), 1)
        ),
        op(
            "ConvTranspose2d", (1, 4, 3, 4), (4, 3, 2, 3), attrs=((2, 2), (0, 1), (0, 1), (2, 1), 2)
        ),
    ],
    "G2BMM": [
        op("G2BMM", (2, 7, 3), (2, 7, 3), attrs=(2, 1)),
        op("G2BMM", (1, 5, 3), (1, 5, 3), attrs=(1, 3)),
        op("G2BMM", (1, 5, 3), (1, 5, 3), attrs=(0, 1)),
        op("G2BMM", (2, 4, 0), (2, 4, 0), attrs=(1, 1)),
        op("G2BMM", (1, 4, 2), (1, 4, 2), attrs=(1, 1), dtype="int32"),
    ],
    "GBMM": [
        op("GBMM", (2, 7, 5), (2, 7, 3), attrs=(1,)),
        op("GBMM", (1, 5, 3), (1, 5, 2), attrs=(4,)),
        op("GBMM", (2, 0, 3), (2, 0, 3), attrs=(1,)),
        op("GBMM", (1, 4, 3), (1, 4, 2), attrs=(2,), dtype="int32"),
    ],
    "FusedMatmul": [
        op("FusedMatmul", (5, 3), (3, 4), (4,), attrs=(post,))
        for post in ("none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
    ]
    + [op("FusedMatmul", (2, 3, 5), (5, 4), (4,), attrs=("relu",))]
    + [op("FusedMatmul", (2, 0), (0, 4), (4,), attrs=("relu",))],
    "FusedMatmulAdd": [
        op("FusedMatmulAdd", (5, 3), (3, 4), (4,), (5, 4), attrs=(post,))
        for post in ("none", "gelu")
    ],
    "FusedConv2d": [
        op("FusedConv2d", (2, 3, 6, 7), (4, 3, 3, 3), (4,), attrs=(*CONV, post))
        for post in ("none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
    ]
    + [op("FusedConv2d", (1, 4, 9, 8), (6, 2, 3, 2), (6,), attrs=(*STRIDED, "relu"))],
    "FusedConv2dAdd": [
        op("FusedConv2dAdd", (2, 3, 6, 7), (4, 3, 3, 3), (4,), (2, 4, 6, 7), attrs=(*CONV, post))
        for post in ("none", "relu", "tanh")
    ],
    **{
        name: [
            op(name, (2, 3, 4), attrs=((0, 2), 0)),
            op(name, (2, 3, 4), attrs=((1,), 1)),
            op(name, (2, 3), attrs=((), 0)),
        ]
        for name in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean")
    },
    "Softmax": [op("Softmax", (2, 3, 4), attrs=(1,)), op("Softmax", (0, 3), attrs=(1,))],
    "CumSum": [
        op("CumSum", (2, 3, 4), attrs=(1,)), op("CumSum", (2, 3, 4), attrs=(2,)),
        op("CumSum", (0, 3), attrs=(1,)),
    ],
    "MaxPool2d": [
        op("MaxPool2d", (2, 3, 7, 6), attrs=POOL),
        op("MaxPool2d", (1, 2, 4, 4), attrs=((2, 2), (2, 2), (2, 2), (1, 1))),
        op("MaxPool2d", (1, 2, 5, 5), attrs=POOL, dtype="int8"),
    ],
    "AvgPool2d": [
        op("AvgPool2d", (2, 3, 7, 6), attrs=((3, 2), (2, 1), (1, 1), (1, 1))),
        op("AvgPool2d", (2, 3, 7, 6), attrs=POOL),
    ],
    "LayerNorm": [
        op("LayerNorm", (2, 3, 4), (4,), (4,), attrs=(1, 1e-5)),
        op("LayerNorm", (2, 3, 4), (3, 4), (3, 4), attrs=(2, 1e-3)),
    ],
    "Permute": [
        op("Permute", (2, 3, 4), attrs=((2, 0, 1),)),
        op("Permute", (2, 3, 4, 5), attrs=((0, 2, 3, 1),)),
        op("Permute", (2, 3), attrs=((0, 1),)),
    ],
    "Reshape": [
        op("Reshape", (2, 3, 4), attrs=((6, 4),)),
        op("Reshape", (2, 3), attrs=((2, 3),)),
        op("Reshape", (1, 1), attrs=((),)),
        op("Reshape", (2, 3, 4, 5), attrs=((2, 3, 20),)),
    ],
    "Expand": [op("Expand", (3, 1), attrs=((2, 3, 4),)), op("Expand", (3,), attrs=((3,),))],
    "Slice": [
        op("Slice", (6, 5), attrs=(0, 1, 6, 2)),
        op("Slice", (6, 5), attrs=(0, 2, 5, 1)),
        op("Slice", (6, 5), attrs=(1, 1, 4, 1)),
        op("Slice", (6, 5), attrs=(0, 0, 6, 1)),
        op("Slice", (1, 4, 3, 3), attrs=(1, 1, 3, 1)),
    ],
    "Pad": [
        op("Pad", (2, 3), attrs=((1, 0), (0, 2), -1.5)),
        op("Pad", (2, 3), attrs=((0, 0), (0, 0), 0.0)),
        with_dtypes("Pad", ((2, 3), "bool"), attrs=((1, 0), (0, 2), 1.0)),
    ],
    "Concat": [
        op("Concat", (2, 3), (2, 1), (2, 2), attrs=(1,)),
        with_dtypes("Concat", ((2, 3), "int32"), ((1, 3), "float32"), attrs=(0,)),
        op("Concat", (2, 3), attrs=(0,)),
        Op("Concat", (tensor(0, 2, 3), tensor(0, 2, 3)), (0,)),
    ],
    "Reverse": [op("Reverse", (5, 2), attrs=((1, 0),)), op("Reverse", (2, 0), attrs=((1,),))],
    "Shift": [op("Shift", (5, 2), attrs=(0, 2)), op("Shift", (5, 2), attrs=(0, -1))],
    "Unfold": [op("Unfold", (5, 2), attrs=(0, 3)), op("Unfold", (2, 5), attrs=(1, 4))],
    "Stride": [op("Stride", (6, 2), attrs=(0, 3)), op("Stride", (2, 6), attrs=(1, 2))],
    "Split": [op("Split", (6, 2), attrs=(0, 3)), op("Split", (2, 0), attrs=(1, 4))],
    "Merge": [op("Merge", (2, 3, 4), attrs=(1,)), op("Merge", (2, 0), attrs=(0,))],
    "UpsampleBilinear2d": [
        op("UpsampleBilinear2d", (1, 2, 3, 4), attrs=((6, 5), align)) for align in (0, 1)
    ],
    "Full": [
        Op("Full", (), ((2, 3), 1.5, "float32")),
        Op("Full", (), ((2,), 3.0, "int32")),
        Op("Full", (), ((), float("-inf"), "float64")),
    ],
    "Iota": [Op("Iota", (), ((2, 3), 1, dtype)) for dtype in ("int64", "float32")],
    "Interpolation": [
        Op("Interpolation", (), (extents, align, "float32"))
        for extents in ((7, 3), (1, 3), (2, 5))
        for align in (0, 1)
    ],
    "Literal": [
        Op("Literal", (), ((2, 3), (1, 0, -1, 5, 1, 9), (1, 1, 2, 3, 7, 4), dtype))
        for dtype in ("float32", "float64")
    ],
    "Embedding": [with_dtypes("Embedding", ((7, 3), "float32"), ((2, 4), "int32"))],
    "Gather": [with_dtypes("Gather", ((4, 5), "float32"), ((2, 5), "int64"), attrs=(0,))],
}


def examples(name: str) -> list[Op]:
    """Small terms of an operator; shapes that broadcast, mixed dtypes and repeated arguments."""
    if name in SPECIAL:
        return SPECIAL[name]
    arity = OPERATORS[name].arity
    shapes = [((3, 4),), ((3, 1), (1, 4)), ((3, 4), (4,), ())][(arity or 1) - 1]
    kinds = ["float32", "float64", "bfloat16"]
    # These have no meaning on integers that NumPy and torch share (division by zero).
    if name not in ("FloorDivide", "Remainder", "Pow"):
        kinds.append("int32")
    found = []
    for dtype in kinds:
        types = [(shape, dtype) for shape in shapes]
        if name == "Where":
            types[0] = (shapes[0], "bool")
        found.append(with_dtypes(name, *types))
    if arity == 2:
        x = tensor(0, 2, 3)
        found.append(Op(name, (x, x)))
        found.append(with_dtypes(name, ((2, 3), "float32"), ((), "float64")))
    if arity == 1:
        found.append(op(name, (2, 3, 2, 4)))
        found.append(op(name, (0, 3)))
    return found


def sample(term: Tensor, seed: int = 0) -> torch.Tensor:
    """Random values for an input; indices of ``Embedding`` and ``Gather`` are small integers."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, term.dtype)
    if is_float(term.dtype):
        return (2 * torch.randn(term.shape, generator=generator, dtype=torch.float64)).to(kind)
    high = 2 if term.dtype == "bool" else 4
    return torch.randint(0, high, term.shape, generator=generator).to(kind)


def arguments(term: Tensor, seed: int = 0) -> list[torch.Tensor]:
    """Values of the distinct arguments, in the order of ``args_of``."""
    values = [sample(arg, seed + k) for k, arg in enumerate(args_of(term))]
    if isinstance(term, Op) and term.name in ("Log", "Sqrt", "Rsqrt", "Pow", "Reciprocal"):
        values[0] = values[0].abs() + 1
    return values


def oracle(term: Tensor, values: Sequence[torch.Tensor]) -> np.ndarray:
    """What the interpreter gives for these values of the distinct arguments."""
    env = {arg.label: as_numpy(value) for arg, value in zip(args_of(term), values, strict=True)}
    return evaluate(term, env)


def as_numpy(value: torch.Tensor) -> np.ndarray:
    return value.detach().double().numpy() if value.is_floating_point() else value.numpy()


def assert_equal(term: Tensor, got: torch.Tensor, values: Sequence[torch.Tensor]) -> None:
    """The result has the term's type and the interpreter's values."""
    expected = oracle(term, values)
    assert tuple(got.shape) == term.shape
    assert got.dtype == getattr(torch, term.dtype)
    if not is_float(term.dtype):
        np.testing.assert_array_equal(got.numpy(), expected)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    narrow = [a.dtype for a in args_of(term) if is_float(a.dtype)] + [term.dtype]
    tolerance = max(TOLERANCE[dtype] for dtype in narrow)
    np.testing.assert_allclose(as_numpy(got), expected, rtol=tolerance, atol=tolerance * scale)


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """Random scopes: affine and other indices in and out of range, every reducer, nested bodies."""
    traversal = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    reduction = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    extents = traversal + reduction
    iterators = [Index.iterator(slot, extent) for slot, extent in enumerate(extents)]
    inputs = [
        tensor(0, *draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))),
        tensor(1, *draw(st.lists(st.integers(1, 6), max_size=2))),
        tensor(2, 4, dtype=draw(st.sampled_from(["int64", "float64", "bfloat16"]))),
    ]

    def index() -> Index:
        value = Index(draw(st.integers(-2, 3)))
        for it in draw(st.lists(st.sampled_from(iterators), max_size=2)) if iterators else ():
            value = value + it * draw(st.sampled_from([-2, -1, 1, 1, 1, 2, 3]))
        match draw(st.integers(0, 6)):
            case 0:
                return value // draw(st.integers(2, 3))
            case 1:
                return value % draw(st.integers(2, 5)) + (value // 2)
            case 2:
                return value.minimum(draw(st.integers(-1, 4))).maximum(draw(st.integers(-2, 2)))
        return value

    def scalar(depth: int) -> Scalar:
        kind = draw(st.integers(0, 8)) if depth else 0
        if kind <= 2:
            source = draw(st.sampled_from(inputs))
            fill = draw(st.sampled_from([0.0, 0.0, 1.0, -2.0]))
            return Read(source, tuple(index() for _ in source.shape), fill)
        parts = (scalar(depth - 1), scalar(depth - 1))
        match kind:
            case 3 | 4:
                return Prod(parts)
            case 5:
                return Sum((*parts, Num(draw(st.sampled_from([1.0, 0.5, -3.0])))))
            case 6:
                return Call(draw(st.sampled_from(["max", "min"])), parts)
            case 7:
                return Call(draw(st.sampled_from(["relu", "tanh", "abs"])), parts[:1])
        return Prod((Cast("float32", Value(index())), parts[0]))

    reducer = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
    return Scope(traversal, reduction, scalar(2), reducer)


def laid_out(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A new tensor of the same values, dense in ``layout``."""
    shape = tuple(value.shape)
    return torch.empty_strided(shape, strides(shape, layout), dtype=value.dtype).copy_(value)


def check_kernel(backend: Backend, kernel: Kernel, values: Sequence[torch.Tensor]) -> None:
    """A kernel's values, its declared layout, and that it leaves its arguments alone.

    A view shares its argument's memory; what another kernel gives shares none.
    """
    given = [laid_out(v, layout) for v, layout in zip(values, kernel.inputs, strict=True)]
    constants = {k: v for k, v in enumerate(given) if kernel.constants[k]}
    (runner,) = backend.build([(kernel, constants)])
    assert runner is not None
    varying = [v for k, v in enumerate(given) if k not in constants]
    result = runner(*varying)
    where = f"{kernel.implementation} {kernel.term} {kernel.inputs} -> {kernel.output}"
    assert_equal(kernel.term, result, values)
    assert lies_in(kernel.term.shape, result.stride(), kernel.output), where
    shared = {v.untyped_storage().data_ptr() for v in given if v.numel()}
    if kernel.term.type.size:
        viewed = result.untyped_storage().data_ptr() in shared
        assert viewed == (kernel.implementation == VIEW), where
    for value, before in zip(given, values, strict=True):
        assert torch.equal(value, before), f"an argument changed: {where}"
    again = runner(*varying)
    assert torch.equal(again.nan_to_num(), result.nan_to_num()), where
