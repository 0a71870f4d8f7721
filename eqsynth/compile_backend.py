"""``torch.compile(model, backend="eqsynth")``: graphs that torch's Dynamo captures, optimized.

    model = torch.compile(model.eval(), backend="eqsynth", options={"time_limit_s": 60})
    with torch.no_grad():
        y = model(x)        # optimized at the first call with these shapes

Dynamo hands over a graph whose parameters are inputs; they become weights of the program here. What
eqsynth can't take goes to Inductor: graphs that gradients are wanted of, whose results share
memory, that the search fails on. So does what it doesn't make faster than Inductor does, where time
is the objective: a model is never worse off than with ``backend="inductor"``. A graph with symbolic
sizes is Inductor's, too, until the same sizes come a second time: then they get a program of their
own (``sizes.py``), up to a limit. The first of them is searched; others follow its plan
(``extract/route.py``), where they can. With ``mode="fast-start"`` nothing waits for a search:
Inductor's program runs until one is found in the background (``background.py``), and if none is.
Where Inductor fails or is missing, torch runs the graph as it is. Registered under torch's entry
point ``torch_dynamo_backends``. Not here: what may be asked for (``compile_options.py``).
"""

from __future__ import annotations

import copy
import logging
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch._dynamo.exc import RestartAnalysis, SkipFrame
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
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.samples import Samples, version_of
from eqsynth.pipeline import optimize
from eqsynth.race import race
from eqsynth.sizes import BySize, Compiled

log = logging.getLogger("eqsynth.compile")

# By which a backend tells Dynamo to trace again, or to leave a frame alone.
_DYNAMOS: Final = (RestartAnalysis, SkipFrame)


def eqsynth(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """The backend: called by torch for each graph, with the inputs of its first call.

    Args:
        options: arguments of :func:`eqsynth.optimize` by name, such as ``time_limit_s``, and
            ``sizes``: of a graph with symbolic sizes, how many sizes are optimized (8), and
            ``mode``, since torch takes either options or a mode.
        mode: ``fast-start``, or one of torch's own modes, taken for what goes to Inductor.

    Raises:
        EqsynthError: no such option or mode, or no such value of an option.
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
        # Now, while torch can still take the conditions that Inductor's program relies on.
        return BySize(find, inductor("it has symbolic sizes"), varying, asked.sizes)
    with torch._guards.tracing(None):
        return find(example_inputs) or inductor()


def _copy(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph that stays as it is whatever Inductor does to the other."""
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


def _refusal(example_inputs: Sequence[Any]) -> str:
    """Why a graph with such inputs isn't for eqsynth; empty if it is."""
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
    """Positions of the inputs that are sizes, or have extents that vary from call to call."""
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
    """A graph on Inductor, compiled when it is asked for; where that fails, the graph itself."""

    def __init__(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], mode: str | None
    ) -> None:
        self.graph, self.example_inputs, self.mode = graph, example_inputs, mode
        self.plain = _copy(graph)
        self.compiled: Compiled | None = None
        self.failed = False

    def __call__(self, reason: str = "") -> Compiled:
        """The graph, which goes to Inductor for this reason."""
        if reason:
            size = sum(node.op.startswith("call") for node in self.graph.graph.nodes)
            log.info("a graph of %d operators goes to Inductor: %s", size, reason)
        if self.compiled is None:
            self.compiled = self._compile()
        return self.compiled

    def _compile(self) -> Compiled:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        mode = list_mode_options(self.mode) if self.mode else {}

        def made(settings: Mapping[str, object]) -> Compiled:
            # A graph of its own for each try: Inductor changes what it gets.
            graph, inputs = _copy(self.graph), list(self.example_inputs)
            return cast(Compiled, compile_fx(graph, inputs, config_patches={**mode, **settings}))

        try:
            with bounded.looking_at_the_clock():
                compiled = instructions_taken(made)
        except _DYNAMOS:
            raise
        except Exception as error:  # whatever is missing that Inductor needs
            log.warning("Inductor doesn't compile a graph, which torch runs as it is: %s", error)
            self.failed, compiled = True, self.plain
        return compiled


@dataclass(eq=False)
class Swapped:
    """A graph's program, in whose place another may come between two calls."""

    current: Compiled

    def __call__(self, *inputs: Any) -> Any:
        return self.current(*inputs)


