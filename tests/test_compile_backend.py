"""``torch.compile(model, backend="eqsynth")``."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eqsynth import compile_backend, sizes
from eqsynth.errors import CompileWarning, EqsynthError, GradientWarning
from eqsynth.graph_weights import is_held, with_weights
from tests.compiled import Bottleneck, Watched

FAST = {"time_limit_s": 120.0, "objective": "flops"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


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
        # Weights have the names that they have in the model.
        assert set(program.names.values()) == {"up_weight", "up_bias", "down_weight", "down_bias"}
        report = program.program.report
        assert report.flops_after < report.flops_before / 5
        # Changed in place, and replaced: the next call sees it, without a search.
        model.up.weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), model(x))
        model.down.bias = torch.nn.Parameter(torch.randn(12))
        torch.testing.assert_close(compiled(x), model(x))
        model.load_state_dict(Bottleneck().state_dict())
        torch.testing.assert_close(compiled(x), model(x))
        # So it does where torch counts no change.
        model.up.weight.data.fill_(0.5)
        torch.testing.assert_close(compiled(x), model(x))
        model.down.weight.detach().numpy()[:] = 0.25
        torch.testing.assert_close(compiled(x), model(x))
        assert program.instead is None
        # What eqsynth doesn't take is still computed.
        model.up.bias.fill_(float("inf"))
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)
        assert program.instead is not None
    assert len(watched.made) == 1


def test_weights_of_any_name_are_held() -> None:
    """By what they are called, as far as Python allows it and nothing else is called so."""

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("graph", "lambda", "a b", "0"):
                self.register_buffer(name, torch.randn(3))
            self.a = torch.nn.Module()
            self.a.register_buffer("b_c", torch.randn(3))
            self.a_b = torch.nn.Module()
            self.a_b.register_buffer("c", torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            own = [getattr(self, name) for name in ("graph", "lambda", "a b", "0")]
            return x + sum((n + 1) * w for n, w in enumerate([*own, self.a.b_c, self.a_b.c]))

    found: list[dict[int, str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        held = {n: value for n, value in enumerate(inputs) if is_held(value)}
        module, names = with_weights(graph, held, {})
        found.append(names)
        given = [value for n, value in enumerate(inputs) if n not in held]
        result = module(*given)
        return lambda *_: result

    model, x = Named().eval(), torch.randn(3)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    names = list(found[0].values())
    assert len(set(names)) == 6 and {"a_b", "a_b_c", "model_lambda", "model_0"} <= set(names)


def sized(watched: Watched) -> sizes.BySize:
    (found,) = [made for made in watched.made if isinstance(made, sizes.BySize)]
    return found


@pytest.mark.rotating
def test_a_size_that_comes_again_is_optimized_up_to_a_limit(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    class Tall(Bottleneck):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x).reshape(2 * x.shape[0], -1), 3 * x.shape[0], None

    model = Tall().eval()
    compiled = torch.compile(model, backend=watched, options={**FAST, "sizes": 2})
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth.compile"):
        for rows in (5, 7, 7, 9, 8, 8, 9, 7, 5, 8):
            x, state = torch.randn(rows, 12), torch.get_rng_state()
            torch.testing.assert_close(compiled(x), model(x))
            assert torch.equal(torch.get_rng_state(), state)
        assert isinstance(watched.made[0], compile_backend.Program)
        programs = sized(watched).programs
        assert set(programs) == {(7, (7, 12)), (8, (8, 12))}
        assert all(isinstance(p, compile_backend.Program) for p in programs.values())
        # The first was searched; the second follows it.
        reports = [p.program.report for p in programs.values()]
        assert [report.followed for report in reports] == [False, True]
        assert len({round(r.flops_before / r.flops_after, 3) for r in reports}) == 1
        # One change of a weight is seen at each size.
        model.up.weight.mul_(2.0)
        for rows in (7, 8, 9):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(watched.made) == 2 and "symbolic sizes" in caplog.text


@pytest.mark.rotating
@pytest.mark.parametrize("how", ["dynamic", "marked"])
def test_sizes_that_are_symbolic_from_the_beginning(watched: Watched, how: str) -> None:
    model = Bottleneck().eval()
    compiled = torch.compile(
        model, backend=watched, options=FAST, dynamic=True if how == "dynamic" else None
    )
    with torch.no_grad():
        for rows in (4, 4, 6, 6, 6):
            x = torch.randn(rows, 12)
            if how == "marked":
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(sized(watched).programs) == 2


@pytest.mark.slow
def test_a_batch_and_a_length_take_one_search_and_one_graph(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = torch.nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.into(x).chunk(3, -1)
            return torch.relu(q @ k.mT) @ v

    model = Attention().eval()
    compiled = torch.compile(model, backend=watched, options=FAST, dynamic=True)
    sizes = [(2, 5), (2, 5), (2, 7), (2, 7), (3, 7), (3, 7), (4, 9), (4, 9)]
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth"):
        for batch, length in sizes:
            x = torch.randn(batch, length, 8)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(watched.made) == 1
    found: list[Any] = list(sized(watched).programs.values())
    assert [p.program.report.followed for p in found] == [False, True, True, True]
    assert caplog.text.count("as the plan of other sizes has it") == 3


@pytest.mark.rotating
def test_numbers_among_the_inputs_are_sizes_too(watched: Watched) -> None:
    def head(x: torch.Tensor, rows: int) -> torch.Tensor:
        return torch.relu(x[:rows]) * rows + torch.arange(rows).view(-1, 1)

    compiled = torch.compile(head, backend=watched, options=FAST, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 3, 2, 2):
            x = torch.randn(6, 3)
            torch.testing.assert_close(compiled(x, rows), head(x, rows))
    assert {key[-1] for key in sized(watched).programs} == {2, 3}


def test_sizes_are_looked_for_by_one_thread_at_a_time() -> None:
    """The others don't wait: they run what takes every size."""
    begun, go, calls = threading.Event(), threading.Event(), []

    def find(inputs: Any) -> Any:
        calls.append(inputs)
        begun.set()
        assert go.wait(60)
        return lambda size: -size

    by_size = sizes.BySize(find, lambda size: size, (0,), 3)
    assert by_size(7) == 7
    thread = threading.Thread(target=by_size, args=(7,))
    thread.start()
    assert begun.wait(60)
    assert by_size(7) == 7 and by_size(8) == 8
    go.set()
    thread.join()
    assert by_size(7) == -7 and calls == [(7,)]


