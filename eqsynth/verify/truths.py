"""Compare two elements that depend on truth values only, by trying all cases.

    where(c, x, false)  =  and(c, x)          c and x are true or false: four cases
    max_k (s[k] ? 1 : 0) = 0                  s is true for some k or for none: two cases

An element qualifies if it uses each tensor element that it reads only as a truth value: as the
condition of ``where``, as an operand of ``and``, ``or`` or ``not``, or as a bool. A maximum over k
of one of two numbers, selected by a truth value, is the larger number if that is selected for some
k, and the smaller number otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import product
from typing import Final

from eqsynth.verify.comparing import Comparison
from eqsynth.verify.integers import Integers
from eqsynth.verify.values import Call, Number, Read, Reduce, Value, function_of
from eqsynth.verify.verdict import Left

# The most truth values on which elements may depend: 2 ** 6 cases.
_MOST_ATOMS: Final = 6
_Truths = tuple[bool, ...]
_Element = Callable[[_Truths], float]

_OF_TRUTHS: Final[dict[str, Callable[..., bool]]] = {
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a,
}  # fmt: skip
_OF_NUMBERS: Final[dict[str, Callable[[float, float], float]]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "max": max, "min": min,
}  # fmt: skip


def same_truths(a: Value, b: Value, ints: Integers, bools: Collection[str]) -> bool:
    """Whether two elements are equal in all cases.

    Args:
        bools: the names of the tensors whose elements are true or false.

    Raises:
        Left: an element isn't known to depend on truth values only.
    """
    cases = _Cases(ints, bools)
    left, right = cases.element(a), cases.element(b)
    return all(left(case) == right(case) for case in cases.all())


class _Cases:
    """The truth values on which elements depend, without duplicates. A case makes each of them true
    or false."""

    def __init__(self, ints: Integers, bools: Collection[str]) -> None:
        self._same = Comparison(ints).same
        self._bools = bools
        self._atoms: list[Value] = []

    def all(self) -> product[_Truths]:
        return product((False, True), repeat=len(self._atoms))

    def element(self, value: Value) -> _Element:
        """Translate an element to a function from cases to numbers."""
        match value:
            case Number(value=float() as number) if number in (0.0, 1.0) or math.isinf(number):
                return lambda _: number
            case Read(name=name) if name in self._bools:
                return self._truth(value)
            case Call(args=args) if function_of(value.name) == "where":
                condition, yes, no = self._truth(args[0]), *map(self.element, args[1:])
                return lambda case: (yes if condition(case) else no)(case)
            case Call(args=args) if function_of(value.name) in _OF_TRUTHS:
                return self._truth(value)
            case Call(args=args) if function_of(value.name) in _OF_NUMBERS:
                function, (x, y) = _OF_NUMBERS[function_of(value.name)], map(self.element, args)
                return lambda case: float(function(x(case), y(case)))
            case Reduce(reducer="max" | "min"):
                return self._extreme(value)
        raise Left(f"which numbers {getattr(value, 'name', 'an element')} is")

    def _truth(self, value: Value) -> _Element:
        if isinstance(value, Call) and function_of(value.name) in _OF_TRUTHS:
            function = _OF_TRUTHS[function_of(value.name)]
            parts = [self._truth(arg) for arg in value.args]
            return lambda case: float(function(*(bool(part(case)) for part in parts)))
        if not isinstance(value, Read | Reduce):
            element = self.element(value)
            return lambda case: float(element(case) != 0)
        at = next((n for n, atom in enumerate(self._atoms) if self._same(atom, value)), None)
        if at is None:
            at = len(self._atoms)
            self._atoms.append(value)
            if at >= _MOST_ATOMS:
                raise Left("more truths than are looked at")
        place = at
        return lambda case: float(case[place])

    def _extreme(self, value: Reduce) -> _Element:
        """``max_k (t[k] ? w : u)`` with u < w: w if t holds for some k, else u."""
        inner = _Cases(Integers(), self._bools)
        body = inner.element(value.body)
        if len(inner._atoms) != 1:
            raise Left("a maximum that depends on several truths")
        no, yes = body((False,)), body((True,))
        if no != yes and (no < yes) != (value.reducer == "max"):
            raise Left("whether a truth holds of all")
        # The maximum of truth values says whether one of them holds.
        some = self._truth(Reduce("max", value.iterators, inner._atoms[0]))
        return lambda case: yes if some(case) else no
