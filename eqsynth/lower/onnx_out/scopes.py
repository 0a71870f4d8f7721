"""Scopes as operators of ONNX.

    L[i<4, j<8] sum[k<3] . x[i, k] * w[k, j]    ->    MatMul(x, w)

A read becomes a tensor with one axis for each iterator of the scope, of extent 1 if the read
doesn't depend on it. If each axis of the read tensor is indexed by one iterator, slices, padding
and a permutation do this; otherwise elements are gathered at constant positions. The body is
computed elementwise from these tensors. A sum of products of two factors becomes a ``MatMul``, of
more factors an ``Einsum``; any other body is computed first and reduced afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import numpy as np

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.reference import rounded
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Evaluation,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    dtype_of,
    factors_of,
)
from eqsynth.ir.scalar import (
    Value as Position,
)
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.types import broadcast_shapes, is_float, promote
from eqsynth.lower.onnx_out import functions
from eqsynth.lower.onnx_out.graph import Graph, Value, refuse, ring, wide

# The most elements of an intermediate tensor: engines store intermediate tensors completely.
LARGEST: Final = 1 << 25
# The most positions of a gather, which are stored as a constant.
POSITIONS: Final = 1 << 20

Part = Value | float


def emit_scope(graph: Graph, scope: Scope, values: Mapping[Tensor, Value]) -> Value:
    """Return the value of a scope, given the values of the tensors that it reads.

    Raises:
        UnsupportedOperatorError: ONNX can't express the scope, or only with too large tensors.
    """
    if 0 in scope.extents:
        refuse("Scope", "an empty iterator", "extents of 1 or more")
    body, kept = _Body(graph, scope, values), len(scope.traversal)
    if not scope.reduction:
        made = body.array(body.value(scope.body), scope.dtype)
        return graph.expand(made, scope.traversal)
    dtype = ring(scope.dtype) if scope.reducer in ("sum", "prod") else wide(scope.dtype)
    if scope.reducer == "sum":
        parts = [body.value(factor) for factor in factors_of(scope.body)]
        factors = [body.array(part, dtype) for part in parts]
        made = _contracted(graph, factors, scope.extents, kept)
    else:
        whole = body.array(body.value(scope.body), dtype)
        if scope.reducer == "prod":
            extents = (*whole.shape[:kept], *scope.reduction)
            whole = graph.expand(whole, _allowed(extents))
        made = graph.reduce(scope.reducer, whole, range(kept, len(scope.extents)))
    return graph.cast(graph.expand(made, scope.traversal), scope.dtype)


def _allowed(shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > LARGEST:
        _refuse(f"a tensor of {math.prod(shape)} elements", f"at most {LARGEST}")
    return shape


def _refuse(got: str, expected: str) -> NoReturn:
    refuse("Scope", got, expected)


# ---- sums of products ------------------------------------------------------------------------


def _contracted(graph: Graph, factors: list[Value], extents: Sequence[int], kept: int) -> Value:
    """Return the sum, over the iterators from number ``kept`` on, of a product of broadcast
    tensors. The result has an axis for each of the other iterators."""
    axes = range(len(extents))
    used = {axis for factor in factors for axis in axes if factor.shape[axis] > 1}
    repeats = math.prod(extents[axis] for axis in axes if axis >= kept and axis not in used)
    scale = [f for f in factors if f.size == 1]
    large = [f for f in factors if f.size > 1]
    rest = [
        _summed(graph, factor, [*large[:n], *large[n + 1 :]], kept)
        for n, factor in enumerate(large)
    ]
    if len(rest) == 2:
        made = _product_of_two(graph, rest[0], rest[1], kept)
    elif len(rest) > 2:
        made = _einsum(graph, rest, kept)
    else:
        one = rest[0] if rest else scale.pop()
        made = graph.reduce("sum", one, range(kept, len(extents)))
    for factor in scale:
        made = graph.map("Mul", made, graph.reshape(factor, ()))
    if repeats != 1:
        made = graph.map("Mul", made, graph.number(repeats, made.dtype))
    return made


def _summed(graph: Graph, factor: Value, others: Sequence[Value], kept: int) -> Value:
    """Return a factor summed over the iterators that no other factor depends on."""
    alone = [
        axis
        for axis in range(kept, factor.rank)
        if factor.shape[axis] > 1 and all(other.shape[axis] == 1 for other in others)
    ]
    return graph.reduce("sum", factor, alone, True)


def _product_of_two(graph: Graph, a: Value, b: Value, kept: int) -> Value:
    """Return the product as a product of matrices. The batch axes are the kept axes of both
    factors, rows and columns the kept axes of one factor, and the inner axes those that are summed
    over."""
    axes = range(a.rank)
    both = [axis for axis in axes if a.shape[axis] > 1 and b.shape[axis] > 1]
    batch = [axis for axis in both if axis < kept]
    inner = [axis for axis in both if axis >= kept]
    rows, columns = (
        [axis for axis in range(kept) if one.shape[axis] > 1 and axis not in both] for one in (a, b)
    )
    shape = _allowed(broadcast_shapes("Mul", a.shape[:kept], b.shape[:kept]))
    if not inner:
        made = graph.map("Mul", a, b)
        return graph.reshape(made, shape)
    left = _matrix(graph, a, batch, rows, inner)
    right = _matrix(graph, b, batch, inner, columns)
    made = graph.matmul(left, right)
    order = [*batch, *rows, *columns]
    split = graph.reshape(made, tuple(shape[axis] for axis in order))
    placed = graph.transpose(split, [order.index(axis) for axis in sorted(order)])
    return graph.reshape(placed, shape)


def _matrix(graph: Graph, x: Value, batch: list[int], rows: list[int], columns: list[int]) -> Value:
    """Return a tensor with the axes ``(*batch, rows, columns)``."""
    order = [*batch, *rows, *columns]
    rest = [axis for axis in range(x.rank) if axis not in order]
    moved = graph.transpose(x, [*rest, *order])
    extents = [x.shape[axis] for axis in batch]
    sides = (math.prod(x.shape[axis] for axis in part) for part in (rows, columns))
    return graph.reshape(moved, (*extents, *sides))


def _einsum(graph: Graph, factors: Sequence[Value], kept: int) -> Value:
    """Return the sum of a product of three or more factors."""
    letters, operands, terms = "abcdefghijklmnopqrstuvwxyz", [], []
    if factors[0].rank > len(letters):
        _refuse(f"{factors[0].rank} iterators", f"at most {len(letters)}")
    for factor in factors:
        own = [axis for axis, extent in enumerate(factor.shape) if extent > 1]
        operands.append(graph.reshape(factor, tuple(factor.shape[axis] for axis in own)))
        terms.append("".join(letters[axis] for axis in own))
    shape = _allowed(broadcast_shapes("Mul", *(factor.shape[:kept] for factor in factors)))
    result = [axis for axis, extent in enumerate(shape) if extent > 1]
    equation = f"{','.join(terms)}->{''.join(letters[axis] for axis in result)}"
    extents = tuple(shape[axis] for axis in result)
    made = graph.node("Einsum", operands, extents, factors[0].dtype, equation=equation)
    return graph.reshape(made, shape)


# ---- bodies ----------------------------------------------------------------------------------


class _Body(Evaluation[Part]):
    """Computes a body over the iteration space, in the dtype in which its values are computed.
    Numbers stay Python's floats until they meet a tensor, and then take its dtype."""

    def __init__(self, graph: Graph, scope: Scope, values: Mapping[Tensor, Value]) -> None:
        super().__init__(scope.body)
        self._graph, self._values, self._rank = graph, values, len(scope.extents)

    def array(self, part: Part, dtype: str) -> Value:
        """Return a value in a dtype, with an axis for each iterator."""
        if isinstance(part, Value):
            return self._graph.cast(part, dtype)
        return self._graph.reshape(self._graph.number(part, dtype), (1,) * self._rank)

    def computed(self, scalar: Scalar) -> Part:
        match scalar:
            case Num(value=value):
                return value
            case Position(index=index):
                return self._laid(_positions(index))
            case Cast(dtype=dtype, arg=arg):
                return self._cast(self.value(arg), dtype)
            case Call(fn=fn, args=args):
                return self._called(fn, [self.value(arg) for arg in args], dtype_of(scalar))
            case Prod(factors=parts) | Sum(terms=parts):
                name = "Mul" if isinstance(scalar, Prod) else "Add"
                result, *rest = [self.value(part) for part in parts]
                for part in rest:
                    result = self._called(name, [result, part], dtype_of(scalar))
                return result
        assert isinstance(scalar, Read)
        return _read(self._graph, scalar, self._values[scalar.tensor], self._rank)

    def _cast(self, part: Part, dtype: str) -> Part:
        if not isinstance(part, Value):
            return float(rounded(np.asarray(part), dtype))
        narrow = self._graph.cast(part, dtype)
        return (
            narrow
            if dtype in ("int8", "uint8", "int16")
            else self._graph.cast(narrow, wide(dtype) if is_float(dtype) else dtype)
        )

    def _called(self, fn: str, parts: list[Part], dtype: str | None) -> Part:
        """Return a function of ``FUNCTIONS``, or Add or Mul."""
        if not any(isinstance(part, Value) for part in parts):
            return _of_numbers(fn, [part for part in parts if not isinstance(part, Value)])
        result = FUNCTIONS[fn].result if fn in FUNCTIONS else "same"
        if result == "bool":
            joined = _compared_in(parts)
        else:
            # No dtype is known if a bool selects between numbers, as in where(seen, 0, -inf). They
            # are rounded when they meet a tensor.
            dtype = dtype or "float64"
            joined = wide(dtype) if is_float(dtype) else dtype
        first = 1 if fn == "where" else 0
        given = [self.array(part, joined) for part in parts[first:]]
        if first:
            given = [self.array(parts[0], "bool"), *given]
        size = broadcast_shapes(fn, *(part.shape for part in given))
        _allowed(size)
        return functions.apply(self._graph, fn, given, f"Scope ({fn})")

    def _laid(self, positions: tuple[list[It], np.ndarray]) -> Value:
        its, array = positions
        shape = [1] * self._rank
        for it in its:
            shape[it.slot] = it.extent
        return self._graph.array(array.reshape(shape), "int64")


