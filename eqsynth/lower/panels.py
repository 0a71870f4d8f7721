"""A constant operand of a contraction in panels: its elements in the order in which blocks read
them.

    C[i, j] = sum_k W[i, k] * x[k, j]  in blocks of 6 rows:  W[i, k] stands at [i // 6, k, i % 6]

A block reads its panel from the beginning to the end. In W itself its 6 rows lie 4 * k bytes apart,
or each step of k jumps over a whole column; so a weight that lies in no cache is read at a fraction
of the memory's bandwidth. A constant is copied into panels once, when the kernel is built. Not
here: the loops of a block (``eoperators.py``), which kernels have panels (``schedules.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eqsynth.extract.schedule import Block
from eqsynth.ir.index import It
from eqsynth.lower.bands import HALF
from eqsynth.lower.loop_nest import Access, Loop, LoopNest

if TYPE_CHECKING:
    import torch

ROWS: Final = -1
COLUMNS: Final = -2
"""The slots of the loops over blocks, by rows and by columns."""


@dataclass(frozen=True)
class Piece:
    """A part of a loop: ``count`` blocks of ``size`` steps, from ``start`` on."""

    count: int
    size: int
    start: int

    @property
    def steps(self) -> int:
        return self.count * self.size


def pieces(extent: int, size: int, multiple: int) -> list[Piece]:
    """A loop as whole blocks, and one block for the rest. That block's size is rounded up to
    ``multiple``, so it may begin before the whole blocks end. A loop that is shorter than a block
    is one block.

    >>> pieces(20, 16, 8)
    [Piece(count=1, size=16, start=0), Piece(count=1, size=8, start=12)]
    >>> pieces(20, 24, 8)
    [Piece(count=1, size=20, start=0)]
    """
    whole, rest = divmod(extent, size)
    if not whole:
        return [Piece(1, extent, 0)]
    found = [Piece(whole, size, 0)]
    if rest:
        last = -(-rest // multiple) * multiple
        found.append(Piece(1, last, extent - last))
    return found


@dataclass(frozen=True)
class Panels:
    """An operand in panels. For each step of the loops around, its pieces follow each other; a
    piece is ``[block, *reduction, step in the block]``.

    Attributes:
        access: the operand as it lies in its layout.
        around: the loops around the blocks along which the operand moves.
        by_rows: whether the loop of rows is cut into blocks, and not the loop of columns.
        cut: the loop that is cut into blocks.
        reduction: the loops of the reduction along which the operand moves.
        pieces: the pieces of ``cut``.
    """

    access: Access
    around: tuple[Loop, ...]
    by_rows: bool
    cut: Loop
    reduction: tuple[Loop, ...]
    pieces: tuple[Piece, ...]

    @property
    def depth(self) -> int:
        """The steps of the reduction that a panel holds."""
        return math.prod(loop.extent for loop in self.reduction)

    @property
    def each(self) -> int:
        """The elements of all pieces, for one step of the loops around."""
        return self.depth * sum(piece.steps for piece in self.pieces)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.each * math.prod(loop.extent for loop in self.around)

    def begin(self, piece: Piece) -> int:
        """Where a piece begins among the pieces."""
        return self.depth * sum(p.steps for p in self.pieces[: self.pieces.index(piece)])

    def strides(self, piece: Piece) -> dict[int, int]:
        """By how many elements a step of each loop moves in a piece, by the loop's slot. The cut
        loop isn't among them: a block is ``piece.size * depth`` elements, a step in it is one."""
        found: dict[int, int] = {}
        for loops, step in ((self.around, self.each), (self.reduction, piece.size)):
            for loop in reversed(loops):
                found[loop.slot] = step
                step *= loop.extent
        return found

    def between(self, around: Sequence[Loop]) -> tuple[Loop, ...]:
        """The loops that run while blocks use one panel, before the next panel is used: none if
        each panel is used once, or if panels aren't used in the order in which they are stored.

        Args:
            around: the loops around a block in their order, of which `ROWS` and `COLUMNS` run over
                blocks.
        """
        moving = [*(loop.slot for loop in self.around), ROWS if self.by_rows else COLUMNS]
        running = [loop for loop in around if loop.extent > 1]
        places = [n for n, loop in enumerate(running) if loop.slot in moving]
        used = [running[n].slot for n in places]
        if not used or used != [slot for slot in moving if slot in used]:
            return ()
        return tuple(running[places[-1] + 1 :])

    def stored(self, value: torch.Tensor) -> torch.Tensor:
        """The operand in panels, as one axis.

        Args:
            value: the operand, dense in the layout of the nest.
        """
        import torch

        line = torch.as_strided(value, (value.numel(),), (1,))
        panels = torch.empty(self.size, dtype=value.dtype)
        parts = panels.view([*(loop.extent for loop in self.around), self.each])
        for piece in self.pieces:
            loops = (*self.around, Loop(self.cut.slot, piece.count), *self.reduction,
                     Loop(self.cut.slot, piece.size))  # fmt: skip
            steps = [self.access.address.coefficient(loop.slot) for loop in loops]
            steps[len(self.around)] *= piece.size
            first = self.access.address.const + piece.start * steps[-1]
            shape = [loop.extent for loop in loops]
            # An axis along which addresses fall is read from its end, and turned.
            falling = [axis for axis, step in enumerate(steps) if step < 0]
            first += sum(steps[axis] * (shape[axis] - 1) for axis in falling)
            taken = torch.as_strided(line, shape, [abs(step) for step in steps], first)
            begin, count = self.begin(piece), piece.steps * self.depth
            part = parts[..., begin : begin + count]
            part.copy_(taken.flip(falling).reshape(part.shape))
        return panels


def panels(nest: LoopNest, schedule: Block, loops: tuple[Loop, Loop]) -> Panels | None:
    """The panels of the argument that the schedule says is in panels; None if it can't be.

    It can be if it is read once and always inside, at an address that is linear in the loops, and
    moves along the rows of a block or along its columns, but not along both.

    Args:
        loops: the loops of a block's rows and columns.
    """
    read = [a for a in nest.accesses.values() if a.argument == schedule.packed]
    if len(read) != 1 or read[0].guards:
        return None
    (access,) = read
    if not all(isinstance(atom, It) for atom, _ in access.address.terms):
        return None

    def moving(among: Sequence[Loop]) -> tuple[Loop, ...]:
        return tuple(loop for loop in among if access.stride(loop.slot))

    cut = moving(loops)
    if len(cut) != 1:
        return None
    by_rows = cut[0] == loops[0]
    size, multiple = (schedule.rows, 1) if by_rows else (schedule.columns, HALF)
    around = moving([loop for loop in nest.traversal if loop not in loops])
    made = tuple(pieces(cut[0].extent, size, multiple))
    found = Panels(access, around, by_rows, cut[0], moving(nest.reduction), made)
    return found if found.size else None
