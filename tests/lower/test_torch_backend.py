"""The torch backend: every kernel's values, layouts that are true, views that are views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from lower_cases import SPECIAL, arguments, check_kernel, examples, op, sample, scopes, tensor

from eqsynth.extract.kernel import Kernel, channels_last, strides
from eqsynth.ir.data import sample_all
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Op, Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.torch_backend import VIEW, TorchBackend, conversion, lay_out, layout_of, lies_in
from eqsynth.lower.torch_scopes import run_scope
from eqsynth.testing.strategies import scopes as any_scopes

BACKEND = TorchBackend()


def kernels(term: Op | Scope, *constant: int) -> list[Kernel]:
    flags = tuple(k in constant for k in range(len(args_of(term))))
    return list(BACKEND.kernels(term, flags))


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"Opaque"}))
def test_every_kernel_of_an_operator(name: str) -> None:
    for term in examples(name):
        found = kernels(term)
        assert found, str(term)
        for kernel in found:
            check_kernel(BACKEND, kernel, arguments(term))


def test_images_are_also_stored_with_the_channels_last() -> None:
    images = {"Conv2d", "FusedConv2dAdd", "MaxPool2d", "AvgPool2d"}
    for name in (*images, "Matmul", "Softmax", "Gather"):
        terms = [term for term in examples(name) if len(term.shape) == 4]
        assert terms or name not in images
        for term in terms:
            outputs = {kernel.output for kernel in kernels(term)}
            assert (channels_last(4) in outputs) == (name in images), str(term)


CONSTANTS = {"Full", "Iota", "Interpolation", "Literal"}


@pytest.mark.parametrize("name", sorted(set(SPECIAL) - CONSTANTS))
def test_every_kernel_with_its_last_argument_constant(name: str) -> None:
    for term in examples(name):
        for kernel in kernels(term, len(args_of(term)) - 1):
            check_kernel(BACKEND, kernel, arguments(term))


@given(scopes())
def test_a_scope_has_a_kernel(scope: Scope) -> None:
    (kernel,) = kernels(scope)
    check_kernel(BACKEND, kernel, arguments(scope))


_FUNCTIONS = (
    "max", "min", "relu", "abs", "floordiv", "mod", "where", "eq", "lt", "not", "and", "sign",
    "cast", "floor", "pow", "div", "ceil",
)  # fmt: skip
_INTEGERS = ("int64", "uint8", "int32", "int8", "bool", "float32")


@pytest.mark.rotating
@settings(max_examples=300)
@given(any_scopes(dtypes=_INTEGERS, functions=_FUNCTIONS))
def test_integers_are_computed_as_the_interpreter_does(scope: Scope) -> None:
    """Division by zero, wrapping, numbers that don't fit, bools: with and without axes."""
    for integers in ("small", "ties", "limits"):
        env = sample_all(scope, kind="ties", integers=integers)
        given_values = {arg: torch.from_numpy(env[arg.label]) for arg in args_of(scope)}
        got, expected = run_scope(scope, given_values, exact=True), evaluate(scope, env)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_power_of_integers_wraps_as_in_torch() -> None:
    base, exponent = torch.tensor([3, 1, -1, 2, 0]), torch.tensor([41, -2, -3, -1, 0])
    term = op("Pow", (5,), (5,), dtype="int64")
    (kernel,) = kernels(term)
    (runner,) = BACKEND.build([(kernel, {})])
    assert runner is not None
    assert torch.equal(runner(base, exponent), torch.pow(base, exponent))
    assert evaluate(term, {"0": base.numpy(), "1": exponent.numpy()}).tolist() == (
        torch.pow(base, exponent).tolist()
    )


@pytest.mark.parametrize(
    ("term", "layout", "output"),
    [
        (op("Permute", (2, 3), attrs=((1, 0),)), (0, 1), (1, 0)),
        (op("Permute", (2, 3, 4, 5), attrs=((0, 2, 3, 1),)), channels_last(4), (0, 1, 2, 3)),
        (op("Reshape", (2, 3, 1, 1), attrs=((2, 3),)), channels_last(4), (0, 1)),
        (op("Slice", (6, 5), attrs=(0, 1, 4, 1)), (0, 1), (0, 1)),
        (op("Slice", (6, 5), attrs=(1, 1, 4, 1)), (1, 0), (1, 0)),
    ],
)
def test_a_view_costs_nothing_where_memory_allows(
    term: Op, layout: tuple[int, ...], output: tuple[int, ...]
) -> None:
    views = {k.inputs[0]: k.output for k in kernels(term) if k.implementation == VIEW}
    assert views[layout] == output


