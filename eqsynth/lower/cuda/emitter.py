"""Loop nests as CUDA kernels in TIR: blocks, threads, shared memory and barriers.

Addresses, guards and bodies are generated as for the CPU (``lower/emitter.py``). The loops around
them are generated here, and not by ``s_tir.Schedule``: its primitives need the passes of TVM's own
pipeline, whose simplifier moves loads out of their guards and breaks the indices of fused loops
(``tvm_backend.py``). Without that pipeline ``s_tir.Schedule`` only changes the order of loops,
which schedules define themselves.

Not here: which schedules a nest has (``spaces.py``), translating TIR to CUDA (``source.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from eqsynth.errors import LoweringError
from eqsynth.extract.schedule import Grid, Schedule, Team, Tiles, Turn
from eqsynth.ir.scalar import Read
from eqsynth.lower.cuda.driver import Launch
from eqsynth.lower.cuda.spaces import refusal, staged
from eqsynth.lower.emitter import Emitter, ceil_div, sequence
from eqsynth.lower.loop_nest import Loop, LoopNest
from eqsynth.lower.scalar_code import ON_STACK
from eqsynth.lower.scalar_functions import Expr
from eqsynth.lower.schedules import block_loops, tile_loop

# The kind of an IterVar that is bound to the index of a thread.
_THREAD_INDEX: Final = 1


def thread_func(nest: LoopNest, schedule: Schedule | str, name: str) -> tuple[Any, Launch]:
    """Return the TIR function ``name(*arguments, result)`` of a nest, and the numbers that it is
    launched with.

    Arguments that have no elements are left out.

    Raises:
        LoweringError: the nest doesn't have this schedule.
    """
    why = "it is a text" if isinstance(schedule, str) else refusal(nest, schedule)
    if isinstance(schedule, str) or why is not None:
        raise LoweringError(
            what=f"the loop nest has no schedule {str(schedule)!r} of threads: {why}",
            got=str(schedule),
            expected="a point of the nest's space",
            hint="take one that offered() lists",
        )
    emitter = _Threads(nest, schedule, name)
    return emitter.function(schedule)


class _Threads(Emitter):
    """Generates the function of one nest.

    Attributes:
        block, thread: the indices of the block, and of the thread in its block.
    """

    def __init__(self, nest: LoopNest, schedule: Schedule, name: str) -> None:
        super().__init__(nest, schedule, name)
        self.add_rounded, self.scales = _rounded_sum, False
        self._block, self._thread = tirx.Var("block", "int32"), tirx.Var("thread", "int32")
        self.block = self._block.astype(self.index_dtype)
        self.thread = self._thread.astype(self.index_dtype)

    def function(self, schedule: Schedule) -> tuple[Any, Launch]:
        """Return the whole function: parameters, the thread and block indices, and the schedule's
        statements."""
        launch, statements = self._statements(schedule)
        body = sequence(statements)
        bound = (
            (self._thread, "threadIdx.x", launch.threads),
            (self._block, "blockIdx.x", launch.blocks),
        )
        for variable, tag, extent in bound:
            axis = tirx.IterVar(tvm.ir.Range(0, extent), variable, _THREAD_INDEX, tag)
            body = tirx.AttrStmt(axis, "thread_extent", tirx.const(extent, "int32"), body)
        buffers = [buffer for buffer, _ in self.parameters]
        declared = [declared for _, declared in self.parameters]
        function = tirx.PrimFunc(buffers, sequence([*declared, body]))
        return function.with_attr({"global_symbol": self.name, "tirx.noalias": True}), launch

    def _statements(self, schedule: Schedule) -> tuple[Launch, list[Any]]:
        match schedule:
            case Grid():
                return self._grid(schedule)
            case Team():
                return self._team(schedule)
            case Turn():
                return self._turn(schedule)
            case Tiles():
                return self._tiles(schedule)
        raise AssertionError(f"{schedule} is refused")

    # ---- parts ----------------------------------------------------------

    def _unrolled_loop(self, extent: int, body: Callable[[Expr], list[Any]]) -> list[Any]:
        return self._for(extent, body, ForKind.UNROLLED)

    def _shared(self, size: int) -> Any:
        self.count += 1
        name = f"shared{self.count}"
        return tirx.decl_buffer([self._int(size)], self.dtype, name, scope="shared", layout=None)

    def _inside(self, tests: Sequence[Expr], statements: list[Any]) -> list[Any]:
        if not tests:
            return statements
        return [tirx.IfThenElse(tirx.all(*tests), sequence(statements), None)]

    def _below(self, value: Expr, extent: int, covered: int) -> list[Expr]:
        """The test that a position is less than ``extent``; none if all ``covered``
        positions are."""
        return [value < self._int(extent)] if covered > extent else []

    # ---- schedules ------------------------------------------------------

    def _grid(self, schedule: Grid) -> tuple[Launch, list[Any]]:
        """Each thread computes ``each`` results, or vectors of results."""
        loops, vector = list(self.nest.traversal), schedule.vector
        if vector > 1:
            loops[-1] = Loop(loops[-1].slot, loops[-1].extent // vector)
        total = math.prod(loop.extent for loop in loops)
        covered = schedule.threads * schedule.each
        blocks = ceil_div(total, covered)
        first = self.block * self._int(covered) + self.thread

        def result(k: Expr) -> list[Any]:
            flat = first + k * self._int(schedule.threads)
            at = self._split(loops, flat)
            point = self._vector_point(at, vector) if vector > 1 else self._point(at)
            return self._inside(self._below(flat, total, blocks * covered), point)

        return Launch(blocks, schedule.threads), self._unrolled_loop(schedule.each, result)

    def _vector_point(self, at: dict[int, Expr], vector: int) -> list[Any]:
        slot = self.nest.traversal[-1].slot
        start = at[slot] * self._int(vector)
        statements = self._vector(start, lambda lane: self._point({**at, slot: lane}), vector)
        allocated, self.vectors = self.vectors, []
        return [*allocated, *statements]

    def _team(self, schedule: Team) -> tuple[Launch, list[Any]]:
        """Teams of threads reduce: each thread accumulates its steps in a register, and the team
        combines the registers of its threads in shared memory by halves."""
        threads, teams = schedule.threads, schedule.teams
        points, steps = self.nest.points, math.prod(loop.extent for loop in self.nest.reduction)
        blocks = ceil_div(points, teams)
        lane = tirx.floormod(self.thread, self._int(threads))
        number = self.block * self._int(teams) + tirx.floordiv(self.thread, self._int(threads))
        # A team beyond the last result computes the last result again, and doesn't store it: every
        # thread of a block has to reach each barrier.
        beyond = blocks * teams > points
        at = self._split(self.nest.traversal, tirx.min(number, self._int(points - 1)))
        total, partial_, zero = self._local(1), self._shared(threads * teams), self._int(0)

        def step(k: Expr) -> list[Any]:
            flat = k * self._int(threads) + lane
            r = self._split(self.nest.reduction, flat)
            counted = self._below(flat, steps, ceil_div(steps, threads) * threads)
            return self._inside(counted, self._step(total, zero, {**at, **r}))

        statements = [
            tirx.AllocBuffer(total, ON_STACK),
            tirx.AllocBuffer(partial_),
            tirx.BufferStore(total, self._identity(), [zero]),
            *self._for(ceil_div(steps, threads), step),
            tirx.BufferStore(partial_, tirx.BufferLoad(total, [zero]), [self.thread]),
            _barrier(),
        ]
        distance = threads
        while distance > 1:
            distance //= 2
            combined = self._plus(partial_, distance)(self.thread)
            statements += self._inside([lane < self._int(distance)], combined)
            if distance > 1:  # the last value is read by the thread that wrote it
                statements.append(_barrier())
        stored = self._store(at, tirx.BufferLoad(partial_, [self.thread]))
        first = [tirx.EQ(lane, zero), *([number < self._int(points)] if beyond else [])]
        return Launch(blocks, threads * teams), [*statements, *self._inside(first, stored)]

    def _turn(self, schedule: Turn) -> tuple[Launch, list[Any]]:
        """Each block turns a tile: it computes the tile along the argument's memory into shared
        memory, and writes it along the result's memory."""
        side, rows = schedule.side, schedule.rows
        loops = list(self.nest.traversal)
        position = tile_loop(self.nest)
        assert position is not None, "a turn is refused where there is no such loop"
        column, inner = loops.pop(position), loops.pop()
        counts = ceil_div(column.extent, side), ceil_div(inner.extent, side)
        around = [*loops, Loop(-1, counts[0]), Loop(-2, counts[1])]
        at = self._split(around, self.block)
        corner = at[-1] * self._int(side), at[-2] * self._int(side)
        fast = tirx.floormod(self.thread, self._int(side))
        slow = tirx.floordiv(self.thread, self._int(side))
        # A row of one more element than the side: elements of a column then lie in different banks.
        tile, pitch = self._shared(side * (side + 1)), self._int(side + 1)

        def each(of: Callable[[Expr, Expr, Expr, dict[int, Expr]], list[Any]], turned: bool) -> Any:
            def row(k: Expr) -> list[Any]:
                other = slow + k * self._int(rows)
                down, along = (other, fast) if turned else (fast, other)
                place = {column.slot: corner[0] + down, inner.slot: corner[1] + along}
                tests = [
                    *self._below(place[column.slot], column.extent, counts[0] * side),
                    *self._below(place[inner.slot], inner.extent, counts[1] * side),
                ]
                index = along * pitch + down
                return self._inside(tests, of(tile, index, fast, {**at, **place}))

            return self._unrolled_loop(side // rows, row)

        def compute(tile: Any, index: Expr, _: Expr, place: dict[int, Expr]) -> list[Any]:
            code, value = self._body(place)
            return [*code, tirx.BufferStore(tile, value, [index])]

        def write(tile: Any, index: Expr, _: Expr, place: dict[int, Expr]) -> list[Any]:
            return self._store(place, tirx.BufferLoad(tile, [index]))

        statements = [tirx.AllocBuffer(tile), *each(compute, False), _barrier(), *each(write, True)]
        blocks = math.prod(loop.extent for loop in around)
        return Launch(blocks, side * rows), statements

    def _tiles(self, schedule: Tiles) -> tuple[Launch, list[Any]]:
        loops = block_loops(self.nest)
        assert loops is not None, "tiles are refused where there are no such loops"
        return _TileCode(self, schedule, loops).code()


class _TileCode:
    """The code of one :class:`Tiles` schedule.

        for each chunk of the reduction:
            operands of the chunk -> shared
            barrier
            registers += body(shared)
            barrier
        registers -> result

    All threads of a block go through the chunks together.
    """

    def __init__(self, emitter: _Threads, schedule: Tiles, loops: tuple[Loop, Loop]) -> None:
        self.e, self.s = emitter, schedule
        self.row, self.column = loops
        self.high, self.wide = schedule.rows * schedule.down, schedule.columns * schedule.along
        nest = emitter.nest
        self.counts = ceil_div(self.row.extent, self.high), ceil_div(self.column.extent, self.wide)
        others = [loop for loop in nest.traversal if loop not in loops]
        self.around = [*others, Loop(-1, self.counts[0]), Loop(-2, self.counts[1])]
        self.at = emitter._split(self.around, emitter.block)
        self.first = (self.at[-1] * self._int(self.high), self.at[-2] * self._int(self.wide))
        self.totals = emitter._local(schedule.down * schedule.along)
        self.inner = nest.reduction[-1]
        self.operands = {read: along for read in nest.accesses if (along := self._along(read))}
        self.buffers = {
            read: emitter._shared(schedule.depth * self._side(along))
            for read, along in self.operands.items()
        }

    def _int(self, value: int) -> Expr:
        return self.e._int(value)

    def _along(self, read: Read) -> Loop | None:
        return staged(self.e.nest, self.e.nest.accesses[read], (self.row, self.column))

    def _side(self, along: Loop) -> int:
        return self.high if along == self.row else self.wide

    def code(self) -> tuple[Launch, list[Any]]:
        e, threads = self.e, self.s.rows * self.s.columns
        *around, _ = e.nest.reduction
        chunks = Loop(-4, ceil_div(self.inner.extent, self.s.depth))
        zero = e._identity()
        statements = [
            tirx.AllocBuffer(self.totals, ON_STACK),
            *(tirx.AllocBuffer(buffer) for buffer in self.buffers.values()),
            *self._registers(lambda i, j, n: [tirx.BufferStore(self.totals, zero, [n])]),
            *e._plain((*around, chunks), {}, self._chunk),
            *self._registers(self._stored),
        ]
        return Launch(math.prod(loop.extent for loop in self.around), threads), statements

    def _registers(self, body: Callable[[Expr, Expr, Expr], list[Any]]) -> list[Any]:
        """Generate ``body`` at each result of a thread: its row, its column, and its number."""
        along, e = self._int(self.s.along), self.e
        return e._unrolled_loop(
            self.s.down,
            lambda i: e._unrolled_loop(self.s.along, lambda j: body(i, j, i * along + j)),
        )

    def _place(self, i: Expr, j: Expr) -> tuple[Expr, Expr]:
        """The place of a thread's result (i, j) in the block's tile. Neighbouring threads compute
        neighbouring results."""
        across = self._int(self.s.columns)
        row = tirx.floordiv(self.e.thread, across) + i * self._int(self.s.rows)
        return row, tirx.floormod(self.e.thread, across) + j * across

    def _chunk(self, r: dict[int, Expr]) -> list[Any]:
        """One chunk of the reduction: copy its operands into shared memory, and accumulate its
        steps."""
        start = r.pop(-4, self._int(0)) * self._int(self.s.depth)
        steps = self.e._rest(self.inner.extent, self.s.depth, start)
        kind = ForKind.UNROLLED if self.s.unrolled and isinstance(steps, int) else ForKind.SERIAL
        computed = self.e._for(steps, partial(self._steps, r, start), kind)
        if not self.buffers:
            return computed
        loaded = [part for read in self.buffers for part in self._copied(read, r, start)]
        return [*loaded, _barrier(), *computed, _barrier()]

    def _copied(self, read: Read, r: dict[int, Expr], start: Expr) -> list[Any]:
        """Copy an operand's part of a chunk into shared memory. Neighbouring threads copy elements
        that are neighbours in memory.

        Positions beyond the last row or step are read at the last one, and the values aren't used.
        """
        along, buffer, depth = self.operands[read], self.buffers[read], self.s.depth
        side, threads = self._side(along), self.s.rows * self.s.columns
        first = self.first[0] if along == self.row else self.first[1]
        deep = self.e.nest.accesses[read].stride(self.inner.slot) == 1

        def element(k: Expr) -> list[Any]:
            flat = k * self._int(threads) + self.e.thread
            if deep:
                place = tirx.floordiv(flat, self._int(depth))
                step = tirx.floormod(flat, self._int(depth))
            else:
                place = tirx.floormod(flat, self._int(side))
                step = tirx.floordiv(flat, self._int(side))
            at = {
                **self.at, **r,
                along.slot: self._last(first + place, along),
                self.inner.slot: self._last(start + step, self.inner),
            }  # fmt: skip
            index = step * self._int(side) + place
            value = self.e.load(read, self.e.iterators(at))
            stored = [tirx.BufferStore(buffer, value, [index])]
            covered = ceil_div(side * depth, threads) * threads
            return self.e._inside(self.e._below(flat, side * depth, covered), stored)

        return self.e._for(ceil_div(side * depth, threads), element)

    def _last(self, position: Expr, loop: Loop) -> Expr:
        return tirx.min(position, self._int(loop.extent - 1))

    def _steps(self, r: dict[int, Expr], start: Expr, k: Expr) -> list[Any]:
        def step(i: Expr, j: Expr, n: Expr) -> list[Any]:
            row, column = self._place(i, j)
            self.e.instead = {
                read: partial(self._shared, read, k, row if along == self.row else column)
                for read, along in self.operands.items()
            }
            at = {
                **self.at, **r, self.inner.slot: start + k,
                self.row.slot: self._last(self.first[0] + row, self.row),
                self.column.slot: self._last(self.first[1] + column, self.column),
            }  # fmt: skip
            statements = self.e._step(self.totals, n, at)
            self.e.instead = {}
            return statements

        return self._registers(step)

    def _shared(self, read: Read, step: Expr, place: Expr, _: dict[int, Expr]) -> Expr:
        """The value of a read, from shared memory."""
        index = step * self._int(self._side(self.operands[read])) + place
        return tirx.BufferLoad(self.buffers[read], [index])

    def _stored(self, i: Expr, j: Expr, n: Expr) -> list[Any]:
        row, column = (a + b for a, b in zip(self.first, self._place(i, j), strict=True))
        tests = [
            *self.e._below(row, self.row.extent, self.counts[0] * self.high),
            *self.e._below(column, self.column.extent, self.counts[1] * self.wide),
        ]
        at = {**self.at, self.row.slot: row, self.column.slot: column}
        return self.e._inside(tests, self.e._store(at, tirx.BufferLoad(self.totals, [n])))


def _barrier() -> Any:
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


def _rounded_sum(terms: Sequence[tuple[Expr, bool]]) -> Expr:
    """A sum in which each product is rounded before it is added: CUDA never fuses the additions of
    these names with a product."""
    (total, _), *others = terms
    add = {"float32": "__fadd_rn", "float64": "__dadd_rn"}.get(str(total.ty.dtype))
    for term, _ in others:
        total = total + term if add is None else tirx.call_pure_extern(
            str(total.ty.dtype), add, total, term
        )  # fmt: skip
    return total
