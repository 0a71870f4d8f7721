"""Example inputs of a module: taken apart, held against what a program can be made of, and tried on
the module before anything is captured."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.extract.target import CPU
from eqsynth.lower.calling import bound, signature_of
from eqsynth.lower.holders import Opening, holds, opened_module

TENSORS: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes of plain tensors; a subclass may mean something else by an operator."""

SLOW_S: Final = 5.0
"""A call that takes less isn't long, however short the search is to be."""

_AS_IT_IS: Final = "the original runs as it is"


def arguments(
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; a tensor that is given twice comes as two, since
    ``torch.export`` takes it for one input.

    Raises:
        EqsynthError: the keyword arguments are no mapping from names, or an argument has no end.
    """
    kwargs = {} if example_kwargs is None else example_kwargs
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise EqsynthError(
            "optimize: example_kwargs is no mapping from names",
            got=repr(kwargs)[:200],
            expected="a dict of the arguments that the module is called with by name",
            hint="give positional arguments as example_inputs",
        )
    if example_inputs is None:
        example_inputs = ()
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    seen: set[int] = set()

    def apart(x: torch.Tensor) -> torch.Tensor:
        if id(x) in seen:
            return x.detach().clone()
        seen.add(id(x))
        return x

    try:
        given: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
            torch.Tensor, apart, (tuple(example_inputs), dict(kwargs))
        )
    except RecursionError:
        raise EqsynthError(
            "optimize: an example input is nested too deeply, or holds itself",
            got="lists, tuples or dicts in each other",
            expected="a tree of tensors and plain values",
            hint="give the tensors in a flat list",
        ) from None
    return given


def validate(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """What the caller got wrong, before anything is exported.

    Raises:
        EqsynthError: the number or names of the inputs don't fit ``forward``.
        CaptureError: the module, or a part of it, is in training mode, or a parameter of it gets
            its values at the first call only.
    """
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(
            "this is no torch module",
            got=type(module).__name__,
            expected="a torch.nn.Module, or an expression of eqsynth",
            hint="wrap a function into a module",
        )
    bound(signature_of(module), args, kwargs)
    for name, part in module.named_modules():
        if part.training:
            raise CaptureError(
                "the module is in training mode",
                where=name,
                got=type(part).__name__,
                expected="evaluation mode",
                hint="call .eval() on the module first",
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, UninitializedTensorMixin):
            raise CaptureError(
                "a weight has no values yet",
                where=name,
                got=type(tensor).__name__,
                expected="a tensor with values",
                hint="call the module once, as torch's lazy modules want it",
            )


def refuse_foreign(
    module: torch.nn.Module, inputs: Any, limit_bytes: float = math.inf
) -> None:
    """Tensors that a program of plain dense ones on the CPU isn't made of, before any is copied.

    Args:
        inputs: the arguments, as a tree.
        limit_bytes: what a tensor that overlaps itself may take once it is dense.

    Raises:
        CaptureError: an input, parameter or buffer is such a tensor, or an input is a module.
    """
    # torch.export makes a tree of a module that is an argument, and then knows it as one.
    for leaf in tree_leaves(inputs, is_leaf=_is_module):
        if _is_module(leaf):
            raise CaptureError(
                "an input is a module",
                where=type(module).__name__,
                got=type(leaf).__name__,
                expected="tensors and plain values",
                hint=_AS_IT_IS,
            )
        if isinstance(leaf, torch.Tensor):
            _refuse_foreign("an input", type(module).__name__, leaf, limit_bytes)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        # Of what isn't dense, capture makes opaque operators' arguments.
        _refuse_foreign("a weight", name, tensor, limit_bytes, dense=False)


def _refuse_foreign(
    what: str, where: str, tensor: torch.Tensor, limit_bytes: float, dense: bool = True
) -> None:
    plain = is_plain(tensor)
    for is_so, told, got, expected in (
        (type(tensor) not in TENSORS, "isn't a plain tensor", type(tensor).__name__,
         "torch.Tensor"),
        (tensor.device.type != CPU, "isn't on the CPU", str(tensor.device), CPU),
        (dense and not plain, "isn't dense", _layout(tensor), str(torch.strided)),
    ):  # fmt: skip
        if is_so:
            raise CaptureError(
                f"{what} {told}", where=where, got=got, expected=expected, hint=_AS_IT_IS
            )
    if plain:
        refuse_huge(what, where, tensor, limit_bytes)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is what its elements are: dense, and not quantized."""
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.dtype if tensor.is_quantized else tensor.layout)


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def refuse_huge(what: str, where: str, tensor: torch.Tensor, limit_bytes: float) -> None:
    """Refuses a tensor that overlaps itself, ``x.expand(1 << 36, 3)``, and that nobody could hold
    once it is copied: what a program takes and gives is dense.

    Raises:
        CaptureError: it is such a tensor.
    """
    dense = tensor.numel() * tensor.element_size()
    if dense > limit_bytes and dense > tensor.untyped_storage().nbytes():
        raise CaptureError(
            f"{what} overlaps itself and is too large to be copied",
            where=where,
            got=f"{tuple(tensor.shape)}: {dense:,} bytes once it is dense",
            expected=f"at most {limit_bytes:,.0f} bytes",
            hint="raise memory_limit, or expand the tensor where it is used",
        )


