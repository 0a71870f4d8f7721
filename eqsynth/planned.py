"""Programs for a device that isn't at hand: a plan by its profile, and a bundle to carry there.

    planned = plan(module, (x,), Target.from_json(text))
    print(planned)
    planned.save("program.gpu")

Saturation and selection are those of ``optimize``, under the costs of the device's profile; nothing
is timed, checked or raced here. Not here: kernels and libraries of the device (``lower/cuda``),
what runs on this machine (``pipeline.py``).
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from eqsynth.errors import EqsynthError
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import DOUBT, CostModel, measurement_key
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import COMPUTE, Profile
from eqsynth.extract.select import Selection
from eqsynth.extract.target import CPU, CUDA, Target
from eqsynth.frontend.captured import Captured, capture_expression, expressions_of
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.assemble import Assembly, assemble
from eqsynth.lower.cuda import nvrtc
from eqsynth.lower.cuda.backend import GeneratedBackend, Load, architectures, gpu_backends
from eqsynth.lower.cuda.source import PRELUDE, Source
from eqsynth.lower.kernel_data import kernel_to_data
from eqsynth.lower.torch_scalars import as_bytes
from eqsynth.numerics import rules_of
from eqsynth.progress import Progress
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings

FORMAT: Final = "eqsynth plan"
VERSION: Final = 1


@dataclass(frozen=True)
class Planned:
    """A plan, assembled: constants are evaluated, kernels have their source.

    Attributes:
        target: the device, as its profile has it.
        source: of the generated kernels.
    """

    target: Target
    plan: Plan
    assembly: Assembly
    source: Source = field(repr=False)

    def __str__(self) -> str:
        """A line a step: the name, what runs it, the layouts, the result's type."""
        lines = [f"{self.target.device.model}: {self.plan.cost_s * 1e6:.1f} us by its profile"]
        for step in self.assembly.steps:
            kernel = step.kernel
            how = f"{kernel.implementation} {kernel.schedule}".strip()
            moved = ", ".join("".join(map(str, at)) for at in (*kernel.inputs, kernel.output))
            called = f"{how}({', '.join(step.args)})"
            lines.append(f"  {step.name} = {called}  {moved}  {kernel.term.type}")
        return "\n".join(lines)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, on the device that holds the inputs.

        Raises:
            LoweringError: the plan was made without a device to run on.
        """
        names = [parameter.input.name for parameter in self.assembly.parameters]
        values = dict(zip(names, inputs, strict=True)) | dict(self.assembly.constants)
        for step in self.assembly.steps:
            given = zip(step.args, step.kernel.constants, strict=True)
            values[step.name] = step.runner(*(values[n] for n, constant in given if not constant))
        return tuple(values[name] for name in self.assembly.outputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the bundle: a zip file with the manifest, the constants, and the generated kernels
        as text and as a cubin for each kind of GPU.

        Raises:
            LoweringError: there are generated kernels, and nvrtc isn't installed.
        """
        cubins = {
            arch: nvrtc.compile_cubin(self.source.text, arch)
            for arch in architectures(self.target)
            if self.source.entries
        }
        with zipfile.ZipFile(Path(path), "w") as bundle:
            bundle.writestr("manifest.json", json.dumps(self.manifest(), indent=1))
            for name, value in self.assembly.constants.items():
                bundle.writestr(f"constants/{name}", as_bytes(value).numpy().tobytes())
            if self.source.entries:
                bundle.writestr("kernels.cu", PRELUDE + self.source.text)
            for arch, cubin in cubins.items():
                bundle.writestr(f"kernels.{arch}.cubin", cubin)

    def manifest(self) -> dict[str, Any]:
        """What the bundle says of itself."""
        kernels = list(dict.fromkeys(step.kernel for step in self.assembly.steps))
        told = []
        for kernel in kernels:
            entry = self.source.entries.get(kernel)
            launched = {} if entry is None else {
                "symbol": entry.symbol, "blocks": entry.launch.blocks,
                "threads": entry.launch.threads, "arguments": list(entry.arguments),
            }  # fmt: skip
            told.append(kernel_to_data(kernel) | launched)
        constants = self.assembly.constants.items()
        return {
            "format": FORMAT, "version": VERSION, "target": json.loads(self.target.to_json()),
            "inputs": [
                [p.input.name, list(p.input.shape), p.input.dtype] for p in self.assembly.parameters
            ],
            "kernels": told,
            "steps": [
                [step.name, kernels.index(step.kernel), list(step.args)]
                for step in self.assembly.steps
            ],
            "outputs": list(self.assembly.outputs),
            "constants": [
                [name, list(v.shape), str(v.dtype).removeprefix("torch.")] for name, v in constants
            ],
        }  # fmt: skip


def plan(
    program: torch.nn.Module | Expr | Sequence[Expr],
    example_inputs: Sequence[torch.Tensor] = (),
    target: Target | None = None,
    *,
    time_limit_s: float = 60.0,
    numerics: str = "real",
    load: Load | None = None,
) -> Planned:
    """A plan for a GPU that needn't be here, by its profile.

    Args:
        program: a module in evaluation mode, or an expression.
        target: the device. Its profile's times are used where there are some, imported by
            ``Profile.import_from``; else the peaks decide.
        numerics: as ``optimize`` has it.
        load: makes the generated kernels run; None where the plan is carried elsewhere.

    Raises:
        EqsynthError: no profile of a GPU is given.
        CaptureError: the module can't be captured.
        LoweringError: a kernel has no code.
    """
    if target is None or target.name != CUDA:
        raise EqsynthError(
            "plan: a plan for a GPU follows its profile, and there is none",
            got=repr(target and target.name),
            expected=f"a Target of the kind {CUDA!r}: peaks, levels of memory, operators, layouts",
            hint="Target.from_json reads the file that holds one",
        )
    settings = Settings(
        CPU, (), "time", time_limit_s, 100_000, 4 << 30, numerics, False, False, ()
    )  # fmt: skip
    captured = _captured(program, example_inputs)
    rules, end = rules_of((), numerics, where="plan"), time.monotonic() + time_limit_s
    with Progress(False) as bar:
        graph = Saturation(
            captured.program, settings, rules, bar, end, lambda _segments: None
        ).run()
    backends = gpu_backends(target, captured.opaque, load)
    with closing(Profile(target.key())) as profile:
        costs = CostModel(target, profile)
        selection = Selection(graph, candidates(graph, backends))
        chosen = selection.best(partial(_expected_s, costs))
    assembly = assemble(
        captured.program, graph, chosen, captured.weights, backends, settings.memory_limit,
        captured.opaque,
    )  # fmt: skip
    (generated,) = (b for b in backends if isinstance(b, GeneratedBackend))
    return Planned(target, chosen, assembly, generated.source)


def _expected_s(costs: CostModel, kernel: Kernel) -> float:
    """What a kernel is taken to cost. By its roofline alone a generated contraction would be as
    fast as the library's: where it has no time, it is taken to be as far from it as kernels may be.
    """
    seconds = costs(kernel)
    if not kernel.generated or costs.measured(kernel):
        return seconds
    return seconds * DOUBT if measurement_key(kernel).kind.endswith(COMPUTE) else seconds


def _captured(
    program: torch.nn.Module | Expr | Sequence[Expr], example_inputs: Sequence[torch.Tensor]
) -> Captured:
    if isinstance(program, torch.nn.Module):
        return capture(program, tuple(example_inputs), {})
    return capture_expression(expressions_of(program, {}))
