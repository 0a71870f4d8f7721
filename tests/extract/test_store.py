"""A profile's file that can't be used costs a warning and the times in it, never an exception."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from eqsynth.extract import store
from eqsynth.extract.profile import MeasurementKey, Profile
from eqsynth.extract.store import FILE_NAME, Store, profile_path
from eqsynth.extract.timing import Timing

KEY = MeasurementKey("torch.add", ((8,),), ((1,),), ("float32",))
OTHER = MeasurementKey("torch.add", ((9,),), ((1,),), ("float32",))
TIMING = Timing(2e-5, 1e-5, 3e-5, 7)
_LOGS = ("-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def fill(path: Path, count: int = 300) -> None:
    profile = Profile("t", path=path)
    keys = [MeasurementKey("torch.mul", ((n,),), ((1,),), ("float32",)) for n in range(count)]
    profile.record_many({key: (TIMING, 1e-6) for key in [KEY, *keys]})
    profile.close()


def broken_files(path: Path) -> list[Path]:
    """The broken databases that were moved aside, without their logs."""
    return [p for p in path.parent.glob(f"{path.name}.broken-*") if p.name[-4:] not in _LOGS]


def assert_works(profile: Profile) -> None:
    profile.record(OTHER, TIMING, 1e-6)
    assert profile.lookup(OTHER) is not None


def test_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "new" / "deep"))
    assert profile_path() == tmp_path / "new" / "deep" / FILE_NAME
    assert_works(Profile("t"))
    assert profile_path().exists()
    monkeypatch.delenv("EQSYNTH_CACHE")
    assert profile_path().parent.name == "eqsynth"


@pytest.mark.parametrize("content", [b"no database at all, only text\n" * 100, b"\0" * 5000])
def test_a_file_that_is_no_database_is_moved_aside(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning):
        assert_works(Profile("t", path=path))
    (aside,) = broken_files(path)
    assert aside.read_bytes() == content
    assert Profile("t", path=path).lookup(OTHER) is not None


def test_a_database_damaged_in_the_middle_is_moved_aside(path: Path) -> None:
    fill(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    profile = Profile("t", path=path)
    with pytest.warns(RuntimeWarning):
        assert profile.lookup(KEY) is None
    assert_works(profile)
    assert len(broken_files(path)) == 1 and not profile.in_memory


def test_a_truncated_database_is_moved_aside(path: Path) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 100)
    profile = Profile("t", path=path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile.lookup(KEY)
        assert_works(profile)
    assert not profile.in_memory


def test_a_file_damaged_while_open_is_replaced(path: Path) -> None:
    fill(path)
    profile = Profile("t", path=path)
    assert profile.lookup(KEY) is not None
    path.write_bytes(b"overwritten by something else\n" * 3000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile.record(KEY, TIMING, 1e-6)
        Profile("t", path=path).lookup(KEY)
        assert_works(Profile("t", path=path))
    assert Profile("t", path=path).lookup(OTHER) is not None


def test_a_database_of_something_else_is_moved_aside(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE times (theirs TEXT)")
    db.close()
    with pytest.warns(RuntimeWarning):
        assert_works(Profile("t", path=path))
    assert len(broken_files(path)) == 1


def recover(path: Path, number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        key = MeasurementKey("torch.add", ((number,),), ((1,),), ("float32",))
        Profile("t", path=path).record(key, TIMING, 1e-6)


@pytest.mark.rotating
def test_processes_that_meet_a_broken_file_end_with_one_good_file(path: Path) -> None:
    path.write_bytes(b"no database at all, only text\n" * 100)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=recover, args=(path, number)) for number in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(3600)
    assert [other.exitcode for other in others] == [0] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_works(Profile("t", path=path))
    assert [aside.read_bytes()[:2] for aside in broken_files(path)] == [b"no"]


def test_a_file_that_another_process_is_making_is_no_broken_one(path: Path) -> None:
    """SQLite writes the header of a file before its tables. A process that has found a broken file,
    and looks again while another process replaces it, may find a file without tables."""
    path.write_bytes(b"no database at all, only text\n" * 100)
    store = Store(path)
    with closing(sqlite3.connect(path.with_name("new"))) as db:
        db.execute("PRAGMA journal_mode = WAL")
    os.replace(path.with_name("new"), path)
    assert store._move_aside(sqlite3.DatabaseError("file is not a database"))
    assert not broken_files(path) and path.read_bytes()[:2] == b"SQ"
    assert_works(Profile("t", path=path))


def test_a_path_that_cannot_be_a_directory_leaves_times_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    profile = Profile("t", path=tmp_path / "file" / FILE_NAME)
    with pytest.warns(RuntimeWarning):
        assert_works(profile)
    assert profile.in_memory
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        assert_works(profile)


def use_read_only(path: Path) -> None:
    """Exit with code 0 if known times are read, new times are held in memory, and there was one
    warning."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = Profile("t", path=path)
        known = profile.lookup(KEY) is not None
        profile.record(OTHER, TIMING, 1e-6)
        new = profile.lookup(OTHER) is not None
    os._exit(0 if known and new and profile.in_memory and len(caught) == 1 else 1)


