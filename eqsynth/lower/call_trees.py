"""Reading arguments and building results in one pass, for calls that are like the example call.

    forward(ids, cache=Cache(keys=K, seen=3))  ->  [ids, K]  ->  ...  ->  logits; the cache grown

torch walks trees in Python: to bind arguments, to open objects (``holders.py``), to flatten them,
to compare structures, and all of it again for the results. For one step of a small Llama with its
cache this took 190 us, and the kernels 100. Here the structure of the example call is turned into
functions once, and these do all of it in one pass. A call that doesn't fit them goes the general
way, which says what is wrong with it: ``bound`` and ``leaves_of`` of ``calling.py``, ``Opening`` of
``holders.py``.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Final, TypeVar, cast

import torch
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec

from eqsynth.errors import EqsynthError
from eqsynth.lower.calling import Calling, Fixed, bound, by_name, is_default, placed
from eqsynth.lower.holders import Held, Opening, Plain, Same

Read = Callable[[Any, list[Any], list[Any]], bool]
"""Reads a value. Takes the value, the objects that were met so far, and the leaves so far; appends
to both. False if the value has another structure than the example."""

Build = Callable[[Iterator[Any], list[Any]], Any]
"""Builds a value from the next leaves. It may use and append to the objects, of which the call's
own come first."""

T = TypeVar("T")

# The most forms of calls (which arguments by position, by name, left out) that are remembered.
_MOST_CALLS: Final = 64


class Calls:
    """The calls of one program: one pass for a call like its example call, the general way for
    others.

        of forward(x, scale=2.0) the call (x, scale=3.0)  ->  leaves [x, 3.0]  ->  inputs [x]
    """

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._read: Read | None = None
        self._result: Build | None = None
        self._makes = False  # whether the result contains objects
        # If all arguments are tensors by position: how many. They are then the leaves.
        self._row: int | None = None
        # For each object among the arguments: the names of its attributes, and functions that build
        # them.
        self._states: list[tuple[tuple[str, ...], list[Build]]] = []
        known = calling.convention
        if known is not None and known.parameters is not None:
            self._bind = _Binding(known.parameters, known.spec)
            placed_spec, named_spec = known.spec.children()
            alone = all(child.is_leaf() for child in placed_spec.children())
            if alone and not named_spec.children() and all(type(n) is int for n in known.arguments):
                self._row = len(known.arguments)
            self._read = _reader(known.spec, iter(known.arguments), known.any_order)
            self._result = self._of_results(known.spec, known.out_spec)
            self._makes = known.out_spec is not None and _holds(known.out_spec)

    def _of_results(self, spec: TreeSpec, out_spec: TreeSpec | None) -> Build | None:
        """The function that builds the result; None if the structure has an unknown kind of node.
        Also notes how the attributes of the arguments' objects are built."""
        if out_spec is None:
            return _next
        if not _holds(spec):
            return _builder(out_spec)
        result, states = out_spec.children()
        for held in states.children():
            builds = _whole(list(map(_builder, held.children())))
            if builds is None:
                return None
            self._states.append((held.context[2], builds))
        return _builder(result)

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], opens: bool
    ) -> tuple[Sequence[torch.Tensor], Callable[[Sequence[torch.Tensor]], Any]]:
        """The program's inputs, and a function that makes the call's result from the program's
        outputs.

        Args:
            opens: whether objects that hold tensors have to be opened; else they are opened
                already.

        Raises:
            EqsynthError: the arguments don't fit those that the program was captured with.
        """
        calling, call = self._calling, Opening()
        alike = opens or not self._makes
        leaves = self._leaves(args, kwargs, call.objects) if alike else None
        if leaves is not None:
            values, results = calling.values(leaves), calling.convention.results
            return values, lambda outputs: self._built(placed(results, outputs, values), call)
        call = Opening()
        if opens:
            args, kwargs = call.opened((args, kwargs))
        given = calling.bind(*args, **kwargs)

        def finish(outputs: Sequence[torch.Tensor]) -> Any:
            result = calling.unflatten(outputs, given)
            if not opens:
                return result
            if not call.objects:
                return call.closed(result)
            result, states = result
            closed = call.closed(result)
            call.changed(states)
            return closed

        return given, finish

    def result(self) -> tuple[bool, Callable[..., Any] | None]:
        """Whether results can be made from outputs and inputs alone, without objects; and the
        function that does it, or None if the result is the first output."""
        known = self._calling.convention
        if known is None or self._makes or self._states:
            return False, None
        places, tree = known.results, known.out_spec
        if tree is None and type(places[0]) is int and places[0] == 0:
            return True, None
        build = _next if tree is None else _builder(tree)
        if build is None:
            return False, None
        return True, lambda outputs, inputs: build(iter(placed(places, outputs, inputs)), [])

    def _leaves(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], objects: list[Any]
    ) -> list[Any] | None:
        """The leaves of the arguments; None if the call isn't like the example.

        Args:
            objects: objects that hold tensors are appended to it, in the order of their numbers.
        """
        if self._read is None or self._result is None:
            return None
        if len(args) == self._row and not kwargs:
            return list(args)
        tree, leaves = self._bind(args, kwargs), list[Any]()
        return leaves if tree is not None and self._read(tree, objects, leaves) else None

    def _built(self, leaves: Sequence[Any], call: Opening) -> Any:
        """The result; objects among the arguments get their new attributes."""
        assert self._result is not None
        given, own = iter(leaves), call.objects[:]
        result = self._result(given, call.objects)
        for held, (names, builds) in zip(own, self._states, strict=True):
            call.assign(held, names, (build(given, call.objects) for build in builds))
        return result


