"""The meaning of operators against torch: a few cases each, with the odd attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.data import sample_all
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS, Attr
from eqsynth.ir.tensor import Tensor
from tests.terms import leaf, op

Torch = Callable[..., torch.Tensor]


def check(name: str, attrs: tuple[Attr, ...], theirs: Torch, *args: Tensor) -> None:
    term = op(name, *args, attrs=attrs)
    env = sample_all(*args)
    got = evaluate(term, env)
    expected = theirs(*(torch.from_numpy(env[arg.label]) for arg in args))
    assert got.shape == term.shape == tuple(expected.shape)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-9, atol=1e-12)


X, Y = leaf("x", 2, 3, dtype="float64"), leaf("y", 3, dtype="float64")
IMAGE = leaf("image", 2, 4, 7, 6, dtype="float64")
_THEIRS: dict[str, Torch] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu, "silu": F.silu,
    "not": torch.logical_not, "and": torch.logical_and, "or": torch.logical_or,
    "max": torch.maximum, "min": torch.minimum, "mod": torch.remainder, "div": torch.true_divide,
    "floordiv": torch.floor_divide,
}  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_scalar_functions(fn: str) -> None:
    names = [row.name for row in OPERATORS.values() if row.function == fn]
    theirs = _THEIRS.get(fn) or getattr(torch, fn)
    operands: list[Tensor] = [X, Y]
    args = operands[: FUNCTIONS[fn].arity]
    if fn == "where":
        args = [leaf("mask", 2, 1, dtype="bool"), X, Y]
    if fn in ("log", "sqrt", "rsqrt", "pow"):
        args[0] = op("Abs", args[0])
    env = sample_all(*args)
    inputs = [torch.from_numpy(np.asarray(evaluate(arg, env))) for arg in args]
    for name in names:
        got = evaluate(op(name, *args), env)
        np.testing.assert_allclose(got, theirs(*inputs).numpy(), rtol=1e-9, atol=1e-12)
    assert names


@pytest.mark.parametrize("fn", [f.name for f in FUNCTIONS.values() if f.keeps_zero])
def test_what_keeps_zero_does(fn: str) -> None:
    function = FUNCTIONS[fn]
    assert np.all(np.asarray(function.value(*[np.zeros(2)] * function.arity)) == 0)


def test_relu_keeps_nan() -> None:
    got = evaluate(op("Relu", leaf("x", 3)), {"x": np.array([np.nan, -np.inf, np.inf])})
    np.testing.assert_array_equal(got, [np.nan, 0, np.inf])


def test_arithmetic() -> None:
    check("Add", (), torch.add, X, Y)
    check("Sub", (), torch.sub, X, Y)
    check("Mul", (), torch.mul, X, Y)
    check("Neg", (), torch.neg, X)
    bytes_ = leaf("u", 5, dtype="uint8"), leaf("v", 5, dtype="uint8")
    check("Sub", (), torch.sub, *bytes_)


def test_casts_round() -> None:
    got = evaluate(op("Cast", X, attrs=("bfloat16",)), sample_all(X))
    expected = torch.from_numpy(sample_all(X)["x"]).bfloat16().double().numpy()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (3, 4)), ((2, 1, 2, 3), (5, 3, 1)), ((1, 0), (0, 2))]
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = leaf("a", *left, dtype="float64"), leaf("b", *right, dtype="float64")
    check("Matmul", (), torch.matmul, a, b)


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(
    stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], groups: int
) -> None:
    w = leaf("w", 6, 4 // groups, 3, 2, dtype="float64")
    attrs = (stride, padding, dilation, groups)
    check("Conv2d", attrs, lambda x, k: F.conv2d(x, k, None, *attrs), IMAGE, w)
    up = leaf("up", 4, 6 // groups, 3, 2, dtype="float64")
    output_padding = (stride[0] - 1, stride[1] - 1)

    def transposed(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, k, None, stride, padding, output_padding, groups, dilation)

    of_up = (stride, padding, output_padding, dilation, groups)
    check("ConvTranspose2d", of_up, transposed, IMAGE, up)


def test_rows_outside_of_a_band_are_not_read() -> None:
    """Zero times what is infinite would be no number."""
    rows, band = np.array([[[np.inf], [1.0], [1.0], [np.inf]]]), np.ones((1, 4, 3))
    spread = evaluate(
        op("GBMM", leaf("p", 1, 4, 3), leaf("v", 1, 4, 1), attrs=(1,)), {"p": band, "v": rows}
    )
    np.testing.assert_array_equal(spread[0, :, 0], np.inf)
    products = evaluate(
        op("G2BMM", leaf("q", 1, 4, 1), leaf("k", 1, 4, 1), attrs=(1, 1)),
        {"q": np.ones((1, 4, 1)), "k": rows},
    )
    np.testing.assert_array_equal(products[0, 0], [0.0, np.inf, 1.0])
    np.testing.assert_array_equal(products[0, 3], [1.0, np.inf, 0.0])


def test_a_band_of_integers_is_exact() -> None:
    """Beyond 2^53, where float64 isn't."""
    large = 2**60 + 1
    one, row = np.ones((1, 1, 1), np.int64), np.full((1, 1, 1), large)
    a, b = leaf("a", 1, 1, 1, dtype="int64"), leaf("b", 1, 1, 1, dtype="int64")
    for term in (op("G2BMM", a, b, attrs=(0, 1)), op("GBMM", a, b, attrs=(1,))):
        assert evaluate(term, {"a": one, "b": row}).item() == large


