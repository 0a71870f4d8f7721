"""Where values between steps lie, and that nobody sees it: neither results, nor another call, nor
who keeps what he was given."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
import torch
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from lower_cases import op
from programs import program_of, step

from eqsynth.extract.kernel import writing, written
from eqsynth.extract.layout import view_kernel
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Num, Prod, Read, Sum
from eqsynth.ir.tensor import Input, Scope
from eqsynth.ir.types import TensorType
from eqsynth.lower import launches
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.step_times import step_times
from eqsynth.lower.steps import Step
from eqsynth.lower.torch_backend import VIEW
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.lower.workspace import Value, Workspaces, places

N = 48


@st.composite
def values(draw: st.DrawFn) -> list[Value]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 9))
        last, size = first + draw(st.integers(0, 5)), draw(st.integers(1, 300))
        dtype = draw(st.sampled_from((torch.float32, torch.bool, torch.float64)))
        found.append(Value(first, last, (size,), (1,), dtype))
    return found


@given(values())
def test_what_lives_at_once_lies_apart(found: list[Value]) -> None:
    begin, total = places(found)
    ends = [at + value.nbytes for at, value in zip(begin, found, strict=True)]
    assert total == max(ends, default=0)
    assert all(at % 64 == 0 for at in begin)
    for n, m in combinations(range(len(found)), 2):
        if found[n].first <= found[m].last and found[m].first <= found[n].last:
            assert ends[n] <= begin[m] or ends[m] <= begin[n]


def test_what_is_dead_makes_room() -> None:
    chain = [Value(n, n + 1, (100,), (1,), torch.float32) for n in range(10)]
    assert places(chain)[1] == 448 + 400


@cache
def _backend() -> TvmBackend:
    return TvmBackend()


def _sum(name: str, *args: str, times: float = 1.0, size: int = N) -> Step:
    """``times`` the sum of the arguments, by a generated kernel."""
    inputs = [Input(arg, TensorType((size,), "float32")) for arg in args]
    reads = tuple(Read(x, (Index.iterator(0, size),)) for x in inputs)
    body = Prod((Num(times), Sum(reads) if len(reads) > 1 else reads[0]))
    return step(name, Scope((size,), (), body), *args, backend=_backend())


def _diamond() -> CompiledProgram:
    """2 x, 3 x, their sum, and three times that: a place is free when the last step begins."""
    steps = [
        _sum("a", "x", times=2.0),
        _sum("b", "x", times=3.0),
        _sum("c", "a", "b"),
        _sum("d", "c", times=3.0),
        _sum("y", "d", "c"),
    ]
    return program_of({"x": (N,)}, steps, ["y"])


def test_results_are_fresh_and_what_is_between_them_is_not() -> None:
    program = _diamond()
    assert program.source.count("fresh") == 1
    first, second = torch.randn(N), torch.randn(N)
    one = program(first)
    kept = one.clone()
    other = program(second)
    assert torch.equal(one, kept)
    torch.testing.assert_close(one, 20 * first)
    torch.testing.assert_close(other, 20 * second)
    at = other.data_ptr()
    del other
    assert program(first).data_ptr() == at, "what nobody holds is used again"


def test_calls_at_once_have_memory_of_their_own() -> None:
    """Two calls meet between the step that writes ``a`` and the one that reads it."""
    meeting = threading.Barrier(2, timeout=60)

    def waiting(x: torch.Tensor) -> torch.Tensor:
        meeting.wait()
        return x.clone()

    term = op("Opaque", (N,), attrs=("mine", (N,), "float32"))
    steps = [
        _sum("a", "x", times=2.0),
        step("b", term, "x", opaque={"mine": waiting}),
        _sum("y", "a", "b"),
    ]
    program = program_of({"x": (N,)}, steps, ["y"])
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            given = [torch.randn(N) for _ in range(2)]
            for x, y in zip(given, pool.map(program, given), strict=True):
                torch.testing.assert_close(y, 3 * x)


def test_a_call_within_a_call_has_memory_of_its_own() -> None:
    """An operator of the user's, between two steps, calls the program that it is a part of."""
    depth = [0]

    def within(x: torch.Tensor) -> torch.Tensor:
        depth[0] += 1
        return program(x) if depth[0] == 1 else x.clone()

    term = op("Opaque", (N,), attrs=("mine", (N,), "float32"))
    steps = [
        _sum("a", "x", times=2.0),
        step("b", term, "x", opaque={"mine": within}),
        _sum("y", "a", "b"),
    ]
    program = program_of({"x": (N,)}, steps, ["y"])
    x = torch.randn(N)
    torch.testing.assert_close(program(x), 5 * x)


