"""Pairs of equal graphs, without the redundant ones [TASO §2.2, §4, Table 3].

A candidate is two graphs whose outputs have the same values, in any order: the first graph with a
fingerprint, and a later one. A candidate is redundant if it follows from a more general one:

- by renaming inputs: ``x + x = x + x`` follows from ``x + y = y + x``. Of candidates that differ
  only in which inputs are the same, the most general one stays.
- by a common subgraph: both sides compute ``relu(x)``, and the equality holds with any tensor in
  its place. The paper's other case, a common output, can't occur: a term with the value of an
  earlier term is never an argument, so the two sides never end in the same operator on the same
  arguments, and graphs of two outputs that share an output aren't paired.
- by subsumption: a subgraph of only one side may be any tensor (``split0(concat(x, relu(y))) =
  x``). The definition of redundancy in the paper's §4 covers this case, but its two prunings don't
  remove it. A constant is a subgraph without inputs.

Two equal graphs of two outputs are two equalities, which are candidates by themselves. The pair
adds something only if the outputs of a graph share work. So graphs of two outputs are paired if the
outputs of at least one of them share an operator, up to the given number of operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from eqsynth.generate.enumerating import Enumerated
from eqsynth.generate.numbers import Inexact, agree, symmetric
from eqsynth.generate.table import Row, Table
from eqsynth.ir.tensor import Input, Tensor

Side = tuple[int | Row, ...]

_Known = tuple[int | Row, int, frozenset[int]]
"""A term, its fingerprint, and the operator applications that it needs."""


@dataclass(frozen=True)
class Candidate:
    """Two graphs with the same values, output by output.

    Attributes:
        left, right: the outputs of each graph, as terms of the table or rows; outputs at the same
            position are equal.
    """

    table: Table = field(repr=False)
    left: Side
    right: Side

    @cached_property
    def terms(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return both sides as terms of the IR."""
        made: dict[int, Tensor] = {}
        left, right = (
            tuple(self.table.term(output, made) for output in side)
            for side in (self.left, self.right)
        )
        return left, right

    def __str__(self) -> str:
        sides = (", ".join(map(self.table.text, side)) for side in (self.left, self.right))
        return " = ".join(sides)

    @property
    def operators(self) -> int:
        """The number of operators of the larger side."""
        return max(len(_closure(self.table, side)) for side in (self.left, self.right))


@dataclass
class Counts:
    """The rows of TASO's Table 3, for graphs of one output and of two, and one row more
    (``subsumed``).

    Attributes:
        graphs: the number of enumerated graphs.
        initial, renamed, common, subsumed: the number of candidates, and the numbers that are left
            after each pruning.
    """

    graphs: int = 0
    initial: int = 0
    renamed: int = 0
    common: int = 0
    subsumed: int = 0


