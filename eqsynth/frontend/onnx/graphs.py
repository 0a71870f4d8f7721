"""Bodies: graphs of a model as lists of operators, with attributes as Python values.

A body runs without the file that it comes from (``running.py``). An operator that calls one of the
model's own functions holds the function's body, made for this call. Not here: reading a file and
refusing a damaged one (``reading.py``), and the meaning of operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from eqsynth.errors import CaptureError, UnsupportedOperatorError
from eqsynth.lower.onnx_operator import DTYPES, torch_of

# The names of ONNX's own domain of operators.
OWN: Final = ("", "ai.onnx")
# Operators of all bodies of a model, where the body of a function counts for each of its calls. A
# small file whose functions call functions may expand to more operators than can be run.
_MOST_OPERATORS: Final = 100_000


@dataclass(frozen=True)
class TypeOf:
    """The type that a file gives for a tensor.

    Attributes:
        dtype: None if it isn't given, or the value is no tensor.
        extents: a number, a name (``batch``) or None for each axis; None if no shape is given.
    """

    dtype: torch.dtype | None
    extents: tuple[int | str | None, ...] | None


@dataclass(frozen=True, eq=False)
class Body:
    """The operators of a graph or function, in the order in which they run.

    Attributes:
        inputs, outputs: names of values.
        constants: name of a value -> its key among the tensors of the model.
        types: the types of the outputs, as far as the file gives them; empty for a function.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[Operator, ...]
    constants: Mapping[str, str]
    types: tuple[TypeOf, ...] = ()

    def all_operators(self) -> Iterator[Operator]:
        """The operators of this body and of all bodies inside of them."""
        for operator in self.operators:
            yield operator
            for body in operator.bodies():
                yield from body.all_operators()


@dataclass(frozen=True, eq=False)
class Operator:
    """A call of an operator.

    Attributes:
        place: the name in error messages: ``Conv 'conv1'``.
        inputs: names of values; an empty name for an input that is left out.
        dead: values that no later operator reads, so that their memory can be freed.
        function: the body of the function that it calls, if it is one of the model's own.
        node: the operator in the file, with references to a function's attributes filled in.
        opsets: domain -> version.
    """

    place: str
    kind: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    dead: tuple[str, ...]
    function: Body | None
    node: onnx.NodeProto = field(repr=False)
    opsets: Mapping[str, int] = field(repr=False)

    @property
    def opset(self) -> int:
        domain = "" if self.domain in OWN else self.domain
        return self.opsets.get(domain, self.opsets.get("ai.onnx", 1))

    def bodies(self) -> Iterator[Body]:
        if self.function is not None:
            yield self.function
        yield from (value for value in self.attributes.values() if isinstance(value, Body))


