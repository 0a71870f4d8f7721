"""The NumPy interpreter, which defines the value of every term.

Floats are computed in float64, whatever their dtype, so that rounding hardly matters when two terms
are compared (a check may ask for another arithmetic, ``arithmetic.py``); integers and bools in
their own dtype. A scope's body is evaluated at all points of the iteration space, vectorized, or
only for sampled elements of the result. Not here: operators (``reference.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eqsynth.errors import ShapeError
from eqsynth.ir.arithmetic import FLOAT64, Array, arithmetic
from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.ir.reference import evaluate_operator, rounded, storage, stored
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Evaluation,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    dtype_of,
    factors_of,
    iterators,
)
from eqsynth.ir.tensor import ClassRef, Input, Op, Region, Scope, Tensor, Weight, topological
from eqsynth.ir.types import is_float

# The most points of an iteration space to evaluate at once; it bounds memory, not results.
_CHUNK = 1 << 21

_COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

Points = Sequence[npt.NDArray[np.int64]]


def evaluate(term: Tensor, env: Mapping[str, Array]) -> Array:
    """Evaluate ``term``; ``env`` holds the arrays of inputs and weights by name, of e-classes by
    ``%n``.

    >>> from eqsynth.ir.types import TensorType
    >>> x = Input("x", TensorType((2,), "float32"))
    >>> evaluate(Op("Relu", (x,)), {"x": np.array([-1.0, 2.0])})
    array([0., 2.])
    """
    return evaluate_all([term], env)[term]


def evaluate_all(terms: Sequence[Tensor], env: Mapping[str, Array]) -> dict[Tensor, Array]:
    """Evaluate all terms and their subterms; a shared subterm is computed once."""
    values: dict[Tensor, Array] = {}
    for term in topological(terms):
        values[term] = evaluate_one(term, values, env)
    return values


def evaluate_one(term: Tensor, values: Mapping[Tensor, Array], env: Mapping[str, Array]) -> Array:
    """Evaluate one term from the values of its arguments."""
    if isinstance(term, Op):
        args = [values[arg] for arg in term.args]
        if term.row.expand is not None:
            own = [Input(str(n), arg.type) for n, arg in enumerate(term.args)]
            inner = {leaf.name: array for leaf, array in zip(own, args, strict=True)}
            return evaluate(term.row.expand(own, term.attrs), inner)
        return evaluate_operator(term.name, args, term.attrs, term.type)
    if isinstance(term, Scope):
        return evaluate_scope(term, values)
    if isinstance(term, Region):
        inner = {str(n): values[arg] for n, arg in enumerate(term.args)}
        return evaluate(term.outputs[0], inner)
    assert isinstance(term, Input | Weight | ClassRef)
    value = np.asarray(env[term.label])
    if value.shape != term.shape:
        raise ShapeError(
            what=f"the array given for {term.label} has another shape",
            got=str(value.shape),
            expected=str(term.type),
            hint="give an array of the declared shape",
        )
    return stored(value, term.dtype)


def evaluate_scope(
    scope: Scope, values: Mapping[Tensor, Array], points: Points | None = None
) -> Array:
    """Evaluate a scope: the whole result, or the vector of its elements at ``points``.

    Args:
        points: for each traversal iterator a vector of coordinates, all of one length.
    """
    if points is not None:
        return _block(scope, values, list(points), len(scope.traversal) > 0)
    size = math.prod(scope.extents)
    if size > _CHUNK and arithmetic() is FLOAT64 and is_contraction(scope):
        return _contracted(scope, values)
    axes: list[Any] = [np.arange(extent) for extent in scope.traversal]
    if size <= _CHUNK or not scope.traversal or scope.traversal[0] <= 1:
        return _block(scope, values, axes, False)
    step = max(1, _CHUNK * scope.traversal[0] // size)
    starts = range(0, scope.traversal[0], step)
    return np.concatenate(
        [_block(scope, values, [axes[0][s : s + step], *axes[1:]], False) for s in starts]
    )


def is_contraction(scope: Scope) -> bool:
    """Whether the scope is a sum of products of three or more float reads. Such a scope is
    evaluated two factors at a time: its iteration space may have too many points."""
    factors = factors_of(scope.body)
    return (
        scope.reducer == "sum"
        and is_float(scope.dtype)
        and all(isinstance(f, Read | Num) for f in factors)
        and sum(isinstance(f, Read) for f in factors) > 2
        and all(f.tensor.dtype == scope.dtype for f in factors if isinstance(f, Read))
    )


def _contracted(scope: Scope, values: Mapping[Tensor, Array]) -> Array:
    """Evaluate a contraction: each factor over its own iterators, then their product by einsum."""
    number, operands = 1.0, list[Any]()
    for factor in factors_of(scope.body):
        if isinstance(factor, Num):
            number *= factor.value
            continue
        own = sorted(iterators(factor), key=lambda it: it.slot)
        grid = {
            it.slot: np.arange(it.extent).reshape([-1 if n == m else 1 for m in range(len(own))])
            for n, it in enumerate(own)
        }
        array = _Body(factor, grid, values).value(factor)
        operands += [np.broadcast_to(array, [it.extent for it in own]), [it.slot for it in own]]
    used = {slot for slots in operands[1::2] for slot in slots}
    width = len(scope.traversal)
    for slot in range(width, len(scope.extents)):
        if slot not in used:
            number *= scope.extents[slot]
    result = np.einsum(*operands, [s for s in range(width) if s in used], optimize=True)
    shape = [extent if slot in used else 1 for slot, extent in enumerate(scope.traversal)]
    whole = np.broadcast_to(number * result.reshape(shape), scope.traversal)
    return np.array(whole, dtype=storage(scope.dtype))


def _block(scope: Scope, values: Mapping[Tensor, Array], axes: list[Any], flat: bool) -> Array:
    """Evaluate the scope on a box of its traversal, or at a list of points if ``flat``."""
    front = 1 if flat else len(axes)
    rank = front + len(scope.reduction)

    def lay(line: Array, axis: int) -> Array:
        return line.reshape([-1 if a == axis else 1 for a in range(rank)])

    grid = {slot: lay(line, 0 if flat else slot) for slot, line in enumerate(axes)}
    for j, extent in enumerate(scope.reduction):
        grid[len(scope.traversal) + j] = lay(np.arange(extent), front + j)
    lengths = (len(axes[0]),) if flat else tuple(len(line) for line in axes)
    with np.errstate(all="ignore"):
        body = _Body(scope.body, grid, values).value(scope.body)
        full = np.broadcast_to(body, (*lengths, *scope.reduction))
        if scope.reduction:
            over = tuple(range(front, rank))
            combine = _COMBINE[scope.reducer]
            elements = stored(full, scope.dtype)
            full = combine.reduce(elements, axis=over, initial=_identity(scope))
            if elements.dtype == object and scope.reducer in ("max", "min"):
                # A maximum with a NaN must be NaN, as for floats. NumPy's maximum of objects is 2
                # for (nan, 2) and nan for (2, nan).
                full = np.where((elements != elements).any(axis=over), np.nan, full)
    return np.array(stored(full, scope.dtype))


def _identity(scope: Scope) -> Any:
    value = REDUCERS[scope.reducer]
    if is_float(scope.dtype) or np.isfinite(value):
        return storage(scope.dtype).type(value)
    if scope.dtype == "bool":
        return value > 0
    limits = np.iinfo(scope.dtype)
    return limits.max if value > 0 else limits.min


class _Body(Evaluation[Array]):
    """Evaluates a body's subterms on a grid (slot -> broadcastable values of the iterator)."""

    def __init__(
        self, body: Scalar, grid: Mapping[int, Array], values: Mapping[Tensor, Array]
    ) -> None:
        super().__init__(body)
        self._grid, self._values = grid, values

    def computed(self, scalar: Scalar) -> Array:
        match scalar:
            case Num(value=value):
                return np.asarray(int(value) if float(value).is_integer() else value)
            case Value(index=index):
                return index.evaluate(self._grid)
            case Cast(dtype=dtype, arg=arg):
                return rounded(self.value(arg), dtype)
            case Call(fn=fn, args=args):
                parts = [self.value(arg) for arg in args]
                if FUNCTIONS[fn].result == "same":
                    # A number takes the dtype of its neighbours: in max(uint8, -1), -1 is 255.
                    first = 1 if fn == "where" else 0
                    parts[first:] = [_stored(part, scalar) for part in parts[first:]]
                return _stored(FUNCTIONS[fn].value(*parts), scalar)
            case Prod(factors=parts) | Sum(terms=parts):
                combine = np.multiply if isinstance(scalar, Prod) else np.add
                # All operands get the result's dtype first: two bools beside a float are numbers.
                result = _stored(self.value(parts[0]), scalar)
                for part in parts[1:]:
                    result = combine(result, _stored(self.value(part), scalar))
                return result
        assert isinstance(scalar, Read)
        return _read(scalar, self._grid, self._values[scalar.tensor])


