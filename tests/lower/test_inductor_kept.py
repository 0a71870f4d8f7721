"""Regions that Inductor compiled are kept: loaded with other weights, or compiled again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config, cpu_vec_isa
from torch._inductor.exc import CppCompileError, InductorError

from eqsynth import kept
from eqsynth.ir.tensor import Input, Op, Region
from eqsynth.ir.types import TensorType
from eqsynth.lower.engines import inductor, inductor_kept
from eqsynth.lower.engines.inductor_kept import Compiled
from eqsynth.lower.torch_calls import NO_CALLS, Calls

ROOT = Path(__file__).resolve().parents[2]

X, W, B, V = (
    Input(str(n), TensorType(shape, "float32"))
    for n, shape in enumerate([(4, 400), (400, 100), (160,), (400, 60)])
)
# Inductor joins the weights when it compiles: by an operator of which a sibling writes into memory.
BOTH = Op("Concat", (W, V), (1,))
LAYER = Region((Op("Relu", (Op("Add", (Op("Matmul", (X, BOTH)), B)),)),), (X, W, B, V))


def constants(w: torch.Tensor, bias: torch.Tensor) -> dict[int, torch.Tensor]:
    """The layer's, so that its product is one with ``w``."""
    return {1: w[:, :100].contiguous(), 2: bias, 3: w[:, 100:].contiguous()}


