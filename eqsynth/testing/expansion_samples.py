"""Families of random scopes for expanded forms, by which proofs compare two terms.

They have maps of maps, concatenated pieces, sums in any order, comparisons and choices. Not here:
the general families (``scope_samples.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Value, dtype_of, product, total
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.testing.choices import chance
from eqsynth.testing.scope_samples import at, extents, iterators, leaf, made_scope
from eqsynth.testing.world import World

_TAKEN_APART: Final = (
    "relu", "exp", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "silu", "sigmoid", "tanh",
    "max", "min", "div", "div", "pow", "sin", "cos", "floor",
)  # fmt: skip


def _index(world: World, it: It) -> Index:
    """An index over one iterator: bare, shifted, mirrored, rotated, or a number."""
    pick = world.choices.pick
    kind = pick(("bare", "bare", "bare", "moved", "mirrored", "rotated", "number"))
    if kind == "moved":
        return at(it) + pick((-1, 1, 2, -2))
    if kind == "mirrored":
        return at(it) * -1 + (it.extent - 1)
    if kind == "rotated":
        return (at(it) + pick((1, 2))) % max(1, it.extent)
    return Index(pick((0, 1))) if kind == "number" else at(it)


def _leaf_read(world: World, its: Sequence[It]) -> Read:
    """A read at some of the iterators. The tensor may be larger or smaller than they reach."""
    pick = world.choices.pick
    if chance(world.choices, 6):
        # A diagonal: one element, where two iterators are the same.
        return Read(leaf(world, (1,)), (at(pick(its)) - at(pick(its)) + pick((0, 0, 0, 1)),))
    kept = [it for it in its if not chance(world.choices, 3)] or list(its[:1])
    index = tuple(_index(world, it) for it in kept)
    shape = [max(1, it.extent + pick((0, 0, 0, 0, -1, 1))) for it in kept]
    return Read(leaf(world, shape), index, pick((0.0, 0.0, 0.0, 1.0)))


def _body(world: World, its: Sequence[It], depth: int) -> Scalar:
    pick = world.choices.pick
    if not depth:
        return _leaf_read(world, its)
    kind = pick(("sum", "sum", "product", "product", "call", "number", "same"))
    one = _body(world, its, depth - 1)
    if kind == "number":
        return pick((product, total))([Num(pick((-1.0, 2.0, 0.5, 1 / 3))), one])
    if kind == "call":
        name = pick(_TAKEN_APART)
        if name == "pow":
            return Call(name, (one, Num(pick((2.0, 3.0, 0.5, -1.0, -0.5)))))
        rest = [_body(world, its, depth - 1) for _ in range(FUNCTIONS[name].arity - 1)]
        return Call(name, (one, *rest))
    two = one if kind == "same" else _body(world, its, depth - 1)
    two = product([Num(pick((1.0, 1.0, -1.0))), two])
    if kind == "same":
        return Prod((one, two)) if chance(world.choices, 2) else total([one, two])
    return total([one, two]) if kind == "sum" else product([one, two])


def _map(world: World, its: Sequence[It]) -> Read:
    """A read of a map with a random body, at indices that may lie outside of the map."""
    own = iterators([max(1, it.extent + world.choices.pick((0, 0, 0, -1))) for it in its])
    made = made_scope([it.extent for it in own], (), _body(world, own, 1))
    fill = world.choices.pick((0.0, 0.0, 1.0))
    return Read(made, tuple(_index(world, it) for it in its), fill)


def written_out(world: World) -> Tensor:
    """``L reduce_y f({g}[..], {h}[..], x[..])``: a polynomial or function of reads of maps and
    leaves."""
    pick = world.choices.pick
    outer, inner = extents(world, 1, 2), extents(world, 0, 1)
    its = iterators((*outer, *inner))
    parts: list[Scalar] = [_map(world, its) if chance(world.choices, 2) else _body(world, its, 2)]
    parts.append(_body(world, its, 1))
    body = pick((total, product))(parts)
    if chance(world.choices, 4):
        body = Call("relu", (body,))
    return made_scope(outer, inner, body, pick(("sum", "sum", "sum", "max", "min", "prod")))


def concatenated(world: World) -> Tensor:
    """``L f((x[i] + y[i - n]) * (u[i] + v[i - n]))``: functions and products of concatenations,
    whole, or with some rows read or reduced."""
    pick = world.choices.pick
    first, second, columns = pick((1, 2)), pick((2, 1, 3)), pick((1, 2))
    i, j = map(at, iterators((first + second, columns)))

    def both(names: str) -> Scalar:
        parts = [
            Read(leaf(world, (size, columns), name), (i - start, j))
            for name, size, start in zip(names, (first, second), (0, first), strict=True)
        ]
        return total(list(parts))

    body: Scalar = both("xy")
    if chance(world.choices, 2):
        body = product([body, both("uv")])
    if not chance(world.choices, 3):
        body = Call(pick(("relu", "exp", "abs", "sigmoid")), (body,))
    joined: Scope = made_scope((first + second, columns), (), body)
    if chance(world.choices, 2):
        return joined
    rows = pick((first, first + second, second))
    r, c = map(at, iterators((rows, columns)))
    reduced = chance(world.choices, 3)
    place = r + (first + second - rows if chance(world.choices, 2) else 0)
    whole = Read(joined, (place, c))
    if reduced:
        k, c = Index.iterator(1, rows), Index.iterator(0, columns)
        return made_scope((columns,), (rows,), Read(joined, (k, c)), pick(("sum", "max", "prod")))
    return made_scope((rows, columns), (), whole)


def never_negative(world: World) -> Tensor:
    """``L relu({L reduce_k x[i, k] * x[i, k]}[i] * {exp(y)}[i])``: ReLU or the absolute value of
    sums and products of squares, exponentials and absolute values, which are tensors."""
    pick = world.choices.pick
    outer, inner = extents(world, 1, 2), extents(world, 0, 1)
    its = iterators((*outer, *inner))

    def part() -> Scalar:
        one = _leaf_read(world, its)
        body = pick((Prod((one, one)), Call("exp", (one,)), Call("abs", (one,))))
        scope = made_scope(outer, inner, body, pick(("sum", "sum", "max")))
        return Read(scope, tuple(map(at, its[: len(outer)])), pick((0.0, 0.0, 1.0)))

    parts = [part() for _ in range(pick((1, 1, 2)))]
    body = pick((total, product))([*parts, *pick(((), (Num(0.5),)))])
    return made_scope(outer, (), Call(pick(("relu", "abs")), (body,)))


def padded_extremum(world: World) -> Tensor:
    """``L max_k x[2*i + k - 1 else -inf]``: the extremum of a window that reaches over the border,
    of one axis or two."""
    pick = world.choices.pick
    axes = pick((1, 1, 2))
    taps = [pick((2, 3)) for _ in range(axes)]
    pads, strides = [pick(range(1, count)) for count in taps], [pick((1, 2)) for _ in range(axes)]
    sizes = [pick((3, 4)) for _ in range(axes)]
    windows = zip(sizes, taps, pads, strides, strict=True)
    outer = [(size + 2 * pad - count) // step + 1 for size, count, pad, step in windows]
    its = iterators((*outer, *taps))
    index = [at(its[n]) * strides[n] + at(its[axes + n]) - pads[n] for n in range(axes)]
    reducer, fill = pick((("max", -inf), ("max", -inf), ("min", inf)))
    return made_scope(outer, taps, Read(leaf(world, sizes), tuple(index), fill), reducer)


def places_of_type(world: World, kind: TensorType) -> Scope:
    """Integers of a given type that are computed from their own positions: ``i``, ``n - 1 - i``,
    ``i // 2``, ``i % 2``."""
    pick = world.choices.pick
    its = iterators(kind.shape)
    i = at(pick(its)) if its else Index(0)
    last = i.range()[1]
    place = pick((i, i, last - i, i // 2, i % 2, i + 1, Index(0), i * 2))
    return made_scope(kind.shape, (), Value(place))


def _ordered(world: World, its: Sequence[It], depth: int) -> Scalar:
    """A random scalar of maxima, minima, choices and sums over a few reads, which are shifted by
    numbers or multiplied by them."""
    pick = world.choices.pick
    if not depth:
        read = Read(leaf(world, [it.extent for it in its], pick("xy")), tuple(map(at, its)))
        moved = total([read, Num(pick((0.0, 1.0, -1.0, 2.0)))])
        return pick((read, moved, product([Num(pick((2.0, -1.0, -2.0, 0.5))), read]), Num(1.0)))
    one, two = (_ordered(world, its, depth - 1) for _ in range(2))
    match pick(("max", "min", "relu", "abs", "sum", "where", "root")):
        case "max" | "min" as name:
            return Call(name, (one, two))
        case "relu" | "abs" as name:
            return Call(name, (one,))
        case "where":
            return Call("where", (_truth(world, its, depth - 1), one, two))
        case "root":
            return Call("sqrt", (Prod((one, one)),))
    return total([one, product([Num(pick((1.0, -1.0, 2.0))), two])])


def _truth(world: World, its: Sequence[It], depth: int) -> Scalar:
    pick = world.choices.pick
    if depth and chance(world.choices, 2):
        name = pick(("and", "or", "not", "ne", "eq"))
        args = [_truth(world, its, depth - 1) for _ in range(FUNCTIONS[name].arity)]
        return Call(name, tuple(args))
    if chance(world.choices, 3):
        apart = Value(at(pick(its)) - at(pick(its)))
        return Call(pick(("gt", "ge", "lt", "le", "eq")), (apart, Num(pick((0.0, 1.0)))))
    one, two = (_ordered(world, its, min(depth, 1)) for _ in range(2))
    return Call(pick(("gt", "ge", "lt", "le", "ne")), (one, two))


def compared(world: World) -> Tensor:
    """``L max(min(x, y + 1), where(x > 2*y, x, -y))`` and ``L x > y and not y > x``, or reduced."""
    outer = extents(world, 1, 2)
    its = iterators(outer)
    body = (_truth if chance(world.choices, 3) else _ordered)(world, its, 3)
    reducer = world.choices.pick(("", "max", "min", "prod"))
    if not reducer or (reducer == "prod" and dtype_of(body) == "bool"):
        return made_scope(outer, (), body)
    kept = len(outer) - 1
    return made_scope(outer[:kept], outer[kept:], body, reducer)


EXPANSIONS: Final[tuple[Callable[[World], Tensor], ...]] = (
    written_out, concatenated, never_negative, padded_extremum,
)  # fmt: skip
