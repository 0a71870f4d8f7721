"""Families of random scopes for laws of sums, of quotients of iterators, and of look-ups.

Each function draws one scope from a world's decisions. The docstring shows the general form; the
tensors, extents, numbers and reducers are random. Not here: the general families
(``scope_samples.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from eqsynth.errors import EqsynthError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, Value, product, total
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import TensorType, is_float
from eqsynth.testing.choices import Rejected, chance
from eqsynth.testing.scope_samples import (
    SMOOTH,
    at,
    extents,
    iterators,
    leaf,
    made_scope,
    read,
)
from eqsynth.testing.world import World


def plain_read(world: World, its: Sequence[It], name: str = "") -> Read:
    """A read at bare iterators: all of them, or some."""
    kept = [it for it in its if not chance(world.choices, 3)] or list(its)
    return Read(leaf(world, [it.extent for it in kept], name), tuple(map(at, kept)))


def sum_of_terms(world: World) -> Tensor:
    """``L reduce_y (f + g + ..)``; some terms are products, functions or constants."""
    pick = world.choices.pick
    outer, inner = extents(world, 1, 2), extents(world, 0, 2)
    its = iterators((*outer, *inner))
    terms: list[Scalar] = []
    for _ in range(pick((2, 3))):
        term: Scalar = plain_read(world, its, pick(("a", "b", "w", "w")))
        kind = pick(("alone", "alone", "product", "negative", "call"))
        if kind == "product":
            term = product([term, plain_read(world, its)])
        elif kind == "negative":
            term = product([Num(-1.0), term])
        elif kind == "call":
            term = Call(pick(SMOOTH), (term,))
        terms.append(term)
    if chance(world.choices, 2):
        # Constants over the same iterators, and over fewer.
        kept = its[: pick(range(1, len(its) + 1))]
        for part, name in ((its, "w"), (kept, "w0")):
            at_part = tuple(map(at, part))
            terms.append(Read(leaf(world, [it.extent for it in part], name), at_part))
    body: Scalar = total(terms)
    if chance(world.choices, 3) and isinstance(body, Sum):
        body = Prod((body, body if chance(world.choices, 2) else plain_read(world, its)))
    return made_scope(outer, inner, body, pick(("sum", "sum", "sum", "max", "prod")))


def squared_difference(world: World) -> Tensor:
    """``sum_k (x[i, k] - y[j, k])^2``, and sums of other powers of sums."""
    outer, inner = extents(world, 1, 2), extents(world, 1, 1)
    its = iterators((*outer, *inner))
    parts: list[Scalar] = [
        Read(leaf(world, (it.extent, inner[0]), name), (at(it), at(its[-1])))
        for it, name in zip((*its[:-1], its[0]), "xy", strict=False)
    ]
    parts[-1] = product([Num(world.choices.pick((-1.0, 2.0))), parts[-1]])
    difference = total(parts)
    return made_scope(outer, inner, Prod((difference, difference)))


def scaled_by_function(world: World) -> Tensor:
    """``f(i, j) * g(i)`` or ``f(i, j) / g(i)``, where g may be a function of a read."""
    pick = world.choices.pick
    outer, inner = extents(world, 2, 3), extents(world, 0, 1)
    its = iterators((*outer, *inner))
    whole = Read(leaf(world, [it.extent for it in its]), tuple(map(at, its)))
    some: Scalar = plain_read(world, its[: pick((1, 1, 2))], "s")
    if chance(world.choices, 2):
        some = Call(pick(SMOOTH), (some,))
    if chance(world.choices, 2):
        body: Scalar = Call("div", (whole, Num(pick((2.0, 3.0))) if chance(world.choices, 4)
                                    else some))  # fmt: skip
    else:
        body = product([whole, some])
    return made_scope(outer, inner, body)


def quotients(world: World) -> Tensor:
    """Reads at ``(.. ) // d`` and ``(..) % d`` of the same sum of iterators."""
    pick = world.choices.pick
    outer, inner = extents(world, 1, 2), extents(world, 1, 2)
    its = iterators((*outer, *inner))
    divisor = pick((2, 3))

    def mixed() -> Index:
        first = at(pick(its[: len(outer)]))
        second = at(pick(its[len(outer) :]))
        return pick((first, second, first + second, first - second, second * divisor + first))

    if chance(world.choices, 3):
        # The body reads an iterator only by its quotient, or only by its remainder.
        one = at(its[0])
        parts_of = (one // divisor if chance(world.choices, 2) else one % divisor, at(its[-1]))
        extent = max(1, parts_of[0].range()[1] + 1)
        x = Read(leaf(world, (extent, its[-1].extent), "x"), parts_of)
        others = [it for it in its if it.slot > 0]
        return made_scope(outer, inner, product([x, plain_read(world, others, "w")]))
    whole = mixed() + pick((0, 0, 1, -1))
    low = (whole // divisor).range()[0]
    indices = [whole // divisor - min(low, 0), whole % divisor]
    if chance(world.choices, 3):
        indices = indices[:1] if chance(world.choices, 2) else indices[1:]
    shape = [max(1, i.range()[1] + 1) for i in indices]
    parts: list[Scalar] = [Read(leaf(world, shape, "x"), tuple(indices))]
    # A second factor that reads the reduced iterators themselves, in tensors of their extents.
    kept = [it for it in its if it.slot >= len(outer) or chance(world.choices, 2)]
    parts.append(Read(leaf(world, [it.extent for it in kept], "w"), tuple(map(at, kept))))
    return made_scope(outer, inner, product(parts[: pick((2, 2, 1))]))


def of_constant(world: World) -> Tensor:
    """A product or a sum of a read of a constant tensor (``Full``) and another read."""
    outer, inner = extents(world, 1, 2), extents(world, 0, 1)
    its = iterators((*outer, *inner))
    shape = tuple(it.extent for it in its)
    number = world.choices.pick((2.0, 1.0, 0.5, -1.0))
    full = Op("Full", (), (shape, number, world.dtype))
    parts: list[Scalar] = [Read(full, tuple(map(at, its))), read(world, its)]
    return made_scope(outer, inner, (product if chance(world.choices, 2) else total)(parts))


def diagonal(world: World) -> Tensor:
    """``sum_k f(k) * t[k - e]``, where t has one element, so that only k = e adds to the sum."""
    outer, inner = extents(world, 1, 2), extents(world, 1, 2)
    its = iterators((*outer, *inner))
    k, i = its[-1], world.choices.pick(its[: len(outer)])
    offset = at(i) if chance(world.choices, 2) else Index(world.choices.pick((0, 1, -1)))
    one = Read(leaf(world, (1,), world.choices.pick("tw")), (at(k) - offset,))
    return made_scope(outer, inner, product([one, plain_read(world, its), plain_read(world, [k])]))


def looked_up(world: World) -> Tensor:
    """``sum_k t[ids[i], k] * f[k, j]``: a product with rows of a table that an index tensor
    chooses."""
    pick = world.choices.pick
    if not is_float(world.dtype):
        raise Rejected("products of floats only")
    rows, inner, count, columns = (max(1, world.extent()) for _ in range(4))
    table = leaf(world, (rows + 1, inner), pick("tw"))
    ids = leaf(world, (count,), "ids", "int64")
    found = Op("Embedding", (table, ids))
    i, j, k = (at(it) for it in iterators((count, columns, inner)))
    other = leaf(world, (inner, columns), pick("fw"))
    body = product([Read(found, (i, k)), Read(other, (k, j))])
    return made_scope((count, columns), (inner,), body)


def strided(world: World) -> Tensor:
    """Transposed convolutions, in one of three forms.

    The general form is ``sum_k x[u // s] * w[k]`` with ``u = i + p - d*k``; where s doesn't divide
    u, x is mostly read outside, so that the term is 0. The second form has one convolution per
    sub-pixel: ``sum_k x[i // s + k] * w[i % s - s*k]``. The third has the taps of each phase:
    ``sum_q x[(i + p) // s - q] * w[s*q + (i + p) % s]``.
    """
    pick = world.choices.pick
    positions, channels, taps = pick((5, 6, 4)), pick((2, 1)), pick((3, 4, 2))
    s, d, p = pick((2, 3)), pick((1, 1, 2)), pick((0, 1))
    i, c, k = map(at, iterators((positions, channels, taps)))
    kind = pick(("transposed", "transposed", "sub-pixel", "phase"))
    if kind == "phase":
        over, kernel = (i + p) // s - k, (i + p) % s + s * k
        weights = s * taps - pick((0, 0, 1))
    elif kind == "sub-pixel":
        over, kernel = i // s + k - p, (i + p) % s - s * k + pick((s * taps - s, s * taps - 1))
        weights = pick((s * taps - s, s * taps, s))
    else:
        u = i + p - d * k
        over, kernel = u // s + u % s * pick((50, -50, 50, 1)), k
        weights = taps + pick((0, 0, 0, 1))
    x = Read(leaf(world, (channels, pick((3, 2, 4))), "x"), (c, over), pick((0.0, 0.0, 0.0, 1.0)))
    w = Read(leaf(world, (channels, weights), "w"), (c, kernel))
    return made_scope((positions,), (channels, taps), product([x, w]), pick(("sum", "sum", "max")))


def running(world: World) -> Tensor:
    """``sum_q x[e - q, j]``, a sum over all places up to e, or over those from e on.

    In another form the condition is a factor: ``sum_k x[k, j] * ones[e - k]``. The last places may
    be left out."""
    pick = world.choices.pick
    rows, places, columns = max(2, world.extent()), max(2, world.extent()), world.extent()
    i, j, k = map(at, iterators((rows, columns, places)))
    end = pick((i, i, i - 1, i // 2, rows - 1 - i, i + 1))
    forward = chance(world.choices, 3)
    long = max(1, end.range()[1] + 1)
    if chance(world.choices, 2):
        x = leaf(world, (places, columns), "x")
        condition = k - end if forward else end - k
        ones = Op("Full", (), ((max(1, condition.range()[1] + 1),), 1.0, world.dtype))
        body = product([Read(x, (k, j)), Read(ones, (condition,))])
    else:
        places = pick((long, long, long + 1, max(1, long - 1)))
        k = at(It(2, places))
        x = leaf(world, (long, columns), "x")
        body = Read(x, (end + k if forward else end - k, j), pick((0.0, 0.0, 0.0, 1.0)))
    return made_scope((rows, columns), (places,), body)


def banded(world: World) -> Tensor:
    """A band of a product, ``sum_k a[m, k] * b[m + d*w - p, k]``; or, summed over w instead of k, a
    band times a matrix. The band may lie beside the diagonal, and use every second row only."""
    pick = world.choices.pick
    batch, rows, columns = extents(world, 0, 1), world.extent(), world.extent()
    diagonals, dilation, step = pick((3, 3, 5, 1, 2)), pick((1, 1, 2, 3)), pick((1, 1, 1, 2))
    if rows and not chance(world.choices, 4):
        # With this many rows, every diagonal of the band has an element.
        rows += dilation * (diagonals // 2)
    summed = chance(world.choices, 2)
    outer = (*batch, rows, columns if summed else diagonals)
    its = iterators((*outer, diagonals if summed else columns))
    m, last, inner = its[len(batch) :]
    w, column = (inner, last) if summed else (last, inner)
    middle = dilation * (diagonals // 2) + pick((0, 0, 0, 0, 0, 1))
    slid = (at(m) + at(w) * dilation - middle) * step
    others = [it.extent for it in its[: len(batch)]]
    a = Read(leaf(world, (*others, rows, inner.extent), "a"), tuple(
        map(at, (*its[: len(batch)], m, inner))))  # fmt: skip
    b = Read(leaf(world, (*others, rows * step, columns), "b"),
             (*map(at, its[: len(batch)]), slid, at(column)))  # fmt: skip
    return made_scope(outer, (inner.extent,), product([a, b]))


def unfolded(world: World) -> Tensor:
    """``reduce_k f(k // d, k % d)``: a reduction over flattened axes; the extent of k is mostly a
    multiple of d."""
    pick = world.choices.pick
    outer, d, whole = extents(world, 0, 1), pick((2, 3)), pick((2, 3))
    its = iterators((*outer, d * whole + pick((0, 0, 0, 1))))
    k = at(its[-1])
    parts: list[Scalar] = [
        Read(leaf(world, (whole + 1, d), "x"), (k // d, k % d), pick((0.0, 0.0, 1.0))),
        Read(leaf(world, (d,), "w"), (k % d,)),
        plain_read(world, its),
    ]
    body = product(parts[: pick((1, 2, 3))])
    return made_scope(outer, (its[-1].extent,), body, pick(("sum", "sum", "max", "min", "prod")))


def part_of_sum(world: World) -> Tensor:
    """``f({L_u sum_k g}[m(x)])``, where m(x) reads a slice, a diagonal, or every second element."""
    pick = world.choices.pick
    outer = extents(world, 1, 2)
    its = iterators(outer)
    index, shape = [], []
    for _ in range(pick((1, 2))):
        place = at(pick(its)) * pick((1, 1, 2, 0)) + pick((0, 0, 1, 2))
        index.append(place)
        shape.append(place.range()[1] + 1 + pick((0, 1, 2)))
    computed = product_of_type(world, TensorType(tuple(shape), world.dtype))
    return made_scope(outer, (), Call(pick(SMOOTH), (Read(computed, tuple(index)),)))


def extreme(world: World) -> Tensor:
    """``max_y f(g(x, y))``: nested functions, sums and multiples, most of them monotone."""
    pick = world.choices.pick
    outer, inner = extents(world, 1, 1), extents(world, 1, 2)
    its = iterators((*outer, *inner))

    def made(depth: int) -> Scalar:
        kind = pick(("sum", "scaled", "call", "call")) if depth else "read"
        if kind == "sum":
            return total([made(depth - 1), plain_read(world, its, "b")])
        if kind == "scaled":
            return product([Num(pick((2.0, -1.0, 0.5))), made(depth - 1)])
        if kind == "call":
            name = pick(("relu", "tanh", "floor", "max", "min", "sin"))
            return Call(name, tuple(made(depth - 1) for _ in range(FUNCTIONS[name].arity)))
        return plain_read(world, its)

    return made_scope(outer, inner, made(2), pick(("max", "min", "max", "min", "sum")))


def pieces(world: World) -> Tensor:
    """``sum_k {a[p, q] + b[p - n, q]}[i + c, j + k] * w[k]``: a convolution of a concatenation,
    over rows of one piece or of both."""
    pick = world.choices.pick
    first, second, columns, taps = pick((1, 2, 3)), pick((2, 3)), pick((4, 3)), pick((2, 3))
    p, q = map(at, iterators((first + second, columns)))
    a, b = leaf(world, (first, columns), "a"), leaf(world, (second, columns), "b")
    both = total([Read(a, (p, q)), Read(b, (p - first, q))])
    joined = made_scope((first + second, columns), (), both)
    rows = pick((first, second, second, first + second))
    i, j, k = map(at, iterators((rows, columns, taps)))
    start = pick((0, first, first)) if rows <= second else 0
    x = Read(joined, (i + start, j + k - pick((0, 1))), pick((0.0, 0.0, 0.0, 1.0)))
    w = Read(leaf(world, (taps,), "w"), (k,))
    return made_scope((rows, columns), (taps,), product([x, w]), pick(("sum", "sum", "sum", "max")))


def taps(world: World) -> Tensor:
    """``{sum_c x[i + 0, c] * w[0, c]}[i] + {sum_c x[i + d, c] * w[1, c]}[i] + ..``"""
    pick = world.choices.pick
    count, rows, channels, d = pick((2, 3)), pick((4, 3)), pick((2, 3)), pick((1, 1, 2, 0))
    i, c = map(at, iterators((rows, channels)))
    x, w = leaf(world, (rows, channels), "x"), leaf(world, (count, channels), "w")
    terms = []
    for n in range(count):
        place = i + n * d - pick((1, 1, 1, 1, 0))
        factors = Read(x, (place, c)), Read(w, (Index(n), c))
        terms.append(Read(made_scope((rows,), (channels,), product(factors)), (i,)))
    return made_scope((rows,), (), total(terms))


def rearranged(world: World) -> Tensor:
    """Maps, reductions and products of a view ``{g}[i // d, i % d, j]``. The view is among
    ``world.derived``, as a scope that a derivation has made."""
    pick = world.choices.pick
    d, count, columns = pick((2, 3)), pick((2, 3)), pick((3, 2, 1))
    rows = d * count - pick((0, 0, 0, 1))

    def view(name: str) -> Scope:
        i, j = map(at, iterators((rows, columns)))
        parts, order = (i // d, i % d, j), pick(((0, 1, 2), (1, 0, 2), (0, 2, 1)))
        source = leaf(world, [(count, d, columns)[n] for n in order], name)
        whole = Read(source, tuple(parts[n] for n in order))
        made = canonical(made_scope((rows, columns), (), whole))
        world.derived.append(made)
        return made

    if chance(world.choices, 3):
        q, r, n, k = map(at, iterators((count, d, world.extent(), columns)))
        other = leaf(world, (columns, n.range()[1] + 1), "w")
        factors = Read(view("g"), (d * q + r, k)), Read(other, (k, n))
        return made_scope((count, d, n.range()[1] + 1), (columns,), product(factors))
    here = iterators((rows, columns))
    body: Scalar = Read(view("g"), tuple(map(at, here)))
    beside = pick(("nothing", "view", "leaf", "number"))
    if beside == "number":
        body = total([body, Value(at(here[-1]))])
    elif beside != "nothing":
        second: Tensor = view("h") if beside == "view" else leaf(world, (rows, columns), "x")
        body = total([body, Read(second, tuple(map(at, here)))])
    if pick((True, True, False)):
        body = Call(pick(SMOOTH), (body,))
    reducer = pick(("sum", "max", "min", "prod"))
    reduced = chance(world.choices, 2)
    return made_scope((rows,) if reduced else (rows, columns), (columns,) * reduced, body, reducer)


def product_of_type(world: World, kind: TensorType) -> Scope:
    """A matrix product of a given type, which replaces a leaf among the arguments of a law."""
    inner = max(1, world.extent())
    if not kind.rank:
        raise Rejected("no axes")
    its = iterators((*kind.shape, inner))
    left, right = its[:-2] + its[-1:], [its[-1], *its[-2:-1]]
    try:
        reads = [
            Read(leaf(world, [it.extent for it in part], name, kind.dtype), tuple(map(at, part)))
            for part, name in ((left, "p"), (right, "w"))
        ]
        made = made_scope(kind.shape, (inner,), product(reads))
    except EqsynthError as error:
        raise Rejected(str(error)) from None
    if made.type != kind:
        raise Rejected("a scope of another type")
    return made


def padded_broadcast(world: World) -> Tensor:
    """``L_h sum_{c,k} {L_{c,h} z[c] * u[c]}[c, h + k - p] * w[c, k]``: a padded window on what
    is the same at all places."""
    channels, size, taps = world.extent(), world.extent(), world.choices.pick((2, 3))
    inner_its = iterators((channels, size))
    value: Scalar = Read(leaf(world, (channels,), "z"), (at(inner_its[0]),))
    if chance(world.choices, 3):
        value = product([value, Read(leaf(world, (channels,), "u"), (at(inner_its[0]),))])
    inner = made_scope((channels, size), (), value)
    padding = world.choices.pick((1, 1, 2))
    h, c, k = (at(it) for it in iterators((size, channels, taps)))
    image = Read(inner, (c, h + k - padding))
    weights = Read(leaf(world, (channels, taps), "w"), (c, k))
    return made_scope((size,), (channels, taps), product([image, weights]))


ALGEBRA: Final[tuple[Callable[[World], Tensor], ...]] = (
    sum_of_terms, squared_difference, scaled_by_function, quotients, of_constant, diagonal,
    looked_up, strided, running, banded, unfolded, part_of_sum, extreme, pieces, taps,
    rearranged, padded_broadcast,
)  # fmt: skip
