"""Small compiled programs, made by hand for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eqsynth.extract.kernel import Backend, Kernel, Layout, contiguous
from eqsynth.ir.tensor import Input, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.steps import Parameter, Step
from eqsynth.lower.torch_backend import TorchBackend, conversion
from eqsynth.lower.vendor import OneDnnBackend


@dataclass(frozen=True)
class Row:
    """A calling convention: tensors in a row; a single output comes alone."""

    buffers: tuple[torch.Tensor, ...] = ()
    convention: None = None

    def bind(self, *args: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.values(args)

    def values(self, leaves: Sequence[Any]) -> Sequence[torch.Tensor]:
        return [*leaves, *self.buffers]

    def unflatten(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> Any:
        return outputs[0] if len(outputs) == 1 else outputs


def step(
    name: str,
    term: Tensor,
    *args: str,
    constants: Mapping[str, torch.Tensor] | None = None,
    backend: Backend | None = None,
    kernel: Kernel | None = None,
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> Step:
    """A step by a backend's first kernel for the term; arguments in ``constants`` are packed."""
    backend = backend or TorchBackend(opaque or {})
    known = constants or {}
    flags = tuple(arg in known for arg in args)
    kernel = kernel or next(iter(backend.kernels(term, flags)))
    (runner,) = backend.build([(kernel, {k: known[a] for k, a in enumerate(args) if a in known})])
    assert runner is not None and len(args) == len(args_of(term))
    return Step(name, kernel, runner, args, label=f"model.{name}")


def program_of(
    inputs: Mapping[str, tuple[int, ...]],
    steps: Sequence[Step],
    outputs: Sequence[str],
    constants: Mapping[str, torch.Tensor] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    row: Any = None,
    **rest: Any,
) -> CompiledProgram:
    parameters = [
        Parameter(
            Input(name, TensorType(shape, "float32")),
            (layouts or {}).get(name, contiguous(len(shape))),
        )
        for name, shape in inputs.items()
    ]
    return CompiledProgram(parameters, steps, outputs, row or Row(), constants, **rest)


def convolutions(
    row: Any = None, **rest: Any
) -> tuple[CompiledProgram, Callable[[torch.Tensor], torch.Tensor]]:
    """Two convolutions of oneDNN, a residual, pooling, a linear layer; and the same in torch."""
    from lower_cases import op

    generator = torch.Generator().manual_seed(0)
    constants = {
        "w1": torch.randn(8, 3, 3, 3, generator=generator),
        "b1": torch.randn(8, generator=generator),
        "w2": torch.randn(8, 8, 3, 3, generator=generator) / 8,
        "w3": torch.randn(8, 5, generator=generator),
        "b3": torch.randn(5, generator=generator),
    }
    window = ((1, 1), (1, 1), (1, 1), 1)
    x, y = (2, 3, 8, 8), (2, 8, 8, 8)
    vendor = OneDnnBackend()
    conv = op("FusedConv2d", x, (8, 3, 3, 3), (8,), attrs=(*window, "relu"))
    again = op("FusedConv2dAdd", y, (8, 8, 3, 3), (8,), y, attrs=(*window, "relu"))
    mean = op("ReduceMean", y, attrs=((2, 3), 0))
    linear = op("FusedMatmul", (2, 8), (8, 5), (5,), attrs=("none",))
    back = conversion(TensorType(y, "float32"), (0, 2, 3, 1), (0, 1, 2, 3))
    steps = [
        step("t1", conv, "x", "w1", "b1", constants=constants, backend=vendor),
        step("t2", again, "t1", "w2", "b1", "t1b", constants=constants, backend=vendor),
        step("t3", back.term, "t2", kernel=back),
        step("t4", mean, "t3"),
        step("y", linear, "t4", "w3", "b3", constants=constants, backend=vendor),
    ]
    steps.insert(1, step("t1b", op("Relu", y), "t1", kernel=_channels_last_relu(op("Relu", y))))

    def reference(x: torch.Tensor) -> torch.Tensor:
        c = constants
        t = torch.conv2d(x, c["w1"], c["b1"], padding=1).relu()
        t = (torch.conv2d(t, c["w2"], c["b1"], padding=1) + t).relu()
        return t.mean((2, 3)) @ c["w3"] + c["b3"]

    layouts = {"x": steps[0].kernel.inputs[0]}
    return program_of({"x": x}, steps, ["y"], constants, layouts, row, **rest), reference


def _channels_last_relu(term: Tensor) -> Kernel:
    return next(k for k in TorchBackend().kernels(term, (False,)) if k.output == (0, 2, 3, 1))
