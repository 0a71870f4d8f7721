"""Kernels of scopes that take data through matrices of literals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from eoperator_cases import check_region
from lower_cases import laid_out

from eqsynth.egraph.tactics.correlating import Window, by_windows, literal
from eqsynth.egraph.tactics.toom_cook import correlation
from eqsynth.extract.kernel import channels_last, contiguous
from eqsynth.extract.schedule import Matrices, Rows, Schedule
from eqsynth.ir import tensor
from eqsynth.ir.index import Index, It
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Input, Region, Scope, Tensor, args_of, is_literal, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower.kernel_tuning import space_for
from eqsynth.lower.loop_nest import loop_nest
from eqsynth.lower.matrices import tiles_of
from eqsynth.lower.schedules import refusal, schedules
from eqsynth.lower.torch_ops import run_term
from eqsynth.lower.tvm_backend import TvmBackend
from tests.terms import it, leaf

Outputs = int | tuple[int, int]


def scopes(
    outputs: Outputs, size: tuple[int, int], channels: int, *, padding: int = 1, dilation: int = 1,
    dtype: str = "float32", batch: int = 1, filters: int = 16,
) -> list[Scope]:  # fmt: skip
    """What makes tiles of data and of results, of a convolution by tiles."""
    out = [extent + 2 * padding - 2 * dilation for extent in size]
    data = leaf("x", batch, channels, *size, dtype=dtype)
    weight = leaf("w", filters, channels, 3, 3, dtype=dtype, constant=True)
    outer, inner = (batch, filters, *out), (channels, 3, 3)
    n, f, i, j, c, k, h = (it(s, e) for s, e in enumerate((*outer, *inner)))
    index = (n, c, i + k * dilation - padding, j + h * dilation - padding)
    scope = Scope(outer, inner, Prod((Read(data, index), Read(weight, (f, c, k, h)))))
    both = (outputs, outputs) if isinstance(outputs, int) else outputs
    sliding = tuple(
        Window(It(2 + axis, out[axis]), It(5 + axis, 3), correlation(both[axis], 3))
        for axis in (0, 1)
    )
    tiled = by_windows(scope, sliding)
    assert tiled is not None
    found = []
    for term in topological([tiled.scope]):
        if isinstance(term, Scope) and not term.constant and any(map(is_literal, args_of(term))):
            assert isinstance(term.body, Prod)
            reads = [f for f in term.body.factors if isinstance(f, Read)]
            over = {r.tensor: Input(f"t{n}", r.tensor.type) for n, r in enumerate(reads)}
            body = Prod(tuple(
                r if is_literal(r.tensor) else Read(over[r.tensor], r.index, r.fill) for r in reads
            ))  # fmt: skip
            found.append(Scope(term.traversal, term.reduction, body))
    return found


def values_of(scope: Scope) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, scope.dtype)
    return [
        run_term(arg, []).to(kind) if is_literal(arg)
        else torch.randn(arg.shape, generator=generator, dtype=torch.float64).to(kind)
        for arg in args_of(scope)
    ]  # fmt: skip


def check(scope: Scope) -> list[Schedule | str]:
    """Every kernel of the scope against the interpreter."""
    values = values_of(scope)
    env = {a.label: v.double().numpy() for a, v in zip(args_of(scope), values, strict=True)}
    expected = evaluate(scope, env)
    bound = 1e-4 if scope.dtype == "float32" else 1e-12
    backend = TvmBackend()
    constants = tuple(map(is_literal, args_of(scope)))
    kernels = list(backend.kernels(scope, constants))
    for kernel in kernels:
        given = [laid_out(v, at) for v, at in zip(values, kernel.inputs, strict=True)]
        packed = {n: v for n, v in enumerate(given) if constants[n]}
        (runner,) = backend.build([(kernel, packed)])
        assert runner is not None
        result = runner(*(v for n, v in enumerate(given) if n not in packed))
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=bound, atol=bound * 20)
    return [kernel.schedule for kernel in kernels]


@pytest.mark.parametrize("filters", [16, 40])
def test_its_space_begins_with_what_is_offered(filters: int) -> None:
    """Also where the data is padded, so that a copy of it could be computed in blocks."""
    for scope in scopes(4, (28, 28), 64, filters=filters):
        constants = tuple(map(is_literal, args_of(scope)))
        for kernel in TvmBackend().kernels(scope, constants):
            space = space_for(kernel)
            assert kernel.schedule in map(space.made, space.starts)


@pytest.mark.rotating
@pytest.mark.parametrize("outputs", [2, 4, 6, (2, 4), (4, 2)])
@pytest.mark.parametrize(
    "size", [(8, 8), (7, 9), (5, 4), (3, 11), (6, 2)], ids=lambda size: "x".join(map(str, size))
)
def test_tiles_of_data_and_of_results(outputs: Outputs, size: tuple[int, int]) -> None:
    for scope in scopes(outputs, size, 16, filters=40):
        assert Matrices(16) in check(scope)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 0}, {"padding": 2}, {"dilation": 2, "padding": 2},
        {"dilation": 3, "padding": 1}, {"batch": 2}, {"dtype": "float64"}, {"filters": 24},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("outputs", [2, 4])
def test_windows_of_all_kinds(outputs: int, options: dict[str, int]) -> None:
    for scope in scopes(outputs, (9, 10), 24, **options):  # type: ignore[arg-type]
        assert Matrices(16) in check(scope)


@pytest.mark.rotating
@pytest.mark.parametrize("channels", [1, 3, 8, 17])
def test_few_neighbours(channels: int) -> None:
    for scope in scopes(2, (6, 6), channels, filters=channels):
        check(scope)


def test_one_axis() -> None:
    algorithm = correlation(4, 3)
    matrix = literal(algorithm.data, "float32")
    x = leaf("x", 21, 16)
    p, t, c, u = it(1, 6), it(0, 5), it(2, 16), it(3, 6)
    body = Prod((Read(matrix, (p, u)), Read(x, (t * 4 + u, c))))
    assert Matrices(16) in check(Scope((5, 6, 16), (6,), body))


def test_numbers_that_are_not_of_an_algorithm() -> None:
    """Zero rows, thirds, a row of one negative number, rows alike but for signs."""
    rows = ((0, 0, 0, 0), (1, 0, 0, 0), (0, -1, 0, 0), (1, 2, 3, 4), (1, -2, 3, -4), (0, 1, 1, 0))
    matrix = tuple(tuple(Fraction(entry, 3) for entry in row) for row in rows)
    x = leaf("x", 4, 9, 16)
    body = Prod((Read(literal(matrix, "float32"), (it(0, 6), it(3, 4))),
                 Read(x, (it(3, 4), it(1, 9), it(2, 16)))))  # fmt: skip
    assert Matrices(16) in check(Scope((6, 9, 16), (4,), body))


X = leaf("x", 4, 16)
B = literal(correlation(2, 3).data, "float32")
A = literal(correlation(2, 3).output, "float32")


def nest_of(scope: Scope) -> object:
    plain = [contiguous(len(arg.shape)) for arg in args_of(scope)]
    return tiles_of(loop_nest(scope, plain, contiguous(len(scope.shape))))


def over(traversal: tuple[int, ...], reduction: tuple[int, ...], *reads: Read) -> Scope:
    return Scope(traversal, reduction, Prod(reads))


P, C, U = it(0, 4), it(1, 16), it(2, 4)
Y: Index = it(0, 8)


@pytest.mark.parametrize(
    ("scope", "taken"),
    [
        (over((4, 16), (4,), Read(B, (P, U)), Read(X, (U, C))), True),
        (over((4, 16), (4,), Read(B, (U, P)), Read(X, (U, C))), False),
        (over((4, 16), (4,), Read(B, (P, U)), Read(X, (U, C)), Read(X, (U, C))), False),
        (over((4, 16), (4,), Read(B, (P, U)), Read(B, (U, P)), Read(X, (U, C))), False),
        (over((4, 16), (4,), Read(B, (P, U)), Read(X, (P, C))), False),
        (over((16, 4), (4,), Read(B, (it(1, 4), U)), Read(X, (U, it(0, 16)))), False),
        (over((8, 16), (4,), Read(A, (Y % 2, U)), Read(leaf("m", 4, 4, 16), (Y // 2, U, C))), True),
        (over((8, 16), (4,), Read(A, (Y % 2, U)), Read(leaf("m", 8, 4, 16), (Y, U, C))), False),
        (over((8, 16), (4,), Read(A, (Y // 4, U)), Read(leaf("m", 4, 4, 16), (Y % 4, U, C))), True),
        (over((8, 16), (4,), Read(A, (Y // 4, U)), Read(leaf("m", 8, 4, 16), (Y // 2, U, C))),
         False),
    ],
)  # fmt: skip
def test_which_scopes_are_taken(scope: Scope, taken: bool) -> None:
    assert (nest_of(scope) is not None) == taken
    if taken:
        assert check(scope) == [Matrices(16)]


def test_channels_last_are_neighbours() -> None:
    scope, _ = scopes(2, (8, 8), 16)
    (data,) = (arg for arg in args_of(scope) if not is_literal(arg))

    def layout(arg: Tensor) -> tuple[int, ...]:
        return channels_last(4) if arg == data else contiguous(len(arg.shape))

    nest = loop_nest(scope, [layout(arg) for arg in args_of(scope)], contiguous(len(scope.shape)))
    assert tiles_of(nest) is not None and schedules(nest) == (Matrices(16),)


# ---- a map over what the matrices make -------------------------------------------------------


def mapped(scope: Scope, kind: str) -> Region:
    """A region of the scope and a map over it, with what the map reads besides."""
    n, f, i, j = own = tuple(it(axis, extent) for axis, extent in enumerate(scope.shape))
    result: Scalar = Read(scope, own)
    bias = Input("bias", TensorType((scope.shape[1],), scope.dtype))
    other = Input("other", scope.type)
    if kind != "residual":
        result = Sum((result, Read(bias, (f,))))
    if kind == "shifted":
        result = Sum((result, Read(other, (n, f, i - 1, j + 1), 3.0)))
    elif kind != "bias":
        result = Sum((result, Read(other, own)))
    body = Call("relu", (result,)) if kind != "twice" else Prod((result, result))
    after = Scope(scope.shape, (), body)
    (data,) = (arg for arg in args_of(scope) if not is_literal(arg))
    given = [data, *(arg for arg in args_of(after) if arg != scope)]
    inputs = {arg: Input(str(k), arg.type) for k, arg in enumerate(given)}
    images = {arg: inputs.get(arg, arg) for arg in args_of(scope)}
    placed = {**inputs, scope: tensor.over(scope, images)}
    return Region((tensor.over(after, placed),), tuple(inputs.values()))


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["bias", "residual", "both", "twice", "shifted"])
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3), (5, 2)], ids=str)
@pytest.mark.parametrize("outputs", [4, (2, 4)])
def test_a_map_over_results_of_tiles(outputs: Outputs, size: tuple[int, int], kind: str) -> None:
    _, scope = scopes(outputs, size, 16, filters=40, batch=2)
    assert check_region(mapped(scope, kind))


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_map_over_phases(dilation: int) -> None:
    _, scope = scopes(2, (9, 10), 16, filters=24, dilation=dilation, padding=dilation)
    assert check_region(mapped(scope, "both"))


def test_maps_that_stay_by_themselves() -> None:
    """Neighbours that lie apart, another dtype, reads elsewhere, other reductions."""
    _, scope = scopes(2, (8, 8), 16, filters=3)
    apart = mapped(scope, "bias")
    assert not check_region(apart)
    nest = loop_nest(apart, (contiguous(4), contiguous(1)), contiguous(4))
    assert refusal(nest, Rows()) is not None  # its loops would read literals as arguments
    _, scope = scopes(2, (8, 8), 16)
    n, f, i, j = own = tuple(it(axis, extent) for axis, extent in enumerate(scope.shape))
    (data,) = (arg for arg in args_of(scope) if not is_literal(arg))
    given = (Input("0", data.type),)
    images = {arg: arg for arg in args_of(scope)} | {data: given[0]}
    ready = tensor.over(scope, images)
    assert isinstance(ready, Scope)

    def taken(after: Scope, args: tuple[Input, ...] = given) -> bool:
        kernels = TvmBackend().fused(Region((after,), args), (False,) * len(args))
        return any(kernel.implementation == "tvm.matrices" for kernel in kernels)

    read = Read(ready, own)
    assert taken(Scope(scope.shape, (), Call("relu", (read,))))
    assert not taken(Scope(scope.shape, (), Sum((read, Read(ready, (n, f, j, i))))))
    assert not taken(Scope(scope.shape, (), Call("ge", (read, Num(0.0)))))
    assert not taken(Scope(scope.shape, (), Cast("float64", read)))
    across = Read(Input("1", scope.type), (n, j, i, f))
    assert not taken(Scope(scope.shape, (), Sum((read, across))), (*given, Input("1", scope.type)))
    x = Input("0", TensorType((4, 8), "float32"))
    rows = Scope((4,), (8,), Read(x, (it(0, 4), it(1, 8))))
    assert not taken(Scope((4,), (), Call("relu", (Read(rows, (it(0, 4),)),))), (x,))
