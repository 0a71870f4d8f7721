"""Scopes that multiply tiles of data in registers by matrices of literals, axis after axis.

    L[t, p, q, c] sum[u, v] B[p, u] * B[q, v] * x[2*t + u, v, c]

With a B of 4 by 4 the kernel reads a tile of x once, multiplies its columns by B, then its rows,
and writes the result: 2 * 4 * 4 * 4 multiply-adds instead of 4 * 4 * 4 * 4, and products by zero
are left out. The transforms of Winograd's convolution are such scopes.

Here: which scopes are of this form, and their loops. Not here: the code (``matrix_code.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eqsynth.extract.kernel import strides
from eqsynth.ir.index import FloorDiv, Index, It, Mod
from eqsynth.ir.indices import rebuilt
from eqsynth.ir.scalar import Read, factors_of, leaves
from eqsynth.ir.tensor import Op, is_literal
from eqsynth.lower.loop_nest import Access, Loop, LoopNest, access_of

Rows = tuple[tuple[float, ...], ...]

MOST_VALUES: Final = 80
"""The most elements of a tile, before or after the matrices: each takes some operations, which are
written out."""


@dataclass(frozen=True)
class Along:
    """One axis of a tile: the results at ``row`` 0, 1, … are the matrix times the data at
    ``column`` 0, 1, ….

    Attributes:
        slot, extent: the traversal iterator y that the rows belong to, ``y = step * (rows * tile +
            row) + phase``.
        column: the slot of the reduction iterator.
        tile, phase: new loops in place of y.
    """

    matrix: Rows
    slot: int
    extent: int
    step: int
    column: int
    tile: Loop
    phase: Loop

    @property
    def whole(self) -> bool:
        """Whether the last tile ends where the extent does."""
        return self.tile.extent * self.step * len(self.matrix) == self.extent

    def at(self, row: int) -> Index:
        """The value of y at a row."""
        first = _at(self.tile) * len(self.matrix) + row
        return first * self.step + _at(self.phase)


@dataclass(frozen=True)
class Tiles:
    """A scope of literals and one read as tiles.

    Attributes:
        along: the axes that are multiplied by matrices.
        loops: the loops around a tile, in the order of the result's memory, without the innermost.
        lanes: the innermost loop: neighbours in the result and in the data.
        data: the read's address and guards, over the loops and the columns.
        fill: the value of the data outside of its tensor.
        output: the address of a result, over the scope's iterators.
    """

    along: tuple[Along, ...]
    loops: tuple[Loop, ...]
    lanes: Loop
    data: Access
    fill: float
    output: Index


def tiles_of(nest: LoopNest) -> Tiles | None:
    """The tiles of a scope; None if it isn't of this form, or its neighbours don't lie beside each
    other in the data and the result."""
    scope, factors = nest.scope, factors_of(nest.scope.body)
    reads = [factor for factor in factors if isinstance(factor, Read)]
    literals = [read for read in reads if is_literal(read.tensor)]
    if len(reads) != len(factors) or len(reads) != len(literals) + 1 or not literals:
        return None
    if scope.reducer != "sum" or scope.dtype not in ("float32", "float64"):
        return None
    (data,) = (read for read in reads if read not in literals)
    if data.tensor.dtype != scope.dtype or 0 in (*scope.extents, data.tensor.type.size):
        return None
    slot = len(scope.extents)
    along: list[Along] = []
    for read in literals:
        found = _along(read, nest, slot)
        if found is None:
            return None
        along.append(found)
        slot += 2
    columns, rows = [a.column for a in along], [a.slot for a in along]
    reduced = [len(scope.traversal) + n for n, e in enumerate(scope.reduction) if e != 1]
    if sorted(columns) != reduced or len(set(rows)) != len(rows):
        return None
    index = _without_rows(data, along)
    if index is None or not _few(along):
        return None
    address = access_of(
        Read(data.tensor, index, data.fill), nest.args.index(data.tensor),
        strides(data.tensor.shape, nest.layouts[nest.args.index(data.tensor)]),
    )  # fmt: skip
    loops: list[Loop] = []
    for axis in nest.result:
        own = [a for a in along if a.slot == axis]
        parts = (own[0].tile, own[0].phase) if own else (Loop(axis, scope.traversal[axis]),)
        loops += [loop for loop in parts if loop.extent != 1]
    steps = strides(scope.traversal, nest.result)
    if not loops or loops[-1].slot >= len(scope.traversal) or steps[loops[-1].slot] != 1:
        return None
    lanes = loops.pop()
    if address.stride(lanes.slot) != 1 or address.guarded_by(lanes.slot):
        return None
    if not all(_in_vectors(access, lanes) for access in accesses_after(nest).values()):
        return None
    output = Index(0)
    for axis, step in enumerate(steps):
        output = output + Index.iterator(axis, scope.traversal[axis]) * step
    return Tiles(tuple(along), tuple(loops), lanes, address, data.fill, output)


def accesses_after(nest: LoopNest) -> dict[Read, Access]:
    """The accesses of the map after the matrices, other than the matrices' result."""
    read = set() if nest.after is None else set(leaves(nest.after.body))
    return {leaf: access for leaf, access in nest.accesses.items() if leaf in read}


