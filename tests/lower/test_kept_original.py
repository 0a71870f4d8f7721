"""A call of the user's own module, where nothing faster was found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eqsynth.lower.kept_original import called
from eqsynth.lower.weights import storages


class Results(nn.Module):
    """Gives results of all kinds of memory, in a container of a class."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.arange(6.0).reshape(2, 3))

    def forward(self, x: Tensor) -> Any:
        new = x + self.weight
        return self.kind((x, x[0], new, self.weight, self.weight.t(), new[1:], new, self.weight))


@pytest.mark.parametrize("kind", [tuple, list, lambda values: {"of": (*values, None)}])
def test_results_share_no_memory_with_weights_and_arguments(kind: Any) -> None:
    module, x = Results(kind).eval(), torch.ones(2, 3)
    own = storages(module.parameters())
    result, expected = called(module, own, (x,), {}), module(x)
    assert type(result) is type(expected)
    if isinstance(result, dict):
        assert result["of"][-1] is None
        result, expected = result["of"][:-1], expected["of"][:-1]
    for got, wanted in zip(result, expected, strict=True):
        assert torch.equal(got, wanted) and not got.requires_grad
    assert result[0] is x  # an argument itself, as the module returns it
    assert storages(result[1:]).isdisjoint(own | storages([x]))
    # Results that share memory with each other do so as the module's do.
    assert result[6] is result[2] and result[7] is result[3]
    assert storages([result[5]]) == storages([result[2]])


def test_a_result_that_was_computed_with_gradients_has_none() -> None:
    class Enabling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return x * torch.ones(2, requires_grad=True)

    result = called(Enabling().eval(), frozenset(), (torch.ones(2),), {})
    assert not result.requires_grad and torch.equal(result, torch.ones(2))


def test_a_result_of_which_nothing_is_copied_is_the_object_that_the_module_gives() -> None:
    class Giving(nn.Module):
        given: Any = None

        def forward(self, x: Tensor, named: Tensor) -> Any:
            self.given = {"new": [x + named], "argument": named}
            return self.given

    module = Giving().eval()
    result = called(module, frozenset(), (torch.ones(2),), {"named": torch.ones(2)})
    assert result is module.given
