"""Inductor's compilations end at a deadline, with the compilers that they wait for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch._inductor import cpu_vec_isa

import eqsynth
from eqsynth.compile_backend import _Inductor
from eqsynth.ir.tensor import Input, Op, Region, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.lower.backends import time_kernels
from eqsynth.lower.engines import bounded, inductor
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES

pytestmark = pytest.mark.skipif(
    inductor.Inductor().version() is None, reason="Inductor needs a C++ compiler"
)

SLOW_S = 120
"""What the planted compiler takes: far longer than any of these tests, also on a loaded machine."""

X = Input("0", TensorType((7, 33), "float32"))


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A C++ compiler that says what it is at once, and takes minutes for everything else, as g++
    does in a process of its own. The folder has ``begun`` when it was called so, and ``done`` in
    the end."""
    real = next(p for name in ("g++", "clang++", "c++") if (p := shutil.which(name)))
    from torch._inductor import config

    script = tmp_path / "g++"
    script.write_text(
        f"#!/bin/sh\ncase \"$*\" in *--version*|-v|*-dumpversion*) exec {real} \"$@\";; esac\n"
        f"touch {tmp_path}/begun\n"
        f"sh -c 'sleep {SLOW_S}; touch {tmp_path}/done'\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    with config.patch({"cpp.cxx": (None, str(script))}):
        yield tmp_path


def _ended(folder: Path) -> bool:
    """Whether a compiler was called, and has nothing left that would come to its end."""
    lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return (folder / "begun").exists() and not any(str(folder / "done") in line for line in lines)


@pytest.mark.rotating
def test_a_graph_whose_compiler_is_late_stays_as_it_is(slow_compiler: Path) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.GELU(), torch.nn.Tanh()))
    x, seconds = torch.randn(5, 11), 1.0
    while not (slow_compiler / "begun").exists():  # a slow machine gets more time
        seconds *= 2
        made = _Inductor(graph, [x], None)
        with torch.no_grad(), bounded.until(time.monotonic() + seconds):
            called = made("it is asked for")
    assert made.failed and called is made.plain
    torch.testing.assert_close(called(x), graph(x))
    assert _ended(slow_compiler) and not (slow_compiler / "done").exists()
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 0


@pytest.mark.rotating(parts=4)
def test_a_region_whose_compiler_is_late_is_refused(slow_compiler: Path) -> None:
    region, seconds = Region((Op("Tanh", (Op("Relu", (X,)),)),), (X,)), 1.0
    while not (slow_compiler / "begun").exists():
        seconds *= 2
        with pytest.raises(Exception) as caught, bounded.until(time.monotonic() + seconds):
            inductor.Inductor().compiled(region, {})
        assert bounded.is_late(caught.value)
    assert _ended(slow_compiler) and not (slow_compiler / "done").exists()
    # A test of vector instructions that the deadline has ended says nothing about the processor.
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 0


def test_operators_are_lowered_up_to_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    lowered: list[object] = []
    real = GraphLowering.run_node
    monkeypatch.setattr(GraphLowering, "run_node", lambda g, n: lowered.append(n) or real(g, n))
    clock = iter(range(10_000))
    monkeypatch.setattr(bounded, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    part: Tensor = X
    for _ in range(9):
        part = Op("Tanh", (part,))
    with pytest.raises(Exception) as caught, bounded.until(4.0):
        inductor.Inductor().compiled(Region((part,), (X,)), {})
    assert bounded.is_late(caught.value) and len(lowered) == 3


def test_kernels_are_written_up_to_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codegen.cpp import CppKernelProxy

    now, written = [0.0], list[object]()
    real = CppKernelProxy.codegen_functions

    def write(kernel: CppKernelProxy, *args: object) -> object:
        written.append(kernel)
        now[0] = 10.0  # the first kernel takes all the time
        return real(kernel, *args)

    monkeypatch.setattr(CppKernelProxy, "codegen_functions", write)
    monkeypatch.setattr(bounded, "time", SimpleNamespace(monotonic=lambda: now[0]))
    other = Input("1", TensorType((5, 3, 2), "float32"))  # of another shape: a kernel of its own
    region = Region((Op("Tanh", (X,)), Op("Exp", (other,))), (X, other))
    with pytest.raises(Exception) as caught, bounded.until(4.0):
        inductor.Inductor().compiled(region, {})
    assert bounded.is_late(caught.value) and len(written) == 1


def test_the_earlier_of_two_deadlines_counts() -> None:
    with bounded.until(time.monotonic() + 600):
        outer = bounded.left_s()
        with bounded.until(time.monotonic() + 6000):
            assert bounded.left_s() <= outer
    assert bounded.left_s() == float("inf")


@pytest.mark.slow
def test_the_plan_is_what_was_measured_where_an_engine_is_late(
    slow_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(slow_compiler / "g++"))  # of the worker that compiles
    net = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 8))
    x, limit_s, timed = torch.randn(5, 24), 4.0, 0
    while not (slow_compiler / "begun").exists():
        limit_s *= 2
        program = eqsynth.optimize(
            net.eval(), (x,), time_limit_s=limit_s, engines=("inductor",), progress=False
        )
        timed += program.report.kernels_timed  # what one of them has timed, the next ones know
    torch.testing.assert_close(program(x), net(x).detach(), rtol=1e-4, atol=1e-5)
    report = program.report
    assert timed and not report.kernels_estimated
    assert "inductor" not in report.backend and not report.engine_refused
    assert _ended(slow_compiler) and not (slow_compiler / "done").exists()


@pytest.mark.rotating(parts=4)
def test_a_kernel_whose_compiler_is_late_has_no_time_and_has_not_failed(
    slow_compiler: Path,
) -> None:
    """A kernel that fails (None) isn't tried again for a day; this one would be ready in more
    time."""
    region = Region((Op("Tanh", (X,)),), (X,))
    (kernel,) = RegionBackend(ENGINES["inductor"]).kernels(region, (False,))
    assert time_kernels([kernel], 1, time.monotonic() + 2.0) == []
    assert _ended(slow_compiler)
