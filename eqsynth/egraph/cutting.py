"""Where a program is cut into segments.

A cut goes where one non-constant tensor is live, and where no rule would have looked
across: the tensor comes out of a function that isn't linear (a contraction keeps it as a read,
whatever is done on either side) and a contraction takes it (so it is materialized in any case,
unless the contraction's result is averaged: the average may be taken before it). A tensor that
contractions read through layer normalizations alone is another such place. What is lost: a bias
before a max-pooling could go past it into the next layer, an addition that a kernel fuses anyway.

A residual sum of which one addend is a function, as large as the sum and read nowhere else, is a
place, too, if a contraction reads it that gives no fewer elements, all of which a function takes:

    x + tanh(x @ w) | y @ v     (x + f) @ v = x @ v + f @ v takes one product more

Taking the contraction through the sum can't save work. ``f @ v`` costs what ``y @ v`` does, since
nothing moves through f; ``x @ v`` is what is added; and what it could save, the product that x
came out of, is no larger than that product taken through v. A constant addend makes it no place,
since it goes into the bias of what reads the sum.

A function may be written out, as a product or a sum of one tensor's functions:

    x * clamp(x + 3, 0, 6) / 6   a function of x, scaled

A segment that is large is cut further where one tensor is live, or one beside the result of an
encoder that all layers of the decoder read, though something is lost there.

What is live beside it doesn't count if several layers read it and no contraction made it (masks,
positions): it is materialized once in any case. Nor do results of the program that nothing reads
any more (the keys and values of a layer). A segment that makes such values has them as outputs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op, Tensor, args_of

# Linear in their arguments, so that contractions are pushed through them.
_LINEAR = frozenset({"Add", "Sub", "Mul", "Neg", "Cast", "Div"})
# Sums over axes and windows, which contractions let through.
_AVERAGES = frozenset({"ReduceSum", "ReduceMean", "AvgPool2d"})
_SUMS = frozenset({"Add", "Sub"})
# Operators at most of a function that is written out.
_LONGEST_FUNCTION = 32

# Contractions that read what a layer is given: queries, keys and values, or those and a gate.
_OF_A_LAYER = 3

MOST_TERMS: Final = 100
"""Of more terms that aren't constant, a segment is cut where something is lost."""


def cuts(program: Program, most: int = MOST_TERMS) -> list[tuple[Tensor, ...]]:
    """What the segments of a program give, in order, the one of the last result left out: the
    tensor at the cut, and after it what later segments or the program's results take.

    Args:
        most: of more terms that aren't constant a segment is cut further, at all of its places of
            one kind, so that equal layers become equal segments. First beside what all layers of a
            decoder take, the result of the encoder: keys and values of different layers aren't
            one product then. Next where a contraction reads a sum, a product or a function:
            ``w @ (a + b)`` isn't distributed across such a cut. If that isn't enough, where a
            contraction or several terms read anything at all.
    """
    walk = _Walk.of(program)
    places = walk.places()
    ends = [position for position, kind in places.items() if kind is _Place.FUNCTION]
    wider = walk.places(walk.read_by_layers(places))
    for wanted in _Place:
        more = [position for position, kind in wider.items() if kind is wanted]
        for begin, end in pairwise([-1, *ends, len(walk.order) - 1]):
            if end - begin > most:
                ends += [position for position in more if begin < position < end]
        ends.sort()
    return walk.given_at(ends)


class _Place(Enum):
    """Why a program may be cut at a tensor, least loss first."""

    FUNCTION = auto()
    """No rule looks across, or none that saves work."""
    MATERIALIZED = auto()
    """A contraction reads a sum, a product or a function."""
    READ = auto()
    """A contraction reads it, or several terms do."""


