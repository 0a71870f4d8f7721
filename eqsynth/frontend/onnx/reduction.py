"""Reductions, running sums, argmax, softmax and sorting, over axes that are known at capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from eqsynth.frontend.onnx.table import Refused, axis_of, enter, many, one, op

Tensor = torch.Tensor
Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        raise Refused("a mean of integers")
    return torch.mean(x, axes, keep)


def _extreme(function: Any, logical: Any, most: bool) -> Reduction:
    def reduced(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.dtype == torch.bool:
            return logical(x, axes, keep)  # type: ignore[no-any-return]
        if any(x.shape[axis] == 0 for axis in axes):
            info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
            neutral = float("-inf" if most else "inf") if x.is_floating_point() else (
                info.min if most else info.max
            )
            shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
            return torch.full(shape, neutral, dtype=x.dtype)
        return function(x, axes, keep)  # type: ignore[no-any-return]

    return reduced


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        raise Refused("a norm of integers")
    return torch.sqrt(_sum(x * x, axes, keep))


_REDUCTIONS: Final[dict[str, Reduction]] = {
    "ReduceSum": _sum,
    "ReduceProd": _prod,
    "ReduceMean": _mean,
    "ReduceMax": _extreme(torch.amax, torch.any, True),
    "ReduceMin": _extreme(torch.amin, torch.all, False),
    "ReduceL1": lambda x, axes, keep: _sum(torch.abs(x), axes, keep),
    "ReduceL2": _l2,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": torch.logsumexp,
}
# Reductions that also apply a function to each element or to the result. For no axes (with
# ``noop_with_empty_axes``) the versions of ONNX disagree on whether the function is applied.
_COMPOSED: Final = frozenset(
    "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp".split()
)


def _entry(name: str, reduction: Reduction) -> Callable[..., Tensor]:
    def reduced(
        x: Tensor,
        given: Sequence[int] | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = axes if given is None else many(given)
        if not chosen and noop_with_empty_axes:
            if name in _COMPOSED:
                raise Refused("a reduction over no axes")
            return x
        if name.startswith("ReduceLog") and not x.is_floating_point():
            raise Refused("a logarithm of integers")
        places = [axis_of(axis, x.ndim) for axis in chosen or range(x.ndim)]
        if x.ndim == 0 or not places:
            places = []
            return reduction(x.reshape(1), [0], False)
        return reduction(x, places, bool(keepdims))

    return reduced


for _name, _reduction in _REDUCTIONS.items():
    enter(_name, _entry(_name, _reduction), known=(1,))


@op("ArgMax")
def arg_max(
    x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(torch.argmax, x, axis, keepdims, select_last_index)


@op("ArgMin")
def arg_min(
    x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(torch.argmin, x, axis, keepdims, select_last_index)


def _arg(function: Any, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    if not last:
        return function(x, axis, bool(keepdims))  # type: ignore[no-any-return]
    return x.shape[axis] - 1 - function(x.flip(axis), axis, bool(keepdims))  # type: ignore[no-any-return]


@op("Hardmax")
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    at = axis_of(axis, x.ndim)
    numbers = torch.arange(x.shape[at]).reshape([-1] + [1] * (x.ndim - 1 - at))
    return (torch.argmax(x, at, True) == numbers).to(x.dtype)


@op("Softmax")
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


@op("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


def _running(function: Any, neutral: int) -> Callable[..., Tensor]:
    def running(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        at = axis_of(int(one(axis)), x.ndim)
        if reverse:
            x = x.flip(at)
        result = function(x, at, dtype=x.dtype)
        if exclusive:
            first = torch.full_like(x.narrow(at, 0, 1), neutral)
            result = torch.cat([first, result.narrow(at, 0, x.shape[at] - 1)], at)
        return result.flip(at) if reverse else result  # type: ignore[no-any-return]

    return running


enter("CumSum", _running(torch.cumsum, 0), known=(1,))
enter("CumProd", _running(torch.cumprod, 1), known=(1,))


@op("TopK", known=(1,))
def top_k(
    x: Tensor, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """The largest or smallest elements; of equal elements the first ones, as ONNX requires.

    ``torch.topk`` doesn't promise an order of equal elements, so this is a stable sort.
    """
    at, count = axis_of(axis, x.ndim), one(k)
    if not 0 <= count <= x.shape[at]:
        raise ValueError(f"{count} of {x.shape[at]} elements")
    values, places = torch.sort(x, dim=at, descending=bool(largest), stable=True)
    return values.narrow(at, 0, count), places.narrow(at, 0, count)
