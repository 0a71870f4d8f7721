"""Turn Dynamo's graphs, whose weights are inputs, into modules that hold these weights under the
names of the user's model.

    input l_self_modules_up_parameters_weight_  ->  weight up_weight
"""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Mapping
from typing import Any

import torch


def is_plain_input(value: object) -> bool:
    """Whether an input of the graph is a tensor of the user's call, and no parameter or buffer."""
    return isinstance(value, torch.Tensor) and not is_held(value)


def is_held(value: object) -> bool:
    """Whether an input of the graph is a parameter or buffer of the user's module."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def with_weights(
    graph: torch.fx.GraphModule, held: Mapping[int, torch.Tensor], numbers: Mapping[int, int]
) -> tuple[torch.fx.GraphModule, dict[int, str]]:
    """Return the graph as a module that holds the inputs ``held`` as weights, and the names of
    these weights by position.

    Args:
        numbers: inputs that are numbers, by position; they are written into the module as
            constants.
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
    """The name of a weight in the user's model, which reports and explanations show. Dynamo's own
    name if the user's isn't known, or is taken already."""
    source = getattr(getattr(place.meta.get("grapharg"), "source", None), "name", "")
    path = re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", str(source))
    name = re.sub(r"\W", "_", "_".join(path))
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"model_{name}"
    return name if path and not hasattr(module, name) else place.name