@dataclass(frozen=True)
class _Walk:
    """A program's terms that aren't constant, in order, and who reads them.

    Attributes:
        place: of a term in the order.
        beside: what may be live beside the tensor at a cut.
    """

    program: Program
    order: Sequence[Tensor]
    place: Mapping[Tensor, int]
    users: Mapping[Tensor, Sequence[Tensor]]
    beside: Set[Tensor]

    @staticmethod
    def of(program: Program) -> _Walk:
        order = [term for term in program.terms() if not term.constant]
        users: dict[Tensor, list[Tensor]] = {}
        for term in order:
            for arg in args_of(term):
                users.setdefault(arg, []).append(term)
        place = {term: position for position, term in enumerate(order)}
        return _Walk(program, order, place, users, _beside(order, users))

    def live(self) -> Iterator[tuple[int, Tensor, Set[Tensor]]]:
        """Each term with its place and what is live behind it."""
        live: set[Tensor] = set()
        last = {term: self.place[readers[-1]] for term, readers in self.users.items()}
        for position, term in enumerate(self.order):
            live.add(term)
            live = {t for t in live if last.get(t, -1) > position}
            yield position, term, live

    def places(self, given: Set[Tensor] = frozenset()) -> dict[int, _Place]:
        """Where the program may be cut, and why, if tensors that are given may be live there. What
        may be live beside another tensor is a place itself where nothing else is live: behind an
        embedding the first layer is a segment like the others."""
        results = set(self.program.outputs)
        return {
            position: kind
            for position, term, live in self.live()
            if term in live - results
            and live - (self.beside - ({term} if args_of(term) else set())) - (given - {term})
            == {term}
            and (kind := self._kind(term)) is not None
        }

    def read_by_layers(self, places: Mapping[int, _Place]) -> set[Tensor]:
        """Tensors at which the program may be cut and that more contractions read than one layer
        has for its keys and values: the result of an encoder."""
        return {
            term
            for term in (self.order[position] for position in places)
            if sum(1 for _ in self._contractions(term)) > _OF_A_LAYER
        }

    def _kind(self, term: Tensor) -> _Place | None:
        users = self.users
        if _weighs(term, users):
            return None
        if _separates(term, users, self.place) or _is_normalized(
            term, users, self.order, self.place
        ):
            return _Place.FUNCTION
        if self._is_residual(term) and any(map(self._is_whole, self._contractions(term))):
            return _Place.FUNCTION
        readers = users.get(term, ())
        read = any(_is_contraction(user) for user in readers)
        if read and isinstance(term, Op) and term.row.kind in ("elementwise", "reduction"):
            varying = sum(not arg.constant for arg in term.args)
            if term.name not in _LINEAR or varying > 1:
                return _Place.MATERIALIZED
        return _Place.READ if (read or len(readers) > 1) and args_of(term) else None

    def _is_residual(self, term: Tensor) -> bool:
        """Whether the term is a sum of which one addend is, if only after being scaled, a function
        that is as large and read nowhere else. A constant addend makes it none: what reads the sum
        takes the constant into its bias."""
        if not isinstance(term, Op) or term.name not in _SUMS:
            return False
        addends, stack = list[Tensor](), list(term.args)
        while stack:
            arg = stack.pop()
            if arg.constant:
                return False
            nested = isinstance(arg, Op) and arg.name in _SUMS and arg.shape == term.shape
            if nested and len(self.users[arg]) == 1:
                stack.extend(args_of(arg))
            else:
                addends.append(arg)
        return any(addend.shape == term.shape and self._is_bent(addend) for addend in addends)

    def _is_bent(self, term: Tensor) -> bool:
        """Whether the term is a function that isn't linear, or that by constants, of which one
        reader takes each step; and isn't a smaller tensor's, repeated."""
        if len(self.users[term]) > 1 or not isinstance(term, Op):
            return False
        varying = [arg for arg in term.args if not arg.constant]
        if term.name in ("Mul", "Div", "Neg") and _is_linear(term):
            return all(arg.shape == term.shape and self._is_bent(arg) for arg in varying)
        if not _is_function(term) and not _is_written_out(term, self.place):
            return False
        while varying:
            arg = varying.pop()
            if arg.type.size < term.type.size:
                return False
            if isinstance(arg, Op) and arg.row.kind in ("elementwise", "view"):
                varying += (a for a in arg.args if not a.constant)
        return True

    def _contractions(self, term: Tensor) -> Iterator[Tensor]:
        """The contractions that read a tensor, if only in another shape."""
        for user in self.users.get(term, ()):
            if _is_contraction(user):
                yield user
            elif _is_rearranged(user, term):
                yield from self._contractions(user)

    def _is_whole(self, contraction: Tensor) -> bool:
        """Whether a contraction's result is no smaller than what it reads, and a function that
        isn't linear takes all of it, or it is a result of the program."""
        most = max(arg.type.size for arg in args_of(contraction) if not arg.constant)
        stack = [contraction] if contraction.type.size >= most else []
        while stack:
            term = stack.pop()
            if term in self.program.outputs:
                return True
            for user in self.users.get(term, ()):
                if not isinstance(user, Op):
                    continue
                if _is_function(user) or user.name == "LayerNorm":
                    return True
                if _is_rearranged(user, term) or user.row.kind == "elementwise":
                    stack.append(user)
        return False

    def given_at(self, ends: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """What is given at cuts behind these places."""
        results, made = set(self.program.outputs), list[Tensor]()
        given: list[tuple[Tensor, ...]] = []
        at = set(ends)
        for position, term, live in self.live():
            if args_of(term):
                made.append(term)
            if position in at:
                kept = (t for t in made if t != term and (t in results or t in live))
                given.append((term, *kept))
                made.clear()
        return given


def _beside(order: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """What may be live beside the tensor at a cut: what several terms read, and contractions have
    neither made nor take, if only as views (steps of a loop, whose products may be one)."""
    made: set[Tensor] = set()
    taken: set[Tensor] = set()
    for term in order:
        if _is_contraction(term) or any(arg in made for arg in args_of(term)):
            made.add(term)
    for term in reversed(order):
        if any(
            _is_contraction(user)
            or (user in taken and isinstance(user, Op) and user.row.kind == "view")
            for user in users.get(term, ())
        ):
            taken.add(term)
    several = {term for term, readers in users.items() if len(readers) > 1}
    return several - made - taken


def _is_contraction(term: Tensor) -> bool:
    return isinstance(term, Op) and term.row.kind == "contraction"


def _is_rearranged(user: Tensor, term: Tensor) -> bool:
    """Whether a term is a view of all elements of another one."""
    return isinstance(user, Op) and user.row.kind == "view" and user.type.size == term.type.size


def _weighs(term: Tensor, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether the term is the weights of attention, ``softmax(q kᵀ)`` of ``softmax(q kᵀ) v``: the
    whole is one operator, in which they are never in memory."""
    made = term
    if isinstance(term, Op) and term.name == "Where":
        made = next((arg for arg in term.args if _is_softmax(arg)), term)
    return _is_softmax(made) and any(
        _is_contraction(user) and not any(arg.constant for arg in args_of(user))
        for user in users.get(term, ())
    )


def _is_softmax(term: Tensor) -> bool:
    return isinstance(term, Op) and term.name == "Softmax"


def _separates(
    term: Tensor, users: Mapping[Tensor, Sequence[Tensor]], place: Mapping[Tensor, int]
) -> bool:
    """Whether the term is a function of what comes before, and a contraction reads it: as it is, or
    by a number (``x * clamp(x + 3, 0, 6) / 6``), which the contraction's weights take."""
    if not isinstance(term, Op) or not (_is_function(term) or _is_written_out(term, place)):
        return False
    taken = [u for u in users.get(term, []) if isinstance(u, Op)]
    if len(taken) == 1 and _is_scaling(taken[0]):
        taken = [u for u in users.get(taken[0], []) if isinstance(u, Op)]
        if not all(_is_contraction(user) for user in taken):
            return False
    contractions = [u for u in taken if u.row.kind == "contraction"]
    return bool(contractions) and not any(_is_averaged(u, users) for u in contractions)


def _is_function(term: Op) -> bool:
    """Whether the operator is a function that isn't linear, of elements or of windows."""
    if term.row.kind not in ("elementwise", "reduction") or term.name.startswith("Reduce"):
        return False
    return term.name not in _LINEAR and term.name not in ("AvgPool2d", "LayerNorm")


def _is_linear(term: Op) -> bool:
    """Whether the operator is linear in all that isn't constant, taken together."""
    if term.name in ("Mul", "Div") and sum(not arg.constant for arg in term.args) > 1:
        return False
    return term.name in _LINEAR and not (term.name == "Div" and term.args[0].constant)


def _is_scaling(term: Op) -> bool:
    """Whether the operator multiplies or divides one tensor by a number."""
    if term.name not in ("Mul", "Div") or not _is_linear(term):
        return False
    numbers = [arg for arg in term.args if arg.constant]
    return len(numbers) == len(term.args) - 1 and all(arg.type.size == 1 for arg in numbers)


def _is_written_out(term: Op, place: Mapping[Tensor, int]) -> bool:
    """Whether a sum, difference, product or quotient of several tensors is a function, element by
    element, of one tensor alone, and not a linear one: ``x * sigmoid(x)``, ``x + tanh(x)``."""
    if term.name not in _LINEAR or sum(not arg.constant for arg in term.args) < 2:
        return False
    # What the term is a function of, traced back from the latest.
    left: set[Tensor] = {term}
    bent = False
    for _ in range(_LONGEST_FUNCTION):
        last = max(left, key=place.__getitem__)
        if bent and left == {last}:
            return True
        if not isinstance(last, Op) or last.row.kind != "elementwise":
            return False
        varying = [arg for arg in last.args if not arg.constant]
        if any(arg.shape != term.shape for arg in varying):
            return False
        bent = bent or not _is_linear(last)
        left.discard(last)
        left.update(varying)
    return False


def _is_averaged(contraction: Op, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether its results are summed over, if only after views, biases and scales."""
    stack: list[Tensor] = [contraction]
    while stack:
        for user in users.get(stack.pop(), []):
            if not isinstance(user, Op):
                continue
            if user.name in _AVERAGES:
                return True
            varying = [arg for arg in user.args if not arg.constant]
            if user.row.kind == "view" or (user.name in _LINEAR and len(varying) == 1):
                stack.append(user)
    return False


def _is_normalized(
    term: Tensor,
    users: Mapping[Tensor, Sequence[Tensor]],
    order: Sequence[Tensor],
    place: Mapping[Tensor, int],
) -> bool:
    """Whether contractions read the term through normalizations alone (a layer normalization, or
    the same written out: ``x * rsqrt(mean(x * x) + eps)``); a residual sum may take it too. Not
    what only a bias, a scale or another shape takes: that is the normalized tensor then."""
    readers = users.get(term, ())
    if len(readers) == 1 and isinstance(reader := readers[0], Op):
        varying = [arg for arg in reader.args if not arg.constant]
        if reader.row.kind == "view" or (reader.name in _LINEAR and len(varying) == 1):
            return False
    functions: dict[Tensor, _Function] = {term: _Function()}
    # Users in the order of the program, so that what they read has been looked at.
    work = [place[user] for user in readers]
    heapq.heapify(work)
    seen, read = set(work), False
    while work:
        user = order[heapq.heappop(work)]
        if not isinstance(user, Op):
            return False
        known = [functions[arg] for arg in user.args if arg in functions]
        if user.row.kind == "contraction":
            if not all(function.scaled for function in known):
                return False
            read = True
        elif not all(arg.constant or arg in functions for arg in user.args):
            if user.name != "Add":
                return False
        elif user.row.kind == "view" and user.name != "Reshape":
            return False
        else:
            functions[user] = _Function.of(user, known)
            for other in (place[u] for u in users.get(user, ())):
                if other not in seen:
                    seen.add(other)
                    heapq.heappush(work, other)
    return read


@dataclass(frozen=True)
class _Function:
    """A function of one tensor alone: whether a sum or mean of the tensor is in it, whether it is
    more than linear in that, and whether the tensor is scaled by such a function."""

    reduced: bool = False
    bent: bool = False
    scaled: bool = False

    @staticmethod
    def of(user: Op, args: Sequence[_Function]) -> _Function:
        """The function that an operator makes of functions."""
        if user.name == "LayerNorm":
            return _Function(True, True, True)
        reduces = user.name.startswith("Reduce")
        linear = reduces or user.name in _LINEAR or user.row.kind == "view"
        factors = user.name in ("Mul", "Div") and len(args) > 1
        reduced = reduces or any(arg.reduced for arg in args)
        return _Function(
            reduced,
            (reduced and not linear) or any(arg.bent for arg in args),
            any(arg.scaled for arg in args) or (factors and any(arg.bent for arg in args)),
        )
