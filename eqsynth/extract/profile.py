"""The profile: measured times of kernels, in a SQLite file that processes share.

    profile = Profile(target.key())
    key = MeasurementKey("onednn.linear", ((1, 512), (512, 64)), ((512, 1), (1, 512)),
                         ("float32", "float32"))
    profile.record(key, time_one(call), roofline_s=target.roofline_s(...))
    profile.lookup(key)

Here: the key of a time, the table, looking up, recording, and importing from another machine. Not
here: files that are broken or can't be written (``store.py``), measuring (``timing.py``), targets
(``target.py``).
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from eqsynth import kept
from eqsynth.errors import EqsynthError
from eqsynth.extract.store import Store, open_read_only, profile_path
from eqsynth.extract.timing import Timing

COMPUTE = "/compute"
"""The ending of the names of families whose kernels are bound by arithmetic."""

_COLUMNS = (
    "hash, target, versions, family, kernel, median_s, q1_s, q3_s, samples, disturbed, roofline_s,"
    " measured_at"
)
# A measurement on a quiet machine wins, and among two of a kind the newer one, whatever order the
# writers come in.
_UPSERT = f"""
INSERT INTO times ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)
ON CONFLICT (hash) DO UPDATE SET median_s = excluded.median_s, q1_s = excluded.q1_s,
    q3_s = excluded.q3_s, samples = excluded.samples, disturbed = excluded.disturbed,
    roofline_s = excluded.roofline_s, measured_at = excluded.measured_at
WHERE excluded.disturbed < times.disturbed
    OR excluded.disturbed = times.disturbed AND excluded.measured_at >= times.measured_at
"""
_USED = "(NOT disturbed OR measured_at >= ?)"
"""The rows of times that aren't left out."""
FAILED_FOR = timedelta(days=1)
"""How long a kernel that couldn't be built or run isn't tried again. It isn't forever, since a full
disk or a memory limit makes kernels fail, too, and these go away."""

RETRY_AFTER = timedelta(minutes=5)
"""How old a disturbed time has to be before its kernel is timed again. It bounds the cost on a
machine on which something begins to run whenever kernels are timed."""

_LOOKUP_BATCH = 500  # SQLite allows 999 parameters a statement in its oldest builds


@dataclass(frozen=True, slots=True)
class MeasurementKey:
    """The description of a kernel under which its time is stored.

    Attributes:
        implementation: the backend's name for the kernel, ``family`` or ``family:variant``, such
            as ``onednn.linear:relu``.
        shapes, strides, dtypes: of the arguments and then the result; strides in elements.
        term: canonical text of the term, if the implementation doesn't determine it (attributes of
            a convolution, the scope of a generated kernel).
        schedule: the point in the backend's space of schedules.
        kind: the operator, and whether arithmetic or memory bounds it. Kernels of one
            implementation and kind are a family, which shares its ratios to the roofline.
    """

    implementation: str
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    term: str = ""
    schedule: str = ""
    kind: str = ""

    @property
    def family(self) -> str:
        return family_of(self.implementation, self.kind)

    def text(self) -> str:
        """One canonical line: equal keys have equal text, in every process and on every machine."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Measurement:
    """A time from the profile, and the roofline that it is compared with, both in seconds."""

    timing: Timing
    roofline_s: float
    measured_at: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of a measured kernel over its roofline, the roofline in seconds, and the number of
    elements that it moves."""

    value: float
    roofline_s: float
    elements: int


def family_of(implementation: str, kind: str = "") -> str:
    """The name of a family: ("onednn.linear:relu", "Matmul/memory") ->
    "onednn.linear/Matmul/memory"."""
    name = implementation.partition(":")[0]
    return f"{name}/{kind}" if kind else name


@cache
def library_versions() -> str:
    """The versions of the libraries whose kernels are timed, read without importing them."""
    found = []
    for name in ("torch", "apache-tvm", "apache-tvm-ffi"):
        try:
            found.append(f"{name}={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name}=none")
    return " ".join(found)


