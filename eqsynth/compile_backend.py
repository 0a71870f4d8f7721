"""``torch.compile(model, backend="eqsynth")``: the backend, which optimizes the graphs that torch's
Dynamo captures.

    model = torch.compile(model.eval(), backend="eqsynth", options={"time_limit_s": 60})
    with torch.no_grad():
        y = model(x)        # optimized at the first call with these shapes

Dynamo hands over a graph whose parameters are inputs; they become weights of eqsynth's program.

These graphs go to Inductor: graphs that gradients are wanted of, graphs whose results share memory,
and graphs that the search fails on. If the objective is time, a graph also goes to Inductor unless
eqsynth's program is faster than Inductor's, so a model is never slower than with
``backend="inductor"``. If Inductor fails or is missing, torch runs the graph as it is.

A graph with symbolic sizes starts with Inductor's program. Sizes that are called a second time get
a program of their own, up to a limit (``sizes.py``). The first such program is searched; those of
other sizes follow its plan if they can (``extract/route.py``).

With ``mode="fast-start"`` no call waits for a search: Inductor's program runs until a search in the
background (``background.py``) has found a faster one.

The backend is registered under torch's entry point ``torch_dynamo_backends``. Not here: checking
the options (``compile_options.py``).
"""

from __future__ import annotations

import copy
import logging
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from eqsynth import background, reproducer
from eqsynth.ambient import Ambient
from eqsynth.compile_options import Asked
from eqsynth.errors import (
    CompileWarning,
    EqsynthError,
    EquivalenceError,
    EquivalenceWarning,
    GradientWarning,
    WeightError,
)
from eqsynth.extract.route import Route
from eqsynth.extract.target import CPU
from eqsynth.frontend.examples import TENSORS
from eqsynth.graph_weights import is_held, is_plain_input, with_weights
from eqsynth.lower import memory_order
from eqsynth.lower.engines import bounded
from eqsynth.lower.engines.inductor import instructions_taken
from eqsynth.lower.functional import tracing
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.samples import Samples, version_of
from eqsynth.pipeline import optimize
from eqsynth.race import race
from eqsynth.sizes import BySize, Compiled

log = logging.getLogger("eqsynth.compile")


def _dynamos() -> tuple[type[BaseException], ...]:
    """The exceptions by which a backend tells Dynamo to trace a frame again, or to leave it alone.
    Dynamo is imported here, where it runs already: an expression doesn't need it, and importing it
    takes 2.5 s of CPU."""
    from torch._dynamo.exc import RestartAnalysis, SkipFrame

    return RestartAnalysis, SkipFrame


def eqsynth(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Return what runs a graph. torch calls this for each graph, with the inputs of the graph's
    first call.

    Args:
        options: arguments of :func:`eqsynth.optimize` by name, such as ``time_limit_s``; ``sizes``,
            the number of sizes for which a graph with symbolic sizes is optimized (8 by default);
            and ``mode``, since torch refuses options beside a mode.
        mode: ``fast-start``, or one of torch's own modes, which is passed on to Inductor.

    Raises:
        EqsynthError: an option or a mode is unknown, or an option has a value that it can't have.
        RuleError: a rule file can't be used.
        EquivalenceError: with the option ``strict``, the result differs from the graph's.
    """
    asked = Asked.of(options or {}, mode)
    if any(isinstance(x, torch.Tensor) and x.layout != torch.strided for x in example_inputs):
        log.info("torch runs a graph of tensors that aren't dense as it is")
        return graph
    inductor = _Inductor(graph, example_inputs, asked.mode)
    reason = _refusal(example_inputs) or _sharing(graph)
    if reason:
        return inductor(reason)
    search = _Search(_copy(graph), asked, inductor)
    find = search.later if asked.fast_start else search
    varying = _varying(graph, example_inputs)
    if varying:
        # Inductor compiles now, while torch can still record the conditions on sizes that
        # Inductor's program relies on.
        return BySize(find, inductor("it has symbolic sizes"), varying, asked.sizes)
    with torch._guards.tracing(None):
        return find(example_inputs) or inductor()


def _copy(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy of a graph, which Inductor's changes to the original don't reach."""
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


def _refusal(example_inputs: Sequence[Any]) -> str:
    """Return why eqsynth doesn't take a graph with these inputs, or an empty string if it does."""
    for value in example_inputs:
        if isinstance(value, torch.Tensor):
            if type(value) not in TENSORS:
                return f"an input is a {type(value).__name__}"
            if value.device.type != CPU:
                return "it isn't on the CPU"
        elif not isinstance(value, int | torch.SymInt):
            return f"an input is a {type(value).__name__}"
    if torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs
    ):
        warnings.warn(
            "eqsynth optimizes inference only: a graph that gradients are wanted of goes to "
            "Inductor; call the model under torch.no_grad() to have it optimized",
            GradientWarning,
            stacklevel=2,
        )
        return "gradients are wanted of it"
    return ""


