"""eOperators: a memory-bound scope as a loop nest in TIR, in one of a few schedules.

The strides of a `LoopNest` tell its class (contiguous, short inner axis, transpose, reduction
along or across memory), and each class has a few named schedule points; timing chooses. Not here:
loops and addresses (``loop_nest.py``), scalar code (``scalar_code.py``), compiling and calling
(``tvm_backend.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tvm import tirx
from tvm.tirx import ForKind

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Layout, strides
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, Value, leaves
from eqsynth.ir.tensor import Tensor, args_of
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.loop_nest import Loop, LoopNest
from eqsynth.lower.scalar_code import ON_STACK, ScalarCode, index_code
from eqsynth.lower.scalar_functions import (
    Expr,
    arithmetic,
    loaded,
    maximum,
    minimum,
    number,
    stored,
    to_storage,
)
from eqsynth.lower.schedules import LANES, UNROLL, schedules, tile_loop

# Below this many evaluations of the body, waking a second thread costs more than it saves.
PARALLEL_GRAIN: Final = 16384
# Parallel loops have at least about this many steps, so that threads get equal shares.
_TASKS: Final = 64


def prim_func(nest: LoopNest, schedule: str, name: str) -> Any:
    """The TIR function ``name(*arguments, result)`` of a nest, under a schedule point.

    Arguments that have no elements are left out. Every buffer is checked at the call: rank,
    extents, dtype and strides.
    """
    return _Emitter(nest, name).function(schedule)


Body = Callable[[dict[int, Expr]], list[Any]]


class _Emitter:
    def __init__(self, nest: LoopNest, name: str) -> None:
        self.nest = nest
        self.name = name
        self.args: tuple[Tensor, ...] = args_of(nest.scope)
        sizes = [arg.type.size for arg in self.args] + [nest.points, nest.work]
        self.index_dtype = "int32" if max(sizes) < 2**30 and self._small() else "int64"
        self.dtype = arithmetic(nest.scope.dtype)
        self.parameters: list[Any] = []
        self.flat: dict[int, Any] = {}
        self.count = 0
        # Inside a vectorized loop: its variable, and the memory to allocate around it.
        self.lane: Expr | None = None
        self.vectors: list[Any] = []
        self.empty = 0 in nest.scope.reduction
        for position, arg in enumerate(self.args):
            if arg.type.size:
                self.flat[position] = self._parameter(f"x{position}", arg, nest.layouts[position])
        self.out = self._parameter("result", nest.scope, nest.result)

    def _small(self) -> bool:
        indices = [self.nest.output, *(a.address for a in self.nest.accesses.values())]
        indices += [index for a in self.nest.accesses.values() for index, _ in a.guards]
        indices += [v.index for v in leaves(self.nest.scope.body) if isinstance(v, Value)]
        return all(-(2**30) < low and high < 2**30 for low, high in map(Index.range, indices))

    def _parameter(self, name: str, tensor: Tensor, layout: Layout) -> Any:
        """A checked parameter, and the same memory as a line that addresses index."""
        steps = [
            # The stride of an axis of extent 1 means nothing, and callers' strides differ there.
            tirx.Var(f"{name}_step{axis}", "int64") if extent == 1 else tirx.const(step, "int64")
            for axis, (extent, step) in enumerate(
                zip(tensor.shape, strides(tensor.shape, layout), strict=True)
            )
        ]
        options = {"data_alignment": ITEMSIZE[tensor.dtype], "layout": None}
        shape = [tirx.const(extent, "int64") for extent in tensor.shape]
        buffer = tirx.decl_buffer(shape, tensor.dtype, name, strides=steps, **options)
        data = tirx.buffer_data(buffer)
        size = tirx.const(tensor.type.size, self.index_dtype)
        line = tirx.decl_buffer([size], stored(tensor.dtype), f"{name}_line", data=data, **options)
        self.parameters.append((buffer, tirx.DeclBuffer(line, data=data)))
        return line

    def function(self, schedule: str) -> Any:
        kind = schedule.rstrip("0123456789x")
        numbers = [int(n) for n in schedule[len(kind) :].split("x") if n]
        if self.empty:
            kind, numbers = "rows", []
        emits: dict[str, Callable[..., list[Any]]] = {
            "rows": self._rows, "flat": self._flat, "tile": self._tile,
            "lanes": self._lanes, "fold": self._fold,
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
        function = tirx.PrimFunc([buffer for buffer, _ in self.parameters], _seq(statements))
        return function.with_attr({"global_symbol": self.name, "tirx.noalias": True})

    # ---- schedules ------------------------------------------------------

    def _rows(self) -> list[Any]:
        loops = self.nest.traversal
        if not loops:
            return self._point({})
        outer, inner = loops[:-1], loops[-1]
        if outer and math.prod(loop.extent for loop in outer) >= 8:
            return self._outer(outer, lambda at: self._plain((inner,), at, self._point))
        # Too few rows to share: the inner loop is cut into pieces, and they are shared.
        block = max(256, _ceil(inner.extent, _TASKS))
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
        tiles = (Loop(-1, _ceil(column.extent, height)), Loop(-2, _ceil(row.extent, width)))

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
                width,
                lambda lane, r: {**at, slot: start + lane, **r},
                self.nest.reduction,
                lambda lane, value: self._store({**at, slot: start + lane}, value),
            )

        return self._blocks(tuple(outer), inner, width, block)

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
                width,
                coordinates,
                tuple(loop for loop in reduction if loop.extent > 1),
                lambda lane, value: [tirx.BufferStore(partial, value, [lane])],
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

    # ---- loops ----------------------------------------------------------

    def _int(self, value: int) -> Expr:
        return tirx.const(value, self.index_dtype)

    def _var(self, name: str) -> Expr:
        self.count += 1
        return tirx.Var(f"{name}{self.count}", self.index_dtype)

    def _for(
        self, extent: int | Expr, body: Callable[[Expr], list[Any]], kind: int = ForKind.SERIAL
    ) -> list[Any]:
        if isinstance(extent, int):
            if extent == 0:
                return []
            if extent == 1:
                return body(self._int(0))
            extent = self._int(extent)
        var = self._var("i")
        return [tirx.For(var, self._int(0), extent, kind, _seq(body(var)))]

    def _plain(
        self, loops: Sequence[Loop], at: dict[int, Expr], body: Body, kind: int = ForKind.SERIAL
    ) -> list[Any]:
        if not loops:
            return body(at)
        first, *others = loops
        return self._for(
            first.extent, lambda v: self._plain(others, {**at, first.slot: v}, body, kind), kind
        )

    def _outer(self, loops: Sequence[Loop], body: Body) -> list[Any]:
        """Leading loops fused into one parallel loop, enough of them to share; others inside."""
        if self.nest.work < PARALLEL_GRAIN or not loops:
            return self._plain(loops, {}, body)
        count, shared = 0, 1
        while count < len(loops) and shared < _TASKS:
            shared *= loops[count].extent
            count += 1
        fused, inside = loops[:count], loops[count:]
        return self._for(
            shared, lambda v: self._plain(inside, self._split(fused, v), body), ForKind.PARALLEL
        )

    def _split(self, loops: Sequence[Loop], flat: Expr) -> dict[int, Expr]:
        """The iterators of ``loops`` at a position of their product."""
        at: dict[int, Expr] = {}
        below = math.prod(loop.extent for loop in loops)
        for k, loop in enumerate(loops):
            below //= loop.extent
            value = flat if below == 1 else tirx.floordiv(flat, self._int(below))
            at[loop.slot] = value if k == 0 else tirx.floormod(value, self._int(loop.extent))
        return at

    def _blocks(
        self,
        outer: Sequence[Loop],
        inner: Loop,
        width: int,
        block: Callable[[int, Expr, int, dict[int, Expr]], list[Any]],
    ) -> list[Any]:
        """``inner`` in blocks of ``width``, and a shorter one at the end."""
        whole, rest = divmod(inner.extent, width)
        statements: list[Any] = []
        if whole:
            counted = (*outer, Loop(-1, whole))
            statements += self._outer(
                counted, lambda at: block(inner.slot, at[-1] * self._int(width), width, at)
            )
        if rest:
            begin = self._int(whole * width)
            statements += self._outer(outer, lambda at: block(inner.slot, begin, rest, at))
        return statements

    def _rest(self, extent: int, width: int, start: Expr) -> int | Expr:
        """How many of a tile's steps are inside."""
        if extent % width == 0:
            return width
        return tirx.min(self._int(width), self._int(extent) - start)

    # ---- one point ------------------------------------------------------

    def _point(self, at: dict[int, Expr]) -> list[Any]:
        """Computes and stores one element of the result."""
        if self.empty:
            return self._store(at, self._identity())
        if not self.nest.scope.reduction:
            code, value = self._body(at, self.nest.scope.dtype)
            return [*code, *self._store(at, value)]
        total = self._local(1)
        zero = self._int(0)
        small = math.prod(loop.extent for loop in self.nest.reduction) <= UNROLL
        kind = ForKind.UNROLLED if small else ForKind.SERIAL
        return [
            tirx.AllocBuffer(total, ON_STACK),
            tirx.BufferStore(total, self._identity(), [zero]),
            *self._plain(self.nest.reduction, at, lambda r: self._step(total, zero, r), kind),
            *self._store(at, tirx.BufferLoad(total, [zero])),
        ]

    def _registers(
        self,
        width: int,
        coordinates: Callable[[Expr, dict[int, Expr]], dict[int, Expr]],
        reduction: Sequence[Loop],
        finish: Callable[[Expr, Expr], list[Any]],
    ) -> list[Any]:
        """Reduces ``width`` points at once, in vectors of `LANES`."""
        totals = self._local(width)

        def lanes(body: Callable[[Expr], list[Any]]) -> list[Any]:
            return self._for(
                width // LANES, lambda k: self._vector(k * self._int(LANES), body), ForKind.UNROLLED
            )

        small = math.prod(loop.extent for loop in reduction) <= UNROLL
        kind = ForKind.UNROLLED if small else ForKind.SERIAL
        statements = [
            *lanes(lambda lane: [tirx.BufferStore(totals, self._identity(), [lane])]),
            *self._plain(
                reduction,
                {},
                lambda r: lanes(lambda lane: self._step(totals, lane, coordinates(lane, r))),
                kind,
            ),
            *lanes(lambda lane: finish(lane, tirx.BufferLoad(totals, [lane]))),
        ]
        allocated, self.vectors = self.vectors, []
        return [tirx.AllocBuffer(totals, ON_STACK), *allocated, *statements]

    def _vector(
        self, start: Expr, body: Callable[[Expr], list[Any]], lanes: int = LANES
    ) -> list[Any]:
        """``body`` at ``start`` and the next ``lanes - 1`` places, at once."""
        if lanes == 1:
            return body(start)
        self.lane = self._var("lane")
        steps = _seq(body(start + self.lane))
        loop = tirx.For(self.lane, self._int(0), self._int(lanes), ForKind.VECTORIZED, steps)
        self.lane = None
        return [loop]

    def _plus(self, partial: Any, distance: int) -> Callable[[Expr], list[Any]]:
        """Combines each of some partial results with the one that far behind it."""

        def add(lane: Expr) -> list[Any]:
            other = tirx.BufferLoad(partial, [lane + self._int(distance)])
            return self._accumulate(partial, lane, other)

        return add

    def _step(self, totals: Any, lane: Expr, at: dict[int, Expr]) -> list[Any]:
        dtype = self.nest.scope.dtype
        code, value = self._body(at, dtype)
        return [*code, *self._accumulate(totals, lane, value)]

    def _accumulate(self, totals: Any, lane: Expr, value: Expr) -> list[Any]:
        total = tirx.BufferLoad(totals, [lane])
        combine: dict[str, Callable[[], Expr]] = {
            "sum": lambda: total + value,
            "prod": lambda: total * value,
            "max": lambda: maximum(self.dtype, total, value),
            "min": lambda: minimum(self.dtype, total, value),
        }
        return [tirx.BufferStore(totals, combine[self.nest.scope.reducer](), [lane])]

    def _identity(self) -> Expr:
        value = REDUCERS[self.nest.scope.reducer]
        return number(float(value > 0) if self.dtype == "bool" else value, self.dtype)

    def _local(self, width: int) -> Any:
        self.count += 1
        return tirx.decl_buffer(
            [self._int(width)], self.dtype, f"total{self.count}", scope="local", layout=None
        )

    def _body(self, at: dict[int, Expr], dtype: str) -> tuple[list[Any], Expr]:
        iterators = {slot: at.get(slot, self._int(0)) for slot in range(self._slots())}
        code = ScalarCode(
            lambda read: self._load(read, iterators), iterators, self.index_dtype,
            self.lane, LANES if self.lane is not None else 1,
        )  # fmt: skip
        value = code.value(self.nest.scope.body, dtype)
        if self.lane is None:
            return [*code.allocations, *code.statements], value
        self.vectors += code.allocations
        return code.statements, value

    def _slots(self) -> int:
        return len(self.nest.scope.extents)

    def _load(self, read: Read, iterators: dict[int, Expr]) -> Expr:
        fill = number(read.fill, arithmetic(read.tensor.dtype))
        access = self.nest.accesses.get(read)
        if access is None:
            return fill
        address = index_code(access.address, iterators, self.index_dtype)
        value = loaded(tirx.BufferLoad(self.flat[access.argument], [address]), read.tensor.dtype)
        tests = []
        for index, extent in access.guards:
            position = index_code(index, iterators, self.index_dtype)
            low, high = index.range()
            if low < 0:
                tests.append(position >= self._int(0))
            if high >= extent:
                tests.append(position < self._int(extent))
        return tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value

    def _store(self, at: dict[int, Expr], value: Expr) -> list[Any]:
        iterators = {slot: at.get(slot, self._int(0)) for slot in range(self._slots())}
        address = index_code(self.nest.output, iterators, self.index_dtype)
        kept = to_storage(value, self.nest.scope.dtype)
        return [tirx.BufferStore(self.out, kept, [address])]


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _seq(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