def _in_vectors(access: Access, lanes: Loop) -> bool:
    """Whether neighbours read neighbouring elements, or all the same element."""
    return access.stride(lanes.slot) in (0, 1) and not access.guarded_by(lanes.slot)


def _few(along: list[Along]) -> bool:
    """Whether a tile is small enough to be written out."""
    before = after = 1
    for axis in along:
        before, after = before * len(axis.matrix[0]), after * len(axis.matrix)
    return max(before, after) <= MOST_VALUES


def _along(read: Read, nest: LoopNest, slot: int) -> Along | None:
    """The axis on which a literal is read as ``[y // step % rows, u]``; None for other reads."""
    assert isinstance(read.tensor, Op)
    shape, above, below, _ = read.tensor.attrs
    assert isinstance(above, tuple) and isinstance(below, tuple) and isinstance(shape, tuple)
    if len(shape) != 2:
        return None
    row, column = read.index
    it, u = _position(row), column.bare()
    width = len(nest.scope.traversal)
    if it is None or u is None or u.slot < width or u.extent != shape[1] or it[0].slot >= width:
        return None
    y, step, modulus = it
    if modulus not in (0, shape[0]) or modulus == 0 and -(-y.extent // step) > shape[0]:
        return None
    numbers = [a / b for a, b in zip(above, below, strict=True)]
    matrix = tuple(tuple(numbers[n * shape[1] : (n + 1) * shape[1]]) for n in range(shape[0]))
    tiles = -(-y.extent // (step * shape[0]))
    return Along(matrix, y.slot, y.extent, step, u.slot, Loop(slot, tiles), Loop(slot + 1, step))


def _position(row: Index) -> tuple[It, int, int] | None:
    """(y, step, rows) of the index ``y // step % rows``; rows is 0 if there is no remainder. None
    for other indices."""
    if row.const or len(row.terms) != 1 or row.terms[0][1] != 1:
        return None
    atom, modulus, step = row.terms[0][0], 0, 1
    if isinstance(atom, Mod):
        modulus = atom.divisor
        if atom.value.const or len(atom.value.terms) != 1 or atom.value.terms[0][1] != 1:
            return None
        atom = atom.value.terms[0][0]
    if isinstance(atom, FloorDiv):
        step, bare = atom.divisor, atom.value.bare()
        if bare is None:
            return None
        atom = bare
    if not isinstance(atom, It):
        return None
    return atom, step, modulus


def _without_rows(data: Read, along: list[Along]) -> tuple[Index, ...] | None:
    """The data's indices over tiles and phases; None if they differ between rows of a tile."""
    found: list[tuple[Index, ...]] = []
    for row in range(max(len(axis.matrix) for axis in along)):
        images = {axis.slot: axis.at(min(row, len(axis.matrix) - 1)) for axis in along}

        def affine(part: Index, images: dict[int, Index] = images) -> Index:
            return part.substitute(
                lambda it: images.get(it.slot, Index.iterator(it.slot, it.extent))
            )

        found.append(tuple(rebuilt(index, affine) for index in data.index))
    return found[0] if all(index == found[0] for index in found) else None


def _at(loop: Loop) -> Index:
    return Index.iterator(loop.slot, loop.extent)
