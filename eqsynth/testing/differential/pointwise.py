"""Rows of elementwise operators: unary, binary and ternary ones, comparisons, activations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.types import FLOATS, INTEGERS
from eqsynth.testing.differential.row import ALL, LARGE, NUMBERS, Operand, Row

X: Final = Operand()
DIVISOR: Final = Operand(nonzero=True)
RANK_0: Final = Operand((), kind="normal")
_ROW: Final = Operand(LARGE[1:])
_COLUMN: Final = Operand((LARGE[0], 1))


def above_least(x: torch.Tensor) -> torch.Tensor:
    """Replace the least integer: dividing it by -1 would kill torch's process."""
    if x.is_floating_point() or x.dtype in (torch.bool, torch.uint8):
        return x
    return x.clamp(min=torch.iinfo(x.dtype).min + 1)


_DIVIDEND: Final = Operand(change=above_least)


# ---- one tensor -----------------------------------------------------------------------------

# Operators without attributes -> the dtypes of their tests. Also here is each scalar function that
# torch has; functions of ``nn.functional`` are tested on floats only.
_UNARY: Final = {
    ALL: "neg sgn fix square bitwise_not isnan isinf absolute negative "
    + " ".join(f.torch for f in FUNCTIONS.values() if f.arity == 1 and f.torch == f.aten != ""),
    FLOATS: "mish log_sigmoid hardswish hardsigmoid relu6 "
    + " ".join(f.aten for f in FUNCTIONS.values() if f.arity == 1 and f.torch != f.aten != "gelu"),
    INTEGERS: "relu6",
}

# Operators without an entry, which torch decomposes or runs: only the column ``compiled``.
_WITHOUT_ENTRY: Final = (
    "sinh cosh tan asin acos atan asinh acosh atanh erfc erfinv lgamma digamma "
    "round frac logit positive signbit isfinite isposinf isneginf deg2rad rad2deg nan_to_num "
    "special_expit special_log1p special_ndtr selu"
).split()


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU without the cancellation of 1 + erf(x) that torch's has for negative arguments."""
    if approximate == "tanh":
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def _lost_by_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """The size of 1 + tanh(y), times x / 2, in units of 2**-13: floats of 16 bits are computed in
    float32, whose rounding is at most 2**-13 of theirs. At -5.3 an engine that computes 1 + tanh(y)
    has 2**-24 or 0."""
    return x.abs().nan_to_num(0.0, 0.0, 0.0) * 2.0**-14


def _activations() -> Iterator[Row]:
    for approximate in ("none", "tanh"):
        yield Row("aten::gelu", (X,), {"approximate": approximate}, truth=_gelu, roundings=16.0,
                  scale=_lost_by_gelu)  # fmt: skip
    for slope in (0.01, 0.2, -0.5, 0, 3):
        yield Row("aten::leaky_relu", (X, slope))
    yield Row("aten::rrelu", (X, 0.1, 0.4))
    for alpha in (1.0, 0.7, 2, -1.5):
        yield Row("aten::elu", (X, alpha))
        yield Row("aten::celu", (X, alpha))
    yield Row("aten::elu", (X, 1.6732632423543772, 1.0507009873554805, 1))
    yield Row("aten::elu", (X, 0.7, 2.0, 0.5))
    yield Row("aten::elu", (X, 0.7, 2.0, -0.5))
    for beta, threshold in itertools.product((1, 1.0, 2.5, -1.0, 0.1), (20, 1.0, -3.0)):
        yield Row("aten::softplus", (X, beta, threshold))
    for low, high in ((-1, 1), (-0.3, 0.6), (0, 6), (-2, math.inf)):
        yield Row("aten::hardtanh", (X, low, high))
    yield Row("aten::hardtanh", (X, -1, 1), dtypes=INTEGERS)
    for threshold, value in ((0.3, -2.0), (0, 7), (-math.inf, 1), (20, math.nan)):
        yield Row("aten::threshold", (X, threshold, value))
    yield Row("aten::threshold", (X, 3, -2), dtypes=INTEGERS)
    for dim in (-1, 0, 1):
        yield Row("aten::glu", (Operand((66, 66)), dim))
    channels = Operand((4, 9, 13))
    for weight in (Operand((9,)), Operand((1,))):
        yield Row("aten::prelu", (channels, weight))
    yield Row("aten::prelu", (X, RANK_0))
    yield Row("aten::prelu", (Operand((70,)), Operand((1,))))
    for name in ("dropout", "feature_dropout", "alpha_dropout"):
        yield Row(f"aten::{name}", (Operand((3, 4, 5, 6)), 0.5, False), kinds=("normal",))
    yield Row("aten::hardshrink", (X, 0.5))
    yield Row("aten::softshrink", (X, 0.5))
    yield Row("ops.relu6", (X,), reference=F.relu6)


