"""ONNX's own tests of operators and small models, run on eqsynth's modules and programs.

The tests come with the ``onnx`` package, as models with inputs and expected outputs. Each case ends
with a :class:`Verdict`.
"""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch

from eqsynth.errors import CaptureError, DtypeError, EqsynthError, UnsupportedOperatorError
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.frontend.onnx.graphs import tensor_of
from eqsynth.frontend.onnx.module import OnnxModule
from eqsynth.frontend.torch_export import capture
from eqsynth.lower.onnx_operator import DTYPES, torch_of
from eqsynth.original import Original

KINDS: Final = ("node", "simple", "pytorch-operator", "pytorch-converted")

# Cases whose results are drawn at random.
_RANDOM: Final = ("test_bernoulli",)


class Verdict(enum.Enum):
    """How a case ends.

    CAPTURED: the module's results are right, and so are those of its captured program. RUNS: the
    results are right, but the module can't be captured, for example because a shape depends on
    data. UNKNOWN: an operator or an element type isn't supported. OLD: the opset is below 13.
    RANDOM: the results are random. WRONG: a result isn't the expected one. ESCAPED: an error that
    isn't eqsynth's, or that shouldn't be raised for this case.
    """

    CAPTURED = "captured"
    RUNS = "runs"
    UNKNOWN = "unknown"
    OLD = "old"
    RANDOM = "random"
    WRONG = "wrong"
    ESCAPED = "escaped"


@dataclass(frozen=True)
class Case:
    """A model with inputs and expected outputs.

    Attributes:
        data: pairs of inputs and expected outputs.
        rtol, atol: the relative and absolute difference that ONNX allows.
    """

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    def operators(self) -> Iterator[tuple[str, str]]:
        """Domain and name of each operator of the model's graph."""
        for node in self.model.graph.node:
            yield node.domain or "ai.onnx", node.op_type


@dataclass(frozen=True)
class Outcome:
    """The result of a case.

    Attributes:
        case: the case's name.
        tells: what was wrong, or isn't supported; empty for a case that is captured.
    """

    case: str
    verdict: Verdict
    tells: str = ""


@functools.cache
def cases(kind: str = "node") -> tuple[Case, ...]:
    """All cases of a kind (one of ``KINDS``), from the ``onnx`` package."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_model_tests(kind=kind)
    found = []
    for test in loaded:
        model, data = test.model, list[Any](test.data_sets or ())
        if model is None:
            folder = Path(test.model_dir or "")
            model = onnx.load(folder / "model.onnx")
            data = [_stored(part, model) for part in sorted(folder.glob("test_data_set_*"))]
        found.append(Case(test.name, model, data, test.rtol, test.atol))
    return tuple(found)


def _stored(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    def values(kind: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        found: list[Any] = []
        for number, info in enumerate(infos[: len(list(folder.glob(f"{kind}_*.pb")))]):
            data = (folder / f"{kind}_{number}.pb").read_bytes()
            if info.type.WhichOneof("value") == "sequence_type":
                sequence = onnx.SequenceProto.FromString(data)
                found.append(list(sequence.tensor_values))
            else:
                found.append(onnx.TensorProto.FromString(data))
        return found

    return values("input", model.graph.input), values("output", model.graph.output)


def run(case: Case, captured: bool = True) -> Outcome:
    """Run a case: the model's module, and then its captured program.

    Args:
        captured: whether to capture the module. Without that, right results are ``RUNS``.
    """
    if case.name.startswith(_RANDOM):
        return Outcome(case.name, Verdict.RANDOM)
    opsets = {o.domain: o.version for o in case.model.opset_import}
    if opsets.get("", opsets.get("ai.onnx", 13)) < 13:
        return Outcome(case.name, Verdict.OLD)
    try:
        verdict, tells = Verdict.CAPTURED, ""
        for inputs, outputs in case.data:
            given, expected = [[*map(_tensor, values)] for values in (inputs, outputs)]
            module = OnnxModule(case.model)
            module.try_out(given, {})
            with torch.no_grad():
                _same(module(*given), expected, case)
            refusal = _compiled(module, given, expected, case) if captured else "not captured"
            verdict, tells = (Verdict.RUNS, refusal) if refusal else (verdict, tells)
    except AssertionError as error:
        return Outcome(case.name, Verdict.WRONG, " ".join(str(error).split())[:300])
    except (UnsupportedOperatorError, DtypeError) as error:
        return Outcome(case.name, Verdict.UNKNOWN, f"{error.what}: {error.got}"[:200])
    except EqsynthError as error:
        return Outcome(case.name, Verdict.ESCAPED, " ".join(str(error).split())[:300])
    except Exception as error:  # errors that aren't eqsynth's are what these tests look for
        return Outcome(case.name, Verdict.ESCAPED, f"{type(error).__name__}: {error}"[:300])
    return Outcome(case.name, verdict, tells)


def _compiled(module: OnnxModule, given: Sequence[Any], expected: Sequence[Any], case: Case) -> str:
    """Capture the module, and compare the program's results. If capture refuses, return why; else
    an empty text."""
    try:
        program = capture(module, tuple(given))
    except CaptureError as error:
        return f"{error.what}: {error.got}"[:200]
    plain = Original(program, measure_cpu_target())
    with torch.no_grad():
        _same(plain.call(*given), expected, case)
    return ""


def _tensor(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_tensor(part) for part in value]
    if isinstance(value, onnx.TensorProto):
        return tensor_of(value, "data")
    array = np.array(value)
    number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if number not in DTYPES:
        name = onnx.TensorProto.DataType.Name(number)
        raise DtypeError("an element type that can't be computed with here", got=name)
    return torch_of(array, DTYPES[number])


def _same(got: Any, expected: Any, case: Case) -> None:
    """Check that results differ by no more than the case allows, or a few roundings of 16 bits.

    Raises:
        AssertionError: they differ.
    """
    got = list(got) if isinstance(got, tuple) else [got]
    _equal(got, list(expected), case)


def _equal(got: Any, expected: Any, case: Case) -> None:
    if isinstance(expected, list):
        assert len(got) == len(expected), f"{len(got)} values for {len(expected)}"
        for one, other in zip(got, expected, strict=True):
            _equal(one, other, case)
        return
    if expected is None:
        assert got is None, "a value for none"
        return
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (
        f"{got.dtype}{list(got.shape)} for {expected.dtype}{list(expected.shape)}"
    )
    if not got.dtype.is_floating_point:
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        return
    rtol = case.rtol
    if got.dtype in (torch.float16, torch.bfloat16):
        rtol = max(rtol, 4 * torch.finfo(got.dtype).eps)
    elif got.dtype.itemsize == 1:
        rtol = 0.0
    # Of a Fourier transform and back an element that was 0 is a rounding of the largest one.
    sizes = expected.double().abs().nan_to_num(posinf=0.0).flatten()
    largest = float(sizes.max()) if len(sizes) else 0.0
    atol = max(case.atol, 2 * torch.finfo(got.dtype).eps * largest if rtol else 0.0)
    np.testing.assert_allclose(got.double().numpy(), expected.double().numpy(), rtol, atol)
