"""Operators with bodies: ``If``, ``Loop``, ``Scan``, ``SequenceMap``.

During capture a condition, or the number of a loop's steps, must follow from constants and shapes.
The taken branch is then captured in place of ``If``, and the body of a loop once per step. If the
number depends on the data of the inputs, capture fails and the model runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from eqsynth.frontend.onnx.graphs import Body, Operator
from eqsynth.frontend.onnx.table import one
from eqsynth.frontend.onnx.values import Value, made

if TYPE_CHECKING:
    from eqsynth.frontend.onnx.running import Runner

Tensor = torch.Tensor
_Control = Callable[
    ["Runner", Operator, Sequence[Value], Mapping[str, Value]], Sequence[Value]
]


def _if(
    runner: Runner, operator: Operator, values: Sequence[Value], env: Mapping[str, Value]
) -> Sequence[Value]:
    condition = runner.number(values[0])
    branch = operator.attributes["then_branch" if one(condition) else "else_branch"]
    return runner.body(branch, (), env)


def _loop(
    runner: Runner, operator: Operator, values: Sequence[Value], env: Mapping[str, Value]
) -> Sequence[Value]:
    body: Body = operator.attributes["body"]
    most, condition, *state = values
    count = None if most.data is None else one(runner.number(most))
    goes_on = condition.data is None or bool(one(runner.number(condition)))
    carried, rows = len(state), list[list[Value]]()
    step = 0
    while goes_on and (count is None or step < count):
        runner.step(operator)
        found = runner.body(body, [made(runner.mode, step), made(runner.mode, True), *state], env)
        goes_on = condition.data is None or bool(one(runner.number(found[0])))
        state = found[1 : 1 + carried]
        rows.append(found[1 + carried :])
        step += 1
    scanned = []
    for i in range(len(body.outputs) - 1 - carried):
        parts = [row[i].data for row in rows]
        scanned.append(Value(torch.stack(parts) if parts else _nothing(body, 1 + carried + i)))
    return [*state, *scanned]


def _nothing(body: Body, output: int) -> Tensor:
    kind = body.types[output] if output < len(body.types) else None
    extents = [] if kind is None or kind.extents is None else list(kind.extents)
    if kind is None or kind.dtype is None or not all(isinstance(n, int) for n in extents):
        raise ValueError("a loop without a step, whose results have shapes that aren't told")
    return torch.empty([0, *extents], dtype=kind.dtype)  # type: ignore[list-item]


def _scan(
    runner: Runner, operator: Operator, values: Sequence[Value], env: Mapping[str, Value]
) -> Sequence[Value]:
    attributes = operator.attributes
    body: Body = attributes["body"]
    count = attributes["num_scan_inputs"]
    carried = len(values) - count
    outs = len(body.outputs) - carried
    axes = attributes.get("scan_input_axes", [0] * count)
    turned = attributes.get("scan_input_directions", [0] * count)
    out_axes = attributes.get("scan_output_axes", [0] * outs)
    out_turned = attributes.get("scan_output_directions", [0] * outs)
    state = list(values[:carried])
    inputs = [
        value.data.unbind(axis)[:: -1 if turn else 1]
        for value, axis, turn in zip(values[carried:], axes, turned, strict=True)
    ]
    rows = []
    for row in zip(*inputs, strict=True):
        found = runner.body(body, [*state, *map(Value, row)], env)
        state = found[:carried]
        rows.append(found[carried:])
    scanned = []
    for i in range(outs):
        parts = [row[i].data for row in rows][:: -1 if out_turned[i] else 1]
        result = torch.stack(parts, out_axes[i]) if parts else _nothing(body, carried + i)
        scanned.append(Value(result))
    return [*state, *scanned]


def _sequence_map(
    runner: Runner, operator: Operator, values: Sequence[Value], env: Mapping[str, Value]
) -> Sequence[Value]:
    body: Body = operator.attributes["body"]
    results: list[list[Any]] = [[] for _ in body.outputs]
    for i in range(len(values[0].data)):
        given = [
            Value(value.data[i] if isinstance(value.data, list) else value.data)
            for value in values
        ]
        for row, value in zip(results, runner.body(body, given, env), strict=True):
            row.append(value.data)
    return [Value(row) for row in results]


CONTROL: Final[dict[str, _Control]] = {
    "If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map,
}  # fmt: skip
