"""From a call's arguments to the inputs of a program, and from its outputs to the call's result.

Example: ``forward(ids, mask=None, scale=2.0)`` called as ``program(ids, scale=2.0)`` -> the tree
``((ids,), {})`` (``scale`` has its default's value) -> the leaves ``[ids]`` -> the inputs
``[ids]``. ``SavedCalling`` does this for a program from a file, and ``to_data`` and ``from_data``
write and read it. For a program that was just captured, ``Captured`` of the frontend does it.

Not here: the checks of shapes and dtypes (``steps.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch
from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.lower.manifest import below, fields, row, rows, text, truth

# Classes of values for which a call that gives the default is the same call as one that leaves it
# out.
_PLAIN = (bool, int, float, str, type(None))
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class Calling(Protocol):
    """How a program is called: arguments to inputs, outputs to a result. Implemented by
    ``Captured`` of the frontend and by :class:`SavedCalling`."""

    def bind(self, *args: Any, **kwargs: Any) -> Sequence[torch.Tensor]:
        """The program's inputs, in their order, from the arguments of a call."""
        ...

    def unflatten(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> Any:
        """The call's result, in the structure that the module returns, from the program's outputs
        and inputs."""
        ...

    @property
    def convention(self) -> Any:
        """An object with the attributes ``parameters``, ``spec``, ``arguments``, ``results``,
        ``out_spec``, ``any_order`` and ``interface`` of :class:`SavedCalling`; None if calls aren't
        bound to a signature."""
        ...

    def values(self, leaves: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The program's inputs, in their order, from the leaves of a call's arguments."""
        ...


def signature_of(module: torch.nn.Module) -> inspect.Signature:
    """The signature of the module's ``forward``. If Python knows none (a traced module), a
    signature that takes any call."""
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)


def bound(
    parameters: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    named: Collection[str] = (),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bring the arguments of a call into one form, however they were passed: of ``forward(x,
    scale=2.0, y=None)`` the call ``(x, 2.0, y)`` becomes ``(x, y=y)``.

    An argument with its default's value is left out if the default is a plain value. So a decorator
    that fills in arguments (as those of transformers do) doesn't pass an argument twice.

    Args:
        named: the arguments to pass by name where the signature allows it.

    Raises:
        EqsynthError: there are too many arguments, too few, or unknown ones.
    """
    try:
        call = parameters.bind(*args, **kwargs)
    except TypeError as error:
        given = f"{len(args)} positional" + (f", {', '.join(kwargs)}" if kwargs else "")
        raise _misfit(f"{given} ({error})", str(parameters)) from None
    values = call.arguments
    rows = [p for p in parameters.parameters.values() if p.kind not in _BY_NAME]
    told = [p.name in values and not is_default(p, values[p.name]) for p in rows]
    # Every argument before one that can only be passed by position is passed by position, too.
    nameless = [n for n, p in enumerate(rows) if told[n] and p.kind is not p.POSITIONAL_OR_KEYWORD]
    count = nameless[-1] + 1 if nameless else 0
    while count < len(rows) and told[count] and rows[count].name not in named:
        count += 1
    by_place: list[Any] = []
    for parameter in rows[:count]:
        value = values.get(parameter.name, parameter.default)
        by_place += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
    rest = {p.name: values[p.name] for n, p in enumerate(rows) if n >= count and told[n]}
    for parameter in parameters.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            rest |= values.get(parameter.name, {})
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.name in values:
            if not is_default(parameter, values[parameter.name]):
                rest[parameter.name] = values[parameter.name]
    return tuple(by_place), rest


def is_default(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether a call without this argument is the same call."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return not value
    default = parameter.default
    return isinstance(default, _PLAIN) and type(value) is type(default) and bool(value == default)


def by_name(spec: TreeSpec) -> Collection[str]:
    """The arguments that are passed by name in a call of this structure."""
    _, named = spec.children()
    return frozenset(named.context)


def leaves_of(tree: Any, spec: TreeSpec, any_order: bool) -> list[Any]:
    """The leaves of bound arguments, in the order in which ``spec`` has them.

    Args:
        any_order: whether dicts may have their keys in another order than in ``spec``.

    Raises:
        EqsynthError: the arguments have another structure.
    """
    leaves, own = tree_flatten(tree)
    if own == spec:
        return leaves
    if any_order:
        with suppress(ValueError):
            return spec.flatten_up_to(tree)
    raise _misfit(as_call(own), as_call(spec))


def as_call(spec: TreeSpec) -> str:
    """The structure of arguments, written as a call in which ``_`` stands for each value.

    >>> _, spec = tree_flatten(((1, [2, 3]), {"mask": 4}))
    >>> as_call(spec)
    '(_, [_, _], mask=_)'
    """
    placed, named = spec.children()
    parts = map(_shown, placed.children())
    names = zip(named.context, named.children(), strict=True)
    return f"({', '.join([*parts, *(f'{name}={_shown(part)}' for name, part in names)])})"


def _shown(spec: TreeSpec) -> str:
    """The structure of one argument as text: a list of two values is ``[_, _]``."""
    if spec.is_leaf():
        return "_"
    parts = list(map(_shown, spec.children()))
    if spec.type is dict:
        named = zip(spec.context, parts, strict=True)
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in named)}}}"
    if spec.type in (list, tuple):
        return f"[{', '.join(parts)}]" if spec.type is list else f"({', '.join(parts)},)"
    return f"{getattr(spec.type, '__name__', spec.type)}({', '.join(parts)})"