# ---- two tensors ----------------------------------------------------------------------------

_COMPARISONS: Final = "eq ne lt le gt ge".split()
_SCALARS: Final = (0, 1, -1, 2.5, 300, math.inf, math.nan, True, 2**24 + 1, 2**53 + 1, 1e-3)


# Functions for ``Row.scale``: the sizes of intermediate values, such as the terms of a sum or the
# exponent of a power.


def _sizes(*values: Any) -> torch.Tensor:
    return torch.as_tensor(sum(torch.as_tensor(value).abs() for value in values))


def _terms(x: Any, y: Any, alpha: float = 1) -> torch.Tensor:
    return _sizes(x, y * alpha)


def _terms_reversed(x: Any, y: Any, alpha: float = 1) -> torch.Tensor:
    return _sizes(y, x * alpha)


def _logarithms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 1 + _sizes(x, y)


def _product_terms(x: torch.Tensor, a: Any, b: Any, value: float = 1) -> torch.Tensor:
    return _sizes(x, a * value * b)


def _quotient_terms(x: torch.Tensor, a: Any, b: Any, value: float = 1) -> torch.Tensor:
    return _sizes(x, a * value / b)


def _lerp_terms(x: torch.Tensor, y: torch.Tensor, weight: Any) -> torch.Tensor:
    return _sizes(x, y) * (1 + _sizes(weight))


def _power_terms(x: Any, y: Any) -> torch.Tensor:
    return _sizes(torch.pow(x, y)) * (1 + _sizes(torch.as_tensor(x).log() * y))


def _dividend(x: torch.Tensor, y: Any) -> torch.Tensor:
    """The size of the dividend: a divisor that is rounded to the dtype changes the subtracted
    multiple in proportion to it."""
    return _sizes(x)


def _remainder(x: Any, y: Any) -> torch.Tensor:
    """The exact remainder; torch's vectorized code rounds the quotient, and overflows."""
    x, y = torch.broadcast_tensors(torch.as_tensor(x), torch.as_tensor(y, dtype=torch.float64))
    with np.errstate(invalid="ignore"):
        rest = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _arithmetic() -> Iterator[Row]:
    for name in ("add", "sub", "rsub"):
        terms = _terms_reversed if name == "rsub" else _terms
        for alpha in (1, 2, -3, 0):
            yield Row(f"aten::{name}.Tensor", (X, X), {"alpha": alpha}, ALL, scale=terms)
            yield Row(f"aten::{name}.Scalar", (X, 5, alpha), dtypes=ALL, scale=terms)
        yield Row(f"aten::{name}.Tensor", (X, X), {"alpha": 0.3}, scale=terms)
        yield Row(f"aten::{name}.Tensor", (X, X), {"alpha": 0.3}, INTEGERS)
        for scalar in _SCALARS:
            yield Row(f"aten::{name}.Scalar", (X, scalar), dtypes=ALL)
    for name in ("mul.Tensor", "subtract.Tensor", "multiply.Tensor", "maximum", "minimum"):
        yield Row(f"aten::{name}", (X, X), dtypes=ALL)
    for scalar in _SCALARS:
        yield Row("aten::mul.Scalar", (X, scalar), dtypes=ALL)
        yield Row("aten::div.Scalar", (X, scalar), dtypes=ALL)
        yield Row("aten::remainder.Scalar", (X, scalar), truth=_remainder, scale=_dividend)
        yield Row("aten::remainder.Scalar", (X, scalar), dtypes=INTEGERS, refused=not scalar)
        yield Row("aten::floor_divide.Scalar", (X, scalar), dtypes=FLOATS)
        yield Row("aten::floor_divide.Scalar", (X, scalar), dtypes=INTEGERS, refused=not scalar)
    for name in ("max", "min"):
        yield Row(f"aten::{name}.other", (X, X), dtypes=ALL)
    for name in ("div", "divide", "true_divide"):
        yield Row(f"aten::{name}.Tensor", (X, X), dtypes=ALL)
    for mode in ("floor", "trunc", None):
        yield Row("aten::div.Tensor_mode", (X, X), {"rounding_mode": mode})
        # Torch raises an error for integers divided by 0, so the operator is left to torch.
        yield Row("aten::div.Tensor_mode", (_DIVIDEND, DIVISOR), {"rounding_mode": mode}, INTEGERS)
        yield Row("aten::div.Tensor_mode", (_DIVIDEND, X), {"rounding_mode": mode}, INTEGERS)
        for scalar in (3, -7, 2.5, -0.1, 1, -1, 0, math.inf, 2**24 + 1):
            yield Row(
                "aten::div.Scalar_mode", (_DIVIDEND, scalar), {"rounding_mode": mode}, NUMBERS
            )
    for name in ("remainder.Tensor", "floor_divide", "fmod.Tensor"):
        truth = _remainder if name == "remainder.Tensor" else None
        yield Row(f"aten::{name}", (X, X), truth=truth)
        for divisor in (DIVISOR, X):
            yield Row(f"aten::{name}", (_DIVIDEND, divisor), dtypes=INTEGERS, refused=True)
    # The IR's quotient of an integer and 0 is 0; a program of an expression raises there
    # (tests/frontend/test_opaque.py).
    functions: dict[str, Callable[..., Any]] = {
        "floor_divide": torch.floor_divide,
        "remainder": torch.remainder,
    }
    for name, function in functions.items():
        truth = _remainder if name == "remainder" else None
        yield Row(f"ops.{name}", (X, X), reference=function, truth=truth)
        yield Row(f"ops.{name}", (_DIVIDEND, DIVISOR), dtypes=INTEGERS, reference=function)
    for mode in ("floor", "trunc"):
        mode_option = {"rounding_mode": mode}
        yield Row("ops.div", (_DIVIDEND, DIVISOR), mode_option, INTEGERS, reference=torch.div)
    yield Row("aten::remainder.Scalar_Tensor", (7, X), truth=_remainder)
    yield Row("aten::remainder.Scalar_Tensor", (7, DIVISOR), dtypes=INTEGERS, refused=True)
    for name in ("atan2", "hypot", "copysign.Tensor", "nextafter"):
        yield Row(f"aten::{name}", (X, X))
    for name in ("logaddexp", "logaddexp2"):
        yield Row(f"aten::{name}", (X, X), scale=_logarithms)
    yield Row("aten::xlogy.Tensor", (X, X))


