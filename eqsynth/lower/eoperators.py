"""eOperators: a scope as a loop nest in TIR, in one of a few schedules.

The strides of a `LoopNest` tell its class (contiguous, short inner axis, transpose, reduction
along or across memory, contraction), and each class has a few named schedule points; timing
chooses. Not here: the loops and points that they are put together from (``emitter.py``), compiling
and calling (``tvm_backend.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx

from eqsynth.errors import LoweringError
from eqsynth.lower.emitter import TASKS, Emitter, ceil_div, sequence
from eqsynth.lower.loop_nest import Loop, LoopNest
from eqsynth.lower.scalar_code import ON_STACK
from eqsynth.lower.scalar_functions import Expr
from eqsynth.lower.schedules import LANES, block_loops, schedules, tile_loop


def prim_func(nest: LoopNest, schedule: str, name: str) -> Any:
    """The TIR function ``name(*arguments, result)`` of a nest, under a schedule point.

    Arguments that have no elements are left out. Every buffer is checked at the call: rank,
    extents, dtype and strides.
    """
    return _Schedules(nest, name).function(schedule)


class _Schedules(Emitter):
    def function(self, schedule: str) -> Any:
        kind = schedule.rstrip("0123456789x")
        numbers = [int(n) for n in schedule[len(kind) :].split("x") if n]
        if self.empty:
            kind, numbers = "rows", []
        emits: dict[str, Callable[..., list[Any]]] = {
            "rows": self._rows, "flat": self._flat, "tile": self._tile,
            "lanes": self._lanes, "fold": self._fold, "block": self._block,
        }  # fmt: skip
        emit = emits.get(kind)
        if emit is None:
            raise LoweringError(
                what=f"no schedule point {schedule!r}",
                got=schedule,
                expected=", ".join(schedules(self.nest)),
                hint="take one that schedules() lists",
            )
        statements = [declared for _, declared in self.parameters] + emit(*numbers)
        function = tirx.PrimFunc([buffer for buffer, _ in self.parameters], sequence(statements))
        return function.with_attr({"global_symbol": self.name, "tirx.noalias": True})

    def _rows(self) -> list[Any]:
        loops = self.nest.traversal
        if not loops:
            return self._point({})
        outer, inner = loops[:-1], loops[-1]
        if outer and math.prod(loop.extent for loop in outer) >= 8:
            return self._outer(outer, lambda at: self._plain((inner,), at, self._point))
        # Too few rows to share: the inner loop is cut into pieces, and they are shared.
        block = max(256, ceil_div(inner.extent, TASKS))
        return self._blocks(outer, inner, block, self._serial_lane)

    def _serial_lane(self, slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
        return self._for(length, lambda j: self._point({**at, slot: start + j}))

    def _flat(self, width: int) -> list[Any]:
        loops = self.nest.traversal

        def block(slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
            return self._for(length, lambda j: self._point(self._split(loops, start + j)))

        # The slot of a loop over everything is none of the scope's.
        return self._blocks((), Loop(-1, self.nest.points), width, block)

    def _tile(self, height: int, width: int) -> list[Any]:
        loops = list(self.nest.traversal)
        position = tile_loop(self.nest)
        assert position is not None, "tile is offered only where there is such a loop"
        column, row = loops.pop(position), loops.pop()
        tiles = (Loop(-1, ceil_div(column.extent, height)), Loop(-2, ceil_div(row.extent, width)))

        def tile(at: dict[int, Expr]) -> list[Any]:
            high, wide = at[-1] * self._int(height), at[-2] * self._int(width)
            return self._for(
                self._rest(column.extent, height, high),
                lambda i: self._for(
                    self._rest(row.extent, width, wide),
                    lambda j: self._point({**at, column.slot: high + i, row.slot: wide + j}),
                ),
            )

        return self._outer((*loops, *tiles), tile)

    def _lanes(self, width: int) -> list[Any]:
        """Registers hold the results of ``width`` neighbours while the reduction runs."""
        *outer, inner = self.nest.traversal

        def block(slot: int, start: Expr, length: int, at: dict[int, Expr]) -> list[Any]:
            if length < width:
                return self._serial_lane(slot, start, length, at)
            return self._registers(
                (1, width),
                lambda _, lane, r: {**at, slot: start + lane, **r},
                self.nest.reduction,
                lambda _, lane, value: self._store({**at, slot: start + lane}, value),
            )

        return self._blocks(tuple(outer), inner, width, block)

    def _block(self, height: int, width: int) -> list[Any]:
        """Registers hold the results of ``height`` rows of ``width`` neighbours."""
        loops = block_loops(self.nest)
        assert loops is not None, "block is offered only where there are such loops"
        row, column = loops
        outer = [loop for loop in self.nest.traversal if loop not in loops]

        def block(rows: _Piece, columns: _Piece, at: dict[int, Expr]) -> list[Any]:
            tiles = {-1: self._int(0), -2: self._int(0), **at}
            high = tiles[-1] * self._int(rows.size) + self._int(rows.start)
            wide = tiles[-2] * self._int(columns.size) + self._int(columns.start)

            def point(i: Expr, lane: Expr) -> dict[int, Expr]:
                return {**at, row.slot: high + i, column.slot: wide + lane}

            return self._registers(
                (rows.size, columns.size),
                lambda i, lane, r: {**point(i, lane), **r},
                self.nest.reduction,
                lambda i, lane, value: self._store(point(i, lane), value),
            )

        statements: list[Any] = []
        for rows in _pieces(row.extent, height, 1):
            # The last neighbours are taken in whole vectors, some for a second time. That is a
            # statement after the others, so that no two threads write one element.
            for columns in _pieces(column.extent, width, LANES // 2):
                tiles = (Loop(-1, rows.count), Loop(-2, columns.count))
                statements += self._outer(
                    [*outer, *(tile for tile in tiles if tile.extent > 1)],
                    partial(block, rows, columns),
                )
        return statements

    def _fold(self, width: int) -> list[Any]:
        """Registers hold ``width`` partial results of one reduction, combined at its end."""
        *around, inner = self.nest.reduction
        whole, rest = divmod(inner.extent, width)
        reduction = (*around, Loop(-3, whole))

        def point(at: dict[int, Expr]) -> list[Any]:
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
            statements += self._store(at, tirx.BufferLoad(partial, [zero]))
            return [tirx.AllocBuffer(partial, ON_STACK), *statements]

        return self._outer(self.nest.traversal, point)


@dataclass(frozen=True)
class _Piece:
    """Part of a loop: so many blocks of a size, from a start."""

    count: int
    size: int
    start: int


def _pieces(extent: int, size: int, multiple: int) -> list[_Piece]:
    """A loop in blocks, and one at its end for the rest: a multiple, which may begin earlier."""
    whole, rest = divmod(extent, size)
    found = [_Piece(whole, size, 0)] if whole else []
    if rest:
        last = ceil_div(rest, multiple) * multiple
        found.append(_Piece(1, last, extent - last))
    return found
