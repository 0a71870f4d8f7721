"""The rows and columns of a contraction's blocks, by the loops' extents and the registers.

    64 rows, 64 columns, 16 registers of 8 float32  ->  6 by 16
    64 rows, 21 columns                             ->  3 by 24

Not here: whether a contraction is computed in blocks, and in which order (``schedules.py``).
"""

from __future__ import annotations

from typing import Final

from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.bands import HALF
from eqsynth.lower.loop_nest import Loop
from eqsynth.lower.machine import LANES, Machine
from eqsynth.lower.panels import pieces

# A block with fewer rows than this gets more columns.
FEW_ROWS: Final = 4
# What it costs to begin a block, in steps of one row: its operand of the columns is read again.
BEGUN: Final = 0.25
# The most rows of a block by its vectors of columns, where 16 registers hold half of `LANES` each.
# (LLVM keeps 4 by 3 of them in registers for some products only: 157 GFLOP/s by 3 rows, 91 by 4.)
_NARROW: Final = ((6, 2), (3, 3), (8, 1))
# Another size than the usual one is taken if blocks of it take this part of the time.
_BETTER: Final = 0.95


def block_height(row: Loop, most: int) -> int:
    """Rows of a block: of the heights that the registers hold, the one with which all rows take the
    fewest steps, those that are left over included.

    A block takes a step for each row, but at least `FEW_ROWS`: an addition to a register waits for
    the one before. (3x3 convolutions in GFLOP/s by 4, 5 and 6 rows: 64 rows 159, 162, 166; 28 rows
    133, 120, 148; 14 rows 126, 146, 110; 7 rows 120, 117, 102.)
    """

    def steps(height: int) -> float:
        found = pieces(row.extent, height, 1)
        return sum(each.count * (max(each.size, FEW_ROWS) + BEGUN) for each in found)

    return min(range(min(most, row.extent), 0, -1), key=steps)


def block_width(column: Loop, machine: Machine, rows: int) -> int:
    """Columns of a block: as many whole vectors as fit the loop and the registers. With few rows
    more of them fit, and are needed: an addition to a register waits for the one before, so a block
    of 2 by 16 is half as fast as one of 2 by 32."""
    widths = (2 * LANES, LANES, LANES // 2) if machine.wide else (LANES, LANES // 2)
    if rows < FEW_ROWS:
        lanes = machine.register_bytes // ITEMSIZE["float32"]
        held = (machine.registers - 1) // (rows + 1) * lanes
        widths = (*(w for w in (4 * LANES, 3 * LANES, 2 * LANES) if w <= held), *widths)
    return next(w for w in widths if column.extent >= w)


def block_size(loops: tuple[Loop, Loop], machine: Machine) -> tuple[int, int]:
    """Rows and columns of a block.

    If the columns aren't whole blocks, other sizes may leave less of the registers empty: 21
    columns are a block of 16 and one of 8 that is as slow, or one block of 24, of which the last
    vector begins three columns before the others end. (On an AMD EPYC with AVX2, in GFLOP/s: a 3x3
    convolution of 21 channels at 224x224 by 5 by 16 and 3 by 24: 132, 157; one of 12 channels at
    64x64 by 6 by 8 and 6 by 16: 60, 85.)
    """
    row, column = loops
    rows = block_height(row, 8 if machine.wide else 6)
    usual = rows, block_width(column, machine, rows)
    if machine.wide or rows < FEW_ROWS or column.extent % LANES == 0:
        return usual
    sizes = [(height, n * HALF) for most, n in _NARROW if n * HALF < column.extent + HALF
             for height in range(min(most, row.extent), 0, -1)]  # fmt: skip
    best = min(sizes, key=lambda size: _block_steps(loops, size))
    better = _block_steps(loops, best) < _BETTER * _block_steps(loops, usual)
    return best if better else usual


def _block_steps(loops: tuple[Loop, Loop], size: tuple[int, int]) -> float:
    """The time of all blocks, in steps of one row by two vectors: two additions at a time."""
    total = 0.0
    for rows in pieces(loops[0].extent, size[0], 1):
        for columns in pieces(loops[1].extent, size[1], HALF):
            vectors = -(-columns.size // HALF)
            steps = max(rows.size * vectors / 2, (rows.size + vectors) / 2, FEW_ROWS)
            total += rows.count * columns.count * (steps + BEGUN)
    return total
