"""Which schedules a loop nest has: those offered without a search, and whether a given one fits.

Example: for a row sum of (64, 1024), whose reduction reads neighbouring elements, ``schedules``
offers ``Fold(16)`` and ``Fold(64)``; ``refusal(nest, Tile(8, 16))`` says why a tile doesn't fit.

Not here: the spaces that a search goes through (``spaces.py``), the loops of a schedule
(``eoperators.py``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from eqsynth.extract.schedule import (
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
from eqsynth.ir.scalar import leaves
from eqsynth.ir.tensor import args_of, is_literal
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.bands import HALF, band_product, panel_elements
from eqsynth.lower.block_sizes import block_size
from eqsynth.lower.loop_nest import Loop, LoopNest
from eqsynth.lower.machine import LANES, Machine
from eqsynth.lower.matrices import tiles_of
from eqsynth.lower.panels import COLUMNS, ROWS, Panels, panels

# Loops over a reduction of at most this many steps are unrolled.
UNROLL: Final = 16
# Below this many evaluations of the body, waking a second thread costs more than it saves.
PARALLEL_GRAIN: Final = 16384
# The most bytes that a kernel holds for one row. They lie on a thread's stack, and half of a
# second-level cache holds them.
ON_STACK_BYTES: Final = 256 << 10
# Additions that a core has begun and not finished: two a cycle, four cycles each.
IN_FLIGHT: Final = 8
# The slot of the loop over rows where a product has one row and no loop over it.
ONE_ROW: Final = -21
# The innermost loop of a block's reduction is written out if it has so few steps, as the 3 or 7 of
# a convolution's window. (ResNet-18's first convolution: 2.6 -> 2.0 ms.)
FEW_STEPS: Final = 8


def schedules(nest: LoopNest) -> tuple[Schedule, ...]:
    """The schedules worth timing for a nest that memory bounds, the safest first."""
    if nest.before:
        offered = Chain(_fold_width(nest))
        return (offered,) if refusal(nest, offered) is None else ()
    if not nest.traversal and not nest.reduction or not nest.work:
        return (Rows(),)
    tiles = tiles_of(nest)
    if tiles is None and _reads_literals(nest):
        return ()
    if tiles is not None:
        widths = (LANES, LANES // 2)
        return tuple(Matrices(width) for width in widths if width <= tiles.lanes.extent)[:1]
    found: list[Schedule] = []
    if not nest.reduction:
        found.append(Rows())
        if nest.after is not None:
            return tuple(found)
        if len(nest.traversal) > 1 and nest.traversal[-1].extent < 32:
            found.append(Flat(16))
        position = tile_loop(nest)
        if position is not None:
            column, row = nest.traversal[position], nest.traversal[-1]
            width = _tile_side(row)
            found += dict.fromkeys((Tile(_tile_side(column), width), Tile(LANES // 2, width)))
        return tuple(found)
    if nest.traversal and nest.traversal[-1].extent >= LANES:
        loop = nest.traversal[-1]
        if contiguous_along(nest, loop):
            found += [Lanes(16), Lanes(64)] if loop.extent >= 64 else [Lanes(16)]
    loop = nest.reduction[-1]
    if loop.extent >= LANES and contiguous_along(nest, loop):
        found += [Fold(16), Fold(64)] if loop.extent >= 128 else [Fold(16)]
    # LLVM vectorizes plain loops over results if the reduction is short enough to be unrolled; for
    # a long one it does not, and then rows are offered only if nothing else is.
    return (Rows(), *found) if written_out(nest) or not found else tuple(found)


def _fold_width(chain: LoopNest) -> int:
    """As many partial results as the longest reduction of a chain is worth."""
    steps = (nest.reduction[-1].extent for nest in (*chain.before, chain) if nest.reduction)
    return 4 * LANES if max(steps, default=0) >= 8 * LANES else LANES


def _reads_literals(nest: LoopNest) -> bool:
    """Whether a nest with a map after it reads literals. They aren't arguments of a region: their
    numbers become part of the code of ``Matrices``, and of no other schedule."""
    return nest.after is not None and any(map(is_literal, args_of(nest.scope)))


def folds(nest: LoopNest, width: int) -> bool:
    """Whether one result of a reduction is accumulated in ``width`` partial results."""
    if not nest.reduction or not nest.work:
        return False
    inner = nest.reduction[-1]
    return inner.extent >= width and contiguous_along(nest, inner)


def row_bytes(chain: LoopNest) -> int:
    """The bytes of what a chain holds for one row."""
    return sum(
        ITEMSIZE[nest.scope.dtype] * math.prod(loop.extent for loop in nest.in_a_row)
        for nest in chain.before
    )


def _tile_side(loop: Loop) -> int:
    """A vector; half of one if that leaves no rest, since a rest isn't transposed in registers."""
    half = LANES // 2
    return half if loop.extent < LANES or loop.extent % LANES == half else LANES


