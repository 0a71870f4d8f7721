"""One real model through ``optimize``, as the task of a process: equality, opaque operators, times.

Not here: which models there are (``zoo.py``), and what is run and shown (``models.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import eqsynth
from benchmarks.spending import spending
from benchmarks.zoo import MODELS, Call
from eqsynth.extract.timing import time_interleaved
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op
from eqsynth.lower.holders import Opening, holds, opened_module
from eqsynth.lower.rounding import largest_error

EQUAL: Final = 1e-4
"""The largest difference to eager over the largest value of a tensor that counts as equal."""

TURN_S: Final = 0.1
"""The seconds of one turn of an engine."""


@dataclass(frozen=True)
class Row:
    """The result for one model.

    Attributes:
        error: why there is no result; empty if there is one.
        differs: the largest difference to eager over the largest value, of all outputs.
        kept: whether the original was kept, for ``reason``.
        operators: the number of operators of the captured program that aren't constant.
        opaque: the names of its opaque operators.
        opaque_share: the share of opaque operators in the time of the optimized program.
        warnings: warnings of ``optimize`` that a call of the model doesn't give.
        cpu_s, wall_s: the seconds of ``optimize``, all processes together.
        median_s: engine -> its median time, if times were asked for.
        untimed: engine -> why it has no time, although times were asked for.
    """

    name: str
    library: str
    error: str = ""
    differs: float = 0.0
    kept: bool = False
    reason: str = ""
    stop: str = ""
    operators: int = 0
    opaque: tuple[str, ...] = ()
    opaque_share: float = 0.0
    warnings: tuple[str, ...] = ()
    stages_s: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    enodes: int = 0
    flops: tuple[int, int] = (0, 0)
    rules: tuple[str, ...] = ()
    median_s: Mapping[str, float] = field(default_factory=dict)
    untimed: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the model runs, and its results are eager's."""
        return not self.error and self.differs <= EQUAL


def tried(
    name: str,
    size: str,
    limit_s: float,
    objective: str,
    threads: int,
    times: bool,
    engines: tuple[str, ...] | None = None,
) -> Row:
    """The task of a process: optimize one model, with these engines, or with all that are
    installed."""
    torch.set_num_threads(threads)
    model = MODELS[name]
    call = model.build(size)
    operators, opaque = _captured(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _called(call.module, call)
    known = {str(warning.message) for warning in caught}
    with warnings.catch_warnings(record=True) as caught, spending() as spent:
        warnings.simplefilter("always")
        program = eqsynth.optimize(
            call.module, call.args, example_kwargs=call.kwargs, time_limit_s=limit_s,
            objective=objective, engines=engines, progress=False,
        )  # fmt: skip
    report = program.report
    median_s, untimed = _timed(call, program) if times else ({}, {})
    return Row(
        name,
        model.library,
        differs=max(difference(call, program, shuffle) for shuffle in (False, True)),
        kept=program.original is not None,
        reason=" ".join(report.reason.split()),
        stop=report.stop,
        operators=operators,
        opaque=opaque,
        opaque_share=report.opaque_share,
        warnings=tuple({str(w.message) for w in caught} - known),
        stages_s=dict(report.stages_s),
        cpu_s=spent.cpu_s,
        wall_s=spent.wall_s,
        enodes=report.enodes,
        flops=(report.flops_before, report.flops_after),
        rules=tuple(sorted(report.rules_fired, key=report.rules_fired.__getitem__)[::-1]),
        median_s=median_s,
        untimed=untimed,
    )


def _captured(call: Call) -> tuple[int, tuple[str, ...]]:
    """The number of operators that depend on inputs, and the functions that opaque ones call."""
    opening = Opening()
    args, kwargs = opening.opened((call.args, dict(call.kwargs)))
    module = call.module
    if opening.objects or holds(_called(module, call)):
        module = opened_module(module)
    try:
        program = capture(module, args, kwargs).program
    except eqsynth.EqsynthError:
        return 0, ()
    terms = [t for t in program.terms() if isinstance(t, Op) and not t.constant]
    return len(terms), tuple(str(t.attrs[0]) for t in terms if t.name == "Opaque")


def _copied(call: Call, shuffle: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A copy of a call's arguments; if asked, with the elements of each tensor shuffled."""

    def copied(x: torch.Tensor) -> torch.Tensor:
        if not shuffle:
            return x.clone()
        order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(x.numel()))
        return x.flatten()[order].reshape(x.shape)

    opened = Opening().opened((call.args, dict(call.kwargs)))
    given: tuple[tuple[Any, ...], dict[str, Any]] = Opening().closed(
        tree_map_only(torch.Tensor, copied, opened)
    )
    return given


def _called(function: Callable[..., Any], call: Call, shuffle: bool = False) -> Any:
    """The result of a call, and its arguments after the call (a cache may have grown)."""
    args, kwargs = _copied(call, shuffle)
    with torch.no_grad():
        return function(*args, **kwargs), args, kwargs


def difference(call: Call, program: Callable[..., Any], shuffle: bool) -> float:
    expected, got = (
        tree_flatten(Opening().opened(_called(function, call, shuffle)))
        for function in (call.module, program)
    )
    if expected[1] != got[1]:
        return float("inf")
    pairs = [
        (one, other) for one, other in zip(got[0], expected[0], strict=True)
        if isinstance(other, torch.Tensor)
    ]  # fmt: skip
    if any(one.shape != other.shape or one.dtype != other.dtype for one, other in pairs):
        return float("inf")
    return max((largest_error(one, other) for one, other in pairs if other.numel()), default=0.0)


def _timed(call: Call, program: Callable[..., Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Medians of eager, frozen Inductor and eqsynth, in turns, and why one has none; each call has
    arguments of its own, whose making isn't counted where nothing in them can change."""
    from torch._inductor import config

    with config.patch(freezing=True), torch.no_grad():
        inductor = torch.compile(call.module, dynamic=False)
        engines: dict[str, Callable[..., Any]] = {
            "eager": call.module, "inductor": inductor, "eqsynth": program,
        }  # fmt: skip
        changing = holds((call.args, dict(call.kwargs)))

        def turn(function: Callable[..., Any]) -> Callable[[], Any]:
            if changing:
                return lambda: _called(function, call)
            return lambda: function(*call.args, **call.kwargs)

        turns, failed = {name: turn(f) for name, f in engines.items()}, {}
        for name in engines:
            try:
                turns[name]()
            except Exception as error:  # Inductor may refuse a model
                failed[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                del turns[name]
        times = time_interleaved(turns, repeats=9, turn_s=TURN_S)
    return {name: timing.median_s for name, timing in times.items()}, failed
