"""Buffers that are functions of their places are said as such functions, and others aren't."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsynth
from eqsynth.errors import WeightError
from eqsynth.frontend.recognized import recognized
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Weight, topological

INF = float("inf")
N = 12


def apart(rows: int = N, columns: int = N, block: int = 1) -> torch.Tensor:
    return torch.arange(columns) // block - torch.arange(rows)[:, None] // block


KNOWN = {
    "tril": torch.ones(N, N).tril(),
    "triu of numbers": torch.full((N, N), -INF).triu(1),
    "large numbers": torch.full((4, N), -1e9, dtype=torch.float64).triu(3),
    "half": torch.ones(N, N, dtype=torch.float16).tril(2),
    "brain": torch.full((N, N), -INF, dtype=torch.bfloat16).triu(1),
    "bytes": torch.ones(N, N, dtype=torch.uint8).tril(),
    "integers": torch.ones(N, N, dtype=torch.int64).tril(-2),
    "with axes": torch.ones(N, N).tril().reshape(1, N, 1, N),
    "band": apart().abs() <= 2,
    "not a band": apart().abs() > 2,
    "wide": (apart(5, N) >= 0) & (apart(5, N) < 3),
    "tall": (apart(N, 5) >= -3) & (apart(N, 5) < 3),
    "every third": apart() % 3 == 0,
    "every third of a band": (apart() % 3 == 1) & (apart().abs() <= 5),
    "all but every third": apart() % 3 != 0,
    "blocks": apart(block=4) == 0,
    "blocks of 5": apart(block=5) == 0,
    "not blocks": apart(block=3) != 0,
    "blocks of two sizes": torch.eye(4).repeat_interleave(3, 0).repeat_interleave(2, 1),
    "blocks in one direction": torch.eye(5).repeat_interleave(4, 1),
    "one block of rows": (torch.arange(10) < 5).expand(5, 10),
    "centering": torch.eye(N) - 1 / N,
    "a diagonal that a difference loses": torch.where(torch.eye(N) > 0, 1e-3, 1e8),
    "causal blocks": apart(block=3) <= 0,
    "every second block": apart(block=2) % 2 == 0,
    "one diagonal": torch.eye(N),
    "expanded": (apart() <= 0)[None].expand(1, N, N),
    "arange": torch.arange(N),
    "positions": torch.arange(N).expand(1, N),
    "windows": torch.arange(N)[:, None] + 2 * torch.arange(3) - 4,
    "downward": 7 - torch.arange(N, dtype=torch.int32)[:, None] + torch.arange(3),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_function_of_places_is_recognized(name: str) -> None:
    tensor = KNOWN[name]
    found = recognized(tensor)
    assert found is not None
    assert (found.shape, found.dtype) == (tuple(tensor.shape), str(tensor.dtype)[6:])
    assert not any(isinstance(term, Weight) for term in topological([found.tensor]))
    value = torch.from_numpy(np.asarray(evaluate(found.tensor, {}), dtype=np.float64))
    assert torch.equal(value.to(tensor.dtype), tensor)


def with_one_changed(tensor: torch.Tensor, *place: int) -> torch.Tensor:
    changed = tensor.clone()
    changed[place] = changed[place] + 1 if tensor.dtype == torch.int64 else ~changed[place].bool()
    return changed


UNKNOWN = {
    "random": torch.randn(N, N),
    "random bools": torch.rand(N, N, generator=torch.Generator().manual_seed(0)) < 0.5,
    "ones": torch.ones(N, N),
    "zeros of positions": torch.zeros(1, N, dtype=torch.int64),
    "NaN": torch.full((N, N), float("nan")).triu(1),
    "three values": torch.ones(N, N).tril() + torch.ones(N, N).tril(-3),
    "few": torch.eye(2),
    "sizes": torch.tensor([7, 7]),
    "padding": torch.arange(N) < 7,
    "columns": (torch.arange(N) < 7).expand(N, N),
    "three axes": torch.ones(2, N, N).tril(),
    "complex": torch.ones(N, N, dtype=torch.complex64).tril(),
    "sparse": torch.eye(N).to_sparse(),
    "a hole": with_one_changed(apart().abs() <= 2, 6, 7),
    "a hole in blocks": with_one_changed(apart(block=4) == 0, 6, 7),
    "another last": with_one_changed(torch.arange(N), N - 1),
    "two bands": (apart() == 1) | (apart() == 3) | (apart() == 4),
    "squares": torch.arange(N) ** 2,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_buffers_are_data(name: str) -> None:
    assert recognized(UNKNOWN[name]) is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_is_recognized_has_the_same_values(data: st.DataObject) -> None:
    """Random bands and blocks, half of them with an element changed."""
    rows, columns, block, step = (data.draw(st.integers(1, most)) for most in (9, 9, 4, 3))
    low, high = (data.draw(st.integers(-9, 9)) for _ in range(2))
    q = apart(rows, columns, block)
    seen = (q >= low) & (q <= high) & ((q - low) % step == 0)
    if data.draw(st.booleans()):
        seen = with_one_changed(seen, *(data.draw(st.integers(0, n - 1)) for n in seen.shape))
    found = recognized(seen)
    if found is not None:
        np.testing.assert_array_equal(evaluate(found.tensor, {}), seen.numpy())


class Windowed(torch.nn.Module):
    """Attention in a window, whose mask is a buffer."""

    def __init__(self, mask: torch.Tensor, trained: bool = False) -> None:
        super().__init__()
        if trained:
            self.mask = torch.nn.Parameter(mask)
        else:
            self.register_buffer("mask", mask)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = (torch.relu(q @ k.mT) * self.mask) @ v
        return read


def test_a_mask_in_a_buffer_is_part_of_the_program() -> None:
    mask, given = (apart(24, 24).abs() <= 2).float(), tuple(torch.randn(24, 4) for _ in "qkv")
    module = Windowed(mask).eval()
    program = eqsynth.optimize(module, given, objective="flops", engines=(), progress=False)
    assert 4 * program.report.flops_after <= program.report.flops_before
    torch.testing.assert_close(program(*given), module(*given))
    program.refresh(module)
    program.refresh(module.state_dict())
    program.refresh({})  # as of a module whose mask isn't persistent
    module.mask = torch.ones(24, 24).tril()
    with pytest.raises(WeightError):
        program.refresh(module.state_dict())
    with pytest.raises(WeightError) as refused:
        program.refresh(module)
    assert "mask" in str(refused.value)


def test_a_parameter_is_trained() -> None:
    given = tuple(torch.randn(N, 4) for _ in "qkv")
    captured = capture(Windowed(torch.ones(N, N).tril(), trained=True).eval(), given)
    assert captured.weights.keys() == {"mask"} and not captured.fixed
    captured = capture(Windowed(torch.ones(N, N).tril()).eval(), given)
    assert not captured.weights and captured.fixed.keys() == {"mask"}
