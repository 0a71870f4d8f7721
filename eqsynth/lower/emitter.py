"""Loops and single points of a loop nest as TIR; all schedules are built from these.

Example: ``_blocks(outer, inner, 16, block)`` makes the loops of ``outer``, a loop over whole blocks
of 16 steps of ``inner``, and one shorter block for the rest. ``_point(at)`` computes and stores one
element.

In this file and in the schedules ``at`` is the value of each iterator, by slot. Negative slots are
loops that are no iterators of the scope, such as the number of a block.

Not here: the schedules (``eoperators.py``), loops and addresses (``loop_nest.py``), scalar code
(``scalar_code.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Self

from tvm import tirx
from tvm.tirx import ForKind

from eqsynth.extract.kernel import Layout, contiguous, strides
from eqsynth.extract.schedule import TASKS, Block, Schedule
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, Value, leaves
from eqsynth.ir.tensor import Input, Tensor
from eqsynth.ir.types import ITEMSIZE, TensorType
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.loop_nest import Access, Loop, LoopNest
from eqsynth.lower.machine import LANES
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
from eqsynth.lower.schedules import PARALLEL_GRAIN, UNROLL, panels_of
from eqsynth.lower.tvm_target import scales

Body = Callable[[dict[int, Expr]], list[Any]]

RUN: Final = 128
"""A sum of float32 is added up in runs of at most so many terms."""


class Emitter:
    """Builds a TIR function for a nest: its parameters, and statements that use them."""

    def __init__(self, nest: LoopNest, schedule: Schedule, name: str) -> None:
        self.nest = nest
        self.tasks: int = getattr(schedule, "tasks", TASKS)
        self.order: tuple[int, ...] = getattr(schedule, "order", ())
        self.unrolled: int = getattr(schedule, "unrolled", 1)
        self.ahead: bool = getattr(schedule, "ahead", False)
        self.name = name
        self.args: tuple[Tensor, ...] = nest.args
        sizes = [arg.type.size for arg in self.args] + [nest.points, nest.work]
        sizes += [pad.size for pad in nest.pads]
        small = max(sizes) < 2**30 and all(map(_is_small, (nest, *nest.before)))
        self.index_dtype = "int32" if small else "int64"
        # The dtype in which the body is computed and added up, and the body in this dtype.
        self.kind, self.body = accumulation(nest.scope)
        self.dtype = arithmetic(self.kind)
        self.parameters: list[Any] = []
        self.flat: dict[int, Any] = {}
        self.count = 0
        # Inside a vectorized loop: its variable, its extent, and buffers to allocate outside of it.
        self.lane: Expr | None = None
        self.lanes = 1
        self.vectors: list[Any] = []
        # The slot of the innermost loop over plain points. A read whose guards don't depend on this
        # loop is loaded in any case, at the nearest element of its tensor, and then chosen or not:
        # LLVM doesn't vectorize a loop around a load that is guarded by a branch.
        self.innermost: int | None = None
        # Reads whose values are loaded from another place, such as a packed copy, at given
        # iterators.
        self.instead: dict[Read, Callable[[dict[int, Expr]], Expr]] = {}
        self.empty = 0 in nest.scope.reduction
        self.add_rounded, self.scales = rounded_sum, scales()
        # A constant argument that is passed in panels.
        self.panels = panels_of(nest, schedule) if isinstance(schedule, Block) else None
        for position, arg in enumerate(self.args):
            layout = nest.layouts[position]
            if self.panels is not None and position == self.panels.access.argument:
                arg, layout = Input("", TensorType((self.panels.size,), arg.dtype)), contiguous(1)
            if arg.type.size:
                self.flat[position] = self._parameter(f"x{position}", arg, layout)
        self.out = self._parameter("result", *(nest.stored or (nest.scope, nest.result)))

    def of(self, nest: LoopNest, out: Any) -> Self:
        """Return an emitter of another nest in the same function, whose result goes to the buffer
        ``out``."""
        other = copy(self)
        other.nest, other.out, other.empty = nest, out, 0 in nest.scope.reduction
        other.vectors = []
        other.kind, other.body = accumulation(nest.scope)
        other.dtype = arithmetic(other.kind)
        return other

    def _parameter(self, name: str, tensor: Tensor, layout: Layout) -> Any:
        """Declare a parameter whose shape and strides are checked at the call; return the same
        memory as a buffer of one axis, which addresses index."""
        steps = [
            # The stride of an axis of extent 1 means nothing, and callers pass different ones.
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
        """A loop; of one step only its body, of none nothing."""
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
        """Nested loops with ``body`` inside."""
        if not loops:
            return body(at)
        first, *others = loops
        return self._for(
            first.extent, lambda v: self._plain(others, {**at, first.slot: v}, body, kind), kind
        )

    def _outer(self, loops: Sequence[Loop], body: Body) -> list[Any]:
        """Loops of which the leading ones are fused into one parallel loop, until it has enough
        steps to share among threads. Small nests get no parallel loop."""
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
        """The loops around a kernel's innermost part in the schedule's order. Loops that the order
        doesn't name stay at the end."""
        known = [loops[k] for k in self.order if k < len(loops)]
        return [*known, *loops[len(known) :]]

    def _split(self, loops: Sequence[Loop], flat: Expr) -> dict[int, Expr]:
        """The iterators of ``loops`` at position ``flat`` of the fused loop."""
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
        """Loops over ``outer``, and over ``inner`` in blocks of ``width`` with a shorter block at
        the end."""
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
        """How many steps of a tile of ``width`` lie inside the loop."""
        if extent % width == 0:
            return width
        return tirx.min(self._int(width), self._int(extent) - start)

    # ---- one point ------------------------------------------------------

    def _point(self, at: dict[int, Expr]) -> list[Any]:
        """Compute and store one element of the result."""
        if self.empty:
            return self.finished(self._identity(), at)
        if not self.nest.scope.reduction:
            code, value = self._body(at)
            return [*code, *self._store(at, value)]
        total = self._local(1)
        zero = self._int(0)
        return [
            tirx.AllocBuffer(total, ON_STACK),
            tirx.BufferStore(total, self._identity(), [zero]),
            *self._in_runs(
                total, self.nest.reduction, at, lambda part, r: self._step(part, zero, r),
                lambda change: change(zero),
            ),
            *self.finished(tirx.BufferLoad(total, [zero]), at),
        ]

    def _in_runs(
        self,
        totals: Any,
        loops: Sequence[Loop],
        at: dict[int, Expr],
        step: Callable[[Any, dict[int, Expr]], list[Any]],
        each: Callable[[Callable[[Expr], list[Any]]], list[Any]],
    ) -> list[Any]:
        """The loops of a reduction. A long sum of float32 is added up in runs of at most `RUN`
        terms, and then the sums of the runs: 8,192 equal terms are off by 26 roundings (of 2^-24),
        and by 661 if they are added one after the other.

        Args:
            step: adds a term to the totals that it is given.
            each: does something at each place of the totals.
        """
        runs = self._runs(loops)
        if runs is None:
            return self._reduced(loops, at, partial(step, totals))
        around, inner, begin = runs
        (size,) = totals.shape
        part = self._local(int(size))

        def one_run(r: dict[int, Expr]) -> list[Any]:
            return [
                *each(lambda at: [tirx.BufferStore(part, self._identity(), [at])]),
                *self._reduced(inner, r, lambda r: step(part, begin(r))),
                *each(lambda at: self._accumulate(totals, at, tirx.BufferLoad(part, [at]))),
            ]

        return [tirx.AllocBuffer(part, ON_STACK), *self._plain(around, at, one_run)]

    def _runs(
        self, loops: Sequence[Loop]
    ) -> tuple[list[Loop], list[Loop], Callable[[dict[int, Expr]], dict[int, Expr]]] | None:
        """The loops over the runs of a long sum, those inside of a run, and what sets the iterator
        of a loop that was split into the two; None for a sum that isn't long, and for what isn't a
        sum of float32."""
        terms = math.prod(loop.extent for loop in loops)
        if self.nest.scope.reducer != "sum" or self.dtype != "float32" or terms <= 2 * RUN:
            return None
        around, inner, left = list(loops), list[Loop](), RUN
        while around[-1].extent <= left:
            inner.insert(0, around.pop())
            left //= inner[0].extent
        last = around[-1]
        size = max(n for n in range(1, left + 1) if last.extent % n == 0)
        if size == 1 or self.unrolled > 1 and not inner:
            return (around, inner, lambda r: r) if inner else None
        around[-1] = Loop(-6, last.extent // size)
        inner.insert(0, Loop(-5, size))
        return around, inner, lambda r: {**r, last.slot: r[-6] * self._int(size) + r[-5]}

    def _reduced(self, loops: Sequence[Loop], at: dict[int, Expr], body: Body) -> list[Any]:
        """The loops of a reduction. By default a short reduction is unrolled as a whole; if the
        schedule says so, so many steps of the innermost loop are."""
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
        beside: Body | None = None,
    ) -> list[Any]:
        """Reduce a block of points at once, in vectors of `LANES` elements or half of them.

        Args:
            size: rows and columns of the block.
            coordinates: the iterators at a row, a column, and the reduction's iterators.
            finish: what is done with the result at a row and a column.
            beside: what else is done in each step of the reduction. Without it a long sum is added
                up in runs.
        """
        height, width = size
        wide = LANES if width % LANES == 0 else LANES // 2
        whole, rest = divmod(width, wide)
        held = ceil_div(width, wide) * wide
        totals = self._local(height * held)

        def lanes(body: Callable[[Expr, Expr, Expr], list[Any]]) -> list[Any]:
            """``body`` for each vector of the block: row, columns, and places among the totals. If
            the columns aren't whole vectors, the last vector begins before the others end."""

            def vectors(i: Expr) -> list[Any]:
                first = i * self._int(held)
                last = first + self._int(held - width)
                found = self._for(
                    whole,
                    lambda k: self._vector(
                        k * self._int(wide), lambda lane: body(i, lane, first + lane), wide
                    ),
                    ForKind.UNROLLED,
                )
                if rest:
                    start = self._int(width - wide)
                    found += self._vector(start, lambda lane: body(i, lane, last + lane), wide)
                return found

            return self._for(height, vectors, ForKind.UNROLLED)

        def added(part: Any, r: dict[int, Expr]) -> list[Any]:
            return lanes(lambda i, lane, total: self._step(part, total, coordinates(i, lane, r)))

        def each(change: Callable[[Expr], list[Any]]) -> list[Any]:
            return lanes(lambda i, lane, total: change(total))

        if beside is None:
            reduced = self._in_runs(totals, reduction, {}, added, each)
        else:
            reduced = self._reduced(reduction, {}, lambda r: [*beside(r), *added(totals, r)])

        statements = [
            *lanes(lambda i, lane, total: [tirx.BufferStore(totals, self._identity(), [total])]),
            *reduced,
            *lanes(lambda i, lane, total: finish(i, lane, tirx.BufferLoad(totals, [total]))),
        ]
        allocated, self.vectors = self.vectors, []
        return [tirx.AllocBuffer(totals, ON_STACK), *allocated, *statements]

    def _vector(
        self, start: Expr, body: Callable[[Expr], list[Any]], lanes: int = LANES
    ) -> list[Any]:
        """``body`` at ``start`` and the next ``lanes - 1`` places, as one vectorized loop."""
        if lanes == 1:
            return body(start)
        self.lane, self.lanes = self._var("lane"), lanes
        steps = sequence(body(start + self.lane))
        loop = tirx.For(self.lane, self._int(0), self._int(lanes), ForKind.VECTORIZED, steps)
        self.lane, self.lanes = None, 1
        return [loop]

    def _plus(self, partial: Any, distance: int) -> Callable[[Expr], list[Any]]:
        """A body that combines each partial result with the one ``distance`` places after it."""

        def add(lane: Expr) -> list[Any]:
            other = tirx.BufferLoad(partial, [lane + self._int(distance)])
            return self._accumulate(partial, lane, other)

        return add

    def _step(self, totals: Any, lane: Expr, at: dict[int, Expr]) -> list[Any]:
        """Evaluate the body and add its value to a total."""
        code, value = self._body(at)
        return [*code, *self._accumulate(totals, lane, value)]

    def _accumulate(self, totals: Any, lane: Expr, value: Expr) -> list[Any]:
        """Combine a total with a value by the scope's reducer."""
        total = tirx.BufferLoad(totals, [lane])
        combine: dict[str, Callable[[], Expr]] = {
            "sum": lambda: total + value,
            "prod": lambda: total * value,
            "max": lambda: maximum(self.dtype, total, value),
            "min": lambda: minimum(self.dtype, total, value),
        }
        return [tirx.BufferStore(totals, combine[self.nest.scope.reducer](), [lane])]

    def _identity(self) -> Expr:
        """The reducer's identity: 0 for a sum."""
        value = REDUCERS[self.nest.scope.reducer]
        return number(float(value > 0) if self.dtype == "bool" else value, self.dtype)

    @property
    def rounds(self) -> bool:
        """Whether products are rounded before they are added: in extrema, since a softmax subtracts
        the largest score from scores that another kernel may compute again."""
        return self.nest.scope.reducer in ("max", "min") and bool(self.nest.scope.reduction)

    def _local(self, width: int) -> Any:
        """Declare memory for ``width`` totals."""
        self.count += 1
        return tirx.decl_buffer(
            [self._int(width)], self.dtype, f"total{self.count}", scope="local", layout=None
        )

    def _body(self, at: dict[int, Expr]) -> tuple[list[Any], Expr]:
        """Statements that evaluate the body, and its value."""
        iterators = self.iterators(at)
        code = ScalarCode(
            lambda read: self.load(read, iterators), iterators, self.index_dtype,
            self.lane, self.lanes, self.rounds, self.add_rounded, self.scales,
        )  # fmt: skip
        value = code.value(self.body, self.kind)
        if self.lane is None:
            return [*code.allocations, *code.statements], value
        self.vectors += code.allocations
        return code.statements, value

    def finished(self, value: Expr, at: dict[int, Expr]) -> list[Any]:
        """Store a result of a reduction, after the map if there is one."""
        allocated, code, mapped = self.mapped(value, at)
        if self.lane is not None:
            self.vectors += allocated
            allocated = []
        return [*allocated, *code, *self._store(at, mapped)]

    def mapped(self, value: Expr, at: dict[int, Expr]) -> tuple[list[Any], list[Any], Expr]:
        """The map (bias, residual, activation) of a result that is still in a register: buffers to
        allocate, statements, and its value. The result itself if the nest has no map."""
        after, iterators = self.nest.after, self.iterators(at)
        if after is None:
            return [], [], value

        def load(read: Read) -> Expr:
            # The only read that is no argument is that of the reduction's result.
            return self.load(read, iterators) if read in self.nest.accesses else value

        code = ScalarCode(
            load, iterators, self.index_dtype, self.lane, self.lanes, self.rounds,
            self.add_rounded, self.scales,
        )  # fmt: skip
        found = code.value(after.body, self.kind)
        return code.allocations, code.statements, found

    def iterators(self, at: dict[int, Expr]) -> dict[int, Expr]:
        """The values of all iterators; an iterator without a loop is 0."""
        slots = range(len(self.nest.scope.extents))
        return {**{slot: self._int(0) for slot in slots}, **at}

    def load(self, read: Read, iterators: dict[int, Expr]) -> Expr:
        """The value of a read: its element, or the fill where the index is outside of the
        tensor."""
        if read in self.instead:
            return self.instead[read](iterators)
        fill = number(read.fill, arithmetic(read.tensor.dtype))
        access = self.nest.accesses.get(read)
        if access is None:
            return fill
        address = index_code(access.address, iterators, self.index_dtype)
        tests = self.inside(access, iterators)
        chosen = bool(tests) and self.innermost is not None and (
            not access.guarded_by(self.innermost)
        )  # fmt: skip
        if chosen:
            address = address + self._to_inside(access, iterators)
        value = loaded(tirx.BufferLoad(self.flat[access.argument], [address]), read.tensor.dtype)
        if chosen:
            return tirx.Select(tirx.all(*tests), value, fill)
        return tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value

    def _to_inside(self, access: Access, iterators: dict[int, Expr]) -> Expr:
        """How far the nearest element of the tensor is from the address of a read."""
        distance = self._int(0)
        for (index, extent), step in zip(access.guards, access.steps, strict=True):
            position = index_code(index, iterators, self.index_dtype)
            nearest = tirx.max(self._int(0), tirx.min(self._int(extent - 1), position))
            distance = distance + (nearest - position) * self._int(step)
        return distance

    def inside(self, access: Access, iterators: dict[int, Expr]) -> list[Expr]:
        """Tests that a read stays in its tensor; none if it always does."""
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
        """Store an element of the result in its dtype."""
        address = index_code(self.nest.output, self.iterators(at), self.index_dtype)
        dtype = self.nest.scope.dtype
        kept = to_storage(convert(value, self.dtype, arithmetic(dtype)), dtype)
        return [tirx.BufferStore(self.out, kept, [address])]


def _is_small(nest: LoopNest) -> bool:
    """Whether all indices and addresses fit into 32 bits with room to spare."""
    indices = [nest.output, *(a.address for a in nest.accesses.values())]
    indices += [index for a in nest.accesses.values() for index, _ in a.guards]
    indices += [v.index for v in leaves(nest.scope.body) if isinstance(v, Value)]
    return all(-(2**30) < low and high < 2**30 for low, high in map(Index.range, indices))


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
