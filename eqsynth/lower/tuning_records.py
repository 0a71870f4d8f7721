"""The measurements of tuning, as documents in the profile: one for each kernel.

They are kept apart from the times of kernels that extraction reads, so that slow points of a space
don't count for kernels that are offered without a search. Not here: searching
(``kernel_tuning.py``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from eqsynth.extract.cost import measurement_key
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Schedule, schedule_from_data, schedule_to_data
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.ir.work import operations
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data

_PREFIX: Final = "tuning-3 "

NEAREST: Final = 3
"""A search begins with the best schedules of at most this many kernels of other shapes."""


@dataclass
class Record:
    """The measurements of one kernel.

    Attributes:
        far: the number of cache levels that weights were out of when the kernel was called
            (``Target.far``).
        starts: the schedules of other shapes that the search began with. A search that goes on
            begins with the same ones, so that it asks for the same points.
        times: seconds by schedule, in the order of measuring; None for a schedule that can't be
            built or run.
    """

    kernel: Kernel
    far: int
    starts: tuple[Schedule, ...] = ()
    times: dict[Schedule, float | None] = field(default_factory=dict)

    @property
    def first(self) -> tuple[Schedule, float] | None:
        """The schedule that was timed first and runs, and its seconds. The others were timed in
        turns with it."""
        worked = ((s, time_s) for s, time_s in self.times.items() if time_s is not None)
        return next(worked, None)

    @property
    def best(self) -> tuple[Schedule, float] | None:
        """The fastest schedule and its seconds; None if no schedule runs."""
        worked = [(time_s, schedule) for schedule, time_s in self.times.items() if time_s]
        time_s, schedule = min(worked, key=lambda pair: pair[0], default=(0.0, None))
        return None if schedule is None else (schedule, time_s)


def load(profile: Profile, kernel: Kernel, far: int) -> Record | None:
    """The profile's record of a kernel, whatever the kernel's own schedule; None if it wasn't
    tuned."""
    body = profile.load_document(_kind(kernel, far))
    return None if body is None else _read(body)


def keep(profile: Profile, record: Record) -> None:
    """Store a record in the profile."""
    body = {
        "kernel": kernel_to_data(record.kernel),
        "far": record.far,
        "starts": [schedule_to_data(schedule) for schedule in record.starts],
        "times": [[schedule_to_data(s), time_s] for s, time_s in record.times.items()],
    }
    kind = _kind(record.kernel, record.far)
    profile.store_document(kind, json.dumps(body, separators=(",", ":")), replace=True)


def records(profile: Profile) -> list[Record]:
    """All records of the profile's target."""
    found = map(_read, profile.documents(_PREFIX).values())
    return [record for record in found if record is not None]


def nearest(kernel: Kernel, known: Sequence[Record]) -> tuple[Schedule, ...]:
    """The best schedules of the kernels that are nearest in shape.

    Only kernels with as many loops, operands of the same types, and as many operations per element
    are compared. The distance is the sum of the logarithms of the ratios of extents: of (64, 128)
    and (64, 256) it is log 2. The same kernel at other layouts, or with another ``far``, is at
    distance 0.
    """
    found: list[tuple[float, Schedule]] = []
    for record in known:
        best, far = record.best, _distance(kernel, record.kernel)
        if best is not None and far is not None:
            found.append((far, best[0]))
    found.sort(key=lambda pair: pair[0])
    return tuple(dict.fromkeys(schedule for _, schedule in found))[:NEAREST]


def _distance(kernel: Kernel, other: Kernel) -> float | None:
    """The distance of two kernels; None if they can't be compared."""
    one, two = kernel.term, other.term
    if not isinstance(one, Scope) or not isinstance(two, Scope) or _class(one) != _class(two):
        return None
    pairs = zip((*one.traversal, *one.reduction), (*two.traversal, *two.reduction), strict=True)
    return sum(abs(math.log(a / b)) for a, b in pairs)


def _class(scope: Scope) -> tuple[object, ...]:
    """The properties that two kernels must share to be compared."""
    dtypes = tuple(tensor.dtype for tensor in (*args_of(scope), scope))
    loops = len(scope.traversal), len(scope.reduction)
    return loops, scope.reducer, operations(scope.body), dtypes


def _kind(kernel: Kernel, far: int) -> str:
    """The name of a kernel's document."""
    name = measurement_key(replace(kernel, schedule="")).text() + f" far={far}"
    return _PREFIX + hashlib.sha256(name.encode()).hexdigest()[:32]


def _read(body: str) -> Record | None:
    """The record in a document; None if it is damaged."""
    with suppress(ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError):
        data = json.loads(body)
        record = Record(kernel_from_data(data["kernel"]), int(data["far"]))
        starts = [schedule_from_data(start) for start in data["starts"]]
        record.starts = tuple(start for start in starts if isinstance(start, Schedule))
        for told, time_s in data["times"]:
            schedule = schedule_from_data(told)
            sound = time_s is None or (isinstance(time_s, float) and 0 < time_s < math.inf)
            if isinstance(schedule, Schedule) and sound:
                record.times[schedule] = time_s
        return record
    return None
