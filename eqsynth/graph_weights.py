"""Graphs of Dynamo, whose weights are inputs, as modules that hold them under the user's names.

l_self_modules_up_parameters_weight_   is   up_weight
"""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Mapping
from typing import Any

import torch


def is_plain_input(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not is_held(value)


def is_held(value: object) -> bool:
    """Whether an input of the graph is a parameter or buffer of the user's module."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def with_weights(
    graph: torch.fx.GraphModule, held: Mapping[int, torch.Tensor], numbers: Mapping[int, int]
) -> tuple[torch.fx.GraphModule, dict[int, str]]:
    """The graph as a module that holds some of its inputs as weights, and their names in it.

    Args:
        numbers: inputs that are numbers, by position; they stand in the module as they are.
    """
    module = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    names = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, number in numbers.items():
        node = placeholders[position]
        known = {node: int(number)}
        for user in list(node.users):
            user.args, user.kwargs = _filled(user.args, known), _filled(user.kwargs, known)
        module.graph.erase_node(node)
    for position, value in held.items():
        node = placeholders[position]
        names[position] = name = _name_of(node, module)
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.get_attr(name))
        module.graph.erase_node(node)
    module.recompile()
    return module.eval(), names


def _filled(args: Any, known: Mapping[torch.fx.Node, int]) -> Any:
    return torch.fx.map_arg(args, lambda node: known.get(node, node))


def _name_of(place: torch.fx.Node, module: torch.nn.Module) -> str:
    """What a weight is called in the user's model; what Dynamo calls it where that isn't known, or
    is the name of something else. Reports and explanations show it."""
    source = getattr(getattr(place.meta.get("grapharg"), "source", None), "name", "")
    path = re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", str(source))
    name = re.sub(r"\W", "_", "_".join(path))
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"model_{name}"
    return name if path and not hasattr(module, name) else place.name
