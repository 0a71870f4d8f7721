"""``torch.compile(model, backend="eqsynth")``: graphs that torch's Dynamo captures, optimized.

    model = torch.compile(model.eval(), backend="eqsynth", options={"time_limit_s": 60})
    with torch.no_grad():
        y = model(x)        # optimized at the first call with these shapes

Dynamo hands over a graph whose parameters are inputs; they become weights of the program here. What
eqsynth can't take, and what it doesn't make faster, goes to Inductor, so a model is never worse off
than with ``backend="inductor"``: graphs with symbolic sizes, graphs that gradients are wanted of,
graphs that the search fails on. Registered under torch's entry point ``torch_dynamo_backends``.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from eqsynth.errors import EqsynthError, GradientWarning, WeightError
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize

log = logging.getLogger("eqsynth.compile")

Compiled = Callable[..., Any]

# Arguments of `optimize` that are the backend's own business.
_OWN = ("program", "example_inputs", "example_kwargs", "target")


def eqsynth(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """The backend: called by torch for each graph, with the inputs of its first call.

    Args:
        options: arguments of :func:`eqsynth.optimize` by name, such as ``time_limit_s``.
        mode: one of torch's own modes; taken for what goes to Inductor.

    Raises:
        EqsynthError: no such option.
    """
    _known(options or {})
    reason = _refusal(example_inputs)
    to_inductor = partial(_to_inductor, graph, example_inputs, mode)
    if not reason:
        with torch._guards.tracing(None), torch.no_grad():
            found: Program | str = _optimized(
                graph, example_inputs, dict(options or {}), to_inductor
            )
        if isinstance(found, Program):
            return found
        reason = found
    return to_inductor(reason)


def _known(options: Mapping[str, Any]) -> None:
    allowed = [name for name in inspect.signature(optimize).parameters if name not in _OWN]
    for name in options:
        if name not in allowed:
            raise EqsynthError(
                f"torch.compile(backend='eqsynth'): unknown option {name!r}",
                got=repr(name),
                expected=", ".join(allowed),
                hint="options are the arguments of eqsynth.optimize",
            )


def _refusal(example_inputs: Sequence[Any]) -> str:
    """Why a graph with such inputs isn't for eqsynth; empty if it is."""
    if any(not isinstance(value, torch.Tensor) for value in example_inputs):
        return "it has symbolic sizes"
    if torch.is_grad_enabled() and any(value.requires_grad for value in example_inputs):
        warnings.warn(
            "eqsynth optimizes inference only: a graph that gradients are wanted of goes to "
            "Inductor; call the model under torch.no_grad() to have it optimized",
            GradientWarning,
            stacklevel=2,
        )
        return "gradients are wanted of it"
    return ""


def _to_inductor(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], mode: str | None, reason: str
) -> Compiled:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    size = sum(node.op.startswith("call") for node in graph.graph.nodes)
    log.info("a graph of %d operators goes to Inductor: %s", size, reason)
    patches = list_mode_options(mode) if mode else None
    compiled: Compiled = compile_fx(graph, list(example_inputs), config_patches=patches)  # type: ignore[assignment]
    return compiled


def _optimized(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    options: dict[str, Any],
    to_inductor: Callable[[str], Compiled],
) -> Program | str:
    """The graph as a program of eqsynth, or why there is none that is faster."""
    held = {n: value for n, value in enumerate(example_inputs) if _is_held(value)}
    module, names = _with_weights(graph, held)
    given = tuple(v for n, v in enumerate(example_inputs) if n not in held)
    try:
        program = optimize(module, given, **options)
    except EqsynthError as error:
        return str(error)
    if program.original is not None:
        return str(program.report.reason or program.report.stop)
    if program.mutations:
        return "it changes tensors of the module in place"
    return Program(program, names, held, to_inductor)


def _is_held(value: torch.Tensor) -> bool:
    """Whether an input of the graph is a parameter or buffer of the user's module."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _with_weights(
    graph: torch.fx.GraphModule, held: Mapping[int, torch.Tensor]
) -> tuple[torch.nn.Module, dict[int, str]]:
    """The graph as a module that holds some of its inputs as weights, and their names in it."""
    module = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    names = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, value in held.items():
        node = placeholders[position]
        names[position] = name = node.name
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.get_attr(name))
        module.graph.erase_node(node)
    module.recompile()
    return module.eval(), names


@dataclass
class Program:
    """A compiled program as torch calls it: with the weights of the user's module among its inputs.

    Weights that have changed since the last call are folded into the program again. Where the plan
    relies on what has changed (a weight holds NaN now), the graph goes to Inductor.

    Attributes:
        names: the weights' positions among the inputs, and their names in the program.
        held: the weights themselves.
        to_inductor: the graph on Inductor, for a reason.
    """

    program: CompiledProgram
    names: Mapping[int, str]
    held: Mapping[int, torch.Tensor]
    to_inductor: Callable[[str], Compiled]
    instead: Compiled | None = None
    _seen: list[tuple[int, torch.Tensor, int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._look(self.held)

    def _look(self, held: Mapping[int, torch.Tensor]) -> None:
        self._seen = [(n, w, w._version, w.data_ptr()) for n, w in held.items()]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        for n, weight, version, pointer in self._seen:
            now = inputs[n]
            if now is not weight or now._version != version or now.data_ptr() != pointer:
                self._refresh(inputs)
                break
        if self.instead is not None:
            return self.instead(*inputs)
        return self.program(*(x for n, x in enumerate(inputs) if n not in self.names))

    def _refresh(self, inputs: Sequence[torch.Tensor]) -> None:
        try:
            self.program.refresh({name: inputs[n] for n, name in self.names.items()})
            self._look({n: inputs[n] for n in self.names})
        except WeightError as error:
            self.instead, self._seen = self.to_inductor(str(error)), []