def test_an_error_of_the_graph_is_the_graphs(watched: Watched) -> None:
    table = torch.nn.Embedding(4, 8)
    compiled = torch.compile(table, backend=watched, options=FAST)
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.tensor([1, 2])), table(torch.tensor([1, 2])))
        with pytest.raises(IndexError):
            compiled(torch.tensor([1, 9]))
        torch.testing.assert_close(compiled(torch.tensor([3, 2])), table(torch.tensor([3, 2])))
        (program,) = watched.made
        assert isinstance(program, compile_backend.Program) and program.instead is None


def test_inputs_that_are_not_dense_run(watched: Watched) -> None:
    compiled = torch.compile(lambda x: x.to_dense() * 2, backend=watched, options=FAST)
    x = torch.randn(3, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.to_mkldnn()), 2 * x)


def test_a_graph_that_inductor_refuses_runs(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(lambda x: (x.view(-1) * 3, x.view(-1)), backend=watched, options=FAST)
    x, none = torch.randn(3, 5), {"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}
    with (
        torch.no_grad(),
        torch._inductor.config.patch(none),
        caplog.at_level(logging.WARNING, "eqsynth.compile"),
    ):
        torch.testing.assert_close(compiled(x), (x.view(-1) * 3, x.view(-1)))
    assert "Inductor doesn't compile a graph" in caplog.text


@pytest.mark.rotating
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


@pytest.mark.rotating
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


@pytest.mark.rotating
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


class Permuted(torch.nn.Module):
    """Goes on with a result whose axes have another order in memory than its shape says."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Bottleneck()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.part(x).permute(0, 2, 1)
        torch._dynamo.graph_break()
        return y.stride(), y.transpose(1, 2).view(-1)


@pytest.mark.rotating
def test_results_keep_the_order_of_their_axes_in_memory(watched: Watched) -> None:
    model, x = Permuted().eval(), torch.randn(2, 5, 12)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        (strides, got), (others, expected) = compiled(x), model(x)
    assert strides == others == (60, 1, 12) and isinstance(watched.made[0], compile_backend.Program)
    torch.testing.assert_close(got, expected)


def test_graphs_of_other_devices_go_to_inductor() -> None:
    assert not compile_backend._refusal([torch.empty(2)])
    assert compile_backend._refusal([torch.empty(2), torch.empty(2, device="meta")])


class Faulty(float):
    """A time limit at which the search breaks, though it is a number."""

    def __truediv__(self, other: object) -> float:
        raise RuntimeError("a fault")


@pytest.mark.rotating
def test_a_fault_in_eqsynth_costs_the_graph_only_and_leaves_a_script(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    options = {**FAST, "time_limit_s": Faulty(3.0)}
    compiled = torch.compile(model, backend=watched, options=options)
    with torch.no_grad(), pytest.warns(CompileWarning, match="RuntimeError: a fault") as caught:
        torch.testing.assert_close(compiled(x), model(x))
    assert not isinstance(watched.made[0], compile_backend.Program)
    (script,) = (tmp_path / "reproducers").glob("*.py")
    assert any(str(script) in str(w.message) for w in caught)
    # It runs by itself, on the same weights: the fault was in the limit, which no text says.
    text = script.read_text(encoding="utf-8")
    assert "a fault" in text and "'objective': 'flops'" in text
    names: dict[str, Any] = {"__file__": str(script)}
    exec(compile(text, str(script), "exec"), names)
    with torch.no_grad():
        torch.testing.assert_close(names["program"](x)[0], model(x))


@pytest.mark.rotating
def test_a_script_computes_by_what_torch_did_when_it_failed(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    options = {**FAST, "time_limit_s": Faulty(3.0)}
    compiled = torch.compile(model, backend=watched, options=options)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.warns(CompileWarning):
        compiled(x)
        expected = model(x)
    (script,) = (tmp_path / "reproducers").glob("*.py")
    names: dict[str, Any] = {"__file__": str(script)}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), names)
    assert names["found"][0].dtype == names["expected"][0].dtype == torch.bfloat16
    torch.testing.assert_close(names["expected"][0], expected)


@pytest.mark.rotating
def test_the_faster_of_the_program_and_inductors_is_taken(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    layers = torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 64)
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(256, 64)
    compiled = torch.compile(model, backend=watched, options={"time_limit_s": 10.0})
    with torch.no_grad(), caplog.at_level(logging.INFO, "eqsynth.compile"):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    told = [record.args for record in caplog.records if record.msg.startswith("eqsynth takes")]
    if not told:  # where the machine is busy, the program may lose to the module already
        assert "nothing faster was found" in caplog.text
        return
    ours, theirs = told[0]  # type: ignore[misc]
    assert isinstance(watched.made[0], compile_backend.Program) == (ours < theirs)


@pytest.mark.rotating
def test_programs_know_autocast(watched: Watched) -> None:
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options=FAST)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = compiled(x), model(x)
        assert got.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.01)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.rotating
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


@pytest.mark.rotating
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


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"options": {"time": 3}}, "'time'"),
        ({"options": {"time_limit_s": -1}}, "-1"),
        ({"options": {"objective": "speed"}}, "'speed'"),
        ({"options": {"numerics": "exact"}}, "'exact'"),
        ({"options": {"sizes": 1.5}}, "1.5"),
        ({"options": {"strict": "yes"}}, "'yes'"),
        ({"options": {"engines": "inductor"}}, "'inductor'"),
        ({"options": {"engines": ["gpu"]}}, "'gpu'"),
        ({"options": {"rules": [3]}}, "[3]"),
        ({"options": {"rules": ["no-such-file.egg"]}}, "no-such-file.egg"),
        ({"mode": "fastest"}, "'fastest'"),
        ({"options": {"mode": "fastest"}}, "'fastest'"),
    ],
)
def test_a_wrong_option_is_told(given: dict[str, Any], got: str) -> None:
    compiled = torch.compile(Bottleneck().eval(), backend="eqsynth", **given)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(torch.randn(5, 12))
    error = caught.value.inner_exception
    assert isinstance(error, EqsynthError)
    assert got in error.got or got in error.where, error


def test_a_transform_that_torch_export_leaves_open_is_ended() -> None:
    """``torch.export`` fails inside of the ``jvp`` of this graph; left open, the transform made
    Dynamo's guards fail in the user's first call."""
    function = torch.func.jacfwd(torch.tanh)
    made = torch.compile(lambda x: function(x), backend="eqsynth", options=FAST)
    x = torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(made(x), torch.diag(1 - x.tanh() ** 2))
