"""Example inputs of a module: the checks before capture.

The inputs are normalized to positional and keyword arguments (:func:`arguments`), compared with the
module's signature (:func:`validate`), checked for tensors that no program can hold
(:func:`refuse_foreign`), and tried on the module (:func:`try_out`); :func:`opened` does the last
two, and opens objects that hold tensors. Not here: whether the module gives the same result twice
(``steady.py``), and capture itself (``torch_export.py``).
"""

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

from eqsynth.errors import CaptureError, EqsynthError, WritingError
from eqsynth.extract.target import CPU
from eqsynth.lower.calling import bound, signature_of
from eqsynth.lower.holders import Opening, holds, opened_module

TENSORS: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes of plain tensors. A subclass may override operators, and is refused."""

SLOW_S: Final = 5.0
"""A call of the module up to this long isn't refused as slow, however short the search may be."""

_AS_IT_IS: Final = "the original runs as it is"


def arguments(
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs as positional and keyword arguments: ``x`` -> ``((x,), {})``.

    A tensor that is given twice becomes two tensors, since ``torch.export`` would make one input of
    it.

    Raises:
        EqsynthError: the keyword arguments are no mapping from names, or an argument contains
            itself or is nested too deeply.
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
    """Check the module and its arguments before anything is exported.

    Raises:
        EqsynthError: the number or names of the inputs don't fit ``forward``.
        CaptureError: this is no module, it or a part of it is in training mode, or a parameter
            or buffer has no values before the first call (lazy modules).
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
    """Refuse tensors that no program can hold, before any tensor is copied.

    A program holds plain tensors on the CPU, and its inputs and results are dense.

    Args:
        inputs: the arguments, as a tree.
        limit_bytes: the memory that a tensor which overlaps itself may take as a dense copy.

    Raises:
        CaptureError: an input, parameter or buffer is such a tensor, or an input is a module.
    """
    # After torch.export has seen a module as an argument, torch flattens modules, too; the leaves
    # that are looked at here stop at them.
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
        # A weight that isn't dense becomes an argument of an opaque operator.
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
    """Whether the tensor is dense: strided, not nested, and not quantized."""
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.dtype if tensor.is_quantized else tensor.layout)


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def refuse_huge(what: str, where: str, tensor: torch.Tensor, limit_bytes: float) -> None:
    """Refuse a tensor that overlaps itself, such as ``x.expand(1 << 36, 3)``, if its dense copy
    would be larger than ``limit_bytes``: a program's inputs and results are dense.

    Raises:
        CaptureError: the tensor is that large.
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
    """Whether the module gives the same results if the keys of its dicts come in another order.

    A module that reads a dict by position (``torch.cat(list(x.values()))``) doesn't. The module is
    called on arguments near the given ones, with the keys in three orders. The arguments differ
    from each other, so that two swapped ones change the result. If two of them can't be told apart,
    or the module fails on them, the answer is False.
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
    """Return the tree with the keys of each dict in the order that ``turn`` gives."""
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
    """Try the module on its arguments, and open objects that hold tensors.

    Torch's trees end at objects such as a KV cache or a dataclass. If the arguments or the result
    hold tensors in such objects, the module and the arguments that are returned have trees in the
    objects' places (``lower/holders.py``).

    Args:
        limit_bytes: see ``refuse_foreign``; holds for results, too.
        limit_s: the time limit of the search. A module whose single call takes longer than this,
            and longer than ``SLOW_S``, is refused: checking a program takes dozens of calls.

    Raises:
        EqsynthError, CaptureError: see ``try_out``, ``refuse_foreign`` and ``refuse_huge``; or a
            call takes too long.
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
    """Call the module on copies of its arguments and return the result.

    Capture alone doesn't find every input that torch refuses, for example mixed dtypes. Buffers and
    parameters are restored.

    Raises:
        EqsynthError: the module fails on its example inputs.
        CaptureError: the module assigns a new tensor to a buffer, or writes into a parameter. A
            program holds on to the tensors of before, and wouldn't see the new ones.
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
        raise WritingError(
            "the module writes into a weight",
            where=changed[0],
            got="a parameter that a call has written into",
            expected="parameters that calls read; what calls change in buffers",
            hint="nn.Embedding(max_norm=…) does so: scale its rows once, and leave max_norm out",
        )
    return result


@contextmanager
def _kept_weights(module: torch.nn.Module) -> Iterator[list[str]]:
    """Restore the parameters that a call writes into, and add their names to the list it yields.

    ``nn.Embedding(max_norm=1.0)`` scales the rows that a call reads. A call on random inputs would
    scale rows that no call of the user has read.
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
    """How often torch has written into a tensor; None for inference tensors, which don't count."""
    return None if tensor.is_inference() else tensor._version


@contextmanager
def kept_buffers(module: torch.nn.Module) -> Iterator[list[str]]:
    """Restore the module's buffers at the end, and add the names of buffers that were assigned a
    new tensor to the list it yields."""
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
    """A module over the leaves of its arguments: ``module((x, y), k=z)`` -> ``flat(x, y, z)``.

    Code that varies the arguments then needs no trees.
    """

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
