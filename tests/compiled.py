"""What tests of ``torch.compile(backend="eqsynth")`` share: a model, and what it became."""

from __future__ import annotations

from typing import Any

import torch

from eqsynth import compile_backend


class Bottleneck(torch.nn.Module):
    """Two products that fold into one: (x U) V = x (U V)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(12, 96), torch.nn.Linear(96, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


class Watched:
    """The backend, and what it has given to torch, graph by graph."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.made.append(compile_backend.eqsynth(*args, **kwargs))
        return self.made[-1]
