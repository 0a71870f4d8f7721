"""The SQLite file of the profile, and what happens if it can't be used.

A caller never sees a database error. A file that is no database is renamed. If the directory can't
be written to, the store goes on in memory, with the times that could be read. If another process
has locked the file, the store waits. Each of these gives a warning. Not here: the contents
(``profile.py``).
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

FILE_NAME = "profile-6.sqlite"
"""The number stands for the schema and the way of timing. If either changes, so does the number,
and older versions of eqsynth keep their own file."""

BUSY_S = 30.0
_COLUMNS = 12  # of the table of times
_SCHEMA = """
CREATE TABLE IF NOT EXISTS times (
    hash TEXT PRIMARY KEY, target TEXT NOT NULL, versions TEXT NOT NULL, family TEXT NOT NULL,
    kernel TEXT NOT NULL, median_s REAL NOT NULL, q1_s REAL NOT NULL, q3_s REAL NOT NULL,
    samples INTEGER NOT NULL, disturbed INTEGER NOT NULL, roofline_s REAL NOT NULL,
    measured_at TEXT NOT NULL
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
    """The path of the profile: in ``$EQSYNTH_CACHE``, or else in the user's cache directory."""
    directory = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    return Path(directory) / FILE_NAME


# Connections that a forked child has inherited. A child may neither use nor close them, so they are
# kept here, unused.
_OF_THE_PARENT: list[sqlite3.Connection] = []


class Store:
    """One connection to the profile's file, opened at the first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.in_memory = False
        self._connection: sqlite3.Connection | None = None
        self._owner = os.getpid()
        self._inode = 0
        self._lock = threading.RLock()

    def run(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Run ``work`` in one transaction, on a new file or in memory if the file can't be used.

        Return ``default`` if the file stays locked.
        """
        with self._lock:
            for _ in range(3):
                try:
                    return self._retry_while_busy(work)
                except (sqlite3.DatabaseError, OSError) as error:
                    if self.in_memory:
                        raise  # the fault is in this process
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
        """In a forked child, give up the connection that belongs to the parent."""
        if self._owner != os.getpid():
            if self._connection is not None and not self.in_memory:
                _OF_THE_PARENT.append(self._connection)
                self._connection = None
            self._owner = os.getpid()

    def _retry_while_busy(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a transaction; try again for up to `BUSY_S` seconds while the file is
        locked."""
        # SQLite's own timeout doesn't cover everything: switching to WAL fails at once if another
        # process is switching, too.
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
        """Return the connection, and open it first if necessary."""
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
                # With WAL, a power cut can lose the last times, but can't damage the file.
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_SCHEMA)
                self._inode = 0 if self.in_memory else self.path.stat().st_ino
            except BaseException:
                db.close()
                raise
            self._connection = db
        return self._connection

    def _move_aside(self, error: Exception) -> bool:
        """Rename a file that is no profile; return whether the next attempt will find
        another file."""
        broken_inode = self._inode
        self.close()
        with suppress(OSError):
            if broken_inode and self.path.stat().st_ino != broken_inode:
                return True  # another process has already replaced it
        aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns()}-{os.getpid()}")
        try:
            # One process at a time. Otherwise another process might replace the file between the
            # check and the renaming, and the good file would be renamed.
            with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_broken(self.path):
                    # The file is sound. If it never opened here, another process has replaced it.
                    # If it did open, the fault isn't in the file.
                    return broken_inode == 0
                # The log is renamed first, so that a new database can't find the old one's log.
                for suffix in ("-wal", "-shm", ""):
                    with suppress(FileNotFoundError):
                        os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        except OSError:
            return False
        self._warn(f"{self.path} was damaged ({error}); moved to {aside.name}, starting anew")
        return True

    def _fall_back_to_memory(self, error: Exception) -> None:
        """Go on with a database in memory, which begins with a copy of the rows that
        can be read."""
        self.close()
        self.in_memory = True
        self._warn(
            f"{self.path} cannot be written ({error}); times are kept in memory only. "
            "Set EQSYNTH_CACHE to a directory that can be written."
        )
        db = self._open()
        # Times in the file can still be read, if it exists.
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
    """Open a connection that changes nothing, even if SQLite can't put its lock file beside the
    file."""
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
    # SQLITE_ERROR means a table of the same name with other columns.
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _is_broken(path: Path) -> bool:
    """Whether the file is no profile. It is checked again just before it is renamed, since another
    process may have replaced it by a new one."""
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            ((verdict,),) = db.execute("PRAGMA quick_check(1)").fetchall()
            if verdict == "ok" and not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                return False  # a new file: the process that made it is about to add the tables
            columns = db.execute("SELECT * FROM times LIMIT 0").description
            return verdict != "ok" or len(columns) != _COLUMNS
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        return not _is_busy(error)
    except sqlite3.DatabaseError:
        return True
