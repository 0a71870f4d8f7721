"""Damaged ONNX models: cut files, flipped bits, and models with inconsistent parts.

A damaged model must either run or be refused by an error of eqsynth, within seconds and without
filling the machine's memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import onnx
import torch
from onnx import TensorProto

from eqsynth.errors import EqsynthError
from eqsynth.frontend.onnx import module_of

_ODD_INTS: Final = (
    0, 1, -1, 2, 7, -3, 255, 10**6, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
_ODD_FLOATS: Final = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_WORDS: Final = (
    "", "x", "y", "nowhere", "SAME_UPPER", "reflect", "\0", "../../etc/passwd", "a" * 5000,
)  # fmt: skip


def refusal(model: Any, inputs: Sequence[torch.Tensor] = ()) -> EqsynthError | None:
    """Run a model. Return eqsynth's error if the model is refused, None if it runs; any other error
    is raised."""
    try:
        module, args = module_of(model, tuple(inputs), {})
        with torch.no_grad():
            module(*args)
    except EqsynthError as error:
        return error
    return None


def damaged(model: onnx.ModelProto, seed: int) -> bytes:
    """The model's bytes with one to three kinds of damage; equal seeds give equal damage."""
    choice = random.Random(seed)
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    if choice.random() < 0.25:
        return _torn(choice, model.SerializeToString())
    for _ in range(choice.randint(1, 3)):
        choice.choice(_DAMAGES)(choice, broken)
    return bytes(broken.SerializeToString())


def _torn(choice: random.Random, data: bytes) -> bytes:
    kind = choice.randrange(3)
    if kind == 0:
        return data[: choice.randrange(len(data))]
    torn = bytearray(data)
    for _ in range(choice.randint(1, 8)):
        place = choice.randrange(len(torn))
        if kind == 1:
            torn[place] ^= 1 << choice.randrange(8)
        else:
            del torn[place : place + choice.randint(1, 16)]
    return bytes(torn)


def _bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _bodies(attribute.g)
    return found


def _any_node(choice: random.Random, model: onnx.ModelProto) -> onnx.NodeProto | None:
    nodes = [node for graph in _bodies(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    return choice.choice(nodes) if nodes else None


def _attribute(choice: random.Random, model: onnx.ModelProto) -> None:
    """Give an attribute another value, or add one that the operator doesn't have."""
    node = _any_node(choice, model)
    if node is None:
        return
    if not node.attribute or choice.random() < 0.2:
        name = choice.choice(("axis", "axes", "kernel_shape", "pads", "group", "to", "perm", "odd"))
        value = choice.choice(_ODD_INTS)
        made = [value] * choice.randint(1, 4) if name in ("axes", "pads", "perm") else value
        node.attribute.append(onnx.helper.make_attribute(name, made))
        return
    attribute = choice.choice(node.attribute)
    if attribute.ints:
        attribute.ints[choice.randrange(len(attribute.ints))] = choice.choice(_ODD_INTS)
        if choice.random() < 0.3:
            attribute.ints.append(choice.choice(_ODD_INTS))
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = choice.choice(_ODD_INTS)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = choice.choice(_ODD_FLOATS)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = choice.choice(_WORDS).encode()
    else:
        attribute.type = choice.choice((1, 2, 3, 4, 5, 6, 7))


def _rewired(choice: random.Random, model: onnx.ModelProto) -> None:
    """Make a node read another value: its own, a later one, or one that doesn't exist."""
    node = _any_node(choice, model)
    if node is None or not node.input:
        return
    names = [name for n in model.graph.node for name in n.output]
    names += [i.name for i in model.graph.input] + list(_WORDS)
    node.input[choice.randrange(len(node.input))] = choice.choice(names)
    if choice.random() < 0.2:
        node.input.append(choice.choice(names))


def _renamed(choice: random.Random, model: onnx.ModelProto) -> None:
    """Turn a node into another operator."""
    node = _any_node(choice, model)
    if node is not None:
        node.op_type = choice.choice(
            "Add Conv Resize Loop If Reshape Expand Tile Range OneHot Twirl MaxPool LSTM Pad TopK "
            "Einsum ConstantOfShape Split NonZero QuantizeLinear".split()
        )


def _constant(choice: random.Random, model: onnx.ModelProto) -> None:
    """Remove a constant, change its type, shape or numbers, or make its data external."""
    stored = model.graph.initializer
    if not stored:
        return
    tensor = stored[choice.randrange(len(stored))]
    kind = choice.randrange(5)
    if kind == 0:
        stored.remove(tensor)
    elif kind == 1:
        tensor.data_type = choice.choice([*TensorProto.DataType.values(), 99])
    elif kind == 2:
        tensor.dims.append(choice.choice(_ODD_INTS))
    elif kind == 3 and tensor.data_type == TensorProto.INT64:
        tensor.ClearField("raw_data")
        count = 1
        for extent in tensor.dims:
            count *= extent
        tensor.int64_data.extend(choice.choice(_ODD_INTS) for _ in range(min(64, max(0, count))))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=choice.choice(_WORDS))


def _shape(choice: random.Random, model: onnx.ModelProto) -> None:
    """Change a size or the element type of an input or output."""
    infos = [*model.graph.input, *model.graph.output]
    kind = choice.choice(infos).type.tensor_type
    if kind.shape.dim and choice.random() < 0.7:
        kind.shape.dim[choice.randrange(len(kind.shape.dim))].dim_value = choice.choice(_ODD_INTS)
    else:
        kind.elem_type = choice.choice([*TensorProto.DataType.values(), 99])


def _opset(choice: random.Random, model: onnx.ModelProto) -> None:
    for opset in model.opset_import:
        opset.version = choice.choice((*range(9, 29), *_ODD_INTS[:4]))


def _order(choice: random.Random, model: onnx.ModelProto) -> None:
    """Shuffle the nodes, repeat one of them, or remove one."""
    nodes = list(model.graph.node)
    kind = choice.randrange(3)
    if kind == 0:
        choice.shuffle(nodes)
    elif kind == 1 and nodes:
        nodes.append(choice.choice(nodes))
    elif nodes:
        nodes.remove(choice.choice(nodes))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _circle(choice: random.Random, model: onnx.ModelProto) -> None:
    """Make each function call itself, or a function that doesn't exist."""
    for function in model.functions:
        node = choice.choice(function.node)
        node.domain, node.op_type = function.domain, choice.choice((function.name, "Missing"))


_DAMAGES: Final[tuple[Callable[[random.Random, onnx.ModelProto], None], ...]] = (
    _attribute, _attribute, _rewired, _renamed, _constant, _constant, _shape, _opset, _order,
    _circle,
)  # fmt: skip
