"""A short way for calls whose arguments are like those of an earlier call.

Before a program's kernels get the arguments of a call, these are checked: classes, shapes, dtypes,
devices and strides, whether somebody wants gradients, and whether transforms or casts are active.
torch answers each question by a function of its own. That costs little while all of these functions
are in the cache, and much if a model of some megabytes has run since the last call. The short way
is one function of torch instead; for one tensor:

    10 us a call  ->  2, in the cache;  140 us  ->  40, out of it

When a call has passed all checks, and nothing had to be changed, torch's guards (those of
``torch.compile``) record its arguments. A later call that passes these guards runs at once; any
other call goes through the checks as before.
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
"""The most kinds of calls that are recorded: tensors of ``no_grad`` and of ``inference_mode``
differ, for instance."""

UNLIKE: Final = object()
"""The answer that no earlier call was like this one."""

Run = Callable[..., list[torch.Tensor]]
_Names = tuple[int, tuple[str, ...]]
Result = Callable[[list[torch.Tensor], tuple[torch.Tensor, ...]], Any]


class Alike:
    """The recorded calls of one program, and how a call like one of them runs.

        program(x, mask=m) passed the checks  ->  the next such call with other x and m runs at once

    Attributes:
        call: the result for arguments by position and by name; ``UNLIKE`` if no recorded call is
            like this one.
    """

    def __init__(
        self, run: Run, strides: Sequence[tuple[int, ...] | None], result: Result | None
    ) -> None:
        """
        Args:
            run: the steps of the program; True as the last argument says that the inputs were
                checked.
            strides: for each input the strides that the kernels read; None if the program lays the
                input out in each call.
            result: makes the call's result from the program's outputs and inputs; None if the
                result is the first output.
        """
        self._guards: list[Callable[..., bool]] = []
        self._orders: dict[_Names, tuple[int, ...]] = {}
        self._strides = tuple(strides)
        self.call = _calling(self._guards, self._orders, len(self._strides), run, result)

    def note(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Record a call that passed the checks.

        Args:
            inputs: the program's inputs in this call. The call is recorded only if each argument is
                an input.
        """
        if len(self._guards) >= _MOST_KINDS or is_compiling():
            return  # torch.compile can't trace its own guards
        if _grad_enabled() and any(x.requires_grad for x in inputs):
            return  # the results of such a call are marked, so that backward through them raises
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
    # A closure, not a method: each lookup of an attribute would read memory that may be out of the
    # cache.
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
    """A function that tells whether tensors are like these: class, shape, strides, dtype, device,
    and how torch would treat them now (gradients, casts, transforms). The tensors must be distinct:
    a call that gives one tensor twice isn't like one with two."""
    sizes: list[Any] = [list(x.shape) for x in args]
    strides: list[Any] = [list(x.stride()) for x in args]
    guards = torch._C._dynamo.guards.TensorGuards(
        *args, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    check: Callable[..., bool] = guards.check
    return check


def hooked(module: torch.nn.Module) -> bool:
    """Whether torch would call functions of the user around the module (hooks), or in place of its
    ``forward``, as some libraries set them."""
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
