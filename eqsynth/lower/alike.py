"""Calls like one that went through already.

A call is looked at before kernels get its arguments: their classes, shapes, dtypes, devices and
strides, gradients that somebody wants, transforms and casts at work. Torch tells each of these by a
function of its own, which costs little while all of them are in the cache, and much where a model
of some megabytes has run since the last call. By one function of torch, for one tensor:

    10 us a call  ->  2, in the cache;  140 us  ->  40, out of it

So once such a look has found nothing to refuse or to change, what torch's guards (those of
``torch.compile``) note of the arguments is kept, and a call that passes them runs at once. A call
that doesn't is looked at as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn.modules import module as every_module

_grad_enabled: Final = torch.is_grad_enabled
_modes: Final = torch._C._len_torch_dispatch_stack
_set_grad_enabled: Final = torch._C._set_grad_enabled
_MOST_KINDS: Final = 4
"""Kinds of calls: under ``no_grad`` and ``inference_mode`` tensors differ, for instance."""

UNLIKE: Final = object()
"""No call like it went through."""

Run = Callable[..., list[torch.Tensor]]
_Names = tuple[int, tuple[str, ...]]
Result = Callable[[list[torch.Tensor], tuple[torch.Tensor, ...]], Any]


class Alike:
    """The calls of one program that went through, and how such a call runs.

        program(x, mask=m) went through  ->  the next one with tensors like x and m runs at once

    Attributes:
        call: the result for arguments by position and by name; ``UNLIKE`` if no call like it went
            through.
    """

    def __init__(
        self, run: Run, strides: Sequence[tuple[int, ...] | None], result: Result | None
    ) -> None:
        """
        Args:
            run: the program; its last argument says that the others are as they have to be.
            strides: of the inputs, as kernels read them; None where the program lays one out.
            result: makes the result of a call of its outputs and inputs; None if it is the first
                output.
        """
        self._guards: list[Callable[..., bool]] = []
        self._orders: dict[_Names, tuple[int, ...]] = {}
        self._strides = tuple(strides)
        self.call = _calling(self._guards, self._orders, len(self._strides), run, result)

    def note(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: Sequence[torch.Tensor]
    ) -> None:
        """A call went through.

        Args:
            inputs: of the program; only where all arguments are inputs, such a call runs at once.
        """
        if len(self._guards) >= _MOST_KINDS or is_compiling():
            return  # torch.compile can't see through its own guards
        if _grad_enabled() and any(x.requires_grad for x in inputs):
            return  # results of such calls are marked: backward through them raises
        given = (*args, *kwargs.values())
        place = {id(arg): n for n, arg in enumerate(given)}
        order = tuple(place.get(id(x), -1) for x in inputs)
        if sorted(order) != list(range(len(given))):
            return
        for x, strides in zip(inputs, self._strides, strict=True):
            if type(x) is not torch.Tensor or (strides is not None and x.stride() != strides):
                return
        if kwargs or order == tuple(sorted(order)):
            self._guards.append(_guard(inputs))
            if kwargs:
                self._orders[len(args), tuple(kwargs)] = order


def _calling(
    guards: list[Callable[..., bool]],
    orders: dict[_Names, tuple[int, ...]],
    count: int,
    run: Run,
    result: Result | None,
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    # A closure, not a method: each attribute that is looked up is memory that is read.
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            order = orders.get((len(args), tuple(kwargs)))
            if order is None:
                return UNLIKE
            given = (*args, *kwargs.values())
            args = tuple([given[n] for n in order])
        if len(args) != count or forward_ad._current_level >= 0 or _modes() or is_compiling():
            return UNLIKE
        for guard in guards:
            if guard(*args):
                break
        else:
            return UNLIKE
        if _grad_enabled():
            _set_grad_enabled(False)
            try:
                outputs = run(*args, True)
            finally:
                _set_grad_enabled(True)
        else:
            outputs = run(*args, True)
        return outputs[0] if result is None else result(outputs, args)

    return call


def _guard(args: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether tensors are as these: class, shape, strides, dtype, device, and what torch would do
    with them now (gradients, casts, transforms). Distinct ones: a tensor given twice is unlike."""
    sizes: list[Any] = [list(x.shape) for x in args]
    strides: list[Any] = [list(x.stride()) for x in args]
    guards = torch._C._dynamo.guards.TensorGuards(
        *args, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    check: Callable[..., bool] = guards.check
    return check


def hooked(module: torch.nn.Module) -> bool:
    """Whether functions of the user's are called around the module, or in its ``forward``'s place,
    which libraries put others into."""
    return bool(
        module._compiled_call_impl
        or "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
        or every_module._global_backward_hooks
        or every_module._global_backward_pre_hooks
    )
