"""The schedules of loop nests on a GPU: which ones are right for a nest, which ones are offered
without a search, and the space that a tuner searches.

    map          no reduction          grid, turn
    reduction    bound by memory       grid, team
    contraction  bound by arithmetic   tiles

Not here: the code of a schedule (``emitter.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eqsynth.extract.schedule import Grid, Schedule, Team, Tiles, Turn
from eqsynth.ir.tensor import args_of
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.loop_nest import Access, Loop, LoopNest
from eqsynth.lower.scalar_functions import arithmetic
from eqsynth.lower.schedules import block_loops, contiguous_along, tile_loop, written_out
from eqsynth.tuning.parameters import Category, Discrete, Factorization, Parameter, smooth
from eqsynth.tuning.space import Point, Refused, Space

WARP: Final = 32


@dataclass(frozen=True)
class Multiprocessor:
    """The limits of a block of threads.

    Attributes:
        threads: threads of a block.
        shared_bytes: shared memory of a block that the driver gives without a special request.
        registers: registers of a thread, of 4 bytes each.
    """

    threads: int = 1024
    shared_bytes: int = 48 << 10
    registers: int = 255


def refusal(nest: LoopNest, schedule: Schedule, limits: Multiprocessor | None = None) -> str | None:
    """Return why a nest can't have a schedule; None if the schedule's kernel is right and can be
    launched."""
    limits = limits or Multiprocessor()
    traversal, reduction = nest.traversal, nest.reduction
    match schedule:
        case Grid(threads=threads, each=each, vector=vector, unrolled=unrolled):
            if min(threads, each, vector, unrolled) < 1:
                return "a size is less than 1"
            if vector > 1 and not _vectors(nest, vector):
                return "neighbours don't lie so that they can be read at once"
            if unrolled > 1 and (
                not reduction or written_out(nest) or reduction[-1].extent % unrolled
            ):
                return "the steps that are written out don't divide the reduction"
        case Team(threads=threads, teams=teams):
            if min(threads, teams) < 1 or threads & (threads - 1):
                return "partial results are combined by halves"
            if not reduction or 0 in nest.scope.reduction:
                return "there is no reduction"
            threads *= teams
        case Turn(side=side, rows=rows):
            if min(side, rows) < 1 or side % rows:
                return "the rows of threads don't divide the side"
            if reduction or not traversal or tile_loop(nest) is None:
                return "no loop reads along memory that isn't written along it"
            threads = side * rows
        case Tiles():
            why = _no_tiles(nest, schedule)
            if why is not None:
                return why
            threads = schedule.rows * schedule.columns
        case _:
            return f"there are no threads in {type(schedule).__name__}"
    if threads > limits.threads:
        return "a block has more threads than there may be"
    if shared_bytes(nest, schedule) > limits.shared_bytes:
        return "the shared memory doesn't hold it"
    if _registers(nest, schedule) > limits.registers:
        return "the registers don't hold it"
    return None


def _no_tiles(nest: LoopNest, schedule: Tiles) -> str | None:
    sizes = (schedule.rows, schedule.columns, schedule.down, schedule.along, schedule.depth)
    if min(sizes) < 1:
        return "a size is less than 1"
    if block_loops(nest) is None or 0 in nest.scope.reduction:
        return "no two loops use the operands again"
    if schedule.depth > nest.reduction[-1].extent:
        return "the reduction is shorter than the depth"
    if schedule.unrolled and nest.reduction[-1].extent % schedule.depth:
        return "the depth doesn't divide the reduction"
    return None


def staged(nest: LoopNest, access: Access, loops: tuple[Loop, Loop]) -> Loop | None:
    """The loop along which an operand of a contraction is copied to shared memory; None if it isn't
    copied. It is copied if it moves along exactly one of the two loops, and along the innermost
    reduction: its part of a chunk is then a matrix whose elements are read several times."""
    moving = [loop for loop in loops if access.stride(loop.slot) != 0]
    deep = access.stride(nest.reduction[-1].slot) != 0
    return moving[0] if deep and len(moving) == 1 else None


def _vectors(nest: LoopNest, vector: int) -> bool:
    """Whether neighbours along the innermost loop can be read ``vector`` at a time: they are 4-byte
    numbers, and begin at multiples of ``vector``."""
    if vector not in (2, 4) or nest.reduction or not nest.traversal:
        return False
    loop = nest.traversal[-1]
    kinds = {arg.dtype for arg in (*args_of(nest.scope), nest.scope)}
    if loop.extent % vector or kinds != {"float32"} or not contiguous_along(nest, loop):
        return False
    for index in (nest.output, *(access.address for access in nest.accesses.values())):
        step = index.coefficient(loop.slot)
        # An operand that is the same for all neighbours is read once, at any address.
        rest = [c for atom, c in index.terms if atom not in _own(index, loop)]
        if step == 1 and any(value % vector for value in (index.const, *rest)):
            return False
    return nest.output.coefficient(loop.slot) == 1


def _own(index: Any, loop: Loop) -> list[Any]:
    return [atom for atom, _ in index.terms if getattr(atom, "slot", None) == loop.slot]


def shared_bytes(nest: LoopNest, schedule: Schedule) -> int:
    """The shared memory of a block in bytes."""
    size = ITEMSIZE[arithmetic(accumulation(nest.scope)[0])]
    match schedule:
        case Team(threads=threads, teams=teams):
            return size * threads * teams
        case Turn(side=side):
            return size * side * (side + 1)
        case Tiles(depth=depth):
            loops = block_loops(nest)
            assert loops is not None
            found = [staged(nest, access, loops) for access in nest.accesses.values()]
            sides = {loops[0]: schedule.rows * schedule.down}
            sides[loops[1]] = schedule.columns * schedule.along
            return size * depth * sum(sides[along] for along in found if along is not None)
    return 0


def _registers(nest: LoopNest, schedule: Schedule) -> int:
    """The registers that a thread needs for its results, the operands of one step, and some
    addresses."""
    words = max(1, ITEMSIZE[arithmetic(accumulation(nest.scope)[0])] // 4)
    if isinstance(schedule, Tiles):
        held = schedule.down * schedule.along + schedule.down + schedule.along
        return held * words + 24
    return 0


# ---- without a search -----------------------------------------------------------------------


def offered(nest: LoopNest, by_memory: bool) -> tuple[Schedule, ...]:
    """The schedules of a nest that are worth timing without a search, the safest first."""
    found: list[Schedule] = []
    if not by_memory:
        loops = block_loops(nest)
        if loops is not None:
            depth = min(16, nest.reduction[-1].extent)
            found = [Tiles(8, 16, 4, 4, depth), Tiles(16, 16, 8, 8, min(8, depth)),
                     Tiles(4, 32, 2, 2, depth)]  # fmt: skip
        return tuple(s for s in found if refusal(nest, s) is None) or (Grid(128),)
    if nest.reduction:
        steps = math.prod(loop.extent for loop in nest.reduction)
        teams = [Team(WARP, 8), Team(256)] if steps >= WARP else []
        found = [Grid(128), *teams]
    else:
        found = [Grid(256), Grid(256, vector=4), Grid(256, each=4), Turn(32, 8)]
    return tuple(s for s in found if refusal(nest, s) is None)


# ---- the space ------------------------------------------------------------------------------

_THREADS: Final = (32, 64, 128, 256, 512, 1024)


def space_of(
    nest: LoopNest, by_memory: bool = True, limits: Multiprocessor | None = None
) -> Space[Schedule]:
    """Return the space of a nest's schedules.

    Args:
        by_memory: whether the nest is bound by memory, and not by arithmetic.
    """
    parameters = _parameters(nest, by_memory)

    def make(values: Mapping[str, Any]) -> Schedule | Refused:
        schedule = _schedule(values)
        why = refusal(nest, schedule, limits)
        return schedule if why is None else Refused(why)

    def place(schedule: Schedule) -> Point | None:
        point = _point(schedule, parameters)
        inside = all(v in p for v, p in zip(point, parameters.values(), strict=True))
        named = dict(zip(parameters, point, strict=True))
        return point if inside and make(named) == schedule else None

    starts = [point for point in map(place, offered(nest, by_memory)) if point is not None]
    return Space(parameters, make, place, tuple(starts))


def _parameters(nest: LoopNest, by_memory: bool) -> dict[str, Parameter]:
    """The parameters of a nest's space: of tiles for a contraction, else of the other kinds of
    schedules."""
    loops = None if by_memory else block_loops(nest)
    if loops is not None:
        row, column = (smooth(loop.extent, 64) for loop in loops)
        return {
            # The factors: number of tiles, threads of a tile, results of a thread.
            "rows": Factorization(row, 3),
            "columns": Factorization(column, 3),
            "depth": Discrete((4, 8, 16, 32)),
            "unrolled": Category((False, True)),
        }
    found: dict[str, Parameter] = {}
    kinds: list[type[Schedule]] = [Grid]
    if nest.reduction:
        kinds.append(Team)
        found["teams"] = Discrete((1, 2, 4, 8, 16))
        found["unrolled"] = Discrete((1, 2, 4, 8))
    else:
        found["each"] = Discrete((1, 2, 4, 8))
        found["vector"] = Discrete((1, 2, 4))
        if nest.traversal and tile_loop(nest) is not None:
            kinds.append(Turn)
            found["side"] = Discrete((8, 16, 32, 64))
            found["rows"] = Discrete((1, 2, 4, 8, 16, 32))
    found["threads"] = Discrete((4, 8, 16, *_THREADS) if nest.reduction else _THREADS)
    if len(kinds) > 1:
        found["kind"] = Category(tuple(kinds))
    return found


def _schedule(values: Mapping[str, Any]) -> Schedule:
    """The schedule that a point's values mean."""
    if "columns" in values:
        _, rows, down = values["rows"]
        _, columns, along = values["columns"]
        return Tiles(rows, columns, down, along, values["depth"], values["unrolled"])
    kind = values.get("kind", Grid)
    if kind is Team:
        return Team(values["threads"], values["teams"])
    if kind is Turn:
        return Turn(values["side"], values["rows"])
    rest = {name: values[name] for name in ("each", "vector", "unrolled") if name in values}
    return Grid(values["threads"], **rest)


def _point(schedule: Schedule, parameters: Mapping[str, Parameter]) -> Point:
    """Return the point that means a schedule, if there is one. Parameters that the schedule doesn't
    use have their first values."""
    values: dict[str, Any] = {name: next(p.values()) for name, p in parameters.items()}
    values["kind"] = type(schedule)
    if isinstance(schedule, Tiles):
        for name, inner in (
            ("rows", (schedule.rows, schedule.down)),
            ("columns", (schedule.columns, schedule.along)),
        ):
            parameter = parameters.get(name)
            if isinstance(parameter, Factorization):
                values[name] = (parameter.product // math.prod(inner), *inner)
        values |= {"depth": schedule.depth, "unrolled": schedule.unrolled}
    else:
        values |= {name: getattr(schedule, name) for name in parameters if hasattr(schedule, name)}
    return tuple(values[name] for name in parameters)
