"""Masks of attention that are computed from nothing are said as what they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op

N = 6
INF = float("-inf")
Mask = Callable[[torch.Tensor], torch.Tensor]


def _grid(keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    place = torch.arange(N)
    return keep(place[:, None], place[None, :])


# The mask, and which operators are left of it: a selection by it, an addition of it, and the
# question whether a query may attend to nothing.
MASKS: dict[str, tuple[Mask, str]] = {
    "ones": (lambda _: torch.ones(N, N, dtype=torch.bool), ""),
    "zeros": (lambda _: torch.zeros(1, 1, N, N), ""),
    "one number": (lambda _: torch.ones((), dtype=torch.bool).expand(N, 1), ""),
    "causal": (lambda _: torch.ones(N, N, dtype=torch.bool).tril(), "causal"),
    "causal of numbers": (lambda _: torch.full((N, N), INF).triu(1), "causal"),
    "causal as transformers has it": (
        lambda _: (_grid(lambda i, j: j <= i) & torch.ones((1, 1, 1, 1), dtype=torch.bool)).expand(
            1, 1, N, N
        ),
        "causal",
    ),
    "later keys": (lambda _: _grid(lambda i, j: j >= i), "select"),
    "one place later": (lambda _: _grid(lambda i, j: j <= i + 1), "select"),
    "window": (lambda _: _grid(lambda i, j: (i - j).abs() <= 1), "select"),
    "window of numbers": (
        lambda _: torch.zeros(N, N).masked_fill(~_grid(lambda i, j: (i - j).abs() <= 1), INF),
        "select",
    ),
    "an empty row": (lambda _: _grid(lambda i, j: j < i), "select ask"),
    "large numbers": (lambda _: torch.full((N, N), -1e9).triu(1), "add ask"),
    "distances": (lambda _: -_grid(lambda i, j: (i - j).abs().float()), "add ask"),
    "by data": (lambda q: q[0, 0, :, :1] > -9.0, "select ask"),
}  # fmt: skip


class _Attention(torch.nn.Module):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, self.mask(q))


@pytest.mark.parametrize("name", MASKS)
def test_a_known_mask_is_said_as_what_it_is(name: str) -> None:
    mask, left = MASKS[name]
    module = _Attention(mask).eval()
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(1, 2, N, 4, generator=generator) for _ in range(3))
    program = capture(module, inputs).program
    env = {x.name: value.numpy() for x, value in zip(program.inputs, inputs, strict=True)}
    expected = module(*inputs).numpy()
    np.testing.assert_allclose(evaluate(program.outputs[0], env), expected, atol=1e-6)

    terms = [term for term in program.terms() if isinstance(term, Op)]
    selections = [term.args[0] for term in terms if term.name == "Where"]
    said = {
        "causal": any(isinstance(c, Op) and c.name == "GreaterEqual" for c in selections)
        and not any(term.name == "Equal" for term in terms),
        "add": any(term.name == "Add" and term.shape[-2:] == (N, N) for term in terms),
        "ask": any(term.name == "Equal" for term in terms),
    }
    wanted = left.split()
    assert said["ask"] == ("ask" in wanted)
    assert said["add"] == ("add" in wanted)
    assert bool(selections) == bool(wanted)
    if wanted == ["causal"]:
        assert said["causal"] and len(selections) == 1
