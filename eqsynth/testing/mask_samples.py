"""Families of random scopes under masks: softmax weights, reductions, and tests for rows without
any visible element."""

from __future__ import annotations

import math
from typing import Final

from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, Value, product, total
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.ir.types import MOST, is_float
from eqsynth.testing.choices import Rejected
from eqsynth.testing.scope_samples import at, iterators, leaf, made_scope
from eqsynth.testing.world import World


def shown(world: World, i: It, j: It) -> Scalar:
    """A random mask: whether row i sees column j. Visible is a band, every second column of a band,
    a block, or the first columns."""
    pick = world.choices.pick
    apart, width = at(j) - at(i), pick((1, 0, 2))
    kind = pick(("band", "every second", "before", "block", "front"))
    if kind == "block":
        size = pick((2, 3))
        return Call("eq", (Value(at(i) // size), Value(at(j) // size)))
    if kind == "front":
        return Call("le", (Value(at(j)), Num(width)))
    near = Call("le", (Call("abs", (Value(apart),)), Num(width * (1 + (kind != "band")))))
    if kind == "band":
        return near
    other = Value(apart % 2) if kind == "every second" else Call("max", (Value(apart), Num(0)))
    return Call("and", (near, Call("eq", (other, Num(0)))))


def scores(world: World, i: It, j: It, hidden: float = -math.inf) -> tuple[Scalar, Read]:
    """Scores of query i and key j, which are ``hidden`` where a mask hides the key; and a read of
    the mask."""
    pick = world.choices.pick
    if not is_float(world.dtype):
        raise Rejected("masked scores are floats")
    x = Read(leaf(world, (i.extent, j.extent), "x"), (at(i), at(j)))
    visible, kind = shown(world, i, j), pick(("where", "not", "sum"))
    mask = Read(
        made_scope((i.extent, j.extent), (), Call("not", (visible,)) if kind == "not" else visible),
        (at(i), at(j)),
    )
    if kind == "sum" and hidden < 0:
        return total([x, Call("where", (mask, Num(0), Num(hidden)))]), mask
    if kind == "sum" and hidden == 0:
        return product([x, Call("relu", (x,)), Cast(world.dtype, mask)]), mask
    ways = (Num(hidden), x) if kind == "not" else (x, Num(hidden))
    return Call("where", (mask, *ways)), mask


def masked_reduction(world: World) -> Tensor:
    """``sum_j s[i, j] * v[j, d]``, its powers, or ``max_j s[i, j]``, where s is what the reduction
    leaves out if a mask hides j from i. (Not in ``MASKED``: the elements of s aren't finite.)"""
    pick = world.choices.pick
    rows, columns, width = (pick(sizes) for sizes in ((4, 6, 3), (4, 6, 9), (1, 2)))
    reducer, axis = pick(("sum", "sum", "max", "min")), pick((1, 1, 0))
    i, j = iterators((rows, columns))
    made, _ = scores(world, i, j, REDUCERS[reducer])
    inner = made_scope((rows, columns), (), made)
    key, kept = ((rows, columns)[n] for n in (axis, 1 - axis))
    own, d, summed = iterators((kept, width, key))
    weights = Read(inner, (at(own), at(summed)) if axis else (at(summed), at(own)))
    if reducer != "sum":
        return made_scope((kept, width), (key,), weights, reducer)
    values = Read(leaf(world, (key, width), "v"), (at(summed), at(d)))
    return made_scope((kept, width), (key,), product([*[weights] * pick((1, 1, 2)), values]))


def masked_weights(world: World) -> Tensor:
    """``sum_j softmax(s)[i, j] * v[j, d]``, where s is -inf, or the lowest number of the dtype, if
    a mask hides j from i."""
    pick = world.choices.pick
    rows, columns, width = (pick(sizes) for sizes in ((4, 6, 3), (4, 6, 9), (1, 2)))
    i, j = iterators((rows, columns))
    hidden = pick((-math.inf, -math.inf, -MOST.get(world.dtype, math.inf)))
    inner = made_scope((rows, columns), (), scores(world, i, j, hidden)[0])
    weights = Op("Softmax", (inner,), (1,))
    own, d, key = iterators((rows, width, columns))
    values = Read(leaf(world, (columns, width), "v"), (at(key), at(d)))
    body = product([Read(weights, (at(own), at(key))), values])
    return made_scope((rows, width), (columns,), body)


def guarded_rows(world: World) -> Tensor:
    """``where(max_j s[i, j] = -inf, 0, x[i])``, where s is -inf if a mask hides j from i."""
    rows, columns = world.choices.pick((4, 6, 3)), world.choices.pick((4, 6, 2))
    i, j = iterators((rows, columns))
    peak = made_scope((rows,), (columns,), scores(world, i, j)[0], "max")
    hidden = Call("eq", (Read(peak, (at(i),)), Num(-math.inf)))
    kept = Read(leaf(world, (rows,), "y"), (at(i),))
    return made_scope((rows,), (), Call("where", (hidden, Num(0), kept)))


MASKED: Final = (masked_weights, guarded_rows)
