"""``optimize`` of a module that torch can't capture as one graph: its graphs are optimized one by
one.

    y = self.first(x);  if y.max() > 1: y = y / y.max();  return self.second(y)

``torch.export`` refuses this module, since its control flow depends on values. ``torch.compile``
captures a graph on each side of the ``if``, and Python runs the ``if`` between them. Each of these
graphs goes through the backend of ``torch.compile`` (``compile_backend.py``), which takes eqsynth's
program or Inductor's, whichever is faster.

The seconds that are left of the time limit are divided among the graphs by their numbers of
operators. Half of a graph's share is for eqsynth's search, the rest for Inductor. A graph whose
share ends before a faster program was found runs through torch as before. If the joined graphs
aren't faster than the original module, the original is returned.

The programs are for the shapes of the example inputs. A call with other shapes runs as the original
module does: no search starts in a call.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from eqsynth import pipeline
from eqsynth.compile_backend import Program, Swapped, eqsynth
from eqsynth.compile_options import NO_OPTIONS
from eqsynth.errors import EquivalenceError
from eqsynth.explain import NoExplanation
from eqsynth.extract.target import CPU
from eqsynth.frontend.examples import arguments, kept_buffers
from eqsynth.lower.engines import bounded
from eqsynth.lower.graphs import Graphs
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.rounding import largest_error
from eqsynth.race import race
from eqsynth.report import Graph, Report
from eqsynth.settings import one_of
from eqsynth.sizes import Compiled

log = logging.getLogger("eqsynth.optimize")

NEAR: Final = 1e-3
"""If a result of the joined graphs differs from the original by more than this part of the result's
largest value, the graphs aren't used. Each graph was already checked against its own original; this
check is for Python's part between the graphs."""

LEAST_S: Final = 5.0
"""If the time limit is shorter, no graph is compiled: Inductor alone takes about this long."""

_RACE_S: Final = 1.0  # left for the comparison with the original, and the race

_Args = ParamSpec("_Args")


def by_graphs(whole: Callable[_Args, CompiledProgram]) -> Callable[_Args, CompiledProgram]:
    """Wrap ``pipeline.optimize``: if torch sees several graphs in the module, they are optimized
    one by one."""
    signature = inspect.signature(whole)
    names = list(signature.parameters)

    @functools.wraps(whole)
    def optimize(*args: _Args.args, **kwargs: _Args.kwargs) -> CompiledProgram:
        begin = time.monotonic()
        one_of("argument", kwargs, names, where="optimize", hint="help(eqsynth.optimize) tells all")
        found = whole(*args, **kwargs)
        if not found.report.several_graphs:
            return found
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _optimized(found, given.arguments, begin)

    return optimize


optimize = by_graphs(pipeline.optimize)


@dataclass
class _Capture:
    """A backend of ``torch.compile`` that collects the graphs of the first call. Each graph runs
    through torch until it is replaced by a program. Graphs that come after ``closed`` was set are
    neither collected nor replaced."""

    graphs: list[tuple[Swapped, torch.fx.GraphModule, Sequence[Any]]] = field(default_factory=list)
    closed: bool = False

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if self.closed:
            return graph
        place = Swapped(graph)
        self.graphs.append((place, graph, tuple(inputs)))
        return place


def _optimized(found: CompiledProgram, given: Mapping[str, Any], began: float) -> CompiledProgram:
    """The program made of several graphs; or ``found``, with the reason why there is none added to
    its report.

    Args:
        began: the monotonic clock when ``optimize`` was called.
    """
    module, report = found.original, found.report
    args, kwargs = arguments(given["example_inputs"], given["example_kwargs"])
    if not isinstance(module, torch.nn.Module) or given["objective"] != "time":
        return found
    if given["like"] is not None or not _on_cpu(module, (args, kwargs)):
        return found
    if given["time_limit_s"] < LEAST_S:
        report.reason += f"\n  by graphs: compiling them takes longer than {LEAST_S} s"
        return found
    if math.isfinite(given["peak_memory"]):
        report.reason += "\n  by graphs: what Inductor needs of them isn't known (peak_memory)"
        return found
    called = time.monotonic()
    capture = _Capture()
    try:
        with torch.no_grad(), kept_buffers(module), torch.random.fork_rng(devices=()):
            compiled = torch.compile(module, backend=capture, dynamic=False)
            compiled(*_copied(args), **_copied(kwargs))
            # The time for finding the graphs counts against the limit, but at most half of the
            # limit, as for the capture of a whole module (``running.py``).
            limit_s = given["time_limit_s"]
            begin = max(began, time.monotonic() - limit_s / 2)
            told = _become_programs(capture, given, begin + limit_s - min(limit_s / 8, _RACE_S))
            capture.closed = True
            why = _differs(module, compiled, args, kwargs) or _slower(
                module, compiled, args, kwargs, report
            )
    except EquivalenceError as error:
        if given["strict"]:
            raise
        why = str(error)
    except Exception as error:  # any error of torch, of a compiler, or of the search
        why = f"{type(error).__name__}: {error}"
    finally:
        capture.closed = True
    report.optimize_s += time.monotonic() - called
    if not capture.graphs:
        why = "torch.compile sees no graph in it"
    if why:
        log.info("the module stays as it is, not graph by graph: %s", why)
        report.reason += f"\n  by graphs: {why}"
        return found
    report.stop, report.reason, report.graphs = "graphs", "", told
    report.backend = ", ".join(sorted({name for row in told for name in row.backends}))
    text = "\n\n".join(
        [f"torch captures the module as {len(told)} graphs, which Python joins:", *map(str, told)]
    )
    made = Graphs(module, compiled)
    return CompiledProgram.from_module(made, report, NoExplanation(text), (args, kwargs))


