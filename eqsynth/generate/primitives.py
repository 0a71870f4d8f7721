"""The operators and inputs of enumerated graphs: TASO's operators with parameters (Table 1).

A primitive builds a term from tensors; the interpreter evaluates the term, and the operator table
checks its types. So an operator is added in one place: a row here, or a definition in a rule file
that is passed to ``eqsynth rules generate``.

There are two worlds, matrices and images, which share no types and are enumerated separately. A
split halves an axis: TASO's split trees undo a concatenation, and a concatenation of two tensors of
equal size is undone in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from eqsynth.errors import EqsynthError
from eqsynth.ir.operators import Operator
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType

MATRIX: Final = 3
"""Rows and columns of an input matrix: odd, so that only a concatenation has an even extent."""

CHANNELS: Final = 2
IMAGE: Final = (1, CHANNELS, 5, 4)
KERNEL: Final = 3


@dataclass(frozen=True)
class Primitive:
    """An operator of the enumeration, with fixed parameters.

    Attributes:
        build: returns the results (a split has two), or None if the arguments don't fit.
        of_inputs: whether it is applied to inputs only [TASO §2.2, enlarge].
    """

    name: str
    arity: int
    build: Callable[..., tuple[Tensor, ...] | None]
    of_inputs: bool = False

    def results(self, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the result terms for these arguments; none if the arguments don't fit."""
        try:
            return self.build(*args) or ()
        except EqsynthError:
            return ()


@dataclass(frozen=True)
class World:
    """Inputs and constants by name, and the primitives that take them.

    Attributes:
        divisor: a multiple of every number that one operator divides by.
    """

    name: str
    leaves: Mapping[str, Tensor]
    primitives: tuple[Primitive, ...]
    divisor: int


def _input(name: str, *shape: int) -> Input:
    return Input(name, TensorType(shape, "float32"))


def _full(shape: tuple[int, ...], value: float) -> Tensor:
    return Op("Full", (), (shape, value, "float32"))


def identity(n: int) -> Tensor:
    """Return the identity of matmul: 1 where row and column are equal."""
    rows, columns = (Op("Iota", (), ((n, n), axis, "int64")) for axis in (0, 1))
    return Op("Cast", (Op("Equal", (rows, columns)),), ("float32",))


