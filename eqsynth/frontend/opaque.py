"""Operators that eqsynth has no term for: they stay in the program and run through torch.

A :class:`Foreign` is a call of torch whose result the IR can't hold: a tuple, or a tensor of a
dtype such as complex. A call that reads such a result is foreign, too. Where a plain tensor comes
out, the whole tree of calls becomes one ``Opaque`` operator over the terms that the tree reads:

    irfft(fft(x) * 2j)   ->   Opaque(x), with the three calls as its function
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from eqsynth.frontend.expr import Expr, make
from eqsynth.ir.tensor import Op, Tensor, over, topological
from eqsynth.ir.types import INTEGERS, Shape
from eqsynth.lower.torch_calls import Argument, TorchCall


@dataclass(frozen=True, eq=False)
class Foreign:
    """The call ``target(*args, **kwargs)``; its arguments hold terms and other foreign calls."""

    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def close(foreign: Foreign) -> tuple[TorchCall, list[Expr]]:
    """Return the call as a function of the terms that it reads, and these terms, each once."""
    terms: dict[bytes, tuple[int, Expr]] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, Foreign):
            return as_call(value)
        position, _ = terms.setdefault(value.tensor.digest, (len(terms), value))
        return Argument(position)

    def as_call(call: Foreign) -> TorchCall:
        args, kwargs = tree_map_only((Expr, Foreign), leaf, (call.args, call.kwargs))
        return TorchCall(call.target, call.name, args, kwargs)

    closed = as_call(foreign)
    return closed, [expr for _, expr in terms.values()]


def opaque(call: TorchCall, terms: Sequence[Expr], shape: Shape, dtype: str) -> Expr:
    """The ``Opaque`` operator that runs ``call``; equal calls of equal terms are equal operators.

    Args:
        shape, dtype: the result's.
    """
    return make("Opaque", terms, repr(call), shape, dtype)


_DIVISIONS: Final = {
    "FloorDivide": torch.ops.aten.floor_divide.default,
    "Remainder": torch.ops.aten.remainder.Tensor,
}


def divided_by_torch(roots: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, TorchCall]]:
    """Replace each division of integers whose divisor may be 0 by an ``Opaque`` call of torch.

    Torch raises an error where a divisor is 0; the IR's operators give 0 there, so that no kernel
    has to look at divisors. A divisor that is a constant other than 0 stays with the IR.

    Returns:
        The new terms, and the calls of their ``Opaque`` operators.
    """
    images: dict[Tensor, Tensor] = {}
    calls: dict[str, TorchCall] = {}
    for term in topological(roots):
        image = over(term, images)
        if isinstance(image, Op) and image.name in _DIVISIONS and image.dtype in INTEGERS:
            divisor = image.args[1]
            known = isinstance(divisor, Op) and divisor.name == "Full" and divisor.attrs[1] != 0
            if not known:
                target = _DIVISIONS[image.name]
                operands = tuple(Expr(arg) for arg in image.args)
                call, terms = close(Foreign(target, str(target), operands, {}))
                calls[repr(call)] = call
                image = opaque(call, terms, image.shape, image.dtype).tensor
        images[term] = image
    return tuple(images[root] for root in roots), calls
