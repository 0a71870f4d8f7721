"""What torch does around a call: each works, or says in one sentence what to do instead."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lower_cases import op
from programs import convolutions, program_of, step
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from eqsynth.errors import DtypeError, LoweringError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Read
from eqsynth.ir.tensor import Input, Scope
from eqsynth.ir.types import TensorType
from eqsynth.lower.calling import SavedCalling
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.tvm_backend import TvmBackend

ROW = SavedCalling((0,), (0,))
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
V = torch.ones(2, 3, 8, 8)


def compiled() -> CompiledProgram:
    return convolutions(row=ROW)[0]


def original() -> CompiledProgram:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 5)).eval()
    return CompiledProgram.from_module(layers)


def called() -> CompiledProgram:
    """A program that calls of each mode went through, so that another like them isn't looked at."""
    program = compiled()
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            program(X)
    return program


BOTH = pytest.mark.parametrize("make", [compiled, called, original])
Make = Callable[[], CompiledProgram]

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "grad": (lambda p: torch.func.grad(lambda x: p(x).sum())(X), "torch.func.grad"),
    "vjp": (lambda p: torch.func.vjp(p, X), "torch.func.grad"),
    "jacrev": (lambda p: torch.func.jacrev(p)(X), "torch.func.grad"),
    "jvp": (lambda p: torch.func.jvp(p, (X,), (V,)), "torch.func.jvp"),
    "vmap": (lambda p: torch.func.vmap(p)(X[None]), "torch.func.vmap"),
    "functionalize": (lambda p: torch.func.functionalize(p)(X), "torch.func"),
    "make_fx": (lambda p: make_fx(p)(X), "make_fx"),
    "trace": (lambda p: torch.jit.trace(p, X, check_trace=False), "torch.jit.trace"),
    "trace of a part": (
        lambda p: torch.jit.trace(nn.Sequential(p, nn.ReLU()), X, check_trace=False),
        "torch.jit.trace",
    ),
}


@BOTH
@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_cannot_be_seen_through_by_is_refused(name: str, make: Make) -> None:
    act, got = REFUSED[name]
    with pytest.raises(LoweringError) as caught:
        act(make())
    assert caught.value.got.startswith(got)
    assert "original" in caught.value.hint


@BOTH
def test_forward_mode_gradients_are_refused(make: Make) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, V)
        with pytest.raises(LoweringError):
            make()(dual)
        make()(X)


@BOTH
@pytest.mark.parametrize("strict", [False, True])
def test_a_program_is_not_exported(strict: bool, make: Make) -> None:
    with pytest.raises(Exception) as caught:
        torch.export.export(make(), (X,), strict=strict)
    if not strict:
        assert isinstance(caught.value, LoweringError)
        assert "original module" in caught.value.hint


@BOTH
def test_backward_raises_instead_of_giving_zeros(make: Make) -> None:
    program = make()
    x = X.clone().requires_grad_()
    scale = torch.ones(5, requires_grad=True)
    # Part of a larger function, of which gradients are asked for.
    loss = (program(x) * scale).sum() + x.sum()
    with pytest.raises(LoweringError) as caught:
        loss.backward()
    assert "gradients" in caught.value.what and "no_grad" in caught.value.hint
    scale.grad = None
    # Without gradients, or with the input detached, it is a constant.
    with torch.no_grad():
        assert not program(x).requires_grad
    (program(x.detach()) * scale).sum().backward()
    assert scale.grad is not None and torch.equal(scale.grad, program(X).sum(0))


def test_autocast_has_no_influence_on_kernels() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 4)
    product = step("y", op("Matmul", (4, 8), (8, 4)), "x", "w", constants={"w": w})
    program = program_of({"x": (4, 8)}, [product], ["y"], {"w": w}, row=ROW)
    expected = program(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = program(x)
        assert torch.mm(x, w).dtype is torch.bfloat16
        # The original is a module like any other.
        assert original()(X).dtype is torch.bfloat16
    assert torch.equal(result, expected)


@BOTH
def test_inference_mode_and_copies(make: Make) -> None:
    program = make()
    expected = program(X)
    with torch.inference_mode():
        assert torch.equal(program(X), expected)
    for copied in (
        copy.copy(program),
        copy.deepcopy(program),
        copy.deepcopy(nn.Sequential(program)),
    ):
        assert torch.equal(copied(X), expected)


def test_pickles() -> None:
    program = compiled()
    again = pickle.loads(pickle.dumps(program))
    assert torch.equal(again(X), program(X)) and repr(again) == repr(program)
    file = io.BytesIO()
    torch.save({"model": nn.Sequential(program)}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)["model"](X), program(X))


@pytest.mark.rotating
@BOTH
def test_torch_compile_calls_a_program_as_it_is(make: Make) -> None:
    program = make()
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(program, nn.ReLU()), backend="eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # it would say that it can't trace a function
        assert torch.equal(model(X), program(X).relu())


class Labelled(Tensor):
    """A tensor with a class of its own, and plain memory."""


def test_tensors_of_other_classes() -> None:
    kind = Input("0", TensorType((6,), "float32"))
    scope = Scope((6,), (), Call("exp", (Read(kind, (Index.iterator(0, 6),)),)))
    generated = step("y", scope, "x", backend=TvmBackend())
    program = program_of({"x": (6,)}, [generated], ["y"], row=ROW)
    x = torch.randn(6)
    # The last one says of memory that holds -x that it means x.
    for given in (nn.Parameter(x), x.as_subclass(Labelled), torch._neg_view(-x)):
        with torch.no_grad():
            result = program(given)
        assert type(result) is Tensor
        torch.testing.assert_close(result, x.exp())
    for wrong in (torch.zeros(6).to_sparse(), torch.zeros(6, device="meta")):
        with pytest.raises(DtypeError):
            program(wrong)
