"""The schedule spaces of loop nests on a CPU, one for each class of nest.

    map          no reduction          rows, flat, tile
    reduction    bound by memory       rows, lanes, fold, block
    contraction  bound by arithmetic   block
    band product bound by arithmetic   band
    row chain    bound by memory       chain

A space refuses points that are no schedules of the nest, and points that need more registers, cache
or code than is useful. Other devices have spaces of their own. Not here: which schedules are
offered without a search (``schedules.py``), searching (``tuning/``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from eqsynth.extract.schedule import (
    TASKS,
    Band,
    Block,
    Chain,
    Flat,
    Fold,
    Lanes,
    Matrices,
    Rows,
    Schedule,
    Tile,
)
from eqsynth.ir.tensor import args_of
from eqsynth.ir.types import ITEMSIZE
from eqsynth.ir.work import flops, operations
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.bands import HALF, band_product, panel_elements
from eqsynth.lower.loop_nest import LoopNest
from eqsynth.lower.machine import LANES, Machine
from eqsynth.lower.matrices import tiles_of
from eqsynth.lower.schedules import (
    ONE_ROW,
    PARALLEL_GRAIN,
    band,
    block,
    block_loops,
    fetching_ahead,
    loops_of_block,
    one_row,
    outer_extents,
    plain_block,
    refusal,
    schedules,
    tile_loop,
)
from eqsynth.tuning.parameters import (
    Category,
    Discrete,
    Factorization,
    Parameter,
    Permutation,
    smooth,
)
from eqsynth.tuning.space import Point, Refused, Space

MOST_CODE: Final = 2048
"""The most operations that may be written out in the innermost part of a kernel. More of them take
seconds to compile, and don't fit into the instruction cache."""

Kind = type[Schedule]

_WIDTHS: Final = (8, 16, 32, 64, 128, 256)
_HEIGHTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
_NEIGHBOURS: Final = (8, 16, 24, 32, 48, 64)
_TASKS: Final = (4, 16, TASKS, 256, 1024)
# The sides of a tile are factors of the extents, after these are rounded up to a multiple of this.
_TILE: Final = 48


def space_of(
    nest: LoopNest, machine: Machine, by_memory: bool = True, constants: Sequence[bool] = ()
) -> Space[Schedule]:
    """The space of a nest.

    The sides of blocks and tiles are factors of the loops' extents, after these are rounded up to
    numbers with many factors. A side that doesn't divide the extent leaves a rest.

    Args:
        by_memory: whether memory bounds the nest, and not arithmetic.
        constants: for each argument, whether it is known when the kernel is built. A constant
            operand of a contraction is stored in panels.
    """
    loops = None if by_memory else block_loops(nest.for_blocks)
    nest = nest if loops is None else nest.for_blocks
    offered: list[Schedule] = []
    if not by_memory and loops is None:
        offered += band(nest, machine)
    alone = one_row(nest, machine, constants) if by_memory else None
    kinds = (Band,) if offered else (Block,) if alone else _kinds(nest, loops is not None)
    if alone is not None:
        offered = [alone]
    elif loops is not None:
        # ``block`` offers nothing if no cache holds the operand that is read again, but the search
        # needs a schedule to begin with.
        offered = [block(nest, machine, constants) or plain_block(nest, loops, machine)]
    elif not offered:
        offered = list(schedules(nest))
    usual = next((s for s in offered if isinstance(s, Block)), None)
    packed = -1 if usual is None else usual.packed
    parameters = _parameters(nest, machine, kinds, usual)
    limits = [_registers(nest, schedule, machine) for schedule in offered]
    most = max([machine.registers, *limits])

    def make(values: Mapping[str, Any]) -> Schedule | Refused:
        schedule = _schedule(nest, values)
        if isinstance(schedule, Block):
            schedule = fetching_ahead(nest, replace(schedule, packed=packed), machine)
        if isinstance(schedule, Refused) or schedule in offered:
            return schedule
        why = refusal(nest, schedule) or _idle(nest, schedule)
        why = why or _too_much(nest, schedule, machine, most)
        return schedule if why is None else Refused(why)

    def place(schedule: Schedule) -> Point | None:
        point = _point(nest, schedule, parameters)
        inside = all(v in p for v, p in zip(point, parameters.values(), strict=True))
        named = dict(zip(parameters, point, strict=True))
        return point if inside and make(named) == schedule else None

    starts = [point for point in map(place, offered) if point is not None]
    return Space(parameters, make, place, tuple(starts))


