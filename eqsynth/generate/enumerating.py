"""Enumerates terms level by level, with their fingerprints [TASO Algorithm 1, step 1].

TASO adds operators to a graph depth first, and evaluates the whole graph each time. Here a graph is
the set of terms that it computes. Each term is evaluated once, from the values of its arguments,
and only the first term with a value is an argument of others. The terms of a level are split into
chunks, which workers evaluate. The fingerprints of a chunk are cached in a file, so that a run that
was killed continues where it was.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice, product
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from eqsynth import kept
from eqsynth.generate.numbers import (
    FIRST,
    FURTHER,
    Inexact,
    drawn,
    fingerprint,
    grid,
    hashed,
    symmetric,
)
from eqsynth.generate.primitives import World
from eqsynth.generate.table import Row, Table
from eqsynth.ir.arithmetic import Array, computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Tensor
from eqsynth.tasks import Executor, LocalExecutor

CHUNK: Final = 4096
"""The terms that one task evaluates: a third of a second for matrices, a second for images.
"""

MAX_BYTES: Final = 4 << 30
_MEMORY: Final = 3 << 30
_ARGUMENTS: Final = 3

Hashes = npt.NDArray[np.int64]


@dataclass
class Enumerated:
    """The result of an enumeration of one world.

    Attributes:
        operators: the number of operators of the largest terms.
        equal: pairs of a term and a later term with the same values, which isn't in the table.
        evaluated: the number of evaluated terms for each number of operators.
        left_out: the number of terms whose values aren't exact.
        from_cache: the number of chunks that were read from the cache.
    """

    table: Table
    operators: int
    equal: list[tuple[int, Row]] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    left_out: int = 0
    from_cache: int = 0
    seconds: float = 0.0

    @property
    def denominator(self) -> int:
        """The denominator of the grid that all values lie on."""
        return int(2 * self.table.world.divisor**self.operators)


def enumerate_graphs(
    world: World,
    operators: int,
    *,
    executor: Executor | None = None,
    told: Callable[[str, int], None] = lambda _stage, _done: None,
) -> Enumerated:
    """Enumerate all terms of up to ``operators`` operators, and find those with equal values.

    Args:
        executor: evaluates terms; by default one process on this machine.
        told: called with the stage and the number of its terms evaluated so far.
    """
    begin = time.monotonic()
    found = Enumerated(Table(world), operators)
    for name, leaf in world.leaves.items():
        found.table.add_leaf(name, fingerprint(leaf, found.denominator))
    with nullcontext(executor) if executor else LocalExecutor() as tasks:
        for level in range(1, operators + 1):
            chunks, hashes = [], []
            stage = f"{world.name}, {level} operators"
            done = 0
            state = _State.of(found.table, found.denominator)
            for rows, own in _evaluated(tasks, state, _rows(found.table, level), found, FIRST):
                chunks.append(rows)
                hashes.append(own)
                done += len(rows)
                told(stage, done)
            every = [row for chunk in chunks for row in chunk]
            plain = np.concatenate(hashes) if hashes else np.zeros(0, np.int64)
            further = partial(_further, tasks, state, found)
            _merge(found, every, plain, level == operators, further)
            if level == 1:
                _learn_commutative(found)
    found.seconds = time.monotonic() - begin
    return found


# ---- which terms there are ----------------------------------------------------------------


def _rows(table: Table, level: int) -> Iterator[Row]:
    """Yield the terms that need ``level`` operators, in a fixed order."""
    inputs = {
        number for number in table.levels[0]
        if isinstance(table.leaves[number], Input)
    }  # fmt: skip
    arities = sorted({primitive.arity for primitive in table.world.primitives})
    for arity in arities:
        for args in _arguments(table, arity, level - 1):
            for results in table.fitting(tuple(table.types[arg] for arg in args)):
                primitive = table.primitive(results[0])
                if primitive.of_inputs and not inputs.issuperset(args):
                    continue
                if table.templates[results[0]].index in table.commutative and args[0] > args[1]:
                    continue
                for template in results:
                    yield template, args


def _arguments(table: Table, arity: int, needed: int) -> Iterator[tuple[int, ...]]:
    """Yield argument lists that need ``needed`` operators together."""
    if needed >= len(table.levels):
        return
    if arity == 1:
        yield from ((number,) for number in table.levels[needed])
    elif arity == 2:
        for a, b in _pairs(table, needed):
            yield a, b
            if a != b:
                yield b, a
    else:
        known = [number for level in table.levels[: needed + 1] for number in level]
        for args in product(known, repeat=arity):
            if len(frozenset().union(*(table.closure[arg] for arg in args))) == needed:
                yield args


def _pairs(table: Table, needed: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of terms that need ``needed`` operators together, each pair in one order."""
    closure = table.closure
    for larger in range(needed + 1):
        for smaller in range(max(0, needed - larger), larger + 1):
            shared = larger + smaller - needed
            users: dict[int, list[int]] = defaultdict(list)
            if shared:
                for b in table.levels[smaller]:
                    for application in closure[b]:
                        users[application].append(b)
            for a in table.levels[larger]:
                others: Sequence[int] = table.levels[smaller]
                if shared:
                    others = sorted({b for own in closure[a] for b in users.get(own, ())})
                for b in others:
                    if (larger > smaller or b <= a) and len(closure[a] & closure[b]) == shared:
                        yield a, b