@pytest.mark.parametrize(("width", "dilation"), [(0, 1), (2, 1), (1, 3), (2, 4)])
def test_bands_are_those_of_the_whole_product(width: int, dilation: int) -> None:
    q, k, v = (leaf(name, 2, 6, 3, dtype="float64") for name in "qkv")

    def band(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        reach = width * dilation
        whole = F.pad(q @ k.mT, (reach, reach))
        return torch.stack(
            [whole[:, m, m : m + 2 * reach + 1 : dilation] for m in range(q.shape[1])], 1
        )

    check("G2BMM", (width, dilation), band, q, k)

    def spread(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        reach = width * dilation
        dense = p.new_zeros(2, 6, 6 + 2 * reach)
        for m in range(6):
            dense[:, m, m : m + 2 * reach + 1 : dilation] = p[:, m]
        return dense[:, :, reach : reach + 6] @ v

    check("GBMM", (dilation,), spread, leaf("p", 2, 6, 2 * width + 1, dtype="float64"), v)


def test_fused_products() -> None:
    w, b = leaf("w", 5, 4, 3, 3, dtype="float64"), leaf("b", 5, dtype="float64")
    window = ((2, 2), (1, 1), (1, 1), 1)
    r = leaf("r", 2, 5, 4, 3, dtype="float64")
    check("FusedConv2d", (*window, "relu"),
          lambda x, w, b: F.relu(F.conv2d(x, w, b, 2, 1)), IMAGE, w, b)
    check("FusedConv2dAdd", (*window, "none"),
          lambda x, w, b, r: F.conv2d(x, w, b, 2, 1) + r, IMAGE, w, b, r)
    m, bias = leaf("m", 3, 4, dtype="float64"), leaf("bias", 4, dtype="float64")
    check("FusedMatmul", ("gelu",), lambda x, w, b: F.gelu(x @ w + b), X, m, bias)
    s = leaf("s", 2, 4, dtype="float64")
    check("FusedMatmulAdd", ("sigmoid",),
          lambda x, w, b, r: torch.sigmoid(x @ w + b + r), X, m, bias, s)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(0,), (1, 3), (3, 2, 1, 0), ()])
def test_reductions(axes: tuple[int, ...], keep: int) -> None:
    k = bool(keep)
    cases: dict[str, Torch] = {
        "ReduceSum": lambda x: x.sum(axes, k), "ReduceMean": lambda x: x.mean(axes, k),
        "ReduceMax": lambda x: x.amax(axes, k), "ReduceMin": lambda x: x.amin(axes, k),
    }  # fmt: skip
    for name, theirs in cases.items():
        if axes:  # torch takes no axes for all of them
            check(name, (axes, keep), theirs, IMAGE)
    same = evaluate(op("ReduceSum", IMAGE, attrs=((), keep)), sample_all(IMAGE))
    np.testing.assert_array_equal(same, sample_all(IMAGE)["image"])
    check("ReduceProd", ((1,), keep), lambda x: x.prod(1, k), IMAGE)


def test_sums_of_integers_are_int64() -> None:
    for dtype in ("uint8", "int32", "bool"):
        x = leaf("x", 4, 3, dtype=dtype)
        check("ReduceSum", ((0,), 0), lambda x: x.sum(0), x)
        assert op("ReduceSum", x, attrs=((0,), 0)).dtype == "int64"


