"""Objects that hold tensors, such as a KV cache or a dataclass, as trees that torch knows.

    Cache(keys=K, seen=3)  ->  Held(Cache, number=0, names=("keys", "seen"), values=[K, Plain(3)])

To torch's trees such an object is a leaf: capture would refuse it, and its tensors couldn't vary
between calls. ``Opened`` is a module around the user's module that takes and returns trees in place
of the objects. A call may change an object that is an argument (a cache grows). So the attributes
of such objects after the call are further results, and are put into the user's object. Not here:
containers that torch knows, which need none of this.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import GetAttrKey, register_pytree_node, tree_leaves, tree_map

from eqsynth.lower.calling import signature_of

_PLAIN: Final = (
    bool, int, float, complex, str, bytes, type(None), type, range, enum.Enum, torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
    types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip
"""Classes of the values without tensors that an object may hold."""
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was defined by Python code
_SHARED: Final = (
    "training", "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules",
)  # fmt: skip
"""Attributes of every module that an opened module takes from the module inside."""


@dataclass
class Held:
    """An object as a tree of its attributes.

    Attributes:
        kind: the object's class.
        number: objects are numbered in the order in which they are met.
        names: the names of the attributes.
        values: the attributes: tensors, further objects, and containers of these.
    """

    kind: type
    number: int
    names: tuple[str, ...]
    values: list[Any]


@dataclass(frozen=True)
class Same:
    """An object that was met before, by its number."""

    number: int


@dataclass(frozen=True)
class Plain:
    """A value without tensors that is no object. Two calls have the same structure only if it is
    equal."""

    value: Any


def _of_held(held: Held) -> tuple[list[Any], Any]:
    return held.values, (held.kind, held.number, held.names)


def _of_plain(plain: Plain) -> tuple[list[Any], Any]:
    return [], (type(plain.value), plain.value)


# Registered with keys, by which torch.export names arguments.
register_pytree_node(
    Held,
    _of_held,
    lambda values, context: Held(context[0], context[1], context[2], list(values)),
    flatten_with_keys_fn=lambda held: (
        [(GetAttrKey(name), value) for name, value in zip(held.names, held.values, strict=True)],
        _of_held(held)[1],
    ),
)
register_pytree_node(
    Same,
    lambda same: ([], same.number),
    lambda _, number: Same(number),
    flatten_with_keys_fn=lambda same: ([], same.number),
)
register_pytree_node(
    Plain,
    _of_plain,
    lambda _, context: Plain(context[1]),
    flatten_with_keys_fn=_of_plain,
)


def _is_tree(value: Any) -> bool:
    return isinstance(value, Held | Same | Plain)


def holds(tree: Any) -> bool:
    """Whether a tree has objects that can be opened among its leaves."""
    return any(map(_is_held, tree_leaves(Opening().opened(tree), is_leaf=_is_tree)))


def _is_held(value: Any) -> bool:
    return isinstance(value, Held)


class _UnknownError(Exception):
    """An object holds something that may not be safe to copy."""


class Opening:
    """The objects of one call: they are opened before it, and closed after it.

    Attributes:
        objects: the objects that were met, by number.
    """

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def opened(self, tree: Any) -> Any:
        """The tree with its objects opened. An object that holds something unknown stays a leaf."""
        return tree_map(self._leaf, tree)

    def states(self, count: int) -> list[Held]:
        """The first ``count`` objects, opened as they are now.

        Raises:
            TypeError: one of them holds something unknown by now.
        """
        try:
            return [self._attributes(n, self.objects[n]) for n in range(count)]
        except _UnknownError as error:
            raise TypeError(f"an argument holds {error} after the call") from error

    def closed(self, tree: Any) -> Any:
        """The tree with values in place of its nodes: ``Held`` becomes a new object, ``Same`` the
        object of its number, ``Plain`` its value."""
        return tree_map(self._object, tree, is_leaf=_is_tree)

    def changed(self, states: list[Held]) -> None:
        """Set the attributes of objects to those in ``states``."""
        for held in states:
            self.assign(self.objects[held.number], held.names, map(self.closed, held.values))

    def assign(self, value: Any, names: Sequence[str], values: Iterable[Any]) -> None:
        """Give an object these attributes and no others. Lists and dicts that it has already stay
        the same objects, with new items."""
        attributes = vars(value)
        for name in attributes.keys() - set(names):
            del attributes[name]
        for name, new in zip(names, values, strict=True):
            attributes[name] = _kept(attributes.get(name), new)

    def _leaf(self, value: Any) -> Any:
        """A leaf opened; itself if it is no such object, or holds something unknown."""
        if not _may_be_opened(value):
            return value
        count = len(self.objects)
        try:
            return self._opened(value)
        except _UnknownError:
            for forgotten in self.objects[count:]:
                del self._numbers[id(forgotten)]
            del self.objects[count:]
            return value

    def _opened(self, value: Any) -> Held | Same:
        """An object opened, or ``Same`` if it was met before."""
        number = self._numbers.get(id(value))
        if number is not None:
            return Same(number)
        self._numbers[id(value)] = number = len(self.objects)
        self.objects.append(value)
        return self._attributes(number, value)

    def _attributes(self, number: int, value: Any) -> Held:
        """An object as ``Held``."""
        attributes = vars(value)
        values = [tree_map(self._part, part) for part in attributes.values()]
        return Held(type(value), number, tuple(attributes), values)

    def _part(self, value: Any) -> Any:
        """A value inside an object."""
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, _PLAIN):
            return Plain(value)
        if _may_be_opened(value):
            return self._opened(value)
        raise _UnknownError(type(value).__name__)

    def _object(self, value: Any) -> Any:
        """The value that one node of an opened tree stands for."""
        if isinstance(value, Plain):
            return value.value
        if isinstance(value, Same):
            return self.objects[value.number]
        if not isinstance(value, Held):
            return value
        made: Any = object.__new__(value.kind)
        assert value.number == len(self.objects)
        self._numbers[id(made)] = value.number
        self.objects.append(made)
        attributes = map(self.closed, value.values)
        vars(made).update(zip(value.names, attributes, strict=True))
        return made


def _may_be_opened(value: Any) -> bool:
    """Whether a value is an object whose whole state is in its attributes."""
    kind = type(value)
    return (
        not isinstance(value, torch.nn.Module | type | enum.Enum)
        and not _is_tree(value)
        and hasattr(value, "__dict__")
        and all(
            base.__flags__ & _HEAP_TYPE and not base.__dict__.get("__slots__")
            for base in kind.__mro__[:-1]
        )
        and "__dict__" not in kind.__dict__.get("__slots__", ())
    )


def _kept(old: Any, new: Any) -> Any:
    """The user's list or dict with the new items in it, if both values are lists or dicts; else the
    new value."""
    if type(old) is list and type(new) is list:
        old[:] = new
        return old
    if type(old) is dict and type(new) is dict:
        old.clear()
        old.update(new)
        return old
    return new


class Opened(torch.nn.Module):
    """A module whose arguments and results are opened. It has the submodules, parameters and
    attributes of the user's module under the same names. If there are objects among the arguments,
    its result is a pair: the result, and the objects after the call."""

    _eqsynth_inside: torch.nn.Module

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        call = Opening()
        args, kwargs = call.closed((args, kwargs))
        count = len(call.objects)
        result = call.opened(self._eqsynth_inside(*args, **kwargs))
        return (result, call.states(count)) if count else result


def opened_module(module: torch.nn.Module) -> Opened:
    """The module as :class:`Opened`; its ``forward`` has the signature of the module's."""
    signature = signature_of(module)
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    parameters = list(signature.parameters.values())

    def forward(self: Opened, /, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    forward.__signature__ = signature.replace(parameters=own + parameters)  # type: ignore[attr-defined]
    kind = type(module)
    names: Mapping[str, Any] = {"forward": forward, "__qualname__": kind.__qualname__}
    made: Opened = type(kind.__name__, (Opened,), dict(names))()
    # Hooks, and a `forward` that was set in the instance, are left out: the module inside calls
    # them.
    left = set(vars(made)) - set(_SHARED) | {"forward", "_compiled_call_impl"}
    made.__dict__.update({k: v for k, v in vars(module).items() if k not in left})
    made.__dict__["_eqsynth_inside"] = module
    return made


def inside(module: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside an opened one; any other module itself."""
    return module._eqsynth_inside if isinstance(module, Opened) else module
