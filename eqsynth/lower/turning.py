"""Square tiles of memory, transposed in registers.

    lines in memory  0 1 2 3   ->   0 4 8 C
                     4 5 6 7        1 5 9 D
                     8 9 A B        2 6 A E
                     C D E F        3 7 B F

A line is read and written as one vector. Of n lines, squares of four by four are transposed first:
two rounds interleave lines within each part of four elements. Further rounds exchange such parts
between lines, until each part has the place of its square. Each instruction then mixes two
registers, and the instructions of the first two rounds don't cross the 128-bit parts of a register.
(Two cores with AVX2, 128 by 784 float32 by one thread: 0.050 ms in tiles of 16 that interleave
whole lines in all rounds, and 0.012 in tiles of 8 in this way, as much as a copy.) Element by
element, transposing 4-byte elements takes three times as long as in the former way. Not here: which
schedules turn tiles (``eoperators.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tvm import tirx

from eqsynth.lower.scalar_code import ON_STACK
from eqsynth.lower.scalar_functions import Expr

# The elements of a part of a line: 128 bits of 4-byte elements.
_PART: Final = 4


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
    rounds = list(_rounds(side))
    buffers = [
        tirx.decl_buffer([side * side], dtype, f"{name}_{n}", scope="local", layout=None)
        for n in range(len(rounds) + 1)
    ]
    statements: list[Any] = [tirx.AllocBuffer(buffer, ON_STACK) for buffer in buffers]
    statements += [tirx.BufferStore(buffers[0], line(n), [_place(n, side)]) for n in range(side)]
    for mixes, before, after in zip(rounds, buffers, buffers[1:], strict=False):
        for target, (pair, order) in enumerate(mixes):
            lines = [tirx.BufferLoad(before, [_place(n, side)]) for n in pair]
            mixed = tirx.Shuffle(lines, [tirx.const(n, "int32") for n in order])
            statements.append(tirx.BufferStore(after, mixed, [_place(target, side)]))
    return statements, buffers[-1]


def _rounds(side: int) -> Iterator[list[tuple[tuple[int, int], list[int]]]]:
    """For each round, how each line is made: of which two lines before, and of which of their
    elements in a row.

    >>> [mixes[0] for mixes in _rounds(4)]
    [((0, 2), [0, 4, 1, 5]), ((0, 2), [0, 4, 1, 5])]
    >>> [mixes[0] for mixes in _rounds(8)][2]
    ((0, 4), [0, 1, 2, 3, 8, 9, 10, 11])
    """
    part = min(side, _PART)
    half, elements = part // 2, range(side)
    for _ in range(part.bit_length() - 1):
        mixes = []
        for target in range(side):
            square, n = target - target % part, target % part
            first = square + n // 2
            begin = n % 2 * half
            order = [
                e - e % part + begin + e % part // 2 + side * (e % part % 2) for e in elements
            ]
            mixes.append(((first, first + half), order))
        yield mixes
    apart = part
    while apart < side:
        yield [
            ((n, n + apart), [e if e & apart == 0 else e - apart + side for e in elements])
            if n & apart == 0
            else ((n - apart, n), [e + apart if e & apart == 0 else e + side for e in elements])
            for n in range(side)
        ]
        apart *= 2


def _place(line: int, side: int) -> Expr:
    return tirx.Ramp(tirx.const(line * side, "int32"), tirx.const(1, "int32"), side)
