"""eOperators: the loop nest of a scope as a TIR function, under a schedule.

Example: the nest of ``L_ij sum_k a[i, k] * b[k, j]`` under ``Block(6, 32)`` becomes parallel loops
over blocks of 6 rows and 32 columns, whose 192 sums stay in vector registers while k runs.

Not here: which schedules a nest has (``schedules.py``), loops and single points as TIR
(``emitter.py``), compiling and calling (``tvm_backend.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tvm import tirx
from tvm.tirx import ForKind

from eqsynth.errors import LoweringError
from eqsynth.extract.schedule import (
    Band,
    Block,
    Chain,
    Flat,
    Fold,
    Lanes,
    Matrices,
    Schedule,
    Tile,
)
from eqsynth.ir.scalar import Read
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.band_code import BandCode
from eqsynth.lower.bands import band_product
from eqsynth.lower.emitter import Emitter, ceil_div, sequence
from eqsynth.lower.loop_nest import Loop, LoopNest
from eqsynth.lower.machine import LANES, this_machine
from eqsynth.lower.matrices import tiles_of
from eqsynth.lower.matrix_code import MatrixCode
from eqsynth.lower.padding_code import padded_copy
from eqsynth.lower.panels import COLUMNS, ROWS, Piece, pieces
from eqsynth.lower.scalar_code import ON_STACK, index_code
from eqsynth.lower.scalar_functions import Expr, loaded, stored
from eqsynth.lower.schedules import (
    ONE_ROW,
    contiguous_along,
    folds,
    loops_of_block,
    refusal,
    schedules,
    tile_loop,
    written_out,
)
from eqsynth.lower.turning import turned

# Slots of values that are no iterators: the block of a task by rows and by columns, and a row and a
# column in the block.
_DOWN, _ALONG, _ROW, _COLUMN = -11, -12, -13, -14

CACHE_LINE_BYTES: Final = 64


def prim_func(nest: LoopNest, schedule: Schedule | str, name: str) -> Any:
    """The TIR function ``name(*arguments, result)`` of a nest under a schedule.

    Arguments without elements are left out. The function checks each buffer when it is called:
    rank, extents, dtype and strides.

    Raises:
        LoweringError: the nest has no such schedule.
    """
    why = "it is a text" if isinstance(schedule, str) else refusal(nest, schedule)
    if isinstance(schedule, str) or why is not None:
        raise LoweringError(
            what=f"the loop nest has no schedule {str(schedule)!r}: {why}",
            got=str(schedule),
            expected="such as " + ", ".join(map(str, schedules(nest))),
            hint="take one that schedules() lists, or a point of the nest's space",
        )
    nest = nest.for_blocks if isinstance(schedule, Block) else nest
    return _Schedules(nest, schedule, name).function(schedule)


class _Schedules(Emitter):
    """The statements of each kind of schedule."""

    def function(self, schedule: Schedule) -> Any:
        statements = [declared for _, declared in self.parameters]
        for k, pad in enumerate(self.nest.pads):
            self.flat[len(self.args) + k], filling = padded_copy(self, pad)
            statements += filling
        statements += self._statements(schedule)
        function = tirx.PrimFunc([buffer for buffer, _ in self.parameters], sequence(statements))
        return function.with_attr({"global_symbol": self.name, "tirx.noalias": True})

    def _statements(self, schedule: Schedule) -> list[Any]:
        if self.empty:
            return self._rows()
        match schedule:
            case Flat(width=width):
                return self._flat(width)
            case Tile():
                return self._tile(schedule)
            case Lanes(width=width):
                return self._lanes(width)
            case Fold(width=width):
                return self._fold(width)
            case Block():
                return self._block(schedule)
            case Matrices(width=width):
                return self._matrices(width)
            case Chain(width=width):
                return self._chain(width)
            case Band():
                band = band_product(self.nest)
                assert band is not None, "refused where there is none"
                return BandCode(self, band, schedule).statements()
        return self._rows()

    def _rows(self) -> list[Any]:
        """One point after the other; the outer loops are shared among threads."""
        loops = self.nest.traversal
        if not loops:
            return self._point({})
        outer, inner = loops[:-1], loops[-1]
        self.innermost = (inner if written_out(self.nest) else self.nest.reduction[-1]).slot
        if outer and math.prod(loop.extent for loop in outer) >= 8:
            shared = self._ordered(outer)
            return self._outer(
                shared, lambda at: self._piece(inner.slot, self._int(0), inner.extent, at)
            )
        # If there are too few rows to share among threads, the inner loop is cut into pieces, and
        # these are shared.
        block = max(256, ceil_div(inner.extent, self.tasks))
        return self._blocks(outer, inner, block, self._piece)

    def _serial_lane(self, slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
        return self._for(length, lambda j: self._point({**at, slot: start + j}))

    def _piece(self, slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
        """Some results of the innermost loop; those of a map over neighbours in vectors.

        LLVM makes vectors of most such loops by itself, but not around an ``arithmetic.fence``
        (``scalar_code.py``), and its choice of a width is slower for functions [m: map-vectors].
        """
        (loop,) = (loop for loop in self.nest.traversal if loop.slot == slot)
        whole, rest = divmod(length, LANES)
        if self.nest.scope.reduction or not whole or not contiguous_along(self.nest, loop):
            return self._serial_lane(slot, start, length, at)

        def vector(first: Expr) -> list[Any]:
            return self._vector(first, lambda lane: self._point({**at, slot: lane}), LANES)

        statements = self._for(whole, lambda j: vector(start + j * self._int(LANES)))
        allocated, self.vectors = self.vectors, []
        return [
            *allocated,
            *statements,
            *self._serial_lane(slot, start + self._int(whole * LANES), rest, at),
        ]

    def _flat(self, width: int) -> list[Any]:
        """All loops as one loop, in pieces of ``width`` points."""
        loops = self.nest.traversal

        def block(slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
            return self._for(length, lambda j: self._point(self._split(loops, start + j)))

        # The loop over all points is no iterator of the scope, so it has the slot -1.
        return self._blocks((), Loop(-1, self.nest.points), width, block)

    def _tile(self, schedule: Tile) -> list[Any]:
        """A transposing copy or map, in tiles of ``height`` by ``width`` points."""
        height, width = schedule.height, schedule.width
        loops = list(self.nest.traversal)
        position = tile_loop(self.nest)
        assert position is not None, "a tile is refused where there is no such loop"
        column, row = loops.pop(position), loops.pop()
        tiles = (Loop(-1, ceil_div(column.extent, height)), Loop(-2, ceil_div(row.extent, width)))

        def tile(at: dict[int, Expr]) -> list[Any]:
            high, wide = at[-1] * self._int(height), at[-2] * self._int(width)
            down = self._rest(column.extent, height, high)
            along = self._rest(row.extent, width, wide)

            def point(i: Expr, j: Expr) -> list[Any]:
                return self._point({**at, column.slot: high + i, row.slot: wide + j})

            if schedule.across:
                points = self._for(along, lambda j: self._for(down, lambda i: point(i, j)))
            else:
                points = self._for(down, lambda i: self._for(along, lambda j: point(i, j)))
            vectors = self._turned_tile(schedule, (column, row), at, (high, wide))
            whole = [n == size for n, size in ((down, height), (along, width)) if n is not size]
            if not vectors or not whole:
                return vectors or points
            return [tirx.IfThenElse(tirx.all(*whole), sequence(vectors), sequence(points))]

        return self._outer(self._ordered((*loops, *tiles)), tile)

    def _turned_tile(
        self,
        schedule: Tile,
        loops: tuple[Loop, Loop],
        at: dict[int, Expr],
        start: tuple[Expr, Expr],
    ) -> list[Any]:
        """The points of a whole tile in square blocks, which are transposed in registers; nothing
        if no read is transposed, or the tile isn't made of such blocks."""
        column, row = loops
        found = [read for read, access in self.nest.accesses.items()
                 if access.stride(column.slot) == 1 and access.stride(row.slot) not in (None, 0, 1)
                 and not access.guards]  # fmt: skip
        free = not any(
            access.guarded_by(loop.slot) for access in self.nest.accesses.values() for loop in loops
        )
        # Each line is one register of float32.
        side = math.gcd(schedule.height, schedule.width, this_machine().register_bytes // 4)
        if not found or not free or side < LANES // 2:
            return []

        def block(down: Expr, along: Expr) -> list[Any]:
            first = [begin + self._int(side) * n
                     for begin, n in zip(start, (down, along), strict=True)]  # fmt: skip
            here = self.iterators({**at, column.slot: first[0], row.slot: first[1]})
            statements: list[Any] = []
            tiles: dict[Read, Any] = {}
            for read in found:
                code, tiles[read] = self._turned(read, row, here, side)
                statements += code

            def line(i: Expr) -> list[Any]:
                def points(lane: Expr) -> list[Any]:
                    place = i * self._int(side) + lane
                    self.instead = {
                        read: partial(_element, tile, place, read.tensor.dtype)
                        for read, tile in tiles.items()
                    }
                    point = {**at, column.slot: first[0] + i, row.slot: first[1] + lane}
                    code, value = self._body(point)
                    return [*code, *self._store(point, value)]

                return self._vector(self._int(0), points, side)

            lines = self._for(side, line, ForKind.UNROLLED)
            allocated, self.vectors, self.instead = self.vectors, [], {}
            return [*statements, *allocated, *lines]

        return self._for(
            schedule.height // side,
            lambda i: self._for(schedule.width // side, lambda j: block(i, j)),
        )

    def _turned(
        self, read: Read, row: Loop, here: dict[int, Expr], side: int
    ) -> tuple[list[Any], Any]:
        """A tile of what is read from ``here`` on, transposed (``turning.py``)."""
        access = self.nest.accesses[read]
        memory, step = self.flat[access.argument], access.stride(row.slot)
        assert step is not None
        address = index_code(access.address, here, self.index_dtype)

        def line(n: int) -> Expr:
            first = address + self._int(n * step)
            return tirx.BufferLoad(memory, [tirx.Ramp(first, self._int(1), side)])

        self.count += 1
        return turned(side, memory.dtype, line, f"tile{self.count}")

    def _lanes(self, width: int) -> list[Any]:
        """Results of ``width`` neighbours at once: registers hold them while the reduction runs."""
        *outer, inner = self.nest.traversal

        def block(slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
            if length < width:
                return self._serial_lane(slot, start, length, at)
            return self._registers(
                (1, width),
                lambda _, lane, r: {**at, slot: start + lane, **r},
                self.nest.reduction,
                lambda _, lane, value: self.finished(value, {**at, slot: start + lane}),
            )

        return self._blocks(tuple(outer), inner, width, block)

    def _block(self, schedule: Block) -> list[Any]:
        """Results of some rows of neighbours at once: registers hold them while the reduction
        runs."""
        loops = loops_of_block(self.nest, schedule)
        assert loops is not None, "a block is refused where there are no such loops"
        row, column = loops
        outer = [loop for loop in self.nest.traversal if loop not in loops]
        heights = pieces(row.extent, schedule.rows, 1)
        # A last block of fewer rows stands in the loop of the other blocks, so that it uses a
        # panel while that is in the cache. (24 products of 28 by 256 by 256 in blocks of 8 rows:
        # a loop of its own for the last 4 rows read all of the weights again.)
        merged = schedule.rows_together == 1
        statements: list[Any] = []
        for together in [heights] if merged else [[rows] for rows in heights]:
            # The last columns are computed in whole vectors, so some are computed for a second
            # time. They are a statement of their own after the others, so that no two threads write
            # one element.
            for columns in pieces(column.extent, schedule.columns, LANES // 2):
                high = min(schedule.rows_together, together[0].count)
                wide = min(schedule.columns_together, columns.count)
                counts = (sum(ceil_div(rows.count, high) for rows in together),
                          ceil_div(columns.count, wide))  # fmt: skip
                tiles = (Loop(ROWS, counts[0]), Loop(COLUMNS, counts[1]))
                around = self._ordered((*outer, *tiles))
                tasks = [
                    partial(self._blocks_of_a_task, loops, (rows, columns), (high, wide), around)
                    for rows in together
                ]
                statements += self._outer(
                    [loop for loop in around if loop not in tiles or loop.extent > 1],
                    partial(self._by_rows, tasks, together[0].count),
                )
        return statements

    def _by_rows(
        self,
        tasks: Sequence[Callable[[int, dict[int, Expr]], list[Any]]],
        count: int,
        at: dict[int, Expr],
    ) -> list[Any]:
        """The blocks of one task: those of the first ``count`` tasks along the rows are of one
        height, and one after them may be of another."""
        if len(tasks) == 1:
            return tasks[0](0, at)
        usual, last = sequence(tasks[0](0, at)), sequence(tasks[1](count, at))
        return [tirx.IfThenElse(at[ROWS] < self._int(count), usual, last)]

    def _blocks_of_a_task(
        self,
        loops: tuple[Loop, Loop],
        parts: tuple[Piece, Piece],
        together: tuple[int, int],
        around: Sequence[Loop],
        before: int,
        at: dict[int, Expr],
    ) -> list[Any]:
        """The blocks of one task, in some rows and columns.

        Args:
            around: the loops over tasks.
            before: the number of tasks along the rows before the first of these rows.
            at: which task it is, if there is more than one.
        """
        row, column = loops
        rows, columns = parts
        first = [at.get(ROWS, self._int(0)) - self._int(before), at.get(COLUMNS, self._int(0))]

        def block(down: Expr, along: Expr) -> list[Any]:
            high = down * self._int(rows.size) + self._int(rows.start)
            wide = along * self._int(columns.size) + self._int(columns.start)

            def point(i: Expr, lane: Expr) -> dict[int, Expr]:
                own = {_DOWN: down, _ALONG: along, _ROW: i, _COLUMN: lane}
                return {**at, **own, row.slot: high + i, column.slot: wide + lane}

            if self.panels is not None:
                for read, access in self.nest.accesses.items():
                    if access is self.panels.access:
                        self.instead[read] = partial(self._from_panels, read, parts)
            return self._registers(
                (rows.size, columns.size),
                lambda i, lane, r: {**point(i, lane), **r},
                self.nest.reduction,
                lambda i, lane, value: self.finished(value, point(i, lane)),
                # One row leaves registers to add up in runs.
                None if row.slot == ONE_ROW
                else self._fetching(parts, around, {**at, _DOWN: down, _ALONG: along}),
            )

        if together == (1, 1):
            return block(*first)
        down, along = (n * self._int(size) for n, size in zip(first, together, strict=True))
        return self._for(
            self._rest(rows.count, together[0], down),
            lambda i: self._for(
                self._rest(columns.count, together[1], along),
                lambda j: block(down + i, along + j),
            ),
        )

    def _from_panels(self, read: Read, parts: tuple[Piece, Piece], at: dict[int, Expr]) -> Expr:
        """The value of the operand in panels."""
        assert self.panels is not None
        panels, piece = self.panels, self._cut_piece(parts)
        place = self._panel(parts, at) + at[_ROW if panels.by_rows else _COLUMN]
        for loop in panels.reduction:
            place = place + at[loop.slot] * self._int(panels.strides(piece)[loop.slot])
        line = self.flat[panels.access.argument]
        return loaded(tirx.BufferLoad(line, [place]), read.tensor.dtype)

    def _cut_piece(self, parts: tuple[Piece, Piece]) -> Piece:
        """The piece, of rows or of columns, of which panels are made."""
        assert self.panels is not None
        return parts[0 if self.panels.by_rows else 1]

    def _panel(self, parts: tuple[Piece, Piece], at: dict[int, Expr]) -> Expr:
        """Where the panel of a block begins."""
        panels = self.panels
        assert panels is not None
        piece, block = self._cut_piece(parts), _DOWN if panels.by_rows else _ALONG
        strides = panels.strides(piece)
        place = self._int(panels.begin(piece)) + at[block] * self._int(piece.size * panels.depth)
        for loop in panels.around:
            place = place + at[loop.slot] * self._int(strides[loop.slot])
        return place

    def _fetching(
        self, parts: tuple[Piece, Piece], around: Sequence[Loop], at: dict[int, Expr]
    ) -> Callable[[dict[int, Expr]], list[Any]]:
        """Statements for a step of a block's reduction that fetch a part of the next panel. All
        steps of all blocks that use one panel fetch the whole next one.

        7 blocks that use a panel of 64 columns, k steps each: in each step each of them asks for 10
        elements of the next panel, the first block for those from 0 to 10 * k, and so on. So the
        next panel comes from the last cache or the memory while these blocks compute, and no block
        waits for it. (A 3x3 convolution of 512 channels at 7x7: 241 -> 294 GFLOP/s.)
        """
        panels = self.panels
        if panels is None or not self.ahead:
            return lambda _: []
        piece, loops = self._cut_piece(parts), panels.between(around)
        blocks = math.prod(loop.extent for loop in loops)
        # The elements that a step fetches, and the number of blocks after which all are fetched.
        step = ceil_div(piece.size, blocks)
        enough = ceil_div(piece.size, step)
        each = panels.depth * step
        if blocks < 2 or enough * each > panels.size:
            return lambda _: []
        number = self._int(0)
        for loop in loops:
            number = number * self._int(loop.extent) + at[loop.slot]
        begin = self._panel(parts, at) + self._int(piece.size * panels.depth)
        begin = tirx.min(begin, self._int(panels.size - enough * each))
        begin = begin + tirx.min(number, self._int(enough - 1)) * self._int(each)
        line, strides = self.flat[panels.access.argument], panels.strides(piece)
        a_line = CACHE_LINE_BYTES // ITEMSIZE[self.args[panels.access.argument].dtype]

        def fetch(r: dict[int, Expr]) -> list[Any]:
            place = begin
            for loop in panels.reduction:
                place = place + r[loop.slot] * self._int(strides[loop.slot] // piece.size * step)
            return [_prefetch(line, place + self._int(n)) for n in range(0, step, a_line)]

        return fetch

    def _fold(self, width: int) -> list[Any]:
        """One result at a time: registers hold ``width`` partial results of its reduction, which
        are combined at the end."""
        return self._outer(self._ordered(self.nest.traversal), lambda at: self._folded(width, at))

    def _folded(self, width: int, at: dict[int, Expr]) -> list[Any]:
        """One result of ``_fold``."""
        *around, inner = self.nest.reduction
        whole, rest = divmod(inner.extent, width)
        reduction = (*around, Loop(-3, whole))
        partial = self._local(width)

        def coordinates(lane: Expr, r: dict[int, Expr]) -> dict[int, Expr]:
            return {**at, **r, inner.slot: r.get(-3, self._int(0)) * self._int(width) + lane}

        statements = self._registers(
            (1, width),
            lambda _, lane, r: coordinates(lane, r),
            tuple(loop for loop in reduction if loop.extent > 1),
            lambda _, lane, value: [tirx.BufferStore(partial, value, [lane])],
        )
        step = width
        while step > 1:
            step //= 2
            halved = self._plus(partial, step)
            for start in range(0, step, LANES):
                statements += self._vector(self._int(start), halved, min(step, LANES))
        zero = self._int(0)
        if rest:
            begin = self._int(whole * width)
            statements += self._plain(around, at, lambda r: self._for(
                rest, lambda j: self._step(partial, zero, {**r, inner.slot: begin + j})
            ))  # fmt: skip
        statements += self.finished(tirx.BufferLoad(partial, [zero]), at)
        return [tirx.AllocBuffer(partial, ON_STACK), *statements]

    def _chain(self, width: int) -> list[Any]:
        """The scopes of a row chain, one row after the other. The results of a row that are read
        again lie on the stack."""
        nests = (*self.nest.before, self.nest)
        rows = [Loop(slot, self.nest.scope.traversal[slot]) for slot in self.nest.rows]

        def row(at: dict[int, Expr]) -> list[Any]:
            allocated: list[Any] = []
            code: list[Any] = []
            for k, nest in enumerate(nests):
                if nest is self.nest:
                    out = self.out
                else:
                    out = self._held(nest)
                    allocated.append(tirx.AllocBuffer(out, ON_STACK))
                    self.flat[len(self.args) + k] = out
                own = dict(zip(nest.rows, (at[loop.slot] for loop in rows), strict=True))
                code += self.of(nest, out)._one_row(width, own)
            return [*allocated, *code]

        return self._outer(rows, row)

    def _held(self, nest: LoopNest) -> Any:
        """Declare memory for the results of one row."""
        self.count += 1
        size = self._int(math.prod(loop.extent for loop in nest.in_a_row))
        dtype = stored(nest.scope.dtype)
        return tirx.decl_buffer([size], dtype, f"row{self.count}", scope="local", layout=None)

    def _one_row(self, width: int, at: dict[int, Expr]) -> list[Any]:
        """The results of one row."""
        loops = self.nest.in_a_row
        if folds(self.nest, width):
            return self._plain(loops, at, lambda point: self._folded(width, point))
        innermost = loops if written_out(self.nest) else self.nest.reduction
        self.innermost = innermost[-1].slot if innermost else None
        if not loops:
            return self._point(at)
        *around, inner = loops
        return self._plain(
            around, at, lambda outer: self._piece(inner.slot, self._int(0), inner.extent, outer)
        )

    def _matrices(self, width: int) -> list[Any]:
        """A tile of data in registers, multiplied by matrices of literals along one axis after the
        other."""
        tiles = tiles_of(self.nest)
        assert tiles is not None, "refused where there are none"

        def block(slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
            code = MatrixCode(self, tiles, {**at, slot: start}, length)
            return code.statements()

        return self._blocks(tiles.loops, tiles.lanes, width, block)


def _prefetch(line: Any, place: Expr) -> Any:
    """Fetch the cache line of an element into the second-level cache."""
    # 0: for reading. 2: the second-level cache (3 is the first level, 0 no cache). 1: data.
    arguments = (tirx.address_of(tirx.BufferLoad(line, [place])), 0, 2, 1)
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", *arguments))


def _element(tile: Any, place: Expr, dtype: str, _iterators: object) -> Expr:
    return loaded(tirx.BufferLoad(tile, [place]), dtype)


