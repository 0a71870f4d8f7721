"""Plan a program for a device that isn't here, by the device's profile, and save it for use there.

    program = plan(module, (x,), target=eqsynth.extract.carried.read("h100.json"))
    print(program)
    program.report
    eqsynth.save(program, "program.eqsynth")

Saturation and selection are those of ``optimize``, which calls :func:`plan`, under the costs of the
device's profile. Nothing is timed, checked or raced. Not here: kernels and libraries of the device
(``lower/cuda``), programs that run on this machine (``pipeline.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch

from eqsynth.errors import EqsynthError
from eqsynth.explain import NoExplanation
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import DOUBT, CostModel, measurement_key
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import COMPUTE, Profile
from eqsynth.extract.select import Selection
from eqsynth.extract.target import CPU, KINDS, Target
from eqsynth.frontend.captured import Captured, capture_expression, expressions_of
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.backends import planning_backends
from eqsynth.lower.places import HOST, Place, elsewhere, moved
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.same_code import code_of
from eqsynth.lowered import lowered, mutations_of
from eqsynth.numerics import Files, rule_files, rules_of
from eqsynth.progress import Progress
from eqsynth.report import Report
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings


def plan(
    program: torch.nn.Module | Expr | Sequence[Expr],
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: Target | None = None,
    rules: Files = (),
    time_limit_s: float = 60.0,
    numerics: str = "real",
    certify: bool = False,
    load: Callable[..., Any] | None = None,
) -> CompiledProgram:
    """Return a program for a GPU that needn't be here, planned by its profile. ``str(program)`` has
    a line for each step: the kernel, the layouts, the result's type.

    Args:
        program: a module in evaluation mode, or an expression.
        target: the device. Its profile's measured times are used if it has some
            (``Profile.import_from``); otherwise kernels are estimated by the peaks.
        rules, numerics, certify: as for ``optimize``.
        load: makes the generated kernels run on this machine; None if the program is carried to
            another machine, and can't be called here.

    Raises:
        EqsynthError: the target is missing, or isn't a GPU.
        CaptureError: the module can't be captured.
        LoweringError: a kernel has no code.
        CertificateError: a certificate fails.
    """
    if target is None or target.name == CPU:
        others = ", ".join(repr(kind) for kind in KINDS if kind != CPU)
        raise EqsynthError(
            "plan: a plan for a device that isn't here is one for a GPU, by its profile",
            got=repr(target and target.device.model),
            expected=f"a Target of a kind of {others}: peaks, levels of memory, operators, layouts",
            hint="eqsynth profile --device cuda, where the device is, writes it to a file",
        )
    begin = time.monotonic()
    settings = Settings(
        CPU, rule_files(rules), "time", time_limit_s, 100_000, 4 << 30, numerics, False, False, (),
        certify=certify,
    )  # fmt: skip
    loaded = rules_of(settings.rules, numerics, where="plan")
    captured = _captured(program, example_inputs, example_kwargs or {})
    report = Report(reason=f"planned by the profile of {target.device.model}: nothing was timed")
    report.count_before(captured.program)
    with Progress(False) as bar:
        saturation = Saturation(
            captured.program, settings, loaded, bar, begin + time_limit_s, lambda _segments: 1
        )
        graph = saturation.run()
    report.segments, report.distinct_segments = len(saturation.segments), saturation.distinct
    report.enodes, report.eclasses, report.stop = graph.enodes, graph.eclasses, graph.stop
    report.rules_fired, report.certified = graph.matches, saturation.certified
    backends = planning_backends(target, captured.opaque, load)
    with closing(Profile(target.key())) as profile:
        costs = CostModel(target, profile, code_of=code_of)
        found = candidates(graph, backends)
        chosen = Selection(graph, found).best(partial(_expected_s, costs))
        report.kernels_estimated = sum(not costs.measured(kernel) for kernel in chosen.kernels())
    made = lowered(
        captured, graph, chosen, backends, limit_bytes=settings.memory_limit, report=report,
        mutations=mutations_of(captured),
        place=elsewhere(target) if load is None else Place(target=target),
        explanation=NoExplanation("the program was planned, and its derivation isn't kept"),
    )  # fmt: skip
    report.count_after(chosen, made.constants, made.constant_bytes(), made.scratch_bytes())
    report.optimize_s = time.monotonic() - begin
    return made


def _expected_s(costs: CostModel, kernel: Kernel) -> float:
    """The seconds that a kernel is expected to take. The roofline estimates a generated contraction
    as fast as the library's. So an unmeasured generated kernel is charged ``DOUBT`` times its
    roofline estimate, as far as kernels may be from it."""
    seconds = costs(kernel)
    if not kernel.generated or costs.measured(kernel):
        return seconds
    return seconds * DOUBT if measurement_key(kernel).kind.endswith(COMPUTE) else seconds


def _captured(
    program: torch.nn.Module | Expr | Sequence[Expr],
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any],
) -> Captured:
    """Capture the program on the host, wherever its tensors are."""
    if isinstance(program, torch.nn.Module):
        args, kwargs = moved((tuple(example_inputs), dict(example_kwargs)), HOST)
        return capture(program, args, kwargs)
    return capture_expression(expressions_of(program, {}))