_Further = Callable[[list[Row]], Hashes]


def _merge(
    found: Enumerated, rows: list[Row], plain: Hashes, last: bool, further: _Further
) -> None:
    """Add the first term with each value to the table, and pair later ones with it."""
    table = found.table
    own = _told_apart(found, rows, plain, further)
    known = np.asarray(table.hashes, np.int64)
    _, first, place = np.unique(
        np.concatenate([known, own]), return_index=True, return_inverse=True
    )
    firsts = first[place][len(known) :]
    exact = own != 0
    found.evaluated.append(len(rows))
    found.left_out += int((~exact).sum())
    new = firsts == np.arange(len(known), len(known) + len(own))
    wanted = new & exact
    if last:
        # Of the last level only terms that equal another term are needed.
        wanted &= np.isin(np.arange(len(own)) + len(known), firsts[~new & exact])
    numbers = {}
    for at in np.flatnonzero(wanted):
        numbers[len(known) + int(at)] = table.add(rows[at], int(own[at]), int(plain[at]))
    for at in np.flatnonzero(~new & exact):
        earlier = int(firsts[at])
        found.equal.append((numbers.get(earlier, earlier), rows[at]))


def _told_apart(found: Enumerated, rows: list[Row], plain: Hashes, further: _Further) -> Hashes:
    """Return the fingerprints of rows. If several terms agree on the first assignments and one of
    them compares numbers, their fingerprints include the further assignments, also those of terms
    in the table."""
    table = found.table
    known = np.asarray(table.plain, np.int64)
    every = np.concatenate([known, plain])
    compare = np.asarray([*table.compares, *map(table.compares_in, rows)], bool)
    _, place, many = np.unique(every, return_inverse=True, return_counts=True)
    doubtful = np.bincount(place, compare, len(many))[place] > 0
    doubtful &= (many[place] > 1) & (every != 0)
    numbers = [int(n) for n in np.flatnonzero(doubtful[: len(known)]) if n not in table.further]
    asked = [n for n in numbers if not isinstance(table.rows[n], str)]
    places = [int(n) for n in np.flatnonzero(doubtful[len(known) :])]
    terms = [row for n in asked if not isinstance(row := table.rows[n], str)]
    values = further([*terms, *(rows[n] for n in places)])
    table.further |= dict(zip(asked, map(int, values), strict=False))
    for n in set(numbers).difference(asked):
        table.further[n] = fingerprint(table.leaves[n], found.denominator, FURTHER)
    for n in numbers:
        table.hashes[n] = symmetric((table.plain[n], table.further[n]))
    own = plain.copy()
    for at, value in zip(places, values[len(asked) :], strict=True):
        own[at] = symmetric((int(plain[at]), int(value))) if value else 0
    return own


def _further(tasks: Executor, state: _State, found: Enumerated, rows: list[Row]) -> Hashes:
    """Return the fingerprints of terms on the further assignments."""
    chunks = [own for _, own in _evaluated(tasks, state, iter(rows), found, FURTHER)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)


def _learn_commutative(found: Enumerated) -> None:
    """Find the primitives whose applications all have the same value with swapped arguments; from
    now on their arguments are enumerated in one order only."""
    table = found.table
    swapped = {row: earlier for earlier, row in found.equal}
    mirrored: dict[int, list[bool]] = defaultdict(list)
    for number in table.levels[1]:
        row = table.rows[number]
        assert not isinstance(row, str)
        template, args = row
        if len(args) == 2 and args[0] != args[1]:
            is_same = swapped.get((template, args[::-1])) == number
            mirrored[table.templates[template].index].append(is_same)
    table.commutative |= {index for index, same in mirrored.items() if all(same)}


