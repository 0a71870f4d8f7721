"""``to_onnx``: a program as a file that ONNX's evaluator and ONNX Runtime compute alike."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

import eqsynth
from eqsynth.errors import EqsynthError, LoweringError, UnsupportedOperatorError
from eqsynth.lower.onnx_operator import array_of, session
from eqsynth.testing.differential.onnx_columns import evaluated


def optimized(module: torch.nn.Module, *args: Any, **options: Any) -> eqsynth.CompiledProgram:
    return eqsynth.optimize(
        module.eval(), args, objective="flops", engines=(), progress=False, check=False,
        node_limit=150, time_limit_s=60, **options,
    )


def assert_same(
    path: Path, given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> onnx.ModelProto:
    """Each runtime gives from these inputs what the module does."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    runtimes = [evaluated(model.SerializeToString())]
    if find_spec("onnxruntime") is not None:
        runtimes.append(session(model.SerializeToString()))
    for runtime in runtimes:
        got = runtime([array_of(x) for x in given])
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other.numpy(), 1e-4, 1e-5)
    return model


class Net(torch.nn.Module):
    """Convolution, attention over its pixels, an embedding, several results of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 12, 3, padding=1)
        self.norm = torch.nn.LayerNorm(12)
        self.qkv = torch.nn.Linear(12, 36)
        self.names = torch.nn.Embedding(5, 12)

    def forward(self, image: torch.Tensor, name: torch.Tensor) -> dict[str, Any]:
        x = F.max_pool2d(F.gelu(self.conv(image)), 2).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x) + self.names(name)[:, None]).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v)
        return {"y": y, "most": (y > 0).sum(-1), "image": image, "pair": (y.mean(1), y)}


@pytest.fixture(scope="module")
def net() -> tuple[Net, eqsynth.CompiledProgram]:
    module = Net()
    return module, optimized(module, torch.randn(2, 3, 8, 8), torch.tensor([1, 4]))


def test_a_net(net: tuple[Net, eqsynth.CompiledProgram], tmp_path: Path) -> None:
    module, program = net
    path = tmp_path / "net.onnx"
    program.to_onnx(path)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    given = torch.randn(2, 3, 8, 8), torch.tensor([0, 3])
    with torch.no_grad():
        result = module(*given)
    model = assert_same(path, given, [result["y"], result["most"], given[0], *result["pair"]])
    assert [i.name for i in model.graph.input] == [p.input.name for p in program.inputs]


def test_large_weights_are_in_a_file_of_their_own(
    net: tuple[Net, eqsynth.CompiledProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, program = net
    monkeypatch.setattr("eqsynth.lower.onnx_out.program._LARGE", 100)
    program.to_onnx(tmp_path / "net.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"net.onnx", "net.onnx.data"}
    given = torch.randn(2, 3, 8, 8), torch.tensor([0, 3])
    with torch.no_grad():
        result = module(*given)
    assert_same(tmp_path / "net.onnx", given,
                [result["y"], result["most"], given[0], *result["pair"]])  # fmt: skip


class Decimals(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(torch.relu(x), decimals=2)


def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    program = optimized(Decimals(), torch.randn(3, 4))
    with pytest.raises(UnsupportedOperatorError) as caught:
        program.to_onnx(tmp_path / "decimals.onnx")
    assert "aten.round.decimals" in caught.value.got and caught.value.where
    assert not list(tmp_path.iterdir())


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * 2


def test_a_program_that_changes_buffers_is_refused(tmp_path: Path) -> None:
    module = Counting()
    program = optimized(module, torch.randn(3))
    with pytest.raises(LoweringError):
        program.to_onnx(tmp_path / "counting.onnx")
    assert float(module.calls) == 0.0 or program.original is not None


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight) * scale


@pytest.mark.rotating
def test_an_original_is_written_operator_by_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqsynth.race.Race.won", False)
    module, x, scale = Linear(), torch.randn(3, 4), torch.randn(4)
    program = eqsynth.optimize(
        module.eval(), (x,), example_kwargs={"scale": scale}, engines=(), progress=False,
        time_limit_s=5, check=False,
    )  # fmt: skip
    assert program.original is not None
    program.to_onnx(tmp_path / "linear.onnx")
    given = torch.randn(3, 4), torch.randn(4)
    with torch.no_grad():
        assert_same(tmp_path / "linear.onnx", given, [module(given[0], scale=given[1])])
    # Others than the weights with which it was captured: what it computes isn't known now.
    program.refresh(Linear().eval())
    with pytest.raises(LoweringError):
        program.to_onnx(tmp_path / "again.onnx")
    loaded = eqsynth.CompiledProgram.from_module(module)
    with pytest.raises(EqsynthError):
        loaded.to_onnx(tmp_path / "again.onnx")


class _Calls(torch.nn.Module):
    """Operators that the IR doesn't have, and that an engine's region mayn't hold."""

    def forward(
        self, x: torch.Tensor, n: torch.Tensor, by: torch.Tensor, at: torch.Tensor
    ) -> list[torch.Tensor]:
        narrow = n.to(torch.int8)
        found = [
            torch.remainder(n, by), torch.fmod(n, by), n // by, torch.remainder(n, -by),
            torch.fmod(narrow, by.to(torch.int8)), torch.round(x), torch.round(x.half()),
            torch.index_put(x, (at,), x[0] * 2), torch.index_put(x, (at, at), x[0, :2]),
            torch.index_put(x, (at[:, None], at), torch.tensor(1.0), accumulate=True),
            torch.index_put(x, (x > 0,), torch.tensor(3.0)),
            x.max(1).indices, *n.max(0, keepdim=True),
            x.argmax(-1, keepdim=True), n.argmax(0), x.argmax(),
        ]  # fmt: skip
        for down in (False, True):
            found += torch.sort(x, dim=-1, descending=down, stable=True)
            found += torch.sort(x, dim=0, descending=down, stable=True)
            found.append(torch.topk(x, 3, -1, down).values)
        return found