def reduced(
    found: Enumerated,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[list[Candidate], Counts]:
    """Return the candidates that aren't redundant, smallest first, and counts of each pruning."""
    table = found.table
    counts = Counts(graphs=sum(found.evaluated))
    single = [Candidate(table, (earlier,), (row,)) for earlier, row in found.equal]
    pairs, graphs = _of_two_outputs(found)
    counts.graphs += graphs
    everything = [*single, *pairs]
    counts.initial = len(everything)
    names = _Names(table)
    general = names.most_general(everything)
    counts.renamed = len(general)
    pruning = _Pruning(table, names, found.denominator)
    left = []
    for at, candidate in enumerate(general):
        told(at, len(general))
        if pruning.is_general(candidate, common=True):
            counts.common += 1
            if pruning.is_general(candidate, common=False):
                left.append(candidate)
    counts.subsumed = len(left)
    return sorted(left, key=lambda c: (c.operators, len(str(c)))), counts


def _closure(table: Table, side: Side) -> frozenset[int]:
    return frozenset().union(
        *(table.closure[o] if isinstance(o, int) else table.needed(o) for o in side)
    )


# ---- two outputs --------------------------------------------------------------------------


def _of_two_outputs(found: Enumerated) -> tuple[list[Candidate], int]:
    """Return candidates of two outputs: graphs with the same fingerprint and no common output, at
    least one of which shares an operator between its outputs."""
    table, operators = found.table, found.operators
    terms: list[_Known] = [
        (n, table.hashes[n], table.closure[n]) for level in table.levels[1:operators] for n in level
    ]
    top: dict[frozenset[int], list[_Known]] = defaultdict(list)
    for earlier, row in found.equal:
        if not table.closure[earlier]:
            continue  # an output that is an input needs no operator
        own = (row, table.hashes[earlier], table.needed(row))
        if len(own[2]) < operators:
            terms.append(own)
        else:
            top[own[2]].append(own)
    first: dict[int, Side] = {}
    candidates = []
    graphs = 0
    for (a, hash_a, _), (b, hash_b, _) in _sharing(terms, top, operators):
        graphs += 1
        # Sort the pair by the outputs' values, so that outputs at the same position are equal.
        side: Side = (a, b) if hash_a <= hash_b else (b, a)
        least = first.setdefault(symmetric((hash_a, hash_b)), side)
        if least == side or set(least) & set(side):
            continue
        if _shares(table, least) or _shares(table, side):
            candidates.append(Candidate(table, least, side))
    return candidates, graphs


def _shares(table: Table, side: Side) -> bool:
    one, two = (_closure(table, (output,)) for output in side)
    return bool(one & two)


def _sharing(
    terms: Sequence[_Known], top: dict[frozenset[int], list[_Known]], operators: int
) -> Iterator[tuple[_Known, _Known]]:
    """Yield pairs of outputs that share an operator or have one operator each, fewest operators
    first; neither output needs the other."""
    users: dict[int, list[int]] = defaultdict(list)
    for at, (_, _, needed) in enumerate(terms):
        for application in needed:
            users[application].append(at)
    single = [at for at, (_, _, needed) in enumerate(terms) if len(needed) == 1]
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for n, a in enumerate(single):
        found[2] += [(b, a) for b in single[:n]]
    for sharing in users.values():
        for n, a in enumerate(sharing):
            for b in sharing[:n]:
                needed = terms[a][2] | terms[b][2]
                least = min(terms[a][2] & terms[b][2])
                # Yield each pair once, for the first operator that it shares.
                if len(needed) <= operators and sharing is users[least]:
                    found[len(needed)].append((b, a))
    for size in range(1, operators + 1):
        for b, a in found[size]:
            one, two = terms[a][2], terms[b][2]
            if one == two or not (one <= two or two <= one):
                yield terms[b], terms[a]
    for own in top.values():
        yield from ((a, b) for n, b in enumerate(own) for a in own[:n])


# ---- renaming -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """A term without the names of its inputs, and the inputs in order of occurrence."""

    skeleton: int
    inputs: tuple[str, ...]


class _Names:
    """Compares terms up to the names of their inputs."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._skeletons: dict[tuple[object, ...], int] = {}
        self._forms: dict[int, _Form] = {}

    def form(self, output: int | Row, fresh: dict[int, str] | None = None) -> _Form:
        """Return a term's form; the terms of ``fresh`` count as inputs with the given names."""
        is_plain = fresh is None
        if isinstance(output, int):
            if fresh and output in fresh:
                kind = str(self._table.types[output])
                return _Form(self._number("input", kind), (fresh[output],))
            if is_plain and output in self._forms:
                return self._forms[output]
        row = self._table.rows[output] if isinstance(output, int) else output
        if isinstance(row, str):
            leaf = self._table.world.leaves[row]
            if isinstance(leaf, Input):
                found = _Form(self._number("input", str(leaf.type)), (row,))
            else:
                found = _Form(self._number("constant", row), ())
        else:
            parts = [self.form(arg, fresh) for arg in row[1]]
            number = self._number(row[0], *(part.skeleton for part in parts))
            found = _Form(number, tuple(name for part in parts for name in part.inputs))
        if is_plain and isinstance(output, int):
            self._forms[output] = found
        return found

    def _number(self, *key: object) -> int:
        return self._skeletons.setdefault(key, len(self._skeletons))

    def key(
        self, candidate: Candidate, fresh: dict[int, str] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return both sides without names of inputs, and which of the inputs are the same."""
        forms = [self.form(o, fresh) for o in (*candidate.left, *candidate.right)]
        numbers: dict[str, int] = {}
        inputs = (name for form in forms for name in form.inputs)
        same = tuple(numbers.setdefault(name, len(numbers)) for name in inputs)
        return tuple(form.skeleton for form in forms), same

    def most_general(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return one of the candidates that differ in names only, without a candidate that another
        one becomes if two of its inputs are made equal."""
        groups: dict[tuple[int, ...], dict[tuple[int, ...], Candidate]] = defaultdict(dict)
        for candidate in candidates:
            skeletons, same = self.key(candidate)
            groups[skeletons].setdefault(same, candidate)
        return [
            candidate
            for group in groups.values()
            for same, candidate in group.items()
            if not any(_refines(other, same) for other in group if other != same)
        ]


def _refines(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Whether any two positions with one input in ``fine`` have one input in ``coarse`` too."""
    image: dict[int, int] = {}
    return all(image.setdefault(a, b) == b for a, b in zip(fine, coarse, strict=True))


# ---- subgraphs ----------------------------------------------------------------------------


class _Pruning:
    """Checks whether a candidate holds with any tensor in place of one of its subgraphs."""

    def __init__(self, table: Table, names: _Names, denominator: int) -> None:
        self._table, self._names, self._denominator = table, names, denominator
        self._known: dict[object, bool] = {}
        self._inputs = {
            number for number in table.levels[0] if isinstance(table.leaves[number], Input)
        }

    def is_general(self, candidate: Candidate, *, common: bool) -> bool:
        """Whether no subgraph may be replaced by any tensor: no subgraph that both sides have if
        ``common``, or that at least one side has otherwise."""
        left, right = (self._inner(side) for side in (candidate.left, candidate.right))
        chosen = left & right if common else left ^ right
        return not any(self._holds(candidate, number) for number in chosen)

    def _inner(self, side: Side) -> frozenset[int]:
        """Return the terms below the outputs, without inputs."""
        found: set[int] = set()
        waiting = list(side)
        while waiting:
            output = waiting.pop()
            row = self._table.rows[output] if isinstance(output, int) else output
            for arg in () if isinstance(row, str) else row[1]:
                if arg not in found and arg not in self._inputs:
                    found.add(arg)
                    waiting.append(arg)
        return frozenset(found)

    def _holds(self, candidate: Candidate, number: int) -> bool:
        """Whether the outputs stay equal if a term is replaced by a new tensor. If a side is the
        term itself, they don't."""
        fresh = {number: "fresh"}
        key = self._names.key(candidate, fresh)
        known = self._known.get(key)
        if known is None:
            made: dict[int, Tensor] = {number: Input("fresh", self._table.types[number])}
            try:
                known = all(
                    agree(self._table.term(a, made), self._table.term(b, made), self._denominator)
                    for a, b in zip(candidate.left, candidate.right, strict=True)
                )
            except Inexact:
                known = False
            self._known[key] = known
        return known