@dataclass(frozen=True)
class _Cut:
    """A graph as a module that holds its weights; see ``Program``.

    Attributes:
        given: what the module is called with.
    """

    module: torch.fx.GraphModule
    names: Mapping[int, str]
    held: Mapping[int, torch.Tensor]
    places: tuple[int, ...]
    given: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Search:
    """Looks for a program of a graph, for the sizes of some inputs."""

    graph: torch.fx.GraphModule
    asked: Asked
    inductor: _Inductor
    # Of the plan that was searched for last, at most one; other sizes follow it.
    route: list[Route] = field(default_factory=list)

    def __call__(self, inputs: Sequence[Any]) -> Compiled | None:
        """The program; None where the graph is Inductor's, which the log tells why."""
        with torch.random.fork_rng(devices=()), torch.no_grad():
            found = self._optimized(inputs)
            if isinstance(found, Program) and self.asked.timed:
                found = _slower(found, self.inductor, inputs) or found
        if isinstance(found, Program):
            return found
        self.inductor(found)
        return None

    def later(self, inputs: Sequence[Any]) -> Swapped:
        """Inductor's program now, and the one that a search in the background finds from then on.

        Weights may change meanwhile: what was found takes those of now when it takes its place,
        and looks at them before each call as always.
        """
        swapped = Swapped(self.inductor())
        kept = [x if not is_plain_input(x) else x.clone() for x in inputs]
        ambient, alive = Ambient.now(), weakref.ref(swapped)

        def job() -> None:
            cut = self._cut(kept)
            try:
                if alive() is None:
                    return  # nobody calls it any more
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
            except Exception as error:  # a fault costs the gain; the graph runs as it did
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
        """The graph as a program of eqsynth, or why there is none that is faster."""
        cut = self._cut(inputs)
        try:
            program = optimize(cut.module, cut.given, **self._strict)
        except EquivalenceError as error:
            if self.asked.options.get("strict"):
                raise
            return self._failed(cut.module, cut.given, error, EquivalenceWarning)
        except Exception as error:  # a fault of eqsynth's own; the model runs without it
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
        """Tells of a failure, with a script that shows it; what is told is the reason, too."""
        log.info("eqsynth fails on a graph", exc_info=error)
        script = reproducer.write(module, given, self.asked.options, error)
        told = error.what if isinstance(error, EqsynthError) else str(error)
        reason = f"{type(error).__name__}: {told}"
        by = f"python {script} shows it" if script else "no script could be saved that shows it"
        text = f"eqsynth fails on a graph, which goes to Inductor: {reason}; {by}"
        warnings.warn(text, category, stacklevel=2)
        return reason


def _slower(found: Program, inductor: _Inductor, inputs: Sequence[Any]) -> str:
    """Why a program isn't taken in place of Inductor's; empty if it is."""
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
    """A compiled program as torch calls it: with the weights of the user's module among its inputs.

    Weights that have changed since the last call are folded into the program again. Where the plan
    relies on what has changed (a weight holds NaN now), or the program refuses what torch takes,
    the graph goes to Inductor.

    Attributes:
        names: the weights' positions among the inputs, and their names in the program.
        held: the weights themselves.
        places: the positions of what the program is called with.
        inductor: the graph on Inductor, for a reason.
        orders: the results that the graph gives in another order of axes in memory.
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
        for n, weight, version, pointer in self._seen:
            now = inputs[n]
            if now is not weight or version_of(now) != version or now.data_ptr() != pointer:
                return True
        return self._samples.changed()  # what lies where it was can be read

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._seen and self._changed(inputs):
            self.take(inputs)
        if self.instead is not None:
            return self.instead(*inputs)
        try:
            results = self.program(*(inputs[n] for n in self.places))
            return memory_order.restored(results, self.orders) if self.orders else results
        except Exception as error:
            # An error of the graph's own is the answer; of what torch takes, there is a result.
            result = self.inductor.plain(*inputs)
            log.warning("a program refuses what torch takes: %s", error)
            self.instead, self._seen = self.inductor.plain, []
            return result

    def take(self, inputs: Sequence[torch.Tensor]) -> None:
        """Folds the weights among these inputs in. One that changes while it is read has changed
        since it was looked at, and is folded in again by the next call."""
        try:
            self._look({n: inputs[n] for n in self.names})
            self.program.refresh({name: inputs[n] for n, name in self.names.items()})
        except WeightError as error:
            self.instead, self._seen = self.inductor(str(error)), []