def block(nest: LoopNest, machine: Machine, constants: Sequence[bool] = ()) -> Block | None:
    """The schedule of a contraction that arithmetic bounds; None if the nest has none.

    A constant operand is stored in panels, and each panel is read once, if what is read again
    beside it fits into the second-level cache. Otherwise the operand of the columns is read again
    by each block of rows, and has to fit. If it does, the operand of the rows may come from the
    last cache, since a block reads few elements of it: 4 to 6 for 16 of the other. (A 3x3
    convolution of 512 channels at 28x28: 150 of 153 GFLOP/s, its image of 1.8 MB read by each
    panel.)

    If both orders fit, the one that reads less of the columns' operand again is taken. (A 3x3
    convolution of 12 channels at 64x64 into NCHW, whose panels hold channels: the image is read
    again for each panel, or the panels for each row of the image; AMD EPYC: 0.158 and 0.106 ms.)

    If the rows of a batch's products lie side by side, in the rows' operand and in the result, and
    all columns' operands fit into the second-level cache, blocks of rows are outside of the batch:
    then memory is passed through once and not once for each product. (24 products of 6,272 rows by
    64 by 64, AMD EPYC: 10.3 -> 6.3 ms; 1,568 rows by 64 by 128: 3.7 -> 2.9.)

    Args:
        constants: for each argument, whether it is known when the kernel is built.
    """
    nest = nest.for_blocks
    loops = block_loops(nest)
    if loops is None:
        return None
    plain = plain_block(nest, loops, machine)
    # Those that only the map reads, such as a bias, are read once for each result.
    own = {*leaves(nest.scope.body)}
    multiplied = {access.argument for read, access in nest.accesses.items() if read in own}
    packed = [replace(plain, packed=n) for n in sorted(multiplied) if any(constants[n : n + 1])]
    packed = [schedule for schedule in packed if panels_of(nest, schedule) is not None]
    for each in (*packed, plain) if _lie_side_by_side(nest, loops, machine) else ():
        schedule = _batch_inside(nest, each, loops)
        if _read_again(nest, schedule, loops) <= 2 * machine.cached_bytes:
            return fetching_ahead(nest, schedule, machine)
    offered = [*(_panels_outside(nest, each) for each in packed),
               *(_columns_inside(nest, each, loops) for each in (*packed, plain))]  # fmt: skip
    held = [each for each in offered if _read_again(nest, each, loops) <= machine.cached_bytes]
    if held:
        nearest = min(held, key=lambda each: _read_again(nest, each, loops, by_columns=True))
        return fetching_ahead(nest, nearest, machine)
    for schedule in offered:
        near = _read_again(nest, schedule, loops, by_columns=True)
        far = _read_again(nest, schedule, loops)
        if near <= machine.cached_bytes and far <= machine.shared_bytes:
            return fetching_ahead(nest, schedule, machine)
    return None