@dataclass(frozen=True)
class Fixed:
    """A leaf that is a constant of the program, not a tensor."""

    value: Any


@dataclass(frozen=True)
class Given:
    """A leaf of the result that is the program's input at this position."""

    position: int


@dataclass(frozen=True)
class Interface:
    """The names of inputs and outputs in the file that a module was read from (an ONNX model).

    A call doesn't use them: an input ``in.x`` is the parameter ``in_x`` of ``forward``. A file that
    is written of the program has them again, so that it can replace the file that was read.

    Attributes:
        inputs: a name for each leaf of the arguments.
        outputs: a name for each leaf of the result.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class SavedCalling:
    """The calling convention of a program that was loaded from a file.

    Attributes:
        arguments: for each leaf of the arguments, an input's position or a constant.
        results: for each leaf of the result, an output's position, an input or a constant.
        parameters: the signature that arguments are bound to; None if all arguments are positional.
        spec: the structure of the arguments' pytree, where there is a signature.
        out_spec: the structure of the result; None for a single tensor.
        any_order: whether dicts may have their keys in any order.
        buffers: tensors that the program reads after the user's inputs.
        interface: the names in the file that the module was read from; None if there is no such
            file.
    """

    arguments: tuple[int | Fixed, ...]
    results: tuple[int | Fixed | Given, ...]
    parameters: inspect.Signature | None = None
    spec: TreeSpec | None = None
    out_spec: TreeSpec | None = None
    any_order: bool = False
    buffers: tuple[torch.Tensor, ...] = ()
    interface: Interface | None = None

    def bind(self, *args: Any, **kwargs: Any) -> Sequence[torch.Tensor]:
        """The tensors of a call, in the order of the program's inputs.

        Raises:
            EqsynthError: the arguments have another structure, or other constants, than those that
                the program was captured with.
        """
        leaves: Sequence[Any] = args
        if self.parameters is not None and self.spec is not None:
            tree = bound(self.parameters, args, kwargs, by_name(self.spec))
            leaves = leaves_of(tree, self.spec, self.any_order)
        elif kwargs or len(args) != len(self.arguments):
            given = ", ".join(kwargs)
            raise _misfit(
                f"{len(args)} values and {given or 'no keywords'}", f"{len(self.arguments)} values"
            )
        return self.values(leaves)

    @property
    def convention(self) -> SavedCalling:
        return self

    def values(self, leaves: Sequence[Any]) -> Sequence[torch.Tensor]:
        tensors: dict[int, torch.Tensor] = {}
        for leaf, place in zip(leaves, self.arguments, strict=True):
            if isinstance(place, int) and isinstance(leaf, torch.Tensor):
                tensors[place] = leaf
            elif isinstance(place, int):
                raise _misfit(f"{type(leaf).__name__} for input {place}", "a tensor")
            elif type(leaf) is not type(place.value) or leaf != place.value:
                raise _misfit(repr(leaf), repr(place.value))
        return [*(tensors[k] for k in range(len(tensors))), *self.buffers]

    def unflatten(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> Any:
        leaves = placed(self.results, outputs, inputs)
        return leaves[0] if self.out_spec is None else tree_unflatten(leaves, self.out_spec)


def placed(
    results: Sequence[int | Fixed | Given],
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> list[Any]:
    """The leaves of a result, each from an output, an input or a constant."""
    return [
        outputs[place] if isinstance(place, int)
        else inputs[place.position] if isinstance(place, Given)
        else place.value
        for place in results
    ]  # fmt: skip


def _misfit(got: str, expected: str) -> EqsynthError:
    return EqsynthError(
        "the arguments don't fit the program's inputs",
        got=got,
        expected=expected,
        hint="give what the module's forward takes, of the structure that the examples had",
    )


def to_data(convention: Any) -> dict[str, Any]:
    """Write a convention (of the frontend, or a :class:`SavedCalling`) as plain data.

    Raises:
        LoweringError: the convention has a constant or a container that isn't plain data.
    """

    def place(value: Any) -> Any:
        if isinstance(value, int):
            return value
        position = getattr(value, "position", None)
        return {"fixed": _plain(value.value)} if position is None else {"given": position}

    parameters = convention.parameters
    return {
        "arguments": [place(value) for value in convention.arguments],
        "results": [place(value) for value in convention.results],
        "parameters": None
        if parameters is None
        else [
            [p.name, int(p.kind), None if p.default is p.empty else {"default": _plain(p.default)}]
            for p in parameters.parameters.values()
        ],
        "any_order": convention.any_order,
        "spec": _tree_to_data(convention.spec),
        "out_spec": _tree_to_data(convention.out_spec),
        "interface": None
        if convention.interface is None
        else [list(convention.interface.inputs), list(convention.interface.outputs)],
    }


def from_data(
    data: Any, buffers: tuple[torch.Tensor, ...], inputs: int, outputs: int
) -> SavedCalling:
    """Read what :func:`to_data` wrote. Malformed data raises one of Python's own errors.

    Args:
        inputs, outputs: how many the program has; the buffers aren't among these inputs.
    """
    names = ("arguments", "results", "parameters", "any_order", "spec", "out_spec", "interface")
    arguments, results, parameters, any_order, spec, out_spec, interface = fields(data, names)
    taken, given = rows(arguments, _place), rows(results, _place)
    if sorted(place for place in taken if isinstance(place, int)) != list(range(inputs)):
        raise ValueError(f"the arguments of a call aren't {inputs} inputs")
    if any(isinstance(place, Given) for place in taken):
        raise ValueError("an argument is no result")
    for place in given:
        if isinstance(place, int):
            below(outputs)(place)
        elif isinstance(place, Given):
            below(inputs)(place.position)
    specs = [_tree_from_data(spec), _tree_from_data(out_spec)]
    for found, places in zip(specs, (taken, given), strict=True):
        if found is not None and found.num_leaves != len(places):
            raise ValueError(f"a tree of {found.num_leaves} leaves for {len(places)} places")
    if (parameters is None) != (specs[0] is None) or (specs[1] is None and len(given) != 1):
        raise ValueError("a call without a tree of its arguments or results")
    told = None
    if interface is not None:
        told = Interface(*(tuple(rows(names, text)) for names in row(interface, 2)))
    signature = None
    if parameters is not None:
        signature = inspect.Signature(rows(parameters, _parameter))
    return SavedCalling(
        tuple(cast("list[int | Fixed]", taken)),
        tuple(given),
        signature,
        specs[0],
        specs[1],
        truth(any_order),
        buffers,
        told,
    )


# ---- trees ---------------------------------------------------------------------------------

# torch's named results, such as that of `x.max(1)`, by the names of their classes. torch can't
# write a tree that contains one.
_NAMED_RESULTS: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in torch.return_types.all_return_types
}


def _tree_to_data(tree: TreeSpec | None) -> Any:
    """Write a tree as text in which torch's named results are tuples, and list which of its nodes
    these are: the result of ``x.max(1)`` is ``[(*, *), [[0, "max"]]]``."""
    named: list[list[Any]] = []

    def unnamed(node: TreeSpec, number: int) -> TreeSpec:
        below, at = [], number + 1
        for child in node.children():
            below.append(unnamed(child, at))
            at += child.num_nodes
        kind = _NAMED_RESULTS.get(getattr(node.type, "__name__", ""))
        if kind is None or node.type is not kind:
            return node if node.is_leaf() else TreeSpec(node.type, node.context, below)
        named.append([number, kind.__name__])
        return TreeSpec(tuple, None, below)

    if tree is None:
        return None
    try:
        return [treespec_dumps(unnamed(tree, 0)), named]
    except NotImplementedError as error:
        raise _not_plain(str(error)) from error


def _tree_from_data(data: Any) -> TreeSpec | None:
    """Read what ``_tree_to_data`` wrote."""
    if data is None:
        return None
    told, named = row(data, 2)
    tree = treespec_loads(text(told))
    kinds = {}
    for number, name in (row(pair, 2) for pair in rows(named, list)):
        kinds[below(tree.num_nodes)(number)] = _NAMED_RESULTS[text(name)]

    def again(node: TreeSpec, number: int) -> TreeSpec:
        under, at = [], number + 1
        for child in node.children():
            under.append(again(child, at))
            at += child.num_nodes
        kind = kinds.get(number)
        if kind is None:
            return node if node.is_leaf() else TreeSpec(node.type, node.context, under)
        if node.type is not tuple or len(under) != kind.n_sequence_fields:
            raise ValueError(f"node {number} isn't what {kind.__name__} gives")
        return TreeSpec(kind, None, under)

    return again(tree, 0) if kinds else tree


# ---- places and parameters -----------------------------------------------------------------


def _place(data: Any) -> int | Fixed | Given:
    """Read where a leaf comes from."""
    if type(data) is int and data >= 0:
        return data
    ((kind, value),) = data.items()
    if kind == "given" and type(value) is int and value >= 0:
        return Given(value)
    (value,) = fields(data, ("fixed",))
    return Fixed(_value(value))


def _parameter(data: Any) -> inspect.Parameter:
    """Read a parameter of a signature."""
    name, kind, default = row(data, 3)
    kinds = list(inspect._ParameterKind)
    empty = inspect.Parameter.empty
    value = empty if default is None else _value(*fields(default, ("default",)))
    return inspect.Parameter(text(name), kinds[below(len(kinds))(kind)], default=value)


def _plain(value: Any) -> Any:
    """A constant as plain data; a list or tuple as ``{"list": […]}`` or ``{"tuple": […]}``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_plain(part) for part in value]}
    raise _not_plain(repr(value))


def _value(data: Any) -> Any:
    """Read what ``_plain`` wrote."""
    if isinstance(data, dict):
        ((kind, parts),) = data.items()
        values = rows(parts, _value)
        return tuple(values) if kind == "tuple" else values
    if data is not None and not isinstance(data, bool | int | float | str):
        raise ValueError(f"no plain value: {str(data)[:100]}")
    return data


def _not_plain(got: str) -> LoweringError:
    return LoweringError(
        what="the program's arguments or results can't be saved",
        got=got,
        expected="tensors, numbers, strings, and lists, tuples and dictionaries of these",
        hint="wrap the module in one that takes and gives tensors",
    )


class AsItIs:
    """The calling convention of a program that calls its original: it has no inputs and outputs of
    its own."""

    convention = None

    def bind(self) -> Sequence[torch.Tensor]:
        return ()

    def values(self, leaves: Sequence[Any]) -> Sequence[torch.Tensor]:
        return ()

    def unflatten(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> Any:
        return outputs
