"""All rows of the table, and the operators that have no row."""

from __future__ import annotations

from typing import Final

from eqsynth.frontend import aten, ops
from eqsynth.testing.differential import (
    contractions,
    fills,
    pointwise,
    reductions,
    views,
    windows,
)
from eqsynth.testing.differential.row import Row

ROWS: Final[tuple[Row, ...]] = (
    *pointwise.ROWS,
    *fills.ROWS,
    *reductions.ROWS,
    *contractions.ROWS,
    *windows.ROWS,
    *views.ROWS,
)


def without_rows(rows: tuple[Row, ...] = ROWS) -> list[str]:
    """Entries of the ATen table, and functions of ``eqsynth.ops``, that have no row.

    A function that is itself the entry of an ATen operator with a row needs no row of its own.
    """
    keys = {_key(row.entry) for row in rows}
    covered = {id(aten.TABLE[key]) for key in keys if key in aten.TABLE}
    functions = {f"ops.{name}": getattr(ops, name) for name in ops.__all__ if name != "syno"}
    functions |= {f"ops.syno.{name}": getattr(ops.syno, name) for name in ops.syno.__all__}
    missing = [key for key in aten.TABLE if key not in keys]
    missing += [n for n, f in functions.items() if n not in keys and id(f) not in covered]
    return missing


def _key(entry: str) -> str:
    return entry if entry in aten.TABLE else entry.partition(".")[0] if "::" in entry else entry
