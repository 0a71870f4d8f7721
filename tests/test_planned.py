"""Plans for a GPU that isn't here: which operators, in which layouts; the bundle; and the whole
program, its driver played by the CPU, against the original."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import eqsynth
from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.extract.target import CPU, CUDA
from eqsynth.lower.cuda import driver, nvrtc
from eqsynth.lower.cuda.cubin import resources
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.planned import Planned, plan

sys.path.append(str(Path(__file__).parent / "lower"))

from gpu_cases import GPU, load_on_cpu  # noqa: E402


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
def planned(given: tuple[torch.nn.Module, torch.Tensor]) -> Planned:
    module, x = given
    return plan(module, (x,), GPU, time_limit_s=20.0, load=load_on_cpu)


def test_a_plan_names_what_runs_each_step(planned: Planned) -> None:
    used = {step.kernel.backend for step in planned.assembly.steps}
    assert "cublasLt" in used and CUDA in used
    assert not used & {"onednn", "tvm"}
    text = str(planned)
    assert text.startswith("a GPU with round numbers: ") and "cublasLt.linear" in text


def test_the_program_of_a_plan_is_the_original(
    given: tuple[torch.nn.Module, torch.Tensor], planned: Planned
) -> None:
    module, x = given
    with torch.no_grad():
        (got,) = planned(x)
        torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_attention() -> None:
    module, x = Attention().eval(), torch.randn(1, 32, 64)
    found = plan(module, (x,), GPU, time_limit_s=30.0, load=load_on_cpu)
    with torch.no_grad():
        (got,) = found(x)
        torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-5)


def test_layouts_are_converted_at_the_border() -> None:
    """Images come and go with channels outside, and a device that has no such convolutions gets
    them inside. No time is given for rules, so that the convolution stays one."""
    module, x = torch.nn.Conv2d(64, 64, 3, bias=False).eval(), torch.randn(8, 64, 56, 56)
    last = replace(GPU, layouts=("channels_last",))
    found = plan(module, (x,), last, time_limit_s=0.001)
    (conv,) = [s.kernel for s in found.assembly.steps if s.kernel.backend == "cudnn"]
    assert conv.inputs[0] == conv.output == (0, 2, 3, 1)
    moved = [s.kernel for s in found.assembly.steps if s.kernel.backend != "cudnn"]
    assert [(k.inputs[0], k.output) for k in moved] == [
        ((0, 1, 2, 3), (0, 2, 3, 1)), ((0, 2, 3, 1), (0, 1, 2, 3))
    ]  # fmt: skip
    plain = plan(module, (x,), replace(GPU, layouts=("contiguous",)), time_limit_s=0.001)
    assert [s.kernel.backend for s in plain.assembly.steps] == ["cudnn"]


@pytest.mark.skipif(not nvrtc.available(), reason="nvrtc isn't installed")
def test_a_bundle_carries_all_that_it_needs(planned: Planned, tmp_path: Path) -> None:
    path = tmp_path / "program.gpu"
    planned.save(path)
    assert path.stat().st_size < 20 << 20
    with zipfile.ZipFile(path) as bundle:
        manifest = json.loads(bundle.read("manifest.json"))
        for arch in ("sm_80", "sm_90"):
            found = resources(bundle.read(f"kernels.{arch}.cubin"))
            assert set(found) == {k["symbol"] for k in manifest["kernels"] if "symbol" in k}
        for name, extents, dtype in manifest["constants"]:
            size = torch.empty(extents, dtype=getattr(torch, dtype), device="meta").nbytes
            assert bundle.getinfo(f"constants/{name}").file_size == size
    _check_manifest(planned, manifest)


def test_the_manifest_of_a_plan(planned: Planned) -> None:
    _check_manifest(planned, json.loads(json.dumps(planned.manifest())))


def _check_manifest(planned: Planned, manifest: dict[str, object]) -> None:
    kernels, steps = manifest["kernels"], manifest["steps"]
    assert isinstance(kernels, list) and isinstance(steps, list)
    for step, (name, number, args) in zip(planned.assembly.steps, steps, strict=True):
        assert (name, tuple(args)) == (step.name, step.args)
        # An operator of a rule file is another object when it is read; its text is the same.
        read = kernel_from_data(kernels[number])
        assert kernel_to_data(read) == kernel_to_data(step.kernel)
        assert ("symbol" in kernels[number]) == step.kernel.generated
    names = [name for name, _, _ in steps] + [row[0] for row in manifest["inputs"]]  # type: ignore[attr-defined]
    assert set(manifest["outputs"]) <= {*names}  # type: ignore[call-overload]


def test_what_is_planned_for_another_machine_refuses_to_run(
    given: tuple[torch.nn.Module, torch.Tensor],
) -> None:
    module, x = given
    found = plan(module, (x,), GPU, time_limit_s=20.0)  # its e-graph is remembered
    with pytest.raises(LoweringError, match="only planned"):
        found(x)


@pytest.mark.parametrize("target", [None, replace(GPU, name=CPU)])
def test_without_a_profile_there_is_no_plan(target: object) -> None:
    with pytest.raises(EqsynthError) as caught:
        plan(torch.nn.ReLU().eval(), (torch.ones(3),), target)  # type: ignore[arg-type]
    assert "Target.from_json" in caught.value.hint


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU")
def test_optimize_for_a_device_that_is_not_here() -> None:
    with pytest.raises(EqsynthError) as caught:
        eqsynth.optimize(torch.nn.ReLU().eval(), (torch.ones(3),), target=CUDA)
    assert caught.value.got == driver.missing()
    assert "eqsynth.planned.plan" in caught.value.hint