def _of_numbers(fn: str, numbers: Sequence[float]) -> float:
    if fn in ("Add", "Mul"):
        return sum(numbers) if fn == "Add" else math.prod(numbers)
    with np.errstate(all="ignore"):
        return float(FUNCTIONS[fn].value(*numbers))


def _compared_in(parts: Sequence[Part]) -> str:
    """The dtype in which values are compared. ``x < 0.5`` isn't compared in x's integer dtype, nor
    ``x < -1`` in uint8."""
    dtypes = [part.dtype for part in parts if isinstance(part, Value)]
    joined = dtypes[0]
    for dtype in dtypes[1:]:
        joined = promote(joined, dtype)
    numbers = [part for part in parts if not isinstance(part, Value)]
    if is_float(joined) or not numbers:
        return joined
    whole = all(float(number).is_integer() and abs(number) < 1 << 62 for number in numbers)
    return "int64" if whole else "float64"


# ---- reads -----------------------------------------------------------------------------------


def _positions(index: Index) -> tuple[list[It], np.ndarray]:
    """Return the iterators of an index by slot, and the values of the index over them."""
    its = sorted(set(index.iterators()))
    if math.prod(it.extent for it in its) > POSITIONS:
        _refuse(f"an index of {math.prod(it.extent for it in its)} values", f"at most {POSITIONS}")
    grid = {
        it.slot: np.arange(it.extent).reshape([-1 if n == m else 1 for m in range(len(its))])
        for n, it in enumerate(its)
    }
    array = np.broadcast_to(index.evaluate(grid), [it.extent for it in its])
    return its, array


