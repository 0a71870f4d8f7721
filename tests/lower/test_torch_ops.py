"""Every operator and many scopes in torch, against the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from lower_cases import arguments, assert_equal, examples, scopes, tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eqsynth.errors import LoweringError
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Sum
from eqsynth.ir.tensor import Op, Scope, Tensor, Weight, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower import torch_scopes
from eqsynth.lower.constant_values import evaluate_constant, evaluate_constants
from eqsynth.lower.torch_ops import run_term

it = Index.iterator


def run(term: Tensor, values: list[torch.Tensor]) -> torch.Tensor:
    by_argument = dict(zip(args_of(term), values, strict=True))
    args = term.args if isinstance(term, Op) else args_of(term)
    return run_term(term, [by_argument[arg] for arg in args])


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"Opaque"}))
def test_an_operator_gives_what_the_interpreter_gives(name: str) -> None:
    for term in examples(name):
        values = arguments(term)
        assert_equal(term, run(term, values), values)


@given(scopes())
def test_a_scope_gives_what_the_interpreter_gives(scope: Scope) -> None:
    values = arguments(scope)
    assert_equal(scope, run(scope, values), values)


@given(scopes())
def test_a_scope_in_pieces_is_the_same(scope: Scope) -> None:
    values = arguments(scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_scopes, "_PIECE", 3)
        assert_equal(scope, run(scope, values), values)


@pytest.mark.rotating
def test_pieces_bound_the_memory() -> None:
    # As one piece, the differences of all pairs would be 4096 x 4096 x 4 floats: 256 MB.
    x, y = tensor(0, 4096, 4), tensor(1, 4096, 4)
    i, j, k = it(0, 4096), it(1, 4096), it(2, 4)
    difference = Sum((Read(x, (i, k)), Prod((Num(-1), Read(y, (j, k))))))
    scope = Scope((4096, 4096), (4,), Call("abs", (difference,)), "max")
    values = arguments(scope)
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result._base is None:
                sizes.append(result.untyped_storage().nbytes())
            return result

    with Watch():  # type: ignore[no-untyped-call]
        got = run(scope, values)
    assert max(sizes) <= 4 * max(torch_scopes._PIECE, 4096 * 4096)
    left, right = values
    assert torch.allclose(got, torch.cdist(left, right, p=float("inf")))


def test_a_large_view_is_not_cut_into_pieces() -> None:
    """They would be joined, which copies every window, also one that nothing writes out."""
    x = tensor(0, 4096, 4)
    i, j, k = it(0, 4000), it(1, 32), it(2, 4)
    window = Scope((4000, 32, 4), (), Read(x, (i + j * 3, k)))
    (values,) = arguments(window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_scopes, "_PIECE", 1000)
        got = run(window, [values])
    assert got.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    assert torch.equal(got, torch.stack([values[3 * j :][:4000] for j in range(32)], 1))


def test_a_reduction_of_a_view_is_cut_into_pieces() -> None:
    """A sum along whole axes is added up in float64, so the view would be copied whole."""
    x = tensor(0, 64, 64)
    scope = Scope((64,), (64,), Read(x, (it(0, 64), it(1, 64))))
    (values,) = arguments(scope)
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            sizes.append(result.numel() if result.dtype == torch.float64 else 0)
            return result

    with pytest.MonkeyPatch.context() as patch, Watch():  # type: ignore[no-untyped-call]
        patch.setattr(torch_scopes, "_PIECE", 512)
        got = run(scope, [values])
    assert 0 < max(sizes) <= 512 and torch.allclose(got, values.sum(1))


def test_a_read_far_outside_makes_no_large_copy() -> None:
    x = tensor(0, 4, 4)
    i = it(0, 100_000)
    scope = Scope((100_000,), (), Read(x, (i, i * 100 - 3)), "sum")
    values = arguments(scope)
    assert_equal(scope, run(scope, values), values)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_scopes_over_nothing(reducer: str) -> None:
    x = tensor(0, 3, 0)
    empty = Scope((3,), (0,), Read(x, (it(0, 3), it(1, 0))), reducer)
    values = arguments(empty)
    assert_equal(empty, run(empty, values), values)
    nothing = Scope((0, 2), (), Read(tensor(0, 2), (it(1, 2),)))
    values = arguments(nothing)
    assert_equal(nothing, run(nothing, values), values)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_scopes_of_integers(reducer: str, dtype: str) -> None:
    x, y = tensor(0, 3, 4, dtype=dtype), tensor(1, 4, dtype=dtype)
    reads = Read(x, (it(0, 3), it(1, 4) - 1), 1.0), Read(y, (it(1, 4),))
    fill = {"max": -math.inf, "min": math.inf}.get(reducer, 1.0) if dtype != "bool" else 1.0
    for body in (reads[0], Prod(reads), Read(x, (it(0, 3), it(1, 4) + 2), fill)):
        scope = Scope((3,), (4,), body, reducer)
        values = arguments(scope)
        assert_equal(scope, run(scope, values), values)


def test_an_iterator_that_nothing_reads_repeats() -> None:
    x = tensor(0, 3)
    for body in (Read(x, (it(0, 3),)), Num(2), Prod((Num(0.5), Read(x, (it(1, 3),))))):
        for reducer in ("sum", "prod", "max"):
            scope = Scope((3,), (3, 2), body, reducer)
            values = arguments(scope)
            assert_equal(scope, run(scope, values), values)


def test_16_bit_floats_are_summed_in_32_bits() -> None:
    x = tensor(0, 4096, dtype="bfloat16")
    ones = [torch.ones(4096, dtype=torch.bfloat16)]
    for body in (Read(x, (it(0, 4096),)), Call("abs", (Read(x, (it(0, 4096),)),))):
        assert run(Scope((), (4096,), body), ones).item() == 4096.0
    # A cast rounds: 1 + 1/512 is 1 in bfloat16.
    small = Sum((Num(1.0), Prod((Num(1 / 512), Read(x, (it(0, 4096),))))))
    kept = Scope((4096,), (), Cast("float32", small))
    lost = Scope((4096,), (), Cast("float32", Cast("bfloat16", small)))
    assert run(kept, ones)[0].item() > 1
    assert run(lost, ones)[0].item() == 1


# ---- gradients -----------------------------------------------------------------------------

SMOOTH = """
    Matmul Conv2d ConvTranspose2d FusedConv2dAdd FusedMatmulAdd ReduceSum ReduceMean Softmax
    AvgPool2d LayerNorm Permute Reshape Expand Slice Pad Reverse Shift Unfold Stride
    UpsampleBilinear2d Tanh Mul
