"""The code that makes a padded copy (``padding.py``): one row of its memory after the other, each
as fill, elements of the argument, and fill again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from eqsynth.extract.kernel import strides
from eqsynth.lower.emitter import Emitter, sequence
from eqsynth.lower.loop_nest import Loop
from eqsynth.lower.machine import LANES
from eqsynth.lower.padding import Pad
from eqsynth.lower.scalar_functions import Expr, arithmetic, number, stored, to_storage


def padded_copy(e: Emitter, pad: Pad) -> tuple[Any, list[Any]]:
    """The memory of a padded copy, and the statements that allocate and fill it."""
    tensor = pad.read.tensor
    memory = tirx.decl_buffer(
        [e._int(pad.size)], stored(tensor.dtype), f"padded{pad.argument}", layout=None
    )
    own = strides(tensor.shape, e.nest.layouts[pad.argument])
    fill = to_storage(number(pad.read.fill, arithmetic(tensor.dtype)), tensor.dtype)
    *outer, inner = pad.layout

    def row(at: dict[int, Expr]) -> list[Any]:
        at = {inner: e._int(0), **at}
        tests = []
        source, place = e._int(0), e._int(0)
        for axis, (low, extent) in enumerate(zip(pad.lows, pad.extents, strict=True)):
            position = at.get(axis, e._int(0)) + e._int(low)
            source = source + position * e._int(own[axis])
            place = place + at.get(axis, e._int(0)) * e._int(pad.steps[axis])
            if axis != inner and low < 0:
                tests.append(position >= e._int(0))
            if axis != inner and low + extent > tensor.shape[axis]:
                tests.append(position < e._int(tensor.shape[axis]))
        before = max(-pad.lows[inner], 0)
        after = max(pad.lows[inner] + pad.extents[inner] - tensor.shape[inner], 0)
        inside = max(pad.extents[inner] - before - after, 0)

        def taken(n: Expr) -> Expr:
            return tirx.BufferLoad(e.flat[pad.argument], [source + n * e._int(own[inner])])

        def filled(begin: int, count: int) -> list[Any]:
            return _line(e, memory, place, begin, count, lambda _: fill)

        copied = [
            *filled(0, before),
            *_line(e, memory, place, before, inside, taken),
            *filled(pad.extents[inner] - after, after),
        ]
        if not tests:
            return copied
        blank = filled(0, pad.extents[inner])
        return [tirx.IfThenElse(tirx.all(*tests), sequence(copied), sequence(blank))]

    loops = [Loop(axis, pad.extents[axis]) for axis in outer if pad.extents[axis] != 1]
    return memory, [tirx.AllocBuffer(memory), *e._outer(loops, row)]


def _line(
    e: Emitter, memory: Any, place: Expr, begin: int, count: int, value: Callable[[Expr], Expr]
) -> list[Any]:
    """Store ``value(n)`` at ``n`` places from ``place`` on, for ``count`` numbers from ``begin``
    on: in whole vectors, and one by one at the end."""

    def put(n: Expr) -> list[Any]:
        return [tirx.BufferStore(memory, value(n), [place + n])]

    whole, rest = divmod(count, LANES)
    return [
        *e._for(whole, lambda k: e._vector(k * e._int(LANES) + e._int(begin), put, LANES)),
        *e._for(rest, lambda k: put(k + e._int(begin + whole * LANES))),
    ]