def test_a_read_only_directory_is_read_and_left_alone(path: Path) -> None:
    fill(path)
    before = path.read_bytes()
    for parent in list(path.parents)[:4]:  # the test's own directories, for another user to pass
        if os.access(parent, os.W_OK) and parent.owner() == path.owner() and len(parent.parts) > 2:
            parent.chmod(0o755)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        child = multiprocessing.get_context("fork").Process(target=use_read_only, args=(path,))
        child.start()
        child.join(3600)
    finally:
        path.parent.chmod(0o755)
    assert child.exitcode == 0
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [FILE_NAME]


def test_a_lock_is_waited_for(path: Path) -> None:
    fill(path, 1)
    holder = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    release.start()
    try:
        assert_works(Profile("t", path=path))
    finally:
        release.join()
        holder.close()
    assert Profile("t", path=path).lookup(OTHER) is not None


def test_a_lock_that_stays_costs_the_call_and_not_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, 1)
    profile = Profile("t", path=path)
    assert profile.lookup(KEY) is not None
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    quick = Profile("t", path=path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.warns(RuntimeWarning):
        quick.record(OTHER, TIMING, 1e-6)
    holder.execute("COMMIT")
    holder.close()
    assert not quick.in_memory and quick.lookup(OTHER) is None
    assert_works(quick)
    assert profile.lookup(OTHER) is not None


@pytest.mark.parametrize("was_open", [True, False])
def test_a_file_that_another_process_has_replaced_is_not_moved(path: Path, was_open: bool) -> None:
    mine = Store(path)
    if was_open:
        fill(path, 1)
        mine.run(lambda db: None, default=None)
        path.rename(path.with_name("theirs-broken"))  # with its log, as a process does
        for log in _LOGS:
            (path.parent / f"{path.name}{log}").rename(path.with_name(f"theirs-broken{log}"))
    fill(path, 1)
    assert mine._move_aside(sqlite3.DatabaseError("seen a moment ago"))
    assert broken_files(path) == []
    assert Profile("t", path=path).lookup(KEY) is not None


def test_a_forked_process_opens_a_connection_of_its_own(path: Path) -> None:
    mine = Store(path)
    parent = mine.run(id, default=0)
    assert mine.run(id, default=0) == parent
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(mine.run(id, default=0) == parent)
    )
    child.start()
    child.join(3600)
    assert child.exitcode == 0


# ---- a process that ends in the middle, and a disk that is full -----------------------

# Records times one after another, and prints the number of each when it is in the profile.
WRITER = """
import sys
from pathlib import Path
from eqsynth.extract.profile import MeasurementKey, Profile
from eqsynth.extract.timing import Timing

profile = Profile("t", path=Path(sys.argv[1]))
for n in range(int(sys.argv[2]), int(sys.argv[2]) + 10**6):
    key = MeasurementKey("torch.mul", ((n,),), ((1,),), ("float32",))
    profile.record(key, Timing(2e-5, 1e-5, 3e-5, 7), 1e-6)
    print(n, flush=True)
"""


def multiplied(number: int) -> MeasurementKey:
    return MeasurementKey("torch.mul", ((number,),), ((1,),), ("float32",))


@pytest.mark.rotating
def test_what_was_measured_outlives_processes_that_are_killed(path: Path) -> None:
    """Two processes at a time write into one profile, until each is killed at some moment."""
    said: list[int] = []
    for turn in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), str(10**7 * (2 * turn + which))],
                stdout=subprocess.PIPE, text=True,
            )
            for which in range(2)
        ]  # fmt: skip
        for which, writer in enumerate(writers):
            assert writer.stdout is not None
            for _ in range(1 + 13 * turn + 7 * which):
                said.append(int(writer.stdout.readline()))
            writer.kill()
            said += map(int, writer.stdout.read().split())  # before it was dead
            writer.stdout.close()
            assert writer.wait() == -signal.SIGKILL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = Profile("t", path=path)
        found = profile.lookup_many(map(multiplied, said))
        assert len(found) == len(said) > 6 and not profile.in_memory
        assert_works(profile)
    assert not broken_files(path)


# To a process that writes, a limit on the size of files looks like a full disk.
FULL = """
import resource, sys, warnings
from pathlib import Path
from eqsynth.extract.profile import MeasurementKey, Profile
from eqsynth.extract.timing import Timing

def multiplied(n):
    return MeasurementKey("torch.mul", ((n,),), ((1,),), ("float32",))

path = Path(sys.argv[1])
profile = Profile("t", path=path)
assert profile.lookup(multiplied(0)) is not None
most = max(file.stat().st_size for file in path.parent.iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
times = {multiplied(n): (Timing(2e-5, 1e-5, 3e-5, 7), 1e-6) for n in range(1000, 9000)}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    profile.record_many(times)
    assert profile.lookup(multiplied(0)) is not None, "what was known is known"
    assert profile.lookup(multiplied(1000)) is not None, "what is new is known to this process"
print(len(told), profile.in_memory)
"""


def test_a_full_disk_costs_what_is_new_only(path: Path) -> None:
    fill(path)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "True"]), done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = Profile("t", path=path)
        assert profile.lookup(KEY) is not None and profile.lookup(multiplied(299)) is not None
        assert_works(profile)
    assert not broken_files(path)