pytestmark = pytest.mark.skipif(
    inductor.Inductor().version() is None, reason="Inductor needs a C++ compiler"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    """What is compiled from here on, into an empty cache directory; the layer with random weights
    is, as the measuring worker does it."""
    real, found = inductor._fresh, list[Region]()

    def fresh(region: Region, constants: Mapping[int, torch.Tensor], calls: Calls) -> Any:
        found.append(region)
        return real(region, constants, calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQSYNTH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(inductor, "_fresh", fresh)
        call(torch.randn(400, 160))
        assert len(found) == 1
        yield found


def call(w: torch.Tensor, b: float = 1.0) -> None:
    """Builds the layer with its weights, and compares what it gives."""
    bias = torch.linspace(-b, b, 160)
    run = inductor.Inductor().compiled(LAYER, constants(w, bias))
    for _ in range(2):
        x = torch.randn(4, 400)
        torch.testing.assert_close(run(x), torch.relu(x @ w + bias), rtol=1e-4, atol=1e-4)


@pytest.mark.rotating
def test_other_large_weights_take_what_was_compiled(compiled: list[Region]) -> None:
    before = len(compiled)
    call(torch.randn(400, 160))
    call(torch.zeros(400, 160))
    assert len(compiled) == before


@pytest.mark.rotating
def test_other_small_constants_are_compiled_anew(compiled: list[Region]) -> None:
    """Numbers of small constants may stand in the code."""
    before = len(compiled)
    call(torch.randn(400, 160), b=2.0)
    assert len(compiled) == before + 1


def test_what_is_kept_is_read_as_data_and_a_damaged_file_costs_a_compilation(
    compiled: list[Region],
) -> None:
    weights = constants(torch.randn(400, 160), torch.linspace(-1.0, 1.0, 160))
    path = inductor_kept._path(LAYER, weights)
    found = kept.load(path, kept.classes(Compiled))
    assert isinstance(found, Compiled) and found.steps
    for steps in (
        (json.dumps(["aten::add_.Tensor", [{"tensor": 0}, 1.0], {"dict": {}}, [9]]),),
        (json.dumps(["no::operator", [], {"dict": {}}, [9]]),),
        ("",),
        found.steps[:-1],
    ):
        kept.keep(path, replace(found, steps=steps), 1 << 20)
        with pytest.raises(inductor_kept.Unkept):
            inductor_kept.load(LAYER, weights)
    kept.keep(path, replace(found, instructions="other"), 1 << 20)
    with pytest.raises(inductor_kept.Unkept):
        inductor_kept.load(LAYER, weights)
    kept.keep(path, found, 1 << 20)
    inductor_kept.load(LAYER, weights)


BATCH = Region(
    (Op("Relu", (Op("Matmul", (Input("0", TensorType((6, 64, 64), "float32")),) * 2),)),),
    (Input("0", TensorType((6, 64, 64), "float32")),),
)
IN_ANOTHER_PROCESS = """
import sys, torch
from tests.lower.test_inductor_kept import BATCH, LAYER, constants
from eqsynth.lower.engines import inductor_kept

w, x, y = torch.randn(400, 160), torch.randn(4, 400), torch.randn(6, 64, 64)
bias = torch.linspace(-1.0, 1.0, 160)
(found,) = inductor_kept.load(LAYER, constants(w, bias))([x])
torch.testing.assert_close(found, torch.relu(x @ w + bias), rtol=1e-4, atol=1e-4)
(found,) = inductor_kept.load(BATCH, {})([y])
torch.testing.assert_close(found, torch.relu(y @ y), rtol=1e-4, atol=1e-4)
print("torch._inductor.select_algorithm" in sys.modules)
"""


@pytest.mark.rotating
def test_another_process_loads_no_templates(compiled: list[Region]) -> None:
    """Of a packed product, and of one of torch's functions, which Inductor has its own name for."""
    inductor.Inductor().compiled(BATCH, {})
    kept_code = kept.load(inductor_kept._path(BATCH, {}), kept.classes(Compiled))
    assert kept_code is not None and "extern_kernels.bmm(" in kept_code.source
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
    done = subprocess.run(
        [sys.executable, "-c", threads + IN_ANOTHER_PROCESS],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "False\n", done.stderr


IMPORT = "from torch._inductor.select_algorithm import extern_kernels\n"


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("extern_kernels.bmm(x, y, out=z)", True),
        ("torch.ops.mkldnn._linear_pointwise(x, y)", True),
        ("extern_kernels.bias_addmm(b, x, y, out=z)", False),  # Inductor's own
        ("extern_kernels.mm_dtype(x, y, out=z)", False),
        ("extern_kernels.relu(x)", False),  # torch's, but no name of Inductor's
        ("call(extern_kernels)", False),
        ("torch.ops.prims.inductor_random(x)", False),
    ],
)
def test_code_takes_from_torch_what_is_torchs(code: str, taken: bool) -> None:
    found = inductor_kept.without_templates(IMPORT + code)
    assert found == ("import torch as extern_kernels\n" if taken else IMPORT) + code


def test_what_gives_other_values_is_not_kept(
    compiled: list[Region], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = constants(torch.randn(400, 160), torch.linspace(-1.0, 1.0, 160))
    found = kept.load(inductor_kept._path(LAYER, weights), kept.classes(Compiled))
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    tape = inductor_kept.Tape(weights)
    tape.compiled = found
    x = torch.randn(4, 400)
    right = torch.relu(x @ torch.cat([weights[1], weights[3]], 1) + weights[2])
    inductor_kept.keep(LAYER, weights, tape, [x], [right + 1.0])
    with pytest.raises(inductor_kept.Unkept):
        inductor_kept.load(LAYER, weights)
    inductor_kept.keep(LAYER, weights, tape, [x], inductor_kept._called_with(found, weights)([x]))
    inductor_kept.load(LAYER, weights)


@pytest.mark.parametrize(
    ("fault", "compilations"),
    [
        (None, [True]),
        (CppCompileError(["g++"], "unknown option -mavx512"), [True, None]),
        (OSError("undefined symbol"), [True, None]),
        (NotImplementedError("an operator"), [True]),
    ],
)
def test_instructions_are_tried_where_the_compiler_has_failed(
    fault: Exception | None, compilations: list[bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """True: Inductor takes what the processor has; None: it tries each set of instructions."""
    forgotten: list[bool | None] = []
    made: list[bool | None] = []

    def compile_fx(*_: Any, **__: Any) -> Any:
        made.append(config.cpp.vec_isa_ok)
        try:
            if fault is not None and config.cpp.vec_isa_ok:
                raise fault
        except Exception:  # as Inductor does it
            raise InductorError(fault, None) from None
        return lambda *_: (torch.zeros(4, 160),)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(inductor_kept, "forget_instructions", lambda: forgotten.append(None))
    weights = constants(torch.randn(400, 160), torch.zeros(160))
    if isinstance(fault, NotImplementedError):
        with pytest.raises(InductorError):
            inductor._fresh(LAYER, weights, NO_CALLS)
    else:
        inductor._fresh(LAYER, weights, NO_CALLS)
    assert made == compilations
    assert len(forgotten) == len(compilations) - 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="nothing is tried on other processors")
def test_instructions_are_taken_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No set of instructions is tried, nor what it adds to another one (bf16, VNNI, AMX)."""
    tried: list[str] = []

    def check_build(isa: Any, _code: str) -> bool:
        tried.append(str(isa))
        return False

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    inductor_kept.forget_instructions()
    try:
        with inductor_kept.taking_instructions():
            assert cpu_vec_isa.valid_vec_isa_list() and not tried
        inductor_kept.forget_instructions()
        assert not cpu_vec_isa.valid_vec_isa_list() and tried
    finally:
        inductor_kept.forget_instructions()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="nothing is tried on other processors")
def test_forgotten_instructions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    works = True

    def check_build(_isa: Any, _code: str) -> bool:
        return works

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    inductor_kept.forget_instructions()
    try:
        with config.patch({"cpp.vec_isa_ok": True}):
            assert cpu_vec_isa.valid_vec_isa_list()
        works = False
        assert cpu_vec_isa.valid_vec_isa_list()
        inductor_kept.forget_instructions()
        assert not cpu_vec_isa.valid_vec_isa_list()
    finally:
        inductor_kept.forget_instructions()
