"""Modules that torch captures as several graphs: each is optimized, and Python joins them."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import eqsynth
from eqsynth import by_graphs
from eqsynth.compile_options import Asked
from eqsynth.errors import LoweringError
from eqsynth.lower.engines import bounded
from eqsynth.lower.graphs import Graphs


class Branching(torch.nn.Module):
    """What it computes depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)) * 2
        if h.max() > 1:
            h = h / h.max()
        return self.second(torch.relu(h)).softmax(-1)


X = torch.linspace(-3, 3, 40).reshape(5, 8)


def _optimized(module: torch.nn.Module, **options: Any) -> eqsynth.CompiledProgram:
    settings = {"time_limit_s": 6.0, "engines": (), "progress": False, **options}
    return eqsynth.optimize(module, (X,), **settings)


@pytest.mark.slow
def test_each_graph_is_optimized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    module = Branching().eval()
    program = _optimized(module)
    assert isinstance(program.original, Graphs) and program.report.stop == "graphs"
    assert len(program.report.graphs) >= 2 and not program.report.reason
    told = str(program.explain())
    assert all(graph.title in told for graph in program.report.graphs)
    with torch.no_grad():
        # Both branches, and a shape that nothing was searched for.
        for x in (X, X * 1e-3, X[:2]):
            torch.testing.assert_close(program(x), module(x))
        module.second.bias.add_(1.0)
        torch.testing.assert_close(program(X), module(X))
    with pytest.raises(LoweringError) as caught:
        eqsynth.save(program, tmp_path / "graphs.eqs")
    assert "Branching" in (caught.value.got or "")
    torch.testing.assert_close(copy.deepcopy(program)(X), module(X))


def _as_they_are(graph: torch.fx.GraphModule, *_: Any, **__: Any) -> Any:
    return graph


def _off(graph: torch.fx.GraphModule, *_: Any, **__: Any) -> Any:
    return lambda *inputs: [x + 0.01 if x.is_floating_point() else x for x in graph(*inputs)]


@pytest.mark.rotating
@pytest.mark.parametrize("won", [True, False])
@pytest.mark.parametrize("made", [_as_they_are, _off])
def test_the_original_stays_where_the_graphs_differ_or_are_slower(
    made: Any, won: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqsynth.race.Race.won", won)
    monkeypatch.setattr(by_graphs, "eqsynth", made)
    module = Branching().eval()
    program = _optimized(module)
    taken = won and made is _as_they_are
    assert isinstance(program.original, Graphs) is taken
    assert taken or (program.original is module and program.report.stop == "capture")
    assert taken or "by graphs: " in program.report.reason
    assert ("differs" in program.report.reason) is (made is _off)
    torch.testing.assert_close(program(X), module(X).detach())


def test_time_goes_to_the_heaviest_graph_first_and_what_gets_none_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    now, seen = [0.0], list[tuple[int, float, float]]()

    def made(graph: torch.fx.GraphModule, *_: Any, options: Any, **__: Any) -> Any:
        limit_s = Asked.of(options, None).options["time_limit_s"]  # all options are known
        seen.append((by_graphs._operators(graph), limit_s, bounded._end.get() - now[0]))
        now[0] += 3600.0  # and what comes after it is late
        return lambda *inputs: graph(*inputs)

    monkeypatch.setattr(by_graphs, "eqsynth", made)
    monkeypatch.setattr(by_graphs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    module = Branching().eval()
    program = _optimized(module)
    told = program.report.graphs
    ((size, limit_s, left_s),) = seen
    assert size == max(graph.operators for graph in told) and 0 < limit_s < left_s <= 6.0
    assert sorted(graph.backends for graph in told) == [
        ("inductor",), *[("torch",)] * (len(told) - 1)
    ]
    torch.testing.assert_close(program(X), module(X).detach())


@pytest.mark.parametrize("options", [{"objective": "flops"}, {"time_limit_s": 1.0}])
def test_nothing_is_compiled_where_it_is_of_no_use(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("it was compiled"))
    module = Branching().eval()
    program = _optimized(module, **options)
    assert program.original is module and program.report.stop == "capture"
