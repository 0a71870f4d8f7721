"""Scalar code in kernels against the interpreter: every function, every dtype, the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eoperator_cases import (
    TOLERANCE,
    array,
    built,
    check,
    compile_together,
    it,
    pointwise,
    sample,
    tensor,
)

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import args_of
from eqsynth.ir.types import DTYPES, INTEGERS, is_float
from eqsynth.lower import emitter, tvm_kept

# float64 is computed as float32 is; float16 and bfloat16 are computed in float32 and rounded, as
# `test_bfloat16_rounds_to_even_and_keeps_nan` sees each time.
OTHERS = ("bfloat16", "float16", "float64")
SPECIAL = (-0.0, 0.0, 1.0, -1.0, 0.5, -3.7, 88.5, -87.0, 120.0, -120.0, 3e-5, 4.2, 0.62, 0.63)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", *OTHERS])
def test_every_function_on_floats(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-9, 9, 91)]).to(torch_dtype)
    y = x.flip(0)
    extent = len(x)
    a, b, c = (Read(tensor(k, (extent,), dtype), (it(0, extent),)) for k in range(3))
    scopes = []
    for name, function in FUNCTIONS.items():
        args: tuple[Scalar, ...] = (a, b, c)[: function.arity]
        if name == "where":
            args = (Call("gt", (a, Num(0))), b, c)
        scopes.append(pointwise(Call(name, tuple(args)), extent))
    values = (x, y, x.roll(3))
    for scope, run in zip(scopes, built(scopes), strict=True):
        assert isinstance(scope.body, Call)
        used = [values[int(arg.label)] for arg in args_of(scope)]
        env = {arg.label: array(values[int(arg.label)]) for arg in args_of(scope)}
        expected = evaluate(scope, env)
        with np.errstate(all="ignore"):
            rounded = torch.from_numpy(np.asarray(expected)).to(torch_dtype).double().numpy()
        # What overflows the dtype is infinite there, and judged as that.
        expected = (
            np.where(np.isinf(rounded), rounded, expected) if is_float(scope.dtype) else expected
        )
        got = array(run(*used))
        bound = TOLERANCE.get(scope.dtype, 0.0)
        np.testing.assert_allclose(got, expected, rtol=bound, atol=bound, err_msg=scope.body.fn)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_every_function_on_integers(dtype: str) -> None:
    x, y = sample((64,), dtype), sample((64,), dtype, 1)
    a, b = (Read(tensor(k, (64,), dtype), (it(0, 64),)) for k in range(2))
    cases = []
    for name, function in FUNCTIONS.items():
        if dtype == "bool" and name in ("floordiv", "mod", "sign", "pow", "reciprocal", "div"):
            continue  # NumPy has none of them on bools
        args: tuple[Scalar, ...] = (a, b)[: function.arity]
        if name == "where":
            args = (Call("gt", (a, Num(0))), b, a)
        scope = pointwise(Call(name, args), 64)
        # NumPy takes exp of an int8 in float16; a kernel, as torch, in float32.
        wide = [Cast("float32", arg) for arg in args] if is_float(scope.dtype) else args
        cases.append((scope, pointwise(Call(name, tuple(wide)), 64)))
    for (scope, wide_scope), run in zip(cases, built([s for s, _ in cases]), strict=True):
        assert isinstance(scope.body, Call)
        expected = evaluate(wide_scope, {"0": x.numpy(), "1": y.numpy()})
        got = array(run(*((x, y)[int(arg.label)] for arg in args_of(scope))))
        tolerance = 4e-6 if is_float(scope.dtype) else 0
        np.testing.assert_allclose(
            got, expected, rtol=tolerance, atol=tolerance, err_msg=scope.body.fn
        )


@pytest.mark.parametrize("scales", [False, True])
def test_exp_from_zero_to_infinity(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an instruction for value * 2^n, and without one, as on processors before AVX-512."""
    monkeypatch.setattr(emitter, "scales", lambda: scales)
    monkeypatch.setattr(tvm_kept, "load", lambda _kernels: {})
    x = torch.cat([torch.linspace(-110, 95, 4001), torch.tensor([88.72, 88.73, 1e4, -1e4])])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    (run,) = built(
        [pointwise(Call("exp", (Read(tensor(0, tuple(x.shape)), (it(0, len(x)),)),)), len(x))]
    )
    got, expected = run(x).double(), x.double().exp()
    largest, smallest = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
    assert got[-1].isnan() and got[expected > largest].isinf().all()
    normal = (expected < largest) & (expected > smallest)
    torch.testing.assert_close(got[normal], expected[normal], rtol=5e-7, atol=0)
    assert ((got - expected).abs()[expected <= smallest] < 2e-44).all()


