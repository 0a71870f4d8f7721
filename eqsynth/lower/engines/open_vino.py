"""The engine OpenVINO: its CPU plugin, for latency, in float32.

The plugin computes int64 as int32, float64 as float32, and narrow integers in a way of its own. So
it only gets regions of float32, with bools that are moved, compared, combined or used in
selections, and with integers that are positions. Refused because of wrong results: remainders,
which may be off by a divisor (10 // 0.001 is 10000); floor, ceil and trunc, since a quotient may be
less than it is (trunc(x / x) is 0 for 999998.8125, by AVX2); and comparisons for equality except
with finite numbers. Those are wrong for NaN (x != x, by which programs find NaN, is false) and for
the maximum of a row of -inf (it is the least finite number).

Arguments are read from torch's memory, and results are written into torch's memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    composites,
    dtype_of,
    leaves,
)
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, topological
from eqsynth.lower.engines.binding import bound
from eqsynth.lower.engines.engine import installed_version
from eqsynth.lower.engines.through_onnx import call_is_said, can_be_said, model_of
from eqsynth.lower.torch_calls import NO_CALLS, Calls

_KEPT = 64
"""The most tensors that are kept for writing results; somebody who keeps all results makes a new
one in each call."""
_COMPUTED = ("float32", "bool")
_BOOLEAN = ("LogicalAnd", "LogicalOr", "LogicalNot", "Cast", "Where")
_REFUSED = ("Remainder", "FloorDivide", "Floor", "Ceil", "Trunc")
_EQUALITIES = ("Equal", "NotEqual")
_REFUSED_FUNCTIONS = ("mod", "floordiv", "floor", "ceil", "trunc", "eq", "ne")


class OpenVino:
    """Implements ``Engine``."""

    name = "openvino"
    slow = False

    def version(self) -> str | None:
        return installed_version("openvino", "onnx")

    def refuses(self, term: Tensor, calls: Calls = NO_CALLS) -> bool:
        return not _is_taken(term) or not call_is_said(term, calls)

    def takes(self, region: Region, calls: Calls = NO_CALLS) -> bool:
        parts = topological(region.outputs)
        refused = any(self.refuses(part, calls) for part in parts)
        return not refused and can_be_said(region, calls)

    def compiled(
        self, region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = NO_CALLS
    ) -> Runner:
        model = _core().read_model(model_of(region, constants, calls))
        compiled = _core().compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        varying = [n for n in range(len(region.args)) if n not in constants]
        # A port has the names of all values that the plugin knows to be equal to it.
        place = {name: n for n, port in enumerate(compiled.inputs) for name in port.names}
        # The plugin drops arguments that the results don't depend on.
        given = {n: place[f"x{n}"] for n in varying if f"x{n}" in place}

        def request() -> _Request:
            return _Request(compiled.create_infer_request(), list(given.values()))

        return bound(request, [varying.index(n) for n in given], region.outputs)


class _Request:
    """Implements ``Request``.

    Args:
        request: the plugin's request.
        ports: the ports of the arguments.
    """

    def __init__(self, request: Any, ports: Sequence[int]) -> None:
        self._request, self._ports = request, ports
        # (result, address) -> the plugin's tensor there. A loop ``y = program(x)`` writes each
        # result to two memories in turns, and making a tensor takes longer than binding it: 50 to
        # 90 us in a call whose caches the last inference has emptied, against 20 to 40.
        self._written: dict[tuple[int, int], Any] = {}

    def bind_input(self, n: int, x: torch.Tensor) -> None:
        import openvino

        shared = openvino.Tensor(x.numpy(), shared_memory=True)
        self._request.set_input_tensor(self._ports[n], shared)

    def bind_output(self, n: int, x: torch.Tensor) -> None:
        place = n, x.data_ptr()
        tensor = self._written.get(place)
        if tensor is None:
            if len(self._written) >= _KEPT:
                self._written.clear()
            tensor = self._written[place] = _tensor_at(x)
        self._request.set_output_tensor(n, tensor)

    def infer(self) -> None:
        # Without `share_outputs`, all results would be copied into a dictionary of arrays.
        self._request.infer(share_outputs=True)


def _tensor_at(x: torch.Tensor) -> Any:
    """A tensor of the plugin in the memory of one of torch's, to which it doesn't refer: it is made
    of an address."""
    import openvino

    memory: Any = (ctypes.c_byte * x.nbytes).from_address(x.data_ptr())
    return openvino.Tensor(np.ndarray(x.shape, x.numpy().dtype, memory), shared_memory=True)


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _is_taken(term: Tensor) -> bool:
    """Whether the plugin computes a term as it is meant, in the dtypes that the term has."""
    if isinstance(term, Input):
        return True
    if isinstance(term, Scope):
        if term.dtype == "bool":
            moved = isinstance(term.body, Read) and term.body.tensor.dtype == "bool"
            return moved and not term.reduction
        return term.dtype == "float32" and all(map(_is_float_or_bool, _parts(term.body)))
    if not isinstance(term, Op):
        return False
    if term.row.kind == "view" or term.row.kind == "constant":
        return term.dtype in _COMPUTED or all(isinstance(arg, Input) for arg in term.args)
    if term.row.kind == "data":
        return term.dtype == "float32"
    if term.name == "Cast" and term.dtype == "bool":
        return False
    if term.name in _REFUSED:
        return False
    if term.name in _EQUALITIES and not any(map(_is_finite_number, term.args)):
        return False
    of_bools = any(arg.dtype == "bool" for arg in term.args)
    if of_bools and term.name not in _BOOLEAN:
        return False
    return all(part.dtype in _COMPUTED for part in (term, *term.args))


def _is_finite_number(term: Tensor) -> bool:
    """Whether all elements of a term are one finite number, which isn't the least or
    the largest."""
    if not isinstance(term, Op) or term.name != "Full" or term.dtype != "float32":
        return False
    return abs(float(str(term.attrs[1]))) < torch.finfo(torch.float32).max


def _parts(body: Scalar) -> list[Scalar]:
    return [*composites(body), *leaves(body)]


def _is_float_or_bool(part: Scalar) -> bool:
    """Whether a part of a body is computed in float32 or bool, and by a function that isn't
    refused."""
    if isinstance(part, Value):
        return False
    if isinstance(part, Sum | Prod) and dtype_of(part) == "bool":
        return False
    if isinstance(part, Call) and part.fn in _REFUSED_FUNCTIONS:
        return False
    if isinstance(part, Read | Cast | Call | Sum | Prod):
        return dtype_of(part) in (*_COMPUTED, None)
    return True
