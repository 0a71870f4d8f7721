"""Changes of weights that torch doesn't count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from eqsynth.lower.samples import Samples

WRITES: dict[str, Callable[[Tensor], object]] = {
    "data": lambda x: x.data.mul_(0.5),
    "numpy": lambda x: np.multiply(x.detach().numpy(), 3, out=x.detach().numpy()),
    "a half": lambda x: x.data[: (len(x) + 1) // 2].add_(1),
}
TENSORS: dict[str, Callable[[], list[Tensor]]] = {
    "one number": lambda: [torch.ones(1)],
    "sixteen bits": lambda: [torch.ones(3, dtype=torch.float16)],
    "large": lambda: [torch.ones(3000, 50)],
    "many": lambda: [torch.ones(64, 64) for _ in range(700)],
    "a view": lambda: [torch.ones(400, 400)[10:300, 7:9]],
    "the other order": lambda: [torch.ones(40, 400).t()],
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("write", WRITES)
def test_a_tensor_that_is_written_is_seen(kind: str, write: str) -> None:
    tensors = TENSORS[kind]()
    samples = Samples(tensors)
    assert not samples.changed()
    for x in (tensors[0], tensors[-1]):
        WRITES[write](x)
        assert samples.changed()
        samples = Samples(tensors)


def test_each_element_of_small_tensors_is_seen() -> None:
    tensors = [torch.zeros(5, 7), torch.zeros(31, dtype=torch.uint8)]
    for x in tensors:
        for n in range(x.numel()):
            samples = Samples(tensors)
            x.view(-1).data[n] = 1
            assert samples.changed()


def test_tensors_without_memory_have_none() -> None:
    assert not Samples([]).changed()
    assert not Samples([torch.zeros(0), torch.zeros(2, device="meta")]).changed()