@pytest.mark.parametrize(
    "term",
    [
        op("Slice", (6, 5), attrs=(1, 1, 4, 1)),
        op("Slice", (6, 5), attrs=(0, 0, 6, 2)),
        op("Expand", (3, 1), attrs=((3, 4),)),
        op("Unfold", (5, 2), attrs=(0, 3)),
    ],
)
def test_what_is_not_dense_is_copied(term: Op) -> None:
    found = {k.inputs[0]: k.implementation for k in kernels(term)}
    assert found[(0, 1)] == "torch"


def test_an_opaque_operator_runs_what_the_frontend_captured() -> None:
    term = op("Opaque", (2, 3), attrs=("flip", (2, 3), "float32"))
    assert kernels(term) == []
    backend = TorchBackend({"flip": lambda x: x.flip(0), "same": lambda x: x.T.contiguous().T})
    x = sample(tensor(0, 2, 3))
    for target, expected in (("flip", x.flip(0)), ("same", x)):
        term = op("Opaque", (2, 3), attrs=(target, (2, 3), "float32"))
        (kernel,) = backend.kernels(term, (False,))
        (runner,) = backend.build([(kernel, {})])
        assert runner is not None
        assert torch.equal(runner(x), expected)
        assert runner(x).is_contiguous()


def test_a_result_is_never_an_argument() -> None:
    backend = TorchBackend({"same": lambda x: x})
    term = op("Opaque", (2, 3), attrs=("same", (2, 3), "float32"))
    (kernel,) = backend.kernels(term, (False,))
    (runner,) = backend.build([(kernel, {})])
    x = sample(tensor(0, 2, 3))
    assert runner is not None
    assert runner(x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 1, 1), (2, 1, 4, 5), (0, 3, 2, 2)]
)
def test_a_conversion_moves_only_what_lies_elsewhere(shape: tuple[int, ...]) -> None:
    kind = TensorType(shape, "float32")
    x = sample(tensor(0, *shape))
    for source, target in (((0, 1, 2, 3), channels_last(4)), (channels_last(4), (0, 1, 2, 3))):
        kernel = conversion(kind, source, target)
        given = lay_out(x, shape, source)
        (runner,) = BACKEND.build([(kernel, {})])
        assert runner is not None
        result = runner(given)
        assert torch.equal(result, x) and lies_in(shape, result.stride(), target)
        free = lies_in(shape, strides(shape, source), target)
        assert (kernel.implementation == VIEW) == free
        if x.numel():
            assert (result.data_ptr() == given.data_ptr()) == free


def test_the_layout_of_strides() -> None:
    assert layout_of((2, 3), (3, 1)) == (0, 1)
    assert layout_of((2, 3), (1, 2)) == (1, 0)
    assert layout_of((2, 3), (6, 2)) is None
    assert layout_of((2, 3), (0, 1)) is None
    assert layout_of((2, 3, 4), (4, 8, 1)) == (1, 0, 2)
    assert layout_of((1, 3, 1), (77, 1, 5)) == (0, 1, 2)
    assert layout_of((2, 5, 4, 3), (60, 1, 15, 5)) == channels_last(4)
    assert layout_of((2, 1, 3), (1, 99, 2)) == (1, 2, 0)
    assert layout_of((), ()) == ()


def test_what_a_body_shares_is_computed_once() -> None:
    """As a tree the body has 3^40 leaves."""
    x = tensor("x", 3)
    body: Scalar = Read(x, (Index.iterator(0, 3),))
    for _ in range(40):
        body = Call("tanh", (Sum((Prod((body, body)), body)),))
    value = run_scope(Scope((3,), (), body), {x: torch.tensor([-0.5, 0.0, 0.25])}, exact=True)
    expected = evaluate(Scope((3,), (), body), {"x": np.array([-0.5, 0.0, 0.25])})
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_an_axis_of_one_has_the_strides_of_the_layout() -> None:
    """torch's products choose their algorithm by strides: with (1, 4) in place of (1, 1) a program
    rounded otherwise than the same program that was saved and loaded."""
    narrow = torch.arange(4.0).as_strided((4, 1), (1, 4))
    assert narrow.is_contiguous()
    for layout, wanted in (((0, 1), (1, 1)), ((1, 0), (1, 4))):
        placed = lay_out(narrow, (4, 1), layout)
        assert placed.stride() == wanted and placed.data_ptr() == narrow.data_ptr()
        assert torch.equal(placed, narrow)
