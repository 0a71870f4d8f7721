"""How the time for saturation is divided among the segments of a program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eqsynth import segmented
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import unsaturated
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


def terms(roots: Sequence[Tensor]) -> int:
    return sum(1 for _term in topological(roots))


def test_each_segment_has_time_by_its_number_of_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment leaves what it doesn't need to those before it, and one that is kept needs none."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    asked: list[tuple[int, float]] = []
    stops: dict[int, str] = {}

    def saturate(
        worker: object, roots: Sequence[Tensor], *_: Any, limits: Any, **__: Any
    ) -> EGraph:
        asked.append((terms(roots), limits.deadline_s))
        return unsaturated(roots, stops.get(terms(roots), "saturated"))

    monkeypatch.setattr(segmented, "saturate_in_worker", saturate)
    program = capture(Uneven().eval(), (torch.ones(2, 4),)).program
    rules = rules_of((), "real", where="test")
    settings = Settings(CPU, (), "flops", LIMIT_S, 1000, 1 << 30, "real", False, True, ())

    def given(limit_s: float = LIMIT_S) -> list[tuple[int, float]]:
        asked.clear()
        with Progress(False) as bar:
            end = time.monotonic() + limit_s
            Saturation(program, settings, rules, bar, end, lambda _segments: None).run()
        return list(asked)

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