def test_what_a_function_of_the_users_is_given_stays_as_it_was() -> None:
    kept: list[torch.Tensor] = []

    def keeping(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.clone()

    term = op("Opaque", (N,), attrs=("mine", (N,), "float32"))
    steps = [_sum("a", "x"), step("b", term, "a", opaque={"mine": keeping}), _sum("y", "b")]
    program = program_of({"x": (N,)}, steps, ["y"])
    for number in range(3):
        program(torch.full((N,), float(number)))
    assert [float(x[0]) for x in kept] == [0.0, 1.0, 2.0]


def test_what_is_viewed_lives_as_long_as_its_views() -> None:
    """``a`` is read, in another shape, when ``b`` and ``c`` are dead; a view of a view is a result.
    A scope that is a view stays a step; an operator that is one is taken of what it views."""
    reads = (Index.iterator(1, 6), Index.iterator(0, 8))
    turned = Scope((8, 6), (), Read(Input("0", TensorType((6, 8), "float32")), reads))
    kernel = view_kernel(turned, (0, 1))
    assert kernel is not None
    back = op("Permute", (8, 6), attrs=((1, 0),))
    steps = [
        _sum("a", "x"),
        step("rows", op("Reshape", (N,), attrs=((6, 8),)), "a"),
        step("scope", turned, "rows", kernel=kernel),
        step("back", back, "scope", kernel=view_kernel(back, kernel.output)),
        step("op", op("Reshape", (6, 8), attrs=((N,),)), "back"),
        _sum("b", "x", times=5.0),
        _sum("c", "b", times=7.0),
        _sum("y", "op"),
        _sum("d", "x"),
        step("half", op("Slice", (N,), attrs=(0, 24, 48, 1)), "d"),
        step("whole", op("Reshape", (24,), attrs=((4, 6),)), "half"),
        _sum("z", "c"),
    ]
    viewing = [s.name for s in steps if s.kernel.implementation == VIEW]
    assert viewing == ["rows", "scope", "back", "op", "half", "whole"]
    program = program_of({"x": (N,)}, steps, ["y", "whole", "z"])
    x = torch.randn(N)
    results = program(x)
    program(torch.zeros(N))
    y, whole, z = results
    assert torch.equal(y, x) and torch.equal(whole, x[24:].reshape(4, 6))
    torch.testing.assert_close(z, 35 * x)


def test_memory_is_not_bound_to_the_mode_of_the_call_that_made_it() -> None:
    """A tensor that is made for inference may not go everywhere in torch."""
    memory = Workspaces([Value(0, 1, (N,), (1,), torch.float32)], torch.device("cpu"))
    with torch.inference_mode():
        value, _ = memory.take()
    assert not value.is_inference() and not value.requires_grad


def _steps_of_a_loop() -> list[Step]:
    """Two rows of one value, each read by kernels: ``y = 5 (2 (3 x)[:48] + (3 x)[48:])``."""
    half = [op("Slice", (2 * N,), attrs=(0, at, at + N, 1)) for at in (0, N)]
    return [
        _sum("all", "x", times=3.0, size=2 * N),
        step("first", half[0], "all"),
        step("second", half[1], "all"),
        _sum("a", "first", times=2.0),
        _sum("b", "a", "second"),
        _sum("y", "b", times=5.0),
    ]


def test_views_of_what_lies_in_the_workspace_are_made_once() -> None:
    program = program_of({"x": (2 * N,)}, _steps_of_a_loop(), ["y"])
    assert "as_strided(" not in program.source
    for _ in range(2):
        x = torch.randn(2 * N)
        torch.testing.assert_close(program(x), 5 * (6 * x[:N] + 3 * x[N:]))


def test_kernels_on_the_workspace_are_called_together() -> None:
    """The first kernel reads the user's tensor, and the last one writes a new tensor."""
    program = program_of({"x": (2 * N,)}, _steps_of_a_loop(), ["y"])
    called = re.findall(r"^ *(?:if )?(f\d+|launch)\((.*?)[,)]", program.source, re.MULTILINE)
    assert [name for name, _ in called] == ["f0", "launch", "f5"]
    assert program.source.count("launch(g0.address, 2)") == 1


def test_without_a_c_compiler_each_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "run", lambda: None)
    program = program_of({"x": (2 * N,)}, _steps_of_a_loop(), ["y"])
    assert "launch(" not in program.source
    x = torch.randn(2 * N)
    torch.testing.assert_close(program(x), 5 * (6 * x[:N] + 3 * x[N:]))


def test_a_kernel_that_fails_among_others_raises_its_error() -> None:
    """The kernel of ``b`` is given a tensor of another length, as by a fault of ours."""
    steps = _steps_of_a_loop()
    writes = written(steps[4].runner)
    assert writes is not None
    wrong = replace(writes, args=(tvm_ffi.from_dlpack(torch.zeros(N + 1)), *writes.args[1:]))
    steps[4] = replace(steps[4], runner=writing(steps[4].runner, wrong))
    program = program_of({"x": (2 * N,)}, steps, ["y"])
    assert "launch(" in program.source
    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError), match=r"shape"):
            program(torch.randn(2 * N))


def test_a_step_is_timed_as_it_runs_in_the_program() -> None:
    """On the workspace's memory: the runner that allocates its result isn't called."""
    steps = _steps_of_a_loop()

    def allocating(*_: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    for n in (0, 3, 4, 5):
        how = written(steps[n].runner)
        assert how is not None
        steps[n] = replace(steps[n], runner=writing(lambda *a: allocating(*a), how))
    program = program_of({"x": (2 * N,)}, steps, ["y"])
    times = step_times(program, (torch.randn(2 * N),), {})
    assert times[1:3] == (0.0, 0.0) and min(times[0], *times[3:]) > 0
