"""The SQLite file under the profile, and what happens when it cannot be used.

One promise: a caller never sees a database error. A file that is no database is moved aside, a
directory that cannot be written leaves the store in memory (with what could be read), a lock is
waited for; each with a warning. What is stored is decided in ``profile.py``.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import platformdirs

T = TypeVar("T")

FILE_NAME = "profile-3.sqlite"
"""The number is that of the schema and of the way of timing: another one is another file, and old
versions keep theirs."""

BUSY_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS times (
    hash TEXT PRIMARY KEY, target TEXT NOT NULL, versions TEXT NOT NULL, family TEXT NOT NULL,
    kernel TEXT NOT NULL, median_s REAL NOT NULL, q1_s REAL NOT NULL, q3_s REAL NOT NULL,
    samples INTEGER NOT NULL, roofline_s REAL NOT NULL, measured_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS times_family ON times (target, versions, family);
CREATE TABLE IF NOT EXISTS documents (
    target TEXT NOT NULL, versions TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (target, versions, kind)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
    hash TEXT PRIMARY KEY, code TEXT NOT NULL, failed_at TEXT NOT NULL
) WITHOUT ROWID;
"""


def profile_path() -> Path:
    """``$EQSYNTH_CACHE`` or the user's cache directory, and in it the profile."""
    directory = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    return Path(directory) / FILE_NAME


# A connection must not cross a fork, not even to be closed by the child: it is kept unused.
_OF_THE_PARENT: list[sqlite3.Connection] = []


class Store:
    """One connection to the profile's file, opened when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.in_memory = False
        self._connection: sqlite3.Connection | None = None
        self._owner = os.getpid()
        self._inode = 0
        self._lock = threading.RLock()

    def run(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """``work`` in one transaction, on another file or in memory if need be.

        ``default`` if the file stays locked.
        """
        with self._lock:
            for _ in range(3):
                try:
                    return self._retry_while_busy(work)
                except (sqlite3.DatabaseError, OSError) as error:
                    if self.in_memory:
                        raise  # nothing outside this process is to blame
                    if _is_busy(error):
                        self._warn(f"{self.path} stayed locked for {BUSY_S:.0f} s; went on without")
                        return default
                    if not (_is_damage(error) and self._move_aside(error)):
                        self._fall_back_to_memory(error)
            return default

    def close(self) -> None:
        with self._lock:
            self._leave_to_parent()
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _leave_to_parent(self) -> None:
        if self._owner != os.getpid():
            if self._connection is not None and not self.in_memory:
                _OF_THE_PARENT.append(self._connection)
                self._connection = None
            self._owner = os.getpid()

    def _retry_while_busy(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # SQLite's own timeout does not cover everything: switching to WAL fails at once when
        # another process is doing the same.
        give_up = time.monotonic() + BUSY_S
        while True:
            try:
                db = self._open()
                with db:
                    db.execute("BEGIN")
                    return work(db)
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > give_up:
                    raise
                time.sleep(random.uniform(0.005, 0.05))

    def _open(self) -> sqlite3.Connection:
        self._leave_to_parent()
        if self._connection is None:
            if not self.in_memory:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            name = ":memory:" if self.in_memory else str(self.path)
            db = sqlite3.connect(
                name, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                db.execute("PRAGMA journal_mode = WAL")
                # With WAL this can lose the last times in a power cut, but corrupts nothing.
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_SCHEMA)
                self._inode = 0 if self.in_memory else self.path.stat().st_ino
            except BaseException:
                db.close()
                raise
            self._connection = db
        return self._connection

    def _move_aside(self, error: Exception) -> bool:
        """Renames a file that is no profile; whether the next attempt will find another one."""
        broken_inode = self._inode
        self.close()
        with suppress(OSError):
            if broken_inode and self.path.stat().st_ino != broken_inode:
                return True  # another process has already replaced it
        aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns()}-{os.getpid()}")
        try:
            # One process at a time: another one may replace the file between the look at it and
            # the renaming, which would then take the good file away.
            with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_broken(self.path):
                    # Replaced since, if it never opened; if it did, the fault is not the file's.
                    return broken_inode == 0
                # The log first: a new database must not find the old one's.
                for suffix in ("-wal", "-shm", ""):
                    with suppress(FileNotFoundError):
                        os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        except OSError:
            return False
        self._warn(f"{self.path} was damaged ({error}); moved to {aside.name}, starting anew")
        return True

    def _fall_back_to_memory(self, error: Exception) -> None:
        self.close()
        self.in_memory = True
        self._warn(
            f"{self.path} cannot be written ({error}); times are kept in memory only. "
            "Set EQSYNTH_CACHE to a directory that can be written."
        )
        db = self._open()
        # What was measured before can still be read, if the file is there.
        with suppress(sqlite3.Error):
            with closing(open_read_only(self.path)) as source:
                for table in ("times", "documents"):
                    rows = source.execute(f"SELECT * FROM {table}").fetchall()
                    if rows:
                        marks = ",".join("?" * len(rows[0]))
                        db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _warn(self, message: str) -> None:
        warnings.warn(f"eqsynth's profile: {message}", RuntimeWarning, stacklevel=5)


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, also where SQLite cannot put its lock file beside."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True)
    try:
        db.execute("SELECT 1 FROM times LIMIT 1")
        return db
    except sqlite3.OperationalError:
        db.close()
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_busy(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_damage(error: Exception) -> bool:
    # SQLITE_ERROR: a table of this name with other columns.
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _is_broken(path: Path) -> bool:
    """Asked again right before the file is moved: it may be another process's new one by now."""
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            ((verdict,),) = db.execute("PRAGMA quick_check(1)").fetchall()
            if verdict == "ok" and not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                return False  # new: who made it is about to make its tables
            columns = db.execute("SELECT * FROM times LIMIT 0").description
            return verdict != "ok" or len(columns) != 11
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        return not _is_busy(error)
    except sqlite3.DatabaseError:
        return True
