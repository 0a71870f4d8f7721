"""Windows by tiles: where a bilinear algorithm saves work (``calculus/correlate.py``).

Asked of a flat product of something computed and a constant filter, since filters are transformed
once then. Not here: the algorithms (``toom_cook.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.correlate import Correlate, Window
from eqsynth.calculus.scopes import reduction_iterators, traversal_iterators
from eqsynth.egraph.laws.paths import Path, path
from eqsynth.egraph.laws.requests import Law, flat
from eqsynth.egraph.laws.toom_cook import correlation, sizes
from eqsynth.egraph.view import View
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, iterators
from eqsynth.ir.tensor import Scope, topological
from eqsynth.ir.work import flops

SAVED: Final = 1 / 3
"""Of the operations at least this part is saved. The bound tells apart what pays: additions before
and after the products are linear in the channels, and the products are quadratic. (3 by 3 taps and
as many channels in as out: from 13 channels on with tiles of 2 by 2, from 9 on with 4 by 4.)"""


def by_tiles(outputs: int) -> Law:
    """The law with so many outputs a tile, along each axis that has a window."""

    def law(view: View, row: Sequence[Any]) -> Iterable[Path]:
        scope = flat(view, row)
        tiled = tiled_windows(scope, outputs)
        return [] if tiled is None else [tiled]

    return law


@remembered(maxsize=1 << 14)
def tiled_windows(scope: Scope, outputs: int) -> Path | None:
    """The scope by tiles of so many outputs an axis; None where that isn't less work."""
    factors = factors_of(scope.body)
    reads = [factor for factor in factors if isinstance(factor, Read)]
    if not is_product(scope) or len(reads) != 2 or len(factors) != 2:
        return None
    computed = [read for read in reads if not read.tensor.constant]
    if len(computed) != 1:
        return None
    (filters,) = (read for read in reads if read is not computed[0])
    windows = tuple(_windows(scope, computed[0], filters, outputs))
    tiled = path(scope, Correlate(windows)) if windows else None
    if tiled is None:
        return None
    work = sum(flops(term) for term in topological([tiled.scope]) if not term.constant)
    return tiled if work <= (1 - SAVED) * flops(scope) else None


def _windows(scope: Scope, data: Read, filters: Read, outputs: int) -> Iterable[Window]:
    """Positions and taps that share an index, of sizes for which there is an algorithm."""
    positions = set(traversal_iterators(scope)) - iterators(filters)
    taps = set(reduction_iterators(scope)) & iterators(filters)
    for index in data.index:
        its = set(index.iterators())
        outs, slid = its & positions, its & taps
        if len(outs) == len(slid) == 1 and len(its) == 2:
            (out,), (tap,) = outs, slid
            if (outputs, tap.extent) in sizes() and out.extent > 1:
                yield Window(out, tap, correlation(outputs, tap.extent))
