"""Bindings of a rule's names to parts of a scope, and conditions of the rule under a binding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eqsynth.calculus.conditions import is_finite
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    dtype_of,
    iterators,
    leaves,
)
from eqsynth.ir.scopes import bare
from eqsynth.ir.types import is_float
from eqsynth.rules.scope_rules.syntax import (
    Absent,
    Arithmetic,
    Broadcasts,
    Compare,
    Condition,
    Divides,
    Extent,
    Has,
    Named,
    Place,
    Whole,
)


class NoFit(Exception):
    """The right side has no meaning for this match, such as a division by an iterator."""


@dataclass(frozen=True)
class Binding:
    """The parts of a scope that a rule's names stand for."""

    iterators: Mapping[str, It] = field(default_factory=dict)
    groups: Mapping[str, tuple[It, ...]] = field(default_factory=dict)
    bodies: Mapping[str, Scalar] = field(default_factory=dict)
    indices: Mapping[str, Index] = field(default_factory=dict)

    def with_body(self, name: str, body: Scalar) -> Binding:
        return replace(self, bodies={**self.bodies, name: body})

    def with_index(self, name: str, index: Index) -> Binding:
        return replace(self, indices={**self.indices, name: index})

    def its(self, name: str) -> tuple[It, ...]:
        """Return the iterators of a name: one, or several for a group ``*y``."""
        return self.groups[name] if name in self.groups else (self.iterators[name],)

    def index(self, place: Place) -> Index:
        """Return the index that a place expression stands for.

        Raises:
            NoFit: it multiplies two indices, or divides by something other than a positive number.
        """
        match place:
            case Whole(value=value):
                return Index(value)
            case Extent(name=name):
                return Index(self.iterators[name].extent)
            case Named(name=name):
                return self.indices[name] if name in self.indices else bare(self.iterators[name])
            case Arithmetic(sign=sign, left=left, right=right):
                return _computed(sign, self.index(left), self.index(right))

    def number(self, place: Place) -> int:
        """Return the number that a place expression stands for.

        Raises:
            NoFit: it isn't a number.
        """
        index = self.index(place)
        if index.terms:
            raise NoFit
        return index.const


def _computed(sign: str, a: Index, b: Index) -> Index:
    if sign in "+-":
        return a + b if sign == "+" else a - b
    if sign == "*":
        a, b = (a, b) if not b.terms else (b, a)
    if b.terms or (sign != "*" and b.const <= 0):
        raise NoFit
    return a * b.const if sign == "*" else a // b.const if sign == "//" else a % b.const


def holds(condition: Condition, given: Binding, dtype: str | None = None) -> bool:
    """Whether a condition is known to hold for all values of the iterators.

    Args:
        dtype: the dtype of the scope's body, in which numbers alone are computed.
    """
    try:
        match condition:
            case Compare(left=left, sign=sign, right=right):
                low, high = (given.index(right) - given.index(left)).range()
                return low >= (sign == "<") and (sign != "==" or low == high == 0)
            case Divides(divisor=divisor, value=value):
                by = given.number(divisor)
                return by > 0 and given.number(value) % by == 0
            case Absent(axis=axis, variable=name):
                return not used_by(given, name) & {*given.its(axis)}
            case Broadcasts(variable=name, axis=axis):
                return any(it.extent > 1 for it in {*given.its(axis)} - used_by(given, name))
            case Has(what=what, variable=name):
                return _has(what, given.bodies[name], dtype)
    except NoFit:
        return False


def used_by(given: Binding, variable: str) -> set[It]:
    """Return the iterators that the part bound to a variable uses."""
    if variable in given.indices:
        return set(given.indices[variable].iterators())
    return iterators(given.bodies[variable])


def _has(what: str, body: Scalar, dtype: str | None) -> bool:
    if what == "float":
        return is_float(dtype_of(body) or dtype or "bool")
    if what == "constant":
        return is_constant(body)
    if what == "summed":
        return True  # the law looks at the e-classes before it is asked to match (law.py)
    return finite(body)


def is_constant(body: Scalar) -> bool:
    """Whether the body reads only constant tensors, or none."""
    return all(leaf.tensor.constant for leaf in leaves(body) if isinstance(leaf, Read))


def finite(body: Scalar) -> bool:
    """Whether the body is known to be finite for finite tensors: a condition, or sums, products and
    functions of finite numbers, of index values and of reads without infinite fills. ``1 / x`` and
    ``log(x)`` may be infinite, and ``exp(x)`` may overflow."""
    if dtype_of(body) == "bool":
        return True
    match body:
        case Call(fn=fn, args=args):
            known = fn == "where" or (FUNCTIONS[fn].finite and not FUNCTIONS[fn].overflows)
            return known and all(map(finite, args))
        case Cast(arg=arg):
            return dtype_of(arg) == "bool"
        case Sum() | Prod():
            return all(map(finite, children(body)))
    return isinstance(body, Value) or (isinstance(body, Num | Read) and is_finite(body))
