"""The run of the table: cases are computed in every column, and judged.

    run(cases_of(ROWS, 3, 8)).failures

A failure has the operator, its arguments, the columns, the smallest operands on which the result is
wrong, the result, and the expected one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eqsynth.errors import EqsynthError
from eqsynth.testing.differential import columns, onnx_columns
from eqsynth.testing.differential.columns import Built, Run, tensors
from eqsynth.testing.differential.judge import Wrong, compare
from eqsynth.testing.differential.onnx_columns import ROUNDINGS
from eqsynth.testing.differential.row import Case, Row

# The number of cases that share one export and one build of each backend.
BATCH = 400
# The number of cases that are optimized together, and the time limit for them.
AT_ONCE = 12
TIME_LIMIT_S = 30.0


@dataclass(frozen=True)
class Failure:
    """A case that some columns compute wrongly.

    Attributes:
        columns: the names of the columns.
        kind: the kind of data.
        operands: the operands at the wrong element.
    """

    case: Case
    columns: str
    kind: str
    operands: str
    got: str
    expected: str

    def __str__(self) -> str:
        return (
            f"{self.case.name}\n    {self.columns}; {self.kind}: at {self.operands}\n"
            f"    got {self.got}, expected {self.expected}"
        )


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        cases: the cases that were run.
        refused: cases that eqsynth leaves to torch.
        unsupported: cases that torch itself has no kernel for; they aren't among ``cases``.
        computed: column -> the number of cases that it has computed.
        taken: operators whose entry took at least one case.
    """

    cases: list[Case] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refused: list[Case] = field(default_factory=list)
    unsupported: list[Case] = field(default_factory=list)
    computed: Counter[str] = field(default_factory=Counter)
    taken: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        entries = {case.row.entry for case in self.cases}
        wrong = {failure.case.name for failure in self.failures}
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.computed.items()))
        return (
            f"{len(entries)} entries x {len(self.cases)} cases: {len(wrong)} fail ({counts}; "
            f"{len(self.refused)} left to torch, {len(self.unsupported)} without a kernel of torch)"
        )


@dataclass
class _Draw:
    """A case's data of one kind, with torch's results.

    Attributes:
        values: the operands.
        expected: torch's results in the operands' dtype, or the error that it raises.
        several: whether torch returns several results.
        truth: torch's results in float64.
        slack: see ``judge.compare``.
        scale: see ``judge.compare``.
    """

    kind: str
    values: list[torch.Tensor]
    expected: list[Any] | Exception
    several: bool = False
    truth: list[Any] | None = None
    slack: list[torch.Tensor] | None = None
    scale: torch.Tensor | None = None


@dataclass
class _Tried:
    """A case with its data, its terms, and the program of each column."""

    case: Case
    draws: list[_Draw]
    built: Built | None = None
    runs: dict[str, Run] = field(default_factory=dict)


def cases_of(rows: Iterable[Row], part: int = 0, parts: int = 1) -> list[Case]:
    """The cases in one of several parts of the table. A case is in the same part in every run."""
    return [case for row in rows for case in row.cases() if case.number(parts) == part % parts]


def run(cases: Sequence[Case], wanted: Sequence[str] = columns.COLUMNS) -> Outcome:
    """Compute the cases in the columns, and judge the results.

    The columns ``interpreter`` and ``compiled`` are always computed.

    Args:
        wanted: the names of backends; and ``optimized``, if that column is wanted.

    >>> from eqsynth.testing.differential.row import Operand
    >>> print(run([Case(Row("aten::neg", (Operand((4,)),)), "float32")]))
    1 entries x 1 cases: 0 fail (compiled 1, interpreter 1, torch 1, tvm 1; 0 left to torch, \
0 without a kernel of torch)
    """
    outcome = Outcome()
    for start in range(0, len(cases), BATCH):
        _run_batch(cases[start : start + BATCH], wanted, outcome)
    return outcome


