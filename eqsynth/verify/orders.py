"""Compare two elements that depend on the order of numbers only, by trying all orders.

    min(h, max(l, min(h, max(l, x))))  =  min(h, max(l, x))    13 orders of l, x and h, with ties
    (x < y) and (z > x)  =  x < min(y, z)

An element qualifies if it is made of reads and finite functions of them (its atoms) by ``max``,
``min``, ``relu``, comparisons, ``where``, ``and``, ``or`` and ``not``. Such an element commutes
with every strictly increasing map of the numbers, so its value depends only on which atom is below,
equal to or above which other; the constants in it have their own places in the order. Two elements
that are equal for each order of their atoms are therefore equal for all numbers. That is so for the
integers of one dtype, and over the reals: NaN is in no order, and 0.0 equals -0.0, so nothing is
said about the bits of floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import z3

from eqsynth.verify.comparing import MOST_WHOLE, Comparison
from eqsynth.verify.integers import Integers
from eqsynth.verify.polynomials import finite
from eqsynth.verify.values import Call, Number, Read, Value, conditions, decided, function_of
from eqsynth.verify.verdict import Left

# The most cases: orders of the atoms, each with all truth values.
_MOST_CASES: Final = 50_000
# The most guards that Z3 doesn't decide, for which both cases are compared.
_MOST_SPLITS: Final = 16
_Case = tuple[tuple[int, ...], tuple[bool, ...]]
_Place = Callable[[_Case], int]
_Truth = Callable[[_Case], bool]

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def same_in_all_orders(
    a: Value, b: Value, ints: Integers, *, truths: bool, whole: bool, given: tuple[Any, ...] = ()
) -> bool:
    """Whether two elements are equal in all orders of the numbers on which they depend.

    Args:
        truths: the elements are true or false; otherwise they are numbers.
        whole: the numbers are integers, so a constant has to be one of each integer dtype.

    Raises:
        Left: an element isn't known to depend on an order only, or there are too many cases.
    """
    cases = _Orders(ints, whole, given)
    condition = next((c for side in (a, b) for c in conditions(side)), None)
    if condition is not None:
        if len(given) >= _MOST_SPLITS:
            raise Left("more cases of guards than are looked at")
        return all(
            same_in_all_orders(decided(a, condition, taken), decided(b, condition, taken), ints,
                               truths=truths, whole=whole, given=(*given, known))
            for taken, known in ((True, condition), (False, z3.Not(condition)))
            if not ints.holds(z3.Not(known), given)
        )  # fmt: skip
    side = cases.truth if truths else cases.number
    left, right = side(a), side(b)
    return all(left(case) == right(case) for case in cases.all())


class _Orders:
    """The atoms and constants of two elements. A case gives each atom a place in the order, and
    makes each atom that is used as a truth value true or false."""

    def __init__(self, ints: Integers, whole: bool, given: tuple[Any, ...]) -> None:
        self._compare = Comparison(ints, bitwise=whole)
        self._given = given
        self._whole = whole
        self._atoms: list[Value] = []
        self._truths: list[Value] = []
        self._constants: set[float] = set()

    def all(self) -> Iterator[_Case]:
        """All cases.

        Constants are spread so that all atoms fit between two of them: with two atoms, they take
        the places 2, 5, 8 ... of the order, and the atoms any places in and between.
        """
        apart = len(self._atoms) + 1
        bottom, top = -math.inf in self._constants, math.inf in self._constants
        places = range(apart - 1 if bottom else 0,
                       apart * len(self._constants) + (0 if top else apart - 1))  # fmt: skip
        if len(places) ** len(self._atoms) * 2 ** len(self._truths) > _MOST_CASES:
            raise Left("more orders than are looked at")
        return product(product(places, repeat=len(self._atoms)),
                       product((False, True), repeat=len(self._truths)))  # fmt: skip

    def number(self, value: Value) -> _Place:
        """Translate an element that is a number to a function from cases to places."""
        name = function_of(value.name) if isinstance(value, Call) else ""
        if isinstance(value, Number):
            return self._constant(value)
        if isinstance(value, Call) and name in ("max", "min"):
            first, second = map(self.number, value.args)
            choose: Any = max if name == "max" else min
            return lambda case: int(choose(first(case), second(case)))
        if isinstance(value, Call) and name == "relu":
            return self.number(Call("max", (value.args[0], Number(0.0))))
        if isinstance(value, Call) and name == "where":
            condition, yes, no = self.truth(value.args[0]), *map(self.number, value.args[1:])
            return lambda case: (yes if condition(case) else no)(case)
        if not finite(value):
            raise Left("whether what is compared is a finite number")
        at = self._at(self._atoms, value)
        return lambda case: case[0][at]

    def truth(self, value: Value) -> _Truth:
        """Translate an element that is true or false to a function of cases."""
        if isinstance(value, Number) and value.value in (0.0, 1.0):
            known = value.value == 1.0
            return lambda _: known
        if isinstance(value, Read):
            at = self._at(self._truths, value)
            return lambda case: case[1][at]
        name = function_of(value.name) if isinstance(value, Call) else ""
        if isinstance(value, Call) and name in _COMPARISONS:
            compare, (first, second) = _COMPARISONS[name], map(self.number, value.args)
            return lambda case: compare(first(case), second(case))
        if isinstance(value, Call) and name in ("and", "or"):
            join, parts = (all if name == "and" else any), [*map(self.truth, value.args)]
            return lambda case: join(part(case) for part in parts)
        if isinstance(value, Call) and name == "not":
            part = self.truth(value.args[0])
            return lambda case: not part(case)
        if isinstance(value, Call) and name == "where":
            condition, yes, no = map(self.truth, value.args)
            return lambda case: (yes if condition(case) else no)(case)
        raise Left(f"whether {name or 'an element'} is true")

    def _constant(self, value: Number) -> _Place:
        number = value.value
        if not isinstance(number, float) or math.isnan(number):
            raise Left("where a number that the rule only names is in the order")
        if self._whole and number not in range(MOST_WHOLE):
            raise Left("a number that isn't one of each integer dtype")
        self._constants.add(number)
        return lambda _: (sorted(self._constants).index(number) + 1) * (len(self._atoms) + 1) - 1

    def _at(self, known: list[Value], value: Value) -> int:
        for at, atom in enumerate(known):
            if self._compare.same(atom, value, self._given):
                return at
        known.append(value)
        return len(known) - 1
