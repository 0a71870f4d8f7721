"""Row chains: a map and the scopes below it that share its rows, as one region.

    m[i] = max_j x[i, j],  e[i, j] = exp(x[i, j] - m[i]),  s[i] = sum_j e[i, j],  e[i, j] / s[i]
    ->  one region over x: one kernel reads a row once, and e and s never leave the cache

As kernels of their own these four pass over x and e six times. Not here: the loops of a chain
(``lower/loop_nest.py``) and its kernel (``lower/eoperators.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.laws_only import LawsOnly
from eqsynth.ir.indices import axes_at
from eqsynth.ir.scalar import Call, composites
from eqsynth.ir.tensor import ClassRef, Input, Region, Scope, Tensor, args_of, over
from eqsynth.ir.work import flops, operations

Rows = tuple[int, ...]
"""The axes of a class, or of a scope, that are the rows of a chain."""

Place = tuple[ClassRef, Rows]

MOST_SCOPES: Final = 8
"""The most scopes of a chain, without the maps that several of them read."""

MOST_OPTIONS: Final = 4
"""How many members of a class are considered for a chain, those with the least work first."""

MOST_TRIES: Final = 128
"""How many choices of members are looked at for a map that a chain ends in. Members with little
work come first, so the first choices are good ones: the chains of a BERT of 4 layers make 0.1 %
more work than those of all choices, and take 0.6 s of CPU instead of 3.2 (LSTM: 0.3 instead of
20)."""

FEWEST: Final = 16
"""The fewest elements of a row of the result."""

REUSE: Final = 4
"""A reduction with at least this many FLOPs per element moved is a kernel of its own: blocks of
registers are worth more to it than the cache is."""

_FUNCTION: Final = 8
"""What a function counts, in sums and products."""


@dataclass
class _Chain:
    """A chain: its work, a scope for each of its classes, and the axes that are its rows.

    Attributes:
        tries: how many choices were looked at to find it.
    """

    work: float = math.inf
    scopes: Mapping[ClassRef, Scope] = field(default_factory=dict)
    rows: Mapping[ClassRef, Rows] = field(default_factory=dict)
    tries: int = 0


class RowChains:
    """The row chains of an e-graph."""

    def __init__(self, graph: EGraph) -> None:
        self._graph, self._laws_only = graph, LawsOnly(graph)
        self._options: dict[ClassRef, list[Scope]] = {}
        self._reducing: dict[Place, bool] = {}
        self._read: dict[tuple[Scope, Rows], Mapping[ClassRef, Rows]] = {}
        self._leading: dict[tuple[Scope, Rows], Mapping[ClassRef, Rows]] = {}

    def regions(self, ref: ClassRef) -> Iterator[Region]:
        """The chain with the least work that ends in a map of this class; and, if several of its
        scopes read one value that a map computes, the chain with that map in it.
        """
        maps = [m for m in self._scopes(ref) if not m.reduction and m.type.size]
        found = [self._least(ref, member) for member in maps]
        best = min(found, key=lambda chain: chain.work, default=_Chain())
        if best.scopes:
            yield _region(ref, best.scopes)
            yield from (_region(ref, more) for more in self._with_shared(best))

    def _scopes(self, ref: ClassRef) -> Iterator[Scope]:
        for member in self._graph.classes[ref]:
            if isinstance(member, Scope) and not self._laws_only.serves(ref, member):
                yield member

    def _least(self, ref: ClassRef, member: Scope) -> _Chain:
        """The chain with the least work that ends in a map, with as many leading axes as rows as
        there can be."""
        for count in reversed(range(len(member.traversal))):
            rows = tuple(axis for axis in range(count) if member.traversal[axis] != 1)
            best = _Chain()
            if count and member.traversal[count - 1] == 1:
                continue  # one axis less has the same rows
            if math.prod(member.traversal[count:]) >= FEWEST and self._inside(member, rows):
                self._grow({ref: member}, {ref: rows}, _work(member), best)
            if best.scopes:
                return best
        return _Chain()

    def _of(self, ref: Tensor) -> list[Scope]:
        """The members of a class that may stand in a chain."""
        assert isinstance(ref, ClassRef)
        if ref not in self._options:
            scopes = [member for member in self._scopes(ref) if _fits(member)]
            self._options[ref] = sorted(scopes, key=_work)[:MOST_OPTIONS]
        return self._options[ref]

    def _reduces(self, place: Place) -> bool:
        """Whether a class has one value for each row, which is a reduction, or is computed row by
        row from such a class."""
        if place not in self._reducing:
            readers: dict[Place, list[Place]] = {place: []}
            stack, found = [place], []
            while stack:
                here = stack.pop()
                if here in self._reducing:
                    found += [here] * self._reducing[here]
                    continue
                for option in self._of(here[0]):
                    if _is_of_rows(option, here[1]):
                        found.append(here)
                    for below in self._reads(option, here[1]).items():
                        if below not in readers:
                            readers[below] = []
                            stack.append(below)
                        readers[below].append(here)
            self._reducing |= dict.fromkeys(readers, False)
            while found:
                here = found.pop()
                found += [above for above in readers[here] if not self._reducing[above]]
                self._reducing[here] = True
        return self._reducing[place]

    def _reads(self, scope: Scope, rows: Rows) -> Mapping[ClassRef, Rows]:
        """The classes that a scope reads row by row, with their rows."""
        known = self._read.get((scope, rows))
        if known is None:
            known = self._read[scope, rows] = {
                arg: axes
                for arg in args_of(scope)
                if isinstance(arg, ClassRef) and not arg.constant
                if (axes := axes_at(scope, rows, arg)) is not None
            }
        return known

    def _inside(self, scope: Scope, rows: Rows) -> Mapping[ClassRef, Rows]:
        """The classes that a scope reads row by row and that reductions lead to, with their
        rows."""
        known = self._leading.get((scope, rows))
        if known is None:
            read = self._reads(scope, rows)
            known = {arg: axes for arg, axes in read.items() if self._reduces((arg, axes))}
            self._leading[scope, rows] = known
        return known

    def _may_stand(self, scope: Scope, rows: Rows) -> bool:
        return _is_of_rows(scope, rows) or bool(self._inside(scope, rows))

    def _grow(
        self,
        chosen: dict[ClassRef, Scope],
        rows: dict[ClassRef, Rows],
        work: float,
        best: _Chain,
    ) -> None:
        """Choose a member for each class inside of the chain; keep the choice with the least
        work."""
        best.tries += 1
        if work >= best.work or len(chosen) > MOST_SCOPES or best.tries > MOST_TRIES:
            return
        missing: dict[ClassRef, Rows] = {}
        for ref, scope in chosen.items():
            for arg, axes in self._inside(scope, rows[ref]).items():
                if rows.get(arg, missing.get(arg, axes)) != axes:
                    return
                if arg not in chosen:
                    missing[arg] = axes
        if not missing:
            if _in_order(chosen) is not None:
                best.work, best.scopes, best.rows = work, chosen, rows
            return
        ref, axes = next(iter(missing.items()))
        for option in self._of(ref):
            if self._may_stand(option, axes):
                more = work + _work(option)
                self._grow({**chosen, ref: option}, {**rows, ref: axes}, more, best)

    def _with_shared(self, chain: _Chain) -> list[dict[ClassRef, Scope]]:
        """The chain with the maps in it that several of its scopes read: ``x = a + b`` before a
        LayerNorm. If the map with the least work reads a value that could be computed in it, such
        as ``a = 0.5 * c``, there is a second chain, whose map reads as few of these as possible."""
        readers: dict[ClassRef, list[Rows | None]] = {}
        for ref, scope in chain.scopes.items():
            for arg in args_of(scope):
                if isinstance(arg, ClassRef) and _is_open(arg) and arg not in chain.scopes:
                    readers.setdefault(arg, []).append(axes_at(scope, chain.rows[ref], arg))
        plain, inlined = dict(chain.scopes), dict(chain.scopes)
        for arg, axes in readers.items():
            if len(axes) < 2 or axes[0] is None or len({*axes}) != 1:
                continue
            maps = [o for o in self._of(arg) if not o.reduction and not {*args_of(o)} & {*plain}]
            if maps:
                plain[arg], inlined[arg] = maps[0], min(maps, key=self._open_maps)
        found = [plain] if inlined == plain else [plain, inlined]
        return [
            more for more in found if len(more) > len(chain.scopes) and _in_order(more) is not None
        ]

    def _open_maps(self, scope: Scope) -> int:
        """The number of values read that a map computes."""
        return sum(
            not option.reduction for arg in args_of(scope) if _is_open(arg)
            for option in self._of(arg)[:1]
        )  # fmt: skip


def _region(ref: ClassRef, chosen: Mapping[ClassRef, Scope]) -> Region:
    order = _in_order(chosen)
    assert order is not None
    terms: dict[Tensor, Tensor] = {}
    given: list[ClassRef] = []
    for inner in order:
        for arg in args_of(chosen[inner]):
            if arg not in terms and arg not in chosen:
                assert isinstance(arg, ClassRef)
                terms[arg] = Input(str(len(given)), arg.type)
                given.append(arg)
        terms[inner] = over(chosen[inner], terms)
    return Region((terms[ref],), tuple(given))


def _is_open(arg: Tensor) -> bool:
    return isinstance(arg, ClassRef) and not arg.constant


def _fits(scope: Scope) -> bool:
    """Whether a scope may stand in a chain: nothing in it is empty, and memory bounds it."""
    moved = scope.type.size + sum(arg.type.size for arg in args_of(scope))
    if not scope.reduction:
        return bool(scope.type.size)
    return 0 not in scope.extents and flops(scope) < REUSE * moved


def _is_of_rows(scope: Scope, rows: Rows) -> bool:
    """Whether a scope is a reduction with one value for each row."""
    one = math.prod(n for axis, n in enumerate(scope.traversal) if axis not in rows) == 1
    return bool(scope.reduction) and one


@lru_cache(maxsize=1 << 14)
def _work(scope: Scope) -> float:
    calls = sum(isinstance(part, Call) for part in composites(scope.body))
    each = operations(scope.body) + (_FUNCTION - 1) * calls
    return math.prod(scope.extents) * (each + 1)


def _in_order(chosen: Mapping[ClassRef, Scope]) -> list[ClassRef] | None:
    """The classes of a chain, arguments first; None if they need each other."""
    done: list[ClassRef] = []
    begun: set[ClassRef] = set()

    def visit(ref: ClassRef) -> bool:
        if ref in done:
            return True
        if ref in begun:
            return False
        begun.add(ref)
        inside = [arg for arg in args_of(chosen[ref]) if arg in chosen]
        if not all(visit(arg) for arg in inside if isinstance(arg, ClassRef)):
            return False
        done.append(ref)
        return True

    return done if all(visit(ref) for ref in chosen) else None