def _on_cpu(module: torch.nn.Module, given: object) -> bool:
    leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    every = [*module.parameters(), *module.buffers(), *leaves]
    return all(tensor.device.type == CPU for tensor in every)


def _copied(given: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.clone, given)


def _become_programs(capture: _Capture, given: Mapping[str, Any], end: float) -> tuple[Graph, ...]:
    """Replace each graph by eqsynth's program or Inductor's; return what runs each graph.

    Args:
        end: the monotonic clock at which the remaining graphs are left as they are.
    """
    without = (*NO_OPTIONS, "progress")
    options = {name: value for name, value in given.items() if name not in without}
    sizes = [_operators(graph) for _, graph, _ in capture.graphs]
    # The largest graph first. The first graph also pays for loading the libraries, and the last
    # ones, which may get no time, should be those with the least to gain.
    order = sorted(range(len(sizes)), key=lambda n: -sizes[n])
    for at, n in enumerate(order):
        place, graph, inputs = capture.graphs[n]
        now = time.monotonic()
        share_s = (end - now) * sizes[n] / max(sum(sizes[k] for k in order[at:]), 1)
        if share_s > 0:
            searched = {**options, "time_limit_s": share_s / 2}
            with bounded.until(now + share_s):
                place.current = eqsynth(graph, inputs, options=searched)
    places = (place for place, _, _ in capture.graphs)
    return tuple(_told(place.current, size) for place, size in zip(places, sizes, strict=True))


def _told(made: Compiled, size: int) -> Graph:
    """Return the report's row for a graph of ``size`` operators that ``made`` runs."""
    if isinstance(made, Program):
        report = made.program.report
        return Graph(size, tuple(report.backend.split(", ")), str(made.program.explain()))
    plain = isinstance(made, torch.fx.GraphModule)
    return Graph(size, ("torch",) if plain else ("inductor",), "")


def _operators(graph: torch.fx.GraphModule) -> int:
    return sum(node.op.startswith("call") for node in graph.graph.nodes)


def _differs(module: torch.nn.Module, compiled: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """Return how the results differ from the module's results, or an empty string if they don't."""
    wanted = tree_leaves(module(*_copied(args), **_copied(kwargs)))
    got = tree_leaves(compiled(*_copied(args), **_copied(kwargs)))
    if len(wanted) != len(got):
        return f"{len(got)} results, where the original gives {len(wanted)}"
    for n, (mine, its) in enumerate(zip(got, wanted, strict=True)):
        if not isinstance(its, torch.Tensor):
            continue
        if (mine.shape, mine.dtype) != (its.shape, its.dtype):
            return f"result {n} has another type"
        exact = not its.is_floating_point() and not its.is_complex()
        if not torch.equal(mine, its) if exact else not largest_error(mine, its) <= NEAR:
            return f"result {n} differs"
    return ""


def _slower(
    module: torch.nn.Module, compiled: Callable[..., Any], args: Any, kwargs: Any, report: Report
) -> str:
    """Return why the original is faster than the joined graphs, or an empty string if it isn't."""
    found = race(lambda: module(*args, **kwargs), lambda: compiled(*args, **kwargs))
    report.timed(found.before, found.after, kept=not found.won)
    before, after = found.before.median_s * 1e3, found.after.median_s * 1e3
    return "" if found.won else f"they take {after:.3f} ms, and the original {before:.3f} ms"
