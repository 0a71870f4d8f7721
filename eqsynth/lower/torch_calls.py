"""Calls of torch operators: as functions that run opaque operators of the IR, and as plain data.

A call may contain further calls, whose results the IR can't represent: the first result of
``x.sort()`` is a call of ``item`` on a call of ``sort``, and is one opaque operator. As data, a
call is an operator's name (``aten::cumsum``) and arguments that are numbers, names and lists. So
nothing has to be unpickled when a program is loaded, and nothing but operators of torch can be
called.
"""

from __future__ import annotations

import copy
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from eqsynth.errors import LoweringError

Data = Any


@dataclass(frozen=True, eq=False)
class Named:
    """A value that is no term (a subgraph, a complex weight), with a name by which it is known."""

    name: str
    value: Any

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Argument:
    """Stands for an argument of a :class:`TorchCall`, by its position."""

    position: int

    def __repr__(self) -> str:
        return f"${self.position}"


@dataclass(frozen=True, eq=False)
class TorchCall:
    """A function of tensors: torch operators, composed, with their other arguments fixed.

    >>> TorchCall(torch.ops.aten.add.Tensor, "add", (Argument(0), 1), {})(torch.tensor(2))
    tensor(3)
    """

    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return self._run(tensors)

    @cached_property
    def _run(self) -> Callable[[Sequence[torch.Tensor]], Any]:
        """The call as a function of its tensors, prepared once: walking the nested arguments in
        each call would take 15 times as long as a ``cumsum`` of 16 numbers."""
        target, kwargs = self.target, _from_tensors(self.kwargs)
        args = [_from_tensors(arg) for arg in self.args]
        rest = [arg.value for arg in args[1:] if isinstance(arg, Named)]
        if isinstance(kwargs, Named) and len(rest) == len(args) - 1:
            first, named = _always(args[0]), kwargs.value
            return lambda tensors: target(first(tensors), *rest, **named)
        every, others = [_always(arg) for arg in args], _always(kwargs)
        return lambda tensors: target(*[arg(tensors) for arg in every], **others(tensors))

    def on(self, device: torch.device) -> TorchCall:
        """The same call on another device: its fixed tensors are copied there, and a device that it
        names, as ``arange`` does, is replaced."""

        def there(leaf: Any) -> Any:
            if isinstance(leaf, TorchCall):
                return leaf.on(device)
            if isinstance(leaf, Named) and isinstance(leaf.value, torch.Tensor | torch.nn.Module):
                return Named(leaf.name, copy.deepcopy(leaf.value).to(device))
            return device if isinstance(leaf, torch.device) else leaf

        args, kwargs = tree_map(there, (self.args, self.kwargs))
        return TorchCall(self.target, self.name, args, kwargs)

    def __repr__(self) -> str:
        parts = [repr(arg) for arg in self.args]
        parts += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(parts)})"


_Made = Callable[[Sequence[torch.Tensor]], Any]


def _from_tensors(tree: Any) -> _Made | Named:
    """Nested arguments as a function of the call's tensors; as ``Named`` values where they don't
    depend on these tensors."""
    if isinstance(tree, Argument):
        return operator.itemgetter(tree.position)
    if isinstance(tree, TorchCall):
        return tree._run
    if isinstance(tree, dict):
        keys = tuple(tree)
        return _built(lambda values: dict(zip(keys, values, strict=True)), list(tree.values()))
    if isinstance(tree, list | tuple):
        return _built(type(tree), tree)
    return tree if isinstance(tree, Named) else Named("", tree)


def _built(kind: Callable[[list[Any]], Any], parts: Sequence[Any]) -> _Made | Named:
    """A container whose parts may depend on the call's tensors."""
    made = [_from_tensors(part) for part in parts]
    values = [part.value for part in made if isinstance(part, Named)]
    if len(values) == len(made):
        return Named("", kind(values))
    every = [_always(part) for part in made]
    return lambda tensors: kind([part(tensors) for part in every])


def _always(part: _Made | Named) -> _Made:
    """A function of the call's tensors, also for a fixed value."""
    if isinstance(part, Named):
        value = part.value
        return lambda _: value
    return part


Calls = Mapping[str, TorchCall]
"""Calls by the names of the ``Opaque`` operators that they run."""
NO_CALLS: Final[Calls] = MappingProxyType({})


# ---- as data --------------------------------------------------------------------------------

_PLAIN = (bool, int, float, str, type(None))
# The largest position of an argument, if it isn't known how many arguments there are.
_ANY = 1 << 20
_NAMED_BY_TORCH: Mapping[str, type] = {
    "dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format,
}  # fmt: skip


def call_to_data(call: TorchCall, keep: Callable[[torch.Tensor], int]) -> Data:
    """Write a call as plain data.

    Args:
        keep: stores a tensor beside the data, and returns its number.

    Raises:
        LoweringError: the call's target is no operator of torch, or an argument isn't plain data.
    """
    args = [_to_data(arg, keep) for arg in call.args]
    kwargs = [[name, _to_data(arg, keep)] for name, arg in call.kwargs.items()]
    return [_target_name(call.target), call.name, args, kwargs]