def _powers() -> Iterator[Row]:
    yield Row("aten::pow.Tensor_Tensor", (X, X), scale=_power_terms)
    # Integer powers that overflow wrap around as torch's do only where torch multiplies. So the
    # exponents are small.
    small = Operand(within=(0, 7))
    yield Row("aten::pow.Tensor_Tensor", (X, small), dtypes=INTEGERS)
    yield Row("aten::pow.Tensor_Tensor", (X, Operand(within=(-5, 7))), dtypes=INTEGERS[1:])
    for exponent in (0, 1, 2, 3, 4, -1, -2, 7, 0.5, -0.5, 2.0, 3.0, 1.7, 1 / 3, -2.5, math.inf):
        yield Row("aten::pow.Tensor_Scalar", (X, exponent), dtypes=ALL, scale=_power_terms)
    for base in (0, 1, 2, -1, -2.0, 0.5, 10, math.inf):
        yield Row("aten::pow.Scalar", (base, X), scale=_power_terms)
    for base in (0, 1, 2, -3):
        yield Row("aten::pow.Scalar", (base, small), dtypes=INTEGERS)


def _tests() -> Iterator[Row]:
    names = {"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
             "not_equal": "ne"}  # fmt: skip
    for name in (*_COMPARISONS, *names):
        yield Row(f"aten::{name}.Tensor", (X, X), dtypes=ALL)
    for name, scalar in itertools.product(_COMPARISONS, _SCALARS):
        yield Row(f"aten::{name}.Scalar", (X, scalar), dtypes=ALL)
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Row(f"aten::{name}", (X, X), dtypes=ALL)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield Row(f"aten::{name}.Tensor", (X, X), dtypes=(*INTEGERS, "bool"))
        for scalar in (5, True):
            yield Row(f"aten::{name}.Scalar", (X, scalar), dtypes=(*INTEGERS, "bool"))


# ---- which dtype ----------------------------------------------------------------------------


def _promotion() -> Iterator[Row]:
    """Rows for operands of two dtypes, of rank 0, and with broadcasting."""
    small, other = Operand((65,)), Operand((65,), "float32")
    for right in ALL:
        pair = (small, Operand((65,), right))
        for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "maximum", "lt.Tensor"):
            yield Row(f"aten::{name}", pair, dtypes=ALL)
        rank_0 = (small, Operand((), right, kind="normal"))
        for name in ("add.Tensor", "div.Tensor", "minimum", "eq.Tensor", "pow.Tensor_Tensor"):
            dtypes = FLOATS if name.startswith("pow") else ALL
            yield Row(f"aten::{name}", rank_0, dtypes=dtypes)
        yield Row("aten::where.self", (Operand((65,), "bool"), *pair), dtypes=ALL)
        yield Row("aten::type_as", (Operand((65,), kind="normal"), pair[1]), dtypes=ALL)
        yield Row(
            "aten::to.other", (Operand((65,), kind="normal", within=(0, 2)), other), dtypes=(right,)
        )
    # Numbers too large for float16, but not for float32, in which torch computes.
    large = Operand((), "float32", kind="offset 1e6")
    for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "floor_divide", "maximum"):
        yield Row(f"aten::{name}", (small, large))
        yield Row(f"aten::{name}", (large, small))
    comparisons = (f"{name}.Tensor" for name in _COMPARISONS)
    for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "atan2",
                 "logical_and", "logical_or", *comparisons):  # fmt: skip
        yield Row(f"aten::{name}", (_ROW, _COLUMN))
        yield Row(f"aten::{name}", (X, _ROW))
        yield Row(f"aten::{name}", (_COLUMN, RANK_0))