def _parameters(
    nest: LoopNest, machine: Machine, kinds: tuple[Kind, ...], usual: Block | None
) -> dict[str, Parameter]:
    """The parameters of the space, by name.

    Args:
        usual: the block that is offered, if one is.
    """
    if kinds == (Band,):
        return _of_bands(nest)
    found: dict[str, Parameter] = {}
    if len(kinds) > 1:
        found["kind"] = Category(kinds)
    if {Flat, Lanes, Fold, Matrices, Chain} & set(kinds):
        found["width"] = Discrete(_WIDTHS)
    if Tile in kinds:
        position = tile_loop(nest)
        assert position is not None
        column, row = nest.traversal[position], nest.traversal[-1]
        found["height"] = Factorization(smooth(column.extent, _TILE), 2)
        found["along"] = Factorization(smooth(row.extent, _TILE), 2)
        found["across"] = Category((False, True))
    loops = block_loops(nest) if usual is None else loops_of_block(nest, usual)
    if Block in kinds:
        assert loops is not None
        row, column = loops
        usual = usual or plain_block(nest, loops, machine)
        base = math.lcm(24, usual.rows)
        found["rows"] = Factorization(smooth(row.extent, base), 3)
        base = math.lcm(12, usual.columns // HALF)
        found["columns"] = Factorization(smooth(-(-column.extent // HALF), base), 3)
    if nest.reduction:
        found["depth"] = Factorization(nest.reduction[-1].extent, 2)
    in_order = kinds != (Chain,) and not (loops and loops[0].slot == ONE_ROW)
    if len(nest.traversal) > 1 and in_order:
        found["order"] = Permutation(len(nest.traversal))
    if nest.work >= PARALLEL_GRAIN:
        found["tasks"] = Discrete(_TASKS)
    return found


def _of_bands(nest: LoopNest) -> dict[str, Parameter]:
    """The parameters of the space of a band product."""
    product = band_product(nest)
    assert product is not None
    panels = [product.rows]
    while panels[-1] > 1:
        panels.append(-(-panels[-1] // 2))
    found: dict[str, Parameter] = {
        "height": Discrete(_HEIGHTS),
        "width": Discrete(_NEIGHBOURS),
        "panel": Discrete(tuple(reversed(panels))),
    }
    if nest.work >= PARALLEL_GRAIN:
        found["tasks"] = Discrete(_TASKS)
    return found


def _kinds(nest: LoopNest, by_arithmetic: bool) -> tuple[Kind, ...]:
    """The kinds of schedules that a nest may have, with some sizes."""
    if by_arithmetic:
        return (Block,)
    tried: list[Schedule] = [Rows(), Flat(1), Tile(1, 1), Lanes(HALF), Fold(HALF)]
    tried += [Matrices(HALF), Chain(HALF)]
    if block_loops(nest) is not None:  # and not only those of a padded copy (``for_blocks``)
        tried.append(Block(1, HALF))
    return tuple(type(schedule) for schedule in tried if refusal(nest, schedule) is None)


def _schedule(nest: LoopNest, values: Mapping[str, Any]) -> Schedule | Refused:
    """The schedule that values of the parameters describe."""
    kind = values.get("kind", Block if "rows" in values else Rows)
    tasks, order = values.get("tasks", TASKS), values.get("order", ())
    if "panel" in values:
        return Band(values["height"], values["width"], values["panel"], tasks)
    if nest.before:
        return Chain(values["width"], tasks)
    unrolled = values["depth"][1] if "depth" in values else 1
    if order == tuple(range(len(order))):
        order = ()
    if kind is Rows:
        if order and order[-1] != len(order) - 1:
            return Refused("the innermost loop of rows stays innermost")
        return Rows(unrolled=unrolled, tasks=tasks, order=order[:-1])
    if kind in (Flat, Matrices):
        return kind(values["width"], tasks=tasks)  # type: ignore[no-any-return]
    if kind is Tile:
        sides = values["height"][1], values["along"][1]
        return Tile(*sides, across=values["across"], tasks=tasks, order=order)
    if kind is Block:
        _, high, rows = values["rows"]
        _, wide, columns = values["columns"]
        return Block(rows, columns * HALF, high, wide, unrolled, tasks, order)
    return kind(values["width"], unrolled, tasks, order)  # type: ignore[no-any-return]


def _point(nest: LoopNest, schedule: Schedule, parameters: Mapping[str, Parameter]) -> Point:
    """The point that describes a schedule. A parameter that the schedule doesn't use has its first
    value."""
    values: dict[str, Any] = {name: next(p.values()) for name, p in parameters.items()}
    count = len(nest.traversal)
    values |= {"kind": type(schedule), "tasks": getattr(schedule, "tasks", TASKS)}
    values["order"] = tuple(range(count))
    order = getattr(schedule, "order", ())
    if order:
        values["order"] = (*order, *range(len(order), count))

    def split(name: str, *inner: int) -> None:
        parameter = parameters.get(name)
        if isinstance(parameter, Factorization):
            values[name] = (parameter.product // math.prod(inner), *inner)

    split("depth", getattr(schedule, "unrolled", 1))
    match schedule:
        case Tile(height=height, width=width, across=across):
            split("height", height)
            split("along", width)
            values["across"] = across
        case Block(rows=rows, columns=columns):
            split("rows", schedule.rows_together, rows)
            split("columns", schedule.columns_together, columns // HALF)
        case (
            Flat(width=width)
            | Lanes(width=width)
            | Fold(width=width)
            | Matrices(width=width)
            | Chain(width=width)
        ):
            values["width"] = width
        case Band(rows=rows, columns=columns, panel=panel):
            values |= {"height": rows, "width": columns, "panel": panel}
    return tuple(values[name] for name in parameters)


def _idle(nest: LoopNest, schedule: Schedule) -> str | None:
    """Why a schedule computes the same as another one whose fields are smaller or in order, so that
    it needs no point of its own; None if it doesn't."""
    order = getattr(schedule, "order", ())
    extents = outer_extents(nest, schedule) if order else ()
    if any(extents[k] == 1 and at != k for at, k in enumerate(order)):
        return "a loop of one step has no place of its own in an order"
    if isinstance(schedule, Block):
        loops = loops_of_block(nest, schedule)
        assert loops is not None
        sizes = schedule.rows, schedule.columns
        together = schedule.rows_together, schedule.columns_together
        for loop, size, count in zip(loops, sizes, together, strict=True):
            if count > 1 and count > loop.extent // size:
                return "a task has more blocks than there are"
    if isinstance(schedule, Tile):
        position = tile_loop(nest)
        assert position is not None
        extents = nest.traversal[position].extent, nest.traversal[-1].extent
        if schedule.height > extents[0] or schedule.width > extents[1]:
            return "a tile is larger than what is tiled"
    return None


def _too_much(nest: LoopNest, schedule: Schedule, machine: Machine, most: int) -> str | None:
    """The resource of which a schedule takes too much (registers, code, cache), as text; None if
    there is none."""
    if _registers(nest, schedule, machine) > most:
        return "the registers don't hold it"
    if _code(nest, schedule) > MOST_CODE:
        return "too many steps are written out"
    moved = max(ITEMSIZE[tensor.dtype] for tensor in (*args_of(nest.scope), nest.scope))
    if isinstance(schedule, Tile) and 2 * schedule.height * schedule.width * moved > (
        machine.cached_bytes
    ):
        return "the cache doesn't hold a tile"
    if isinstance(schedule, Band):
        product = band_product(nest)
        assert product is not None
        smaller = replace(schedule, panel=-(-schedule.panel // 2))
        if smaller.panel >= 2 * schedule.rows and (
            panel_elements(product, schedule) * moved > machine.cached_bytes
        ):
            return "the cache doesn't hold a panel"
    if isinstance(schedule, Block):
        rows = schedule.rows * schedule.rows_together
        columns = schedule.columns * schedule.columns_together
        together = schedule.rows_together * schedule.columns_together > 1
        depth = math.prod(loop.extent for loop in nest.reduction)
        if together and (min(rows, columns) * depth + rows * columns) * moved > (
            machine.cached_bytes
        ):
            return "the cache doesn't hold what the blocks of a task share"
    return None


def _registers(nest: LoopNest, schedule: Schedule, machine: Machine) -> int:
    """The vector registers that the unfinished results and the operands of one step take."""
    kinds = (accumulation(each.scope)[0] for each in (nest, *nest.before))
    size = max(4, *(ITEMSIZE[kind] for kind in kinds))
    match schedule:
        case Lanes(width=width) | Fold(width=width) | Matrices(width=width) | Chain(width=width):
            return -(-width * size // machine.register_bytes)
        case Block(rows=rows, columns=columns) | Band(rows=rows, columns=columns):
            wide = -(-columns * size // machine.register_bytes)
            return (rows + 1) * wide + 1
    return 1


def _code(nest: LoopNest, schedule: Schedule) -> int:
    """The number of vector operations that the innermost part writes out."""
    vectors = 1
    match schedule:
        case Lanes(width=width) | Fold(width=width) | Chain(width=width):
            vectors = -(-width // LANES)
        case Block(rows=rows, columns=columns):
            vectors = rows * -(-columns // LANES)
        case Band(rows=rows, columns=columns):
            product = band_product(nest)
            assert product is not None
            vectors = rows * -(-columns // LANES) * (1 if product.across else rows)
        case Matrices(width=width):
            tiles = tiles_of(nest)
            assert tiles is not None
            around = math.prod(loop.extent for loop in (*tiles.loops, tiles.lanes))
            return -(-width // LANES) * -(-flops(nest.scope) // around)
    steps = getattr(schedule, "unrolled", 1)
    most = max(operations(each.scope.body) for each in (nest, *nest.before))
    return vectors * int(steps) * (most + 1)
