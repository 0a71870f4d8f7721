"""Tasks in worker processes. The tasks are functions of the standard library and of eqsynth."""

from __future__ import annotations

import _thread
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eqsynth.errors import EqsynthError, RuleError
from eqsynth.executor import Worker, WorkerError
from eqsynth.rules import load_text


def test_a_result_comes_back() -> None:
    with Worker() as worker:
        assert worker.run(pow, 2, 100) == 2**100
        assert worker.run(os.getpid) == worker.pid != os.getpid()


def test_many_tasks_in_a_row_share_one_process() -> None:
    with Worker() as worker:
        pids = {worker.run(os.getpid) for _ in range(200)}
        assert [worker.run(divmod, n, 7) for n in range(200)] == [divmod(n, 7) for n in range(200)]
    assert pids == {worker.pid}


def test_large_arguments_and_results_cross_whole() -> None:
    data = os.urandom(3 << 20)
    with Worker() as worker:
        assert worker.run(bytes, data) == data


def test_an_exception_comes_back_with_its_fields() -> None:
    with Worker() as worker:
        with pytest.raises(RuleError) as caught:
            worker.run(load_text, ";; Status validated\n(rewrite\n", "broken.egg")
        with pytest.raises(RuleError) as here:
            load_text(";; Status validated\n(rewrite\n", "broken.egg")
        assert (caught.value.file, caught.value.line) == ("broken.egg", here.value.line)
        assert (caught.value.what, caught.value.got) == (here.value.what, here.value.got)
        assert any("load_text" in note for note in caught.value.__notes__)
        with pytest.raises(ZeroDivisionError):
            worker.run(divmod, 1, 0)
        assert worker.run(pow, 2, 3) == 8


def test_a_result_that_cannot_be_pickled_is_an_error() -> None:
    with Worker() as worker:
        with pytest.raises(TypeError):
            worker.run(_thread.allocate_lock)
        assert worker.run(pow, 2, 3) == 8


def test_a_task_that_the_worker_cannot_import_is_an_error() -> None:
    def here_only() -> None: ...

    with Worker() as worker:
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            worker.run(here_only)
        assert worker.run(pow, 2, 3) == 8


def _kill_when_busy(pid: int) -> threading.Thread:
    def kill() -> None:
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_worker_that_is_killed_in_the_middle_is_an_error() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        thread = _kill_when_busy(worker.pid)
        begin = time.monotonic()
        with pytest.raises(WorkerError) as caught:
            worker.run(time.sleep, 60)
        thread.join()
        assert caught.value.reason == "killed"
        assert "SIGKILL" in caught.value.got
        assert time.monotonic() - begin < 30  # it did not wait for the task


def test_a_worker_that_exits_tells_its_status() -> None:
    with Worker() as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(os._exit, 3)
    assert caught.value.reason == "killed"
    assert caught.value.got == "exit status 3"


def test_after_a_death_the_next_task_runs_in_a_new_process() -> None:
    with Worker() as worker:
        first = worker.pid
        with pytest.raises(WorkerError):
            worker.run(os.abort)
        assert worker.run(os.getpid) == worker.pid != first
        with pytest.raises(WorkerError):
            worker.run(time.sleep, 60, timeout_s=0.3)
        assert worker.run(pow, 2, 3) == 8


def test_a_worker_that_dies_between_tasks_costs_nothing() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        os.kill(worker.pid, signal.SIGKILL)
        time.sleep(0.3)
        assert worker.run(pow, 2, 3) == 8


def test_a_task_past_its_deadline_is_killed() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        pid = worker.pid
        with pytest.raises(WorkerError) as caught:
            worker.run(time.sleep, 60, timeout_s=0.3)
        assert caught.value.reason == "deadline"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_late_answer_does_not_meet_the_next_task() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        with pytest.raises(WorkerError):
            worker.run(time.sleep, 0.5, timeout_s=0.1)
        time.sleep(0.6)
        assert worker.run(pow, 2, 3) == 8


def test_a_memory_limit_is_an_error_and_the_worker_goes_on() -> None:
    with Worker(memory_limit=512 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(bytearray, 1 << 30)
        assert caught.value.reason == "memory"
        assert worker.run(pow, 2, 3) == 8
    with Worker() as worker:
        assert len(worker.run(bytearray, 600 << 20)) == 600 << 20


def test_a_library_that_does_not_fit_into_the_limit_is_the_limits_error() -> None:
    with Worker(memory_limit=32 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(importlib.import_module, "numpy")
        assert caught.value.reason == "memory"
    with Worker(memory_limit=512 << 20) as worker, pytest.raises(ModuleNotFoundError):
        worker.run(importlib.import_module, "no_module_of_this_name")


def test_what_a_task_prints_does_not_get_between_the_answers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Worker() as worker:
        assert worker.run(print, "from Python") is None
        assert worker.run(os.system, "echo from a library") == 0
        assert worker.run(os.write, 1, b"\x00" * 64) == 64
        assert worker.run(pow, 2, 3) == 8
    out, err = capfd.readouterr()
    assert out == ""
    assert "from a library" in err


def test_threads_are_those_that_were_asked_for() -> None:
    with Worker(threads=3) as worker:
        assert worker.run(os.getenv, "OMP_NUM_THREADS") == "3"


def test_closing_ends_the_process() -> None:
    worker = Worker()
    with worker:
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    worker.close()


ORPHAN = """
import time
from pathlib import Path
from eqsynth.executor import Worker
worker = Worker()
worker.run(pow, 2, 3)
print(worker.pid, flush=True)
worker.run(time.sleep, 600)
"""


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


def test_a_busy_worker_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _is_running(pid)
        parent.kill()
    deadline = time.monotonic() + 60
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(pid)


def test_a_worker_error_is_an_error_of_eqsynth() -> None:
    assert issubclass(WorkerError, EqsynthError)