def _target_name(target: Any) -> str:
    if target is operator.getitem:
        return "item"
    if isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable:
        return str(target.name())
    raise _not_plain(str(target), "operators of torch that change nothing")


def _to_data(value: Any, keep: Callable[[torch.Tensor], int]) -> Data:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_to_data(part, keep) for part in value]}
    if isinstance(value, Argument):
        return {"argument": value.position}
    if isinstance(value, TorchCall):
        return {"call": call_to_data(value, keep)}
    if isinstance(value, Named) and isinstance(value.value, torch.Tensor):
        return {"named": [value.name, keep(value.value)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device) and value.type == "cpu":
        return {"device": "cpu"}
    for kind, type_ in _NAMED_BY_TORCH.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise _not_plain(repr(value), "tensors, numbers and lists of them")


def plain_calls(calls: Mapping[str, Callable[..., Any]]) -> dict[str, TorchCall]:
    """The calls that are data alone: operators of torch without tensors of their own."""
    return {n: c for n, c in calls.items() if isinstance(c, TorchCall) and _is_plain(c)}


def _is_plain(call: TorchCall) -> bool:
    kept: list[torch.Tensor] = []

    def keep(value: torch.Tensor) -> int:
        kept.append(value)
        return 0

    try:
        call_to_data(call, keep)
    except LoweringError:
        return False
    return not kept


def calls_to_data(calls: Mapping[str, TorchCall]) -> dict[str, Data]:
    """Write plain calls as data."""
    return {name: call_to_data(call, lambda _: 0) for name, call in calls.items()}


def calls_from_data(data: Mapping[str, Data]) -> dict[str, TorchCall]:
    """Read what :func:`calls_to_data` wrote."""
    return {name: call_from_data(call, (), _ANY) for name, call in data.items()}


def call_from_data(data: Data, tensors: Sequence[torch.Tensor], count: int) -> TorchCall:
    """Read what :func:`call_to_data` wrote; malformed data raises one of Python's own errors.

    Args:
        tensors: the tensors that are stored beside the data.
        count: the number of arguments that the call may read.

    Raises:
        LoweringError: an operator isn't known here.
    """
    target, name, args, kwargs = data
    if type(name) is not str or type(args) is not list or type(kwargs) is not list:
        raise TypeError("a call is a name and lists of arguments")
    values = [_from_data(arg, tensors, count) for arg in args]
    named = {str(key): _from_data(arg, tensors, count) for key, arg in kwargs}
    return TorchCall(_target(target), name, tuple(values), named)


def _target(name: str) -> Any:
    """The operator of this name. It must be a function of tensors: operators that change arguments
    or read files are refused."""
    if name == "item":
        return operator.getitem
    space, _, rest = name.partition("::")
    if space == "eqsynth":
        importlib.import_module("eqsynth.lower.onnx_operator")  # registers it
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, space), packet, None)
    target = getattr(found, overload or "default", None)
    if not isinstance(target, torch._ops.OpOverload):
        raise LoweringError(
            what="an operator of the file isn't known here",
            got=name,
            expected=f"an operator of torch {torch.__version__}, or one that a library registers",
            hint="import the library that registers it before the program is loaded",
        )
    schema = target._schema
    if schema.is_mutable or any(argument.name == "filename" for argument in schema.arguments):
        raise ValueError(f"{name} does more than to compute")
    if not schema.returns or not all("Tensor" in str(value.type) for value in schema.returns):
        raise ValueError(f"{name} is no function of tensors")
    return target


def _from_data(data: Data, tensors: Sequence[torch.Tensor], count: int) -> Any:
    if isinstance(data, _PLAIN):
        return data
    ((kind, value),) = data.items()
    if kind in ("list", "tuple") and type(value) is list:
        parts = [_from_data(part, tensors, count) for part in value]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "argument" and type(value) is int and 0 <= value < count:
        return Argument(value)
    if kind == "call":
        return call_from_data(value, tensors, count)
    if kind == "named" and type(value[1]) is int and value[1] >= 0:
        return Named(str(value[0]), tensors[value[1]])
    if kind == "complex":
        return complex(*value)
    if kind == "device" and value == "cpu":
        return torch.device("cpu")
    found = getattr(torch, value) if kind in _NAMED_BY_TORCH else None
    if found is None or not isinstance(found, _NAMED_BY_TORCH[kind]):
        raise ValueError(f"no argument: {kind}")
    return found


def _not_plain(got: str, expected: str) -> LoweringError:
    return LoweringError(
        what="an operator that runs through torch can't be saved",
        got=got[:300],
        expected=expected,
        hint="save the original module instead (torch.save), and optimize it where it is loaded",
    )