def one_row(nest: LoopNest, machine: Machine, constants: Sequence[bool]) -> Block | None:
    """The schedule of a product of one row by a constant matrix, which memory bounds: panels of
    `IN_FLIGHT` vectors of columns, read from the beginning to the end. None if the nest is no such
    product, or is small. (1 by 512 by 2,048 from the last cache, AMD EPYC: 36 us; as the
    matrix lies, 50 by ``Lanes(64)``; turned, 39 by ``Fold(16)``, 44 by ``Fold(64)``.)

    Args:
        constants: for each argument, whether it is known when the kernel is built.
    """
    nest = nest.for_blocks
    if nest.before or not nest.traversal or nest.work < PARALLEL_GRAIN or block_loops(nest):
        return None
    size = max(4, ITEMSIZE[accumulation(nest.scope)[0]])
    columns = IN_FLIGHT * machine.register_bytes // size
    for packed in (n for n, constant in enumerate(constants) if constant):
        found = Block(1, columns, packed=packed)
        if nest.traversal[-1].extent >= columns and refusal(nest, found) is None:
            return found
    return None


def fetching_ahead(nest: LoopNest, schedule: Block, machine: Machine) -> Block:
    """The schedule with ``ahead``, if some blocks use a panel before the next one is used, and the
    second-level cache doesn't hold all panels. (A product of 128 rows by a weight of 768 by 3,072
    from the last cache: 273 -> 353 GFLOP/s. A 1x1 convolution of 12 to 56 channels, with weights of
    2.7 KB: 108 GFLOP/s without it and 98 with it.)"""
    made = panels_of(nest, schedule)
    far = made is not None and nest.itemsize(made.access) * made.size > machine.cached_bytes
    return replace(schedule, ahead=far and _has_next_panels(nest, schedule))


def _has_next_panels(nest: LoopNest, schedule: Block) -> bool:
    """Whether blocks use a panel before the next one is used."""
    nest = nest.for_blocks
    made, loops = panels_of(nest, schedule), loops_of_block(nest, schedule)
    if made is None or loops is None or schedule.rows_together * schedule.columns_together > 1:
        return False
    slots = (*(loop.slot for loop in _others(nest, loops)), ROWS, COLUMNS)
    around = list(map(Loop, slots, outer_extents(nest, schedule)))
    return bool(made.between([around[n] for n in schedule.order or range(len(around))]))


def panels_of(nest: LoopNest, schedule: Block) -> Panels | None:
    """The panels of the argument that the schedule says is in panels; None if none is, or if it
    can't be."""
    nest = nest.for_blocks
    loops = loops_of_block(nest, schedule)
    return None if loops is None or schedule.packed == -1 else panels(nest, schedule, loops)


def _panels_outside(nest: LoopNest, schedule: Block) -> Block:
    """The schedule with the loops along which the operand in panels moves outside of the others."""
    made = panels_of(nest, schedule)
    assert made is not None
    return _in_order(nest, schedule, {loop.slot for loop in (*made.around, made.cut)})


def _batch_inside(nest: LoopNest, schedule: Block, loops: tuple[Loop, Loop]) -> Block:
    """The schedule with all loops along which the columns' operand doesn't move outside of the
    others."""
    inside = {*_batch(nest, loops), loops[1].slot}
    around = {loop.slot for loop in (*_others(nest, loops), *loops)}
    return _in_order(nest, schedule, around - inside)


def _columns_inside(nest: LoopNest, schedule: Block, loops: tuple[Loop, Loop]) -> Block:
    """The schedule with the loops around along which the columns' operand moves outside of the
    others, so that blocks of rows read the same elements of it as often as possible."""
    return _in_order(nest, schedule, _batch(nest, loops))


def _lie_side_by_side(nest: LoopNest, loops: tuple[Loop, Loop], machine: Machine) -> bool:
    """Whether the products of a batch have their rows side by side, in the rows' operand and in the
    result, and the result doesn't fit into the second-level cache."""
    batch, (rows, columns) = _batch(nest, loops), loops
    if not batch or nest.points * ITEMSIZE[nest.scope.dtype] <= 2 * machine.cached_bytes:
        return False
    order = [loop.slot for loop in nest.traversal]
    steps = [
        (abs(access.stride(slot) or 0), abs(access.stride(rows.slot) or 0))
        for access in nest.accesses.values() if access.stride(columns.slot) == 0
        for slot in batch
    ]  # fmt: skip
    inside = all(order.index(slot) > order.index(rows.slot) for slot in batch)
    return inside and all(own < of_rows for own, of_rows in steps)


