"""Example inputs of a module: taken apart, and tried on the module before anything is captured.

Not here: whether they fit the signature (``torch_export.validate``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.lower.holders import Opening, holds, opened_module


def arguments(
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; a tensor that is given twice comes as two, since
    ``torch.export`` takes it for one input.

    Raises:
        EqsynthError: the keyword arguments are no mapping from names.
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

    given: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor, apart, (tuple(example_inputs), dict(kwargs))
    )
    return given


def refuse_sparse(tree: Any) -> None:
    """Tensors that a program of dense ones isn't of; ``torch.export`` takes some for dense."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and (leaf.layout != torch.strided or leaf.is_nested):
            raise CaptureError(
                "an input isn't dense",
                got=str(leaf.layout),
                expected=str(torch.strided),
                hint="the original runs as it is",
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
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module, tried on its arguments; opened, where these or its result hold tensors in objects
    that torch's trees end at (``lower/holders.py``).

    Raises:
        EqsynthError, CaptureError: as ``try_out``.
    """
    call = Opening()
    given = call.opened((args, kwargs))
    if call.objects:
        module, (args, kwargs) = opened_module(module), arguments(*given)
    result = try_out(module, args, kwargs)
    if not call.objects and holds(result):
        module = opened_module(module)
    return module, args, kwargs


def try_out(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The result of the module: capture doesn't see all that torch refuses, such as mixed dtypes.

    Buffers are as before afterwards.

    Raises:
        EqsynthError: the module fails on its example inputs.
        CaptureError: it assigns a new tensor to a buffer, which nothing outside of it can follow.
    """
    kwargs = kwargs or {}
    try:
        with torch.no_grad(), kept_buffers(module) as assigned:
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
    return result


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
                if not torch.equal(buffer, value):
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
