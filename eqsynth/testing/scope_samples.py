"""Families of random scopes, in the forms that the laws of scopes are about.

A family is a function from a world's decisions to a scope: products of any reads, scopes that read
scopes, sums of products with common factors, windows, matrix products, elementwise maps after an
operator. The shapes of tensors follow from the indices, so that most reads are in range and many
lie partly outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from eqsynth.ir.index import Index, It
from eqsynth.ir.operators import POST_FUNCTIONS, operator
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, product, total
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight
from eqsynth.ir.types import TensorType, is_float
from eqsynth.testing.choices import Choices, Rejected, chance, several
from eqsynth.testing.fitting import fit
from eqsynth.testing.world import World

MAX_POINTS: Final = 600
"""The most points of the iteration space of a sample."""

FILLS: Final = (0.0, 0.0, 0.0, 1.5, -math.inf, math.inf)
SMOOTH: Final = ("relu", "exp", "abs", "tanh", "sigmoid", "sin", "floor", "sign")


def leaf(world: World, shape: Sequence[int], name: str = "", dtype: str = "") -> Input | Weight:
    """An input or a weight; the same name is the same tensor."""
    kind = TensorType(tuple(shape), dtype or world.dtype)
    name = name or world.choices.pick("abcw")
    text = f"{name}_{'x'.join(map(str, kind.shape))}"
    if kind.dtype != "float32":
        text += f"_{kind.dtype}"
    return (Weight if name.startswith("w") else Input)(text, kind)


def iterators(extents: Sequence[int]) -> list[It]:
    return [It(slot, extent) for slot, extent in enumerate(extents)]


def at(it: It) -> Index:
    return Index.iterator(it.slot, it.extent)


def any_index(choices: Choices, its: Sequence[It], plain: bool = False) -> Index:
    """An index over some of the iterators: bare, affine, or under ``//`` and ``%``."""
    if not its:
        return Index(choices.pick((0, 1, 2)))
    a = at(choices.pick(its))
    kind = choices.pick(("bare", "bare", "bare", "sum", "sum", "scaled", "divided", "number"))
    if plain or kind == "bare":
        return a
    if kind == "number":
        return Index(choices.pick((0, 1)))
    offset = choices.pick((0, -1, 1, 2, -2))
    if kind == "scaled":
        return a * choices.pick((1, 2, -1, -2)) + offset
    b = at(choices.pick(its))
    if kind == "sum":
        return a * choices.pick((1, 1, 2)) + b * choices.pick((1, 1, 2, -1)) + offset
    whole = a * choices.pick((1, 2, -1)) + b + offset
    divisor = choices.pick((2, 3, 1))
    return whole // divisor if chance(choices, 2) else whole % divisor


def read(world: World, its: Sequence[It], plain: bool = False, name: str = "") -> Read:
    """A read of a leaf, whose shape is mostly large enough for the indices."""
    pick = world.choices.pick
    indices = tuple(any_index(world.choices, its, plain) for _ in range(pick((2, 1, 3, 0))))
    slack = (0,) if plain else (0, 0, 0, -1, 1, -2)
    shape = [max(1, i.range()[1] + 1 + pick(slack)) for i in indices]
    return Read(leaf(world, shape, name), indices, 0.0 if plain else pick(FILLS[:3]))


def read_of(world: World, tensor: Tensor, its: Sequence[It], fills: Sequence[float]) -> Read:
    """A read of a given tensor, at indices whose ranges are mostly near its extents."""
    found = []
    for extent in tensor.shape:
        fitting = [it for it in its if it.extent <= extent]
        if fitting and not chance(world.choices, 4):
            found.append(at(world.choices.pick(fitting)))
        else:
            found.append(any_index(world.choices, its))
        if chance(world.choices, 6):
            found[-1] = found[-1] + world.choices.pick((1, -1))
    return Read(tensor, tuple(found), world.choices.pick(fills))


