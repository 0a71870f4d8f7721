"""Square tiles of memory, transposed in registers.

    lines in memory  0 1 2 3   ->   0 4 8 C
                     4 5 6 7        1 5 9 D
                     8 9 A B        2 6 A E
                     C D E F        3 7 B F

A line is read and written as one vector. Each of log2(n) rounds interleaves line k with line
k + n/2; after the last one, line i holds the elements that stood at place i of all lines. Element
by element, transposing 4-byte elements takes three times as long. Not here: which schedules turn
tiles (``eoperators.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from eqsynth.lower.scalar_code import ON_STACK
from eqsynth.lower.scalar_functions import Expr


def turned(
    side: int, dtype: str, line: Callable[[int], Expr], name: str
) -> tuple[list[Any], Any]:
    """Statements that read a tile and transpose it, and the buffer that holds the result,
    ``side * side`` elements.

    Args:
        side: the number of lines, and of elements of a line; a power of two.
        line: the n-th line in memory, as a vector.
        name: of the buffers.
    """
    rounds = side.bit_length() - 1
    buffers = [
        tirx.decl_buffer([side * side], dtype, f"{name}_{n}", scope="local", layout=None)
        for n in range(rounds + 1)
    ]
    statements: list[Any] = [tirx.AllocBuffer(buffer, ON_STACK) for buffer in buffers]
    statements += [tirx.BufferStore(buffers[0], line(n), [_place(n, side)]) for n in range(side)]
    half = side // 2
    for before, after in zip(buffers, buffers[1:], strict=False):
        for k in range(half):
            pair = [tirx.BufferLoad(before, [_place(n, side)]) for n in (k, k + half)]
            for part in (0, 1):
                order = [part * half + n // 2 + side * (n % 2) for n in range(side)]
                mixed = tirx.Shuffle(pair, [tirx.const(n, "int32") for n in order])
                statements.append(tirx.BufferStore(after, mixed, [_place(2 * k + part, side)]))
    return statements, buffers[-1]


def _place(line: int, side: int) -> Expr:
    return tirx.Ramp(tirx.const(line * side, "int32"), tirx.const(1, "int32"), side)