class Bodies:
    """Makes bodies of a model's graphs and functions.

    Attributes:
        tensors: the tensors of all constants of the bodies made so far, by key.
    """

    def __init__(self, model: onnx.ModelProto | None = None) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._functions = {} if model is None else {
            (f.domain, f.name, f.overload): f for f in model.functions
        }
        self._running: list[tuple[str, str, str]] = []
        self._count = 0
        self._copies: Counter[str] = Counter()

    def of_graph(
        self,
        graph: onnx.GraphProto,
        opsets: Mapping[str, int],
        prefix: str = "",
        given: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> Body:
        constants = {}
        for tensor in graph.initializer:
            constants[tensor.name] = self._keep(prefix + tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            constants[name] = self._keep(prefix + name, sparse)
        # An input with an initializer of the same name is optional. Here it is always a constant.
        inputs = tuple(i.name for i in graph.input if i.name not in constants)
        outputs = tuple(o.name for o in graph.output)
        operators = self._operators(graph.node, outputs, constants, opsets, prefix, given or {})
        types = tuple(type_of(o.type) for o in graph.output)
        return Body(inputs, outputs, operators, constants, types)

    def of_function(
        self,
        function: onnx.FunctionProto,
        call: onnx.NodeProto,
        prefix: str,
        defaults: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> Body:
        """The body of a function for one call.

        Args:
            call: the call, whose attributes replace the function's references to them.
            defaults: values of attributes that neither the call nor the function gives.
        """
        key = (function.domain, function.name, function.overload)
        if key in self._running:
            raise _damaged("a function calls itself", prefix, function.name)
        given = {a.name: a for a in function.attribute_proto}
        given |= dict(defaults or {})
        given |= {a.name: a for a in call.attribute}
        opsets = {o.domain: o.version for o in function.opset_import}
        constants: dict[str, str] = {}
        self._running.append(key)
        try:
            outputs = tuple(function.output)
            operators = self._operators(function.node, outputs, constants, opsets, prefix, given)
        finally:
            self._running.pop()
        return Body(tuple(function.input), outputs, operators, constants)

    def _operators(
        self,
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str],
        constants: dict[str, str],
        opsets: Mapping[str, int],
        prefix: str,
        given: Mapping[str, onnx.AttributeProto],
    ) -> tuple[Operator, ...]:
        last = {}
        for number, node in enumerate(nodes):
            for name in _reads(node):
                last[name] = number
        ends: dict[int, list[str]] = {}
        for name, number in last.items():
            ends.setdefault(number, []).append(name)
        made = {name for node in nodes for name in node.output}
        kept = set(outputs)
        operators = []
        for number, node in enumerate(nodes):
            self._count += 1
            if self._count > _MOST_OPERATORS:
                raise _damaged("the model has too many operators", prefix, f"> {_MOST_OPERATORS}")
            label = prefix + (node.name or f"{node.op_type}_{number}")
            place = f"{node.op_type} {label!r}"
            attributes, whole = self._attributes(node, opsets, label + "/", given, place)
            if node.op_type == "Constant" and node.domain in OWN:
                constants[node.output[0]] = self._constant(prefix, node, attributes, place)
                continue
            unread = [name for name in node.output if name not in last]
            dead = ends.get(number, []) + unread
            function = self._functions.get((node.domain, node.op_type, node.overload))
            operators.append(
                Operator(
                    place,
                    node.op_type,
                    node.domain,
                    tuple(node.input),
                    tuple(node.output),
                    attributes,
                    tuple(name for name in dead if name in made and name not in kept),
                    None if function is None else self.of_function(function, node, label + "/"),
                    whole,
                    opsets,
                )
            )
        return tuple(operators)

    def _attributes(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        prefix: str,
        given: Mapping[str, onnx.AttributeProto],
        place: str,
    ) -> tuple[dict[str, Any], onnx.NodeProto]:
        """The attributes as Python values, and the node with all attributes filled in.

        Args:
            given: the attributes of the call of the function that the node is in. An attribute of
                the node may refer to one of them by name.
        """
        found: dict[str, Any] = {}
        whole = node
        if any(a.ref_attr_name for a in node.attribute):
            whole = onnx.NodeProto()
            whole.CopyFrom(node)
            del whole.attribute[:]
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    if attribute.ref_attr_name not in given:
                        continue
                    copy = onnx.AttributeProto()
                    copy.CopyFrom(given[attribute.ref_attr_name])
                    copy.name = attribute.name
                    attribute = copy
                whole.attribute.append(attribute)
        for attribute in whole.attribute:
            found[attribute.name] = self._value(attribute, opsets, prefix, given, place)
        return found, whole

    def _value(
        self,
        attribute: onnx.AttributeProto,
        opsets: Mapping[str, int],
        prefix: str,
        given: Mapping[str, onnx.AttributeProto],
        place: str,
    ) -> Any:
        kinds = onnx.AttributeProto
        if attribute.type == kinds.GRAPH:
            return self.of_graph(attribute.g, opsets, f"{prefix}{attribute.name}/", given)
        if attribute.type == kinds.TENSOR:
            return tensor_of(attribute.t, place)
        if attribute.type == kinds.SPARSE_TENSOR:
            return dense_of(attribute.sparse_tensor, place)
        try:
            value = onnx.helper.get_attribute_value(attribute)
        except ValueError as error:
            raise _damaged("an attribute has no value", place, attribute.name) from error
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        if isinstance(value, float | int | str):
            return value
        if attribute.type in (kinds.INTS, kinds.FLOATS):
            return list(value)
        if attribute.type == kinds.STRINGS:
            return [part.decode("utf-8", errors="replace") for part in value]
        return value

    def _constant(
        self, prefix: str, node: onnx.NodeProto, attributes: Mapping[str, Any], place: str
    ) -> str:
        ((name, value),) = attributes.items() if len(attributes) == 1 else [("", None)]
        dtype = torch.float32 if name.startswith("value_float") else torch.int64
        if name.startswith("value_string") or not name:
            raise UnsupportedOperatorError(
                "a constant that is no tensor of numbers", where=place, got=name or "no value",
                expected="a tensor, numbers or a number",
                hint="strings can't be computed with here",
            )  # fmt: skip
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
        return self._store(prefix + node.output[0], tensor)

    def _keep(self, name: str, proto: Any) -> str:
        make = tensor_of if isinstance(proto, onnx.TensorProto) else dense_of
        return self._store(name, make(proto, f"initializer {name!r}"))

    def _store(self, key: str, tensor: torch.Tensor) -> str:
        # Several constants may have one name, for example those of a function that is called
        # twice; all but the first get a number.
        base = key
        while key in self.tensors:
            self._copies[base] += 1
            key = f"{base}_{self._copies[base]}"
        self.tensors[key] = tensor
        return key


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names of the values that a node reads, in the graphs of its attributes, too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def type_of(proto: onnx.TypeProto) -> TypeOf:
    if proto.WhichOneof("value") != "tensor_type":
        return TypeOf(None, None)
    tensor = proto.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TypeOf(dtype, None)
    extents: list[int | str | None] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        extents.append(None if kind is None else getattr(dim, kind))
    return TypeOf(dtype, tuple(extents))


def tensor_of(proto: onnx.TensorProto, place: str) -> torch.Tensor:
    """A tensor of the file as a torch tensor, in memory of its own.

    Raises:
        CaptureError: its data don't fit its shape and element type.
        UnsupportedOperatorError: torch can't hold its element type.
    """
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        names = onnx.TensorProto.DataType
        known = proto.data_type in names.values()
        raise UnsupportedOperatorError(
            "an element type that can't be computed with here",
            where=place,
            got=names.Name(proto.data_type) if known else str(proto.data_type),
            expected=", ".join(str(t).removeprefix("torch.") for t in DTYPES.values()),
            hint="convert the model to one of these types",
        )
    try:
        array = np.array(numpy_helper.to_array(proto), order="C", copy=True)
        if list(array.shape) != list(proto.dims):
            raise ValueError(f"data of shape {array.shape}")
    except Exception as error:  # numpy and onnx raise many kinds of errors for damaged data
        raise _damaged(
            "a tensor's data don't fit its shape", place, f"{list(proto.dims)}: {error}"
        ) from error
    return torch_of(array, dtype)


def dense_of(sparse: onnx.SparseTensorProto, place: str) -> torch.Tensor:
    values = tensor_of(sparse.values, place)
    places = tensor_of(sparse.indices, place).long()
    shape = list(sparse.dims)
    if min(shape, default=0) < 0 or int(np.prod([float(n) for n in shape])) > 1 << 28:
        raise _damaged("a sparse tensor has a shape that nothing can hold", place, str(shape))
    if places.ndim == 1:
        flat = places
    else:
        flat = torch.zeros(places.shape[0], dtype=torch.int64)
        for axis, extent in enumerate(shape):
            flat = flat * extent + places[:, axis]
    dense = torch.zeros(shape, dtype=values.dtype).flatten()
    try:
        return dense.index_put((flat,), values).reshape(shape)
    except Exception as error:
        raise _damaged("a sparse tensor's data don't fit its shape", place, str(shape)) from error


def _damaged(what: str, where: str, got: str) -> CaptureError:
    return CaptureError(
        what, where=where, got=got[:300], expected="a model that onnx.checker takes",
        hint="write the file anew from where it came from",
    )  # fmt: skip