def scalar(world: World, its: Sequence[It], depth: int = 2) -> Scalar:
    """Any body: sums, products, functions, values of indices, reads with any fill."""
    pick = world.choices.pick
    if depth == 0 or chance(world.choices, 3):
        kind = pick(("read", "read", "read", "number", "value"))
        if kind == "number":
            return Num(pick((2.0, 0.0, -1.0, 0.5, 1.0)))
        if kind == "value":
            return Value(any_index(world.choices, its))
        found = read(world, its)
        return Read(found.tensor, found.index, pick(FILLS))
    kind = pick(("sum", "prod", "call", "max", "cast"))
    one = scalar(world, its, depth - 1)
    if kind == "call":
        return Call(pick(SMOOTH), (one,))
    if kind == "cast":
        return Cast(pick(("float32", "float64", "float32", "int64")), one)
    two = scalar(world, its, depth - 1)
    if kind == "max":
        return Call(pick(("max", "min", "div")), (one, two))
    return product([one, two]) if kind == "prod" else total([one, two])


def extents(world: World, low: int, high: int) -> tuple[int, ...]:
    """Between ``low`` and ``high`` extents."""
    return tuple(several(world.choices, world.extents, low, high))


def made_scope(
    traversal: Sequence[int], reduction: Sequence[int], body: Scalar, reducer: str = "sum"
) -> Scope:
    """A scope with few enough points to be a sample.

    Raises:
        Rejected: it has more than ``MAX_POINTS``.
    """
    if math.prod((*traversal, *reduction)) > MAX_POINTS:
        raise Rejected("too many points")
    return Scope(tuple(traversal), tuple(reduction), body, reducer)


# ---- families -----------------------------------------------------------------


def any_scope(world: World) -> Tensor:
    """A scope with any body and reducer."""
    outer, inner = extents(world, 1, 3), extents(world, 0, 2)
    reducer = world.choices.pick(("sum", "sum", "max", "min", "prod"))
    return made_scope(outer, inner, scalar(world, iterators((*outer, *inner))), reducer)


def any_product(world: World, plain: bool = False) -> Scope:
    """``L sum . number * read * …``, often with iterators that the body doesn't use."""
    outer, inner = extents(world, 1, 3), extents(world, 0, 3)
    its = iterators((*outer, *inner))
    parts: list[Scalar] = [
        read(world, its, plain or chance(world.choices, 2))
        for _ in range(world.choices.pick((2, 1, 3)))
    ]
    if chance(world.choices, 4):
        parts.insert(0, Num(world.choices.pick((2.0, -1.0, 0.5))))
    return made_scope(outer, inner, product(parts))


def view(world: World) -> Tensor:
    """A scope whose body is one read; sometimes of a whole tensor, unchanged."""
    outer = extents(world, 1, 3)
    its = iterators(outer)
    if chance(world.choices, 2):
        whole = leaf(world, outer)
        return made_scope(outer, (), Read(whole, tuple(map(at, its))))
    return made_scope(outer, (), read(world, its))


def nested(world: World) -> Tensor:
    """A scope that reads another scope, alone or in a product, sum or function."""
    pick = world.choices.pick
    kind = pick(("product", "view", "map", "any"))
    inner: Tensor = {
        "product": any_product, "view": view, "map": elementwise_map, "any": any_scope
    }[kind](world)  # fmt: skip
    outer, reduced = extents(world, 1, 3), extents(world, 0, 2)
    its = iterators((*outer, *reduced))
    first = read_of(world, inner, its, FILLS[:4])
    body: Scalar = first
    around = pick(("alone", "product", "product", "square", "sum", "call"))
    if around == "product":
        body = product([first, read(world, its)])
    elif around == "square":
        body = Prod((first, first))
    elif around == "sum":
        body = Sum((first, read(world, its)))
    elif around == "call":
        body = Call(pick(SMOOTH), (first,))
    return made_scope(outer, reduced, body, pick(("sum", "sum", "sum", "max", "min", "prod")))