@pytest.mark.parametrize("name", ["log", "log2", "log10", "log1p"])
def test_logarithms_from_minus_to_plus_infinity(name: str) -> None:
    """Subnormal numbers, numbers around 1 and around the ends of the polynomial, and all others."""
    around = torch.cat([torch.linspace(0.69, 1.43, 4001), 1 + torch.logspace(-7, -1, 500)])
    wide = torch.logspace(-38, 38.5, 4001)
    small = torch.tensor([1e-45, 3e-42, 1e-40, 1.1754943e-38, 1.17549435e-38])
    x = torch.cat([around, wide, small, -around, -small, around - 1, around * 2**-20])
    special = torch.tensor([0.0, -0.0, -1.0, -1e30, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([x, special])
    (run,) = built(
        [pointwise(Call(name, (Read(tensor(0, tuple(x.shape)), (it(0, len(x)),)),)), len(x))]
    )
    got, expected = run(x).double(), getattr(torch, name)(x.double())
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=0, equal_nan=True)
    exact = torch.exp2(torch.arange(-149.0, 128.0)) if name == "log2" else torch.ones(1)
    whole = torch.cat([exact, torch.ones(len(x) - len(exact))])
    assert name == "log1p" or torch.equal(run(whole), getattr(torch, name)(whole.double()).float())


@pytest.mark.rotating
@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: str) -> None:
    x, values = Read(tensor(0, (40,), source), (it(0, 40),)), sample((40,), source)
    scopes = {target: pointwise(Cast(target, x), 40) for target in DTYPES}
    compile_together(scopes.values())
    for target, scope in scopes.items():
        negative = target == "uint8" and source not in ("uint8", "bool")
        check(scope, values.abs() if negative else values)


def test_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF])
    values = bits.to(torch.int32).view(torch.float32)
    scope = pointwise(Cast("bfloat16", Read(tensor(0, (6,)), (it(0, 6),))), 6)
    (run,) = built([scope])
    got, expected = run(values), values.to(torch.bfloat16)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))


def test_integer_division_never_traps() -> None:
    lowest = torch.iinfo(torch.int32).min
    x = torch.tensor([7, -7, 0, lowest, lowest, 5], dtype=torch.int32)
    y = torch.tensor([0, 0, 0, -1, 3, -1], dtype=torch.int32)
    a, b = (Read(tensor(k, (6,), "int32"), (it(0, 6),)) for k in range(2))
    quotient, rest = built([pointwise(Call(fn, (a, b)), 6) for fn in ("floordiv", "mod")])
    assert quotient(x, y).tolist() == [0, 0, 0, lowest, lowest // 3, -5]
    assert rest(x, y).tolist() == [0, 0, 0, 0, lowest % 3, 0]


def test_integers_with_numbers() -> None:
    x = Read(tensor(0, (40,), "uint8"), (it(0, 40),))
    check(pointwise(Call("lt", (x, Num(-1))), 40))
    check(pointwise(Call("gt", (x, Num(300))), 40))
    check(pointwise(Sum((x, Prod((Num(3), x)), Num(-4))), 40))
    check(pointwise(Sum((x, Num(0.5))), 40))
    flag = Read(tensor(0, (40,), "bool"), (it(0, 40),))
    check(pointwise(Sum((flag, Call("not", (flag,)))), 40))
    check(pointwise(Prod((flag, Num(2))), 40))
    check(pointwise(Sum((flag, Num(-1))), 40))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_large_integers_wrap_around(dtype: str) -> None:
    """As in torch: ``4 * x // 4`` isn't x, nor ``2 * x == 2 * y`` the same as ``x == y``."""
    x, y = (Read(tensor(n, (40,), dtype), (it(0, 40),)) for n in range(2))
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    values = generator.integers(info.min, info.max, (2, 40), endpoint=True, dtype=dtype)
    values[0, :3] = info.min, info.max, -1
    values[1] = np.where(np.arange(40) % 2, values[0] ^ info.min, values[1])
    four = Prod((Num(4), x))
    bodies = [
        Call("floordiv", (four, Num(4))), Call("mod", (Prod((Num(6), x)), Num(4))),
        Call("floordiv", (Sum((x, y)), Num(3))), Call("floordiv", (Prod((x, y)), Num(-7))),
        Call("eq", (Prod((Num(2), x)), Prod((Num(2), y)))), Call("gt", (Sum((x, Num(1))), x)),
        Call("lt", (Sum((x, Num(-3))), x)), Call("abs", (four,)), Sum((x, y, Num(-1))),
        Call("floordiv", (Call("pow", (x, Num(2))), Num(2))), Prod((x, y, Num(-5))),
        Call("floordiv", (Prod((Num(-1), four)), Num(4))),
        Call("pow", (Num(-3), Call("mod", (x, Num(9))))),
    ]  # fmt: skip
    for body in bodies:
        scope = pointwise(body, 40)
        check(scope, *map(torch.tensor, values[: len(args_of(scope))]))


def test_a_quotient_by_the_number_zero() -> None:
    """1 / 0 is infinite, with the signs of both, and 0 / 0 is NaN."""
    x = Read(tensor(0, (40,)), (it(0, 40),))
    value = torch.linspace(-2, 2, 40)
    value[:4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan])
    for fn in ("div", "floordiv", "mod"):
        check(pointwise(Call(fn, (x, Num(0.0))), 40), value)
    check(pointwise(Call("reciprocal", (Num(0.0),)), 40))
