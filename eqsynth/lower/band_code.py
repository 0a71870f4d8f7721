"""The code of a band product: a packed panel of rows, and tiles of results in registers.

A task packs the rows of B that some rows of one residue read (``bands.py``), with the fill where
they are outside of the tensor. A tile across the band is a dense product of its rows with all
packed rows that they read; each row's part in the band is then copied out:

    packed rows      0 1 2 3 4 5 6        row 0 has the band 0..4 (five wide),
    tile row 0       x x x x x . .        row 1 has 1..5, row 2 has 2..6
    tile row 1       . x x x x x .
    tile row 2       . . x x x x x

A tile along the band sums over the packed rows: a loop runs over the packed rows that all rows of
the tile read, and the steps for the other packed rows are written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from eqsynth.lower.bands import HALF, BandProduct, cut, panel_elements, pitch, wide
from eqsynth.lower.loop_nest import Loop
from eqsynth.lower.scalar_code import ON_STACK, index_code
from eqsynth.lower.scalar_functions import Expr, arithmetic, number

if TYPE_CHECKING:
    from eqsynth.extract.schedule import Band
    from eqsynth.lower.emitter import Emitter

# Slots of loops that are no iterators of the scope: a task's residue, its panel, and a row of the
# panel.
_RESIDUE, _PANEL, _PACKED = -1, -2, -3


class BandCode:
    """Statements of a band product under a schedule."""

    def __init__(self, emitter: Emitter, band: BandProduct, schedule: Band) -> None:
        self._emitter, self._band, self._schedule = emitter, band, schedule
        self._cut = cut(band, schedule)
        self._pitch = pitch(self._cut.packed)
        self._panel = self._memory("panel", panel_elements(band, schedule))
        # Memory for a tile across the band, from which each row's band is copied out.
        self._scratch = self._memory("tile", schedule.rows * wide(band, schedule.rows))
        emitter.instead[band.moving] = self._from_panel

    def statements(self) -> list[Any]:
        """The loops over tasks, with the code of each task."""
        band = self._band
        tasks = (Loop(_RESIDUE, band.residues), Loop(_PANEL, self._cut.panels))
        return self._emitter._outer((*band.outer, *tasks), self._task)

    def _memory(self, name: str, size: int) -> Any:
        e = self._emitter
        return tirx.decl_buffer([e._int(size)], e.dtype, name, layout=None)

    def _task(self, at: dict[int, Expr]) -> list[Any]:
        """Pack a panel, and compute its tiles."""
        tile = self._across if self._band.across else self._along
        e, size = self._emitter, self._schedule.rows
        tiles = e._for(self._cut.tiles, lambda n: tile(at, n * e._int(size)))
        scratch = [tirx.AllocBuffer(self._scratch)] if self._band.across else []
        return [tirx.AllocBuffer(self._panel), *scratch, *self._packing(at), *tiles]

    # ---- the panel --------------------------------------------------------

    def _packing(self, at: dict[int, Expr]) -> list[Any]:
        """Copy rows ``residue + d*(first + j)`` of the moving operand to rows j of the panel."""
        e, band = self._emitter, self._band
        access = e.nest.accesses[band.moving]

        def row(j: Expr) -> list[Any]:
            there = {**at, band.row.slot: self._row(at, j), _PACKED: j}

            def put(value: Expr | None) -> list[Any]:
                slot, extent = band.other.slot, band.other.extent
                return e._for(extent, lambda n: self._put({**there, slot: n}, value))

            past = self._cut.packed > self._cut.panel_rows + band.window.extent - 1
            tests = e.inside(access, e.iterators(there))
            if past or not self._cut.whole:
                tests.append(there[band.row.slot] <= e._int(band.last))
            if not tests:
                return put(None)
            fill = number(band.moving.fill, arithmetic(band.moving.tensor.dtype))
            filled, read = map(_sequence, (put(fill), put(None)))
            return [tirx.IfThenElse(tirx.all(*tests), read, filled)]

        return e._for(self._cut.packed, row)

    def _put(self, at: dict[int, Expr], value: Expr | None) -> list[Any]:
        """Store one element of the panel: ``value``, or, if it is None, the operand's element."""
        e, access = self._emitter, self._emitter.nest.accesses[self._band.moving]
        if value is None:
            address = index_code(access.address, e.iterators(at), e.index_dtype)
            value = tirx.BufferLoad(e.flat[access.argument], [address])
        return [tirx.BufferStore(self._panel, value, [self._place(at)])]

    def _place(self, at: dict[int, Expr]) -> Expr:
        """The place of an element in the panel."""
        e, other, packed = self._emitter, self._band.other, at[_PACKED]
        if self._band.across:
            return at[other.slot] * e._int(self._pitch) + packed
        return packed * e._int(other.extent) + at[other.slot]

    def _from_panel(self, at: dict[int, Expr]) -> Expr:
        return tirx.BufferLoad(self._panel, [self._place(at)])

    # ---- tiles --------------------------------------------------------------

    def _row(self, at: dict[int, Expr], u: Expr) -> Expr:
        """The m of row u of a panel; it may be past the last row."""
        e = self._emitter
        first = at[_PANEL] * e._int(self._cut.panel_rows)
        return (first + u) * e._int(self._band.dilation) + at[_RESIDUE]

    def _taken(self, at: dict[int, Expr], u: Expr) -> Expr:
        """The m of row u; past the last row it is the last row, whose results are dropped."""
        row, last = self._row(at, u), self._emitter._int(self._band.row.extent - 1)
        return row if self._cut.whole else tirx.min(row, last)

    def _if_row(self, at: dict[int, Expr], u: Expr, statements: list[Any]) -> list[Any]:
        """The statements, under the condition that row u exists."""
        if self._cut.whole:
            return statements
        there = self._row(at, u) < self._emitter._int(self._band.row.extent)
        return [tirx.IfThenElse(there, _sequence(statements), None)]

    def _across(self, at: dict[int, Expr], first: Expr) -> list[Any]:
        """Multiply the rows of a tile by the panel, and copy each row's band out."""
        e, band, rows = self._emitter, self._band, self._schedule.rows
        width = wide(band, rows)
        statements: list[Any] = []
        for count, size, start in _pieces(width, self._schedule.columns):

            def block(n: Expr, size: int = size, start: int = start) -> list[Any]:
                begin = n * e._int(size) + e._int(start)
                return e._registers(
                    (rows, size),
                    lambda i, lane, r: {
                        **at, **r,
                        band.row.slot: self._taken(at, first + i), _PACKED: first + begin + lane,
                    },
                    (band.other,),
                    lambda i, lane, value: [
                        tirx.BufferStore(self._scratch, value, [i * e._int(width) + begin + lane])
                    ],
                )  # fmt: skip

            statements += e._for(count, block)
        for i in range(rows):
            u = first + e._int(i)
            whole = {**at, band.row.slot: self._row(at, u)}

            def out(w: Expr, i: int = i, whole: dict[int, Expr] = whole) -> list[Any]:
                value = tirx.BufferLoad(self._scratch, [e._int(i * width + i) + w])
                return e._store({**whole, band.window.slot: w}, value)

            statements += self._if_row(at, u, e._for(band.window.extent, out))
        return statements

    def _along(self, at: dict[int, Expr], first: Expr) -> list[Any]:
        """Compute the rows of a tile: sums over the packed rows in the band of each."""
        e, statements = self._emitter, list[Any]()
        for count, size, start in _pieces(self._band.other.extent, self._schedule.columns):

            def sums(n: Expr, size: int = size, start: int = start) -> list[Any]:
                return self._sums(at, first, n * e._int(size) + e._int(start), size)

            statements += e._for(count, sums)
        return statements

    def _sums(self, at: dict[int, Expr], first: Expr, start: Expr, size: int) -> list[Any]:
        """The sums of a tile's rows for ``size`` neighbours from ``start`` on."""
        e, band, rows = self._emitter, self._band, self._schedule.rows
        extent, lanes = band.window.extent, 2 * HALF if size % (2 * HALF) == 0 else HALF
        totals = e._local(rows * size)

        def vectors(i: int, body: Any) -> list[Any]:
            return [
                step
                for k in range(0, size, lanes)
                for step in e._vector(
                    e._int(k), lambda lane: body(lane, e._int(i * size) + lane), lanes
                )
            ]

        def steps(j: Expr, taken: range) -> list[Any]:
            """Add the packed row j to the sums of some of the tile's rows."""

            def row(i: int) -> dict[int, Expr]:
                u = first + e._int(i)
                inside = {band.row.slot: self._taken(at, u), band.window.slot: j - e._int(i)}
                return {**at, **inside, _PACKED: first + j}

            def step(i: int) -> list[Any]:
                there = row(i)
                return vectors(
                    i,
                    lambda lane, total: e._step(
                        totals, total, {**there, band.other.slot: start + lane}
                    ),
                )

            return [statement for i in taken for statement in step(i)]

        def zero(lane: Expr, total: Expr) -> list[Any]:
            return [tirx.BufferStore(totals, e._identity(), [total])]

        statements = [s for i in range(rows) for s in vectors(i, zero)]
        for j in range(rows - 1):
            statements += steps(e._int(j), range(j + 1))
        statements += e._for(extent - rows + 1, lambda j: steps(j + e._int(rows - 1), range(rows)))
        for j in range(extent, extent + rows - 1):
            statements += steps(e._int(j), range(j - extent + 1, rows))
        for i in range(rows):
            u = first + e._int(i)
            row = {**at, band.row.slot: self._row(at, u)}

            def out(lane: Expr, total: Expr, row: dict[int, Expr] = row) -> list[Any]:
                value = tirx.BufferLoad(totals, [total])
                return e._store({**row, band.other.slot: start + lane}, value)

            statements += self._if_row(at, u, vectors(i, out))
        allocated, e.vectors = e.vectors, []
        return [tirx.AllocBuffer(totals, ON_STACK), *allocated, *statements]


def _pieces(extent: int, size: int) -> list[tuple[int, int, int]]:
    """A row of neighbours in pieces (count, size, start): whole pieces, and one for the rest. That
    one's size is rounded up to half vectors, so it may overlap the piece before it."""
    whole, rest = divmod(extent, size)
    found = [(whole, size, 0)] if whole else []
    if rest:
        last = -(-rest // HALF) * HALF
        found.append((1, last, extent - last))
    return found


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