def reduced_twice(world: World) -> Tensor:
    """``max_u {max_v x[..]}[..]``: a reduction of a reduction by the same reducer, both over
    windows, some of which lie partly outside."""
    pick = world.choices.pick
    reducer = pick(("max", "min", "prod"))
    places, outer = iterators([pick((3, 2, 4, 1)) for _ in range(2)])
    over = at(places) * pick((1, 1, 2)) + at(outer) * pick((1, 1, 2, 3)) - pick((0, 0, 0, 1))
    extent = max(1, over.range()[1] + 1 + pick((0, 0, 0, -1)))
    rows, inner = iterators((extent, pick((3, 2, 4, 1))))
    index = at(rows) * pick((1, 1, 2)) + at(inner) * pick((1, 2, 1, 3))
    shape = [index.range()[1] + 1]
    whole = made_scope((rows.extent,), (inner.extent,), Read(leaf(world, shape), (index,)), reducer)
    read = Read(whole, (over,), pick(FILLS[2:]))
    return made_scope((places.extent,), (outer.extent,), read, reducer)


def elementwise_map(world: World) -> Scope:
    """A sum or a function of reads, without a reduction."""
    outer = extents(world, 1, 3)
    its = iterators(outer)
    parts: list[Scalar] = [
        read(world, its, plain=not chance(world.choices, 3))
        for _ in range(world.choices.pick((2, 1, 3)))
    ]
    if chance(world.choices, 3):
        parts[0] = product([Num(world.choices.pick((-1.0, 2.0))), parts[0]])
    body = total(parts)
    return made_scope(outer, (), Call(world.choices.pick(SMOOTH), (body,))
                  if chance(world.choices, 3) else body)  # fmt: skip


def product_of_sum(world: World) -> Tensor:
    """``sum_y a * {b + c}[p]``, where the terms of the sum may be broadcast, or be pieces of a
    concatenation."""
    pick = world.choices.pick
    shape = (world.extent(), world.extent())
    its = iterators(shape)
    parts: list[Scalar] = []
    start = 0
    for _ in range(pick((2, 2, 3))):
        if chance(world.choices, 2):
            parts.append(Read(leaf(world, shape[1:]), (at(its[1]),)))
        elif chance(world.choices, 2) and start < shape[0]:
            size = pick(range(1, shape[0] - start + 1))
            piece = leaf(world, (size, shape[1]))
            parts.append(Read(piece, (at(its[0]) - start, at(its[1]))))
            start += size
        else:
            parts.append(Read(leaf(world, shape[:1]), (at(its[0]),)))
    if chance(world.choices, 3):
        parts[0] = product([Num(pick((-1.0, 2.0))), parts[0]])
    inner = made_scope(shape, (), total(parts))
    columns = world.extent()
    i, j, k = (at(it) for it in iterators((shape[0], columns, shape[1])))
    other = leaf(world, (shape[1], columns))
    body = product([Read(inner, (i, k)), Read(other, (k, j))])
    if chance(world.choices, 2):
        # Here the first axis of the inner sum is reduced, not the second.
        i, j, k = (at(it) for it in iterators((shape[1], columns, shape[0])))
        other = leaf(world, (shape[0], columns))
        body = product([Read(inner, (k, i)), Read(other, (k, j))])
        return made_scope((shape[1], columns), (shape[0],), body)
    return made_scope((shape[0], columns), (shape[1],), body)


