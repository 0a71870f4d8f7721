"""The code of one tile that is multiplied by matrices of literals (``matrices.py``).

Example: the matrix row (1, 0, -1, 0) times a column v becomes ``v[0] - v[2]``: no products by 0, 1
and -1, and all steps written out. Not here: which scopes are computed this way, and the loops
around a tile (``matrices.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from tvm import tirx

from eqsynth.lower.emitter import Emitter, sequence
from eqsynth.lower.matrices import Along, Rows, Tiles
from eqsynth.lower.scalar_code import ON_STACK, index_code
from eqsynth.lower.scalar_functions import Expr, number

Place = tuple[int, ...]


class MatrixCode:
    """Straight-line code for some neighbours at once: loads of a tile, products with the matrices'
    numbers, stores.

    Args:
        at: the values of the loops around; of ``tiles.lanes`` the first of the neighbours.
        lanes: the number of neighbours.
    """

    def __init__(self, emitter: Emitter, tiles: Tiles, at: dict[int, Expr], lanes: int) -> None:
        self._emitter, self._tiles, self._at, self._lanes = emitter, tiles, at, lanes
        self._memory: list[Any] = []
        self._allocated: list[Any] = []
        self._code: list[Any] = []
        self._lane: Expr = tirx.const(0, emitter.index_dtype)

    def statements(self) -> list[Any]:
        """The statements that compute one tile."""
        start = self._at[self._tiles.lanes.slot]

        def steps(lane: Expr) -> list[Any]:
            self._at = {**self._at, self._tiles.lanes.slot: lane}
            if self._emitter.lane is not None:
                self._lane = self._emitter.lane
            self._tile()
            return self._code

        code = self._emitter._vector(start, steps, self._lanes)
        kept = [tirx.AllocBuffer(memory, ON_STACK) for memory in self._memory]
        return [*kept, *self._allocated, *code]

    def _tile(self) -> None:
        """Load the data, and multiply them along one axis after the other. Along the last axis a
        row's result is stored at once."""
        along = self._tiles.along
        values: dict[Place, Expr] = {}
        first = along[0]
        rest = [range(len(axis.matrix[0])) for axis in along[1:]]
        for others in product(*rest):
            column = [self._load((n, *others)) for n in range(len(first.matrix[0]))]
            for row, value in enumerate(self._times(first.matrix, column)):
                if len(along) == 1:
                    self._store((row,), value)
                else:
                    values[row, *others] = self._kept(value)
        for axis in range(1, len(along)):
            values = self._next(axis, values)

    def _next(self, axis: int, values: dict[Place, Expr]) -> dict[Place, Expr]:
        """Multiply along one axis: values by (rows of earlier axes, columns of the others) become
        values with a row in place of this axis's column."""
        along = self._tiles.along
        done = [range(len(a.matrix)) for a in along[:axis]]
        rest = [range(len(a.matrix[0])) for a in along[axis + 1 :]]
        found: dict[Place, Expr] = {}
        for before, after in product(product(*done), product(*rest)):
            width = len(along[axis].matrix[0])
            column = [values[*before, n, *after] for n in range(width)]
            for row, value in enumerate(self._times(along[axis].matrix, column)):
                if axis + 1 == len(along):
                    self._store((*before, row), value)
                else:
                    found[*before, row, *after] = self._kept(value)
        return found

    def _times(self, matrix: Rows, column: Sequence[Expr]) -> list[Expr]:
        """The matrix times a column. Two rows that agree except for signs, as those of the points x
        and -x do, share two sums: e over the equal numbers and o over the opposite ones. The
        results are ``e + o`` and ``e - o``."""
        found: dict[int, Expr] = {}
        for n, row in enumerate(matrix):
            if n in found:
                continue
            for m in range(n + 1, len(matrix)):
                other = matrix[m]
                if m in found or any(abs(a) != abs(b) for a, b in zip(row, other, strict=True)):
                    continue
                same = [a if a == b else 0.0 for a, b in zip(row, other, strict=True)]
                opposite = [0.0 if a == b else a for a, b in zip(row, other, strict=True)]
                if sum(map(bool, same)) + sum(map(bool, opposite)) > 2:
                    e, o = self._sum(same, column), self._sum(opposite, column)
                    e, o = self._kept(e), self._kept(o)
                    found[n], found[m] = e + o, e - o
                    break
            else:
                found[n] = self._sum(row, column)
        return [found[n] for n in range(len(matrix))]

    def _sum(self, row: Sequence[float], column: Sequence[Expr]) -> Expr:
        """A row times a column. Positive terms come first, so that nothing is negated; there are no
        products by 0, 1 and -1."""
        total: Expr | None = None
        for factor, value in sorted(zip(row, column, strict=True), key=lambda pair: -pair[0]):
            if factor == 0:
                continue
            part = value if abs(factor) == 1 else value * self._number(abs(factor))
            if total is None:
                total = part if factor > 0 else self._number(0.0) - part
            else:
                total = total + part if factor > 0 else total - part
        return self._number(0.0) if total is None else total

    def _number(self, value: float) -> Expr:
        return number(value, self._emitter.dtype)

    def _kept(self, value: Expr) -> Expr:
        """Store a value in memory of its own, which LLVM turns into a register."""
        lanes = tirx.const(self._lanes, self._emitter.index_dtype)
        name = f"t{len(self._memory)}"
        memory = tirx.decl_buffer([lanes], self._emitter.dtype, name, scope="local", layout=None)
        self._memory.append(memory)
        self._code.append(tirx.BufferStore(memory, value, [self._lane]))
        return tirx.BufferLoad(memory, [self._lane])

    def _load(self, columns: Place) -> Expr:
        """An element of the tile; the fill if it is outside of the data."""
        data, kind = self._tiles.data, self._emitter.index_dtype
        at = dict(self._at)
        for axis, column in zip(self._tiles.along, columns, strict=True):
            at[axis.column] = tirx.const(column, kind)
        at = self._with_zeros(at)
        value = tirx.BufferLoad(
            self._emitter.flat[data.argument], [index_code(data.address, at, kind)]
        )
        tests = []
        for index, extent in data.guards:
            position = index_code(index, at, kind)
            low, high = index.range()
            if low < 0:
                tests.append(position >= tirx.const(0, kind))
            if high >= extent:
                tests.append(position < tirx.const(extent, kind))
        fill = self._number(self._tiles.fill)
        return self._kept(tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value)

    def _store(self, rows: Place, value: Expr) -> None:
        """Store one result, after the map if there is one; results past the extent aren't
        stored."""
        kind = self._emitter.index_dtype
        at = self._with_zeros(dict(self._at))
        tests = []
        for axis, row in zip(self._tiles.along, rows, strict=True):
            at[axis.slot] = self._position(axis, row, at)
            if not axis.whole:
                tests.append(at[axis.slot] < tirx.const(axis.extent, kind))
        address = index_code(self._tiles.output, at, kind)
        code: list[Any] = []
        if self._emitter.nest.after is not None:
            allocated, code, value = self._emitter.mapped(self._kept(value), at)
            self._allocated += allocated
        code.append(tirx.BufferStore(self._emitter.out, value, [address]))
        # The map is evaluated under the same condition: outside of the result its arguments may
        # have no elements.
        whole = sequence(code)
        self._code.append(tirx.IfThenElse(tirx.all(*tests), whole, None) if tests else whole)

    def _position(self, axis: Along, row: int, at: dict[int, Expr]) -> Expr:
        return index_code(axis.at(row), at, self._emitter.index_dtype)

    def _with_zeros(self, at: dict[int, Expr]) -> dict[int, Expr]:
        """The iterators with 0 for those that have no loop."""
        count = len(self._emitter.nest.scope.extents) + 2 * len(self._tiles.along)
        zero = tirx.const(0, self._emitter.index_dtype)
        return {slot: at.get(slot, zero) for slot in range(count)}