def _stored(value: Any, scalar: Scalar) -> Array:
    """Convert a value to the dtype of ``scalar``, so that integers wrap around in every step.

    Numbers by themselves, as in ``pow(2, -1)``, are floats: a power of integers would be 0."""
    dtype, array = dtype_of(scalar), np.asarray(value)
    if dtype is not None:
        return stored(array, dtype)
    return array.astype(np.float64) if array.dtype.kind in "iu" else array


def _read(read: Read, grid: Mapping[int, Array], array: Array) -> Array:
    at = [index.evaluate(grid) for index in read.index]
    if read.in_range():
        return np.asarray(array[tuple(at)])
    inside = np.asarray(True)
    for position, extent in zip(at, array.shape, strict=True):
        inside = inside & (position >= 0) & (position < extent)
    floats = array.dtype.kind in "fO"
    fill = np.asarray(read.fill if np.isfinite(read.fill) or floats else 0)
    if array.dtype.kind == "b":
        fill = np.asarray(bool(read.fill) if np.isfinite(read.fill) else read.fill > 0)
    elif not floats and not np.isfinite(read.fill):
        limits = np.iinfo(array.dtype)
        fill = np.asarray(limits.max if read.fill > 0 else limits.min)
    if array.size == 0:
        return np.broadcast_to(fill.astype(array.dtype), inside.shape)
    safe = [np.where(inside, position, 0) for position in np.broadcast_arrays(*at, inside)[:-1]]
    return np.where(inside, array[tuple(safe)], fill.astype(array.dtype))