def matrix_product(world: World, rows: int = 0, inner: int = 0, name: str = "") -> Scope:
    """``sum_k a[.., m, k] * b[.., k, n]`` with the axes in any order."""
    batch = extents(world, 0, 1) if not rows else ()
    rows, inner, columns = rows or world.extent(), inner or world.extent(), world.extent()
    outer = (*batch, rows, columns)
    its = iterators((*outer, inner))
    left = [*its[: len(batch)], its[len(batch)], its[-1]]
    right = [*its[: len(batch)], its[-1], its[len(batch) + 1]]
    reads = []
    for position, group in enumerate((left, right)):
        if chance(world.choices, 3):
            group.reverse()
        called = name if not position else ""
        tensor = leaf(world, [it.extent for it in group], called)
        reads.append(Read(tensor, tuple(map(at, group))))
    return made_scope(outer, (inner,), product(reads))


def sum_of_products(world: World) -> Tensor:
    """``{sum a*b}[x] + {sum a*c}[x]``: a sum of products, which share a factor sometimes."""
    rows, inner = world.extent(), world.extent()
    products = [matrix_product(world, rows, inner, "a") for _ in range(world.choices.pick((2, 3)))]
    outer = products[0].traversal
    its = iterators(outer)
    parts: list[Scalar] = []
    for p in products:
        if p.traversal != outer:
            p = products[0]
        part: Scalar = Read(p, tuple(map(at, its)))
        if chance(world.choices, 4):
            part = product([Num(world.choices.pick((-1.0, 2.0))), part])
        parts.append(part)
    return made_scope(outer, (), Sum(tuple(parts)))


def windows(world: World) -> Tensor:
    """``sum x[n, c, s*i + d*k - p, …] * w[f, c, k, …]``: convolutions in one or two dimensions."""
    pick = world.choices.pick
    places = pick((1, 2, 2))
    batch, filters, channels = (pick((1, 2)) for _ in range(3))
    positions = [pick((2, 1, 3)) for _ in range(places)]
    taps = [pick((2, 1, 3)) for _ in range(places)]
    if chance(world.choices, 3):
        # A window larger than 3, for which libraries have no fast algorithm.
        batch, taps[0] = 1, pick((4, 5))
    # The taps are summed over; or they are axes of the result, as after a law has split the sum.
    split = chance(world.choices, 2)
    front, moved = (batch, filters, *positions), tuple(taps)
    outer, reduced = ((*front, *moved), (channels,)) if split else (front, (channels, *moved))
    its = iterators((*outer, *reduced))
    tapped = its[len(front) : len(outer)] if split else its[len(outer) + 1 :]
    over, image = [], []
    for axis, tap in enumerate(tapped):
        padding = pick((0, 1, 0, 2))
        index = at(its[2 + axis]) * pick((1, 1, 2)) + at(tap) * pick((1, 1, 2)) - padding
        over.append(index)
        # Mostly the image's extent with equal padding at both ends; sometimes one more or less.
        image.append(max(1, index.range()[1] + 1 - padding + pick((0, 0, 0, 1, -1))))
    n, f, c = at(its[0]), at(its[1]), at(its[len(outer)])
    kernel = [at(it) for it in tapped]
    x = Read(leaf(world, (batch, channels, *image), "x"), (n, c, *over))
    w = Read(leaf(world, (filters, channels, *taps), "w"), (f, c, *kernel))
    return made_scope(outer, reduced, product([x, w]))


def wide_windows(world: World) -> Tensor:
    """A 3 by 3 convolution with enough channels for Winograd's algorithm, which saves products at
    the cost of additions, to be worth it."""
    pick = world.choices.pick
    # (channels, options for extents): for tiles of 2 by 2, for tiles of 4 by 4, and with so many
    # channels that the sum's own rounding outweighs the algorithm's.
    wide, sizes = pick(((14, (2, 2, 3)), (10, (4, 4, 3)), (17, (4, 4, 2))))
    filters, channels, positions = wide, wide - pick((0, 1)), [pick(sizes) for _ in range(2)]
    padding, dilation = pick((0, 1)), pick((1, 1, 2))
    outer, reduced = (1, filters, *positions), (channels, 3, 3)
    n, f, i, j, c, k, h = (at(it) for it in iterators((*outer, *reduced)))
    over = [i + k * dilation - padding, j + h * dilation - padding]
    image = [max(1, index.range()[1] + 1 - padding) for index in over]
    x = Read(leaf(world, (1, channels, *image), "x", "float32"), (n, c, *over))
    w = Read(leaf(world, (filters, channels, 3, 3), "w", "float32"), (f, c, k, h))
    return Scope(outer, reduced, product([x, w]))


