"""Windows by tiles: where a bilinear algorithm saves work (``calculus/correlate.py``).

Asked of a flat product of something computed and a constant filter, since filters are transformed
once then. Not here: the algorithms (``toom_cook.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from math import prod
from typing import Any, Final

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.correlate import Correlate, Window
from eqsynth.calculus.scopes import reduction_iterators, traversal_iterators
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import Law, flat
from eqsynth.egraph.tactics.toom_cook import correlation, growth, sizes
from eqsynth.egraph.view import View
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, iterators
from eqsynth.ir.tensor import Scope, topological
from eqsynth.ir.work import flops

SAVED: Final = 1 / 3
"""Of the operations at least this part is saved. The bound tells apart what pays: additions before
and after the products are linear in the channels, and the products are quadratic. (3 by 3 taps and
as many channels in as out: from 13 channels on with tiles of 2 by 2, from 9 on with 4 by 4.)"""


GROWN: Final = 3.5
"""Algorithms that make roundings grow to at most this many times (``toom_cook.growth``, the product
over the axes) are `real`, the others `cancels`. The check of programs decides: on none of its kinds
of data it refuses F(2, 3) by F(4, 3), which has 3.4; it refuses F(4, 3) by F(4, 3), which has 7.1,
on two of eight tensors of mixed scales (16 channels), and F(6, 3) by F(6, 3), 46, on random
data."""

MANY: Final = 16
"""Terms of the sum in the middle from which a `real` answer is given. An element that is small is
computed from tiles with elements that are large; where many channels are added up that isn't so.
(Of 3.4 times, mixed scales: with 10 channels the check refuses two of eight, with 12 and more none
of 52.)"""


def by_tiles(loses: bool) -> Law:
    """The law for the algorithms by which roundings grow to more than `GROWN` times, or to no more.

    Of the former an answer for each number of outputs a tile, the same along each axis. Of the
    latter one, with the numbers along the axes that leave least to do.
    """

    def law(view: View, row: Sequence[Any]) -> Iterable[Path]:
        scope = flat(view, row)
        if loses:
            found = (tiled_windows(scope, (outputs, outputs), True) for outputs in _OUTPUTS)
            return [tiled for tiled in found if tiled is not None]
        pairs = combinations_with_replacement(_OUTPUTS, 2)
        tried = (tiled_windows(scope, pair, False) for pair in pairs)
        near = [tiled for tiled in tried if tiled is not None]
        return [min(near, key=_work)] if near else []

    return law


_OUTPUTS: Final = sorted({outputs for outputs, _ in sizes()})


def _work(tiled: Path) -> int:
    return sum(flops(term) for term in topological([tiled.scope]) if not term.constant)


@remembered(maxsize=1 << 14)
def tiled_windows(scope: Scope, outputs: tuple[int, int], loses: bool) -> Path | None:
    """The scope by tiles of so many outputs along its first axis with a window and its second; None
    where that isn't less work, or where roundings grow otherwise. An axis for whose taps there is
    no algorithm with so many outputs is summed as it is."""
    factors = factors_of(scope.body)
    reads = [factor for factor in factors if isinstance(factor, Read)]
    if not is_product(scope) or len(reads) != 2 or len(factors) != 2:
        return None
    computed = [read for read in reads if not read.tensor.constant]
    if len(computed) != 1:
        return None
    (filters,) = (read for read in reads if read is not computed[0])
    windows = tuple(_windows(scope, computed[0], filters, outputs))
    if not windows or (prod(growth(w.algorithm) for w in windows) > GROWN) is not loses:
        return None
    summed = prod(scope.reduction) // prod(window.tap.extent for window in windows)
    if summed < MANY and not loses:
        return None
    tiled = path(scope, Correlate(windows))
    return tiled if tiled is not None and _work(tiled) <= (1 - SAVED) * flops(scope) else None


def _windows(
    scope: Scope, data: Read, filters: Read, outputs: tuple[int, int]
) -> Iterable[Window]:
    """Positions and taps that share an index, of sizes for which there is an algorithm; two at
    most."""
    positions = set(traversal_iterators(scope)) - iterators(filters)
    taps = set(reduction_iterators(scope)) & iterators(filters)
    sizes_left = list(outputs)
    for index in data.index:
        its = set(index.iterators())
        outs, slid = its & positions, its & taps
        if len(outs) == len(slid) == 1 and len(its) == 2 and sizes_left:
            (out,), (tap,) = outs, slid
            if (sizes_left[0], tap.extent) in sizes() and out.extent > 1:
                yield Window(out, tap, correlation(sizes_left.pop(0), tap.extent))
