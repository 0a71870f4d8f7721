"""Schedules as data: how a generated kernel goes through its loops.

A schedule is a frozen value of one of a closed set of kinds, each with declared fields. Its text is
its name in the profile and in reports; it is written and never read back. Not here: which schedules
a loop nest may have (``lower/spaces.py``), the loops that they mean (``lower/eoperators.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from eqsynth import kept

TASKS: Final = 64
"""Steps that a parallel loop has at least by default, so that threads get equal shares."""


@dataclass(frozen=True)
class Schedule:
    """What all kinds have.

    Attributes:
        tasks: leading loops are fused and shared by the threads until they have so many steps.
        order: of the loops around the innermost part of the kernel, as positions in the order that
            the kind has by itself; empty for that order.
    """

    def text(self) -> str:
        """The kind and its sizes, and the fields that aren't as by default.

        >>> Block(8, 32).text(), Block(12, 32, unrolled=4, order=(1, 0)).text()
        ('block8x32', 'block12x32 order=1.0 unrolled=4')
        """
        sizes, rest = [], []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING:
                sizes.append(str(value))
            elif value != field.default:
                shown = ".".join(map(str, value)) if isinstance(value, tuple) else value
                rest.append(f" {field.name}={shown}")
        return type(self).__name__.lower() + "x".join(sizes) + "".join(sorted(rest))

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Rows(Schedule):
    """Outer loops parallel, the innermost left to LLVM.

    Attributes:
        unrolled: steps of the innermost reduction that are written out.
    """

    tasks: int = TASKS
    order: tuple[int, ...] = ()
    unrolled: int = 1


@dataclass(frozen=True)
class Flat(Schedule):
    """All loops as one, in blocks of ``width`` (short inner axes)."""

    width: int
    tasks: int = TASKS


@dataclass(frozen=True)
class Tile(Schedule):
    """``height`` by ``width`` blocks of two loops (transposes).

    Attributes:
        across: whether the inner loop of a block goes along what is read, and not what is written.
    """

    height: int
    width: int
    across: bool = False
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lanes(Schedule):
    """``width`` results of the inner loop accumulate in registers."""

    width: int
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fold(Schedule):
    """``width`` partial results along the innermost reduction, combined at its end."""

    width: int
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Block(Schedule):
    """``rows`` rows of ``columns`` neighbours accumulate in registers, so that every load is used
    so many times.

    Attributes:
        rows_together, columns_together: blocks of a task, which the next one's don't come between.
    """

    rows: int
    columns: int
    rows_together: int = 1
    columns_together: int = 1
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Matrices(Schedule):
    """A tile is read once, taken through matrices of literals along one axis after the other in
    registers, and written once; ``width`` neighbours at a time."""

    width: int
    tasks: int = TASKS


@dataclass(frozen=True)
class Band(Schedule):
    """``rows`` rows of a band product by ``columns`` neighbours accumulate in registers, over a
    packed copy of the rows that they read of the operand that moves with the band.

    Attributes:
        panel: rows of one residue modulo the dilation that share a packed copy.
    """

    rows: int
    columns: int
    panel: int
    tasks: int = TASKS


# ---- of blocks of threads with shared memory ------------------------------------------------


@dataclass(frozen=True)
class Grid(Schedule):
    """Each of ``threads`` threads of a block computes ``each`` results, ``threads`` apart.

    Attributes:
        vector: neighbours that are read, computed and written at once in the place of one.
        unrolled: steps of the innermost reduction that are written out.
    """

    threads: int
    each: int = 1
    vector: int = 1
    unrolled: int = 1


@dataclass(frozen=True)
class Team(Schedule):
    """``threads`` threads reduce to one result, and combine what they have in shared memory.

    Attributes:
        teams: of a block.
    """

    threads: int
    teams: int = 1


@dataclass(frozen=True)
class Turn(Schedule):
    """A square tile is computed along what is read, and written from shared memory along the
    result (transposes); ``rows`` rows of ``side`` threads."""

    side: int
    rows: int


@dataclass(frozen=True)
class Tiles(Schedule):
    """A block of ``rows`` by ``columns`` threads computes ``rows * down`` by ``columns * along``
    results of a contraction; each thread holds ``down`` by ``along`` of them in registers.

    Attributes:
        depth: steps of the innermost reduction whose operands are in shared memory at once.
        unrolled: whether these steps are written out.
    """

    rows: int
    columns: int
    down: int
    along: int
    depth: int
    unrolled: bool = False


KINDS: Final[Mapping[str, type[Schedule]]] = {
    kind.__name__.lower(): kind
    for kind in (
        Rows, Flat, Tile, Lanes, Fold, Block, Matrices, Band, Grid, Team, Turn, Tiles
    )
}  # fmt: skip
CLASSES: Final = kept.classes(*KINDS.values())
"""What a kept file with schedules in it may name."""


def schedule_to_data(schedule: Schedule | str) -> Any:
    """Its kind and fields; of a text, the text."""
    if isinstance(schedule, str):
        return schedule
    values = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    lists = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return [type(schedule).__name__.lower(), lists]


def schedule_from_data(data: Any) -> Schedule | str:
    """The inverse of :func:`schedule_to_data`.

    Raises:
        ValueError: the data is no schedule.
    """
    if isinstance(data, str):
        return data
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[1], dict):
        raise ValueError("no schedule")
    name, values = data
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or values.keys() != {field.name for field in fields(kind)}:
        raise ValueError(f"no schedule {str(name)[:100]!r}")
    return kind(**{field.name: _value(field.default, values[field.name]) for field in fields(kind)})


def _value(default: object, value: Any) -> object:
    """A field's value, of the type of its default; sizes, which have none, are whole numbers."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(type(v) is int for v in value):
            raise ValueError("an order is a list of positions")
        return tuple(value)
    if type(value) is not (bool if isinstance(default, bool) else int):
        raise ValueError(f"{str(value)[:100]} is no size")
    return value