def _read(graph: Graph, read: Read, x: Value, rank: int) -> Value:
    """Return the tensor that a read gives, with an axis for each iterator, of extent 1 if the read
    doesn't depend on it."""
    if x.dtype in ("float16", "bfloat16"):
        x = graph.cast(x, "float32")
    own = [set(index.iterators()) for index in read.index]
    if len(set().union(*own)) < sum(map(len, own)):
        x, its = _by_number(graph, read, x)
    else:
        x, its = _by_axis(graph, read, x)
    order = sorted(range(len(its)), key=lambda n: its[n].slot)
    shape = [1] * rank
    for it in its:
        shape[it.slot] = it.extent
    return graph.reshape(graph.transpose(x, order), _allowed(tuple(shape)))


def _by_axis(graph: Graph, read: Read, x: Value) -> tuple[Value, list[It]]:
    """Read axis by axis, from the last to the first. The axes of the result are those of the
    iterators."""
    found: list[It] = []
    shape = list(x.shape)
    for axis in reversed(range(x.rank)):
        index = read.index[axis]
        low, high = index.range()
        its, single = sorted(set(index.iterators())), index.is_affine and len(index.terms) <= 1
        if single and -shape[axis] <= low and high < 2 * shape[axis]:
            x = _sliced(graph, x, axis, index, read.fill)
            if not its:
                x = graph.reshape(x, (*x.shape[:axis], *x.shape[axis + 1 :]))
        else:
            its, at = _positions(index)
            inside = (at >= 0) & (at < shape[axis])
            if not inside.all():
                after = [int(other == axis) for other in range(x.rank)]
                x = graph.pad(x, [0] * x.rank, after, read.fill)
            at = np.where(inside, at, shape[axis])
            x = graph.gather(x, graph.array(at, "int64"), axis)
        found = [*its, *found]
        _allowed(x.shape)
    return x, found


