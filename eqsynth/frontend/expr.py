"""What users write expressions with: tensors, scalars inside a scope, indices.

:class:`Expr` wraps a tensor term, :class:`ScalarExpr` the scalar at a scope's iterators,
:class:`IndexExpr` an affine index; all share Python's operators, and :func:`pointwise` is the one
place where an elementwise operator meets its operands (promotion, numbers, scalars). Not here: the
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

# Sums and products are flat: x = x + x, thirty times over, would have 2^30 terms.
MAX_OPERANDS: Final = 4096

# Where in the user's model the operators being built come from; capture sets it.
_origin: ContextVar[str] = ContextVar("origin", default="")


@contextmanager
def origin(place: str) -> Iterator[None]:
    """Operators built inside carry ``place`` as their origin."""
    token = _origin.set(place)
    try:
        yield
    finally:
        _origin.reset(token)


class _Operators:
    """Python's operators, for tensors, scalars and indices alike."""

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
    """An index over a scope's iterators: sums, multiples by integers, ``//`` and ``%``.

    Anything else turns it into a scalar, the index as a number (int64).
    """

    index: Index

    def __str__(self) -> str:
        return str(self.index)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction whose iterators aren't closed yet: ``reducer`` over ``iterators`` of ``body``."""

    reducer: str
    iterators: tuple[It, ...]
    body: Scalar


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ScalarExpr(_Operators):
    """A scalar at the iterators of the scopes being built.

    Attributes:
        reduction: what ``scalar`` reads is this reduction and nothing else, so that a scope
            around it, or a reduction of the same kind, can take its iterators over.
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

    ``X[h + r - 1, w]`` inside a scope reads an element, 0 outside the tensor; see :meth:`read`.
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
        # Without this, Python iterates through __getitem__ and never ends.
        _not_an_operand(self, "a whole tensor; eqsynth.ops.unbind takes it apart")

    def read(self, *index: object, fill: float = 0.0) -> ScalarExpr:
        """The element at ``index`` (one index an axis), or ``fill`` outside the tensor."""
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
    """The weights' arrays of all parts together.

    Raises:
        EqsynthError: two weights of one name with different arrays.
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
    """The operator of the table, with the origin that capture has set."""
    op = Op(name, tuple(arg.tensor for arg in args), attrs, _origin.get())
    return Expr(op, merge_values(args))


def number(value: Number, dtype: str) -> Expr:
    """A rank-0 tensor, which broadcasts against anything. What an integer dtype can't hold wraps
    around, as it does in torch: -1 is 255 in uint8.

    Raises:
        DtypeError: an integer that a float64 can't hold.
    """
    if dtype == "bool":
        value = bool(value)
    elif not is_float(dtype) and math.isfinite(value):
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        value = (int(value) - low) % (high - low + 1) + low
    if int(float(value)) != value if isinstance(value, int) else False:
        raise DtypeError(
            what="an integer is too large for a constant",
            got=str(value),
            expected="an integer that float64 holds exactly",
            hint="use a weight of dtype int64",
        )
    return make("Full", (), (), float(value), dtype)


def cast(x: Expr, dtype: str) -> Expr:
    """``x`` in ``dtype``; itself if it already is."""
    return x if x.dtype == dtype else make("Cast", (x,), dtype)


def as_tensor(operand: Operand, dtype: str) -> Expr:
    """The operand as a tensor of ``dtype``."""
    if isinstance(operand, Expr):
        return cast(operand, dtype)
    if isinstance(operand, bool | int | float):
        return number(operand, dtype)
    _not_an_operand(operand, "a tensor expression or a number")


_ON_BOOLS: Final = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})


# Torch rounds a number to the tensor's dtype before it compares with it, or divides it away.
_EXACT_NUMBERS: Final = frozenset(
    "Equal NotEqual Less LessEqual Greater GreaterEqual FloorDivide Remainder".split()
)


def _rounded(value: Number, dtype: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtype=np.float64).astype(numpy_dtype(dtype)))


def _in_float32(name: str, operands: Sequence[Any], dtype: str) -> bool:
    """Whether torch computes an operator on floats of 16 bits in float32, for the sake of an
    operand without axes: it keeps one that 16 bits can't hold, and rounds none before it divides
    with rounding."""
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
    """An elementwise operator of the table on tensors, scalars, indices and numbers.

    Tensors and numbers give an :class:`Expr` in torch's common dtype; with a scalar or an index
    among the operands the result is one too.
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
        # Each by itself: -5 is no divisor in uint8.
        dtype = "float32"
    if _in_float32(name, operands, dtype):
        wide = [as_tensor(operand, "float32") for operand in operands]
        return cast(make(name, wide), dtype)
    if name in _EXACT_NUMBERS and is_float(dtype):
        operands = tuple(o if isinstance(o, Expr) else _rounded(o, dtype) for o in operands)
    args = [as_tensor(operand, dtype) for operand in operands[first:]]
    return make(name, [*(as_tensor(c, "bool") for c in operands[:first]), *args])


def _index(name: str, operands: Sequence[Any]) -> IndexExpr | None:
    """The operator on indices, where the result is an index again."""
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
        # Of two indices by their difference: min(a, b) = b + min(a - b, 0).
        base, bound = (b, 0) if b.terms else (Index(0), b.const)
        apart = a - base
        return IndexExpr(
            base + (apart.minimum(bound) if name == "Minimum" else apart.maximum(bound))
        )
    return None


def as_scalar(operand: Any) -> Scalar:
    """The operand as a scalar of the scope being built."""
    if isinstance(operand, ScalarExpr):
        return operand.scalar
    if isinstance(operand, IndexExpr):
        return Value(operand.index)
    if isinstance(operand, bool | int | float):
        return Num(float(operand))
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
