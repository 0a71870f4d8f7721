"""Plans for a GPU that isn't here: which operators, in which layouts; the bundle; and the whole
program, its driver played by the CPU, against the original."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import eqsynth
from eqsynth import planned as planned_at
from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.extract import carried
from eqsynth.extract.target import CPU, CUDA
from eqsynth.lower.cuda import backend, carrying, driver, nvrtc
from eqsynth.lower.cuda.cubin import resources
from eqsynth.lower.places import Place
from eqsynth.lower.program import CompiledProgram
from eqsynth.planned import plan
from eqsynth.settings import aimed_at
from tests.played import GPU, Cudnn, a_gpu, load_on_cpu


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.project(x).reshape(b, n, 3, 4, 16).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, 64)) + x


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(192, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(torch.relu(self.inner(x)))
        return y.transpose(0, 1).contiguous() * torch.sigmoid(y.sum(1))


@pytest.fixture(scope="module")
def given() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Layer().eval(), torch.randn(32, 64)


@pytest.fixture(scope="module")
def planned(given: tuple[torch.nn.Module, torch.Tensor]) -> CompiledProgram:
    module, x = given
    return plan(module, (x,), target=GPU, time_limit_s=300.0, load=load_on_cpu)


def used(program: CompiledProgram) -> set[str]:
    return {step.kernel.backend for step in program.steps}


@pytest.mark.rotating
def test_a_plan_names_what_runs_each_step(planned: CompiledProgram) -> None:
    assert "cublasLt" in used(planned) and CUDA in used(planned)
    assert not used(planned) & {"onednn", "tvm"}
    assert "cublasLt.linear" in repr(planned)
    assert "planned by the profile of a GPU with round numbers" in str(planned.report)
    assert planned.report.kernels_estimated == len(planned.steps)


def test_the_program_of_a_plan_is_the_original(
    given: tuple[torch.nn.Module, torch.Tensor], planned: CompiledProgram
) -> None:
    module, x = given
    with torch.no_grad():
        torch.testing.assert_close(planned(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_attention() -> None:
    module, x = Attention().eval(), torch.randn(1, 32, 64)
    found = plan(module, (x,), target=GPU, time_limit_s=300.0, load=load_on_cpu)
    with torch.no_grad():
        torch.testing.assert_close(found(x), module(x), rtol=1e-4, atol=1e-5)


def test_layouts_are_converted_at_the_border() -> None:
    """Images come and go with channels outside, and a device that has no such convolutions gets
    them inside. No time is given for rules, so that the convolution stays one."""
    module, x = torch.nn.Conv2d(64, 64, 3, bias=False).eval(), torch.randn(8, 64, 56, 56)
    last = replace(GPU, layouts=("channels_last",))
    found = plan(module, (x,), target=last, time_limit_s=0.001)
    (conv,) = [s.kernel for s in found.steps if s.kernel.backend == "cudnn"]
    assert conv.inputs[0] == conv.output == (0, 2, 3, 1)
    moved = [s.kernel for s in found.steps if s.kernel.backend != "cudnn"]
    assert [(k.inputs[0], k.output) for k in moved] == [
        ((0, 1, 2, 3), (0, 2, 3, 1)), ((0, 2, 3, 1), (0, 1, 2, 3))
    ]  # fmt: skip
    only = replace(GPU, layouts=("contiguous",))
    plain = plan(module, (x,), target=only, time_limit_s=0.001)
    assert [s.kernel.backend for s in plain.steps] == ["cudnn"]


class Sliced(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(17, 13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 5:22] @ self.weight


class Attended(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("module", "shapes", "wanted"),
    [
        (Sliced(), [(11, 23)], {"cublas.strided"}),
        (Attended(), [(1, 4, 48, 16)] * 3, {"cutlass.attention", "torch.view", "torch"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plan_passes_operands_as_they_lie(
    module: torch.nn.Module, shapes: list[tuple[int, ...]], wanted: set[str]
) -> None:
    """A slice isn't copied: its strides and its offset are the product's. Attention is one
    operator, named by what computes it."""
    given = tuple(torch.randn(shape) for shape in shapes)
    found = plan(module.eval(), given, target=GPU, time_limit_s=300.0, load=load_on_cpu)
    assert {step.kernel.implementation for step in found.steps} <= wanted
    assert min(wanted) in {step.kernel.implementation for step in found.steps}
    with torch.no_grad():
        torch.testing.assert_close(found(*given), module(*given), rtol=1e-4, atol=1e-4)


def test_a_program_is_aimed_at_what_holds_its_tensors() -> None:
    with FakeTensorMode():  # which has tensors of devices that aren't here
        there = torch.empty(2, device=CUDA)
    here = torch.ones(2)
    assert aimed_at(None, [here, there]) == CUDA
    assert aimed_at(None, [here]) == aimed_at(None, []) == CPU
    assert aimed_at(CPU, [there]) == CPU and aimed_at(GPU, [here]) is GPU


@pytest.fixture(scope="module")
def bundle(planned: CompiledProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not nvrtc.available():
        pytest.skip("nvrtc isn't installed")
    path = tmp_path_factory.mktemp("bundle") / "program.eqsynth"
    eqsynth.save(planned, path)
    return path


def test_a_bundle_carries_all_that_it_needs(planned: CompiledProgram, bundle: Path) -> None:
    assert bundle.stat().st_size < 20 << 20
    with zipfile.ZipFile(bundle) as members:
        manifest = json.loads(members.read("manifest.json"))
        library = carrying.unpacked(members.read("kernels"))
    kernels = manifest["program"]["kernels"]["kernels"]
    symbols = {kernel["entry"]["symbol"] for kernel in kernels if kernel["entry"]}
    assert len(symbols) == len({s.kernel for s in planned.steps if s.kernel.generated})
    assert manifest["machine"] == ["sm_80", "sm_90"]
    for arch in manifest["machine"]:
        assert set(resources(library[f"{arch}.cubin"])) == symbols
    assert manifest["program"]["kernels"]["device"] == json.loads(GPU.to_json())


@pytest.mark.rotating
def test_a_bundle_is_loaded_where_the_gpu_is(
    given: tuple[torch.nn.Module, torch.Tensor], bundle: Path, planned: CompiledProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The cubin of the nearest kind of GPU goes to the driver, which plays its text."""
    module, x = given
    with zipfile.ZipFile(bundle) as members:
        library = carrying.unpacked(members.read("kernels"))
    taken: list[bytes] = []

    def play(cubin: bytes) -> driver.Module:
        taken.append(cubin)
        generated = [s.kernel for s in planned.steps if s.kernel.generated]
        return load_on_cpu(backend.source(generated))

    with a_gpu():
        monkeypatch.setattr(driver, "Module", play)
        monkeypatch.setattr(backend, "architecture", lambda: "sm_86")
        loaded = eqsynth.load(bundle)
        assert taken == [library["sm_80.cubin"]]
        with torch.no_grad():
            for _ in range(3):  # the first call records, others run the recording
                torch.testing.assert_close(loaded(x), module(x), rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(backend, "architecture", lambda: "sm_75")
        with pytest.raises(LoweringError) as caught:
            eqsynth.load(bundle)
        assert caught.value.expected == "sm_75" and caught.value.got == "sm_80, sm_90"
        eqsynth.load(bundle, recompile=True)
        assert taken[-1] not in library.values() and resources(taken[-1])


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU")
def test_a_bundle_without_the_gpu(bundle: Path) -> None:
    with pytest.raises(LoweringError) as caught:
        eqsynth.load(bundle)
    assert caught.value.got == driver.missing() and caught.value.where == str(bundle)


@pytest.mark.rotating
def test_loading_a_bundle_takes_torch_and_the_driver(bundle: Path) -> None:
    """And neither TVM nor nvrtc: they are forbidden in the process, where no driver is played
    either, so that it ends at the missing GPU, after all that is imported."""
    code = f"""
import sys
sys.modules |= dict.fromkeys(("tvm", "egglog", "ortools", "eqsynth.frontend", "eqsynth.egraph"))
from eqsynth.lower.cuda import backend, driver, nvrtc, place
from eqsynth.lower.places import Place
backend.architecture = lambda: "sm_90"
nvrtc._library = None
place.place = lambda target: Place(target=target)
class Module:
    def __init__(self, cubin): assert cubin[:4] == bytes([127]) + b"ELF"
    def function(self, symbol): return symbol
driver.Module = Module
from eqsynth.lower.bundle import load
print(load({str(bundle)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cublasLt.linear" in done.stdout


@pytest.mark.rotating
def test_what_is_planned_for_another_machine_refuses_to_run(
    given: tuple[torch.nn.Module, torch.Tensor], tmp_path: Path
) -> None:
    """By the file of a profile, and by its name once it was read."""
    module, x = given
    carried.write(GPU, tmp_path / "round.json")
    for target in (tmp_path / "round.json", "round"):
        found = eqsynth.optimize(module, (x,), target=target, time_limit_s=120.0)
        assert CUDA in used(found) and found.place.target == GPU
        with pytest.raises(LoweringError, match="isn't here"):
            found(x)


@pytest.mark.parametrize("target", [None, replace(GPU, name=CPU)])
def test_without_a_profile_there_is_no_plan(target: object) -> None:
    with pytest.raises(EqsynthError) as caught:
        plan(torch.nn.ReLU().eval(), (torch.ones(3),), target=target)  # type: ignore[arg-type]
    assert "eqsynth profile --device" in caught.value.hint


def test_a_target_that_nobody_knows(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text("[]")
    for target, where in (("tpu", ""), (tmp_path / "none.json", ""), (odd, str(odd))):
        with pytest.raises(EqsynthError) as caught:
            eqsynth.optimize(torch.nn.ReLU().eval(), (torch.ones(3),), target=target)
        assert caught.value.where == where and "eqsynth profile --device" in str(caught.value)


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU")
def test_optimize_for_a_device_that_is_not_here() -> None:
    with pytest.raises(EqsynthError) as caught:
        eqsynth.optimize(torch.nn.ReLU().eval(), (torch.ones(3),), target=CUDA)
    assert caught.value.got == driver.missing()
    assert "eqsynth profile --device" in caught.value.hint


# ---- nothing is left on the host ------------------------------------------------------------


class Images(torch.nn.Module):
    """Convolutions of each kind that cuDNN has, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.up(torch.relu(self.second(y) + y)).mean((2, 3))


class Data(torch.nn.Module):
    """With rows by data, a mask, lines of numbers, and operators that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(20, 8)
        self.register_buffer("line", torch.arange(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.rows(x)
        values, places = torch.sort(y.sum(-1), -1)
        mask = torch.ones(6, 6).triu(1).bool()
        weights = (y @ y.transpose(-1, -2)).masked_fill(mask, -torch.inf).softmax(-1)
        taken = y.gather(1, places.unsqueeze(-1).expand(-1, -1, 8))
        return weights @ y, torch.cumprod(values, -1) + torch.arange(6) * self.line, places, taken


class Nowhere:
    """A module of the driver whose launches do nothing."""

    def function(self, symbol: str) -> str:
        return symbol

    def launch(self, *_: object) -> None:
        """There is nothing to compute on the device of the test."""


@pytest.mark.rotating
@pytest.mark.parametrize("module", [Images(), Data(), Attention()], ids=lambda m: type(m).__name__)
def test_a_program_keeps_to_its_device(
    module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's ``meta`` is a device like a GPU, but that it has no numbers: an operator with tensors
    of it and of the host is refused."""
    there = torch.device("meta")
    Cudnn.played(monkeypatch)
    monkeypatch.setattr(planned_at, "Place", lambda target: Place(there, target=target))
    given = {Images: torch.randn(2, 3, 6, 6), Data: torch.randint(0, 20, (3, 6))}
    x = given.get(type(module), torch.randn(1, 32, 64))
    load = cast("backend.Load", lambda source: Nowhere())
    program = plan(module.eval(), (x,), target=GPU, time_limit_s=1.0, load=load)
    with torch.no_grad():
        results, expected = program(x.to(there)), module(x)
    for result, value in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        assert (result.device, result.shape, result.dtype) == (there, value.shape, value.dtype)
    with pytest.raises(EqsynthError) as caught:
        program(x)
    assert "meta" in caught.value.expected