def _varying(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the inputs that are sizes, and of the tensors that have an extent which
    varies from call to call."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(
        n
        for n, (node, value) in enumerate(zip(places, example_inputs, strict=True))
        if not isinstance(value, torch.Tensor)
        or any(
            isinstance(extent, torch.SymInt)
            for extent in getattr(node.meta.get("example_value"), "shape", ())
        )
    )


def _sharing(graph: torch.fx.GraphModule) -> str:
    """Return which results share memory with each other or with an input, or an empty string if
    none do.

    Such graphs go to Inductor. After a graph break, Python may write into ``x.view(-1)`` and then
    read ``x``; eqsynth gives each result memory of its own, so ``x`` would keep its old values. A
    result that is an input itself, unchanged, is fine.
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
    """A graph compiled by Inductor at the first request, or the graph itself if Inductor fails."""

    def __init__(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], mode: str | None
    ) -> None:
        self.graph, self.example_inputs, self.mode = graph, example_inputs, mode
        self.plain = _copy(graph)
        self.compiled: Compiled | None = None
        self.failed = False

    def __call__(self, reason: str = "") -> Compiled:
        """Return Inductor's program. ``reason`` says why the graph goes to Inductor,
        and is logged."""
        if reason:
            size = sum(node.op.startswith("call") for node in self.graph.graph.nodes)
            log.info("a graph of %d operators goes to Inductor: %s", size, reason)
        if self.compiled is None:
            self.compiled = self._compile()
        return self.compiled

    def _compile(self) -> Compiled:
        """Compile the graph by Inductor; return the graph itself if Inductor fails."""
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        mode = list_mode_options(self.mode) if self.mode else {}

        def made() -> Compiled:
            # Inductor changes the graph that it is given, so each try gets a copy.
            graph, inputs = _copy(self.graph), list(self.example_inputs)
            return cast(Compiled, compile_fx(graph, inputs, config_patches=mode))

        try:
            with tracing(), bounded.looking_at_the_clock():
                compiled = instructions_taken(made)
        except _dynamos():
            raise
        except Exception as error:  # such as a missing C++ compiler
            log.warning("Inductor doesn't compile a graph, which torch runs as it is: %s", error)
            self.failed, compiled = True, self.plain
        return compiled


@dataclass(eq=False)
class Swapped:
    """A callable that runs ``current``, which another thread may replace between two calls."""

    current: Compiled

    def __call__(self, *inputs: Any) -> Any:
        return self.current(*inputs)


@dataclass(frozen=True)
class _Cut:
    """A graph as a module that holds its weights. ``names``, ``held`` and ``places`` are those of
    :class:`Program`.

    Attributes:
        given: the inputs of the module: the graph's inputs without weights and numbers.
    """

    module: torch.fx.GraphModule
    names: Mapping[int, str]
    held: Mapping[int, torch.Tensor]
    places: tuple[int, ...]
    given: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Search:
    """The search for a program of one graph. Calling it with inputs searches for the sizes of these
    inputs."""

    graph: torch.fx.GraphModule
    asked: Asked
    inductor: _Inductor
    # The route of the plan that was found last, or nothing. Searches for other sizes follow it.
    route: list[Route] = field(default_factory=list)

    def __call__(self, inputs: Sequence[Any]) -> Compiled | None:
        """Return eqsynth's program, or None if the graph goes to Inductor; the log says why."""
        with torch.random.fork_rng(devices=()), torch.no_grad():
            found = self._optimized(inputs)
            if isinstance(found, Program) and self.asked.timed:
                found = _slower(found, self.inductor, inputs) or found
        if isinstance(found, Program):
            return found
        self.inductor(found)
        return None

    def later(self, inputs: Sequence[Any]) -> Swapped:
        """Return Inductor's program, and replace it when a search in the background has found a
        faster program.

        The weights may change during the search. So the program takes the present weights when it
        is put in place, and checks them for changes before each call, as every program does.
        """
        swapped = Swapped(self.inductor())
        kept = [x if not is_plain_input(x) else x.clone() for x in inputs]
        ambient, alive = Ambient.now(), weakref.ref(swapped)

        def job() -> None:
            cut = self._cut(kept)
            try:
                if alive() is None:
                    return  # the user has dropped the compiled graph
                found = background.found_elsewhere(cut.module, cut.given, self._strict, ambient)
                if isinstance(found, background.Found):
                    self.route[:] = [found.route]
                with ambient.autocasting():
                    made = self._taken(cut, found if isinstance(found, str) else found.program)
                if isinstance(made, Program):
                    made.take(kept)
                    made = (self.asked.timed and _slower(made, self.inductor, kept)) or made
                if isinstance(made, str):
                    log.info("a graph stays with Inductor: %s", made)
                elif (place := alive()) is not None:
                    place.current = made
                    log.info("a program that was found in the background is used from now on")
            except background.ClosingError:
                raise
            except Exception as error:  # Inductor's program stays in use
                kind = EquivalenceWarning if isinstance(error, EquivalenceError) else CompileWarning
                with suppress(Warning), ambient.autocasting():
                    self._failed(cut.module, cut.given, error, kind)

        background.submit(job)
        return swapped

    @property
    def _strict(self) -> Mapping[str, Any]:
        return {**self.asked.options, "strict": True, "like": next(iter(self.route), None)}

    def _cut(self, inputs: Sequence[Any]) -> _Cut:
        held = {n: value for n, value in enumerate(inputs) if is_held(value)}
        numbers = {n: v for n, v in enumerate(inputs) if not isinstance(v, torch.Tensor)}
        module, names = with_weights(self.graph, held, numbers)
        places = tuple(n for n in range(len(inputs)) if n not in held and n not in numbers)
        return _Cut(module, names, held, places, tuple(inputs[n] for n in places))

    def _optimized(self, inputs: Sequence[Any]) -> Program | str:
        """Return the graph as a program of eqsynth, or the reason why there is no faster one."""
        cut = self._cut(inputs)
        try:
            program = optimize(cut.module, cut.given, **self._strict)
        except EquivalenceError as error:
            if self.asked.options.get("strict"):
                raise
            return self._failed(cut.module, cut.given, error, EquivalenceWarning)
        except Exception as error:  # a fault of eqsynth: the model runs through Inductor
            return self._failed(cut.module, cut.given, error, CompileWarning)
        if program.original is not None:
            return str(program.report.reason or program.report.stop)
        if program.mutations:
            return "it changes tensors of the module in place"
        self.route[:] = [program.report.route]
        return self._taken(cut, program)

    def _taken(self, cut: _Cut, found: CompiledProgram | str) -> Program | str:
        if isinstance(found, str):
            return found
        with torch.no_grad():
            orders = memory_order.changed(found(*cut.given), cut.module(*cut.given))
        return Program(found, cut.names, cut.held, cut.places, self.inductor, orders)

    def _failed(
        self,
        module: torch.fx.GraphModule,
        given: Sequence[torch.Tensor],
        error: Exception,
        category: type[UserWarning],
    ) -> str:
        """Warn of a failure, naming a script that reproduces it, and return the reason."""
        log.info("eqsynth fails on a graph", exc_info=error)
        script = reproducer.write(module, given, self.asked.options, error)
        told = error.what if isinstance(error, EqsynthError) else str(error)
        reason = f"{type(error).__name__}: {told}"
        by = f"python {script} shows it" if script else "no script could be saved that shows it"
        text = f"eqsynth fails on a graph, which goes to Inductor: {reason}; {by}"
        warnings.warn(text, category, stacklevel=2)
        return reason


