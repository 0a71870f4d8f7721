"""Settings for every test: threads, cache directory, hypothesis profiles, golden files."""

import gc
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.turns import MOST, PARTS, SELDOM, turn_of_now

# Before torch is imported by anything: two threads, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MKL_NUM_THREADS", "2")
# An engine takes seconds to compile a program; tests that are about engines name them.
os.environ.setdefault("EQSYNTH_ENGINES", "")

# Rule files below are material of tests, many of them wrong on purpose; the pytest plugin of
# eqsynth would make each of their rules a test.
collect_ignore_glob = ["*.egg"]

LEAVE_S = 60.0
"""How long a thread may take to give its worker back after the last test of a module. Only a module
with a worker that is never given back takes so long."""

settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files instead of comparing"
    )
    parser.addoption(
        "--part", default="all", metavar="all|now|N",
        help=f"of the tests marked `rotating`: all, or every {PARTS}th from the N-th on "
        f"(every {SELDOM}th or {MOST}th of some)",
    )  # fmt: skip
    parser.addoption(
        "--differential-part", default=None, help="which part of the table of operators is run"
    )
    parser.addoption(
        "--cpu", action="store_true", help="tell the seconds of the processor that each file took"
    )


def pytest_configure(config: pytest.Config) -> None:
    """One cache directory for the whole run, so that the machine is measured once; with xdist one
    for each of its processes, and another that they share. No cyclic garbage is looked for while
    modules are imported and tests are collected."""
    gc.disable()
    if config.option.part == "now":  # here: xdist's processes get the number
        config.option.part = str(turn_of_now() % MOST)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        os.environ["EQSYNTH_TESTS"] = tempfile.mkdtemp(prefix="eqsynth-tests-")
    os.environ["EQSYNTH_CACHE"] = os.path.join(os.environ["EQSYNTH_TESTS"], f"cache{worker}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ.pop("EQSYNTH_TESTS"), ignore_errors=True)


def _without_a_gpu(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none, and says what is missing."""
    needing = [item for item in items if item.get_closest_marker("cuda") is not None]
    if needing:
        from eqsynth.lower.cuda.driver import missing

        lacking = missing()
        for item in needing if lacking else ():
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {lacking}"))


def _family(item: pytest.Item) -> str:
    """The test function of which an item is a row."""
    return item.nodeid.partition("[")[0]


def _is_quick(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _without_a_gpu(items)
    part = config.option.part
    if part == "all":
        return
    # Counted file by file, so that a part is the same whichever files are run; the part that a file
    # begins with goes by its name, or all files with a single such test would be in one part.
    # Tests that share what is dear to make, `rotating(together="row")`, are in one part. Tests of
    # several files over the rows of one table, `rotating(table="programs")`, are in the part of
    # their row, so that what is made for a row is made in one part.
    rows = Counter(map(_family, filter(_is_quick, items)))
    counts: dict[object, int] = {}
    groups: dict[tuple[object, str], int] = {}
    left_out = []
    for item in items:
        if (mark := item.get_closest_marker("rotating")) is not None:
            table = mark.kwargs.get("table")
            home = item.path if table is None else _family(item)
            count = counts.setdefault(home, crc32((table or item.path.name).encode()))
            group = home, mark.kwargs.get("together", item.nodeid)
            turn = groups.setdefault(group, count)
            counts[home] = count + (turn == count)
            parts = PARTS if PARTS <= rows[_family(item)] < SELDOM else SELDOM
            parts = mark.kwargs.get("parts", parts)
            if turn % parts != int(part) % parts:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """What is there now stays: modules of torch and TVM, rules, tests. Python's collector of cyclic
    garbage would read all of it again and again, a tenth of the time of a test that captures."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(3_000, 20, 20)
    gc.enable()


_cpu_s: Counter[str] = Counter()


def _cpu_now_s() -> float:
    """Of this process and those that it started, the running ones among them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total


_begin_s = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.config.option.cpu:
        item.stash[_begin_s] = _cpu_now_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if item.config.option.cpu:
            item.user_properties.append(("cpu_s", _cpu_now_s() - item.stash[_begin_s]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _cpu_s[report.nodeid] += sum(v for k, v in report.user_properties if k == "cpu_s")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if config.option.part != "all":
        terminalreporter.write_line(
            f"rotating tests: part {config.option.part} of {MOST} (--part {config.option.part} "
            "runs it again, --part all runs all)"
        )
    if config.option.cpu:
        files: Counter[str] = Counter()
        for name, seconds in _cpu_s.items():
            files[name.split("::")[0]] += seconds
        for table in (files, _cpu_s):
            for name, seconds in table.most_common(40):
                terminalreporter.write_line(f"{seconds:8.2f} s  {name}")
        terminalreporter.write_line(f"{sum(files.values()):8.1f} s  in all")


@dataclass(frozen=True)
class Golden:
    """Compares text with a file; with `--update-golden` writes the file instead."""

    directory: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        path = self.directory / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"no golden file {name}; make it with --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; see --update-golden"


def _leaked() -> list[psutil.Process]:
    """The workers of eqsynth that this process started, that live, and that nobody can borrow."""
    executor = sys.modules.get("eqsynth.executor")
    if executor is None:
        return []
    # Listed before the idle ones: a worker that is given back meanwhile is idle then.
    children = psutil.Process().children()
    idle = {worker.pid for worker in executor._idle._workers}
    found = []
    for child in children:
        with suppress(psutil.Error):  # it has ended, or it is a zombie, whose command is empty
            if "eqsynth.executor" in child.cmdline() and child.pid not in idle:
                found.append(child)
    return found


@pytest.fixture(autouse=True, scope="module")
def no_worker_is_left_behind() -> Iterator[None]:
    """Fails the last test of a module that has left a worker neither ended nor given back.

    Another module would fail otherwise, one that counts the processes. A thread that still gives a
    worker back has time to do so; what is left behind then is ended.
    """
    yield
    until_s = time.monotonic() + LEAVE_S
    while (found := _leaked()) and time.monotonic() < until_s:
        time.sleep(0.05)
    for worker in found:
        worker.kill()
    assert not found, "workers that a test of this module neither ended nor gave back"


@pytest.fixture
def nothing_kept() -> None:
    """No segment is known from another test: all are saturated, by a worker."""
    from eqsynth.egraph import remembered

    shutil.rmtree(remembered.directory(), ignore_errors=True)


@pytest.fixture
def no_idle_workers() -> Iterator[None]:
    """No worker is idle at the beginning, and none that is idle at the end is kept. Those that were
    idle before are put aside for other tests: one that measures takes five seconds to load TVM."""
    from eqsynth import executor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "_idle", executor._Idle())
        try:
            yield
        finally:
            executor.end_idle_workers()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check("explain/chain.txt", text)` against `tests/golden/explain/chain.txt`."""
    return Golden(Path(__file__).parent / "golden", request.config.getoption("--update-golden"))
