"""Schedules as data: how a generated kernel runs its loops.

    Block(8, 32)    8 rows by 32 columns of the result are accumulated in registers: "block8x32"

A schedule is a frozen value of one of a closed set of kinds, each with declared fields. Its text is
its name in the profile and in reports; the text is never parsed. Not here: which schedules a loop
nest may have (``lower/spaces.py``), the loops that schedules describe (``lower/eoperators.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from eqsynth import kept

TASKS: Final = 64
"""The fewest steps of a parallel loop by default, so that threads get equal shares."""


@dataclass(frozen=True)
class Schedule:
    """The base of all kinds of schedules. Fields that several kinds have:

    Attributes:
        tasks: leading loops are fused, and shared by the threads, until they have at least this
            many steps.
        order: the order of the loops around the innermost part of the kernel, as positions in the
            kind's default order; empty for the default order.
    """

    def text(self) -> str:
        """The kind, its sizes, and the fields that don't have their default values.

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

    @property
    def reuse(self) -> float:
        """How many times a value that was loaded into a register is used, in the mean, before it is
        loaded again. A block of 8 by 32 results loads 8 + 32 values for 8 * 32 products: 6.4.

        >>> Block(8, 32).reuse, Band(2, 8, 2).reuse, Fold(16).reuse
        (6.4, 1.6, 1.0)
        """
        held = self._held
        return 1.0 if held is None else held[0] * held[1] / (held[0] + held[1])

    @property
    def _held(self) -> tuple[int, int] | None:
        """The rows and columns of results that registers hold together; None if they hold one, or
        results of one row."""
        return None

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Rows(Schedule):
    """Parallel outer loops. The innermost loop of a map over neighbours runs in vectors; any other
    is left to LLVM.

    Attributes:
        unrolled: number of steps of the innermost reduction that are written out.
    """

    tasks: int = TASKS
    order: tuple[int, ...] = ()
    unrolled: int = 1


@dataclass(frozen=True)
class Flat(Schedule):
    """All loops fused into one, in blocks of ``width`` (for short inner axes)."""

    width: int
    tasks: int = TASKS


@dataclass(frozen=True)
class Tile(Schedule):
    """Blocks of ``height`` by ``width`` of two loops (for transposes).

    Attributes:
        across: whether the inner loop of a block runs along the neighbours of the argument, and not
            of the result.
    """

    height: int
    width: int
    across: bool = False
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lanes(Schedule):
    """``width`` results of the inner loop are accumulated in registers."""

    width: int
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fold(Schedule):
    """``width`` partial results of the innermost reduction are accumulated, and combined at its
    end."""

    width: int
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Block(Schedule):
    """``rows`` by ``columns`` results are accumulated in registers, so that each value that is
    loaded is used several times.

    Attributes:
        rows_together, columns_together: number of blocks, along rows and along columns, that one
            task computes together.
        packed: the position of the constant argument that is stored in panels, in the order in
            which blocks read it (``lower/panels.py``); -1 if none is.
        ahead: whether the next panel is fetched into the second-level cache while the blocks of
            one panel are computed.
    """

    rows: int
    columns: int
    rows_together: int = 1
    columns_together: int = 1
    unrolled: int = 1
    tasks: int = TASKS
    order: tuple[int, ...] = ()
    packed: int = -1
    ahead: bool = False

    @property
    def _held(self) -> tuple[int, int]:
        return self.rows, self.columns


@dataclass(frozen=True)
class Matrices(Schedule):
    """A tile is read once, multiplied by matrices of literals along one axis after another in
    registers, and written once, for ``width`` neighbours at a time."""

    width: int
    tasks: int = TASKS


@dataclass(frozen=True)
class Band(Schedule):
    """``rows`` by ``columns`` results of a band product are accumulated in registers. The operand
    that moves with the band is read from a packed copy of its rows.

    Attributes:
        panel: number of rows, equal modulo the dilation, that share a packed copy.
    """

    rows: int
    columns: int
    panel: int
    tasks: int = TASKS

    @property
    def _held(self) -> tuple[int, int]:
        return self.rows, self.columns


@dataclass(frozen=True)
class Chain(Schedule):
    """The scopes of a row chain are computed for one row after the other, and what one of them
    reads of another stays in memory for a single row. A reduction along neighbours accumulates
    ``width`` partial results."""

    width: int
    tasks: int = TASKS


# ---- of blocks of threads with shared memory ------------------------------------------------


@dataclass(frozen=True)
class Grid(Schedule):
    """Each of the ``threads`` threads of a block computes ``each`` results, which are ``threads``
    apart.

    Attributes:
        vector: number of neighbours that are read, computed and written together.
        unrolled: number of steps of the innermost reduction that are written out.
    """

    threads: int
    each: int = 1
    vector: int = 1
    unrolled: int = 1


@dataclass(frozen=True)
class Team(Schedule):
    """``threads`` threads compute one result of a reduction, and combine their parts in shared
    memory.

    Attributes:
        teams: number of such teams in a block.
    """

    threads: int
    teams: int = 1


@dataclass(frozen=True)
class Turn(Schedule):
    """A square tile is read along the argument's neighbours into shared memory, and written from
    there along the result's (for transposes). ``side`` threads by ``rows`` rows work on it."""

    side: int
    rows: int


@dataclass(frozen=True)
class Tiles(Schedule):
    """A block of ``rows`` by ``columns`` threads computes ``rows * down`` by ``columns * along``
    results of a contraction; each thread holds ``down`` by ``along`` of them in registers.

    Attributes:
        depth: number of steps of the innermost reduction whose operands are in shared memory at a
            time.
        unrolled: whether these steps are written out.
    """

    rows: int
    columns: int
    down: int
    along: int
    depth: int
    unrolled: bool = False

    @property
    def _held(self) -> tuple[int, int]:
        return self.down, self.along


KINDS: Final[Mapping[str, type[Schedule]]] = {
    kind.__name__.lower(): kind
    for kind in (
        Rows, Flat, Tile, Lanes, Fold, Block, Matrices, Band, Chain, Grid, Team, Turn, Tiles
    )
}  # fmt: skip
CLASSES: Final = kept.classes(*KINDS.values())
"""The classes that a cached file with schedules may contain."""


def schedule_to_data(schedule: Schedule | str) -> Any:
    """Return a schedule as its kind and its fields; a string is returned unchanged."""
    if isinstance(schedule, str):
        return schedule
    values = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    lists = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return [type(schedule).__name__.lower(), lists]


def schedule_from_data(data: Any) -> Schedule | str:
    """The inverse of :func:`schedule_to_data`. A field that the data lack, since its kind had no
    such field when they were written, has its default value.

    Raises:
        ValueError: the data is no schedule.
    """
    if isinstance(data, str):
        return data
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[1], dict):
        raise ValueError("no schedule")
    name, values = data
    kind = KINDS.get(name) if isinstance(name, str) else None
    known = {field.name: field.default for field in fields(kind)} if kind is not None else {}
    needed = {name for name, default in known.items() if default is MISSING}
    if kind is None or not needed <= values.keys() <= known.keys():
        raise ValueError(f"no schedule {str(name)[:100]!r}")
    return kind(**{name: _value(known[name], value) for name, value in values.items()})


def _value(default: object, value: Any) -> object:
    """Check and convert a field's value: it has the type of the field's default; sizes, which have
    no default, are integers."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(type(v) is int for v in value):
            raise ValueError("an order is a list of positions")
        return tuple(value)
    if type(value) is not (bool if isinstance(default, bool) else int):
        raise ValueError(f"{str(value)[:100]} is no size")
    return value