def _slower(found: Program, inductor: _Inductor, inputs: Sequence[Any]) -> str:
    """Return why Inductor's program is used in place of eqsynth's; an empty string if it isn't."""
    rival = inductor()
    if inductor.failed:
        return ""
    result = race(lambda: rival(*inputs), lambda: found(*inputs))
    ours, theirs = result.after.median_s * 1e3, result.before.median_s * 1e3
    log.info("eqsynth takes %.3f ms, Inductor %.3f ms", ours, theirs)
    if ours < theirs:
        return ""
    return f"Inductor takes {theirs:.3f} ms, and eqsynth {ours:.3f} ms"


@dataclass
class Program:
    """A compiled program with the calling convention of Dynamo's graph: the weights of the user's
    module are among the inputs.

    If weights have changed since the last call, they are folded into the program again. The graph
    goes to Inductor for good if the changed weights break an assumption of the plan (one of them
    holds NaN now), or if the program refuses inputs that torch accepts.

    Attributes:
        names: the weights' positions among the inputs, and their names in the program.
        held: the weights themselves, by position.
        places: the positions of the inputs that the program is called with.
        inductor: the graph compiled by Inductor.
        orders: the results whose axes the graph puts in another order in memory, and that order.
    """

    program: CompiledProgram
    names: Mapping[int, str]
    held: Mapping[int, torch.Tensor]
    places: tuple[int, ...]
    inductor: _Inductor
    orders: Mapping[int, memory_order.Order]
    instead: Compiled | None = None
    _seen: list[tuple[int, torch.Tensor, int, int]] = field(init=False, repr=False)
    _samples: Samples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._look(self.held)

    def _look(self, held: Mapping[int, torch.Tensor]) -> None:
        self._samples = Samples(held.values())
        self._seen = [(n, w, version_of(w), w.data_ptr()) for n, w in held.items()]

    def _changed(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether a weight was replaced, moved or written to since the last call."""
        for n, weight, version, pointer in self._seen:
            now = inputs[n]
            if now is not weight or version_of(now) != version or now.data_ptr() != pointer:
                return True
        # No weight has moved, so the samples may be read at the old addresses.
        return self._samples.changed()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._seen and self._changed(inputs):
            self.take(inputs)
        if self.instead is not None:
            return self.instead(*inputs)
        try:
            results = self.program(*(inputs[n] for n in self.places))
            return memory_order.restored(results, self.orders) if self.orders else results
        except Exception as error:
            # If the graph raises, too, the user gets its error. If it doesn't, its result is
            # returned, and the graph runs all later calls.
            result = self.inductor.plain(*inputs)
            log.warning("a program refuses what torch takes: %s", error)
            self.instead, self._seen = self.inductor.plain, []
            return result

    def take(self, inputs: Sequence[torch.Tensor]) -> None:
        """Fold the weights among these inputs into the program. Weights are looked at before they
        are read: a weight that changes while it is read counts as changed at the next call, and is
        folded in again."""
        try:
            self._look({n: inputs[n] for n in self.names})
            self.program.refresh({name: inputs[n] for n, name in self.names.items()})
        except WeightError as error:
            self.instead, self._seen = self.inductor(str(error)), []