def _run_batch(cases: Sequence[Case], wanted: Sequence[str], outcome: Outcome) -> None:
    tried = []
    for case in cases:
        draws = [_draw(case, kind, values) for kind, values in case.draws()]
        if all(_has_no_kernel(d.expected) for d in draws) and not case.row.raises:
            outcome.unsupported.append(case)
            continue
        tried.append(_Tried(case, draws))
    outcome.cases += [t.case for t in tried]
    for t in tried:
        _build(t, outcome)
    own = [t for t in tried if t.built is not None]
    terms = [t.built for t in own if t.built is not None]
    for t, built in zip(own, terms, strict=True):
        t.runs["interpreter"] = columns.interpreter(built)
    for t, programs in zip(own, columns.over_backends(terms, wanted), strict=True):
        t.runs |= programs
    through_export = [t for t in tried if t.case.row.entry.startswith("aten::")]
    examples = [t.draws[0].values for t in through_export]
    captured = columns.compiled([t.case for t in through_export], examples)
    for t, found in zip(through_export, captured, strict=True):
        if found is not None:
            t.runs["compiled"] = found
    if "optimized" in wanted:
        _optimize([t for t in own if t.case.row.entry.startswith("aten::")])
    for t, built in zip(own, terms, strict=True):
        through_torch = t.case.row.entry.startswith("aten::")
        expressed = None if through_torch else columns.expressed(built)
        if expressed is not None:
            t.runs["compiled"] = expressed
    for t in tried:
        outcome.computed.update(t.runs.keys())
        outcome.failures += _judged(t)


def _optimize(tried: Sequence[_Tried]) -> None:
    for start in range(0, len(tried), AT_ONCE):
        some = tried[start : start + AT_ONCE]
        examples = [t.draws[0].values for t in some]
        programs = columns.optimized([t.case for t in some], examples, TIME_LIMIT_S)
        for t, program in zip(some, programs, strict=True):
            if program is not None:
                t.runs["optimized"] = program


def _build(tried: _Tried, outcome: Outcome) -> None:
    """Build the terms of a case. Note a failure if the entry refuses the case and shouldn't, or
    takes it and shouldn't."""
    case = tried.case
    found = next((d for d in tried.draws if isinstance(d.expected, list)), None)
    if found is None:
        example = _on_meta(case, tried.draws[0].values)
    else:
        assert isinstance(found.expected, list)
        example = found.expected if found.several else found.expected[0]
    if example is not None:
        tried.built = columns.built(case, tried.draws[0].values, example)
    if tried.built is None:
        outcome.refused.append(case)
        if case.row.entry.startswith("ops."):
            outcome.failures.append(_whole(case, "entry", "a refusal", "an expression"))
    elif case.row.refused:
        outcome.failures.append(_whole(case, "entry", "terms", "a refusal"))
    else:
        outcome.taken.add(case.row.entry)


def _on_meta(case: Case, values: list[torch.Tensor]) -> Any:
    """Torch's results on tensors without data, for a case where torch raises an error on all data;
    None if it raises one on those, too."""
    try:
        return case.call(case.row.function, [v.to("meta") for v in values])
    except (RuntimeError, NotImplementedError):
        return None


def _has_no_kernel(expected: object) -> bool:
    """Whether torch's error means that it has no kernel for the dtypes or attributes; an error
    about an index or a division by 0 comes from the data."""
    return isinstance(expected, Exception) and not (
        isinstance(expected, IndexError) or "ZeroDivision" in str(expected)
    )


def _whole(case: Case, column: str, got: str, expected: str) -> Failure:
    return Failure(case, column, "", "any data", got, expected)


def _draw(case: Case, kind: str, values: list[torch.Tensor]) -> _Draw:
    """Compute torch's results on the data. Each call gets copies, since some operators write into
    their operands."""
    try:
        result = case.call(case.row.function, [v.clone() for v in values])
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return _Draw(kind, values, error)
    row, expected = case.row, tensors(result)
    truth = _in_float64(case, row.truth or row.function, values, expected)
    scale = None if row.scale is None else _in_float64(case, row.scale, values, expected)
    slack = _slack(case, values, truth) if row.sensitive else None
    several = isinstance(result, list | tuple)
    return _Draw(kind, values, expected, several, truth, slack, scale[0] if scale else None)


