"""Loops and points of a loop nest as TIR: what every schedule is put together from.

Not here: the schedules (``eoperators.py``), loops and addresses (``loop_nest.py``), scalar code
(``scalar_code.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from eqsynth.extract.kernel import Layout, strides
from eqsynth.extract.schedule import TASKS, Schedule
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, Value, leaves
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.loop_nest import Access, Loop, LoopNest
from eqsynth.lower.scalar_code import ON_STACK, ScalarCode, index_code, rounded_sum
from eqsynth.lower.scalar_functions import (
    Expr,
    arithmetic,
    convert,
    loaded,
    maximum,
    minimum,
    number,
    stored,
    to_storage,
)
from eqsynth.lower.schedules import LANES, PARALLEL_GRAIN, UNROLL

Body = Callable[[dict[int, Expr]], list[Any]]


class Emitter:
    """A function in the making: its parameters, and statements over them."""

    def __init__(self, nest: LoopNest, schedule: Schedule, name: str) -> None:
        self.nest = nest
        self.tasks: int = getattr(schedule, "tasks", TASKS)
        self.order: tuple[int, ...] = getattr(schedule, "order", ())
        self.unrolled: int = getattr(schedule, "unrolled", 1)
        self.name = name
        self.args: tuple[Tensor, ...] = nest.args
        sizes = [arg.type.size for arg in self.args] + [nest.points, nest.work]
        self.index_dtype = "int32" if max(sizes) < 2**30 and self._small() else "int64"
        # What the body is computed and added up in, and the body.
        self.kind, self.body = accumulation(nest.scope)
        self.dtype = arithmetic(self.kind)
        self.parameters: list[Any] = []
        self.flat: dict[int, Any] = {}
        self.count = 0
        # Inside a vectorized loop: its variable and extent, and the memory to allocate around it.
        self.lane: Expr | None = None
        self.lanes = 1
        self.vectors: list[Any] = []
        # Reads that are loaded from elsewhere, such as a packed copy: at the iterators' values.
        self.instead: dict[Read, Callable[[dict[int, Expr]], Expr]] = {}
        self.empty = 0 in nest.scope.reduction
        self.add_rounded = rounded_sum
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
        return [tirx.For(var, self._int(0), extent, kind, sequence(body(var)))]

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
        while count < len(loops) and shared < self.tasks:
            shared *= loops[count].extent
            count += 1
        fused, inside = loops[:count], loops[count:]
        return self._for(
            shared, lambda v: self._plain(inside, self._split(fused, v), body), ForKind.PARALLEL
        )

    def _ordered(self, loops: Sequence[Loop]) -> list[Loop]:
        """Loops around a kernel's innermost part in the schedule's order. One that the order
        doesn't know stays where it is, at the end."""
        known = [loops[k] for k in self.order if k < len(loops)]
        return [*known, *loops[len(known) :]]

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
            counted = self._ordered((*outer, Loop(-1, whole)))
            statements += self._outer(
                counted, lambda at: block(inner.slot, at[-1] * self._int(width), width, at)
            )
        if rest:
            begin = self._int(whole * width)
            shared = self._ordered(outer)
            statements += self._outer(shared, lambda at: block(inner.slot, begin, rest, at))
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
            code, value = self._body(at)
            return [*code, *self._store(at, value)]
        total = self._local(1)
        zero = self._int(0)
        return [
            tirx.AllocBuffer(total, ON_STACK),
            tirx.BufferStore(total, self._identity(), [zero]),
            *self._reduced(self.nest.reduction, at, lambda r: self._step(total, zero, r)),
            *self._store(at, tirx.BufferLoad(total, [zero])),
        ]

    def _reduced(self, loops: Sequence[Loop], at: dict[int, Expr], body: Body) -> list[Any]:
        """Loops over a reduction: written out if they are short, else so many steps of the
        innermost as the schedule says."""
        if self.unrolled == 1:
            short = math.prod(loop.extent for loop in loops) <= UNROLL
            return self._plain(loops, at, body, ForKind.UNROLLED if short else ForKind.SERIAL)
        *around, inner = loops
        size, chunks = self.unrolled, Loop(-4, inner.extent // self.unrolled)

        def chunk(r: dict[int, Expr]) -> list[Any]:
            first = r[-4] * self._int(size)
            return self._for(size, lambda j: body({**r, inner.slot: first + j}), ForKind.UNROLLED)

        return self._plain((*around, chunks), at, chunk)

    def _registers(
        self,
        size: tuple[int, int],
        coordinates: Callable[[Expr, Expr, dict[int, Expr]], dict[int, Expr]],
        reduction: Sequence[Loop],
        finish: Callable[[Expr, Expr, Expr], list[Any]],
    ) -> list[Any]:
        """Reduces some rows of ``width`` points at once, in vectors of `LANES` or half of them."""
        height, width = size
        wide = LANES if width % LANES == 0 else LANES // 2
        totals = self._local(height * width)

        def lanes(body: Callable[[Expr, Expr, Expr], list[Any]]) -> list[Any]:
            """``body`` at each vector: its row, its lanes, and its place among the totals."""

            def vectors(i: Expr) -> list[Any]:
                first = i * self._int(width)
                return self._for(
                    width // wide,
                    lambda k: self._vector(
                        k * self._int(wide), lambda lane: body(i, lane, first + lane), wide
                    ),
                    ForKind.UNROLLED,
                )

            return self._for(height, vectors, ForKind.UNROLLED)

        statements = [
            *lanes(lambda i, lane, total: [tirx.BufferStore(totals, self._identity(), [total])]),
            *self._reduced(
                reduction,
                {},
                lambda r: lanes(
                    lambda i, lane, total: self._step(totals, total, coordinates(i, lane, r))
                ),
            ),
            *lanes(lambda i, lane, total: finish(i, lane, tirx.BufferLoad(totals, [total]))),
        ]
        allocated, self.vectors = self.vectors, []
        return [tirx.AllocBuffer(totals, ON_STACK), *allocated, *statements]

    def _vector(
        self, start: Expr, body: Callable[[Expr], list[Any]], lanes: int = LANES
    ) -> list[Any]:
        """``body`` at ``start`` and the next ``lanes - 1`` places, at once."""
        if lanes == 1:
            return body(start)
        self.lane, self.lanes = self._var("lane"), lanes
        steps = sequence(body(start + self.lane))
        loop = tirx.For(self.lane, self._int(0), self._int(lanes), ForKind.VECTORIZED, steps)
        self.lane, self.lanes = None, 1
        return [loop]

    def _plus(self, partial: Any, distance: int) -> Callable[[Expr], list[Any]]:
        """Combines each of some partial results with the one that far behind it."""

        def add(lane: Expr) -> list[Any]:
            other = tirx.BufferLoad(partial, [lane + self._int(distance)])
            return self._accumulate(partial, lane, other)

        return add

    def _step(self, totals: Any, lane: Expr, at: dict[int, Expr]) -> list[Any]:
        code, value = self._body(at)
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

    def _body(self, at: dict[int, Expr]) -> tuple[list[Any], Expr]:
        iterators = self.iterators(at)
        code = ScalarCode(
            lambda read: self.load(read, iterators), iterators, self.index_dtype,
            self.lane, self.lanes, self.add_rounded,
        )  # fmt: skip
        value = code.value(self.body, self.kind)
        if self.lane is None:
            return [*code.allocations, *code.statements], value
        self.vectors += code.allocations
        return code.statements, value

    def iterators(self, at: dict[int, Expr]) -> dict[int, Expr]:
        """Values of all iterators; those of loops of one step are 0."""
        slots = range(len(self.nest.scope.extents))
        return {**{slot: self._int(0) for slot in slots}, **at}

    def load(self, read: Read, iterators: dict[int, Expr]) -> Expr:
        if read in self.instead:
            return self.instead[read](iterators)
        fill = number(read.fill, arithmetic(read.tensor.dtype))
        access = self.nest.accesses.get(read)
        if access is None:
            return fill
        address = index_code(access.address, iterators, self.index_dtype)
        value = loaded(tirx.BufferLoad(self.flat[access.argument], [address]), read.tensor.dtype)
        tests = self.inside(access, iterators)
        return tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value

    def inside(self, access: Access, iterators: dict[int, Expr]) -> list[Expr]:
        """What tells that a read stays in its tensor; nothing where it always does."""
        tests = []
        for index, extent in access.guards:
            position = index_code(index, iterators, self.index_dtype)
            low, high = index.range()
            if low < 0:
                tests.append(position >= self._int(0))
            if high >= extent:
                tests.append(position < self._int(extent))
        return tests

    def _store(self, at: dict[int, Expr], value: Expr) -> list[Any]:
        address = index_code(self.nest.output, self.iterators(at), self.index_dtype)
        dtype = self.nest.scope.dtype
        kept = to_storage(convert(value, self.dtype, arithmetic(dtype)), dtype)
        return [tirx.BufferStore(self.out, kept, [address])]


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
