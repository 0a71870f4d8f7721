"""``torch.compile(model, backend="eqsynth")``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from eqsynth import compile_backend
from eqsynth.errors import EqsynthError, GradientWarning

FAST = {"time_limit_s": 120.0, "objective": "flops"}


class Bottleneck(torch.nn.Module):
    """Two products that fold into one: (x U) V = x (U V)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(12, 96), torch.nn.Linear(96, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Watched:
    """The backend, and what it has given to torch, graph by graph."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.made.append(compile_backend.eqsynth(*args, **kwargs))
        return self.made[-1]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_it_is_found_by_name() -> None:
    assert "eqsynth" in torch._dynamo.list_backends()


def test_a_model_is_optimized_and_weights_stay_the_models(watched: Watched) -> None:
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        (program,) = watched.made
        assert isinstance(program, compile_backend.Program)
        report = program.program.report
        assert report.flops_after < report.flops_before / 5
        # Changed in place, and replaced: the next call sees it, without a search.
        model.up.weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), model(x))
        model.down.bias = torch.nn.Parameter(torch.randn(12))
        torch.testing.assert_close(compiled(x), model(x))
        model.load_state_dict(Bottleneck().state_dict())
        torch.testing.assert_close(compiled(x), model(x))
        # What eqsynth doesn't take is still computed.
        model.up.bias.fill_(float("inf"))
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)
        assert program.instead is not None
    assert len(watched.made) == 1


def test_other_shapes_go_to_inductor(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    model = Bottleneck().eval()
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth.compile"):
        for rows in (5, 7, 9):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x))
    assert isinstance(watched.made[0], compile_backend.Program)
    assert not any(isinstance(other, compile_backend.Program) for other in watched.made[1:])
    assert "symbolic sizes" in caplog.text


def test_training_goes_to_inductor_with_one_warning(watched: Watched) -> None:
    model, x = Bottleneck(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(x).sum().backward()
        compiled(x).sum().backward()
    assert [w.category for w in caught].count(GradientWarning) == 1
    assert model.up.weight.grad is not None
    assert not isinstance(watched.made[0], compile_backend.Program)


def test_what_changes_the_module_goes_to_inductor(watched: Watched) -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x)
            return self.seen * 2

    model, twin, x = Counts().eval(), Counts().eval(), torch.ones(3)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), twin(x))
    assert not any(isinstance(program, compile_backend.Program) for program in watched.made)


def test_a_graph_break_makes_two_programs(watched: Watched) -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Bottleneck(), Bottleneck()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.one(x)
            torch._dynamo.graph_break()
            return self.two(h)

    model, x = Broken().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert [type(program) for program in watched.made] == [compile_backend.Program] * 2


def test_an_unknown_option() -> None:
    compiled = torch.compile(Bottleneck().eval(), backend="eqsynth", options={"time": 3})
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(torch.randn(5, 12))
    error = caught.value.inner_exception
    assert isinstance(error, EqsynthError) and error.got == "'time'"
    assert "time_limit_s" in error.expected
