"""Comparing a program with the original: what is rounding, and what is a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eqsynth.errors import EquivalenceError
from eqsynth.lower.check import check_equivalence, input_kinds, unchanged

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def module(function: Callable[..., Any], **state: Tensor) -> nn.Module:
    class Wrapped(nn.Module):
        forward = function

    made = Wrapped()
    for name, value in state.items():
        made.register_buffer(name, value)
    return made.eval()


def test_the_same_is_no_difference() -> None:
    found = check_equivalence(lambda x: x @ x.T, lambda x: x @ x.T, (X,))
    assert found.error_rel == 0.0 and found.tried == len(input_kinds((X,)))


def test_another_order_of_additions_is_rounding() -> None:
    a, b, c = (torch.randn(64, 64) for _ in range(3))
    found = check_equivalence(
        lambda x, y, z: x @ (y @ z), module(lambda self, x, y, z: (x @ y) @ z), (a, b, c)
    )
    assert 0 < found.error_rel < 1e-4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x * 1.001,
        lambda x: x + 1e-3,
        lambda x: -x,
        lambda x: x.flip(0),
        lambda x: torch.where(x > 9, 0.0, x),  # right on inputs around zero
        lambda x: x.clamp(-60, 60),  # right on all but large ones
        lambda x: torch.zeros_like(x),
        lambda x: x * float("nan"),
        lambda x: x.double(),
        lambda x: x[:-1],
    ],
)
def test_a_wrong_program_is_an_error(wrong: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(wrong, module(lambda self, x: x * 1), (X,))
    assert "output 0" in caught.value.where and caught.value.got and caught.value.expected


def test_a_wrong_program_of_integers_is_an_error() -> None:
    n = torch.arange(-6, 6)
    check_equivalence(lambda x: x // 2, module(lambda self, x: x // 2), (n,))
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x: (x / 2).trunc().long(), module(lambda self, x: x // 2), (n,)
        )  # fmt: skip


def test_a_lost_digit_is_a_difference() -> None:
    """|x - y|^2 as x.x - 2 x.y + y.y is exact over the reals, and wrong on near-equal inputs."""
    original = module(lambda self, x, y: ((x - y) ** 2).sum())
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x, y: (x * x).sum() - 2 * (x * y).sum() + (y * y).sum(), original, (X, X + 0.5)
        )


def test_cancelling_sums_and_ties_are_rounding() -> None:
    x = torch.tensor([1e8, 1.0, -1e8, 0.3, 7.7, -9.1])
    check_equivalence(lambda x: x.flip(0).cumsum(0)[-1], module(lambda self, x: x.sum()), (x,))
    # Half way between two integers: no rounding of the sum is better than the other.
    half = torch.arange(64) + 0.5
    check_equivalence(
        lambda x: (x * (1 + 2**-22)).round(), module(lambda self, x: x.round()), (half,)
    )
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x: (x + 2).round(), module(lambda self, x: x.round()), (half,)
        )  # fmt: skip


def test_infinite_and_missing_values_must_be_where_they_were() -> None:
    x = torch.tensor([0.0, 1.0, -1.0])
    check_equivalence(lambda x: 1 / x, module(lambda self, x: 1 / x), (x,))
    check_equivalence(lambda x: x.sqrt(), module(lambda self, x: x.sqrt()), (x,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: (1 / x).abs(), module(lambda self, x: 1 / x), (x,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: x.abs().sqrt(), module(lambda self, x: x.sqrt()), (x,))


def test_buffers_are_compared_and_given_back() -> None:
    n = torch.zeros(3)

    def counting(step: float) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            n.add_(step)
            return x

        return call

    check_equivalence(counting(1), counting(1), (X,), (n,))
    assert torch.equal(n, torch.zeros(3))
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(counting(2), counting(1), (X,), (n,))
    assert "output 1" in caught.value.where
    assert torch.equal(n, torch.zeros(3))
    with pytest.raises(ZeroDivisionError), unchanged([n]):
        n.add_(1)
        raise ZeroDivisionError
    assert torch.equal(n, torch.zeros(3))


def test_inputs_are_not_touched() -> None:
    x = X.clone()
    check_equivalence(lambda x: x.add_(1), lambda x: x.add_(1), (x,))
    assert torch.equal(x, X)


def test_kinds_of_inputs_are_the_same_each_time_and_differ() -> None:
    kinds, again = (input_kinds((X, 3, torch.arange(4))) for _ in range(2))
    assert kinds.keys() == again.keys()
    assert all(torch.equal(kinds[name][0], again[name][0]) for name in kinds)
    assert kinds["given"][0] is X
    assert all(values[1] == 3 for values in kinds.values())
    assert all(torch.equal(values[2], torch.arange(4)) for values in kinds.values())
    assert float(kinds["offset"][0].mean()) > 5 and float(kinds["scaled"][0].std()) > 20
    assert float((kinds["near-equal"][0] - 1).abs().max()) < 0.01