""".split()


@pytest.mark.rotating
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_flow_through_operators(name: str) -> None:
    term = examples(name)[0]
    values = [value.double().requires_grad_() for value in arguments(term)]
    if name.startswith("Fused"):
        term = Op(name, term.args, (*term.attrs[:-1], "tanh"))
    assert torch.autograd.gradcheck(lambda *args: run(term, list(args)), values)


def test_gradients_flow_through_scopes() -> None:
    x, w = tensor(0, 6, dtype="float64"), tensor(1, 3, 2, dtype="float64")
    i, f, k = it(0, 4), it(1, 2), it(2, 3)
    convolution = Prod((Read(x, (i * 2 + k - 1,)), Read(w, (k, f))))
    turned = Prod((Read(x, (-1 * i + 5,)), Read(w, (k, f))))
    gathered = Prod((Read(x, (i // 2 + k,)), Read(w, (k, f))))
    for body in (convolution, turned, gathered, Call("tanh", (convolution,))):
        for reducer in ("sum", "max"):
            scope = Scope((4, 2), (3,), body, reducer)
            values = [value.requires_grad_() for value in arguments(scope)]
            assert torch.autograd.gradcheck(lambda *a, s=scope: run(s, list(a)), values)


# ---- errors and constants ------------------------------------------------------------------


def test_an_opaque_operator_needs_its_function() -> None:
    term = Op("Opaque", (tensor(0, 2),), ("torch.flip", (2,), "float32"), origin="model.flip")
    with pytest.raises(LoweringError) as caught:
        run(term, arguments(term))
    assert caught.value.where == "model.flip" and caught.value.got == "torch.flip"
    with pytest.raises(LoweringError):
        run_term(tensor(0, 2), [])


def weight(name: str, *shape: int, dtype: str = "float32") -> Weight:
    return Weight(name, TensorType(shape, dtype))


def test_a_constant_is_rounded_once() -> None:
    x = weight("x", 1000)
    total = Op("ReduceSum", (x,), ((0,), 0))
    # In float32 the small part is lost on the way.
    term = Op("Sub", (Op("Add", (total, Op("Full", (), ((), 1e8, "float32")))),
                      Op("Full", (), ((), 1e8, "float32"))))  # fmt: skip
    values = {"x": torch.full((1000,), 1e-4)}
    expected = evaluate(term, {"x": values["x"].double().numpy()})
    got = evaluate_constant(term, values)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.item(), expected, rtol=1e-6)
    half = Op("Cast", (x,), ("float16",))
    back = Op("Cast", (Op("Exp", (half,)),), ("float32",))
    expected = evaluate(back, {"x": values["x"].double().numpy()})
    np.testing.assert_allclose(evaluate_constant(back, values).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"Opaque"}))
def test_constants_of_every_operator(name: str) -> None:
    for term in examples(name):
        values = arguments(term)
        named = {arg: Weight(f"w{arg.label}", arg.type) for arg in args_of(term)}
        constant = Op(name, tuple(named[arg] for arg in term.args), term.attrs)
        got = evaluate_constant(constant, {f"w{k}": value for k, value in enumerate(values)})
        assert_equal(term, got, values)


def test_constants_share_what_they_have_in_common() -> None:
    term: Tensor = weight("x", 2)
    for _ in range(2000):
        term = Op("Add", (term, Op("Mul", (term, Op("Full", (), ((), 0.0, "float32"))))))
    values = {"x": torch.tensor([1.0, 2.0])}
    first, second = evaluate_constants([term, Op("Neg", (term,))], values)
    assert first.tolist() == [1.0, 2.0] and second.tolist() == [-1.0, -2.0]


def test_a_weight_that_is_only_moved_is_not_copied() -> None:
    x = weight("x", 3, 4)
    value = torch.randn(3, 4)
    moved = evaluate_constant(Op("Permute", (x,), ((1, 0),)), {"x": value})
    assert torch.equal(moved, value.T)
    for constant in (moved, evaluate_constant(x, {"x": value})):
        assert constant.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()


def test_constants_depend_on_no_input() -> None:
    with pytest.raises(LoweringError) as caught:
        evaluate_constant(Op("Relu", (tensor(0, 2),)), {})
    assert caught.value.where == "0" and caught.value.got == "float32[2]"