def _in_float64(
    case: Case, function: Callable[..., Any], values: list[torch.Tensor], expected: list[Any]
) -> list[Any] | None:
    """A function's results on operands converted to float64; None if no result is a float.

    Integers are converted only if no operand is a float.
    """
    if not any(isinstance(e, torch.Tensor) and e.is_floating_point() for e in expected):
        return None
    floats = any(v.is_floating_point() for v in values)
    wide = [
        v.double() if v.is_floating_point() or not (floats or v.dtype == torch.bool) else v.clone()
        for v in values
    ]
    try:
        return tensors(case.widened().call(function, wide))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _slack(
    case: Case, values: list[torch.Tensor], truth: list[Any] | None
) -> list[torch.Tensor] | None:
    """The largest change of the truth in each row when the last digits of the operands change."""
    if truth is None:
        return None
    function = case.row.truth or case.row.function
    whole = not any(v.is_floating_point() for v in values)
    generator, most = torch.Generator().manual_seed(0), [torch.zeros_like(t) for t in truth]
    for _ in range(8):
        nudged = [
            _nudged(v, generator) if v.is_floating_point() or whole else v.clone() for v in values
        ]
        changed = tensors(case.widened().call(function, nudged))
        for k, (new, old) in enumerate(zip(changed, truth, strict=True)):
            if isinstance(old, torch.Tensor) and old.is_floating_point() and old.numel():
                apart = torch.nan_to_num((new - old).abs(), 0.0, 0.0, 0.0)
                row = apart.amax(-1, keepdim=True) if apart.dim() else apart
                most[k] = torch.maximum(most[k], row)
    return most


def _nudged(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The value with its last digits changed at random.

    For float64 the change is larger: the truth is also computed in float64, so that both sides of
    the comparison are rounded.
    """
    sides = 4 if value.dtype == torch.float64 else 1
    eps = torch.finfo(value.dtype if value.is_floating_point() else torch.float32).eps
    step = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return value.double() * (1 + sides * eps * step)


def _judged(tried: _Tried) -> list[Failure]:
    """The failures of a case; columns with the same wrong result share a failure."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    terms = () if tried.built is None else tried.built.outputs
    for column, program in tried.runs.items():
        for draw in onnx_columns.kept(column, tried.draws, terms):
            wrong = _wrong(tried.case, draw, program, *_leave(tried, column))
            if wrong is not None:
                told = (draw.kind, _shown(draw, wrong), wrong.got, wrong.expected)
                found.setdefault(told, []).append(column)
                break
    return [Failure(tried.case, ", ".join(cols), *told) for told, cols in found.items()]


def _leave(tried: _Tried, column: str) -> tuple[float, bool]:
    """What other runtimes for ONNX may do: a factor on the roundings that are allowed, and whether
    they may lose NaN."""
    runtime = column.partition("-")[0]
    if tried.built is None or runtime not in ("onnx", *onnx_columns.RUNTIMES):
        return 1.0, False
    times = ROUNDINGS if runtime in onnx_columns.RUNTIMES else 1.0
    return times, onnx_columns.loses_nan(tried.built.outputs)


def _wrong(
    case: Case, draw: _Draw, program: Run, times: float = 1.0, nan_is_lost: bool = False
) -> Wrong | None:
    """What is wrong with a program's results on one kind of data; None if nothing is.

    Args:
        times: a factor on the roundings that are allowed.
        nan_is_lost: whether the program may give numbers where torch gives NaN.
    """
    try:
        got = program([v.clone() for v in draw.values])
    except (RuntimeError, IndexError, ValueError, EqsynthError) as error:
        return None if isinstance(draw.expected, Exception) else Wrong(_told(error), "a result")
    if isinstance(draw.expected, Exception):
        return Wrong("a result", _told(draw.expected))
    for k, (value, expected) in enumerate(zip(got, draw.expected, strict=True)):
        if value is None or not isinstance(expected, torch.Tensor):
            continue
        truth = draw.truth[k] if draw.truth is not None else None
        slack = draw.slack[k] if draw.slack is not None else None
        roundings = times * case.row.roundings
        if nan_is_lost and expected.is_floating_point() and value.shape == expected.shape:
            value = torch.where(expected.isnan(), expected, value)
        if times > 1 and value.is_floating_point() and value.shape == expected.shape:
            tiny = (value - expected).abs() < onnx_columns.TINY
            value = torch.where(tiny, expected, value)
        wrong = compare(value, expected, truth, roundings, draw.scale, slack, draw.values)
        if wrong is not None:
            return wrong
    return None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _shown(draw: _Draw, wrong: Wrong) -> str:
    """The position of the wrong element and the operands there; whole operands if they don't
    broadcast to the result."""
    if wrong.at is None:
        return "the whole"
    assert isinstance(draw.expected, list)
    shape = draw.expected[0].shape
    shown = []
    for value in draw.values:
        try:
            shown.append(repr(torch.broadcast_to(value, shape)[wrong.at].item()))
        except (RuntimeError, IndexError):
            small = value.tolist() if value.numel() <= 32 else f"of {list(value.shape)}"
            shown.append(str(small))
    return f"{list(wrong.at)}: {', '.join(shown)}"
