"""Modules that differ from themselves from call to call, and such as only seem to."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.errors import UnsteadyError
from eqsynth.frontend.steady import check_steady

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Stateful(nn.Module):
    """``forward`` calls a function of the module, which may keep things in it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.kept, self.count = function, [], 0
        self.register_buffer("total", torch.zeros(()))
        self.linear = nn.Linear(4, 4)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def counts(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    return x * self.count


def grows(self: Any, x: Tensor) -> Tensor:
    self.kept.append(x)
    return torch.cat(self.kept)


def fails_later(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    if self.count > 1:
        raise RuntimeError("once only")
    return x


def remembers_the_first(self: Any, x: Tensor) -> Tensor:
    self.kept = self.kept or [self.linear(x)]
    return self.kept[0]


def remembers_the_last(self: Any, x: Tensor) -> Tensor:
    last = self.kept[-1] if self.kept else x
    self.kept = [x.clone()]
    return x + last


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda self, x: x + 1e-7 * torch.rand_like(x), "torch"),
        (lambda self, x: nn.functional.dropout(x, training=True), "torch"),
        (lambda self, x: x * np.random.rand(), "numpy"),  # noqa: NPY002
        (lambda self, x: x * random.random(), "python"),
        (counts, "two results"),
        (grows, "two results"),
        (fails_later, "once only"),
        (remembers_the_first, "other inputs"),
        (remembers_the_last, ""),
    ],
)
def test_a_module_that_differs_from_itself(function: Any, got: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsteadyError) as caught:
        check_steady(Stateful(function), (X,))
    assert got in caught.value.got and caught.value.where == "Stateful"


def sums(self: Any, x: Tensor) -> Tensor:
    """Adds in another order each time, as threads may; in one order with one thread."""
    self.count += torch.get_num_threads() > 1
    return x.roll(self.count, 0).cumsum(0)[-1] * 1.1


def caches(self: Any, x: Tensor) -> Tensor:
    if not self.kept:
        self.kept.append(torch.arange(x.shape[-1]).sin())
    return self.linear(x) + self.kept[0]


def adds_up(self: Any, x: Tensor) -> Tensor:
    self.total.add_(x.sum())
    return x + self.total


def draws_in_vain(self: Any, x: Tensor) -> Tensor:
    torch.rand(3)
    return self.linear(x)


def gives_what_cannot_be_compared(self: Any, x: Tensor) -> Any:
    return x.to_sparse(), object(), np.zeros(3), torch.complex(x, x), float("nan"), x[:0]


@pytest.mark.parametrize(
    "function", [sums, caches, adds_up, draws_in_vain, gives_what_cannot_be_compared]
)
def test_a_module_that_does_not(function: Any) -> None:
    made, x = Stateful(function), torch.rand(64, 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = torch.get_rng_state(), random.getstate()
        check_steady(made, (x,))
        assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
        assert torch.get_num_threads() == 2 and not made.total
    finally:
        torch.set_num_threads(threads)


def test_optimize_gives_such_a_module_back_and_says_why() -> None:
    made = Stateful(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = eqsynth.optimize(made, (X,), progress=False)
    assert program.original is made and program.report.stop == "unsteady"
    assert "call to call" in program.report.reason
