"""Where a program is cut into segments, which are saturated one by one.

    relu(x @ w) | y @ v          a cut (|) behind relu; y is the result of relu

A cut goes where one non-constant tensor is live and no rewrite across the cut could save work: the
tensor is the result of a nonlinear function, which rewrites of a contraction can't pass, and a
contraction reads it, so that it is materialized in any case. If the contraction's result is
averaged, there is no cut, because the average may move before the contraction. There may also be a
cut behind a tensor that contractions read only through layer normalizations. One rewrite is lost: a
bias before a max-pooling could move past it into the next layer, which saves an addition that a
kernel fuses anyway.

A residual sum is also a place for a cut, if one addend is a nonlinear function, as large as the sum
and read nowhere else, and if a contraction reads the sum whose result is no smaller and is wholly
read by a function:

    x + tanh(x @ w) | y @ v     (x + f) @ v = x @ v + f @ v has one more product

Distributing the contraction over the sum can't save work. ``f @ v`` costs as much as ``y @ v``,
since nothing moves through f, and ``x @ v`` is additional. If x is a product ``a @ u``, then
``x @ v`` may become ``a @ (u @ v)``, which saves ``a @ u`` but is at least as large. With a
constant addend there is no cut, since the constant may move into the bias of the contraction.
Nor is there one beside a mask that is known, ``relu(q kᵀ) * (|i - j| <= 2) @ v``: of the product
before it and of the one behind it only what the mask shows is computed.

The function may be written as a product or a sum of functions of one tensor:

    x * clamp(x + 3, 0, 6) / 6   a function of x, scaled

A large segment is cut further where one tensor is live, or one besides the result of an encoder
that all layers of the decoder read (and that result with positions added to it), although a useful
rewrite may be lost there.

Two kinds of tensors may be live besides the one at the cut. A tensor that several layers read and
that no contraction made (a mask, positions) is materialized once in any case. A result of the
program that no later term reads (keys and values of a layer) stays an output of its segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from eqsynth.egraph.tactics.ordering import FEWER
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of, topological
from eqsynth.ir.work import flops

# Operators that are linear, so that rewrites may move contractions through them.
_LINEAR = frozenset({"Add", "Sub", "Mul", "Neg", "Cast", "Div"})
# Sums over axes and windows, which may move through contractions.
_AVERAGES = frozenset({"ReduceSum", "ReduceMean", "AvgPool2d"})
_SUMS = frozenset({"Add", "Sub"})
# What masks are made of, besides counts, numbers and views.
_ARITHMETIC = _LINEAR | {
    "Abs", "Equal", "FloorDivide", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd",
    "LogicalNot", "LogicalOr", "Maximum", "Minimum", "NotEqual", "Remainder", "Sign", "Where",
}  # fmt: skip
# The most operators of a nonlinear function that is written as several operators.
_LONGEST_FUNCTION = 32

# The most contractions of one layer that read its input: queries, keys and values.
_OF_A_LAYER = 3

MOST_TERMS: Final = 100
"""A segment with more non-constant terms is cut further, where a rewrite may be lost."""


def cuts(program: Program, most: int = MOST_TERMS) -> list[tuple[Tensor, ...]]:
    """Return the outputs of each segment of a program but the last: the tensor at the cut, then
    other tensors that later segments or the program's results need.

    Args:
        most: a segment with more non-constant terms is cut further, at all of its places of one
            kind, so that equal layers become equal segments. The first kind is a place beside the
            result of an encoder, which all layers of a decoder read; keys and values of different
            layers then can't become one product. The next is a place where a contraction reads a
            sum, a product or a function; ``w @ (a + b)`` then isn't distributed across the cut. The
            last is any place where a contraction or several terms read the tensor.
    """
    walk = _Walk.of(program)
    places = walk.places()
    ends = [position for position, kind in places.items() if kind is _Place.FUNCTION]
    wider, given = places, set[Tensor]()
    while read := walk.read_by_layers(wider) - given:
        given |= read
        wider = walk.places(given)
    for wanted in _Place:
        more = [position for position, kind in wider.items() if kind is wanted]
        for begin, end in pairwise([-1, *ends, len(walk.order) - 1]):
            if end - begin > most:
                ends += [position for position in more if begin < position < end]
        ends.sort()
    return walk.given_at(ends)


class _Place(Enum):
    """Why a program may be cut at a tensor; the kind with the least loss is first."""

    FUNCTION = auto()
    """No rewrite across the cut could save work."""
    MATERIALIZED = auto()
    """A contraction reads a sum, a product or a function."""
    READ = auto()
    """A contraction reads the tensor, or several terms do."""


@dataclass(frozen=True)
class _Walk:
    """A program's non-constant terms in order, and the terms that read each.

    Attributes:
        place: term -> its place in the order.
        beside: the tensors that may be live besides the tensor at a cut.
        masked: the tensors that a known mask hides parts of.
    """

    program: Program
    order: Sequence[Tensor]
    place: Mapping[Tensor, int]
    users: Mapping[Tensor, Sequence[Tensor]]
    beside: Set[Tensor]
    masked: Set[Tensor]

    @staticmethod
    def of(program: Program) -> _Walk:
        order = _in_order(program)
        users: dict[Tensor, list[Tensor]] = {}
        for term in order:
            for arg in args_of(term):
                users.setdefault(arg, []).append(term)
        place = {term: position for position, term in enumerate(order)}
        return _Walk(program, order, place, users, _beside(order, users), _masked(order, users))

    def live(self) -> Iterator[tuple[int, Tensor, Set[Tensor]]]:
        """Yield each place, its term, and the tensors that are live behind the term."""
        live: set[Tensor] = set()
        last = {term: self.place[readers[-1]] for term, readers in self.users.items()}
        for position, term in enumerate(self.order):
            live.add(term)
            live = {t for t in live if last.get(t, -1) > position}
            yield position, term, live

    def places(self, given: Set[Tensor] = frozenset()) -> dict[int, _Place]:
        """Return the places where the program may be cut, and why, if the tensors ``given`` may be
        live there. A tensor of ``beside`` is a place too if nothing else is live: a cut behind an
        embedding makes the first layer a segment like the others."""
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
        """Return the places that more contractions read than one layer has for its queries, keys
        and values: the result of an encoder, and that with positions added to it."""
        return {
            term
            for term in (self.order[position] for position in places)
            if sum(1 for _ in self._contractions(term)) > _OF_A_LAYER
        }

    def _kind(self, term: Tensor) -> _Place | None:
        users = self.users
        if _weighs(term, users) or term in self.masked:
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
        """Whether the term is a sum with an addend that is a nonlinear function (perhaps scaled),
        as large as the sum and read nowhere else, and with no constant addend, which could move
        into the bias of the sum's reader."""
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
        """Whether the term is a nonlinear function, perhaps scaled by constants, in which each step
        has one reader, and not the expansion of a smaller tensor."""
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
        """Yield the contractions that read a tensor, directly or through views."""
        for user in self.users.get(term, ()):
            if _is_contraction(user):
                yield user
            elif _is_rearranged(user, term):
                yield from self._contractions(user)

    def _is_whole(self, contraction: Tensor) -> bool:
        """Whether a contraction's result is no smaller than the tensor it reads, and is read as a
        whole by a nonlinear function, or is a result of the program."""
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
        """Return the tensors that each segment passes on, for cuts behind these places."""
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


