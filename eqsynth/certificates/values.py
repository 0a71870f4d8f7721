"""Compute the values of terms on data, each term by its own definition, within a budget of work.

    draw.value(a @ b, None)        the whole product, in float64
    draw.value(a @ b, points)      some of its elements, if the product is too large
    draw.precise().value(...)      the same in long double

Not here: whether two values are equal (``judging.py``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from eqsynth.certificates.crops import elements, is_cut, work
from eqsynth.errors import EqsynthError
from eqsynth.ir.arithmetic import FLOAT64, Arithmetic, Array, computing_in
from eqsynth.ir.data import draw, leaves
from eqsynth.ir.interpret import evaluate_one, evaluate_scope
from eqsynth.ir.program import positions
from eqsynth.ir.scalar import reads
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight, args_of, topological
from eqsynth.ir.types import is_float
from eqsynth.ir.work import flops

POINTS: Final = 1 << 20
"""The largest cost, in points of an iteration space, of a term that is computed whole. An operator
may take 64 operations a point, a matrix product or a convolution 1024 (:func:`cost`)."""

LARGEST: Final = 1 << 23
"""The largest size of a tensor of which some elements are computed."""

WORK: Final = 1 << 22
"""The most points that one value may take, whole or at some elements."""

BUDGET: Final = 1 << 28
"""The most points that the check of one log may take on one kind of data: some 20 seconds."""

KINDS: Final = ("normal", "ties")
"""The kinds of data: normal random numbers; and -1, 0, 1, whose sums and products are exact."""

_LONG: Final = Arithmetic("long double", np.dtype(np.longdouble))
# The exceptions that the interpreter raises for a term that has no value on some data.
_NO_VALUE: Final = (EqsynthError, ArithmeticError, IndexError, ValueError, TypeError)


Points = Sequence[Array]


class Unknown(Exception):
    """Raised if there is no value to compare; the text says why."""


class TooLarge(Unknown):
    """Raised if one value takes too much work."""

    def __init__(self) -> None:
        super().__init__("too large")


class OverBudget(Unknown):
    """Raised if all values together have used up the budget."""

    def __init__(self) -> None:
        super().__init__("beyond the budget")


class Draw:
    """The values of terms on one kind of data. For a term without a value, the reason is kept.

    Attributes:
        budget: the points that all further values together may take.
    """

    def __init__(self, kind: str, env: Mapping[str, Array], arithmetic: Arithmetic) -> None:
        self.kind, self._env, self._arithmetic = kind, env, arithmetic
        self.budget = BUDGET
        self._values: dict[Tensor, Array] = {}
        self._missing: dict[Tensor, Unknown] = {}
        # Terms that aren't finite, or have a subterm that isn't.
        self._wild: set[Tensor] = set()
        self._precise: Draw | None = None

    def precise(self) -> Draw:
        """The values on the same data, computed with more digits (long double)."""
        if self._precise is None:
            self._precise = Draw(self.kind, self._env, _LONG)
        return self._precise

    def value(self, term: Tensor, points: Points | None) -> Array:
        """A term's value, whole or at some points.

        Raises:
            Unknown: it has no value on this data.
            TooLarge: it takes too much work; it may have a value at fewer points.
        """
        return self._whole(term) if points is None else self._at(term, points)

    def _at(self, term: Tensor, points: Points) -> Array:
        """The vector of a term's elements at some points. If an argument of a scope is too large to
        be computed whole, only the elements that the scope reads at these points are computed."""
        try:
            return np.asarray(self._whole(term)[tuple(points)])
        except TooLarge:
            if not isinstance(term, Scope | Op) or not term.shape:
                raise
        if isinstance(term, Op):
            return self._product_at(term, points)
        self._pay(len(points[0]) * math.prod(term.reduction))
        values = {arg: self._read(arg, term, points) for arg in args_of(term)}
        with computing_in(self._arithmetic), np.errstate(all="ignore"):
            return evaluate_scope(term, values, points)

    def _product_at(self, op: Op, points: Points) -> Array:
        if not is_cut(op):
            raise TooLarge
        self._pay(len(points[0]) * work(op))
        operands = [self._whole(arg) for arg in op.args]
        with computing_in(self._arithmetic), np.errstate(all="ignore"):
            return elements(op, operands, points)

    def _read(self, arg: Tensor, scope: Scope, points: Points) -> Array:
        """The value of an argument of a scope. If it is too large, an array with only the elements
        that the scope reads at these points; the other elements are 0."""
        try:
            return self._whole(arg)
        except TooLarge:
            if not isinstance(arg, Scope) or not arg.shape or arg.type.size > LARGEST:
                raise
        rank = 1 + len(scope.reduction)
        lines = [*points, *(np.arange(extent) for extent in scope.reduction)]
        axes = [max(0, n - len(points) + 1) for n in range(len(lines))]
        grid = {
            slot: line.reshape([-1 if axis == a else 1 for a in range(rank)])
            for slot, (line, axis) in enumerate(zip(lines, axes, strict=True))
        }
        wanted = np.zeros(arg.shape, bool)
        for read in reads(scope.body):
            if read.tensor == arg:
                at = np.broadcast_arrays(*(index.evaluate(grid) for index in read.index))
                extents = zip(at, arg.shape, strict=True)
                inside = np.logical_and.reduce([(0 <= a) & (a < n) for a, n in extents])
                wanted[tuple(a[inside] for a in at)] = True
        places = np.nonzero(wanted)
        values = self._at(arg, places)
        found = np.zeros(arg.shape, values.dtype)
        found[places] = values
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            self._wild.add(scope)
        return found

    def learn(self, left: Tensor, right: Tensor) -> None:
        """Record that two terms are equal: if one of them has no value, it gets the other's."""
        for term, other in ((left, right), (right, left)):
            if term not in self._values and other in self._values:
                self._values[term] = self._values[other]
                if other in self._wild:
                    self._wild.add(term)
                self._missing.clear()

    def is_wild(self, term: Tensor) -> bool:
        """Whether a term or one of its subterms isn't finite, or isn't known to be finite because
        the term wasn't computed whole."""
        return term in self._wild or term not in self._values

    def reach(self, terms: Sequence[Tensor], given: Collection[Tensor]) -> float:
        """The largest finite absolute value in ``terms`` and in their subterms down to ``given``;
        rounding is relative to this number."""
        seen, stack, largest = set[Tensor](given), list(terms), 0.0
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                stack += args_of(term)
            value = self._values.get(term)
            if value is not None and value.dtype.kind == "f":
                finite = np.isfinite(value)
                largest = max(largest, float(np.max(np.abs(value), initial=0.0, where=finite)))
        return largest

    def _whole(self, term: Tensor) -> Array:
        stack = [term]
        while stack:
            top = stack[-1]
            if top not in self._values and top not in self._missing:
                needed = [arg for arg in args_of(top)
                          if arg not in self._values and arg not in self._missing]  # fmt: skip
                if needed:
                    stack += needed
                    continue
                self._evaluate(top)
            stack.pop()
        if term in self._missing:
            raise self._missing[term]
        return self._values[term]

    def _evaluate(self, term: Tensor) -> None:
        try:
            known = [self._missing[arg] for arg in args_of(term) if arg in self._missing]
            if known:
                raise known[0]
            if isinstance(term, Op) and term.name == "Opaque":
                raise Unknown("operators without a definition")
            if cost(term) > POINTS:
                raise TooLarge
            self._pay(cost(term))
            with computing_in(self._arithmetic), np.errstate(all="ignore"):
                found = evaluate_one(term, self._values, self._env)
        except Unknown as why:
            self._missing[term] = why
        except _NO_VALUE:
            self._missing[term] = Unknown("no value on this data")
        else:
            self._values[term] = found
            finite = found.dtype.kind != "f" or bool(np.isfinite(found).all())
            if not finite or any(arg in self._wild for arg in args_of(term)):
                self._wild.add(term)

    def _pay(self, cost: int) -> None:
        if cost > WORK:
            raise TooLarge
        if cost > self.budget:
            raise OverBudget
        self.budget -= cost


def cost(term: Tensor) -> int:
    """The cost of computing a term, in points of a scope. Operators take libraries less time than
    the interpreter takes for a scope: 64 operations count as a point, in a matrix product or a
    convolution 1024."""
    if isinstance(term, Scope):
        return math.prod(term.extents)
    each = 1024 if is_cut(term) else 64
    return max(term.type.size // 8, flops(term) // each) if isinstance(term, Op) else 1


def draws(terms: Sequence[Tensor], seed: int) -> Iterator[Draw]:
    """The values of inputs and weights, for each kind of data. If some tensor of positions (the ids
    of an embedding) is computed, integer inputs are 0 and 1 only: then the positions are in range
    for tables with at least two entries."""
    every = list(topological(terms))
    bounds, inputs = positions(every, views=True), leaves(every)
    computed = any(not isinstance(term, Input | Weight) for term in bounds)
    for kind in KINDS:
        env = draw(inputs, bounds, kind, "small", seed)
        for name, leaf in inputs.items():
            if computed and leaf not in bounds and not is_float(leaf.dtype):
                env[name] = np.abs(env[name]) % 2 if leaf.dtype != "bool" else env[name]
        yield Draw(kind, env, FLOAT64)
