"""``torch.compile(model, backend="eqsynth")``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
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


class Apart(torch.nn.Module):
    """Writes into a result of its first graph, and reads what shares memory with it."""

    def __init__(self, first: Callable[..., Any]) -> None:
        super().__init__()
        self.part, self.first = Bottleneck(), first

    def forward(self, x: torch.Tensor) -> Any:
        h = self.part(x)
        written, read = self.first(x, h)
        torch._dynamo.graph_break()
        written.add_(1)
        return read * h


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (lambda x, h: (x.view(-1), x), "function"),
        (lambda x, h: (h[:2], h), "function"),
        (lambda x, h: (h.t(), h.view(-1, 4).view_as(h)), "function"),
        (lambda x, h: (x, x), "Program"),
        (lambda x, h: (x * 1, x), "Program"),
        (lambda x, h: (h, h), "Program"),
    ],
)
def test_results_that_share_memory_go_on_sharing_it(
    watched: Watched, first: Callable[..., Any], kind: str
) -> None:
    model, x, y = Apart(first).eval(), torch.randn(5, 12), torch.empty(5, 12)
    y.copy_(x)
    compiled = torch.compile(model, backend=watched, options={**FAST, "time_limit_s": 5.0})
    with torch.no_grad():
        torch.testing.assert_close(compiled(y), model(x))
    torch.testing.assert_close(y, x)
    assert type(watched.made[0]).__name__ == kind


def test_graphs_of_other_devices_go_to_inductor() -> None:
    assert not compile_backend._refusal([torch.empty(2)])
    assert compile_backend._refusal([torch.empty(2), torch.empty(2, device="meta")])


def test_a_fault_in_eqsynth_costs_the_graph_only(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        def __bool__(self) -> bool:
            raise RuntimeError("a fault")

    model, x = Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options={**FAST, "progress": Faulty()})
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth.compile"):
        torch.testing.assert_close(compiled(x), model(x))
    assert not isinstance(watched.made[0], compile_backend.Program)
    assert "RuntimeError: a fault" in caplog.text


def test_the_faster_of_the_program_and_inductors_is_taken(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    layers = torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 64)
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(256, 64)
    compiled = torch.compile(model, backend=watched, options={"time_limit_s": 10.0})
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth.compile"):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    told = [record.args for record in caplog.records if record.msg.startswith("eqsynth takes")]
    ours, theirs = told[0]  # type: ignore[misc]
    assert isinstance(watched.made[0], compile_backend.Program) == (ours < theirs)


def test_programs_know_autocast(watched: Watched) -> None:
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = compiled(x), model(x)
        assert got.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.01)
        torch.testing.assert_close(compiled(x), model(x))


def test_generation_with_a_growing_cache_takes_few_graphs(watched: Watched) -> None:
    class Cache:
        def __init__(self) -> None:
            self.rows: torch.Tensor | None = None

        def update(self, x: torch.Tensor) -> torch.Tensor:
            self.rows = x if self.rows is None else torch.cat([self.rows, x])
            return self.rows

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Bottleneck()

        def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
            h = cache.update(self.part(x))
            return torch.softmax(x @ h.T, -1) @ h

    model, caches = Decoder().eval(), (Cache(), Cache())
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        for step in range(6):
            x = torch.randn(1 if step else 4, 12)
            torch.testing.assert_close(compiled(x, caches[0]), model(x, caches[1]))
    assert caches[0].rows is not None and caches[0].rows.shape == (9, 12)
    kinds = [isinstance(made, compile_backend.Program) for made in watched.made]
    assert kinds[:2] == [True, True] and len(kinds) <= 4


def test_training_mode_without_gradients(watched: Watched) -> None:
    norm, twin = (torch.nn.BatchNorm1d(12).train() for _ in range(2))
    compiled, x = torch.compile(norm, backend=watched, options=FAST), torch.randn(5, 12)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    drop = torch.compile(torch.nn.Dropout(0.5).train(), backend=watched, options=FAST)
    with torch.no_grad():
        assert not torch.equal(drop(torch.ones(999)), drop(torch.ones(999)))
    assert not any(isinstance(made, compile_backend.Program) for made in watched.made)


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
