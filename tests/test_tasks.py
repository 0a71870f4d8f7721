"""Independent tasks: in processes of this machine, and on a Ray cluster of this machine alone."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.generate import enumerate_graphs, worlds_of
from eqsynth.serving import WorkerError
from eqsynth.tasks import Executor, LocalExecutor, executor

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=[
    pytest.mark.slow, pytest.mark.skipif(not HAS_RAY, reason="ray isn't installed")])])  # fmt: skip
def tasks(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with executor(request.param, 2) as found:
        yield found


def test_results_are_those_of_their_tasks(tasks: Executor) -> None:
    futures = [tasks.submit(pow, 2, n) for n in range(6)]
    assert [future.result(60) for future in futures] == [1, 2, 4, 8, 16, 32]
    assert tasks.submit(os.getpid).result(60) != os.getpid()


def test_what_a_task_raises_is_raised(tasks: Executor) -> None:
    with pytest.raises(ZeroDivisionError):
        tasks.submit(divmod, 1, 0).result(60)
    with pytest.raises(WorkerError) as died:
        tasks.submit(os._exit, 3).result(60)
    assert died.value.reason == "killed"
    with pytest.raises(WorkerError) as late:
        tasks.submit(pow, 3, 1 << 40, timeout_s=0.2).result(60)
    assert late.value.reason == "deadline"
    assert tasks.submit(pow, 2, 3).result(60) == 8


def test_an_error_ends_the_tasks_that_run() -> None:
    """Nobody waits for them after Ctrl-C; those that wait never start."""
    with pytest.raises(KeyboardInterrupt), LocalExecutor(1) as own:
        runs, waits = (own.submit(pow, 3, 1 << 40, timeout_s=30.0) for _ in range(2))
        while not runs.running():
            time.sleep(0.01)
        raise KeyboardInterrupt
    ended = runs.exception()
    assert isinstance(ended, CancelledError) or getattr(ended, "reason", "") == "killed"
    assert waits.cancelled()


def test_graphs_are_the_same_wherever_they_are_evaluated(
    tasks: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    matrices = worlds_of(1)[0]
    found = []
    for own in (tasks, LocalExecutor()):
        monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path_factory.mktemp("generated")))
        found.append(enumerate_graphs(matrices, 1, executor=own))
        assert found[-1].from_cache == 0
    assert found[0].equal == found[1].equal and found[0].table.hashes == found[1].table.hashes


def test_another_name_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError) as refused:
        executor("slurm")
    assert refused.value.expected == "local or ray"


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_the_error_says_what_to_install() -> None:
    with pytest.raises(UnsupportedOperatorError) as refused:
        executor("ray")
    assert "eqsynth[cluster]" in (refused.value.hint or "")
