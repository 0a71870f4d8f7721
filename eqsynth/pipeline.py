"""``optimize``: capture a program, search for a faster one, and check it. All stages in a row:

capture -> cut -> saturate -> stitch -> extract -> lower -> check -> race against the original.

Whatever goes wrong on the way costs speed, never the result: the original program is a candidate in
every stage, and is returned if a stage gives up. Not here: the stages after the capture
(``running.py``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._pytree import tree_leaves

from eqsynth import telling
from eqsynth.checking import warn, warn_of_fault, warn_of_mended
from eqsynth.errors import (
    CaptureError,
    CertificateError,
    EqsynthError,
    ExtractionError,
    LoweringError,
    SeveralGraphsError,
    UnsteadyError,
    WritingError,
)
from eqsynth.explain import NoExplanation
from eqsynth.extract.route import Route
from eqsynth.extract.target import CPU, Target
from eqsynth.frontend.captured import Captured, capture_expression, expressions_of
from eqsynth.frontend.examples import arguments, opened, validate
from eqsynth.frontend.exported import is_exported
from eqsynth.frontend.exported import module_of as module_of_exported
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.onnx import is_model, module_of
from eqsynth.frontend.steady import check_steady, kept_generators
from eqsynth.frontend.torch_export import capture
from eqsynth.garbage import collecting_seldom
from eqsynth.lower.backends import engines as engines_of
from eqsynth.lower.backends import is_here, place_of, target_here
from eqsynth.lower.check import Mismatch
from eqsynth.lower.holders import Opened, inside
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.places import host_by_default, users_default
from eqsynth.lower.program import CompiledProgram
from eqsynth.numerics import Files, rule_files, rules_of
from eqsynth.original import Original, on_host
from eqsynth.planned import plan
from eqsynth.progress import Progress
from eqsynth.report import Report
from eqsynth.running import Run
from eqsynth.searching import LOADING_S
from eqsynth.settings import Settings, aimed_at, flags

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram


@host_by_default
def optimize(
    program: torch.nn.Module
    | ExportedProgram
    | Expr
    | Sequence[Expr]
    | str
    | os.PathLike[str]
    | bytes
    | ModelProto,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    target: str | os.PathLike[str] | Target | None = None,
    rules: Files = (),
    objective: str = "time",
    time_limit_s: float = 120.0,
    node_limit: int = 100_000,
    memory_limit: int = 4 << 30,
    numerics: str = "real",
    check: bool = True,
    strict: bool = False,
    explain: bool = True,
    certify: bool = False,
    engines: str | Sequence[str] | None = None,
    own_constants: bool = True,
    tune: float = 0.0,
    peak_memory: float = math.inf,
    like: CompiledProgram | Route | None = None,
    progress: bool | None = None,
) -> CompiledProgram:
    """Return a faster program that computes the same.

    Args:
        program: a module in evaluation mode; an expression of ``eqsynth.input`` and
            ``eqsynth.weight``; an ONNX model (a path, the bytes of a file, or a ``ModelProto``); or
            a program of ``torch.export``, or the path of its file (``.pt2``).
        example_inputs: positional arguments of the module, as tensors of the shapes and dtypes that
            it will be called with. They may be left out for an ONNX model that states all sizes.
        example_kwargs: arguments that the module will be called with by name. Arguments that are
            left out have their defaults. Dicts may come in any order of keys if the module allows
            it.
        target: the device that the program will run on: ``cpu``, ``cuda`` (a GPU of this machine),
            or a device described by the profile that ``eqsynth profile --device`` has written (a
            file, its name once it was read, or a ``Target``). By default the device that has the
            module's weights and the example inputs. For a device that isn't here, the program is
            planned by its profile; it can't be called here, but can be saved and loaded there. On a
            GPU, constants are always the program's own, engines aren't used, and a module that
            takes objects holding tensors isn't optimized.
        rules: one rule file or several (paths), loaded after eqsynth's own.
        objective: what is made small: ``time`` on the target, or ``flops``.
        time_limit_s: seconds for the whole call: capture, saturation, selection, measuring,
            compiling for engines, and the race. When they are over, the best program so far is
            used, chosen by estimates if kernels weren't measured; the report says which. Up to a
            quarter of the limit is kept for the check and the race. These parts may exceed the
            limit: a capture, by what it takes over half of the limit; the check of a slow module
            (about 60 calls); one kernel that is being compiled, or one region on ONNX Runtime or
            OpenVINO; ``certify``; and ``tune``. A module whose single call takes longer than the
            limit (and over 5 s) isn't optimized. ``float("inf")`` is no limit.
        node_limit: e-nodes of one segment at which saturation stops.
        memory_limit: bytes that each of these may take: the address space of a saturation worker,
            the constants that a compiled program keeps, and any single value that it computes. A
            program with a larger value, such as ``x.expand(1 << 36, 3)``, isn't optimized unless a
            plan avoids this value.
        numerics: the change of rounding that rules may make: ``bitwise`` (none), ``real`` (another
            order of operations), ``cancels`` (may lose digits), ``approx``.
        check: compare the result with the original on several kinds of random inputs. If they
            differ by more than rounding explains, an ``EquivalenceWarning`` is given. If a part of
            the program has lost digits, that part stays as it was (``report.mended``); else the
            original is returned, and the report has the ``reason``.
        strict: raise ``EquivalenceError`` instead of warning. Also raise an error that is a fault
            of eqsynth itself, where otherwise the original is returned with a ``FaultWarning``.
        explain: log the matches of rules, so that ``explain()`` can show the steps.
        certify: check each equality that the search has used, on data and without the code that has
            found it (``eqsynth.certificates``); ``report.certified`` counts them. If a certificate
            fails, this is treated as a result that differs. The time comes on top of the limit.
        engines: engines, besides eqsynth's own kernels, that may run parts of the program or all of
            it if they measure faster: ``inductor`` (torch's compiler; takes seconds to try),
            ``onnxruntime``, ``openvino``. By default the engines that ``EQSYNTH_ENGINES`` lists, or
            all that are installed; ``()`` for none.
        own_constants: the program has copies of its constants: it shares no memory with the
            module's weights, and computes with the present weights until
            ``CompiledProgram.refresh`` gives it new ones. With False, weights that are used
            unchanged are shared with the module, which saves memory; a call after a weight has
            changed raises ``WeightError``.
        tune: seconds, beyond the time limit, for trying other schedules of the generated kernels
            that take most time. They are used if the program is faster with them. All measured
            times are kept, so that a later call continues an interrupted tuning.
        peak_memory: bytes that a program may need: inputs, constants, and the values that live at
            the same time (``report.peak_memory_bytes``). Not counted are the memory that a
            library's kernel takes while it runs, and results that the caller keeps. The fastest
            plan within the bound is used. If none is found, the original is returned, whatever it
            needs, and the report has the ``reason``. Engines aren't used, since they don't say how
            much they need.
        like: a program that was found for other sizes, or its ``report.route``. Then nothing is
            searched: the rules that fired for the other sizes make the e-graph for these, and the
            plan takes the same choices as far as sizes don't matter. If there is no such plan, as
            for a program that computes something else, the search runs as usual, and
            ``report.unlike`` is set.
        progress: show a progress bar; by default on a terminal.

    Returns:
        A :class:`CompiledProgram`: called like the module, with ``report`` and ``explain()``. It
        is the original wherever nothing faster was found.

    Raises:
        EqsynthError: an argument is wrong, or the inputs don't fit the module.
        CaptureError, UnsupportedOperatorError: an ONNX model is damaged, or has an operator that
            can't be run.
        RuleError: a rule file can't be used.
        EquivalenceError: with ``strict``, the result differs from the original (a fault, not a
            matter of rounding), or a certificate fails (``CertificateError``).

    >>> import torch
    >>> layer = torch.nn.Linear(8, 8).eval()
    >>> program = optimize(layer, (torch.ones(2, 8),), time_limit_s=10)  # doctest: +SKIP
    """
    asked_for = {"check": check, "strict": strict, "explain": explain, "certify": certify}
    flags({**asked_for, "own_constants": own_constants, "progress": progress}, where="optimize")
    args, kwargs = arguments(example_inputs, example_kwargs)
    if is_exported(program):
        program, args, kwargs = module_of_exported(program, args, kwargs)
    aim = aimed_at(target, _tensors(program, args, kwargs))
    away = aim if isinstance(aim, Target) and not is_here(aim) else None
    kind = CPU if away else aim.name if isinstance(aim, Target) else aim
    named = (engines,) if isinstance(engines, str) else engines
    asked = tuple(named) if named is not None else None if kind == CPU else ()
    settings = Settings(
        kind, rule_files(rules), objective, time_limit_s, node_limit, memory_limit, numerics, check,
        explain, asked, own_constants or kind != CPU, tune, certify, peak_memory,
    )  # fmt: skip
    engines_of(settings.engines)
    route = _route_of(like)
    begin = time.monotonic()
    loaded = rules_of(settings.rules, settings.numerics, where="optimize")
    loaded_at = time.monotonic()
    files = set(map(str, settings.rules))
    report = Report(own_rules=tuple(r.name for r in loaded.rules if r.file in files))
    if is_model(program):
        program, args = module_of(program, args, kwargs)
    module = program if isinstance(program, torch.nn.Module) else None
    if module is not None:
        validate(module, args, kwargs)
    if away is not None:
        return plan(
            cast("torch.nn.Module | Expr", program), args, kwargs, target=away, rules=rules,
            time_limit_s=time_limit_s, numerics=numerics, certify=certify,
        )  # fmt: skip
    on = aim if isinstance(aim, Target) else target_here(kind)
    # Loading the libraries of the process that measures takes seconds, so it begins before the
    # capture, which takes seconds, too. The target's peaks are measured before, while all is quiet.
    ahead = settings.objective == "time" and kind == CPU and time_limit_s > LOADING_S
    with Measurer(torch.get_num_threads()) as measurer:
        if ahead:
            measurer.prepare()
        own = module, args, kwargs
        try:
            if module is not None:
                limits = settings.memory_limit, settings.time_limit_s
                if kind != CPU:
                    # A copy of the module on the host is captured; the compiled program is checked
                    # against the module on its device.
                    module, args, kwargs = on_host(module, args, kwargs)
                with kept_generators(), users_default() if kind == CPU else nullcontext():
                    module, args, kwargs = opened(module, args, kwargs, *limits)
                if kind != CPU and isinstance(module, Opened):
                    raise CaptureError(
                        "objects that hold tensors are captured on the CPU only",
                        got=f"such an argument or result on {kind}",
                        expected="tensors, in lists, tuples and dicts",
                        hint="the original runs as it is",
                    )
                check_steady(module, args, kwargs)
                with kept_generators(), collecting_seldom():
                    captured = _captured(module, args, kwargs, strict)
            else:
                captured = capture_expression(expressions_of(program, kwargs))
        except CaptureError as error:
            assert module is not None and own[0] is not None
            if kind != CPU:
                module, args, kwargs = own[0], *own[1:]
            telling.refused("the module", error)
            report.stop = "unsteady" if isinstance(error, UnsteadyError) else "capture"
            report.several_graphs = kind == CPU and isinstance(error, SeveralGraphsError)
            report.reason = str(error)
            report.optimize_s = time.monotonic() - begin
            why = NoExplanation(f"the original program is used: {error.what}")
            return CompiledProgram.from_module(
                inside(module), report, why, (args, kwargs), writes=isinstance(error, WritingError)
            )
        original = Original(
            captured, on, module, args, kwargs, settings.own_constants, place_of(on)
        )  # fmt: skip
        if kind != CPU:
            original = original.on_its_device(own[0])
            captured = original.captured
        report.stages_s = {"rules": loaded_at - begin, "capture": time.monotonic() - loaded_at}
        with Progress(progress) as bar:
            run = Run(
                settings, captured, original, loaded, report, bar, measurer, begin, route, strict
            )  # fmt: skip
            try:
                result = run.pipeline()
            except (ExtractionError, LoweringError) as error:
                telling.refused("what was found", error)
                report.reason = str(error)
                result = original.program(report)
            except (Mismatch, CertificateError) as error:
                if strict:
                    raise
                telling.refused("what was found", error)
                report.reason = str(error)
                result = original.program(report)
                warn(error)
            except EqsynthError:
                raise
            except Exception as error:  # a fault of eqsynth costs speed, not the user's program
                if strict:
                    raise
                telling.refused("what was found", error)
                report.reason = f"an error in eqsynth: {type(error).__name__}: {error}"
                result = original.program(report)
                warn_of_fault(error)
        result.opens = isinstance(module, Opened)
        report.optimize_s = time.monotonic() - begin
        if report.mended and not report.reason:
            warn_of_mended(report)
        return result


def _captured(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], strict: bool
) -> Captured:
    """Capture a module. An error that is a fault of eqsynth is a `CaptureError`, too, unless
    ``strict``."""
    try:
        return capture(module, args, kwargs)
    except EqsynthError:
        raise
    except Exception as error:
        if strict:
            raise
        warn_of_fault(error)
        raise CaptureError(
            "an error in eqsynth",
            got=f"{type(error).__name__}: {error}",
            hint="please report it; strict=True raises it",
        ) from error


def _tensors(program: object, *given: object) -> list[torch.Tensor]:
    """The module's weights and all tensors among the example inputs."""
    held = program if isinstance(program, torch.nn.Module) else torch.nn.Module()
    leaves = (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))
    return [*held.parameters(), *held.buffers(), *leaves]


def _route_of(like: object) -> Route | None:
    """Return the route that the argument ``like`` means, or None.

    Raises:
        EqsynthError: ``like`` isn't a program of ``optimize``, or it was loaded from a file, which
            has no plan.
    """
    found = getattr(like.report, "route", like) if isinstance(like, CompiledProgram) else like
    if found is None or isinstance(found, Route):
        return found
    raise EqsynthError(
        "optimize: like is no program that optimize has found",
        got=type(like).__name__,
        expected="a CompiledProgram that optimize gave, or its report.route",
        hint="a program that was loaded from a file has no plan that could be followed",
    )
