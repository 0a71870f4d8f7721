"""How segments of a program are given time and workers."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eqsynth import segmented
from eqsynth.egraph import remembered
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import unsaturated
from eqsynth.executor import Worker, end_idle_workers
from eqsynth.extract.target import CPU
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Tensor, topological
from eqsynth.numerics import rules_of
from eqsynth.progress import Progress
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings

LIMIT_S = 1000.0


class Uneven(nn.Module):
    """A short segment, a long one, and a short one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, n + 1) for n in range(4, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x).tanh()
        for layer in self.layers[1:5]:
            x = layer(x)
        return self.layers[5](x.tanh())  # type: ignore[no-any-return]


class First(nn.Module):
    """Two layers, of whose result the first row is used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x[:1]


def terms(roots: Sequence[Tensor]) -> int:
    return sum(1 for _term in topological(roots))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The segments that are saturated, by their terms, and the seconds that each is given. Nothing
    is kept from another test."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    return []


def saturation(module: nn.Module, width: int, limit_s: float, at_once: int) -> Saturation:
    program = capture(module.eval(), (torch.ones(2, width),)).program
    settings = Settings(CPU, (), "flops", LIMIT_S, 1000, 1 << 30, "real", False, True, ())
    rules = rules_of((), "real", where="test")
    end = time.monotonic() + limit_s
    return Saturation(program, settings, rules, Progress(False), end, lambda _segments: at_once)


def test_each_segment_has_time_by_its_number_of_terms(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment leaves what it doesn't need to those before it, and one that is kept needs none."""
    stops: dict[int, str] = {}

    def saturate(
        worker: object, roots: Sequence[Tensor], *_: Any, limits: Any, **__: Any
    ) -> EGraph:
        asked.append((terms(roots), limits.deadline_s))
        return unsaturated(roots, stops.get(terms(roots), "saturated"))

    monkeypatch.setattr(segmented, "saturate_in_worker", saturate)

    def given(limit_s: float = LIMIT_S) -> list[tuple[int, float]]:
        asked.clear()
        saturation(Uneven(), 4, limit_s, 1).run()
        return list(asked)

    program = capture(Uneven().eval(), (torch.ones(2, 4),)).program
    sizes = [terms(segment.roots) for segment in segmented.cut(program)][::-1]
    assert len(set(sizes)) == 3 and max(sizes) > 2 * min(sizes)
    stops[max(sizes)] = "deadline"
    first = given()
    assert [size for size, _ in first] == sizes
    for number, (size, seconds) in enumerate(first):
        # Nothing takes any time here, so all of it is left at each segment.
        assert seconds == pytest.approx(LIMIT_S * size / sum(sizes[number:]), rel=0.05)
    assert given() == [], "the one that was stopped isn't given twice as much time"
    ((again, seconds),) = given(3 * LIMIT_S)
    assert again == max(sizes) and seconds == pytest.approx(3 * LIMIT_S, rel=0.05)


def test_the_time_for_loading_a_worker_is_lost_to_all_segments(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def saturate(_: object, roots: Sequence[Tensor], *__: Any, limits: Any, **___: Any) -> EGraph:
        asked.append((terms(roots), limits.deadline_s))
        return unsaturated(roots, "saturated")

    monkeypatch.setattr(segmented, "saturate_in_worker", saturate)
    end_idle_workers()
    of = saturation(Uneven(), 4, LIMIT_S, 1)
    of.run()
    sizes = [terms(segment.roots) for segment in of.segments][::-1]
    assert [size for size, _ in asked] == sizes
    loading_s = 0.1  # at least
    assert asked[0][1] <= (LIMIT_S - loading_s) * sizes[0] / sum(sizes), "its share of the rest"
    asked.clear()
    shutil.rmtree(remembered.directory())
    end_idle_workers()
    of = saturation(Uneven(), 4, loading_s, 1)
    of.run()
    assert not asked and {graph.stop for graph in of.graphs.values()} == {"deadline"}


def test_as_many_segments_are_saturated_at_a_time_as_there_are_workers(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60.0)

    def saturate(
        worker: Worker, roots: Sequence[Tensor], *_: Any, limits: Any, **__: Any
    ) -> EGraph:
        asked.append((terms(roots), limits.deadline_s))
        if len(asked) <= 2:
            both.wait()  # for the other one
        return unsaturated(roots, "saturated")

    monkeypatch.setattr(segmented, "saturate_in_worker", saturate)
    of = saturation(Uneven(), 4, LIMIT_S, 2)
    of.run()
    sizes = [terms(segment.roots) for segment in of.segments][::-1]
    assert sorted(size for size, _ in asked) == sorted(sizes)
    seconds = dict(asked)
    assert seconds[sizes[0]] == pytest.approx(2 * LIMIT_S * sizes[0] / sum(sizes), rel=0.05)
    assert max(seconds.values()) <= LIMIT_S
    assert of.remembered == 0, "what was begun here didn't come from the cache"


def test_a_segment_that_was_begun_too_early_is_saturated_again_as_a_part(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both layers before the last are begun before it is known that a row of each suffices."""
    found = []
    actual = segmented.saturate_in_worker

    def saturate(worker: Worker, roots: Sequence[Tensor], *args: Any, **kwargs: Any) -> EGraph:
        asked.append((len(roots), 0.0))
        return actual(worker, roots, *args, **kwargs)

    monkeypatch.setattr(segmented, "saturate_in_worker", saturate)
    for at_once in (1, 3):
        shutil.rmtree(remembered.directory(), ignore_errors=True)
        asked.clear()
        of = saturation(First(), 8, LIMIT_S, at_once)
        of.run()
        assert len(of.segments) == 3 and [len(s.roots) for s in of.segments] == [2, 2, 1]
        found.append(({key: graph.classes for key, graph in of.graphs.items()}, sorted(asked)))
    (one, alone), (other, together) = found
    assert one == other, "the same e-graphs, by one worker and by three"
    assert len(alone) == of.distinct < len(together)
