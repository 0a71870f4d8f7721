"""Other busy processes are noticed; this process and the processes that it names aren't others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from eqsynth.extract.disturbance import Usage, is_quiet, usable_cpus

CPUS = len(usable_cpus())


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Processes that use a processor each as soon as the block is entered."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        for process in processes:
            while used_s(process.pid) < 0.1:
                time.sleep(0.01)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def used_s(pid: int) -> float:
    return psutil.Process(pid).cpu_times().user


@pytest.mark.parametrize(
    ("others_s", "threads", "expected"),
    [(0.0, CPUS, False), (0.4, CPUS, False), (0.7, CPUS, True), (2.4, CPUS - 1, False),
     (2.7, CPUS - 1, True), (0.4, CPUS + 1, False), (0.7, CPUS + 1, True)],
)  # fmt: skip
def test_a_processor_for_each_thread_is_quiet(
    others_s: float, threads: int, expected: bool
) -> None:
    """Within two seconds: others may use a quarter of one processor, and all of those left over."""
    before, own_s = Usage(5.0, 100.0, 40.0), 0.7
    after = Usage(7.0, 100.0 + own_s + others_s, 40.0 + own_s)
    assert after.disturbed(before, threads) is expected


def test_a_tick_is_no_disturbance() -> None:
    assert not Usage(0.01, 0.02, 0.0).disturbed(Usage(0.0, 0.0, 0.0), CPUS)


def test_usable_processors_are_busy_with_whatever_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seconds of guests are among those of users, and waiting for a disk is idle. A system
    that doesn't count interrupts says nothing of them."""
    names = "user nice system idle iowait irq softirq steal guest guest_nice".split()
    linux, short = namedtuple("linux", names), namedtuple("short", names[:4])  # type: ignore[misc]
    cpus = [linux(*(2**n for n in range(10))), linux(*[5000] * 10), short(1000, 2000, 4000, 9000)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cpus)
    monkeypatch.setattr("eqsynth.extract.disturbance.usable_cpus", lambda: [0, 2, 3])
    assert Usage.now().busy_s == 1 + 2 + 4 + 32 + 64 + 128 + 7000


def test_busy_processes_disturb() -> None:
    with busy(CPUS):
        assert not is_quiet(CPUS)


def test_seconds_of_named_processes_are_own() -> None:
    with busy(1) as (pid,):
        before, start_s = (Usage.now(), Usage.now([pid])), used_s(pid)
        while used_s(pid) < start_s + 0.2:
            time.sleep(0.01)
        after = Usage.now(), Usage.now([pid])
    alone_s, both_s = (b.own_s - a.own_s for a, b in zip(before, after, strict=True))
    assert both_s > alone_s + 0.1
    assert after[0].busy_s - before[0].busy_s > 0.1
    # The process has ended, and its seconds are those of a child.
    ended = Usage.now([pid])
    assert ended.own_s > after[0].own_s + 0.2
    assert ended.own_s == pytest.approx(sum(os.times()[:4]), abs=0.05)