def epilogue(world: World) -> Tensor:
    """``post(c[x] + b[channel] + r[x])``, where c is a product or a convolution, b a bias, r a
    residual."""
    name = world.choices.pick(("Matmul", "Conv2d"))
    unknown = [None] * (4 if name == "Conv2d" else 0)
    types, attrs = fit(operator(name), world, None, [None, None], unknown)
    if not is_float(world.dtype):
        raise Rejected("products of floats only")
    x, w = (leaf(world, t.shape, n) for t, n in zip(types, "xw", strict=True))
    out = Op(name, (x, w), tuple(attrs))
    its = iterators(out.shape)
    here = tuple(map(at, its))
    channel = here[1 if name == "Conv2d" else -1]
    axis = 1 if name == "Conv2d" else len(out.shape) - 1
    parts: list[Scalar] = [Read(out, here)]
    if chance(world.choices, 2):
        bias = leaf(world, out.shape[axis : axis + 1], "w")
        parts.append(Read(bias, (channel,)))
    if chance(world.choices, 2):
        parts.append(Read(leaf(world, out.shape, "r"), here))
    body = total(parts)
    post = world.choices.pick(POST_FUNCTIONS)
    return made_scope(out.shape, (), body if post == "none" else Call(post, (body,)))


def constants(world: World) -> Tensor:
    """A product in which several factors over the same iterators are constant."""
    outer, inner = extents(world, 1, 2), extents(world, 1, 2)
    its = iterators((*outer, *inner))
    x = read(world, its, plain=True, name="x")
    w = read(world, its, plain=True, name="w")
    parts: list[Scalar] = [x, w]
    for number in range(world.choices.pick((1, 2))):
        if chance(world.choices, 3):
            parts.append(Num(world.choices.pick((2.0, 0.5, -1.0))))
        elif w.index:
            kept = w.index[: world.choices.pick(range(1, len(w.index) + 1))]
            shape = w.tensor.shape[: len(kept)]
            parts.append(Read(leaf(world, shape, f"w{number}"), kept))
    return made_scope(outer, inner, product(parts))


def flattened(world: World) -> Tensor:
    """Reads at ``3*q + r`` with r < 3: two iterators that together go through one axis; sometimes
    shifted by another iterator."""
    pick = world.choices.pick
    outer, (q, r) = extents(world, 0, 2), (world.extent(), world.extent())
    its = iterators((*outer, q, r))
    flat = at(its[-2]) * pick((r, r, r, r + 1)) + at(its[-1])
    if outer and chance(world.choices, 2):
        flat = flat + at(its[0]) * pick((1, 2)) - pick((0, 1))
    tensors = [leaf(world, (max(1, flat.range()[1] + 1 + pick((0, 0, -1))),), n) for n in "xw"]
    body: Scalar = Read(tensors[0], (flat,), pick(FILLS[:3]))
    around = pick(("alone", "product", "broadcast", "sum", "call"))
    if around == "product":
        body = product([body, Read(tensors[1], (flat,))])
    elif around == "broadcast":
        body = product([body, read(world, its[: len(outer)])])
    elif around == "sum":
        body = total([body, Read(tensors[1], (flat,))])
    elif around == "call":
        body = Call(pick(SMOOTH), (body,))
    if chance(world.choices, 3):
        return made_scope((*outer, q, r), (), body)
    return made_scope(outer, (q, r), body, pick(("sum", "sum", "max", "min", "prod")))