# ---- three operands -------------------------------------------------------------------------


def _ternary() -> Iterator[Row]:
    condition = Operand(dtype="bool")
    yield Row("aten::where.self", (condition, X, X), dtypes=ALL)
    yield Row("aten::where.self", (Operand(dtype="uint8"), X, X), kinds=("normal",))
    yield Row("aten::where.self", (condition, _ROW, _COLUMN))
    for scalar in (0, 0.0, 2.5, -1, math.inf, True, 300):
        yield Row("aten::where.ScalarOther", (condition, X, scalar), dtypes=ALL)
        yield Row("aten::where.ScalarSelf", (condition, scalar, X), dtypes=ALL)
        yield Row("aten::where.Scalar", (condition, scalar, 1), dtypes=("float32",))
    for value in (0, 7, -1, 2.5, -math.inf, 300, True):
        yield Row("aten::masked_fill.Scalar", (X, condition, value), dtypes=ALL)
    for dtype in ("float32", "float64", "int64", "int32", "bool"):
        rank_0 = Operand((), dtype, kind="normal")
        yield Row("aten::masked_fill.Tensor", (X, condition, rank_0), dtypes=ALL)
    yield Row("aten::masked_fill.Scalar", (X, Operand(LARGE[1:], "bool"), -1.5))
    ends: tuple[Any, ...] = (
        (None, 2), (-1, None), (-1, 2), (2, -1), (0, 255), (-300, 300), (0.5, 2.5), (-0.5, None),
        (None, math.inf), (-math.inf, 0.25), (math.nan, 1), (None, math.nan), (-5, -3), (200, 300),
    )  # fmt: skip
    for low, high in ends:
        yield Row("aten::clamp", (X, low, high), dtypes=NUMBERS)
    yield Row("aten::clamp", (X, 0, 1), dtypes=("bool",))
    for bound in (-1, 2, 0.5, -300, 300, math.inf, math.nan):
        yield Row("aten::clamp_min", (X, bound), dtypes=NUMBERS)
        yield Row("aten::clamp_max", (X, bound), dtypes=NUMBERS)
    yield Row("aten::clamp.Tensor", (X, X, X), dtypes=NUMBERS)
    yield Row("aten::clamp.Tensor", (X, None, _ROW), dtypes=NUMBERS)
    yield Row("aten::clamp.Tensor", (X, _COLUMN), dtypes=NUMBERS)
    for dtype in ("float32", "int8", "int64"):
        yield Row("aten::clamp.Tensor", (X, Operand(LARGE[1:], dtype)), dtypes=NUMBERS)
    yield Row("aten::clamp_min.Tensor", (X, _ROW), dtypes=NUMBERS)
    yield Row("aten::clamp_max.Tensor", (X, _ROW), dtypes=NUMBERS)
    for value in (1, 0.5, -2, 0):
        yield Row("aten::addcmul", (X, X, X), {"value": value}, scale=_product_terms)
        yield Row("aten::addcdiv", (X, X, X), {"value": value}, scale=_quotient_terms)
    yield Row("aten::addcmul", (X, X, X), {"value": 3}, INTEGERS)
    for weight in (0.3, 0.5, 0.7, 0, 1, -2.0, 1.5):
        yield Row("aten::lerp.Scalar", (X, X, weight), scale=_lerp_terms)
    yield Row("aten::lerp.Tensor", (X, X, X), scale=_lerp_terms)
    yield Row("aten::lerp.Tensor", (X, X, RANK_0), scale=_lerp_terms)


ROWS: Final[tuple[Row, ...]] = (
    *(
        Row(f"aten::{name}", (X,), dtypes=dtypes)
        for dtypes, names in _UNARY.items()
        for name in names.split()
    ),
    *(Row(f"aten::{name}", (X,)) for name in _WITHOUT_ENTRY),
    *_activations(),
    *_arithmetic(),
    *_powers(),
    *_tests(),
    *_promotion(),
    *_ternary(),
)
