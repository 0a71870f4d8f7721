"""Scopes, reductions, indices and operators written as expressions, against NumPy."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eqsynth.errors import DtypeError, EqsynthError, ShapeError
from eqsynth.frontend import expression as E
from eqsynth.frontend import ops
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Op, Scope

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 6))
Y = RNG.standard_normal((6, 3))
IMAGE = RNG.standard_normal((6, 5, 2))
KERNEL = RNG.standard_normal((3, 3, 4, 2))
ARRAYS = {"x": X, "y": Y, "image": IMAGE, "kernel": KERNEL}

x, y = E.input("x", X.shape), E.input("y", Y.shape)
image, kernel = E.input("image", IMAGE.shape), E.weight("kernel", KERNEL.shape)


def value(expr: Expr) -> Any:
    return evaluate(expr.tensor, ARRAYS)


def _convolution() -> np.ndarray:
    padded = np.pad(IMAGE, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((6, 5, 4))
    for r in range(3):
        for s in range(3):
            out += padded[r : r + 6, s : s + 5] @ KERNEL[r, s].T
    return out


def _read(array: np.ndarray, i: int, j: int, fill: float = 0.0) -> float:
    inside = 0 <= i < array.shape[0] and 0 <= j < array.shape[1]
    return float(array[i, j]) if inside else fill


def _table(rows: int, columns: int, entry: Callable[[int, int], float]) -> np.ndarray:
    return np.array([[entry(i, j) for j in range(columns)] for i in range(rows)])


convolution = E.scope(
    lambda h, w, f: E.sum(
        lambda r, s, c: image[h + r - 1, w + s - 1, c] * kernel[r, s, f, c], r=3, s=3, c=2
    ),
    h=6,
    w=5,
    f=4,
)
matmul = E.scope(lambda i, j: E.sum(lambda k: x[i, k] * y[k, j], k=6), i=5, j=3)

CASES: dict[str, tuple[Expr, Any]] = {
    "convolution": (convolution, _convolution()),
    "matmul": (matmul, X @ Y),
    "order of keywords": (
        E.scope(lambda j, i: E.sum(lambda k: x[i, k] * y[k, j], k=6), j=3, i=5), (X @ Y).T
    ),
    "reduction inside": (
        E.scope(lambda i, j: ops.relu(E.sum(lambda k: x[i, k] * y[k, j], k=6) + y[0, j]), i=5, j=3),
        np.maximum(X @ Y + Y[0], 0),
    ),
    "two reductions": (
        E.scope(
            lambda i: E.max(lambda k: x[i, k], k=6) - E.min(lambda k: x[i, k], k=6), i=5
        ),
        X.max(1) - X.min(1),
    ),
    "a reduction of a reduction": (
        E.scope(lambda i: E.max(lambda j: E.sum(lambda k: x[i, k] * y[k, j], k=6), j=3), i=5),
        (X @ Y).max(1),
    ),
    "a sum of a sum": (
        E.scope(lambda: E.sum(lambda i: E.sum(lambda j: x[i, j], j=6), i=5)), X.sum()
    ),
    "no reduction in the first dimension": (
        E.scope(lambda i, j: x[i, j] / E.sum(lambda k: ops.exp(x[i, k]), k=6), i=5, j=6),
        X / np.exp(X).sum(1, keepdims=True),
    ),
    "product": (E.scope(lambda i: E.prod(lambda k: x[i, k], k=6), i=5), X.prod(1)),
    "fill": (
        E.scope(lambda i, j: E.max(lambda r: x.read(i + r - 1, j, fill=-math.inf) - 9, r=3),
                i=5, j=6),
        _table(5, 6, lambda i, j: max(_read(X, i + r, j, -math.inf) - 9 for r in (-1, 0, 1))),
    ),
    "floor division": (
        E.scope(lambda i, j: x[(i - 3) // 2 + 2, (j + 1) // 3], i=8, j=6),
        _table(8, 6, lambda i, j: _read(X, (i - 3) // 2 + 2, (j + 1) // 3)),
    ),
    "remainder": (
        E.scope(lambda i, j: x[(i - 3) % 5, 2 * (j % 3) + 1], i=8, j=6),
        _table(8, 6, lambda i, j: _read(X, (i - 3) % 5, 2 * (j % 3) + 1)),
    ),
    "negative indices read the fill": (E.scope(lambda i: x[i, 0 * i - 1], i=5), np.zeros(5)),
    "an index as a number": (
        E.scope(lambda i, j: x[i, j] * (i + 2 * j) + i, i=5, j=6),
        X * (np.arange(5)[:, None] + 2 * np.arange(6)) + np.arange(5)[:, None],
    ),
    "a condition on indices": (
        E.scope(lambda i, j: ops.where(i >= j, x[i, j], 0.0), i=5, j=6), np.tril(X)
    ),
    "equality of indices": (
        E.scope(lambda i, j: ops.where(i == j, 1.0, x[i, j]), i=5, j=6),
        np.where(np.eye(5, 6) > 0, 1.0, X),
    ),
    "scalar arithmetic": (
        E.scope(lambda i, j: (2 - x[i, j]) / 4 - (-x[i, j]) ** 2 + 3 * x[i, j], i=5, j=6),
        (2 - X) / 4 - X**2 + 3 * X,
    ),
    "functions of scalars": (
        E.scope(lambda i, j: ops.maximum(ops.tanh(x[i, j]), ops.gelu(x[i, j])), i=5, j=6),
        torch.maximum(torch.as_tensor(X).tanh(), F.gelu(torch.as_tensor(X))).numpy(),
    ),
    "a cast": (E.scope(lambda i, j: ops.to(3 * x[i, j], "int64"), i=5, j=6), (3 * X).astype(int)),
    "a scope reads a scope": (
        E.scope(lambda i, j: matmul[i, j - 1] + matmul[i, j], i=5, j=3),
        X @ Y + np.pad(X @ Y, ((0, 0), (1, 0)))[:, :3],
    ),
    "operators and scopes": (ops.relu(matmul) @ ops.t(matmul), np.maximum(X @ Y, 0) @ (X @ Y).T),
    "extent 1": (E.scope(lambda i, j: E.sum(lambda k: x[i + k, j], k=1), i=1, j=6), X[:1]),
    "extent 0": (E.scope(lambda i: E.sum(lambda k: x[i, k], k=0), i=5), np.zeros(5)),
    "rank 0 as a scalar": (
        E.scope(lambda i, j: x[i, j] * ops.sum(x), i=5, j=6), X * X.sum()
    ),
    "Python operators on tensors": (-(1 - x) * 2 + x / 4, -(1 - X) * 2 + X / 4),
    "einsum": (ops.einsum("ik,kj->ji", x, y), (X @ Y).T),
    "einsum of three": (ops.einsum("ik,kj,ik->j", x, y, x), np.einsum("ik,kj,ik->j", X, Y, X)),
    "einsum of a diagonal": (ops.einsum("ii->i", ops.narrow(x, 1, 0, 5)), np.diag(X)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_expression_has_the_value_that_numpy_gives(name: str) -> None:
    expr, expected = CASES[name]
    got = value(expr)
    assert got.shape == expr.shape == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_a_scope_around_a_reduction_is_one_scope() -> None:
    term = convolution.tensor
    assert isinstance(term, Scope)
    assert (term.traversal, term.reduction, term.reducer) == ((6, 5, 4), (3, 3, 2), "sum")


def test_a_reduction_inside_becomes_a_scope_over_the_iterators_it_uses() -> None:
    term = E.scope(lambda i, j: E.sum(lambda k: x[i, k], k=6) * y[0, j], i=5, j=3).tensor
    assert isinstance(term, Scope) and term.reduction == ()
    inner = [r.tensor for r in _reads(term) if isinstance(r.tensor, Scope)]
    assert [(t.traversal, t.reduction) for t in inner] == [((5,), (6,))]


def _reads(scope: Scope) -> list[Read]:
    from eqsynth.ir.scalar import reads

    return list(reads(scope.body))


def test_nested_sums_are_one_reduction() -> None:
    term = CASES["a sum of a sum"][0].tensor
    assert isinstance(term, Scope) and term.reduction == (5, 6)


def test_building_the_same_scope_twice_gives_equal_terms() -> None:
    def build() -> Expr:
        return E.scope(lambda i: ops.relu(E.sum(lambda k: x[i, k], k=6)), i=5)

    assert build().tensor == build().tensor


def test_expressions_print() -> None:
    assert str(matmul) == "t0 = L[i<5, j<3] sum[k0<6] . x[i, k0] * y[k0, j]  # float32[5, 3]"
    assert repr(x) == "Expr(x: float32[5, 6])"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("float16", "float32", "float32"), ("int64", "float16", "float16"), ("bool", "int8", "int8")],
)
def test_elementwise_operators_promote(left: str, right: str, expected: str) -> None:
    a, b = E.input("a", (2,), left), E.input("b", (2,), right)
    assert (a * b).dtype == expected
    assert ops.maximum(a, b).dtype == expected


@pytest.mark.parametrize(("dtype", "expected"), [("int32", "float32"), ("float16", "float16")])
def test_a_float_number_takes_the_tensors_dtype_if_that_is_a_float(
    dtype: str, expected: str
) -> None:
    assert (E.input("a", (2,), dtype) * 0.5).dtype == expected


def test_logical_operators_take_bools() -> None:
    term = ops.logical_and(x, x > 0).tensor
    assert isinstance(term, Op) and [a.dtype for a in term.args] == ["bool", "bool"]


# -- errors --------------------------------------------------------------------------------------

half = E.input("half", (6, 3), "float16")


def doubled(value: Any, times: int) -> Any:
    return doubled(value + value, times - 1) if times else value


ERRORS: dict[str, tuple[Callable[[], Any], type[EqsynthError], str]] = {
    "inner extents": (lambda: x @ x, ShapeError, "inner extents"),
    "mixed dtypes in matmul": (lambda: x @ half, DtypeError, "different dtypes"),
    "mixed dtypes in conv2d": (
        lambda: ops.conv2d(E.input("a", (1, 1, 4, 4)), E.input("b", (1, 1, 3, 3), "float64")),
        DtypeError,
        "different dtypes",
    ),
    "broadcast": (lambda: x + y, ShapeError, "don't broadcast"),
    "no such axis": (lambda: ops.softmax(x, 2), ShapeError, "no such axis"),
    "unknown dtype": (lambda: E.input("a", (2,), "float33"), DtypeError, "unknown dtype"),
    "negative extent": (lambda: E.input("a", (-2,)), ShapeError, "negative extent"),
    "too few indices": (
        lambda: E.scope(lambda i: x[i], i=5), ShapeError, "wrong number of indices"
    ),
    "a float as an index": (
        lambda: E.scope(lambda i: x[i, 0.5], i=5), ShapeError, "indexed by something"
    ),
    "a scalar as an index": (
        lambda: E.scope(lambda i: x[i, x[i, 0]], i=5), ShapeError, "indexed by something"
    ),
    "a sum of 2^30 terms": (
        lambda: E.scope(lambda i: doubled(x[i, 0], 30), i=2), EqsynthError, "too many operands"
    ),
    "an index divided by 0": (lambda: E.scope(lambda i: x[i // 0, 0], i=5), ShapeError, "below 1"),
    "a tensor without index": (
        lambda: E.scope(lambda i: x + i, i=5), ShapeError, "without an index"
    ),
    "parameters that aren't the keywords": (
        lambda: E.scope(lambda i, j: x[i, j], i=5), ShapeError, "parameters"
    ),
    "an extent below 0": (
        lambda: E.scope(lambda i: x[i, 0], i=-1), ShapeError, "no size"
    ),
    "an iterator of another scope": (
        lambda: E.scope(lambda i: E.scope(lambda j: x[i, j], j=6)[0], i=5), ShapeError, "outside"
    ),
    "a condition in Python": (
        lambda: E.scope(lambda i: x[i, 0] if i < 3 else 0, i=5), DtypeError, "truth value"
    ),
    "an array as an operand": (lambda: x + Y, DtypeError, "part of an expression"),
    "iteration": (lambda: list(x), DtypeError, "part of an expression"),
    "a value of another shape": (
        lambda: E.weight("w", (2, 2), value=Y), ShapeError, "another shape"
    ),
    "an einsum that doesn't fit": (lambda: ops.einsum("ij,jk->ik", x, x), ShapeError, "einsum"),
    "a result letter from nowhere": (lambda: ops.einsum("ij->ik", x), ShapeError, "einsum"),
    "uneven adaptive pooling": (
        lambda: ops.adaptive_avg_pool2d(E.input("a", (1, 1, 5, 5)), 2), ShapeError, "adaptive"
    ),
    "reshape": (lambda: ops.reshape(x, (4, -1)), ShapeError, "-1"),
    "two inputs of one name": (
        lambda: capture_expression(E.input("x", (5, 6), "float64") * x), EqsynthError, "two tensors"
    ),
    "two weights of one name": (
        lambda: E.weight("w", (6, 3), value=Y) + E.weight("w", (6, 3), value=Y + 1),
        EqsynthError,
        "two weights",
    ),
    "a shape of fractions": (lambda: E.input("x", (2.5, 4)), ShapeError, "no row of sizes"),  # type: ignore[arg-type]
    "a shape of bools": (lambda: E.input("x", (True, 4)), ShapeError, "no row of sizes"),
    "a shape that is text": (lambda: E.weight("x", "44"), ShapeError, "no row of sizes"),  # type: ignore[arg-type]
    "a shape that is a number": (lambda: E.input("x", 4), ShapeError, "no row of sizes"),  # type: ignore[arg-type]
    "a name that is none": (lambda: E.input(3, (4,)), EqsynthError, "no text"),  # type: ignore[arg-type]
    "a list as a value": (
        lambda: E.weight("w", (2,), value=[1, 2]), EqsynthError, "no array"
    ),
    "integers for floats": (
        lambda: E.weight("w", (2,), value=np.array([1, 2])), DtypeError, "another dtype"
    ),
    "wide integers for narrow ones": (
        lambda: E.weight("w", (2,), "int8", torch.tensor([1, 2])), DtypeError, "another dtype"
    ),
    "a dtype of NumPy": (lambda: ops.full((2,), 1, np.float32), DtypeError, "unknown dtype"),  # type: ignore[arg-type]
    "a dtype that eqsynth lacks": (
        lambda: ops.to(x, torch.complex64), DtypeError, "unknown dtype"
    ),
    "nothing as a program": (lambda: E.program_of(None), EqsynthError, "no program"),  # type: ignore[arg-type]
    "a number among programs": (lambda: E.program_of([x, 3]), EqsynthError, "no program"),  # type: ignore[list-item]
    "a huge integer": (
        lambda: E.input("n", (2,), "int64") + (2**60 + 1), DtypeError, "too large"
    ),
    "a huge integer in a scope": (
        lambda: E.scope(lambda i: E.input("n", (2,), "int64")[i] + (2**53 + 1), i=2),
        DtypeError, "too large",
    ),
    "an integer beyond floats": (
        lambda: E.scope(lambda i: x[i, 0] * 10**400, i=3), DtypeError, "too large"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit_is_an_error_when_it_is_built(name: str) -> None:
    build, kind, what = ERRORS[name]
    with pytest.raises(kind) as caught:
        build()
    assert what in caught.value.what
    assert caught.value.got and caught.value.expected


def test_dtypes_are_names_or_those_of_torch() -> None:
    half, y = torch.float16, E.input("y", (2, 3), torch.float64)
    assert (y.dtype, E.weight("w", (2,), torch.bool).dtype) == ("float64", "bool")
    made = [
        ops.full((2,), 1.0, half), ops.arange(3, dtype=half), ops.to(y, half),
        ops.sum(y, dtype=half), ops.prod(y, 0, dtype=half), ops.mean(y, dtype=half),
        ops.cumsum(y, 0, half), ops.softmax(y, 0, half), ops.log_softmax(y, 0, half),
        E.scope(lambda i: ops.to(y[i, 0], half), i=2),
    ]  # fmt: skip
    assert [one.dtype for one in made] == ["float16"] * len(made)
    captured = capture_expression(E.weight("w", (2,), value=np.array([0.1, 0.2])))
    assert captured.weights["w"].dtype == torch.float32  # floats are rounded to the declared dtype


def test_sizes_of_numpy_are_sizes() -> None:
    kind = E.input("x", [np.int64(2), np.int32(3)]).tensor.type
    assert kind.shape == (2, 3) and all(type(extent) is int for extent in kind.shape)


def test_an_error_inside_the_users_function_is_not_hidden() -> None:
    def wrong(i: Any) -> Any:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        E.scope(wrong, i=5)
    assert not isinstance(caught.value, EqsynthError)


# -- as programs ---------------------------------------------------------------------------------


def test_an_expression_is_captured_with_its_weights(run: Callable[..., Any]) -> None:
    w = E.weight("w", (6, 3), value=Y.astype(np.float32))
    captured = capture_expression(ops.relu(x @ w) + E.weight("b", (3,)))
    assert [i.name for i in captured.program.inputs] == ["x"]
    assert captured.weights.keys() == {"w", "b"}
    given = torch.as_tensor(X, dtype=torch.float32)
    expected = torch.relu(given @ captured.weights["w"]) + captured.weights["b"]
    torch.testing.assert_close(run(captured, given), expected)


def test_weights_without_a_value_are_the_same_each_time() -> None:
    first, second = (capture_expression(convolution).weights["kernel"] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, capture_expression(convolution, seed=1).weights["kernel"])


def test_several_outputs(run: Callable[..., Any]) -> None:
    captured = capture_expression([x @ y, y])
    assert [i.name for i in captured.program.inputs] == ["x", "y"]
    a, b = (torch.as_tensor(v, dtype=torch.float32) for v in (X, Y))
    product, same = run(captured, a, b)
    torch.testing.assert_close(product, a @ b)
    assert torch.equal(same, b)


def test_composite_operators_are_made_of_operators_of_the_table() -> None:
    conv = ops.conv2d(E.input("i", (1, 2, 5, 5)), E.weight("w", (3, 2, 3, 3)), E.weight("b", (3,)))
    assert isinstance(conv.tensor, Op) and conv.tensor.name == "Add"
    assert [a.shape for a in conv.tensor.args] == [(1, 3, 3, 3), (3, 1, 1)]


def test_building_expressions_needs_no_torch() -> None:
    code = (
        "import sys\nfrom eqsynth.frontend import expression, ops\n"
        "x = expression.input('x', (2, 3))\nops.relu(x @ ops.t(x))\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
