"""Argument types and attributes that fit together, for each operator.

``fit`` takes the known types and attributes of an operator, and draws the others. The result is a
guess that often fits; shape inference decides. An operator without an entry in ``_FITS`` is guessed
by trial, and so gets fewer valid samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from eqsynth.errors import EqsynthError
from eqsynth.ir.operators import POST_FUNCTIONS, Operator, operator
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import Shape, TensorType, is_float
from eqsynth.testing.choices import chance, ordering
from eqsynth.testing.window_fits import WINDOW_FITS, pairs
from eqsynth.testing.world import Attrs, Fit, Types, World, fill, known_type

_OTHER_DTYPES: Final = (
    "float32", "int64", "float16", "bool", "uint8", "float64", "bfloat16", "int32", "int16", "int8",
)  # fmt: skip
_RANKS: Final = (2, 1, 3, 2, 1, 3, 4, 5)

# The most guesses at an operator without an entry, until shape inference accepts one.
_TRIES: Final = 40


def fit(
    row: Operator, world: World, want: TensorType | None, types: Sequence[TensorType | None],
    attrs: Sequence[Any],
) -> tuple[list[TensorType], list[Any]]:  # fmt: skip
    """Fill in the unknown (None) types and attributes of an operator.

    Args:
        row: the operator.
        want: the type that the result should have, if any.
        types, attrs: the types of the arguments and the attributes, None where unknown.
    """
    name, types, attrs = row.name, list(types), list(attrs)
    if name in _FITS:
        _FITS[name](world, want, types, attrs)
    elif row.kind == "elementwise":
        _elementwise(world, want, types, attrs, choosing=name == "Where")
    for _ in range(_TRIES):
        shape = world.shape()
        known = [
            t or TensorType(world.shape() if chance(world.choices, 3) else shape, world.dtype)
            for t in types
        ]
        filled = [
            _any_attr(world, attr, kind, known) if attrs[position] is None else attrs[position]
            for position, (attr, kind) in enumerate(row.attrs)
        ]
        try:
            row.infer(known, filled)
            break
        except EqsynthError:
            continue
    return known, filled


def along_vector(
    world: World, known: Sequence[int | None], parts: Sequence[Any], attribute: str
) -> tuple[int, ...] | None:
    """The integers of an attribute that a rule writes as a vector, such as `(vec-of k 1)`.

    Args:
        known: the integers that are known, None for the others.
        parts: the parts of the vector in the rule; equal parts are equal numbers.
        attribute: the attribute's name; for ``axes`` and ``order`` the numbers differ.

    Returns:
        The integers; or None if none is known, so that ``fit`` may draw the whole attribute.
    """
    if all(number is None for number in known) and chance(world.choices, 2):
        return None
    found = dict(zip(parts, known, strict=True))
    for part in parts:
        if found[part] is None and attribute in ("axes", "order"):
            others = [n for n in range(len(parts) + 2) if n not in found.values()]
            found[part] = world.choices.pick(others)
        elif found[part] is None:
            found[part] = world.number((1, 2, 0, 3), least=0)
    return tuple(found[part] for part in parts)


def _any_attr(world: World, name: str, kind: str, types: Sequence[TensorType]) -> Any:
    """A guess at an attribute of an operator without an entry, by its name and kind."""
    pick = world.choices.pick
    if name == "axis" and types:
        return _axis_of(world, types[0])
    if kind == "ints":
        return tuple(world.number((1, 2, 0, 3)) for _ in range(pick((2, 1, 3))))
    if kind == "float":
        if name == "eps":
            return pick((1e-5, 1e-3, 1e-6, 0.1, 1e-12))
        return world.real((0.0, 1.0, -1.0, 0.5, 2.0))
    if kind == "str":
        dtypes = (world.dtype, *world.literals.dtypes, *_OTHER_DTYPES)
        return pick(dtypes if name == "dtype" else POST_FUNCTIONS)
    return world.number((0, 1, 2, 3))


def _elementwise(
    world: World, want: TensorType | None, types: Types, attrs: Attrs, choosing: bool = False
) -> None:
    base = want or known_type(types) or world.type()
    dtype = world.dtype if want is None or want.dtype == "bool" else want.dtype
    # One argument has the result's shape; the others may broadcast to it.
    whole = world.choices.pick(range(len(types)))
    for position, known in enumerate(types):
        if known is None:
            shape = base.shape if position == whole else _broadcastable(world, base.shape)
            own = world.choices.pick(_OTHER_DTYPES) if chance(world.choices, 16) else dtype
            types[position] = TensorType(shape, "bool" if choosing and not position else own)


def _broadcastable(world: World, shape: Shape) -> Shape:
    """A shape that broadcasts to ``shape``; in half of the cases ``shape`` itself."""
    if chance(world.choices, 2):
        return shape
    start = world.choices.pick((0, *range(len(shape) + 1)))
    return tuple(1 if chance(world.choices, 2) else e for e in shape[start:])


def _matmul(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    a, b = types[:2]
    if a is None:
        batch = world.shape(world.choices.pick((0, 0, 1)))
        rows = world.extent()
        if want is not None and want.rank >= 2:
            batch, rows = want.shape[:-2], want.shape[-2]
        inner = b.shape[-2] if b is not None and b.rank >= 2 else world.extent()
        dtype = b.dtype if b is not None else world.dtype
        # Either operand may be the one that is broadcast.
        own = _broadcastable(world, batch) if b is None and chance(world.choices, 6) else batch
        a = types[0] = TensorType((*own, rows, inner), dtype)
    else:
        own = batch = a.shape[:-2]
    if b is None and a.rank >= 1:
        columns = want.shape[-1] if want is not None and want.rank else world.extent()
        others = batch if own != batch or chance(world.choices, 2) else ()
        types[1] = TensorType((*others, a.shape[-1], columns), a.dtype)


def _axes(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    rank = None if want is None else want.rank
    if attrs[0]:
        # The rank is large enough for all of the axes, and sometimes larger.
        rank = max(max(attrs[0]) + world.choices.pick((1, 1, 2)), rank or 0)
    x = fill(types, 0, lambda: world.type(rank))
    if attrs[0] is None:
        attrs[0] = tuple(a for a in range(x.rank) if chance(world.choices, 2))
    if attrs[1:] == [None]:
        attrs[1] = world.choices.pick((0, 1))


def _axis_of(world: World, x: TensorType) -> int:
    """An axis; the last one is more likely, since many rules are about it."""
    rank = max(x.rank, 1)
    axes: tuple[int, ...] = (*range(rank), rank - 1)
    return world.choices.pick(axes)


def _shaped(world: World, want: TensorType | None, types: Types) -> TensorType:
    rank = world.choices.pick(_RANKS)
    return fill(types, 0, lambda: want if want is not None else world.type(rank))


def _permute(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    rank = want.rank if want is not None else len(attrs[0]) if attrs[0] is not None else None
    x = types[0]
    if attrs[0] is None:
        rank = x.rank if x is not None else world.choices.pick(_RANKS) if rank is None else rank
        attrs[0] = ordering(world.choices, rank)
    if x is None:
        shape = list(want.shape if want is not None else world.shape(len(attrs[0])))
        if want is not None and len(attrs[0]) == want.rank:
            for at, axis in enumerate(attrs[0]):
                if 0 <= axis < want.rank:
                    shape[axis] = want.shape[at]
        types[0] = TensorType(tuple(shape), want.dtype if want is not None else world.dtype)


def factorization(world: World, size: int) -> Shape:
    """A shape with ``size`` elements: 12 -> ``(3, 4)``, ``(12,)``, ``(2, 1, 6)``, …"""
    shape: list[int] = []
    rest = size
    while rest > 1 and len(shape) < 3:
        shape.append(world.choices.pick([d for d in range(1, rest + 1) if rest % d == 0]))
        rest //= shape[-1]
    if rest != 1 or chance(world.choices, 3):
        shape.append(rest)
    return tuple(shape)


def _reshape(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None and want is not None:
        attrs[0] = want.shape
    if types[0] is None:
        dtype = want.dtype if want is not None else world.dtype
        size = math.prod(attrs[0]) if attrs[0] is not None else 0
        shape = factorization(world, size) if attrs[0] is not None else world.shape()
        types[0] = TensorType(shape, dtype)
    x = types[0]
    if attrs[0] is None and x is not None:
        attrs[0] = factorization(world, x.size)


def _expand(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None and want is not None:
        attrs[0] = want.shape
    if types[0] is None:
        shape = _broadcastable(world, attrs[0]) if attrs[0] is not None else world.shape()
        types[0] = TensorType(shape, want.dtype if want is not None else world.dtype)
    x = types[0]
    if attrs[0] is None and x is not None:
        own = tuple(world.extent() if e == 1 else e for e in x.shape)
        attrs[0] = (*world.shape(world.choices.pick((0, 0, 1))), *own)


def _slice(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    x = _shaped(world, want, types)
    if attrs[0] is None:
        attrs[0] = _axis_of(world, x)
    extent = x.shape[attrs[0]] if 0 <= attrs[0] < x.rank else 0
    if attrs[1] is None:
        top = extent if attrs[2] is None else min(attrs[2], extent)
        attrs[1] = 0 if chance(world.choices, 2) else world.choices.pick(range(max(top, 0) + 1))
    if attrs[2] is None:
        least = min(attrs[1], extent)
        whole = chance(world.choices, 2)
        attrs[2] = extent if whole else world.choices.pick(range(least, extent + 1))
    if attrs[3] is None:
        attrs[3] = world.number((1, 1, 2, 3), least=1)


def _pad(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    rank = want.rank if want is not None else None
    x = fill(types, 0, lambda: world.type(world.choices.pick(_RANKS) if rank is None else rank))
    for position in (0, 1):
        if attrs[position] is None:
            attrs[position] = tuple(world.number((0, 1, 2), least=0) for _ in x.shape)
    if attrs[2] is None:
        attrs[2] = world.real((0.0, 0.0, 1.0, -math.inf)) if is_float(x.dtype) else (
            float(world.number((0, 1), least=0)))  # fmt: skip


def _concat(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    base = want or known_type(types) or world.type(world.choices.pick(_RANKS))
    if attrs[0] is None:
        attrs[0] = _axis_of(world, base)
    axis = attrs[0]
    for position, known in enumerate(types):
        if known is None:
            extent = world.extent()
            types[position] = TensorType(
                (*base.shape[:axis], extent, *base.shape[axis + 1 :]), base.dtype
            )


def _on_axis(options: Callable[[int], Sequence[int]]) -> Fit:
    """The entry of operators with an axis and a number that depends on the axis's extent.

    Args:
        options: gives the options for the number, from the extent.
    """

    def fitted(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
        x = _shaped(world, want, types)
        if attrs[0] is None:
            attrs[0] = _axis_of(world, x)
        if len(attrs) > 1 and attrs[1] is None:
            extent = x.shape[attrs[0]] if 0 <= attrs[0] < x.rank else 1
            attrs[1] = world.number(options(extent))

    return fitted


def _merge(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    pick = world.choices.pick
    if types[0] is None and want is not None and want.rank:
        if attrs[0] is None:
            attrs[0] = _axis_of(world, want)
        extent, after = want.shape[attrs[0] : attrs[0] + 1] or (1,), want.shape[attrs[0] + 1 :]
        outer = pick(_divisors(extent[0]))
        both = (outer, extent[0] // outer)
        types[0] = TensorType((*want.shape[: attrs[0]], *both, *after), want.dtype)
    x = fill(types, 0, lambda: world.type(pick((2, 3, 4))))
    if attrs[0] is None:
        attrs[0] = pick(range(max(x.rank - 1, 1)))


def _divided(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    """The entry of operators with an axis and a divisor of its extent (``Split``, ``Stride``)."""
    free = types[0] is None and want is None
    x = _shaped(world, want, types)
    if attrs[0] is None:
        attrs[0] = _axis_of(world, x)
    if free and attrs[0] < x.rank and (attrs[1] is not None or chance(world.choices, 2)):
        shape = list(x.shape)
        shape[attrs[0]] = world.extent() * (shape[attrs[0]] if attrs[1] is None else attrs[1])
        x = types[0] = TensorType(tuple(shape), x.dtype)
    if attrs[1] is None:
        attrs[1] = world.choices.pick(_divisors(x.shape[attrs[0]] if attrs[0] < x.rank else 1))


def _divisors(extent: int) -> list[int]:
    return [d for d in range(1, max(extent, 1) + 1) if extent % d == 0]


def _fused_matmul(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    _matmul(world, want, types, attrs)
    a, b = types[:2]
    if a is None or b is None:
        return
    fill(types, 2, lambda: TensorType(b.shape[-1:], b.dtype))
    if len(types) > 3:
        fill(types, 3, lambda: operator("Matmul").infer([a, b], ()))


def _layer_norm(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    x = _shaped(world, want, types)
    if attrs[0] is None:
        attrs[0] = world.choices.pick(range(1, max(x.rank, 1) + 1))
    for position in (1, 2):
        fill(types, position, lambda: TensorType(x.shape[x.rank - attrs[0] :], x.dtype))


def _upsample(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    fill(types, 0, lambda: world.type(4))
    if attrs[0] is None:
        attrs[0] = want.shape[2:] if want is not None else pairs(world, (1, 2, 3, 4))
    if attrs[1] is None:
        attrs[1] = world.choices.pick((0, 1))


def _full(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None:
        attrs[0] = want.shape if want is not None else world.shape()
    # Mostly the dtype of the other terms of the sample, since operators that join tensors need one
    # dtype.
    if attrs[2] is None and not chance(world.choices, 8):
        attrs[2] = want.dtype if want is not None else world.dtype


def _iota(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None:
        attrs[0] = want.shape if want is not None and want.rank else world.shape(2)
    if attrs[1] is None:
        attrs[1] = world.choices.pick(range(max(len(attrs[0]), 1)))
    if attrs[2] is None and chance(world.choices, 4):
        # Places 0, 1, 2 are 0, 1, 1 in bool. The other dtypes lose places only from 128 (int8) or
        # 257 (bfloat16) on, which samples are too small for.
        attrs[2] = "bool"


def _interpolation(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None:
        attrs[0] = pairs(world, (2, 3, 1, 4))
    if attrs[1] is None:
        attrs[1] = world.choices.pick((0, 1))


def _literal(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None:
        attrs[0] = want.shape if want is not None else world.shape(2)
    size = math.prod(attrs[0])
    for place, numbers in ((1, (0, 1, -1, 3, -5)), (2, (1, 2, 3, 6))):
        if attrs[place] is None:
            attrs[place] = tuple(world.choices.pick(numbers) for _ in range(size))


def _embedding(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    # At least two rows, since data for indices are 0 and 1.
    fill(types, 0, lambda: TensorType((2 + world.extent(), world.extent()), world.dtype))
    fill(types, 1, lambda: TensorType(world.shape(1), "int64"))


def _gather(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    x = fill(types, 0, lambda: TensorType(tuple(1 + e for e in world.shape(2)), world.dtype))
    fill(types, 1, lambda: TensorType(x.shape, "int64"))
    if attrs[0] is None:
        attrs[0] = _axis_of(world, x)


_FITS: Final[dict[str, Fit]] = {
    **WINDOW_FITS,
    "Matmul": _matmul,
    "FusedMatmul": _fused_matmul,
    "FusedMatmulAdd": _fused_matmul,
    "UpsampleBilinear2d": _upsample,
    **{f"Reduce{r}": _axes for r in ("Sum", "Max", "Min", "Prod", "Mean")},
    "Softmax": _on_axis(lambda extent: (0,)),
    "CumSum": _on_axis(lambda extent: (0,)),
    "LayerNorm": _layer_norm,
    "Permute": _permute,
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Pad": _pad,
    "Concat": _concat,
    "Reverse": _axes,
    "Shift": _on_axis(lambda extent: (1, 0, -1, 2, -3)),
    "Unfold": _on_axis(lambda extent: (1, 2, 3, 4)),
    "Stride": _divided,
    "Split": _divided,
    "Merge": _merge,
    "Full": _full,
    "Iota": _iota,
    "Interpolation": _interpolation,
    "Literal": _literal,
    "Embedding": _embedding,
    "Gather": _gather,
}


def as_built(kind: TensorType, types: Sequence[TensorType], built: Sequence[Tensor]) -> TensorType:
    """The type for the next argument of an operator, with the dtype that earlier arguments have.

    An earlier argument may have another dtype than was wanted for it: in ``softmax(q / c) @ v``
    with integers q, the quotient is of floats, so v must be, too.

    Args:
        kind: the type that is wanted for the argument.
        types: the types that were wanted for the arguments before it.
        built: those arguments.
    """
    for want, term in zip(types, built, strict=False):
        if want.dtype == kind.dtype != term.dtype:
            return TensorType(kind.shape, term.dtype)
    return kind