@pytest.mark.parametrize("padding", [(0, 0), (1, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_pooling(stride: tuple[int, int], padding: tuple[int, int]) -> None:
    check("MaxPool2d", ((3, 2), stride, padding, (2, 1)),
          lambda x: F.max_pool2d(x, (3, 2), stride, padding, (2, 1)), IMAGE)
    check("AvgPool2d", ((3, 2), stride, padding, (1, 1)),
          lambda x: F.avg_pool2d(x, (3, 2), stride, padding), IMAGE)


def test_normalizations() -> None:
    for axis in range(4):
        check("Softmax", (axis,), lambda x, a=axis: x.softmax(a), IMAGE)
        check("CumSum", (axis,), lambda x, a=axis: x.cumsum(a), IMAGE)
    big = np.array([1e4, -1e4, 1e4])
    got = evaluate(op("Softmax", leaf("x", 3), attrs=(0,)), {"x": big})
    np.testing.assert_allclose(got, [0.5, 0, 0.5])
    g, h = leaf("g", 7, 6, dtype="float64"), leaf("h", 7, 6, dtype="float64")
    check("LayerNorm", (2, 1e-3), lambda x, g, h: F.layer_norm(x, (7, 6), g, h, 1e-3), IMAGE, g, h)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(14, 12), (3, 5), (1, 1), (7, 6)])
def test_bilinear_upsampling(size: tuple[int, int], align: int) -> None:
    check("UpsampleBilinear2d", (size, align),
          lambda x: F.interpolate(x, size, mode="bilinear", align_corners=bool(align)), IMAGE)


def test_views() -> None:
    check("Permute", ((2, 0, 3, 1),), lambda x: x.permute(2, 0, 3, 1), IMAGE)
    check("Reshape", ((8, 42),), lambda x: x.reshape(8, 42), IMAGE)
    check("Expand", ((4, 2, 3),), lambda x: x.expand(4, 2, 3), X)
    check("Slice", (2, 1, 6, 2), lambda x: x[:, :, 1:6:2], IMAGE)
    check("Stride", (1, 2), lambda x: x[:, ::2], IMAGE)
    check("Pad", ((0, 2), (1, 0), 5.0), lambda x: F.pad(x, (2, 0, 0, 1), value=5.0), X)
    check("Concat", (1,), lambda x, y: torch.cat([x, y], 1), X, leaf("z", 2, 1, dtype="float64"))
    check("Reverse", ((0, 2),), lambda x: x.flip(0, 2), IMAGE)
    check("Shift", (1, 2), lambda x: x.roll(-2, 1), X)
    check("Split", (2, 7), lambda x: x.unflatten(2, (-1, 7)), IMAGE)
    check("Merge", (1,), lambda x: x.flatten(1, 2), IMAGE)
    check("Unfold", (1, 3), lambda x: F.pad(x, (1, 1)).unfold(1, 3, 1), X)


def test_constants_and_data() -> None:
    check("Full", ((2, 2), 3.0, "float64"), lambda: torch.full((2, 2), 3.0))
    check("Iota", ((2, 3), 1, "int64"), lambda: torch.arange(3).expand(2, 3))
    ids = leaf("ids", 2, 2, dtype="bool")
    index = op("Cast", ids, attrs=("int64",))
    env = sample_all(X, ids)
    rows = evaluate(op("Embedding", X, index), env)
    np.testing.assert_array_equal(rows, env["x"][env["ids"].astype(int)])
    taken = evaluate(op("Gather", X, index, attrs=(1,)), env)
    theirs = torch.gather(torch.from_numpy(env["x"]), 1, torch.from_numpy(env["ids"]).long())
    np.testing.assert_array_equal(taken, theirs.numpy())


def test_an_opaque_operator_has_no_value_here() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        evaluate(op("Opaque", X, attrs=("aten.cumsum", (2, 3), "float64")), sample_all(X))
    assert caught.value.got == "aten.cumsum"


def test_every_operator_but_opaque_ones_has_a_meaning() -> None:
    from eqsynth.ir.reference import _REFERENCE

    known: set[Any] = {*_REFERENCE, "Concat", "Opaque"}
    missing = [r.name for r in OPERATORS.values() if r.name not in known and not r.function]
    assert missing == []
