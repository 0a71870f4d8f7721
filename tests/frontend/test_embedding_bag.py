"""Bags of rows: of one length they are sums and means of rows, others stay with torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import embedding_bag

from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate

IDS = torch.tensor([[1, 0, 3], [4, 4, 2]])
Bag = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Of(torch.nn.Module):
    def __init__(self, bag: Bag) -> None:
        super().__init__()
        self.bag = bag

    def forward(
        self, ids: torch.Tensor, table: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        return self.bag(ids, table, shares)


OURS: dict[str, Bag] = {
    "sums": lambda i, t, s: embedding_bag(i, t, mode="sum"),
    "means": lambda i, t, s: embedding_bag(i, t),
    "of one": lambda i, t, s: embedding_bag(i[:, :1], t),
    "weighted": lambda i, t, s: embedding_bag(i, t, mode="sum", per_sample_weights=s),
    "known offsets": lambda i, t, s: embedding_bag(i.flatten(), t, 2 * torch.arange(3)),
    "the last offset too": lambda i, t, s: embedding_bag(
        i.flatten(), t, 3 * torch.arange(3), include_last_offset=True
    ),
}
TORCHS: dict[str, Bag] = {
    "the largest": lambda i, t, s: embedding_bag(i, t, mode="max"),
    "without an id": lambda i, t, s: embedding_bag(i, t, padding_idx=4),
    "of several lengths": lambda i, t, s: embedding_bag(i.flatten(), t, torch.arange(3)),
    "of a rest": lambda i, t, s: embedding_bag(i.flatten()[:5], t, 2 * torch.arange(2)),
    "from data": lambda i, t, s: embedding_bag(i.flatten(), t, i[0, :1] - 1),
    "weighted, of 16 bits": lambda i, t, s: embedding_bag(
        i, t.half(), mode="sum", per_sample_weights=s.half()
    ),
}


@pytest.mark.parametrize("name", [*OURS, *TORCHS])
def test_bags_of_one_length_are_opened(name: str) -> None:
    bag, table, shares = {**OURS, **TORCHS}[name], torch.randn(5, 4), torch.rand(2, 3)
    table[0, 0] = torch.inf
    captured = capture(Of(bag).eval(), (IDS, table, shares))
    assert bool(captured.opaque) == (name in TORCHS)
    if name in OURS:
        given = (IDS, table, shares)
        arrays = {i.name: v.numpy() for i, v in zip(captured.program.inputs, given, strict=True)}
        arrays |= {key: value.numpy() for key, value in captured.weights.items()}
        value = torch.from_numpy(evaluate(captured.program.outputs[0], arrays)).float()
        assert torch.allclose(value, bag(IDS, table, shares))