# ---- their values -------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """The data from which the terms of a level are evaluated."""

    table: Table
    denominator: int
    known: npt.NDArray[np.int32]
    digest: str

    @staticmethod
    def of(table: Table, denominator: int) -> _State:
        rows = np.full((len(table.rows), 1 + _ARGUMENTS), -1, np.int32)
        for number, row in enumerate(table.rows):
            if not isinstance(row, str):
                rows[number, 0] = row[0]
                rows[number, 1 : 1 + len(row[1])] = row[1]
        digest = blake2b(rows.tobytes(), digest_size=12)
        digest.update(f"{denominator} {kept.code_of('generate', 'ir')}".encode())
        for name, leaf in table.world.leaves.items():
            digest.update(name.encode() + leaf.digest)
        return _State(table, denominator, rows, digest.hexdigest())

    def terms(self) -> tuple[Tensor, ...]:
        return tuple(template.term for template in self.table.templates)


def _evaluated(
    tasks: Executor, state: _State, rows: Iterator[Row], found: Enumerated,
    assignments: tuple[int, ...],
) -> Iterator[tuple[list[Row], Hashes]]:  # fmt: skip
    """Yield the chunks of the rows in order, with their fingerprints; 0 for an inexact value."""
    waiting: deque[tuple[list[Row], Path, bytes | Future[bytes]]] = deque()

    def first() -> tuple[list[Row], Hashes]:
        chunk, path, data = waiting.popleft()
        if isinstance(data, Future):
            data = data.result()
            kept.write(path, data, MAX_BYTES)
        else:
            found.from_cache += 1
        return chunk, np.frombuffer(data, np.int64)

    for chunk in iter(lambda: list(islice(rows, CHUNK)), []):
        path, numbers = _named(state, chunk, assignments)
        data: bytes | Future[bytes] | None = kept.read(path)
        if data is None or (isinstance(data, bytes) and len(data) != 8 * len(chunk)):
            data = tasks.submit(
                evaluate_rows, state.digest, state.table.leaves, state.terms(), state.known,
                numbers, state.denominator, assignments, memory_limit=_MEMORY,
            )  # fmt: skip
        waiting.append((chunk, path, data))
        while len(waiting) > 2 * tasks.processes or (waiting and _is_there(waiting[0][2])):
            yield first()
    while waiting:
        yield first()


def _is_there(data: bytes | Future[bytes]) -> bool:
    return data.done() if isinstance(data, Future) else True


def _named(
    state: _State, chunk: list[Row], assignments: tuple[int, ...]
) -> tuple[Path, npt.NDArray[np.int32]]:
    """Return the file of a chunk's fingerprints, and the chunk's rows as an array of numbers."""
    rows = np.full((len(chunk), 1 + _ARGUMENTS), -1, np.int32)
    for at, (template, args) in enumerate(chunk):
        rows[at, 0] = template
        rows[at, 1 : 1 + len(args)] = args
    terms = state.terms()
    name = blake2b(f"{state.digest} {assignments}".encode() + rows.tobytes(), digest_size=12)
    for template in np.unique(rows[:, 0]):
        name.update(terms[template].digest)
    return kept.directory("generated") / f"{name.hexdigest()}.chunk", rows


_values: Final[dict[str, dict[tuple[int, int], Array | None]]] = {}


def evaluate_rows(
    key: str,
    leaves: tuple[Tensor, ...],
    templates: tuple[Tensor, ...],
    known: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    denominator: int,
    assignments: tuple[int, ...],
) -> bytes:
    """Evaluate rows in a worker; return their fingerprints as the bytes of an array of int64.

    Args:
        key: identifies ``known``; the values of its terms are cached for the next task.
        known: for each known term a row with its template and arguments; negative for a leaf, and
            for arguments that a template doesn't have.
    """
    if key not in _values:
        _values.clear()
    values = _values.setdefault(key, {})

    def applied(row: npt.NDArray[np.int32], n: int) -> Array | None:
        args = [value_of(int(arg), n) for arg in row[1:] if arg >= 0]
        env = {str(at): arg for at, arg in enumerate(args) if arg is not None}
        try:
            return None if len(env) < len(args) else evaluate(templates[row[0]], env)
        except Inexact:
            return None

    def value_of(number: int, n: int) -> Array | None:
        if (number, n) not in values:
            row = known[number]
            if row[0] >= 0:
                values[number, n] = applied(row, n)
            else:
                leaf = leaves[number]
                values[number, n] = (
                    drawn(leaf.name, leaf.type, n) if isinstance(leaf, Input)
                    else evaluate(leaf, {})
                )  # fmt: skip
        return values[number, n]

    found = np.zeros(len(rows), np.int64)
    with computing_in(grid(denominator)):
        for at, row in enumerate(rows):
            made = [applied(row, n) for n in assignments]
            exact = [value for value in made if value is not None]
            found[at] = hashed(exact) if len(exact) == len(made) else 0
    return found.tobytes()
