"""The search of one optimization: how its time is divided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.timing import Ready, Timing
from eqsynth.searching import Search
from tests.extract.test_cost import TARGET, kernel_of, relu


@dataclass
class Engine:
    """What is asked of an engine before it compiles anything."""

    slow: bool


LATE, QUICK, REFUSED = (kernel_of(relu(n)) for n in (2, 3, 4))
NOW = 1000.0


@pytest.mark.parametrize(
    ("first", "slow", "ready", "known", "builds_s", "reserved_s"),
    [
        # An engine that wasn't ready in time, alone and beside one that was.
        ([LATE], True, {}, [], [], 0.0),
        ([LATE, QUICK], True, {QUICK: Ready(8.0, 1e-3)}, [], [8.0], 24.0),
        # An engine that refuses the whole program may run parts of it.
        ([REFUSED], True, {REFUSED: Ready(0.1, float("inf"))}, [], [0.1], 10.0),
        ([QUICK], True, {}, [QUICK], [0.0], 10.0),  # its time is known from an earlier search
        # Engines that weren't asked: one that compiles fast may be ready with a part.
        ([], False, {}, [], [0.0], 10.0),
        ([], True, {}, [], [], 0.0),
    ],
)
def test_only_engines_that_were_ready_with_the_original_are_left_time(
    first: Sequence[Kernel], slow: bool, ready: Mapping[Kernel, Ready], known: Sequence[Kernel],
    builds_s: Sequence[float], reserved_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(time, "monotonic", lambda: NOW)

    class Prepared:
        """A measurer that has prepared the kernels."""

        def ready(self, _until: float) -> Mapping[Kernel, Ready]:
            return ready

        def __call__(self, kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing]:
            return {kernel: Timing(1e-3, 1e-3, 1e-3, 3) for kernel in kernels}

    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    costs.record({kernel: Timing(1e-3, 1e-3, 1e-3, 3) for kernel in known})
    parts = SimpleNamespace()
    search = Search(*cast("tuple[Any, ...]", (parts,) * 6), cast("Any", Prepared()), NOW + 100.0,
                    cast("Any", None), cast("Any", None), first=first)  # fmt: skip
    engines = cast("Sequence[Backend]", [Engine(slow)] * max(1, len(first)))
    rival = search._rival(engines, costs)
    assert search.builds_s == pytest.approx(builds_s)
    assert rival.until == pytest.approx(NOW + 100.0 - reserved_s)
    quick = any(k in known or ready.get(k, Ready(0.0, 1.0)).call_s < 1 for k in first)
    assert rival.took_s == (1e-3 if quick else float("inf"))
