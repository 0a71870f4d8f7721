"""The runner: it runs the operators of a body one by one, on tensors or during capture.

While a model is tried or captured, the runner also computes the known values of tensors: those that
follow from constants and shapes alone. During capture tensors have no values, and operators read
shapes, axes and conditions from the known values instead:

    Reshape(x, Concat(Slice(Shape(x)), [-1]))   ->   x.reshape([2, -1])

Not here: what an operator computes (``table.py`` and the modules that fill it).
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

# The most elements of a tensor whose known values are computed beside the model. Shapes and axes
# have a few elements, tables of positions some thousands.
_MOST_KNOWN: Final = 1 << 16
# The most operators that one call runs, where an operator in a loop counts each time. They take
# some seconds.
_MOST_STEPS: Final = 100_000


@dataclass
class Runner:
    """The state of one call of a model.

    Attributes:
        constant: gives the value of a constant, by its key.
        most_bytes: the largest tensor that an operator may make while the model is tried.
        call: calls an entry's function for an operator, with arguments and attributes.
        relied: keys of the constants that were read as numbers (shapes, axes, conditions).
        seen: pairs of an operator and its argument shapes whose results were found to fit.
        steps: how many operators have run.
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
        """Run a body and return the values of its outputs.

        Args:
            inputs: the values of its inputs; inputs without a value are missing.
            outer: the values of the body around this one, which its operators may read.
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
        # An output that no operator made is missing: ONNX's definition of an operator may leave
        # out results that the call doesn't use.
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
        """Count one operator that runs.

        Raises:
            EqsynthError: too many operators have run.
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
        """The value as Python numbers and lists; a sequence or a missing value as it is.

        The constants that the value follows from are added to ``relied``.
        """
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
        """The values of the results, if the values of all arguments that they depend on are known.

        Args:
            args, options: the arguments and attributes that the entry was called with.
            results: its results, which have no values during capture.

        Returns:
            A tensor for each result; None if an argument's values aren't known, a result is no
            tensor, or a result is too large.
        """
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
        """Check how large an operator's results would be, before they are made.

        The entry runs on tensors without data. If it fails on them, nothing is checked.

        Raises:
            EqsynthError: a result would have more than ``most_bytes`` bytes.
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
        except Exception:  # wrong arguments fail again on data; other entries need data
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
    """A tensor with the shape and dtype of ``x``, without data."""
    return torch.empty(list(map(int, x.shape)), dtype=x.dtype, device="meta")


def _is_number(value: Value) -> bool:
    return value.known is not None and value.known.ndim == 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's tracebacks of operators that fail on tensors without data. Such an operator
    fails again on the tensors with data, and that error is reported."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


def entry_of(operator: Operator) -> Entry | None:
    """The operator's entry in the table, if the entry takes all of the operator's attributes."""
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
