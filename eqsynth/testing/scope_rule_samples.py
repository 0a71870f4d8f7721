"""Random scopes that match the left side of a rule of scopes.

Each variable of the left side is filled: a group of axes by some axes, a variable for a body by a
product, sum or function of reads over the iterators it may depend on, a variable for an index by
any index. Sometimes a filling breaks one of the rule's conditions, and the rule must not fire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from eqsynth.egraph.scope_rules.binding import Binding, NoFit, holds
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, Value, product, total
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import FLOATS
from eqsynth.rules.scope_rules.syntax import (
    ANY,
    Absent,
    Apply,
    AtMost,
    Body,
    Broadcasts,
    Compare,
    Divides,
    Equals,
    Extent,
    Has,
    Named,
    Number,
    Plus,
    ScopeRule,
    Times,
    Variable,
    Whole,
    subterms,
)
from eqsynth.testing.choices import Rejected, chance
from eqsynth.testing.families import Family, canonical_family
from eqsynth.testing.scope_samples import any_index, at, leaf, made_scope
from eqsynth.testing.world import World

# The most fillings that are drawn until one meets the conditions; the last one is used in any case.
_TRIES: Final = 8
# Functions in bodies; some are infinite at some points, others are finite (`finite F` in a rule).
_FUNCTIONS: Final = ("relu", "reciprocal", "exp", "log", "abs", "tanh", "floor")
_FINITE: Final = ("relu", "abs", "tanh", "floor")
_FILLS: Final = (0.0, 0.0, 0.0, 0.0, 1.5)


def families_of(rule: ScopeRule) -> tuple[Family, ...]:
    """Families of scopes that match a rule's left side, in canonical form and as drawn."""

    def matching(world: World) -> Tensor:
        return drawn(rule, world)

    return canonical_family(matching), canonical_family(matching), matching


def drawn(rule: ScopeRule, world: World) -> Tensor:
    """A scope that is the rule's left side with its variables filled."""
    for _ in range(_TRIES):
        given = _filled(rule, world)
        if all(holds(condition, given) for condition in rule.conditions):
            break
    side = rule.left
    outer, inner = ([it for axis in part for it in given.its(axis.name)]
                    for part in (side.head, side.axes))  # fmt: skip
    body = _body(side.body, given, world, whole=True)
    reducer = world.choices.pick(tuple(REDUCERS)) if side.reducer == ANY else side.reducer or "sum"
    return made_scope([it.extent for it in outer], [it.extent for it in inner], body, reducer)


def _filled(rule: ScopeRule, world: World) -> Binding:
    """A random binding of all names of the left side."""
    extents = _extents(rule, world)
    iterators: dict[str, It] = {}
    groups: dict[str, tuple[It, ...]] = {}
    slot = 0
    for axis in (*rule.left.head, *rule.left.axes):
        its = tuple(It(slot + n, extent) for n, extent in enumerate(extents[axis.name]))
        slot += len(its)
        if axis.group:
            groups[axis.name] = its
        else:
            iterators[axis.name] = its[0]
    given = Binding(iterators, groups)
    for name in rule.indices:
        given = given.with_index(name, _index(rule, name, given, world))
    for name, listed in rule.bodies:
        given = given.with_body(name, _filling(rule, name, listed, given, world))
    return given


def _extents(rule: ScopeRule, world: World) -> dict[str, tuple[int, ...]]:
    """Extents for each iterator and group; they mostly meet the rule's conditions on extents."""
    found: dict[str, tuple[int, ...]] = {}
    for axes in (rule.left.head, rule.left.axes):
        for axis in axes:
            count = world.choices.pick((1, 1, 2, 0)) if axis.group else 1
            found[axis.name] = tuple(world.extent() for _ in range(count))
    for condition in rule.conditions:
        if chance(world.choices, 4):
            continue
        match condition:
            case Divides(divisor=Whole(value=d), value=Extent(name=name)):
                found[name] = (d * world.choices.pick((1, 2, 3)),)
            case Compare(left=Extent(name=one), sign="==", right=Extent(name=two)):
                found[two] = found[one]
    return found


def _allowed(rule: ScopeRule, name: str, given: Binding) -> list[It]:
    """The iterators on which a variable may depend by the rule's conditions."""
    absent = {c.axis for c in rule.conditions if isinstance(c, Absent) and c.variable == name}
    names = [axis for axis in (*given.iterators, *given.groups) if axis not in absent]
    return [it for axis in names for it in given.its(axis)]