class Profile:
    """Measured times on one target with one set of library versions.

    It may be used by several threads and processes. A file that is broken or can't be written costs
    a warning and the times in it, and never an exception.
    """

    def __init__(
        self, target_key: str, versions: str | None = None, path: Path | None = None
    ) -> None:
        self.target_key = target_key
        self.versions = library_versions() if versions is None else versions
        self._store = Store(profile_path() if path is None else path)
        # Times that were disturbed, and measured before this, are left out. No time is before "".
        self._disturbed_since = ""

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def in_memory(self) -> bool:
        """Whether the times are lost when the process ends, because the file can't be written."""
        return self._store.in_memory

    def retry_disturbed(self, is_quiet: Callable[[], bool]) -> None:
        """From now on leave out times that other processes disturbed more than `RETRY_AFTER` ago,
        so that these kernels are timed again. ``is_quiet`` says whether the machine is quiet now;
        it is only called if there are such times."""
        since = (datetime.now(UTC) - RETRY_AFTER).isoformat(timespec="microseconds")
        arguments = (self.target_key, self.versions, since)

        def read(db: sqlite3.Connection) -> bool:
            found = db.execute(
                "SELECT 1 FROM times WHERE target = ? AND versions = ? AND disturbed"
                " AND measured_at < ? LIMIT 1",
                arguments,
            )
            return found.fetchone() is not None

        if self._store.run(read, default=False) and is_quiet():
            self._disturbed_since = since

    def is_empty(self) -> bool:
        """Whether neither times on this target nor failures are stored."""
        arguments = (self.target_key, self.versions)

        def read(db: sqlite3.Connection) -> bool:
            times = "SELECT 1 FROM times WHERE target = ? AND versions = ? LIMIT 1"
            failures = "SELECT 1 FROM failures LIMIT 1"
            found = db.execute(times, arguments).fetchone() or db.execute(failures).fetchone()
            return found is None

        return self._store.run(read, default=True)

    def lookup(self, key: MeasurementKey) -> Measurement | None:
        return self.lookup_many([key]).get(key)

    def lookup_many(self, keys: Iterable[MeasurementKey]) -> dict[MeasurementKey, Measurement]:
        """The measurements of those keys that have one."""
        by_hash = {self.row_of(key): key for key in keys}
        hashes = list(by_hash)

        def read(db: sqlite3.Connection) -> dict[MeasurementKey, Measurement]:
            found = {}
            for start in range(0, len(hashes), _LOOKUP_BATCH):
                batch = hashes[start : start + _LOOKUP_BATCH]
                rows = db.execute(
                    "SELECT hash, median_s, q1_s, q3_s, samples, disturbed, roofline_s, measured_at"
                    f" FROM times WHERE hash IN ({','.join('?' * len(batch))}) AND {_USED}",
                    [*batch, self._disturbed_since],
                )
                for digest, median_s, q1_s, q3_s, samples, disturbed, roofline_s, date in rows:
                    timing = Timing(median_s, q1_s, q3_s, samples, bool(disturbed))
                    found[by_hash[digest]] = Measurement(timing, roofline_s, date)
            return found

        return self._store.run(read, default={})

    def lower_quartiles(self, rows: Iterable[str]) -> dict[str, float]:
        """The lower quartiles in seconds of those rows that exist, by the names of the rows."""
        names = list(rows)

        def read(db: sqlite3.Connection) -> dict[str, float]:
            found: dict[str, float] = {}
            for start in range(0, len(names), _LOOKUP_BATCH):
                batch = names[start : start + _LOOKUP_BATCH]
                holes = ",".join("?" * len(batch))
                find = f"SELECT hash, q1_s FROM times WHERE hash IN ({holes}) AND {_USED}"
                found |= db.execute(find, [*batch, self._disturbed_since])
            return found

        return self._store.run(read, default={})

    def record(self, key: MeasurementKey, timing: Timing, roofline_s: float) -> None:
        self.record_many({key: (timing, roofline_s)})

    def record_many(self, times: Mapping[MeasurementKey, tuple[Timing, float]]) -> None:
        """Store times with their rooflines, either all of them or none.

        Raises:
            ValueError: a time or a roofline is not a positive number.
        """
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        rows = []
        for key, (timing, roofline_s) in times.items():
            seconds = (timing.median_s, timing.q1_s, timing.q3_s, roofline_s)
            if not all(_is_time(value) for value in seconds):
                raise ValueError(f"not a time: {timing} with roofline {roofline_s} s, of {key}")
            rows.append(
                (self.row_of(key), self.target_key, self.versions, key.family, key.text(),
                 timing.median_s, timing.q1_s, timing.q3_s, timing.samples, timing.disturbed,
                 roofline_s, now)
            )  # fmt: skip
        self._store.run(lambda db: db.executemany(_UPSERT, rows), default=None)

    def record_failures(self, keys: Iterable[MeasurementKey]) -> None:
        """Store that these kernels couldn't be built or run by the present code."""
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        rows = [(self.row_of(key), _code(), now) for key in keys]
        if rows:
            insert = "INSERT OR REPLACE INTO failures VALUES (?,?,?)"
            self._store.run(lambda db: db.executemany(insert, rows), default=None)

    def failed(self, keys: Iterable[MeasurementKey]) -> set[MeasurementKey]:
        """The keys whose kernels have failed with the present code within the last `FAILED_FOR`."""
        by_hash = {self.row_of(key): key for key in keys}
        since = (datetime.now(UTC) - FAILED_FOR).isoformat(timespec="microseconds")

        def read(db: sqlite3.Connection) -> list[str]:
            rows = db.execute("SELECT hash, code FROM failures WHERE failed_at >= ?", (since,))
            found = rows.fetchall()
            # Few profiles have failures, and `_code` looks at a hundred files.
            code = _code() if found else ""
            return [str(digest) for digest, own in found if own == code]

        failed: list[str] = self._store.run(read, default=[])
        return {by_hash[digest] for digest in failed if digest in by_hash}

    def family_ratios(self, family: str) -> list[Ratio]:
        """The ratios of time to roofline of all measured kernels of a family."""
        arguments = (self.target_key, self.versions, family, self._disturbed_since)

        def read(db: sqlite3.Connection) -> list[tuple[str, float, float]]:
            rows = db.execute(
                "SELECT kernel, median_s, roofline_s FROM times"
                f" WHERE target = ? AND versions = ? AND family = ? AND {_USED}",
                arguments,
            )
            return list(rows)

        def elements(kernel: str) -> int:
            return sum(map(math.prod, json.loads(kernel)["shapes"]))

        rows: list[tuple[str, float, float]] = self._store.run(read, default=[])
        return [Ratio(time_s / least_s, least_s, elements(text)) for text, time_s, least_s in rows]

    def load_document(self, kind: str) -> str | None:
        """A text that is stored about the target, such as its measured peaks; None if there is
        none."""
        arguments = (self.target_key, self.versions, kind)

        def read(db: sqlite3.Connection) -> str | None:
            row = db.execute(
                "SELECT body FROM documents WHERE target = ? AND versions = ? AND kind = ?",
                arguments,
            ).fetchone()
            return None if row is None else str(row[0])

        return self._store.run(read, default=None)

    def documents(self, prefix: str) -> dict[str, str]:
        """All texts about the target whose kinds begin with ``prefix``, by kind."""
        arguments = (self.target_key, self.versions, prefix, prefix)

        def read(db: sqlite3.Connection) -> dict[str, str]:
            rows = db.execute(
                "SELECT kind, body FROM documents WHERE target = ? AND versions = ?"
                " AND substr(kind, 1, length(?)) = ? ORDER BY kind",
                arguments,
            )
            return {str(kind): str(body) for kind, body in rows}

        return self._store.run(read, default={})

    def store_document(self, kind: str, body: str, replace: bool = False) -> str:
        """Store a text about the target unless one of this kind is stored already, and return the
        stored text.

        The first writer wins, so that processes that measure at the same time agree afterwards.
        """
        verb = "REPLACE" if replace else "IGNORE"
        arguments = (self.target_key, self.versions, kind, body)
        self._store.run(
            lambda db: db.execute(f"INSERT OR {verb} INTO documents VALUES (?,?,?,?)", arguments),
            default=None,
        )
        return self.load_document(kind) or body

    def import_from(self, path: Path) -> int:
        """Copy the times of another profile file into this one, for every target in it, and return
        how many rows were copied.

        If both files have a time for a kernel, the newer one stays. Rows that couldn't have been
        recorded here are left out.

        Raises:
            EqsynthError: the file is missing, or is no profile.
        """
        try:
            with closing(open_read_only(Path(path))) as db:
                rows = db.execute(f"SELECT {_COLUMNS} FROM times").fetchall()
                texts = db.execute("SELECT target, versions, kind, body FROM documents").fetchall()
        except sqlite3.DatabaseError as error:
            raise EqsynthError(
                "a profile could not be imported",
                where=str(path),
                got=str(error),
                expected="a profile file of this version of eqsynth",
                hint="copy the file from the other machine again, while nothing writes to it",
            ) from error
        rows = [row for row in rows if _is_sound(row)]

        def write(db: sqlite3.Connection) -> int:
            db.executemany(_UPSERT, rows)
            db.executemany("INSERT OR IGNORE INTO documents VALUES (?,?,?,?)", texts)
            return len(rows)

        return self._store.run(write, default=0)

    def close(self) -> None:
        self._store.close()

    def row_of(self, key: MeasurementKey) -> str:
        """The name of a kernel's row: a hash of the target, the library versions and the key."""
        text = "\n".join((self.target_key, self.versions, key.text()))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _code() -> str:
    """A digest of the code that builds and calls kernels: with other code a failed
    kernel may work."""
    return kept.code_of("ir", "extract", "lower")


def _is_sound(row: tuple[Any, ...]) -> bool:
    """Whether a row of another file could have been recorded here."""
    *texts, median_s, q1_s, q3_s, samples, disturbed, roofline_s, date = row
    return (
        all(isinstance(text, str) for text in (*texts, date))
        and all(_is_time(value) for value in (median_s, q1_s, q3_s, roofline_s))
        and isinstance(samples, int)
        and disturbed in (0, 1)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0
