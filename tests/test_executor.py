"""Tasks in worker processes. The tasks are functions of the standard library and of eqsynth."""

from __future__ import annotations

import _thread
import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import eqsynth
from eqsynth import executor
from eqsynth.errors import EqsynthError, RuleError
from eqsynth.executor import (
    Latest,
    Worker,
    borrow,
    borrowed,
    end_idle_workers,
    give_back,
)
from eqsynth.rules import load_text
from eqsynth.serving import WorkerError


def test_a_result_comes_back() -> None:
    with Worker() as worker:
        assert worker.run(pow, 2, 100) == 2**100
        assert worker.run(os.getpid) == worker.pid != os.getpid()


def test_many_tasks_in_a_row_share_one_process() -> None:
    with Worker() as worker:
        pids = {worker.run(os.getpid) for _ in range(200)}
        assert [worker.run(divmod, n, 7) for n in range(200)] == [divmod(n, 7) for n in range(200)]
    assert pids == {worker.pid}


HANDS_OVER = """
import os, time
from eqsynth.serving import hand_over
for n in range(5):
    hand_over([n] * 100_000)
"""


@pytest.mark.parametrize(
    ("ends", "reason"), [("os._exit(3)", "killed"), ("time.sleep(600)", "deadline")]
)
def test_what_a_task_has_handed_over_outlives_it(ends: str, reason: str) -> None:
    latest, timeout = Latest(), 0.2
    with Worker() as worker:
        while latest.value() != [4] * 100_000:  # a slow machine gets more time
            timeout *= 2
            with pytest.raises(WorkerError) as caught:
                limit = timeout if reason == "deadline" else None
                worker.run(exec, HANDS_OVER + ends, {}, timeout_s=limit, latest=latest)
            assert caught.value.reason == reason
        # The next task has nothing of it.
        after = Latest()
        assert worker.run(pow, 2, 10, latest=after) == 2**10 and after.value() is None


def test_what_is_handed_over_comes_before_the_result_and_not_in_its_place() -> None:
    latest, both = Latest(), "__import__('eqsynth.serving').serving.hand_over(1) or 2"
    with Worker() as worker:
        assert worker.run(eval, both, latest=latest) == 2 and latest.value() == 1
        # Who doesn't ask for it doesn't meet it.
        assert worker.run(eval, both) == 2


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


class Endless:
    """A task without end, and a call as soon as a worker is in the middle of it: the worker writes
    to a pipe that nobody reads."""

    def __init__(self, folder: Path, then: Callable[[], object]) -> None:
        self._pipe, self._then, self.task = folder / "pipe", then, Path.write_bytes
        self.args = (self._pipe, bytes(1 << 20))
        os.mkfifo(self._pipe)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._wait)

    def __enter__(self) -> Endless:
        self._thread.start()
        return self

    def _wait(self) -> None:
        with open(self._pipe, "rb"):  # opens when the worker has opened the other end
            if not self._end.is_set():
                self._then()
            self._end.wait()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        os.close(os.open(self._pipe, os.O_RDWR))  # should no worker have come
        self._thread.join()
        self._pipe.unlink()


def test_a_worker_that_is_killed_in_the_middle_is_an_error(tmp_path: Path) -> None:
    with Worker() as worker:
        pid = worker.run(os.getpid)
        with Endless(tmp_path, lambda: os.kill(pid, signal.SIGKILL)) as endless:
            with pytest.raises(WorkerError) as caught:
                worker.run(endless.task, *endless.args)
        assert caught.value.reason == "killed" and caught.value.status == -signal.SIGKILL
        assert "SIGKILL" in caught.value.got


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
            worker.run(time.sleep, 600, timeout_s=0.0)
        assert worker.run(pow, 2, 3) == 8


def test_a_worker_that_dies_between_tasks_costs_nothing() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        _kill(worker.pid)
        assert worker.run(pow, 2, 3) == 8