def _batch(nest: LoopNest, loops: tuple[Loop, Loop]) -> set[int]:
    """The slots of the loops around a block along which the columns' operand moves."""
    again = [a for a in nest.accesses.values() if a.stride(loops[0].slot) == 0]
    return {loop.slot for loop in _others(nest, loops) if any(a.stride(loop.slot) for a in again)}


def _in_order(nest: LoopNest, schedule: Block, outside: Collection[int]) -> Block:
    """The schedule with these loops, by slot, outside of the others. A loop of one step has no
    place of its own, and keeps that of the default order."""
    loops = block_loops(nest)
    assert loops is not None
    slots = [loop.slot for loop in (*_others(nest, loops), *loops)]
    steps = outer_extents(nest, schedule)
    order = sorted(range(len(slots)), key=lambda n: slots[n] not in outside)
    others = (n for n in order if steps[n] > 1)
    order = [n if steps[n] == 1 else next(others) for n in range(len(order))]
    return replace(schedule, order=() if order == sorted(order) else tuple(order))


def _others(nest: LoopNest, loops: tuple[Loop, Loop]) -> list[Loop]:
    """The loops over results besides those of a block's rows and columns."""
    return [loop for loop in nest.traversal if loop not in loops]


def _read_again(
    nest: LoopNest, schedule: Block, loops: tuple[Loop, Loop], by_columns: bool = False
) -> int:
    """The bytes that the steps of an outer loop read again: of each operand, what it moves through
    inside of the outermost loop along which it doesn't move. With ``by_columns`` only of operands
    that move along the columns."""
    around, counts = [*_others(nest, loops), *loops], outer_extents(nest, schedule)
    order = [around[n] for n in schedule.order or range(len(around)) if counts[n] > 1]
    again = 0
    for access in nest.accesses.values():
        if by_columns and access.stride(loops[1].slot) == 0:
            continue
        moves = [access.stride(loop.slot) != 0 for loop in order]
        first = moves.index(False) if False in moves else len(order)
        moving = [loop for loop, does in zip(order[first:], moves[first:], strict=True) if does]
        if moving:
            moving += [loop for loop in nest.reduction if access.stride(loop.slot) != 0]
            # Windows overlap, so there may be fewer elements than steps.
            steps = math.prod(loop.extent for loop in moving)
            span = sum(abs(access.stride(n.slot) or 0) * (n.extent - 1) for n in moving) + 1
            again += nest.itemsize(access) * min(steps, span)
    return again


