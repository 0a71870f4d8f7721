"""Example inputs of a module: taken apart, and tried on the module before anything is captured.

Not here: whether they fit the signature (``torch_export.validate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from eqsynth.errors import CaptureError, EqsynthError


def arguments(example_inputs: Sequence[Any] | torch.Tensor | None) -> tuple[Any, ...]:
    """Positional arguments; a tensor that is given twice comes as two, since ``torch.export``
    takes it for one input."""
    if example_inputs is None:
        return ()
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    seen: set[int] = set()

    def apart(x: torch.Tensor) -> torch.Tensor:
        if id(x) in seen:
            return x.detach().clone()
        seen.add(id(x))
        return x

    args: tuple[Any, ...] = tree_map_only(torch.Tensor, apart, tuple(example_inputs))
    return args


def try_out(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
    """Runs the module once: capture doesn't see all that torch refuses, such as mixed dtypes.

    Buffers are as before afterwards.

    Raises:
        EqsynthError: the module fails on its example inputs.
        CaptureError: it assigns a new tensor to a buffer, which nothing outside of it can follow.
    """
    own = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    assigned = ""
    try:
        with torch.no_grad():
            module(*tree_map_only(torch.Tensor, torch.clone, args))
    except Exception as error:  # whatever a user's module raises
        raise EqsynthError(
            "the module fails on the example inputs",
            where=type(module).__name__,
            got=f"{', '.join(map(_kind, args))}: {type(error).__name__}: {error}"[:500],
            expected="shapes and dtypes that the module takes",
            hint="call the module on these inputs, and mend what torch says",
        ) from error
    finally:
        with torch.no_grad():
            for part, name, buffer, value in own:
                assigned = assigned or (name if part._buffers.get(name) is not buffer else "")
                part._buffers[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
    if assigned:
        raise CaptureError(
            "the module assigns a new tensor to a buffer",
            where=assigned,
            got="another tensor after a call",
            expected="the same tensor",
            hint="change it in place (add_, copy_); the original runs as it is",
        )


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__