def _in_order(program: Program) -> list[Tensor]:
    """Return the non-constant terms, arguments before users, and of several arguments first the one
    that takes the longest chain of terms. So the encoder comes before the first layer of a decoder,
    whose tensors would else be live in all of the encoder's layers."""
    height: dict[Tensor, int] = {}
    for term in program.terms():
        height[term] = 1 + max((height[arg] for arg in args_of(term)), default=0)
    order: dict[Tensor, None] = {}
    stack = [(root, False) for root in reversed(program.outputs)]
    while stack:
        term, made = stack.pop()
        if made:
            order[term] = None
        elif term not in order and not term.constant:
            stack.append((term, True))
            stack += [(arg, False) for arg in sorted(args_of(term), key=height.__getitem__)]
    return list(order)


def _beside(order: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """Return the tensors that may be live besides the tensor at a cut: several terms read them, and
    no contraction makes or reads them, not even through views (a contraction of each step of a loop
    may become one product)."""
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
    """Whether ``user`` is a view with all elements of ``term``."""
    return isinstance(user, Op) and user.row.kind == "view" and user.type.size == term.type.size


def _weighs(term: Tensor, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether the term is the weights of attention, ``softmax(q kᵀ)`` in ``softmax(q kᵀ) v``.
    Attention is one operator, which never stores the weights, so there is no cut."""
    made = term
    if isinstance(term, Op) and term.name == "Where":
        made = next((arg for arg in term.args if _is_softmax(arg)), term)
    return _is_softmax(made) and any(
        _is_contraction(user) and not any(arg.constant for arg in args_of(user))
        for user in users.get(term, ())
    )


def _masked(order: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """Return what functions of elements join with a mask of the program, a matrix:
    ``s``, ``where(|i - j| <= 2, s, 0)`` and ``relu`` of it. Of a contraction that makes or reads
    them only what the mask shows is needed, so the mask has to be known there."""
    found = [term for term in order if _is_map(term) and any(map(_is_mask, args_of(term)))]
    joined: set[Tensor] = set()
    while found:
        term = found.pop()
        if term not in joined and not term.constant:
            joined.add(term)
            found += args_of(term) if _is_map(term) else ()
            found += filter(_is_map, users.get(term, ()))
    return joined


def _is_map(term: Tensor) -> bool:
    return isinstance(term, Op) and term.row.kind == "elementwise"


def _is_mask(term: Tensor) -> bool:
    """Whether the term is a matrix that is computed from comparisons, choices and arithmetic. The
    sines of places that a mask counts (DETR's positions) are none."""
    if not term.constant or len(term.shape) < 2 or 1 in term.shape[-2:]:
        return False
    made = list(topological([term]))
    return any(t.dtype == "bool" for t in made) and all(map(_makes_masks, made))


def _makes_masks(term: Tensor) -> bool:
    if not isinstance(term, Op):
        return isinstance(term, Scope)
    return term.row.kind in ("view", "constant", "data") or term.name in _ARITHMETIC


def _is_softmax(term: Tensor) -> bool:
    return isinstance(term, Op) and term.name == "Softmax"


def _separates(
    term: Tensor, users: Mapping[Tensor, Sequence[Tensor]], place: Mapping[Tensor, int]
) -> bool:
    """Whether the term is a nonlinear function that a contraction reads, perhaps scaled by a number
    (``x * clamp(x + 3, 0, 6) / 6``), which may move into the contraction's weights."""
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
    """Whether the operator is a nonlinear function of elements or of windows. A choice is linear in
    what it chooses from if its condition is known, ``where(i == j, d, 0) @ x`` is a diagonal matrix
    times x, or is the same along an axis: ``where(m[:, None], x @ w, 0)`` masks the rows of x."""
    if term.row.kind not in ("elementwise", "reduction") or term.row.reducer:
        return False
    if term.name == "Where":
        condition = term.args[0]
        if condition.constant or condition.type.size < term.type.size:
            return False
    return term.name not in _LINEAR and term.name not in ("AvgPool2d", "CumSum", "LayerNorm")


def _is_linear(term: Op) -> bool:
    """Whether the operator is linear in its non-constant arguments together."""
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
    """Whether a sum, difference, product or quotient is a nonlinear elementwise function of one
    tensor: ``x * sigmoid(x)``, ``x + tanh(x)``.

    Not a polynomial of a narrow contraction, ``s + s * s``, which may be opened."""
    if term.name not in _LINEAR or sum(not arg.constant for arg in term.args) < 2:
        return False
    # The tensors that the term is a function of; the latest is replaced by its arguments.
    left: set[Tensor] = {term}
    bent, polynomial = False, True
    for _ in range(_LONGEST_FUNCTION):
        last = max(left, key=place.__getitem__)
        if bent and left == {last}:
            return not (polynomial and _is_narrow(last))
        if not isinstance(last, Op) or last.row.kind != "elementwise":
            return False
        varying = [arg for arg in last.args if not arg.constant]
        if any(arg.shape != term.shape for arg in varying):
            return False
        bent = bent or not _is_linear(last)
        polynomial = polynomial and (_is_linear(last) or last.name in ("Add", "Sub", "Mul"))
        left.discard(last)
        left.update(varying)
    return False


def _is_narrow(term: Tensor) -> bool:
    """Whether the term is a contraction, perhaps scaled, shifted or viewed, of so few products that
    its square is less work opened: ``(q kᵀ)^2 v`` of d columns and more than ``FEWER * d^2`` rows
    is ``d^2`` columns of products of columns of q, times such columns of k and v."""
    while isinstance(term, Op) and (term.row.kind == "view" or _is_moved(term)):
        term = next(arg for arg in term.args if not arg.constant)
    if not _is_contraction(term):
        return False
    added = flops(term) // max(2 * term.type.size, 1)
    return FEWER * added * added <= max(term.shape, default=1)


def _is_moved(term: Op) -> bool:
    """Whether the operator scales one tensor by a number, or adds a smaller constant to it."""
    varying = [arg for arg in term.args if not arg.constant]
    shifts = term.name in _SUMS and len(varying) == 1
    smaller = all(arg in varying or arg.type.size < term.type.size for arg in term.args)
    return _is_scaling(term) or (shifts and smaller)


def _is_averaged(contraction: Op, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether the contraction's result is summed or averaged, perhaps after views, biases and
    scales."""
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
    """Whether contractions read the term through normalizations only: a layer normalization, or one
    written as operators, ``x * rsqrt(mean(x * x) + eps)``. A residual sum may read the term too.

    False for a term that only a bias, a scale or a view reads: the place is then the result of the
    bias, scale or view."""
    readers = users.get(term, ())
    if len(readers) == 1 and isinstance(reader := readers[0], Op):
        varying = [arg for arg in reader.args if not arg.constant]
        if reader.row.kind == "view" or (reader.name in _LINEAR and len(varying) == 1):
            return False
    functions: dict[Tensor, _Function] = {term: _Function()}
    # The users in the program's order, so that a user's arguments are visited before it.
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
    """What is known of a function of one tensor.

    Attributes:
        reduced: it contains a sum or mean of the tensor.
        bent: it contains a nonlinear function of such a sum or mean.
        scaled: it contains a product or quotient by such a nonlinear function.
    """

    reduced: bool = False
    bent: bool = False
    scaled: bool = False

    @staticmethod
    def of(user: Op, args: Sequence[_Function]) -> _Function:
        """Return the function that an operator computes from the functions ``args``."""
        if user.name == "LayerNorm":
            return _Function(True, True, True)
        reduces = bool(user.row.reducer)
        linear = reduces or user.name in _LINEAR or user.row.kind == "view"
        factors = user.name in ("Mul", "Div") and len(args) > 1
        reduced = reduces or any(arg.reduced for arg in args)
        return _Function(
            reduced,
            (reduced and not linear) or any(arg.bent for arg in args),
            any(arg.scaled for arg in args) or (factors and any(arg.bent for arg in args)),
        )
