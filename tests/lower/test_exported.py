"""``to_exported``: a program as an ``ExportedProgram`` that computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import eqsynth
from eqsynth.errors import EquivalenceError, LoweringError
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op, args_of
from eqsynth.lower.exported import _function


def optimized(module: torch.nn.Module, *args: Any, **kwargs: Any) -> eqsynth.CompiledProgram:
    return eqsynth.optimize(
        module.eval(), args, example_kwargs=kwargs, objective="flops", engines=(), progress=False,
        check=False, node_limit=150, time_limit_s=60,
    )  # fmt: skip


class Net(torch.nn.Module):
    """Convolution, attention over its pixels, rows of a table, an operator that no term says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(8)
        self.qkv = torch.nn.Linear(8, 24)
        self.names = torch.nn.Embedding(5, 8)

    def forward(self, image: torch.Tensor, *, name: torch.Tensor, scale: float) -> dict[str, Any]:
        x = F.max_pool2d(F.gelu(self.conv(image)), 2).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x) + self.names(name)[:, None]).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v) * scale
        most = torch.sort((y > 0).sum(-1)).values
        return {"y": y, "most": most, "image": image, "pair": (y.mean(1), y), "none": None}


@pytest.fixture(scope="module")
def net() -> tuple[Net, eqsynth.CompiledProgram]:
    module, image = Net(), torch.randn(2, 3, 8, 8)
    return module, optimized(module, image, name=torch.tensor([1, 4]), scale=2.0)


@pytest.mark.rotating
def test_a_net(net: tuple[Net, eqsynth.CompiledProgram], tmp_path: Path) -> None:
    module, program = net
    made = program.to_exported()
    assert isinstance(made, torch.export.ExportedProgram)
    torch.export.save(made, tmp_path / "net.pt2")
    image, name = torch.randn(2, 3, 8, 8), torch.tensor([0, 3])
    with torch.no_grad():
        wanted = module(image, name=name, scale=2.0)
    for run in (made.module(), torch.export.load(tmp_path / "net.pt2").module()):
        got = run(image, name=name, scale=2.0)
        assert got["image"] is image and got.keys() == wanted.keys()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    # What is done to the one doesn't reach the other.
    before = program(image, name=name, scale=2.0)
    for value in made.state_dict.values():
        value.zero_()
    torch.testing.assert_close(program(image, name=name, scale=2.0), before)


def test_a_program_that_is_loaded(
    net: tuple[Net, eqsynth.CompiledProgram], tmp_path: Path
) -> None:
    _, program = net
    eqsynth.save(program, tmp_path / "net.eqsynth")
    made = eqsynth.load(tmp_path / "net.eqsynth").to_exported().module()
    image, name = torch.randn(2, 3, 8, 8), torch.tensor([2, 2])
    torch.testing.assert_close(
        made(image, name=name, scale=2.0), program(image, name=name, scale=2.0),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.rotating
def test_an_expression() -> None:
    a, w = eqsynth.input("a", (6, 5)), eqsynth.weight("w", (5, 4))
    windows = eqsynth.scope(lambda i, j: eqsynth.sum(lambda k: a[i + k - 1, j], k=3), i=6, j=5)
    program = eqsynth.optimize(
        eqsynth.ops.relu(windows @ w), objective="flops", engines=(), progress=False
    )
    x = torch.randn(6, 5)
    torch.testing.assert_close(program.to_exported().module()(x), program(x))


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * 2 + self.calls


@pytest.mark.rotating
def test_an_operator_that_takes_one_argument_twice() -> None:
    """The step has the argument once."""
    x = torch.linspace(-1, 1, 4)
    term = eqsynth.input("x", (4,))
    (square,) = program_of(term * term)[0].outputs
    assert isinstance(square, Op) and len(args_of(square)) == 1
    (result,) = _function(square, {})(x)
    assert torch.equal(result, x * x)


@pytest.mark.rotating
def test_what_cant_be_exported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoweringError) as caught:
        optimized(Counting(), torch.randn(3)).to_exported()
    assert caught.value.hint
    monkeypatch.setattr("eqsynth.race.Race.won", False)
    module, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    program = eqsynth.optimize(module, (x,), engines=(), progress=False, time_limit_s=1)
    assert program.original is not None
    with torch.no_grad():
        torch.testing.assert_close(program.to_exported().module()(x), module(x))
    # Other weights than those with which it was captured: what it computes isn't known now.
    program.refresh(torch.nn.Linear(4, 4).eval())
    with pytest.raises(LoweringError) as caught:
        program.to_exported()
    assert caught.value.got == "Linear"


@pytest.mark.rotating(parts=4)
def test_a_difference_is_an_error(
    net: tuple[Net, eqsynth.CompiledProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, program = net
    # All of them: a bias before a softmax, for one, makes no difference.
    other = {name: value + 1 for name, value in program.constants.items()
             if value.is_floating_point()}  # fmt: skip
    other = {**program.constants, **other}
    monkeypatch.setattr(program, "constants", other)
    with pytest.raises(EquivalenceError):
        program.to_exported()
