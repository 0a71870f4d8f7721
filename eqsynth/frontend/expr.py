"""The values that users write expressions with: tensors, scalars inside a scope, indices.

:class:`Expr` wraps a tensor term, :class:`ScalarExpr` a scalar that depends on a scope's iterators,
:class:`IndexExpr` an index over them. In

    scope(lambda h, w: X[h + 1, w] * 2, h=8, w=8)

``X`` is an :class:`Expr`, ``h + 1`` an :class:`IndexExpr`, and ``X[h + 1, w]`` a
:class:`ScalarExpr`. All of them share Python's operators, and :func:`pointwise` alone applies an
elementwise operator to its operands: it promotes dtypes, and makes terms of numbers. Not here: the
operators by name (``ops/``), scopes and reductions (``expression.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np

from eqsynth import notebook
from eqsynth.errors import DtypeError, EqsynthError, ShapeError
from eqsynth.frontend.promotion import Number, common_dtype
from eqsynth.ir.index import Index, It
from eqsynth.ir.operators import Attr, operator
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, Value, children, product, total
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.ir.types import Shape, TensorType, is_float, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

Values = Mapping[str, Any]
"""Arrays of weights, by name."""

_NO_VALUES: Final[dict[str, Any]] = {}

# Operands of one sum or product in a scope. Nested sums are flattened, so that x = x + x, repeated
# thirty times, would be one sum of 2^30 operands.
MAX_OPERANDS: Final = 4096

# The place in the user's model that the operators being built come from; capture sets it.
_origin: ContextVar[str] = ContextVar("origin", default="")


@contextmanager
def origin(place: str) -> Iterator[None]:
    """Give the operators that are built inside of the ``with`` block ``place`` as their origin."""
    token = _origin.set(place)
    try:
        yield
    finally:
        _origin.reset(token)


class _Operators:
    """Python's operators for tensors, scalars and indices."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return pointwise("Add", self, other)

    def __radd__(self, other: Any) -> Any:
        return pointwise("Add", other, self)

    def __sub__(self, other: Any) -> Any:
        return pointwise("Sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return pointwise("Sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return pointwise("Mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return pointwise("Mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return pointwise("Div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return pointwise("Div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return pointwise("FloorDivide", self, other)

    def __mod__(self, other: Any) -> Any:
        return pointwise("Remainder", self, other)

    def __pow__(self, other: Any) -> Any:
        return pointwise("Pow", self, other)

    def __neg__(self) -> Any:
        return pointwise("Neg", self)

    def __lt__(self, other: Any) -> Any:
        return pointwise("Less", self, other)

    def __le__(self, other: Any) -> Any:
        return pointwise("LessEqual", self, other)

    def __gt__(self, other: Any) -> Any:
        return pointwise("Greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return pointwise("GreaterEqual", self, other)

    def __eq__(self, other: Any) -> Any:
        return pointwise("Equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return pointwise("NotEqual", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DtypeError(
            what="an expression has no truth value while it is built",
            got=type(self).__name__,
            expected="a condition inside the expression",
            hint="use eqsynth.ops.where(condition, a, b)",
        )


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class IndexExpr(_Operators):
    """An index over a scope's iterators: ``2 * h + r - 1``, ``h // 4``, ``h % 4``.

    Sums, products with integers, ``//`` and ``%`` by positive integers, and minima and maxima give
    an index again. Any other operator gives a scalar, computed from the index as an int64.
    """

    index: Index

    def __str__(self) -> str:
        return str(self.index)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of ``body`` over ``iterators`` that no scope has closed yet."""

    reducer: str
    iterators: tuple[It, ...]
    body: Scalar


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ScalarExpr(_Operators):
    """A scalar that depends on the iterators of the scopes being built.

    Attributes:
        values: the arrays of the weights that occur in ``scalar``, by name.
        reduction: the reduction that ``scalar`` is, if it is one and nothing else. A scope around
            it, or a reduction by the same reducer, then takes over its iterators.
    """

    scalar: Scalar
    values: Values = field(default_factory=dict)
    reduction: Reduction | None = None

    def __str__(self) -> str:
        return str(self.scalar)

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Expr(_Operators):
    """A tensor expression: a term, and the arrays of the weights that occur in it.

    Inside a scope, ``X[h + r - 1, w]`` is the element at these indices, or 0 if they lie outside
    the tensor; see :meth:`read`.
    """

    tensor: Tensor
    values: Values = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        return len(self.tensor.shape)

    def __matmul__(self, other: Expr) -> Expr:
        from eqsynth.frontend.ops import matmul

        return matmul(self, other)

    def __getitem__(self, index: object) -> ScalarExpr:
        return self.read(*(index if isinstance(index, tuple) else (index,)))

    def __iter__(self) -> NoReturn:
        # Without this method Python would iterate by __getitem__(0), (1), …, which never ends.
        _not_an_operand(self, "a whole tensor; eqsynth.ops.unbind takes it apart")

    def read(self, *index: object, fill: float = 0.0) -> ScalarExpr:
        """The element at ``index`` (one index per axis), or ``fill`` outside the tensor."""
        positions = []
        for position in index:
            if isinstance(position, IndexExpr):
                positions.append(position.index)
            elif isinstance(position, int) and not isinstance(position, bool):
                positions.append(Index(position))
            else:
                raise ShapeError(
                    what=f"{self.tensor.label} is indexed by something that is no index",
                    got=type(position).__name__,
                    expected="integers and iterators of a scope, with + - * // %",
                    hint="take parts of whole tensors by eqsynth.ops.narrow, select or gather",
                )
        return ScalarExpr(Read(self.tensor, tuple(positions), fill), self.values)

    def __str__(self) -> str:
        return str(self.tensor)

    def __repr__(self) -> str:
        return f"Expr({self.tensor.label}: {self.tensor.type})"

    def _repr_html_(self) -> str:
        return notebook.code(f"{self.tensor.type}\n{self}")


Operand = Expr | ScalarExpr | IndexExpr | Number
Elementwise = TypeVar("Elementwise", Expr, ScalarExpr)


def _not_an_operand(got: object, expected: str) -> NoReturn:
    raise DtypeError(
        what="this can't be part of an expression",
        got=f"{type(got).__name__} {got!r}"[:80],
        expected=expected,
        hint="wrap arrays by eqsynth.weight(name, shape, dtype, value)",
    )


def merge_values(parts: Iterable[Expr | ScalarExpr]) -> Values:
    """The arrays of the weights of all parts, by name.

    Raises:
        EqsynthError: two weights have one name and different arrays.
    """
    merged: dict[str, Any] = _NO_VALUES
    for part in parts:
        if not part.values or part.values is merged:
            continue
        if not merged:
            merged = part.values  # type: ignore[assignment]
            continue
        for name, value in part.values.items():
            if merged.get(name, value) is not value:
                raise EqsynthError(
                    f"two weights are named {name!r} and have different values",
                    got=name,
                    expected="one name a weight",
                    hint="rename one of them, or build the weight once and use it twice",
                )
        merged = {**merged, **part.values}
    return merged


def make(name: str, args: Sequence[Expr], *attrs: Attr) -> Expr:
    """The operator ``name`` of the IR on these arguments, with the origin that capture has set."""
    op = Op(name, tuple(arg.tensor for arg in args), attrs, _origin.get())
    return Expr(op, merge_values(args))


def number(value: Number, dtype: str) -> Expr:
    """The number as a rank-0 tensor, which broadcasts against any tensor.

    A number that an integer dtype can't hold wraps around, as it does in torch: -1 is 255 in uint8.

    Raises:
        DtypeError: the number is an integer that a float64 doesn't hold exactly.
    """
    if dtype == "bool":
        value = bool(value)
    elif not is_float(dtype) and math.isfinite(value):
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        value = (int(value) - low) % (high - low + 1) + low
    return make("Full", (), (), _held(value), dtype)


def _held(value: Number) -> float:
    """The number as a constant of a term, which is a float64.

    Raises:
        DtypeError: the number is an integer that a float64 doesn't hold exactly.
    """
    if isinstance(value, int) and (abs(value) >> 1023 or int(float(value)) != value):
        raise DtypeError(
            what="an integer is too large for a constant",
            got=str(value),
            expected="an integer that float64 holds exactly",
            hint="use a weight of dtype int64",
        )
    return float(value)


def cast(x: Expr, dtype: str) -> Expr:
    """``x`` converted to ``dtype``; ``x`` itself if that is its dtype."""
    return x if x.dtype == dtype else make("Cast", (x,), dtype)


def as_tensor(operand: Operand, dtype: str) -> Expr:
    """The operand as a tensor of ``dtype``."""
    if isinstance(operand, Expr):
        return cast(operand, dtype)
    if isinstance(operand, bool | int | float):
        return number(operand, dtype)
    _not_an_operand(operand, "a tensor expression or a number")


# Operators that convert their operands to bool.
_ON_BOOLS: Final = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})


# Operators for which torch rounds a number to the tensor's dtype first: a float16 tensor is
# compared with 0.1 rounded to float16.
_EXACT_NUMBERS: Final = frozenset(
    "Equal NotEqual Less LessEqual Greater GreaterEqual FloorDivide Remainder".split()
)


def _rounded(value: Number, dtype: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtype=np.float64).astype(numpy_dtype(dtype)))


def _in_float32(name: str, operands: Sequence[Any], dtype: str) -> bool:
    """Whether torch computes an operator in float32, although the common dtype has 16 bits.

    It does so for an operand without axes: a number that 16 bits would change much
    (``x * 1e-9`` in float16), a rank-0 tensor of a wider dtype as the second operand of a product
    or division, and any number in ``//``.

    Args:
        dtype: the operands' common dtype.
    """
    if dtype not in ("float16", "bfloat16"):
        return False
    numbers = [o for o in operands if isinstance(o, int | float)]
    if name in ("Mul", "Div", "FloorDivide") and isinstance(operands[1], Expr):
        kind = operands[1].tensor.type
        return kind.shape == () and kind.dtype in ("float32", "float64")
    if name == "FloorDivide":
        return bool(numbers)
    lost = (abs(_rounded(n, dtype) - n) > 0.01 * abs(n) for n in numbers if math.isfinite(n))
    return name in ("Add", "Sub", "Mul", "Div") and any(lost)


def pointwise(name: str, *operands: Any) -> Any:
    """Apply the elementwise operator ``name`` of the IR to tensors, scalars, indices and numbers.

    Tensors and numbers give an :class:`Expr` in torch's common dtype. With a scalar or an index
    among the operands the result is an index if the operator allows that, else a scalar.
    """
    if any(isinstance(o, ScalarExpr | IndexExpr) for o in operands):
        index = _index(name, operands)
        return _scalar(name, operands) if index is None else index
    if not any(isinstance(o, Expr) for o in operands):
        _not_an_operand(operands[0], "at least one tensor or scalar expression")
    first = 1 if name == "Where" else 0
    kinds: list[TensorType | Number] = []
    for operand in operands[first:]:
        if not isinstance(operand, Expr | bool | int | float):
            _not_an_operand(operand, "a tensor expression or a number")
        kinds.append(operand.tensor.type if isinstance(operand, Expr) else operand)
    dtype = "bool" if name in _ON_BOOLS else common_dtype(kinds)
    if name == "Div" and not is_float(dtype):
        # Each operand is converted from its own dtype: x / -5 with x in uint8 divides by -5.
        dtype = "float32"
    if _in_float32(name, operands, dtype):
        wide = [as_tensor(operand, "float32") for operand in operands]
        return cast(make(name, wide), dtype)
    if name in _EXACT_NUMBERS and is_float(dtype):
        operands = tuple(o if isinstance(o, Expr) else _rounded(o, dtype) for o in operands)
    args = [as_tensor(operand, dtype) for operand in operands[first:]]
    return make(name, [*(as_tensor(c, "bool") for c in operands[:first]), *args])


def _index(name: str, operands: Sequence[Any]) -> IndexExpr | None:
    """The operator applied to indices, if the result is an index again; else None."""
    plain = [isinstance(o, IndexExpr) or type(o) is int for o in operands]
    if not all(plain):
        return None
    a, *rest = (o.index if isinstance(o, IndexExpr) else Index(o) for o in operands)
    if name == "Neg":
        return IndexExpr(-a)
    b = rest[0]
    if name in ("Add", "Sub"):
        return IndexExpr(a + b if name == "Add" else a - b)
    if name == "Mul" and (not a.terms or not b.terms):
        return IndexExpr(b * a.const if not a.terms else a * b.const)
    if name in ("FloorDivide", "Remainder") and not b.terms:
        if b.const < 1:
            raise ShapeError(
                what="an index is divided by a number below 1",
                got=str(b.const),
                expected="a positive divisor",
                hint="// and % of an index floor, and their divisors are positive",
            )
        return IndexExpr(a // b.const if name == "FloorDivide" else a % b.const)
    if name in ("Minimum", "Maximum"):
        # The IR has the minimum of an index and a number. For two indices:
        # min(a, b) = b + min(a - b, 0).
        base, bound = (b, 0) if b.terms else (Index(0), b.const)
        apart = a - base
        return IndexExpr(
            base + (apart.minimum(bound) if name == "Minimum" else apart.maximum(bound))
        )
    return None


def as_scalar(operand: Any) -> Scalar:
    """The operand as a scalar term, in the scope being built."""
    if isinstance(operand, ScalarExpr):
        return operand.scalar
    if isinstance(operand, IndexExpr):
        return Value(operand.index)
    if isinstance(operand, bool | int | float):
        return Num(_held(operand))
    if isinstance(operand, Expr):
        if operand.shape == ():
            return Read(operand.tensor, ())
        raise ShapeError(
            what=f"{operand.tensor.label} is used as a scalar without an index",
            got=str(operand.tensor.type),
            expected="one index an axis",
            hint="index it by the scope's iterators",
        )
    _not_an_operand(operand, "a scalar, an index or a number")


def _scalar(name: str, operands: Sequence[Any]) -> ScalarExpr:
    parts = [as_scalar(o) for o in operands]
    result: Scalar
    if name == "Add":
        result = total(parts)
    elif name == "Sub":
        result = total([parts[0], product([Num(-1.0), parts[1]])])
    elif name == "Mul":
        result = product(parts)
    elif name == "Neg":
        result = product([Num(-1.0), parts[0]])
    else:
        result = Call(operator(name).function, tuple(parts))
    if len(children(result)) > MAX_OPERANDS:
        raise EqsynthError(
            "a sum or product in a scope has too many operands",
            got=f"{len(children(result)):,}",
            expected=f"at most {MAX_OPERANDS:,}",
            hint="x + x is 2 * x; a sum over many elements is eqsynth.sum(lambda r: ..., r=n)",
        )
    return ScalarExpr(result, merge_values(o for o in operands if isinstance(o, Expr | ScalarExpr)))


def cast_scalar(operand: ScalarExpr | IndexExpr, dtype: str) -> ScalarExpr:
    """The scalar converted to ``dtype``."""
    TensorType((), dtype)  # an unknown dtype is an error here, not later
    values = operand.values if isinstance(operand, ScalarExpr) else {}
    return ScalarExpr(Cast(dtype, as_scalar(operand)), values)
