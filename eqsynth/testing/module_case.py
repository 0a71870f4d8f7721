"""A torch module as data: its layers and the lines of its ``forward``, as text.

A module that hypothesis has drawn and shrunk can thus be printed: its ``repr`` is code that builds
the case again, and ``source()`` is plain torch for a bug report. Not here: drawing a module
(``strategies/modules.py``).
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from eqsynth.ir.data import sample
from eqsynth.ir.types import TensorType, is_float

_HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Drawn(nn.Module):
"""


@dataclass(frozen=True)
class Argument:
    """An argument of a module: a tensor of this shape and dtype.

    Attributes:
        below: integers are drawn from 0 to ``below - 1``, for arguments that are positions.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int | None = None

    def __repr__(self) -> str:
        parts = [repr(self.shape)]
        if self.dtype != "float32" or self.below is not None:
            parts.append(repr(self.dtype))
        if self.below is not None:
            parts.append(f"below={self.below}")
        return f"Argument({', '.join(parts)})"

    def tensor(self, rng: np.random.Generator, kind: str = "normal") -> torch.Tensor:
        """A random tensor; floats are of a kind in ``eqsynth.ir.data.FLOATS``."""
        if self.below is not None:
            drawn = rng.integers(0, max(self.below, 1), size=self.shape)
        else:
            wanted = kind if is_float(self.dtype) else "small"
            drawn = sample(wanted, TensorType(self.shape, self.dtype), rng)
        return torch.from_numpy(np.asarray(drawn)).to(getattr(torch, self.dtype))


@dataclass(frozen=True)
class ModuleCase:
    """A torch module with arguments. Equal cases have equal modules and equal arguments.

    Attributes:
        inputs: the arguments of ``forward``, where they are named ``x0``, ``x1``, ….
        layers: lines ``name = expression`` for submodules and parameters of the module.
        forward: the lines of ``forward``, which may use ``self``, ``torch``, ``nn`` and ``F``.
        dtype: the dtype of the layers' floats.
        seed: the seed of all weights and arguments.

    >>> case = ModuleCase(
    ...     inputs=(Argument((2, 3)),),
    ...     layers=("a = nn.Linear(3, 1)",),
    ...     forward=("v0 = self.a(x0)", "return v0"),
    ... )
    >>> case.module()(*case.arguments()).shape
    torch.Size([2, 1])
    """

    inputs: tuple[Argument, ...]
    layers: tuple[str, ...] = ()
    forward: tuple[str, ...] = ("return x0",)
    dtype: str = "float32"
    seed: int = 0

    def __repr__(self) -> str:
        """Code that builds the case again."""
        rows = [f"inputs={self.inputs!r},"]
        if self.layers:
            rows += ["layers=(", *(f"    {line!r}," for line in self.layers), "),"]
        rows += ["forward=(", *(f"    {line!r}," for line in self.forward), "),"]
        if self.dtype != "float32":
            rows.append(f"dtype={self.dtype!r},")
        if self.seed:
            rows.append(f"seed={self.seed},")
        return "\n".join(["ModuleCase(", *(f"    {row}" for row in rows), ")"])

    def source(self) -> str:
        """The module as plain torch code, a class ``Drawn``; weights are left to torch."""
        names = ", ".join(f"x{position}" for position in range(len(self.inputs)))
        lines = ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.{line}" for line in self.layers]
        lines += ["", f"    def forward(self{', ' if names else ''}{names}):"]
        return _HEAD + "\n".join([*lines, *(f"        {line}" for line in self.forward)]) + "\n"

    def module(self) -> nn.Module:
        """The module in evaluation mode, with random weights from ``seed``. The state of torch's
        random generator doesn't change."""
        source, scope = self.source(), dict[str, Any]()
        name = f"<module case {hash(self) & 0xFFFFFFFF:08x}>"
        # torch.export asks linecache for the source of the code that it traces.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), scope)
        with torch_seed(self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty weights
            drawn: nn.Module = scope["Drawn"]()
        drawn.to(getattr(torch, self.dtype)).eval()
        set_weights(drawn, self.seed)
        return drawn

    def arguments(self, kind: str = "normal", seed: int | None = None) -> tuple[torch.Tensor, ...]:
        """Tensors for ``forward``; floats are of a kind in ``eqsynth.ir.data.FLOATS``."""
        rng = np.random.default_rng(self.seed if seed is None else seed)
        return tuple(argument.tensor(rng, kind) for argument in self.inputs)


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Seed torch's random generator inside of the ``with`` block, and restore its state after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def set_weights(module: nn.Module, seed: int) -> None:
    """Set all floating-point parameters and buffers to random numbers of scale 0.5; running
    variances are at least 0.5."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value.copy_(0.5 + noise.abs() if name.endswith("running_var") else noise / 2)