def band(nest: LoopNest, machine: Machine) -> tuple[Band, ...]:
    """The schedules worth timing for a band product; none if the nest is no band product.

    Neighbouring panels both pack the rows that they share, so panels are as high as possible: as
    long as their packed rows fit into the cache.
    """
    found = band_product(nest)
    if found is None:
        return ()
    heights, widths = ((8, 6), (32, 64)) if machine.wide else ((6, 4), (16, 32))
    most = min(found.rows, found.rows if found.across else found.window.extent)
    offered: dict[Band, None] = {}
    for height, width in zip(heights, widths, strict=True):
        rows = min(height, most)
        beside = found.window.extent + rows if found.across else found.other.extent
        columns = max(w for w in (HALF, LANES, width) if w <= max(HALF, beside))
        panel = found.rows
        while (
            panel > 2 * rows
            and ITEMSIZE[nest.scope.dtype] * panel_elements(found, Band(rows, columns, panel))
            > machine.cached_bytes
        ):
            panel = -(-panel // 2)
        offered[Band(rows, columns, panel)] = None
    return tuple(offered)


def plain_block(nest: LoopNest, loops: tuple[Loop, Loop], machine: Machine) -> Block:
    """The block of a contraction whose operands are read as they lie in memory."""
    rows, columns = block_size(loops, machine)
    steps = nest.reduction[-1].extent
    few = steps <= FEW_STEPS and not written_out(nest)
    return Block(rows, columns, unrolled=steps if few else 1)


def refusal(nest: LoopNest, schedule: Schedule) -> str | None:
    """Why a schedule doesn't fit a nest; None if it fits, and its kernel is then right."""
    nest = nest.for_blocks if isinstance(schedule, Block) else nest
    if min(getattr(schedule, name, 1) for name in _SIZES) < 1:
        return "a size is less than 1"
    why = _of_another_nest(nest, schedule)
    if why is not None:
        return why
    order = getattr(schedule, "order", ())
    if order and sorted(order) != list(range(len(outer_extents(nest, schedule)))):
        return "the order isn't one of the loops around"
    if isinstance(schedule, Block) and schedule.ahead and not _has_next_panels(nest, schedule):
        return "no blocks use a panel before the next one is used"
    unrolled = getattr(schedule, "unrolled", 1)
    if unrolled > 1:
        if not nest.reduction or written_out(nest):
            return "no reduction is left to write out"
        steps = nest.reduction[-1].extent
        if isinstance(schedule, Fold):
            steps //= schedule.width
        if steps % unrolled:
            return "the steps that are written out don't divide the reduction"
    return None


def _of_another_nest(nest: LoopNest, schedule: Schedule) -> str | None:
    """Why a nest can't have this kind of schedule, or not with these sizes; None if it can."""
    traversal, reduction = nest.traversal, nest.reduction
    if nest.after is not None and isinstance(schedule, Band | Flat | Tile):
        return "it has no place for the map after the reduction"
    if _reads_literals(nest) and not isinstance(schedule, Matrices):
        return "it reads literals, which are no arguments of a region"
    if bool(nest.before) is not isinstance(schedule, Chain):
        return "a row chain has its own kind of schedule, and nothing else has it"
    match schedule:
        case Rows():
            return None
        case Flat():
            if reduction or not traversal:
                return "the loops aren't one flat loop"
            return None
        case Tile():
            if reduction or not traversal or tile_loop(nest) is None:
                return "no loop reads along memory that isn't written along it"
            return None
        case Lanes(width=width):
            if not reduction or not traversal or not contiguous_along(nest, traversal[-1]):
                return "neighbouring results don't read neighbouring elements"
            return _too_wide(width, traversal[-1])
        case Fold(width=width):
            if not reduction or not contiguous_along(nest, reduction[-1]):
                return "the reduction doesn't read neighbouring elements"
            if width & (width - 1):
                return "partial results are combined by halves"
            return _too_wide(width, reduction[-1])
        case Block(rows=rows, columns=columns):
            loops = loops_of_block(nest, schedule)
            if loops is None:
                return "no two loops use the operands again"
            if rows > loops[0].extent:
                return "a block has more rows than there are"
            why = _too_wide(columns, loops[1], HALF - 1)
            if why is None and schedule.packed != -1 and panels_of(nest, schedule) is None:
                return "the argument can't be stored in panels"
            return why
        case Matrices(width=width):
            tiles = tiles_of(nest)
            if tiles is None:
                return "it doesn't take data through literals"
            return _too_wide(width, tiles.lanes)
        case Chain(width=width):
            if row_bytes(nest) > ON_STACK_BYTES:
                return "a row is larger than what may lie on the stack"
            if width & (width - 1):
                return "partial results are combined by halves"
            return "a width is no multiple of half a vector" if width % (LANES // 2) else None
        case Band(rows=rows, columns=columns, panel=panel):
            product = band_product(nest)
            if product is None:
                return "it is no band product"
            if rows > product.rows or panel > product.rows:
                return "there are more rows than a residue has"
            if rows > panel:
                return "a panel has less rows than a tile"
            if product.across:
                return "a width is no multiple of half a vector" if columns % HALF else None
            if rows > product.window.extent:
                return "a tile has more rows than the band is wide"
            return _too_wide(columns, product.other)
    return f"there is no kind {type(schedule).__name__}"


_SIZES: Final = (
    "width", "height", "rows", "columns", "rows_together", "columns_together", "unrolled", "tasks",
    "panel",
)  # fmt: skip


def _too_wide(width: int, loop: Loop, beyond: int = 0) -> str | None:
    """Why a loop can't be cut to this width, which may be longer by ``beyond``; None if it can."""
    if width % (LANES // 2):
        return "a width is no multiple of half a vector"
    return "the loop is shorter than the width" if width > loop.extent + beyond else None


def written_out(nest: LoopNest) -> bool:
    """Whether the reduction is short enough for all its steps to be unrolled."""
    return math.prod(loop.extent for loop in nest.reduction) <= UNROLL


def outer_extents(nest: LoopNest, schedule: Schedule) -> tuple[int, ...]:
    """The numbers of steps of the loops around the innermost part of a kernel, in the schedule's
    own order. A schedule's ``order`` permutes these loops."""
    extents = [loop.extent for loop in nest.traversal]
    match schedule:
        case Rows():
            return tuple(extents[:-1])
        case Lanes(width=width):
            return (*extents[:-1], extents[-1] // width)
        case Fold():
            return tuple(extents)
        case Tile(height=height, width=width):
            position = tile_loop(nest)
            assert position is not None
            column, row = extents.pop(position), extents.pop()
            return (*extents, -(-column // height), -(-row // width))
        case Block():
            loops = loops_of_block(nest, schedule)
            assert loops is not None
            others = [loop.extent for loop in nest.traversal if loop not in loops]
            high = schedule.rows * schedule.rows_together
            wide = schedule.columns * schedule.columns_together
            return (*others, -(-loops[0].extent // high), -(-loops[1].extent // wide))
    return ()


def contiguous_along(nest: LoopNest, loop: Loop) -> bool:
    """Whether neighbouring steps of a loop read neighbouring elements, or the same ones."""
    return all(
        access.stride(loop.slot) in (0, 1) and not access.guarded_by(loop.slot)
        for access in nest.accesses.values()
    )


def tile_loop(nest: LoopNest) -> int | None:
    """The position of a loop along which some read is contiguous that jumps along the innermost
    loop, as in a transposition; None if there is none."""
    inner = nest.traversal[-1]
    for access in nest.accesses.values():
        if access.stride(inner.slot) in (0, 1):
            continue
        for k, loop in enumerate(nest.traversal[:-1]):
            if access.stride(loop.slot) == 1 and loop.extent >= 4 and inner.extent >= 4:
                return k
    return None


def loops_of_block(nest: LoopNest, schedule: Block) -> tuple[Loop, Loop] | None:
    """The loops of a block's rows and columns: those of ``block_loops``. If there are none because
    a product has one row, a loop of one step for it, beside the columns of the operand in panels;
    only that operand moves along them."""
    loops = block_loops(nest)
    if loops is not None or schedule.packed == -1 or not nest.reduction or not nest.traversal:
        return loops
    column, own = nest.traversal[-1], {*leaves(nest.scope.body)}
    moving = {access.argument for read, access in nest.accesses.items()
              if read in own and access.stride(column.slot) != 0}  # fmt: skip
    others = [access for access in nest.accesses.values() if access.argument != schedule.packed]
    beside = all(access.stride(column.slot) in (0, 1) for access in others)
    guarded = any(access.guards for access in nest.accesses.values())
    alone = moving == {schedule.packed} and beside and not guarded
    return (Loop(ONE_ROW, 1), column) if alone else None


@lru_cache(maxsize=64)
def block_loops(nest: LoopNest) -> tuple[Loop, Loop] | None:
    """The row loop and the column loop of a contraction, where a block of both uses each loaded
    element several times.

    The column loop is the innermost loop of the result. One operand moves along the rows and not
    along the columns, another along the columns and not along the rows. None if there are no such
    loops, or a read may leave its tensor.
    """
    if not nest.reduction or len(nest.traversal) < 2:
        return None
    column = nest.traversal[-1]
    if column.extent < LANES // 2 or not contiguous_along(nest, column):
        return None
    if any(access.guards for access in nest.accesses.values()):
        return None
    own = {*leaves(nest.scope.body)}
    operands = [access for read, access in nest.accesses.items() if read in own]
    for row in reversed(nest.traversal[:-1]):
        steps = [(a.stride(row.slot), a.stride(column.slot)) for a in operands]
        if any(down == 0 and along for down, along in steps) and any(
            down and along == 0 for down, along in steps
        ):
            return row, column
    return None
