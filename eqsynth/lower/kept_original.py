"""Calling the user's own module, where nothing faster was found.

The call runs without gradients, and results share no memory with the module's weights and the
arguments: ``called`` copies a result that is a view of one. Not here: whether the weights have
changed (``weights.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any

import torch

from eqsynth.errors import LoweringError
from eqsynth.lower import torch_modes
from eqsynth.lower.weights import copied, storages


def called(
    original: Callable[..., Any],
    owned: frozenset[int],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the module; a result that shares memory with a weight or an argument is copied, unless
    it is the argument itself.

    Args:
        owned: the memory of the module's parameters and buffers.

    Raises:
        LoweringError: the module is in training mode, or torch traces the call.
    """
    if getattr(original, "training", False):
        raise LoweringError(
            what="the original module, which this program is, is in training mode",
            got=type(original).__name__,
            expected="evaluation mode, as when it was optimized",
            hint="call .eval() on the module first",
        )
    inputs, _ = torch_modes.tensors((*args, *kwargs.values()))
    for x in inputs:
        torch_modes.refuse_tracing(x)
    with torch.no_grad():
        result = original(*args, **kwargs)
    values, rebuilt = torch_modes.tensors(result)
    given = {id(x) for x in inputs}
    own, lent = list(values), storages(inputs)
    fresh = [n for n, x in enumerate(values) if id(x) not in given]
    for n in fresh:
        memory = storages([values[n]])
        if not memory.isdisjoint(owned) or not memory.isdisjoint(lent):
            with torch.no_grad():
                own[n] = copied(values[n])
        elif values[n].requires_grad:
            own[n] = values[n].detach()
    marked = torch_modes.without_gradients([own[n] for n in fresh], inputs)
    for n, x in zip(fresh, marked, strict=True):
        own[n] = x
    # Rebuilding a tree of torch takes tens of microseconds.
    return result if all(map(is_, own, values)) else rebuilt(own)
