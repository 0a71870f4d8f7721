"""``torch.compile(model, backend="eqsynth")``: graphs that torch's Dynamo captures, optimized.

    model = torch.compile(model.eval(), backend="eqsynth", options={"time_limit_s": 60})
    with torch.no_grad():
        y = model(x)        # optimized at the first call with these shapes

Dynamo hands over a graph whose parameters are inputs; they become weights of the program here. What
eqsynth can't take goes to Inductor: graphs with symbolic sizes, graphs that gradients are wanted
of, graphs whose results share memory, graphs that the search fails on. So does what it doesn't make
faster than Inductor does, which is timed where time is the objective: a model is never worse off
than with ``backend="inductor"``. Registered under torch's entry point ``torch_dynamo_backends``.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from eqsynth.errors import EqsynthError, GradientWarning, WeightError
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from eqsynth.race import race

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
    reason = _refusal(example_inputs) or _sharing(graph)
    to_inductor = _Inductor(graph, example_inputs, mode)
    if not reason:
        with torch._guards.tracing(None), torch.no_grad():
            found: Program | str = _optimized(
                graph, example_inputs, dict(options or {}), to_inductor
            )
        if isinstance(found, str):
            reason = found
        elif (options or {}).get("objective", "time") != "time":
            return found
        else:
            reason = _slower(found, to_inductor, example_inputs)
            if not reason:
                return found
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
    if any(value.device.type != "cpu" for value in example_inputs):
        return "it isn't on the CPU"
    if torch.is_grad_enabled() and any(value.requires_grad for value in example_inputs):
        warnings.warn(
            "eqsynth optimizes inference only: a graph that gradients are wanted of goes to "
            "Inductor; call the model under torch.no_grad() to have it optimized",
            GradientWarning,
            stacklevel=2,
        )
        return "gradients are wanted of it"
    return ""


def _sharing(graph: torch.fx.GraphModule) -> str:
    """Why results that share memory keep a graph from eqsynth; empty if none do.

    After a graph break, Python may write into ``x.view(-1)`` and read ``x``. A program of eqsynth
    gives each result memory of its own; an input that is returned as it is, is that input.
    """
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    results = [leaf for leaf in tree_leaves(output.args) if isinstance(leaf, torch.fx.Node)]
    memory: dict[int, torch.fx.Node] = {}
    for node in dict.fromkeys([*inputs, *results]):
        value = node.meta.get("example_value")
        if value is None and node in results:
            return "it isn't known which of its results share memory"
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            other = memory.setdefault(value.untyped_storage()._cdata, node)
            if other is not node and node in results:
                return f"results share memory: {node.name} and {other.name}"
    return ""


class _Inductor:
    """A graph on Inductor, compiled when it is asked for."""

    def __init__(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], mode: str | None
    ) -> None:
        self.graph, self.example_inputs, self.mode = graph, example_inputs, mode
        self.compiled: Compiled | None = None

    def __call__(self, reason: str = "") -> Compiled:
        """The graph, which goes to Inductor for this reason."""
        if reason:
            size = sum(node.op.startswith("call") for node in self.graph.graph.nodes)
            log.info("a graph of %d operators goes to Inductor: %s", size, reason)
        if self.compiled is None:
            from torch._inductor import list_mode_options
            from torch._inductor.compile_fx import compile_fx

            patches = list_mode_options(self.mode) if self.mode else None
            compiled: Any = compile_fx(
                self.graph, list(self.example_inputs), config_patches=patches
            )
            self.compiled = compiled
        assert self.compiled is not None
        return self.compiled


def _slower(found: Program, to_inductor: _Inductor, example_inputs: Sequence[Any]) -> str:
    """Why a program isn't taken in place of Inductor's; empty if it is."""
    try:
        rival = to_inductor()
    except Exception as error:  # whatever is missing that Inductor needs
        log.info("Inductor doesn't compile the graph: %s", error)
        return ""
    with torch._guards.tracing(None):
        result = race(lambda: rival(*example_inputs), lambda: found(*example_inputs))
    ours, theirs = result.after.median_s * 1e3, result.before.median_s * 1e3
    log.info("eqsynth takes %.3f ms, Inductor %.3f ms", ours, theirs)
    if ours < theirs:
        return ""
    return f"Inductor takes {theirs:.3f} ms, and eqsynth {ours:.3f} ms"


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
    except Exception as error:  # a fault of eqsynth's own; the model runs without it
        log.warning("eqsynth fails on a graph", exc_info=True)
        return f"{type(error).__name__}: {error}"
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