def test_a_task_past_its_deadline_is_killed() -> None:
    with Worker() as worker:
        worker.run(pow, 2, 3)
        pid = worker.pid
        with pytest.raises(WorkerError) as caught:
            worker.run(time.sleep, 600, timeout_s=0.3)
        assert caught.value.reason == "deadline"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_late_answer_does_not_meet_the_next_task(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Worker() as worker:
        worker.run(pow, 2, 3)
        with open(os.open(tmp_path / "pipe", os.O_RDWR), "w") as pipe:
            with pytest.raises(WorkerError):
                worker.run(Path.read_text, tmp_path / "pipe", timeout_s=0.0)
            pipe.write("late")
        assert worker.run(pow, 2, 3) == 8


@pytest.mark.rotating(parts=4)
def test_a_memory_limit_is_an_error_and_the_worker_goes_on() -> None:
    with Worker(memory_limit=512 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(bytearray, 1 << 30)
        assert caught.value.reason == "memory"
        assert worker.run(pow, 2, 3) == 8
    with Worker() as worker:
        worker.run(exec, "bytearray(600 << 20)")


def too_large() -> type:
    """A task whose answer takes more memory to write down than the task has."""

    class Large:
        def __reduce__(self) -> tuple[object, ...]:
            raise MemoryError

        def __str__(self) -> str:
            raise MemoryError

    raise RuntimeError(Large())


def test_a_worker_that_cannot_even_say_so_has_reached_its_limit() -> None:
    with Worker(memory_limit=512 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(too_large)
        assert (caught.value.reason, caught.value.got) == ("memory", "")


def test_a_library_that_does_not_fit_into_the_limit_is_the_limits_error() -> None:
    with Worker(memory_limit=32 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(importlib.import_module, "numpy")
        # How the worker ended, if it did.
        assert (caught.value.reason, caught.value.got) == ("memory", "")
    with Worker(memory_limit=512 << 20) as worker, pytest.raises(ModuleNotFoundError):
        worker.run(importlib.import_module, "no_module_of_this_name")


def out_of_memory() -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "a folder")


def test_a_folder_that_cannot_be_read_for_lack_of_memory_is_the_limits_error() -> None:
    with Worker(memory_limit=512 << 20) as worker:
        with pytest.raises(WorkerError) as caught:
            worker.run(out_of_memory)
        assert caught.value.reason == "memory"
        with pytest.raises(FileNotFoundError):
            worker.run(os.listdir, "/no/such/folder")


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
    _wait_until(lambda: not _is_running(pid))


def _kill(pid: int) -> None:
    """Ends a process; it is dead when this returns, and still unknown to who started it."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_worker_error_is_an_error_of_eqsynth() -> None:
    assert issubclass(WorkerError, EqsynthError)


# ---- workers that are kept ----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def workers_of_its_own(no_idle_workers: None) -> None:
    """Each test begins without idle workers."""


def _borrowed_pid(memory_limit: int | None = None, threads: int | None = None) -> int:
    with borrowed(memory_limit, threads) as worker:
        return worker.run(os.getpid)


def test_a_worker_is_kept_with_what_it_has_imported() -> None:
    with borrowed() as worker:
        first = worker.run(os.getpid)
        worker.run(exec, "import sys; sys.kept = 1")
    with borrowed() as worker:
        assert worker.run(os.getpid) == first
        assert worker.run(eval, "__import__('sys').kept") == 1


def test_who_borrows_at_the_same_time_gets_another_worker() -> None:
    with borrowed() as one, borrowed() as other:
        pids = {one.run(os.getpid), other.run(os.getpid)}
        assert len(pids) == 2
    assert {_borrowed_pid(), _borrowed_pid()} <= pids


@pytest.mark.rotating
def test_answers_of_threads_do_not_cross() -> None:
    def powers(base: int) -> tuple[list[int], set[int]]:
        found, pids = [], set()
        for n in range(40):
            with borrowed() as worker:
                found.append(worker.run(pow, base, n))
                pids.add(worker.pid)
        return found, pids

    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(powers, range(2, 8)))
    for base, (found, _) in enumerate(results, 2):
        assert found == [base**n for n in range(40)]
    assert len(set.union(*(pids for _, pids in results))) <= 3  # as many as were busy at a time


@pytest.mark.rotating
@pytest.mark.parametrize("change", ["limit", "threads", "environment", "directory", "processors"])
def test_a_worker_that_was_started_otherwise_is_another_one(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = _borrowed_pid()
    before = os.sched_getaffinity(0)
    try:
        if change == "limit":
            assert _borrowed_pid(memory_limit=1 << 30) != first
            assert _borrowed_pid(memory_limit=1 << 30) == _borrowed_pid(memory_limit=1 << 30)
        elif change == "threads":
            assert _borrowed_pid(threads=3) != first
        else:
            if change == "environment":
                monkeypatch.setenv("OMP_SCHEDULE", "static")
            elif change == "directory":
                monkeypatch.chdir(tmp_path)
            else:
                os.sched_setaffinity(0, {min(before)})
                if os.sched_getaffinity(0) == before:
                    pytest.skip("there is one processor only")
            with borrowed() as worker:
                assert worker.run(os.getpid) != first
                assert worker.run(os.getenv, "OMP_SCHEDULE") == os.environ.get("OMP_SCHEDULE")
                assert worker.run(os.getcwd) == os.getcwd()
                assert worker.run(os.sched_getaffinity, 0) == os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)
    monkeypatch.undo()
    assert _borrowed_pid() == first


def test_a_kept_worker_sees_the_cache_directory_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("/one", "/two", None, "/three"):
        if value is None:
            monkeypatch.delenv("EQSYNTH_CACHE")
        else:
            monkeypatch.setenv("EQSYNTH_CACHE", value)
        with borrowed() as worker:
            assert worker.run(os.getenv, "EQSYNTH_CACHE") == value
            pid = worker.pid
    assert _borrowed_pid() == pid


@pytest.mark.parametrize("name", ["SHLVL", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"])
def test_a_variable_without_effect_costs_no_worker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor stores an address in this process there when it first compiles a kernel."""
    monkeypatch.delenv(name, raising=False)
    first = _borrowed_pid()
    monkeypatch.setenv(name, "7")
    assert _borrowed_pid() == first
    with borrowed() as one, borrowed() as new:
        assert one.pid == first and new.run(os.getenv, name) is None


def test_the_directory_that_torch_has_chosen_costs_no_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with borrowed() as before:
        before.run(os.getpid)
    assert cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"]  # torch has set it
    with borrowed() as after:
        assert after is before
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with borrowed() as other:
        assert other is not before
        assert other.run(os.getenv, "TORCHINDUCTOR_CACHE_DIR") == str(tmp_path)


def test_workers_that_died_are_not_handed_out() -> None:
    with borrowed() as worker:  # while it is idle
        worker.run(pow, 2, 3)
    _kill(worker.pid)
    first = worker.pid
    with borrowed() as worker:  # while it is borrowed
        assert worker.pid != first and worker.run(os.getpid) == worker.pid
        _kill(worker.pid)
        second = worker.pid
    with borrowed() as worker:
        assert worker.run(os.getpid) not in (first, second)
        with pytest.raises(WorkerError):  # in a task
            worker.run(os.abort)
        third = worker.pid
    assert _borrowed_pid() not in (first, second, third)


def test_a_worker_that_was_late_is_not_handed_out() -> None:
    with borrowed() as worker:
        late = worker.run(os.getpid)
        with pytest.raises(WorkerError) as caught:
            worker.run(time.sleep, 600, timeout_s=0.0)
        assert caught.value.reason == "deadline"
    with borrowed() as worker:
        assert worker.run(os.getpid) != late
        assert worker.run(pow, 2, 3) == 8
    assert not _is_running(late)


def test_a_worker_that_was_interrupted_is_not_handed_out(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with borrowed() as worker:
            interrupted = worker.run(os.getpid)
            with Endless(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT)) as endless:
                with pytest.raises(KeyboardInterrupt):
                    worker.run(endless.task, *endless.args)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not _is_running(interrupted)
    with borrowed() as worker:
        assert worker.run(os.getpid) != interrupted
        assert worker.run(pow, 2, 3) == 8


def test_an_interrupt_of_the_terminal_is_not_the_workers() -> None:
    """Not while it works, not while it waits, and not while it starts."""
    worker = borrow()
    os.kill(worker.pid, signal.SIGINT)
    pid = worker.run(os.getpid)
    os.kill(pid, signal.SIGINT)
    give_back(worker)
    os.kill(pid, signal.SIGINT)
    assert _borrowed_pid() == pid


def test_a_worker_that_holds_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_RESIDENT_BYTES", 80 << 20)
    with borrowed() as worker:
        first = worker.run(os.getpid)
        worker.run(exec, "b'x' * (100 << 20)")  # returned to the system
    with borrowed() as worker:
        assert worker.run(os.getpid) == first
        worker.run(exec, "import sys; sys.kept = b'x' * (100 << 20)")
    assert _borrowed_pid() != first
    assert not _is_running(first)


@pytest.mark.rotating
def test_half_of_the_address_space_is_free_for_the_next_task() -> None:
    with borrowed(1 << 30) as worker:
        first = worker.run(os.getpid)
        worker.run(exec, "import sys; sys.kept = bytearray(300 << 20)")
    with borrowed(1 << 30) as worker:
        assert worker.run(os.getpid) == first
        worker.run(exec, "import sys; sys.more = bytearray(300 << 20)")
    assert _borrowed_pid(1 << 30) != first


@pytest.mark.rotating
def test_what_earlier_tasks_hold_is_not_counted_against_a_task() -> None:
    with borrowed(memory_limit=1 << 30) as worker:
        worker.run(exec, "import sys; sys.kept = bytearray(600 << 20)")
        crowded = worker.pid
        worker.run(exec, "bytearray(600 << 20)")
        assert worker.pid != crowded
        crowded = worker.pid
        with pytest.raises(WorkerError) as caught:  # it doesn't fit into a new one either
            worker.run(exec, "bytearray(1 << 30)")
        assert caught.value.reason == "memory" and worker.pid != crowded


def test_a_crash_is_tried_once() -> None:
    with borrowed(memory_limit=1 << 30) as worker:
        worker.run(pow, 2, 3)
        pid = worker.pid
        with pytest.raises(WorkerError) as caught:
            worker.run(os._exit, 3)
        assert (caught.value.status, worker.pid) == (3, pid)


def test_only_a_few_idle_workers_are_kept() -> None:
    workers = [borrow() for _ in range(executor.MAX_IDLE + 2)]
    pids = [worker.run(os.getpid) for worker in workers]
    for worker in workers:
        give_back(worker)
    assert [pid for pid in pids if _is_running(pid)] == pids[2:]
    end_idle_workers()
    assert not any(map(_is_running, pids))


EXIT = """
from eqsynth.executor import borrow, borrowed, give_back
workers = [borrow(), borrow(1 << 30), borrow(threads=1)]
print(*(worker.pid for worker in workers), flush=True)
for worker in workers[:2]:
    worker.run(pow, 2, 3)
    give_back(worker)
{end}
"""


@pytest.mark.rotating
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0", "input()"])
def test_the_programs_exit_ends_its_workers(end: str) -> None:
    """Those that are idle, and one that is never given back; also if the program is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", EXIT.format(end=end)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        pids = list(map(int, program.stdout.readline().split()))
        if end == "input()":
            program.kill()
        elif program.wait() is not None:
            assert not any(map(_is_running, pids[:2]))
    assert len(pids) == 3
    _wait_until(lambda: not any(map(_is_running, pids)))


def _wait_until(holds: Callable[[], bool]) -> None:
    """Waits as long as it takes: what never comes is a hang."""
    while not holds():
        time.sleep(0.05)


def test_a_fork_has_workers_of_its_own() -> None:
    _borrowed_pid()
    ours = borrow()
    pids = {ours.run(os.getpid), _borrowed_pid()}
    lock = executor._idle._lock
    lock.acquire()  # as by another thread that borrows, which the child doesn't have
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            theirs = {_borrowed_pid(), ours.run(os.getpid)}
            right = ours.run(pow, 2, 5) == 32 and len(theirs) == 2 and not theirs & pids
            end_idle_workers()
            ours.close()
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {ours.run(os.getpid), _borrowed_pid()} == pids
    ours.close()


STALE = """
import os, pathlib
from eqsynth import executor
def pid():
    with executor.borrowed() as worker:
        return worker.run(os.getpid)
first = pid()
same = pid() == first
changed = pathlib.Path(executor.__file__).with_name("added.py")
changed.write_text("x = 1")
print(same, pid() != first)
"""


def test_a_worker_with_stale_code_is_replaced(tmp_path: Path) -> None:
    """In a copy of the package, which is edited while a program runs."""
    # Without bytecode: other processes of the run write it meanwhile, in files that they rename.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(eqsynth.__file__).parent, tmp_path / "eqsynth", ignore=ignored)
    run = subprocess.run(
        [sys.executable, "-c", STALE], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["True", "True"]


def test_a_late_task_ends_with_the_processes_that_it_has_started(tmp_path: Path) -> None:
    """A compiler that a library waits for would go on for minutes, for nobody."""
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\nsh -c 'echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new "
                      f"{tmp_path}/pid; sleep 600'\n")  # fmt: skip
    script.chmod(0o755)
    timeout_s = 0.5
    with Worker() as worker:
        while not (tmp_path / "pid").exists():  # a slow machine gets more time
            timeout_s *= 2
            with pytest.raises(WorkerError):
                worker.run(subprocess.run, [str(script)], timeout_s=timeout_s)
        pid = int((tmp_path / "pid").read_text())
        # It was told to end; until the system has done so, a minute is more than enough.
        end = time.monotonic() + 60
        while _is_running(pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert not _is_running(pid)