def conv_identity(channels: int, kernel: int) -> Tensor:
    """Return the identity of convolution: 1 at the kernel's centre, from each channel to itself."""
    ones = Op("Reshape", (identity(channels),), ((channels, channels, 1, 1),))
    around = (0, 0, kernel // 2, kernel // 2)
    return Op("Pad", (ones,), (around, around, 0.0))


# ---- primitives ---------------------------------------------------------------------------


def _elementwise(name: str) -> Callable[..., tuple[Tensor, ...] | None]:
    return lambda x, y: (Op(name, (x, y)),) if x.shape == y.shape != () else None


def _scaled(x: Tensor, w: Tensor) -> tuple[Tensor, ...] | None:
    return (Op("Mul", (x, w)),) if w.shape == () else None


def _transpose(x: Tensor) -> tuple[Tensor, ...] | None:
    return (Op("Permute", (x,), ((1, 0),)),) if len(x.shape) == 2 else None


def _matmul(x: Tensor, y: Tensor) -> tuple[Tensor, ...] | None:
    return (Op("Matmul", (x, y)),) if len(x.shape) == len(y.shape) == 2 else None


def _relu(x: Tensor) -> tuple[Tensor, ...] | None:
    return (Op("Relu", (x,)),) if x.shape else None


def _concat(axis: int) -> Callable[..., tuple[Tensor, ...] | None]:
    def build(x: Tensor, y: Tensor) -> tuple[Tensor, ...] | None:
        return (Op("Concat", (x, y), (axis,)),) if x.shape == y.shape else None

    return build


def _split(axis: int, base: int) -> Callable[..., tuple[Tensor, ...] | None]:
    def build(x: Tensor) -> tuple[Tensor, ...] | None:
        if axis >= len(x.shape) or x.shape[axis] % (2 * base):
            return None
        half = x.shape[axis] // 2
        bounds = ((0, half), (half, 2 * half))
        return tuple(Op("Slice", (x,), (axis, *bound, 1)) for bound in bounds)

    return build


def _is_image(x: Tensor) -> bool:
    """Whether a tensor is an image: kernels are square, and images aren't."""
    return len(x.shape) == 4 and x.shape[2] != x.shape[3]


def _conv(stride: int, same: bool, relu: bool) -> Callable[..., tuple[Tensor, ...] | None]:
    def build(x: Tensor, w: Tensor) -> tuple[Tensor, ...] | None:
        if not (_is_image(x) and len(w.shape) == 4 and w.shape[2] == w.shape[3] in (1, KERNEL)):
            return None
        groups, rest = divmod(x.shape[1], w.shape[1])
        if rest or not groups or w.shape[0] % groups or (same and w.shape[2] == 1):
            return None  # for a 1x1 kernel, both kinds of padding are the same
        pad = w.shape[2] // 2 if same else 0
        conv = Op("Conv2d", (x, w), ((stride, stride), (pad, pad), (1, 1), groups))
        return (Op("Relu", (conv,)) if relu else conv,)

    return build


def _pool(name: str, stride: int, same: bool) -> Callable[..., tuple[Tensor, ...] | None]:
    def build(x: Tensor) -> tuple[Tensor, ...] | None:
        if not _is_image(x) or min(x.shape[2:]) < KERNEL:
            return None
        pad = KERNEL // 2 if same else 0
        return (Op(name, (x,), ((KERNEL, KERNEL), (stride, stride), (pad, pad), (1, 1))),)

    return build


def _enlarge(w: Tensor) -> tuple[Tensor, ...] | None:
    if len(w.shape) != 4 or w.shape[2:] != (1, 1):
        return None
    around = (0, 0, KERNEL // 2, KERNEL // 2)
    return (Op("Pad", (w,), (around, around, 0.0)),)


_POINTWISE: Final = (
    Primitive("ewadd", 2, _elementwise("Add")),
    Primitive("ewmul", 2, _elementwise("Mul")),
    Primitive("smul", 2, _scaled),
    Primitive("relu", 1, _relu),
    Primitive("concat0", 2, _concat(0)),
    Primitive("concat1", 2, _concat(1)),
)
_MATRICES: Final = (
    *_POINTWISE,
    Primitive("transpose", 1, _transpose),
    Primitive("matmul", 2, _matmul),
    *(Primitive(f"split{axis}", 1, _split(axis, MATRIX)) for axis in (0, 1)),
)
_MODES: Final = tuple((stride, same) for stride in (1, 2) for same in (True, False))


def _mode(stride: int, same: bool) -> str:
    return f"{'same' if same else 'valid'}{stride}"


_IMAGES: Final = (
    *_POINTWISE,
    *(
        Primitive(f"conv_{_mode(*mode)}{'_relu' * relu}", 2, _conv(*mode, bool(relu)))
        for mode in _MODES
        for relu in (0, 1)
    ),
    *(
        Primitive(f"pool{kind}_{_mode(*mode)}", 1, _pool(f"{kind.capitalize()}Pool2d", *mode))
        for mode in _MODES
        for kind in ("avg", "max")
    ),
    Primitive("enlarge", 1, _enlarge, of_inputs=True),
    *(Primitive(f"split{axis}", 1, _split(axis, base)) for axis, base in ((0, 1), (1, CHANNELS))),
)


# ---- worlds -------------------------------------------------------------------------------


def worlds_of(inputs: int) -> tuple[World, ...]:
    """Return the two worlds: ``inputs`` matrices; one image less, and as many kernels as images."""
    names = [f"x{n}" for n in range(inputs)]
    matrices: dict[str, Tensor] = {name: _input(name, MATRIX, MATRIX) for name in names}
    scalar = {"s": _input("s")}
    constants = {
        "I_matmul": identity(MATRIX), "I_ewmul": _full((MATRIX, MATRIX), 1.0),
    }  # fmt: skip
    fewer = range(max(1, inputs - 1))
    images: dict[str, Tensor] = {f"x{n}": _input(f"x{n}", *IMAGE) for n in fewer}
    kernel = (CHANNELS, CHANNELS, KERNEL, KERNEL)
    kernels: dict[str, Tensor] = {f"k{n}": _input(f"k{n}", *kernel) for n in fewer}
    others: dict[str, Tensor] = {
        "p": _input("p", CHANNELS, CHANNELS, 1, 1),
        "C_pool": _full((CHANNELS, 1, KERNEL, KERNEL), 1 / KERNEL**2),
        "I_conv": conv_identity(CHANNELS, KERNEL),
        "I_ewmul": _full(IMAGE, 1.0),
    }
    return (
        World("matrices", {**matrices, **scalar, **constants}, _MATRICES, 12),
        World("images", {**images, **kernels, **scalar, **others}, _IMAGES, 2 * KERNEL**2),
    )


WORLDS: Final = worlds_of(3)


def with_own(worlds: tuple[World, ...], own: Mapping[str, Operator]) -> tuple[World, ...]:
    """Return the worlds with the operators of a rule file that take only tensors."""
    rows = tuple(
        Primitive(name, row.arity, _defined(row))
        for name, row in own.items()
        if row.arity is not None and not row.attrs
    )
    return tuple(replace(world, primitives=(*world.primitives, *rows)) for world in worlds)


def _defined(row: Operator) -> Callable[..., tuple[Tensor, ...] | None]:
    return lambda *args: (Op(row.name, args, (), "", row),) if all(a.shape for a in args) else None
