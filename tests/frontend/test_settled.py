"""Constants that jump are bit for bit what the module computes, whatever was rounded before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import eqsynth
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op, Weight, topological
from eqsynth.lower.constant_values import evaluate_constant


class Constant(torch.nn.Module):
    """q plus a function of a parameter, which may not need it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(1, 21).float(), requires_grad=False)
        self.function = function

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return q + self.function(self.weight)


def captured(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Captured]:
    module = Constant(function).eval()
    expected = function(module.weight)
    return expected, capture(module, (torch.zeros(expected.shape),))


def numbers() -> torch.Tensor:
    return torch.arange(1, 21).float()


def buckets(n: int, half: int, top: int, count: int) -> torch.Tensor:
    """The buckets of distant positions in T5."""
    far = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs().float().clamp(min=1)
    return (torch.log(far / half) / math.log(top / half) * count).long()


JUMPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "T5": lambda w: buckets(40, 8, 128, 8),
    "a conversion": lambda w: (torch.log(torch.ones(4) / 8) / math.log(16) * 8).long(),
    "a root": lambda w: (torch.sqrt(numbers()) * torch.sqrt(numbers())).long(),
    "ceil": lambda w: torch.ceil(numbers() / 49 * 49),
    "round": lambda w: torch.round(numbers() * 0.35 * 10),
    "sign": lambda w: torch.sign(numbers() / 49 * 49 - numbers()),
    "equal": lambda w: (numbers() * 0.1 * 10 == numbers()).float(),
    "at least": lambda w: (numbers() / 49 * 49 >= numbers()).float(),
    "linspace": lambda w: (torch.linspace(0, 1, 11) >= 0.3).float(),
    "remainder": lambda w: torch.remainder(numbers() * 0.1, 0.1),
    "divided": lambda w: torch.div(numbers() * 0.1, 0.1, rounding_mode="trunc"),
    "fewer digits": lambda w: (numbers() / 49).half().float() * 1000,
    # The logarithms are whole numbers in float32, and were computed for the first jump.
    "a second jump": lambda w: (
        (logs := torch.log(torch.tensor([1.0, 10.0, 100.0, 1000.0])) / math.log(10)).long()
        + 10 * (logs == 3)
    ),
    "a whole logarithm": lambda w: torch.log10(torch.tensor([1.0, 10.0, 100.0, 1000.0])).long(),
    "a whole quotient": lambda w: torch.floor(numbers() * 49 / 49),
    "argmax": lambda w: torch.stack([numbers() * 0.1 * 10, numbers()]).argmax(0),
    # The same of a parameter.
    "a step of a weight": lambda w: torch.round(w * 0.35 * 10),
    "a compared weight": lambda w: (w / 49 * 49 >= w).float(),
    "a weight against a constant": lambda w: (w >= numbers() / 49 * 49).float(),
    "a truncated weight": lambda w: (torch.sqrt(w) * torch.sqrt(w)).long(),
    "a divided weight": lambda w: torch.div(w * 0.1, 0.1, rounding_mode="floor"),
}


def test_a_constant_that_jumps_is_what_torch_computes() -> None:
    wrong = []
    for name, function in JUMPS.items():
        expected, program = captured(function)
        (root,) = program.program.outputs
        assert isinstance(root, Op)
        (constant,) = (arg for arg in root.args if arg.constant)
        found = evaluate_constant(constant, program.weights, program.opaque)
        if not torch.equal(found, expected.to(found.dtype)):
            wrong.append(name)
    assert not wrong


EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole numbers": lambda w: (torch.arange(20).float()[:, None] >= torch.arange(20)).float(),
    "ones": lambda w: (torch.ones(20, 20).tril() == 0).float(),
    "a weight's sign": lambda w: torch.sign(-w.abs().view(4, 5).t()),
    "a weight above 0": lambda w: (w.clamp(min=-1) > 0).float(),
}


@pytest.mark.parametrize("case", EXACT)
def test_what_is_exact_stays_in_the_program(case: str) -> None:
    """Rules look into masks, and fold signs of weights."""
    _, program = captured(EXACT[case])
    terms = topological(program.program.outputs)
    made = {leaf.name for leaf in terms if isinstance(leaf, Weight)}
    assert made <= {"weight"} and not program.opaque


def test_a_quotient_that_comes_out_whole_is_not_taken_for_exact() -> None:
    """Rules write it as a product, 3 * 49 * (1 / 49), whose floor is 2."""
    _, program = captured(JUMPS["a whole quotient"])
    terms = topological(program.program.outputs)
    assert not any(isinstance(term, Op) and term.name == "Floor" for term in terms)


def test_a_mask_that_was_rounded_is_still_a_mask() -> None:
    """Its values are known, so it is said as a function of its places."""
    places = torch.arange(9)
    _, program = captured(lambda w: (places[:, None] * 0.1 >= places * 0.1).float())
    assert not any(isinstance(term, Weight) for term in topological(program.program.outputs))


def test_new_weights_go_through_the_same_steps() -> None:
    module = Constant(JUMPS["a step of a weight"]).eval()
    q = torch.zeros(20)
    program = eqsynth.optimize(module, (q,), objective="flops", node_limit=1, engines=())
    assert torch.equal(program(q), module(q))
    module.weight.copy_(torch.arange(21, 41).float())
    program.refresh(module)
    assert torch.equal(program(q), module(q))


def test_ones_like_an_input_are_known() -> None:
    class Alike(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return q + (torch.log(torch.ones_like(q) / 8) / math.log(16) * 8).long()

    program = capture(Alike().eval(), (torch.zeros(4),)).program
    (root,) = program.outputs
    numbers = [t.attrs[1] for t in topological([root]) if isinstance(t, Op) and t.name == "Full"]
    assert -6 in numbers


def test_the_bounds_of_an_index_don_t_visit_floats() -> None:
    """Each block reads its input twice, so that there are 2**40 paths to the first."""

    class Router(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(40):
                x = x + torch.tanh(x)
            return x[x.argmax(-1)]

    program = capture(Router().eval(), (torch.randn(5, 5),)).program
    assert program.outputs[0].shape == (5, 5)
