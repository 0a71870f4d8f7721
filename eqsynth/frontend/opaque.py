"""Operators that eqsynth has no term for: they stay in the program and run through torch.

A :class:`Foreign` is a call of torch whose result the IR can't hold yet: a tuple, or a tensor of a
dtype such as complex. Calls of calls stay foreign; where a plain tensor comes out, the whole tree
of calls becomes one ``Opaque`` operator over the terms that it reads.
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
    """``target(*args, **kwargs)``; terms and other foreign values are leaves of the arguments."""

    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def close(foreign: Foreign) -> tuple[TorchCall, list[Expr]]:
    """The call as a function of the terms that it reads, and these terms, each once."""
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
    """The ``Opaque`` operator; equal calls of equal terms are equal operators."""
    return make("Opaque", terms, repr(call), shape, dtype)


_DIVISIONS: Final = {
    "FloorDivide": torch.ops.aten.floor_divide.default,
    "Remainder": torch.ops.aten.remainder.Tensor,
}


def divided_by_torch(roots: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, TorchCall]]:
    """The terms with each division of integers by what may be 0 as an ``Opaque`` operator, and what
    runs these: torch, which raises where a divisor is 0. (The operators of the IR give 0 there, so
    that no kernel has to look.)
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
