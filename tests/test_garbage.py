"""Python looks for cyclic garbage seldom while what is made is kept, and as before otherwise."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import eqsynth
from eqsynth import checking, lowered, pipeline, running, segmented
from eqsynth.garbage import NEW_OBJECTS, collecting_seldom

OWN = 701, 11, 12


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*OWN)
    yield
    gc.set_threshold(*before)


def test_blocks_overlap_in_several_threads() -> None:
    """The one that began first ends first: what the other has found when it began isn't Python's
    own threshold, and must not stay."""
    inside, first_is_over = threading.Event(), threading.Event()
    found = []

    def second() -> None:
        with collecting_seldom():
            inside.set()
            first_is_over.wait()
            found.append(gc.get_threshold())

    thread = threading.Thread(target=second)
    with collecting_seldom():
        thread.start()
        inside.wait()
    first_is_over.set()
    thread.join()
    assert found == [(NEW_OBJECTS, *OWN[1:])]
    assert gc.get_threshold() == OWN


@pytest.mark.parametrize("own", [(0, 10, 10), (NEW_OBJECTS + 1, 10, 10)])
def test_who_collects_still_less_is_left_alone(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with collecting_seldom():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


@pytest.mark.rotating
def test_stages_collect_seldom_and_calls_of_the_program_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's program may leave cycles that hold large tensors."""
    found: dict[str, tuple[int, int, int]] = {}

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            found[name] = gc.get_threshold()
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    seldom = ((pipeline, "capture"), (segmented, "stitch"), (lowered, "assemble"))
    usual = ((pipeline, "check_steady"), (checking, "check_equivalence"), (running, "race"))
    for module, name in (*seldom, *usual):
        watch(module, name)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    eqsynth.optimize(net, (torch.ones(2, 8),), time_limit_s=60, engines=(), progress=False)
    assert found == {
        **{name: (NEW_OBJECTS, *OWN[1:]) for _, name in seldom},
        **{name: OWN for _, name in usual},
    }
    assert gc.get_threshold() == OWN