def _index(rule: ScopeRule, name: str, given: Binding, world: World) -> Index:
    """An index for a variable: any index; or, if the body compares it with an iterator, one whose
    range ends at the iterator's end, before it, or one beyond it."""
    its, pick = _allowed(rule, name, given), world.choices.pick
    if chance(world.choices, 2):
        return any_index(world.choices, its)
    others = [
        given.iterators[part.left.name] for part in subterms(rule.left.body)
        if isinstance(part, Equals) and part.right == Named(name) and isinstance(part.left, Named)
    ]  # fmt: skip
    index = at(pick(its)) if its and not chance(world.choices, 4) else Index(0)
    _, high = index.range()
    end = pick(others).extent - 1 - high if others else 0
    return index + pick((end, end + 1, 0, end - 1, -1))


def _filling(
    rule: ScopeRule, name: str, listed: Sequence[str], given: Binding, world: World
) -> Scalar:
    """A body for a variable, mostly one that the rule's conditions allow.

    Args:
        listed: the iterators that the left side lists for the variable.
    """
    pick = world.choices.pick
    wanted = {c.what for c in rule.conditions if isinstance(c, Has) and c.variable == name}
    others = {*given.iterators.values()} - {given.iterators[n] for n in listed}
    its = [it for it in _allowed(rule, name, given) if it not in others]
    if any(isinstance(c, Broadcasts) and c.variable == name for c in rule.conditions) and its:
        its.remove(pick(its))
    constant = "constant" in wanted or chance(world.choices, 6)
    stem = "w" * constant + name.lower()
    fills = _FILLS if "finite" in wanted else (*_FILLS, *_FILLS, math.inf, -math.inf)
    read = _read(world, its, stem, fills)
    kind = pick(("read", "read", "read", "product", "number", "sum", "call", "call"))
    if kind == "product":
        return product([read, _read(world, its, stem + "2", fills)])
    if kind == "number":
        return product([Num(pick((2.0, -1.0, 0.5, -3.0))), read])
    if kind == "sum":
        return total([read, _read(world, its, stem + "2", fills)])
    if kind == "call":
        return Call(pick(_FINITE if "finite" in wanted else _FUNCTIONS), (read,))
    return read


def _read(world: World, its: Sequence[It], name: str, fills: Sequence[float]) -> Read:
    """A read of a leaf of this name over most of the iterators. The leaf may be longer than the
    indices reach, or shorter, so that some reads lie outside."""
    pick = world.choices.pick
    kept = [it for it in its if not chance(world.choices, 4)]
    indices = [at(it) for it in kept]
    if its and chance(world.choices, 3):
        indices.append(any_index(world.choices, its))
    shape = [max(1, index.range()[1] + 1 + pick((0, 0, 0, 1, 2, -1))) for index in indices]
    return Read(leaf(world, shape, name), tuple(indices), pick(fills))


def _body(body: Body, given: Binding, world: World, whole: bool = False) -> Scalar:
    """The scalar of a pattern; ``whole`` if it is all of a scope's body."""
    match body:
        case Number(value=value):
            return Num(value)
        case Variable(name=name):
            return given.bodies[name]
        case Equals(left=left, right=right):
            try:
                sides = given.index(left), given.index(right)
            except NoFit:
                raise Rejected("no index") from None
            if whole and chance(world.choices, 2):
                return Cast(world.choices.pick(FLOATS), Call("eq", tuple(map(Value, sides))))
            return _equality(*sides, world)
        case AtMost():
            return Cast(world.choices.pick(FLOATS), _order(body, given, world))
        case Apply(fn="where", args=(AtMost() as order, *ways)):
            chosen = (_body(way, given, world) for way in ways)
            return Call("where", (_order(order, given, world), *chosen))
        case Apply(fn=fn, args=args):
            return Call(fn, tuple(_body(arg, given, world) for arg in args))
        case Plus(parts=parts):
            return total([_body(part, given, world) for part in parts])
        case Times(parts=parts):
            return product([_body(part, given, world) for part in parts])
    raise AssertionError(body)  # the parser allows nothing else on a left side


def _equality(left: Index, right: Index, world: World) -> Scalar:
    """``[left == right]``, as a comparison or as a read of a tensor of one element."""
    u = left - right
    if chance(world.choices, 3):
        return Call("eq", (Value(left), Value(right)))
    if chance(world.choices, 3):
        u = -u
    return Read(leaf(world, (1,), world.choices.pick("tw")), (u,))


def _order(order: AtMost, given: Binding, world: World) -> Scalar:
    """``low <= high``, as one of the four comparisons."""
    try:
        low, high = given.index(order.left), given.index(order.right)
    except NoFit:
        raise Rejected("no index") from None
    fn = world.choices.pick(("le", "lt", "ge", "gt"))
    above = high + (fn in ("lt", "gt"))
    sides = (low, above) if fn in ("le", "lt") else (above, low)
    return Call(fn, tuple(map(Value, sides)))
