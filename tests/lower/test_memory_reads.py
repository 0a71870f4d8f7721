"""Inputs that have to lie in memory as the example inputs did (``lower/memory_reads.py``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.errors import CaptureError, LoweringError, ShapeError
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.memory_reads import Memory, memory_reads
from eqsynth.lower.program import CompiledProgram

X, Y = torch.randn(4, 6), torch.randn(4, 6)
DENSE, AT_0 = Memory((6, 1)), Memory((6, 1), 0)


class Made(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(6, 6)
        self.eval()

    def forward(self, x: Tensor, y: Tensor | None = None, *, z: Tensor | None = None) -> Any:
        return self.function(self, x, y if z is None else z)


def memories(function: Callable[..., Any], *args: Tensor, **kwargs: Tensor) -> dict[str, Memory]:
    return dict(capture(Made(function), args, kwargs).memories)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x, y: x.as_strided((2, 3), (1, 4)) + y[:2, :3], {"x": DENSE}),
        (lambda m, x, y: torch.as_strided(y, (2, 3), (1, 4), 0) + x[:2, :3], {"y": AT_0}),
        (lambda m, x, y: x.detach().t().as_strided((2,), (4,)) + y[0, :2], {"x": DENSE}),
        (lambda m, x, y: (x + y).as_strided((2, 3), (1, 4)), {"x": DENSE, "y": DENSE}),
        (lambda m, x, y: torch.as_strided_copy(x * 2, (2, 3), (1, 4)), {"x": DENSE}),
        (lambda m, x, y: torch.as_strided_scatter(x, y[0], (6,), (2,)), {"x": DENSE}),
        (lambda m, x, y: torch.ops.aten.as_strided.default(x, (2,), (4,)), {"x": DENSE}),
        (lambda m, x, y: x * x.stride(0) + y, {"x": DENSE}),
        (lambda m, x, y: x * 2 if y.is_contiguous() else x * 3, {"y": DENSE}),
        (lambda m, x, y: x * (1 + y.storage_offset()), {"y": Memory((None, None), 0)}),
        (lambda m, x, y: torch.vmap(lambda r: r.as_strided((2,), (3,)))(x), {"x": DENSE}),
        # An example that is contiguous is its ``contiguous()``, one tensor.
        (lambda m, x, y: x.contiguous().as_strided((2, 3), (1, 4)), {"x": DENSE}),
        (lambda m, x, y: x.t().contiguous().as_strided((2, 3), (1, 4)), {}),
        # What is contiguous whatever the inputs are, and what is no input.
        (lambda m, x, y: m.linear(x).as_strided((2, 3), (1, 4)), {}),
        (lambda m, x, y: x + m.linear.weight.as_strided((6,), (7,)), {}),
        (lambda m, x, y: x.clone().fill_diagonal_(9.0) + y.reshape(-1)[0], {}),
        (lambda m, x, y: x.unfold(1, 2, 2).sum(-1) + x.flip(0)[:, :3], {}),
    ],
)
def test_the_inputs_whose_memory_is_read(
    function: Callable[..., Any], expected: dict[str, Memory]
) -> None:
    found = memories(function, X, Y)
    assert {name: found[name] for name in sorted(found)} == expected


def test_an_argument_by_name_and_an_axis_of_extent_1() -> None:
    one = torch.randn(1, 6)
    assert memories(lambda m, x, y: y.as_strided((2,), (1,)) + x[0, :2], X, z=one) == {
        "z": Memory((None, 1))
    }
    assert memories(lambda m, x, y: x * x.stride(0), one) == {"x": Memory((6, 1))}
    assert Memory((None, 1)).holds(one.t().contiguous().t())


@pytest.mark.parametrize(
    "example", [torch.randn(4, 12)[:, ::2], torch.randn(6).expand(4, 6), torch.randn(5, 6)[1:]]
)
def test_an_example_that_is_not_dense_is_refused(example: Tensor) -> None:
    def function(m: Any, x: Tensor, y: Any) -> Tensor:
        return x * (2 if x.is_contiguous() else 3) + x.storage_offset()

    with pytest.raises(CaptureError, match="isn't dense"):
        capture(Made(function), (example,))


def optimized(function: Callable[..., Any], example: Tensor) -> CompiledProgram:
    return eqsynth.optimize(
        Made(function), (example,), objective="flops", time_limit_s=20, engines=()
    )


# Other strides, and another offset. Of the strides of a transposed example, the first is right.
TURNED, SHIFTED = X.t().contiguous().t(), torch.randn(6, 6)[1:5]


@pytest.mark.parametrize("example", [X, TURNED])
def test_a_call_with_other_strides_is_refused_after_saving_too(
    example: Tensor, tmp_path: Path
) -> None:
    program = optimized(lambda m, x, y: x.as_strided((2, 3), (1, 4), 1), example)
    assert program.original is None
    eqsynth.save(program, tmp_path / "p.eqsynth")
    for tried in (program, eqsynth.load(tmp_path / "p.eqsynth")):
        for _ in range(3):  # the later ones would go the short way
            again = torch.empty_like(example).copy_(Y)
            assert torch.equal(tried(again), again.as_strided((2, 3), (1, 4), 1))
        for other in (SHIFTED, TURNED if example is X else X, torch.randn(4, 12)[:, ::2]):
            with pytest.raises(ShapeError, match="lies otherwise in memory") as caught:
                tried(other)
            assert caught.value.expected == f"strides {example.stride()}, offset 0 in its storage"
    with pytest.raises(LoweringError, match="certain strides"):
        program.to_exported()


def test_a_branch_by_strides_of_an_original_that_is_saved(tmp_path: Path) -> None:
    def function(m: Any, x: Tensor, y: Any) -> Tensor:
        return torch.rand_like(x) * 0 + (x * 2 if x.is_contiguous() else x * 3)

    program = optimized(function, X)  # random numbers keep the original
    assert torch.equal(program(TURNED), TURNED * 3)
    eqsynth.save(program, tmp_path / "p.eqsynth")
    loaded = eqsynth.load(tmp_path / "p.eqsynth")
    assert torch.equal(loaded(Y), Y * 2)
    with pytest.raises(ShapeError, match="lies otherwise in memory"):
        loaded(TURNED)


def test_a_program_that_does_not_read_memory_takes_any_strides_without_a_check() -> None:
    program = optimized(lambda m, x, y: x @ x.t(), X)
    torch.testing.assert_close(program(TURNED), TURNED @ TURNED.t())
    assert "memory" not in program.source


@pytest.mark.parametrize("other", [TURNED, SHIFTED])
def test_a_graph_of_torch_compile_gives_the_result_of_eager(other: Tensor) -> None:
    torch._dynamo.reset()
    made = torch.compile(
        Made(lambda m, x, y: x.as_strided((2, 3), (1, 4), 1) * 2),
        backend="eqsynth",
        options={"objective": "flops", "time_limit_s": 20.0},
    )
    with torch.no_grad():
        for x in (X, other):
            assert torch.equal(made(x), x.as_strided((2, 3), (1, 4), 1) * 2)
    torch._dynamo.reset()


def test_a_call_in_another_thread_is_none_of_the_export() -> None:
    """The user calls the module while it is exported: only the export's own call is watched."""
    begun, going_on = threading.Event(), threading.Event()
    results: list[Tensor] = []

    def read(_: Made, x: Tensor, y: Tensor | None) -> Tensor:
        if threading.current_thread() is other:
            begun.set()
            assert going_on.wait(60)
        return x.as_strided((2, 3), (1, 4))

    module = Made(read)
    other = threading.Thread(target=lambda: results.append(module(Y)))
    with memory_reads(module) as reads:
        other.start()
        assert begun.wait(60)
        module(X)
        assert reads.memories(((X,), {})) == {0: DENSE}
        going_on.set()
        other.join()
    torch.testing.assert_close(results[0], Y.as_strided((2, 3), (1, 4)))
