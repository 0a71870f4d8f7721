"""Terms as ONNX: the table of operators through ONNX's evaluator (and ONNX Runtime where it is
installed), and what is refused. The interpreter is the measure.

Values at the edges of every dtype come from the table of differential tests, whose columns ``onnx``
and ``onnx-scopes`` run each operator, and the scope that defines it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, Value, product, total
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, over, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower.engines.through_onnx import model_of
from eqsynth.lower.onnx_operator import session
from eqsynth.lower.onnx_out import functions, operators
from eqsynth.testing.differential.harness import cases_of, run
from eqsynth.testing.differential.onnx_columns import RUNTIMES, evaluated
from eqsynth.testing.differential.row import Case, Operand, Row
from eqsynth.testing.differential.table import ROWS
from eqsynth.testing.edges import edge_values
from tests.turns import turn_of_now

COLUMNS = tuple(f"{name}{kind}" for name in ("onnx", *RUNTIMES) for kind in ("", "-scopes"))
PARTS = 320


def _in(name: str, *shape: int, dtype: str = "float32") -> Input:
    return Input(name, TensorType(shape, dtype))


def _array(term: Input, rng: np.random.Generator) -> Any:
    if term.dtype == "bool":
        return rng.random(term.shape) < 0.5
    if term.dtype.startswith("float"):
        return rng.standard_normal(term.shape).astype(term.dtype)
    return rng.integers(0 if term.dtype == "uint8" else -9, 10, term.shape).astype(term.dtype)


def assert_same(term: Tensor, arrays: Mapping[str, Any] | None = None) -> None:
    """The term's value in each runtime is the interpreter's, and the model passes the checker."""
    leaves = [leaf for leaf in topological([term]) if isinstance(leaf, Input)]
    own = {leaf: Input(str(n), leaf.type) for n, leaf in enumerate(leaves)}
    images: dict[Tensor, Tensor] = dict(own)
    for part in topological([term]):
        if part not in images:
            images[part] = over(part, images)
    rng = np.random.default_rng(0)
    values = {leaf.name: (arrays or {}).get(leaf.name, _array(leaf, rng)) for leaf in leaves}
    wanted = evaluate(term, values)
    model = model_of(Region((images[term],), tuple(own.values())), {})
    onnx.checker.check_model(model, full_check=True)
    grouped = isinstance(term, Op) and term.name == "ConvTranspose2d" and term.attrs[-1] != 1
    # The evaluator can't do transposed convolutions in groups.
    runtimes: list[Callable[..., Any]] = [] if grouped else [evaluated(model)]
    if find_spec("onnxruntime") is not None:
        runtimes.append(session(model))
    for runtime in runtimes:
        (got,) = runtime([values[leaf.name] for leaf in leaves])
        assert (got.shape, got.dtype) == (term.shape, np.dtype(term.dtype))
        if not term.dtype.startswith("float"):
            np.testing.assert_array_equal(got, wanted)
            continue
        eps = 2e-3 if term.dtype == "float16" else 2e-5
        np.testing.assert_allclose(got, wanted, eps, eps)


# ---- operators ----------------------------------------------------------------------------------

X = _in("x", 2, 6, 8, 9)
IMAGE, FILTERS = _in("i", 2, 4, 7, 9), _in("f", 6, 2, 3, 2)
BIAS = _in("b", 6)
CONV = ((2, 1), (1, 2), (1, 2), 2)
A, B = _in("a", 2, 5, 4), _in("b", 2, 5, 4)

STRUCTURED = [
    Op("Matmul", (_in("a", 3, 1, 4, 5), _in("b", 2, 5, 6))),
    Op("Matmul", (_in("a", 4, 5, dtype="int8"), _in("b", 5, 6, dtype="int8"))),
    Op("Matmul", (_in("a", 4, 5, dtype="float16"), _in("b", 5, 6, dtype="float16"))),
    Op("FusedMatmul", (_in("a", 4, 5), _in("w", 5, 6), BIAS), ("silu",)),
    Op("FusedMatmulAdd", (_in("a", 4, 5), _in("w", 5, 6), BIAS, _in("r", 4, 6)), ("gelu_tanh",)),
    Op("Conv2d", (IMAGE, FILTERS), CONV),
    Op("FusedConv2d", (IMAGE, FILTERS, BIAS), (*CONV, "relu")),
    Op("FusedConv2dAdd", (IMAGE, FILTERS, BIAS,
       Op("Tanh", (Op("Conv2d", (IMAGE, FILTERS), CONV),))), (*CONV, "gelu")),
    Op("ConvTranspose2d", (IMAGE, _in("w", 4, 3, 3, 2)), ((2, 3), (1, 0), (1, 2), (1, 2), 1)),
    Op("ConvTranspose2d", (IMAGE, _in("w", 4, 3, 3, 2)), ((2, 3), (1, 0), (0, 0), (1, 2), 2)),
    Op("G2BMM", (A, B), (2, 3)),
    Op("GBMM", (Op("G2BMM", (A, B), (2, 3)), B), (3,)),
    *(Op(f"Reduce{r}", (X,), ((1, 3), keep)) for keep in (0, 1)
      for r in ("Sum", "Max", "Min", "Prod", "Mean")),
    *(Op(f"Reduce{r}", (_in("n", 3, 4, dtype=dtype),), ((0,), 0)) for r in ("Sum", "Max", "Prod")
      for dtype in ("int8", "int16", "int32", "int64", "uint8", "bool")),
    Op("ReduceMax", (X,), ((), 1)),
    *(Op("Softmax", (X,), (axis,)) for axis in (0, 2, 3)),
    *(Op("CumSum", (X,), (axis,)) for axis in (0, 3)),
    Op("MaxPool2d", (X,), ((3, 2), (2, 1), (1, 1), (1, 2))),
    Op("MaxPool2d", (X,), ((3, 2), (2, 1), (2, 2), (1, 1))),  # windows in the padding alone
    Op("AvgPool2d", (X,), ((3, 2), (2, 1), (1, 1), (1, 1))),
    Op("AvgPool2d", (X,), ((3, 2), (1, 1), (2, 0), (1, 2))),
    Op("LayerNorm", (X, _in("s", 8, 9), _in("t", 8, 9)), (2, 1e-5)),
    Op("LayerNorm", (_in("x", 4, 9, dtype="float64"), _in("s", 9, dtype="float64"),
       _in("t", 9, dtype="float64")), (1, 1e-5)),
    *(Op("UpsampleBilinear2d", (IMAGE,), (size, corners)) for corners in (0, 1)
      for size in ((14, 18), (3, 5), (1, 1), (7, 30), (8, 2))),
    Op("Permute", (X,), ((3, 0, 2, 1),)),
    Op("Slice", (X,), (2, 1, 8, 3)),
    Op("Pad", (X,), ((0, 1, 0, 2), (1, 0, 0, 1), -1.5)),
    Op("Pad", (_in("m", 3, dtype="bool"),), ((1,), (1,), 1.0)),
    Op("Concat", (X, _in("y", 2, 3, 8, 9), _in("z", 2, 1, 8, 9, dtype="int32")), (1,)),
    *(Op("Reverse", (X,), (axes,)) for axes in ((), (3,), (0, 2))),
    *(Op("Shift", (X,), (3, amount)) for amount in (-2, 0, 4, 11)),
    *(Op("Unfold", (X,), (2, size)) for size in (1, 4, 5)),
    Op("Stride", (X,), (2, 4)),
    Op("Split", (X,), (1, 3)),
    Op("Merge", (X,), (1,)),
    Op("Expand", (_in("x", 3, 1),), ((2, 3, 4),)),
    Op("Gather", (_in("x", 5, 4), _in("p", 2, 3, dtype="int64")), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("term", STRUCTURED, ids=lambda term: f"{term.name}{term.attrs}")
def test_an_operator(term: Op) -> None:
    places = {"p": np.array([[0, 4, 1], [2, 2, 3]])}
    assert_same(term, places)


def test_every_operator_has_a_row() -> None:
    names = {row.name for row in OPERATORS.values() if not row.function}
    rows = {*operators._COMPUTED, *operators._VIEWS, *operators._DATA}
    assert names - rows == {"Cast", "Concat", "Full", "Iota", "Interpolation", "Literal", "Opaque"}
    scalars = {row.function for row in OPERATORS.values() if row.function}
    known = {*functions._DIRECT, *functions._COMPARISONS, *functions._COMPOSED}
    assert scalars <= known | {f.name for f in FUNCTIONS.values() if f.made is not None}


def test_a_part_of_the_table(request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--differential-part")
    part = turn_of_now() if given is None else int(given)
    # A few parts have no row for some column. The fixed part has rows for both.
    outcome, fixed = (run(cases_of(ROWS, n, PARTS), COLUMNS) for n in (part, 4))
    told = "\n".join(map(str, outcome.failures))
    assert not outcome.failures, f"{outcome}\n{told}\nagain: --differential-part {part % PARTS}"
    assert not fixed.failures and {"onnx", "onnx-scopes"} <= set(fixed.computed)


@pytest.mark.rotating
def test_functions_that_are_composed() -> None:
    """All pairs of edge values: NaN, infinities, the least integer by -1, zero divisors."""
    unary = ("expm1", "log1p", "sign", "trunc", "relu")
    rows = [Row(f"aten::{name}", (Operand(),)) for name in unary]
    rows += [Row(f"aten::{name}", (Operand(), Operand()))
             for name in ("floor_divide", "remainder.Tensor", "maximum")]  # fmt: skip
    cases = [Case(row, dtype) for row in rows for dtype in ("float32", "int8", "int64", "uint8")]
    outcome = run(cases, COLUMNS)
    assert not outcome.failures, "\n".join(map(str, outcome.failures))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_at_the_ends_of_their_dtype(dtype: str) -> None:
    """All pairs: the least one by -1, zero divisors, quotients that round down, what wraps."""
    edges = edge_values(dtype)
    arrays = {"x": edges[:, None], "y": edges[None]}
    x, y = (_in(name, *arrays[name].shape, dtype=dtype) for name in "xy")
    names = ["FloorDivide", "Remainder", "Add", "Mul", "Sub", "Maximum", "Minimum", "Less"]
    of_bools = ("Add", "Mul", "Maximum", "Minimum", "Less")
    for name in names if dtype != "bool" else of_bools:
        assert_same(Op(name, (x, y)), arrays)
    for name in ("Sign", "Neg", "Relu", "Abs") if dtype != "bool" else ("Sign", "LogicalNot"):
        assert_same(Op(name, (x,)), arrays)


# ---- scopes -------------------------------------------------------------------------------------


def _it(slot: int, extent: int) -> Index:
    return Index.iterator(slot, extent)


M, K, W = _in("m", 4, 5), _in("k", 5, 6), _in("w", 5, dtype="float64")
i4, j6, k5 = _it(0, 4), _it(1, 6), _it(2, 5)


def _diagonal(fill: float) -> Scalar:
    return Read(_in("d", 4, 5), (_it(0, 6) - 1, _it(0, 6)), fill)


SCOPES = {
    "matmul": Scope((4, 6), (5,), product([Read(M, (i4, k5)), Read(K, (k5, j6)), Num(0.5)])),
    "square": Scope((4,), (5,), product([Read(M, (i4, _it(1, 5)))] * 2)),
    "idle": Scope((4,), (3, 5), Read(M, (i4, _it(2, 5)))),
    "idle max": Scope((4,), (3, 5), Read(M, (i4, _it(2, 5))), "max"),
    "idle prod": Scope((4,), (3, 2), Read(M, (i4, _it(2, 2))), "prod"),
    "apart": Scope((4, 6), (5, 3), product([Read(M, (i4, k5)), Read(K, (_it(3, 3), j6))])),
    "three": Scope((4, 6), (5,),
                   product([Read(M, (i4, k5)), Read(K, (k5, j6)), Read(M, (i4, k5 * 1))])),
    "batched": Scope((5, 4), (6,), product([Read(_in("t", 4, 6, 5), (_it(1, 4), _it(2, 6),
                     _it(0, 5))), Read(K, (_it(0, 5), _it(2, 6)))])),
    "window": Scope((4, 3), (3,), Read(_in("d", 4, 5), (i4, 2 * _it(1, 3) + _it(2, 3) - 1), -2.0),
                    "max"),
    "reversed": Scope((5,), (), Read(_in("v", 9), (8 - 2 * _it(0, 5),))),
    "reversed out": Scope((7,), (), Read(_in("v", 9), (10 - 2 * _it(0, 7),), 3.0)),
    "far out": Scope((2, 3), (), Read(_in("v", 4), (40 + _it(0, 2),), 7.0)),
    "diagonal": Scope((6,), (), _diagonal(0.0)),
    "diagonal filled": Scope((6,), (), _diagonal(-1.0)),
    "blocks": Scope((12,), (), Read(_in("d", 4, 3), (_it(0, 12) // 3, _it(0, 12) % 3))),
    "clamped": Scope((6,), (), Read(_in("v", 4), (_it(0, 6).minimum(3),))),
    "positions": Scope((3, 4), (), total([Value(_it(0, 3) * 4 + _it(1, 4)),
                       Read(_in("n", 3, dtype="int64"), (_it(0, 3),))])),
    "where": Scope((4, 5), (), Call("where", (Call("lt", (Value(_it(0, 4)), Value(_it(1, 5)))),
                   Read(M, (i4, _it(1, 5))), Num(float("-inf"))))),
    "where of numbers": Scope((4,), (), Cast("float32", Call("where", (
        Read(_in("p", 4, dtype="bool"), (i4,)), Num(0.1), Num(-math.inf))))),
    "where of numbers among others": Scope((4,), (), total([Read(_in("v", 4), (i4,)),
        Call("where", (Read(_in("p", 4, dtype="bool"), (i4,)), Num(0.1), Num(7.0)))])),
    "whole": Scope((4,), (), Call("lt", (Read(_in("n", 4, dtype="int32"), (i4,)), Num(0.5)))),
    "byte": Scope((4,), (), Call("gt", (Read(_in("n", 4, dtype="uint8"), (i4,)), Num(-1)))),
    "wraps": Scope((4,), (), product([Read(_in("n", 4, dtype="int8"), (i4,)), Num(100)])),
    "rounded": Scope((4,), (), Cast("float32", Cast("int32", product([Read(_in("v", 4), (i4,)),
                     Num(3)])))),
    "bools": Scope((4,), (), total([Read(_in(c, 4, dtype="bool"), (i4,)) for c in "pq"])),
    "counted": Scope((), (4,), Read(_in("p", 4, dtype="bool"), (i4,))),
    "number": Scope((2, 3), (), Num(4)),
    "sum of number": Scope((2,), (5,), Num(0.5)),
    "half": Scope((3,), (4,), product([Read(_in("h", 3, 4, dtype="float16"), (_it(0, 3),
                  _it(1, 4))), Num(1.5)])),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope(name: str) -> None:
    assert_same(SCOPES[name])


# ---- what is refused ----------------------------------------------------------------------------


def _refused(term: Tensor) -> UnsupportedOperatorError:
    args = tuple(leaf for leaf in topological([term]) if isinstance(leaf, Input))
    with pytest.raises(UnsupportedOperatorError) as caught:
        model_of(Region((term,), args), {})
    return caught.value


def test_what_is_refused() -> None:
    n = _in("0", 4, dtype="int32")
    assert "pow" in _refused(Op("Pow", (n, n))).got
    opaque = Op("Opaque", (_in("0", 4),), ("aten::sort", (4,), "float32"), "net.head")
    error = _refused(opaque)
    assert "aten::sort" in error.got and error.where == "net.head (Opaque)"
    pixels, filters = (_in(str(k), 1, 1, 3, 3, dtype="int32") for k in range(2))
    window = ((1, 1), (0, 0), (1, 1), 1)
    assert "int32" in _refused(Op("Conv2d", (pixels, filters), window)).got
    assert "int32" in _refused(Op("MaxPool2d", (pixels,), ((2, 2), (1, 1), (0, 0), (1, 1)))).got
    _refused(Op("Relu", (_in("0", 0, 3),)))
    _refused(Op("LayerNorm", (_in("0", 3), _in("1"), _in("2")), (0, 1e-5)))
    many = Scope((1 << 11, 1 << 11), (), Read(_in("0", 1 << 12, 1 << 12),
                 (_it(0, 1 << 11) + _it(1, 1 << 11), _it(1, 1 << 11))))  # fmt: skip
    assert "places" in _refused(many).got


def test_what_is_said_twice_is_one_node() -> None:
    x = _in("0", 4)
    region = Region((Op("Relu", (x,)), Op("Relu", (Op("Reshape", (x,), ((4,),)),))), (x,))
    made = onnx.ModelProto.FromString(model_of(region, {}))
    assert [node.op_type for node in made.graph.node] == ["Relu", "Identity", "Identity"]
    (first, second) = evaluated(made.SerializeToString())([np.array([-1, 1, 2, 3], np.float32)])
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]


def test_constants_are_in_the_model() -> None:
    x, w = _in("0", 2, 3), _in("1", 3, 4, dtype="bfloat16")
    term = Op("Matmul", (x, Op("Cast", (w,), ("float32",))))
    weight = torch.randn(3, 4).bfloat16()
    model = model_of(Region((term,), (x, w)), {1: weight})
    given = torch.randn(2, 3)
    (got,) = evaluated(model)([given.numpy()])
    torch.testing.assert_close(torch.from_numpy(got), given @ weight.float())