def _sliced(graph: Graph, x: Value, axis: int, index: Index, fill: float) -> Value:
    """Return an axis at ``start + step * iterator``, padded if this leaves the axis."""
    low, high = index.range()
    extent = x.shape[axis]
    before, after = [0] * x.rank, [0] * x.rank
    before[axis], after[axis] = max(-low, 0), max(high - extent + 1, 0)
    x = graph.pad(x, before, after, fill)
    start = index.const + before[axis]
    if not index.terms:
        return graph.slice(x, axis, start, 1)
    ((it, step),) = index.terms
    assert isinstance(it, It)
    return graph.slice(x, axis, start, it.extent, step)


def _by_number(graph: Graph, read: Read, x: Value) -> tuple[Value, list[It]]:
    """Read from the flattened tensor, by the number of the element at each point. This is needed
    for an iterator that indexes two axes, as in a diagonal, which can't be read axis by axis."""
    its = sorted(set().union(*(index.iterators() for index in read.index)))
    size = math.prod(it.extent for it in its)
    if size > POSITIONS:
        _refuse(f"a read of {size} places", f"at most {POSITIONS}")
    grid = {
        it.slot: np.arange(it.extent).reshape([-1 if n == m else 1 for m in range(len(its))])
        for n, it in enumerate(its)
    }
    number, inside = np.zeros((), np.int64), np.asarray(True)
    for index, extent in zip(read.index, x.shape, strict=True):
        at = index.evaluate(grid)
        inside = inside & (at >= 0) & (at < extent)
        number = number * extent + at
    number = np.broadcast_to(np.where(inside, number, x.size), [it.extent for it in its])
    row = graph.reshape(x, (x.size,))
    if not inside.all():
        row = graph.pad(row, (0,), (1,), read.fill)
    return graph.gather(row, graph.array(number, "int64"), 0), its
