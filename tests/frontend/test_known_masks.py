"""Masks of attention that are computed from nothing are said as what they are, others are added."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from eqsynth import input as argument
from eqsynth import ops
from eqsynth.frontend.expression import program_of
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op

N = 6
INF = float("-inf")
Mask = Callable[[torch.Tensor], torch.Tensor]


def _grid(keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    place = torch.arange(N)
    return keep(place[:, None], place[None, :])


# The mask, and which operators are left of it: a selection of scores by it, an addition of it, and
# the question whether a query may attend to nothing.
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
    "an empty row": (lambda _: _grid(lambda i, j: j < i), "add ask"),
    "large numbers": (lambda _: torch.full((N, N), -1e9).triu(1), "add"),
    "distances": (lambda _: -_grid(lambda i, j: (i - j).abs().float()), "add"),
    "by data": (lambda q: q[0, 0, :, :1] > -9.0, "add ask"),
    "keys by data": (lambda q: q[0, :1, :, 0] > 0.0, "add ask"),
    "one bool by data": (lambda q: q[0, 0, :1, :1] > 9.0, "add ask"),
    "numbers by data": (lambda q: (q[:, :, :, :1] * INF).minimum(q[:, :1, :, :1]), "add ask"),
}  # fmt: skip


class _Attention(torch.nn.Module):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, self.mask(q))


@pytest.mark.rotating
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
    scores = [term.args[0] for term in terms if term.name == "Softmax"]
    selections = [s.args[0] for s in scores if isinstance(s, Op) and s.name == "Where"]
    asked = [term.args[0] for term in terms if term.name == "ReduceMax"]
    assert not set(asked) & set(scores), "the scores are asked, and not the mask"
    said = {
        "causal": any(isinstance(c, Op) and c.name == "GreaterEqual" for c in selections)
        and not any(term.name == "Equal" for term in terms),
        "add": any(isinstance(s, Op) and s.name == "Add" for s in scores),
        "ask": any(term.name == "Equal" for term in terms),
    }
    wanted = left.split()
    assert said["ask"] == ("ask" in wanted)
    assert said["add"] == ("add" in wanted)
    assert bool(selections) == (wanted in (["causal"], ["select"]))
    if wanted == ["causal"]:
        assert said["causal"] and len(selections) == 1


@pytest.mark.rotating
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("shape", [(), (N,), (N, 1), (N, N), (2, 1, N), (1, 2, N, N)])
def test_a_mask_that_is_an_argument_gives_what_torch_gives(
    shape: tuple[int, ...], numbers: bool, causal: bool
) -> None:
    """Queries that see nothing among them, also by a mask and what comes later together."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 2, N, 4, generator=generator)
    seen = torch.rand(shape, generator=generator) < 0.4
    mask = torch.where(seen, torch.rand(shape, generator=generator), INF) if numbers else seen
    given = [argument("q", q.shape), argument("m", shape, dtype=("bool", "float32")[numbers])]
    made = ops.scaled_dot_product_attention(
        given[0], given[0] + 1.0, given[0], given[1], is_causal=causal
    )
    got = evaluate(program_of(made)[0].outputs[0], {"q": q.numpy(), "m": mask.numpy()})

    both, later = mask.expand(1, 2, N, N), torch.ones(N, N, dtype=torch.bool).triu(1)
    if causal:
        both = both.masked_fill(later, INF if numbers else False)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q + 1, q, attn_mask=both)
    assert not expected.isnan().any()
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)
