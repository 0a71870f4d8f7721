"""``assert_equivalent``: what is equal passes, what isn't fails with a counterexample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqsynth
from eqsynth.errors import EqsynthError, EquivalenceError
from eqsynth.testing import assert_equivalent
from eqsynth.testing.strategies import environments, operator_programs
from tests.terms import leaf, op

X, Y = leaf("x", 3, 3), leaf("y", 3, 3)


def test_equal_terms_and_expressions_pass() -> None:
    assert_equivalent(op("Add", X, Y), op("Add", Y, X))
    x = eqsynth.input("x", (3, 3))
    assert_equivalent(eqsynth.ops.relu(eqsynth.ops.relu(x)), eqsynth.ops.relu(x))


@given(operator_programs(dtypes=("float32", "int64", "bool")))
def test_a_program_is_equivalent_to_itself(root: Any) -> None:
    assert_equivalent(root, root)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (op("Sub", X, Y), op("Sub", Y, X)),
        (op("Relu", X), X),
        (op("Mul", X, X), op("Abs", X)),
        (op("Permute", X, attrs=((1, 0),)), X),
        (op("Cast", X, attrs=("int64",)), X),
        (op("Maximum", X, Y), op("Add", X, Y)),
    ],
)
def test_terms_that_differ_are_told_apart(left: Any, right: Any) -> None:
    with pytest.raises(EquivalenceError) as caught:
        assert_equivalent(left, right)
    assert caught.value.got and caught.value.expected


def test_a_difference_that_normal_data_hides_is_found() -> None:
    """sign(x)^2 = 1 but at zero; x - y + y = x but for what 100 costs."""
    one = op("Full", attrs=((3, 3), 1.0, "float32"))
    squared = op("Mul", op("Sign", X), op("Sign", X))
    normal = {"x": np.random.default_rng(0).normal(size=(3, 3))}
    assert_equivalent(squared, one, normal)
    with pytest.raises(EquivalenceError):
        assert_equivalent(squared, one)


def test_integers_are_compared_exactly() -> None:
    n = leaf("n", 1, dtype="int64")
    near = op("Add", n, op("Full", attrs=((1,), 1.0, "int64")))
    with pytest.raises(EquivalenceError):
        assert_equivalent(near, n, {"n": np.array([1 << 40])})


def test_a_strategy_draws_and_shrinks() -> None:
    left, right = op("Relu", X), op("Abs", X)
    assert_equivalent(op("Relu", left), left, environments(left), examples=20)
    with pytest.raises(EquivalenceError) as caught:
        assert_equivalent(left, right, environments(left, right))
    assert "-1." in str(caught.value), "the array shrank to one element below zero"


@pytest.mark.rotating
def test_callables_run() -> None:
    model = torch.nn.Linear(3, 2).eval()
    x = torch.randn(4, 3)
    assert_equivalent(lambda x: x @ model.weight.T + model.bias, model, (x,))
    sizes = st.integers(1, 4).map(lambda n: (torch.ones(n, 3),))
    assert_equivalent(lambda x: x @ model.weight.T + model.bias, model, sizes, examples=3)
    with pytest.raises(EquivalenceError):
        assert_equivalent(lambda x: x @ model.weight.T, model, (x,))


def _writes_later(x: torch.Tensor) -> torch.Tensor:
    result = torch.relu(x)
    x.zero_()
    return result


_memory = torch.zeros(3)


def _in_one_memory(x: torch.Tensor) -> torch.Tensor:
    return _memory.copy_(torch.relu(x))


@pytest.mark.parametrize(
    ("program", "reference", "where"),
    [
        (lambda x: x.relu_(), torch.relu, "arguments"),
        (_writes_later, torch.relu, "arguments"),
        (torch.relu, lambda x: x.relu_(), "arguments"),
        (lambda x: (x + 1, x.add_(2))[0], lambda x: (x + 1, x.add_(1))[0], "output 1"),
        (_in_one_memory, torch.relu, "later calls"),
        (lambda x: [x], lambda x: x.clone(), "structure"),
        (lambda x: {"b": x}, lambda x: {"a": x}, "structure"),
        (lambda x: (x, None), lambda x: (x, x), "output 1"),
        (lambda x: (x, "a"), lambda x: (x, "b"), "output 1"),
        (lambda x: 1.0, lambda x: 2.0, "output 0"),
        (lambda x: x.numpy() * 2, lambda x: x.numpy(), "output 0"),
    ],
)
def test_what_a_caller_sees_beside_elements(program: Any, reference: Any, where: str) -> None:
    x = torch.tensor([-1.0, 0.5, 2.0])
    assert_equivalent(reference, reference, (x,))
    with pytest.raises(EquivalenceError) as caught:
        assert_equivalent(program, reference, (x,))
    assert where in caught.value.where
    assert x.tolist() == [-1.0, 0.5, 2.0], "the caller's own tensor isn't written"


def test_a_difference_of_callables_can_be_reproduced() -> None:
    x = torch.tensor([-1.0, 0.5])
    with pytest.raises(EquivalenceError) as caught:
        assert_equivalent(lambda x: x.clamp(max=1e5), lambda x: x * 1, (x,))
    (largest,), _ = caught.value.inputs  # type: ignore[attr-defined]
    assert (largest > 1e5).any()
    assert "eqsynth" not in str(caught.value), "it is no fault of eqsynth"


@pytest.mark.parametrize(("left", "right"), [(X, torch.relu), (torch.relu, torch.relu)])
def test_what_cannot_be_compared_is_refused(left: Any, right: Any) -> None:
    with pytest.raises(EqsynthError):
        assert_equivalent(left, right)