def any_order(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the module computes the same if the keys of its dicts come in another order.

    One that goes through a dict by position (``torch.cat(list(x.values()))``) doesn't. It is tried
    on arguments near the given ones, no two of which are the same; where such can't be made, or
    the module doesn't take them, the answer is no.
    """
    given = (args, dict(kwargs))
    spec = tree_flatten(given)[1]
    turns = [_turned(given, turn) for turn in (_backwards, _rotated)]
    if all(tree_flatten(turned)[1] == spec for turned in turns):
        return True  # no dict of two keys: there is one order
    generator = torch.Generator().manual_seed(0)

    def apart(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x.clone()
        noise = torch.rand(x.shape, generator=generator).to(x.dtype)
        return x * (1 + noise / 64) + noise / 64

    near = tree_map_only(torch.Tensor, apart, given)
    values = tree_leaves(near)
    if any(_same(one, other) for n, one in enumerate(values) for other in values[:n]):
        return False

    def results(tree: Any) -> list[Any]:
        with torch.no_grad(), kept_buffers(module):
            return tree_leaves(module(*_copied(tree[0]), **_copied(tree[1])))

    try:
        first = results(near)
        others = [results(_turned(near, turn)) for turn in (_backwards, _rotated)]
    except Exception:  # whatever a user's module raises
        return False
    return all(len(o) == len(first) and all(map(_same, first, o)) for o in others)


def _backwards(keys: Sequence[Any]) -> list[Any]:
    return [*reversed(keys)]


def _rotated(keys: Sequence[Any]) -> list[Any]:
    return [*keys[1:], *keys[:1]]


def _turned(tree: Any, turn: Callable[[Sequence[Any]], list[Any]]) -> Any:
    """The tree with the keys of each dict in another order."""
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, _turned(tree[key], turn)) for key in turn(list(tree)))
    if type(tree) in (list, tuple):
        return type(tree)(_turned(part, turn) for part in tree)
    return tree


def _copied(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.clone, tree)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one, other = one.detach(), other.detach()
        return one.dtype == other.dtype and torch.equal(one.isnan(), other.isnan()) and torch.equal(
            one.nan_to_num(), other.nan_to_num()
        )
    return type(one) is type(other) and bool(one == other)


def opened(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit_bytes: float = math.inf,
    limit_s: float = math.inf,
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module, tried on its arguments; opened, where these or its result hold tensors in objects
    that torch's trees end at (``lower/holders.py``).

    Args:
        limit_bytes: see ``refuse_foreign``; of a result the same.
        limit_s: what the search may take. A module that takes longer for one call, and more than a
            few seconds, is refused: to hold a program against it takes dozens of calls.

    Raises:
        EqsynthError, CaptureError: as ``try_out``, ``refuse_foreign`` and ``refuse_huge``.
    """
    call = Opening()
    given = call.opened((args, kwargs))
    refuse_foreign(module, given, limit_bytes)
    if call.objects:
        module, (args, kwargs) = opened_module(module), arguments(*given)
    begin = time.monotonic()
    result = try_out(module, args, kwargs)
    took_s = time.monotonic() - begin
    if took_s > max(limit_s, SLOW_S):
        raise CaptureError(
            "a call of the module takes longer than the search may",
            where=type(module).__name__,
            got=f"{took_s:.1f} s",
            expected=f"at most {max(limit_s, SLOW_S):.1f} s",
            hint="raise time_limit_s, or give smaller example inputs",
        )
    for leaf in tree_leaves(Opening().opened(result)):
        if isinstance(leaf, torch.Tensor):
            _refuse_foreign("a result", type(module).__name__, leaf, limit_bytes)
    if not call.objects and holds(result):
        module = opened_module(module)
    return module, args, kwargs


def try_out(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The result of the module: capture doesn't see all that torch refuses, such as mixed dtypes.

    Buffers and parameters are as before afterwards.

    Raises:
        EqsynthError: the module fails on its example inputs.
        CaptureError: it assigns a new tensor to a buffer, which nothing outside of it can follow,
            or writes into a parameter.
    """
    kwargs = kwargs or {}
    try:
        with torch.no_grad(), kept_buffers(module) as assigned, _kept_weights(module) as changed:
            result = module(*_copied(args), **_copied(dict(kwargs)))
    except Exception as error:  # whatever a user's module raises
        kinds = [*map(_kind, args), *(f"{name}={_kind(v)}" for name, v in kwargs.items())]
        raise EqsynthError(
            "the module fails on the example inputs",
            where=type(module).__name__,
            got=f"{', '.join(kinds)}: {type(error).__name__}: {error}"[:500],
            expected="shapes and dtypes that the module takes",
            hint="call the module on these inputs, and mend what torch says",
        ) from error
    if assigned:
        raise CaptureError(
            "the module assigns a new tensor to a buffer",
            where=assigned[0],
            got="another tensor after a call",
            expected="the same tensor",
            hint="change it in place (add_, copy_); the original runs as it is",
        )
    if changed:
        raise CaptureError(
            "the module writes into a weight",
            where=changed[0],
            got="a parameter that a call has written into",
            expected="parameters that calls read; what calls change in buffers",
            hint="nn.Embedding(max_norm=…) does so: scale its rows once, and leave max_norm out",
        )
    return result


@contextmanager
def _kept_weights(module: torch.nn.Module) -> Iterator[list[str]]:
    """Gives parameters that a call writes into their values back; their names are then in the list.

    ``nn.Embedding(max_norm=1.0)`` scales the rows that it is asked for. Tried on random inputs, it
    would scale rows that no user has asked for.
    """
    own = [(name, p, _changes(p), p.clone()) for name, p in module.named_parameters()]
    changed: list[str] = []
    try:
        yield changed
    finally:
        with torch.no_grad():
            for name, parameter, before, value in own:
                if before is not None and _changes(parameter) == before:
                    continue
                if before is not None or not _same(parameter, value):
                    changed.append(name)
                    parameter.copy_(value)


def _changes(tensor: torch.Tensor) -> int | None:
    """How often torch has written into a tensor; None of those in which it doesn't count."""
    return None if tensor.is_inference() else tensor._version


@contextmanager
def kept_buffers(module: torch.nn.Module) -> Iterator[list[str]]:
    """Gives the module's buffers back as they were at the end; the names of those that were
    assigned anew are then in the list."""
    own = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    assigned: list[str] = []
    try:
        yield assigned
    finally:
        with torch.no_grad():
            for part, name, buffer, value in own:
                if part._buffers.get(name) is not buffer:
                    assigned.append(name)
                part._buffers[name] = buffer
                if not is_plain(buffer) or not torch.equal(buffer, value):
                    buffer.copy_(value)


class Flat(torch.nn.Module):
    """A module over the leaves of its arguments, so that whoever varies arguments needs no tree."""

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.call = call
        self.leaves, self.spec = tree_flatten((args, dict(kwargs)))

    def forward(self, *leaves: Any) -> Any:
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.call(*args, **kwargs)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__