class _Binding:
    """Brings arguments into one form, however they were passed (``calling.bound``). Which argument
    goes where is remembered for each form of call: how many arguments came by position, which by
    name, and which had their default's value."""

    def __init__(self, parameters: Signature, spec: TreeSpec) -> None:
        self._parameters, self._named = parameters, by_name(spec)
        self._by_name = parameters.parameters
        self._in_order = [
            p for p in self._by_name.values()
            if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        self._known: dict[Any, tuple[list[Any], list[tuple[str, Any]]] | None] = {}

    def __call__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        names = tuple(kwargs)
        defaults = [is_default(p, x) for p, x in zip(self._in_order, args, strict=False)]
        for name, value in kwargs.items():
            parameter = self._by_name.get(name)
            defaults.append(parameter is not None and is_default(parameter, value))
        key = (len(args), names, tuple(defaults))
        if key not in self._known:
            if len(self._known) >= _MOST_CALLS:
                return None
            self._known[key] = self._places(args, kwargs)
        known = self._known[key]
        if known is None:
            return None
        placed, named = known
        every = (*args, *kwargs.values())
        return (
            tuple([every[at] if type(at) is int else at.value for at in placed]),
            {name: every[at] if type(at) is int else at.value for name, at in named},
        )

    def _places(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[tuple[str, Any]]] | None:
        """For each argument of a bound call, the number of the given argument that it is, or its
        default; None if the arguments don't fit the signature."""
        marks = [_Mark(n) for n in range(len(args) + len(kwargs))]
        given = [
            value if parameter is not None and is_default(parameter, value) else mark
            for value, mark, parameter in zip(
                (*args, *kwargs.values()), marks,
                [*self._in_order[: len(args)], *[None] * (len(args) - len(self._in_order)),
                 *map(self._by_name.get, kwargs)],
                strict=True,
            )
        ]  # fmt: skip
        try:
            placed, named = bound(
                self._parameters,
                tuple(given[: len(args)]),
                dict(zip(kwargs, given[len(args) :], strict=True)),
                self._named,
            )
        except EqsynthError:
            return None
        return list(map(_place, placed)), [(name, _place(value)) for name, value in named.items()]


class _Mark:
    """Stands for an argument that isn't its default."""

    def __init__(self, number: int) -> None:
        self.number = number


def _place(value: Any) -> int | Fixed:
    return value.number if isinstance(value, _Mark) else Fixed(value)


def _holds(spec: TreeSpec) -> bool:
    """Whether a structure contains opened objects."""
    return spec.type in (Held, Same, Plain) or any(map(_holds, spec.children()))


def _reader(spec: TreeSpec, places: Iterator[int | Fixed], any_order: bool) -> Read | None:
    """The function that reads values of this structure; None if it has an unknown kind of node.

    Args:
        places: for each leaf, an input's position or a constant.
    """
    if spec.is_leaf():
        place = next(places)
        return _tensor if isinstance(place, int) else _constant(place.value)
    below = _whole([_reader(child, places, any_order) for child in spec.children()])
    if below is None:
        return None
    if spec.type is Held:
        kind, number, names = spec.context
        return _held(kind, number, names, below)
    if spec.type is Same:
        return lambda value, objects, _: value is objects[spec.context]
    if spec.type is Plain:
        return lambda value, _objects, _: (type(value), value) == spec.context
    return _node(spec, below, any_order) if spec.type in SUPPORTED_NODES else None


def _whole(parts: Sequence[T | None]) -> list[T] | None:
    """The parts, if none of them is None; else None."""
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


def _tensor(value: Any, _objects: list[Any], leaves: list[Any]) -> bool:
    """Reads a leaf that must be a tensor."""
    leaves.append(value)
    return isinstance(value, torch.Tensor)


def _constant(expected: Any) -> Read:
    """Reads a leaf that must have this value."""

    def read(value: Any, _objects: list[Any], leaves: list[Any]) -> bool:
        leaves.append(value)
        return type(value) is type(expected) and bool(value == expected)

    return read


def _held(kind: type, number: int, names: tuple[str, ...], below: list[Read]) -> Read:
    """Reads an object of this class, number and attributes."""

    def read(value: Any, objects: list[Any], leaves: list[Any]) -> bool:
        if type(value) is not kind or len(objects) != number:
            return False
        attributes = vars(value)
        if tuple(attributes) != names or any(value is other for other in objects):
            return False
        objects.append(value)
        for part, child in zip(attributes.values(), below, strict=True):
            if not child(part, objects, leaves):
                return False
        return True

    return read


def _node(spec: TreeSpec, below: list[Read], any_order: bool) -> Read:
    """Reads a container that torch knows."""
    kind = spec.context if spec.type is namedtuple else spec.type
    context, flatten = spec.context, SUPPORTED_NODES[spec.type].flatten_fn

    def parts(value: Any) -> Sequence[Any] | None:
        if kind is tuple or kind is list:
            return cast("Sequence[Any]", value)
        if kind is dict:
            if any_order and len(value) == len(context) and all(k in value for k in context):
                return [value[k] for k in context]
            return list(value.values()) if list(value) == context else None
        children, own = flatten(value)
        return children if own == context else None

    def read(value: Any, objects: list[Any], leaves: list[Any]) -> bool:
        if type(value) is not kind:
            return False
        own = parts(value)
        if own is None or len(own) != len(below):
            return False
        for part, child in zip(own, below, strict=True):
            if not child(part, objects, leaves):
                return False
        return True

    return read


def _next(leaves: Iterator[Any], _objects: list[Any]) -> Any:
    """Builds a leaf: the next one."""
    return next(leaves)


def _builder(spec: TreeSpec) -> Build | None:
    """The function that builds values of this structure; None if it has an unknown kind of node."""
    if spec.is_leaf():
        return _next
    if spec.type is Same:
        return lambda _, objects: objects[spec.context]
    if spec.type is Plain:
        return lambda _leaves, _: spec.context[1]
    below = _whole(list(map(_builder, spec.children())))
    if below is None:
        return None
    if spec.type is Held:
        return _making(spec.context[0], spec.context[2], below)
    if spec.type not in SUPPORTED_NODES:
        return None
    unflatten, context = SUPPORTED_NODES[spec.type].unflatten_fn, spec.context

    def build(leaves: Iterator[Any], objects: list[Any]) -> Any:
        return unflatten([child(leaves, objects) for child in below], context)

    return build


def _making(kind: type, names: tuple[str, ...], below: list[Build]) -> Build:
    """Builds a new object of this class and attributes."""

    def build(leaves: Iterator[Any], objects: list[Any]) -> Any:
        made: Any = object.__new__(kind)
        objects.append(made)
        vars(made).update(zip(names, [child(leaves, objects) for child in below], strict=True))
        return made

    return build
