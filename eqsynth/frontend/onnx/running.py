"""Runs the operators of a body, one by one.

A value is a tensor (or a list of them), and, while a model is tried or captured, what is known of
it besides: the values of what follows from constants and shapes alone. Shapes, axes and conditions
are read off those, so that capture, where tensors have no values, sees numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.frontend.onnx import (  # those without a name below fill the table
    elementwise,
    foreign,
    linear,
    movement,
    recurrent,
    reduction,
    resize,
    sequences,
    windows,
)
from eqsynth.frontend.onnx.control import CONTROL
from eqsynth.frontend.onnx.definitions import Definitions
from eqsynth.frontend.onnx.graphs import OWN, Body, Operator
from eqsynth.frontend.onnx.table import TABLE, Entry, Refused
from eqsynth.frontend.onnx.values import MISSING, Mode, Value, outside

Tensor = torch.Tensor

FILLED_BY: Final = (
    elementwise, linear, movement, recurrent, reduction, resize, sequences, windows,
)  # fmt: skip

# Elements of a tensor whose values are kept in mind while a model is captured: shapes and axes have
# a few, tables of positions some thousands.
_MOST_KNOWN: Final = 1 << 16
# Steps of one call, those of loops counted each time: some seconds' worth.
_MOST_STEPS: Final = 100_000


@dataclass
class Runner:
    """One call of a model.

    Attributes:
        constant: the tensor of a constant, by its key.
        calls: what runs an operator: a function of its entry and its arguments.
        most_bytes: of one tensor, while the model is tried.
        relied: constants whose values decide what is computed.
        seen: operators with their arguments, of which the sizes of the results are known.
    """

    mode: Mode
    constant: Callable[[str], Value]
    most_bytes: int
    call: Callable[[Operator, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
    definitions: Definitions
    relied: set[str] = field(default_factory=set)
    seen: set[tuple[str, str]] = field(default_factory=set)
    steps: int = 0

    def body(
        self, body: Body, inputs: Sequence[Value], outer: Mapping[str, Value] | None = None
    ) -> list[Value]:
        """The values of a body's outputs.

        Args:
            outer: the values of the body around this one, which it may read.
        """
        env = dict(outer or {})
        env.update(zip(body.inputs, inputs, strict=False))
        for name in body.inputs[len(inputs) :]:
            env[name] = MISSING
        for name, key in body.constants.items():
            env[name] = self.constant(key)
        for operator in body.operators:
            try:
                values = [env[name] if name else MISSING for name in operator.inputs]
            except KeyError as error:
                raise CaptureError(
                    "an operator reads a value that nothing makes",
                    where=operator.place,
                    got=str(error.args[0]),
                    expected="an input, a constant, or the result of an operator before it",
                    hint="the model is damaged: write it anew from where it came from",
                ) from error
            results = self.operator(operator, values, env)
            for name, value in zip(operator.outputs, results, strict=False):
                if name:
                    env[name] = value
            for name in operator.dead:
                env.pop(name, None)
        # A definition has no more results than its call asks for.
        return [env.get(name, MISSING) for name in body.outputs]

    def operator(
        self, operator: Operator, values: Sequence[Value], env: Mapping[str, Value]
    ) -> Sequence[Value]:
        self.step(operator)
        if operator.function is not None:
            return self.body(operator.function, values)
        if operator.domain in OWN and operator.kind in CONTROL:
            return CONTROL[operator.kind](self, operator, values, env)
        if self.mode is Mode.CAPTURE:
            return self._apply(operator, values)
        try:
            return self._apply(operator, values)
        except EqsynthError:
            raise
        except Exception as error:  # whatever torch says of arguments that don't fit
            raise failed(operator, values, error) from error

    def step(self, operator: Operator) -> None:
        """Counts a step.

        Raises:
            EqsynthError: there have been too many.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise EqsynthError(
                "the model runs through too many operators",
                where=operator.place,
                got=f"more than {_MOST_STEPS}",
                expected="loops that end",
                hint="look at the loops of the model, and how often they run",
            )

    # ---- numbers ------------------------------------------------------------------------------

    def number(self, value: Value) -> Any:
        """The value as Python's numbers and lists; a sequence, and what is missing, as it is."""
        self.relied |= value.constants
        if not isinstance(value.data, torch.Tensor):
            return value.data
        if value.known is None or self.mode is not Mode.CAPTURE:
            return value.data.tolist()
        with outside():
            return value.known.tolist()

    # ---- one operator ---------------------------------------------------------------------------

    def _apply(self, operator: Operator, values: Sequence[Value]) -> Sequence[Value]:
        entry = entry_of(operator)
        if entry is not None:
            try:
                return self._by_entry(operator, entry, values)
            except (Refused, NotImplementedError):
                pass
        definition = self.definitions.of(operator, [value.data for value in values])
        if definition is not None:
            tensors = definition.tensors
            inner = replace(self, constant=lambda key: Value(tensors[key], tensors[key]))
            result = inner.body(definition.body, values)
            self.steps = inner.steps
            return result
        data = [value.data for value in values]
        return [Value(result) for result in foreign.call(operator, data)]

    def _by_entry(
        self, operator: Operator, entry: Entry, values: Sequence[Value]
    ) -> Sequence[Value]:
        args = [
            self.number(value)
            if i in entry.known or (i in entry.scalar and _is_number(value))
            else value.data
            for i, value in enumerate(values)
        ]
        options = dict(operator.attributes)
        if "opset" in entry.told:
            options["opset"] = operator.opset
        if "outputs" in entry.told:
            options["outputs"] = len(operator.outputs)
        if "dtypes" in entry.told:
            options["dtypes"] = [getattr(value.data, "dtype", None) for value in values]
        if self.mode is Mode.TRY:
            self._fits(operator, entry, args, options)
        results = _several(self.call(operator, entry.function, args, options))
        if self.mode is Mode.RUN:
            return [Value(result) for result in results]
        known = self._known(entry, values, args, options, results)
        if known is None:
            return [Value(result) for result in results]
        read = (v.constants for i, v in enumerate(values) if i not in entry.shaped)
        constants = frozenset[str]().union(*read)
        return [Value(r, k, constants) for r, k in zip(results, known, strict=True)]

    def _known(
        self,
        entry: Entry,
        values: Sequence[Value],
        args: Sequence[Any],
        options: Mapping[str, Any],
        results: Sequence[Any],
    ) -> Sequence[Any] | None:
        """The results' values, where those of all arguments are known that they depend on."""
        for i, value in enumerate(values):
            if value.data is not None and value.known is None and i not in entry.shaped:
                return None
        if not all(isinstance(r, Tensor) and r.numel() <= _MOST_KNOWN for r in results):
            return None
        if self.mode is Mode.TRY:
            return results
        with outside():
            known = [
                arg if not isinstance(arg, Tensor) else
                _empty(arg) if i in entry.shaped else value.known
                for i, (arg, value) in enumerate(zip(args, values, strict=True))
            ]  # fmt: skip
            return _several(entry.function(*known, **options))

    def _fits(
        self,
        operator: Operator,
        entry: Entry,
        args: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        """Sees how large an operator's results would be, without making them.

        Raises:
            EqsynthError: one is larger than what this machine should hold.
        """
        shapes = [a.shape if isinstance(a, Tensor) else a for a in args]
        asked = (operator.place, repr(shapes))
        if asked in self.seen:
            return
        self.seen.add(asked)
        try:
            with _quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = torch.utils._pytree.tree_map_only(Tensor, mode.from_tensor, list(args))
                results = _several(entry.function(*fakes, **options))
                sizes = [r.numel() * r.dtype.itemsize for r in results if isinstance(r, Tensor)]
        except Exception:  # what doesn't fit says so when it runs; what needs data has its size
            return
        if max(sizes, default=0) > self.most_bytes:
            raise EqsynthError(
                "a tensor of the model is too large for this machine",
                where=operator.place,
                got=f"{max(sizes)} bytes",
                expected=f"at most {self.most_bytes} bytes",
                hint="look at the shapes in the model, and at the example inputs",
            )


def _empty(x: Tensor) -> Tensor:
    """A tensor of this shape and dtype, without data."""
    return torch.empty(list(map(int, x.shape)), dtype=x.dtype, device="meta")


def _is_number(value: Value) -> bool:
    return value.known is not None and value.known.ndim == 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's tracebacks of operators that fail on tensors without data: the operator fails
    again on the tensors themselves, and is told then."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


def entry_of(operator: Operator) -> Entry | None:
    """The operator's entry, where it treats all of its attributes."""
    entry = TABLE.get(operator.kind) if operator.domain in OWN else None
    if entry is None or not entry.attributes.issuperset(operator.attributes):
        return None
    return entry


def failed(operator: Operator, values: Sequence[Value], error: Exception) -> EqsynthError:
    kinds = ", ".join(_kind(value.data) for value in values)
    return EqsynthError(
        "an operator of the model fails",
        where=operator.place,
        got=f"{kinds}: {type(error).__name__}: {error}"[:500],
        expected="inputs and attributes that fit",
        hint="check the example inputs; if they are right, the model is damaged",
    )


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return "nothing" if value is None else type(value).__name__
