"""Columns of the table that run single terms as ONNX models.

Each runtime has two columns: ``onnx`` runs operators in ONNX's own evaluator, ``onnx-scopes`` the
scopes that define them; other columns run on ONNX Runtime and OpenVINO, if these are installed. A
term that ONNX can't express, or that a runtime has no kernel for, runs through torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.extract.kernel import Kernel, Runner, contiguous
from eqsynth.ir.tensor import Op, Region, Scope, Tensor, args_of, topological
from eqsynth.lower.engines.ahead import guarded, taken_apart
from eqsynth.lower.engines.engine import Engine
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.engines.through_onnx import model_of
from eqsynth.lower.onnx_operator import array_of, torch_of
from eqsynth.lower.torch_scalars import torch_dtype

Arrays = Sequence[Any]
Load = Callable[[Region], Runner]


class Drawn(Protocol):
    """An operand list of one kind of data."""

    kind: str
    values: list[torch.Tensor]


T = TypeVar("T", bound=Drawn)

RUNTIMES: Final = ("onnxruntime", "openvino")
ROUNDINGS: Final = 8.0
"""The factor on the roundings that are allowed for the runtimes, which approximate some functions
in their own way."""

TINY: Final = 1e-35
"""Differences below this don't count: in the runtimes, exponentials are 0 already for arguments
whose result is a denormal number."""


def onnx_backends() -> tuple[OnnxBackend, ...]:
    """The backends of ONNX's evaluator and of the runtimes that are installed."""
    loads: dict[str, Load] = {"onnx": by_evaluator}
    for name in RUNTIMES:
        if ENGINES[name].version() is not None:
            loads[name] = _by_engine(ENGINES[name])
    return tuple(
        OnnxBackend(f"{name}{kind}", class_, load)
        for name, load in loads.items()
        for kind, class_ in (("", Op), ("-scopes", Scope))
    )


def evaluated(model: bytes) -> Callable[[Arrays], Arrays]:
    """A function that runs a model in ONNX's reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(model))

    def run(arrays: Arrays) -> Arrays:
        with np.errstate(all="ignore"):
            given = dict(zip(evaluator.input_names, arrays, strict=True))
            return list(evaluator.run(None, given))

    return run


def by_evaluator(region: Region) -> Runner:
    """A function that runs a region of one output in the reference evaluator.

    Raises:
        UnsupportedOperatorError: ONNX can't express the region, or the evaluator can't run it.
    """
    for part in topological(region.outputs):
        if part.dtype == "float64" and _takes_erf(part):
            raise UnsupportedOperatorError("the evaluator computes the error function in float32")
        if isinstance(part, Op) and part.name == "ConvTranspose2d" and part.attrs[-1] != 1:
            raise UnsupportedOperatorError("the evaluator can't do these in groups")
    apart = taken_apart(region)
    run = evaluated(model_of(apart.region, {}))

    def runner(*args: torch.Tensor) -> torch.Tensor:
        (result,) = run([array_of(value) for value in args])
        value = torch_of(np.asarray(result), torch_dtype(region.dtype))
        return value.reshape(region.shape)

    return guarded(runner, apart, {})


def _takes_erf(part: Tensor) -> bool:
    return "erf" in str(part).lower() or "gelu" in str(part).lower()


def _by_engine(engine: Engine) -> Load:
    def load(region: Region) -> Runner:
        apart = taken_apart(region)
        if not engine.takes(apart.region):
            raise UnsupportedOperatorError("the engine doesn't take it", where=str(region))
        try:
            return guarded(engine.compiled(apart.region, {}), apart, {})
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error):
                raise UnsupportedOperatorError(str(error)) from error
            raise

    return load


def kept(column: str, draws: Sequence[T], terms: Iterable[Tensor | None]) -> Sequence[T]:
    """The draws on which a column is judged. OpenVINO treats denormals as 0, and NaN as larger than
    any number, so that it isn't judged on edge values and NaN. Nor is it where a quotient is cut
    off: by AVX2 it computes 999998.8125 / 999998.8125 as a little less than 1, which is one
    rounding off, and trunc of it is 0. (It gets no trunc, but may get the quotient before.)"""
    if not column.startswith("openvino"):
        return draws
    names = {part.name for part in _parts(terms) if isinstance(part, Op)}
    if "Div" in names and names & {"Trunc", "Floor", "Ceil"}:
        return ()
    plain = [d for d in draws if d.kind != "edges"]
    return [d for d in plain if not any(bool((v != v).any()) for v in d.values)]


def loses_nan(terms: Iterable[Tensor | None]) -> bool:
    """Whether a term has a maximum or minimum, where a runtime may lose NaN."""
    return any(name in str(t) for t in _parts(terms) for name in ("Max", "Min", "max", "min"))


def _parts(terms: Iterable[Tensor | None]) -> list[Tensor]:
    return [*topological([term for term in terms if term is not None])]


@dataclass
class OnnxBackend:
    """A backend that runs single terms of one class as ONNX models. Implements ``Backend``.

    Attributes:
        kind: ``Op`` or ``Scope``.
        load: compiles a region in the runtime.
    """

    name: str
    kind: type[Tensor]
    load: Load
    _runs: dict[Tensor, Runner | None] = field(default_factory=dict)

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        if isinstance(term, self.kind) and self._run(term) is not None:
            inputs = tuple(contiguous(len(arg.shape)) for arg in args_of(term))
            yield Kernel(term, constants, self.name, inputs, contiguous(len(term.shape)))

    def _run(self, term: Tensor) -> Runner | None:
        if term not in self._runs:
            self._runs[term] = None
            try:
                self._runs[term] = self.load(Region((term,), args_of(term)))
            except UnsupportedOperatorError:
                pass
        return self._runs[term]

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        return [self._runner(kernel, constants) for kernel, constants in kernels]

    def _runner(self, kernel: Kernel, constants: Mapping[int, torch.Tensor]) -> Runner | None:
        run = self._run(kernel.term)
        if run is None:
            return None
        varying = [n for n, constant in enumerate(kernel.constants) if not constant]
        held = {n: value.contiguous() for n, value in constants.items()}

        def runner(*given: torch.Tensor) -> torch.Tensor:
            values = {**held, **dict(zip(varying, given, strict=True))}
            return run(*(values[n] for n in range(len(values))))

        return runner
