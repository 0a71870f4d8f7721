"""Kernels that differ only in names, places and order have the same code; no others have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqsynth.extract.kernel import Kernel, Layout, contiguous
from eqsynth.extract.schedule import Block, Fold, Rows, Schedule
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum, Value
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.same_code import code_of
from eqsynth.lower.tvm_backend import TvmBackend

J, K = 48, 32


def read(name: str, shape: tuple[int, ...], *index: Index | int, dtype: str = "float32") -> Read:
    places = tuple(Index(i) if isinstance(i, int) else i for i in index)
    return Read(Input(name, TensorType(shape, dtype)), places)


def kernel(
    term: Scope | Region,
    schedule: Schedule = Fold(16),  # noqa: B008
    constants: tuple[bool, ...] | None = None,
    inputs: tuple[Layout, ...] | None = None,
) -> Kernel:
    args = args_of(term)
    return Kernel(
        term,
        constants or (False,) * len(args),
        "tvm",
        inputs or tuple(contiguous(len(arg.shape)) for arg in args),
        contiguous(len(term.shape)),
        schedule,
    )


def row(*, axes: int = 0, at: int = 0, rows: int = 4, swapped: bool = False,
        reducer: str = "sum", wide: int = K, last: int = J) -> Scope:  # fmt: skip
    """``L_j sum_k x[k] * w[j, k]``: with so many axes of extent 1 in front, of row ``at`` of so
    many rows, with the factors and so the arguments swapped."""
    j, k = Index.iterator(axes, last), Index.iterator(axes + 1, wide)
    x = read("01"[swapped], (rows, *(1,) * axes, wide), at, *(0,) * axes, k)
    w = read("10"[swapped], (last, wide), j, k)
    factors = (w, x) if swapped else (x, w)
    return Scope((*(1,) * axes, last), (wide,), Prod(factors), reducer)


@pytest.mark.parametrize(
    "other",
    [
        row(at=2),
        row(axes=1),
        row(axes=2, at=3),
        row(swapped=True),
        row(axes=1, swapped=True, rows=7, at=5),
    ],
)
def test_names_places_order_and_axes_of_extent_1_do_not_matter(other: Scope) -> None:
    assert code_of(kernel(row())) is not None
    assert code_of(kernel(other)) == code_of(kernel(row()))


def mapped(fn: str = "tanh", added: float = 1.0, *, along: bool = True) -> Region:
    """``fn(row + b + added)`` in one kernel; b has an element for each result, or one for all."""
    inner, j = row(), Index.iterator(0, J)
    b = read("2", (J,), j if along else 0)
    outer = Scope((J,), (), Call(fn, (Sum((Read(inner, (j,)), b, Num(added))),)))
    given = (*args_of(inner), b.tensor)
    return Region((outer,), tuple(Input(str(n), arg.type) for n, arg in enumerate(given)))


def product(*, swapped: bool = False) -> Scope:
    i, j, k = (Index.iterator(n, e) for n, e in enumerate((16, J, K)))
    x, w = read("01"[swapped], (16, K), i, k), read("10"[swapped], (K, J), k, j)
    return Scope((16, J), (K,), Prod((w, x) if swapped else (x, w)))


def square(*, twice: bool) -> Scope:
    """``L_j sum_k x[k] * x[k]``, or of two tensors."""
    k = Index.iterator(1, K)
    return Scope((J,), (K,), Prod((read("0", (K,), k), read("0" if twice else "1", (K,), k))))


def part(extent: int) -> Scope:
    """``L_j sum_k w[j, k]`` over the first columns only."""
    j, k = Index.iterator(0, J), Index.iterator(1, extent)
    return Scope((J,), (extent,), read("0", (J, K), j, k))


def shifted(by: int, extent: int = K) -> Scope:
    """``L_i x[i - by]``, 0 outside of x."""
    return Scope((extent,), (), read("0", (K,), Index.iterator(0, extent) - by))


def counted(by: int) -> Scope:
    i = Index.iterator(0, K)
    return Scope((K,), (), Prod((read("0", (K,), i), Value(i + by))))


DIFFERENT: list[tuple[Kernel, Kernel]] = [
    (kernel(row()), kernel(row(wide=64))),
    (kernel(row()), kernel(row(last=64))),
    (kernel(row()), kernel(row(reducer="max"))),
    (kernel(row()), kernel(row(), Fold(64))),
    (kernel(row()), kernel(row(), Rows())),
    (kernel(row()), kernel(row(), constants=(False, True))),
    (kernel(row(), constants=(True, False)), kernel(row(), constants=(False, True))),
    (kernel(row()), kernel(row(), inputs=((0, 1), (1, 0)))),
    (kernel(row()), replace(kernel(row()), implementation="tvm.mapped")),
    (kernel(row(rows=8, wide=36)), kernel(row(rows=8, wide=36, at=1))),  # 144 bytes further
    (kernel(mapped()), kernel(mapped("exp"))),
    (kernel(mapped()), kernel(mapped(added=2.0))),
    (kernel(mapped()), kernel(mapped(along=False))),
    (kernel(mapped()), kernel(row())),
    (kernel(square(twice=True)), kernel(square(twice=False))),
    (kernel(part(16)), kernel(part(32))),
    (kernel(shifted(16), Rows()), kernel(shifted(-16), Rows())),  # addresses are aligned alike
    (kernel(shifted(0), Rows()), kernel(shifted(0, K + 1), Rows())),
    (kernel(counted(0), Rows()), kernel(counted(64), Rows())),
    (kernel(product(), Block(8, 16, packed=0), (True, True)),
     kernel(product(), Block(8, 16, packed=1), (True, True))),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_everything_else_matters(one: Kernel, other: Kernel) -> None:
    assert code_of(one) is not None and code_of(other) is not None
    assert code_of(one) != code_of(other)


def test_the_argument_in_panels_goes_by_what_it_is_and_not_by_its_number() -> None:
    one = kernel(product(), Block(8, 16, packed=1), (False, True))
    other = kernel(product(swapped=True), Block(8, 16, packed=0), (True, False))
    assert code_of(one) == code_of(other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_matter(dtype: str) -> None:
    i = Index.iterator(0, K)
    plain = Scope((K,), (), Sum((read("0", (K,), i, dtype=dtype), Num(1.0))))
    assert (code_of(kernel(plain, Rows())) == code_of(kernel(_plus_one(), Rows()))) is (
        dtype == "float32"
    )


def _plus_one() -> Scope:
    return Scope((K,), (), Sum((Num(1.0), read("0", (1, K), 0, Index.iterator(0, K)))))


def test_other_terms_are_not_compared() -> None:
    x = Input("0", TensorType((K,), "float32"))
    op = Op("Relu", (x,))
    assert code_of(Kernel(op, (False,), "torch", ((0,),), (0,), "")) is None
    i = Index.iterator(0, K)
    first: Tensor = Scope((K,), (), Prod((Read(x, (i,)), Num(2.0))))
    chain = Region((Scope((K,), (), Sum((Read(first, (i,)), Num(1.0)))),), (x,))
    assert code_of(kernel(chain, Rows())) is None


def test_kernels_of_the_same_code_give_what_their_terms_say() -> None:
    """The keys of two kernels are equal: each on its own arguments, in its own order."""
    one, other = kernel(row()), kernel(row(axes=1, swapped=True, at=2))
    assert code_of(one) == code_of(other)
    x, w = torch.randn(4, K), torch.randn(J, K)
    results = []
    for each, given in ((one, (x, w)), (other, (w, x.roll(2, 0).reshape(4, 1, K)))):
        (runner,) = TvmBackend().build([(each, {})])
        assert runner is not None and [a.shape for a in args_of(each.term)] == [
            tuple(v.shape) for v in given
        ]
        results.append(runner(*given).flatten())
    torch.testing.assert_close(results[0], w @ x[0])
    torch.testing.assert_close(results[1], results[0])