@pytest.mark.rotating
def test_calls_that_only_a_file_holds(tmp_path: Path) -> None:
    """NaN, infinities and ties in sorts, halves in roundings, signs in remainders, positions that
    count from the end or come twice."""
    torch.manual_seed(0)
    program = optimized(_Calls(), torch.randn(4, 6), torch.ones(4, 6, dtype=torch.int64),
                        torch.ones(4, 6, dtype=torch.int64), torch.tensor([0, 2]))  # fmt: skip
    program.to_onnx(tmp_path / "calls.onnx")
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[2.5, nan, inf, -0.5, nan, 2.5], [-inf, 1.5, inf, nan, 1.5, 0.5],
                      [0.0, -0.0, 3.5, -1.5, 0.0, -inf], [nan] * 6])  # fmt: skip
    n = torch.randint(-20, 20, (4, 6))
    by = torch.where(torch.rand(4, 6) < 0.5, -1, 1) * torch.randint(1, 7, (4, 6))
    for at in (torch.tensor([3, 1]), torch.tensor([-1, 1])):
        given = (x, n, by, at)
        assert_same(tmp_path / "calls.onnx", given, _Calls()(*given))


class _Towards0(torch.nn.Module):
    """Calls that ONNX has operators for, or nearly: it doesn't define some of their results."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, n: torch.Tensor, by: torch.Tensor,
        bits: torch.Tensor, amount: torch.Tensor,
    ) -> list[torch.Tensor]:  # fmt: skip
        return [
            torch.div(n, by, rounding_mode="trunc"), torch.fmod(x, y), torch.fmod(x, -1.5),
            torch.fmod(x.half(), y.half()),
            torch.div(bits, amount.clamp(min=1), rounding_mode="trunc"),
            torch.div(n.int(), by.int(), rounding_mode="trunc"),
            torch.bitwise_left_shift(bits, amount), torch.bitwise_right_shift(bits, amount),
            torch.bitwise_left_shift(bits, 3), torch.bitwise_right_shift(bits, 9),
            x.argmin(1), x.argmin(0, keepdim=True), n.argmin(-1), bits.argmin(),
            x.min(1).indices, *n.min(0, keepdim=True), *bits.min(1),
        ]  # fmt: skip


def test_calls_that_round_towards_0_and_shift(tmp_path: Path) -> None:
    """Signs, infinities, NaN, ties, the least integer, divisors with all bits set, and shifts by
    more bits than there are."""
    torch.manual_seed(0)
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[2.5, nan, inf, -0.5, nan, 2.5], [-inf, 1.5, inf, 4.0, 1.5, -inf],
                      [0.5, -7.5, 3.5, -7.5, 9.25, 0.5], [nan] * 6])  # fmt: skip
    y = torch.tensor([1.0, -2.0, 0.0, inf, nan, 3.0]) * torch.ones(4, 1)
    n = torch.randint(-20, 20, (4, 6))
    n[1, 2] = n[3, 2] = -(1 << 63)
    by = torch.where(torch.rand(4, 6) < 0.5, -1, 1) * torch.randint(2, 7, (4, 6))
    by[0] = torch.tensor([-1, 1, -1, 1, -1, 1])
    bits = torch.randint(0, 256, (4, 6)).to(torch.uint8)
    amount = torch.tensor([0, 1, 7, 8, 9, 255]).to(torch.uint8) * torch.ones(4, 1).byte()
    given = x, y, n, by, bits, amount
    program = optimized(_Towards0(), *(torch.ones_like(part) for part in given))
    program.to_onnx(tmp_path / "calls.onnx")
    assert_same(tmp_path / "calls.onnx", given, _Towards0()(*given))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((2, 3), {}),
        ((3, 3), {"stride": 2, "padding": 1}),
        ((2, 3), {"stride": (2, 3), "ceil_mode": True}),
        ((2, 2), {"stride": (3, 4), "ceil_mode": True}),
        ((2, 2), {"stride": 1, "dilation": (2, 3)}),
    ],
)
def test_places_of_the_largest_in_windows(
    kernel: tuple[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    class Pool(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [
                part
                for given in (x, x[0], x.double())
                for part in F.max_pool2d(given, kernel, return_indices=True, **options)
            ]

    torch.manual_seed(0)
    x = torch.randint(-4, 4, (2, 3, 7, 8)).float()
    program = optimized(Pool(), torch.zeros_like(x))
    program.to_onnx(tmp_path / "pool.onnx")
    assert_same(tmp_path / "pool.onnx", [x], Pool()(x))
