"""The engine OpenVINO: its CPU plugin, for latency, in float32.

The plugin computes with int64 as int32, with float64 as float32, and with narrow integers in its
own way; so it gets regions of float32 only, with bools that are moved, compared, combined and
selected by, and integers that are positions. Its remainders are off by a divisor (10 // 0.001 is
10000). It takes x != x for false, by which programs look for NaN, and the maximum of a row of -inf
for the least finite number: equality is asked with finite numbers only.

Arguments are read where torch has them, and results are written into tensors of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from eqsynth.lower.engines.engine import installed_version
from eqsynth.lower.engines.through_onnx import call_is_said, can_be_said, model_of
from eqsynth.lower.torch_calls import NO_CALLS, Calls
from eqsynth.lower.torch_scalars import torch_dtype

_SMALL: Final = 1 << 16
"""Bytes of a tensor that is copied rather than bound."""
_COMPUTED = ("float32", "bool")
_BOOLEAN = ("LogicalAnd", "LogicalOr", "LogicalNot", "Cast", "Where")
_REFUSED = ("Remainder", "FloorDivide")
_EQUALITIES = ("Equal", "NotEqual")
_REFUSED_FUNCTIONS = ("mod", "floordiv", "eq", "ne")


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
        # A port has the names of all values that it is seen to be equal to.
        place = {name: n for n, port in enumerate(compiled.inputs) for name in port.names}
        # An argument that doesn't matter for the results may be gone.
        given = [(k, place[f"x{n}"]) for k, n in enumerate(varying) if f"x{n}" in place]
        made = [(out.shape, torch_dtype(out.dtype)) for out in region.outputs]
        # A call is made for each thread that calls at once, and used again.
        requests: list[_Call] = []

        def run(*args: torch.Tensor) -> Any:
            free = requests.pop() if requests else None
            request = free or _Call(compiled.create_infer_request(), given, made)
            results = request(args)
            requests.append(request)
            return results if len(results) > 1 else results[0]

        return run


class _Call:
    """A request of the plugin's, and the memory that it is bound to. Binding a tensor takes 7 us,
    and a fresh one for the result 11: so what stands where it stood in the last call isn't bound
    again, and a small tensor is copied (1 us) between its place and memory of the request's own: a
    result always, an argument from when it first stands elsewhere.

    Args:
        given: arguments and the ports that take them.
        made: shapes and dtypes of the results.
    """

    def __init__(
        self,
        request: Any,
        given: Sequence[tuple[int, int]],
        made: Sequence[tuple[tuple[int, ...], torch.dtype]],
    ) -> None:
        self._request, self._given, self._made = request, given, made
        # The request holds what is bound, so nothing else comes to stand at these addresses.
        self._bound = [0] * len(given)
        self._copies: dict[int, torch.Tensor] = {}
        self._kept: dict[int, torch.Tensor] = {}
        for port, (shape, dtype) in enumerate(made):
            result = torch.empty(shape, dtype=dtype)
            if result.nbytes <= _SMALL:
                self._kept[port] = result
                request.set_output_tensor(port, _shared(result))

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for n, (k, port) in enumerate(self._given):
            arg = args[k]
            if n in self._copies:
                self._copies[n].copy_(arg)
            elif arg.data_ptr() != self._bound[n]:
                if self._bound[n] and arg.nbytes <= _SMALL:
                    arg = self._copies[n] = arg.clone()
                self._request.set_input_tensor(port, _shared(arg))
                self._bound[n] = arg.data_ptr()
        results = []
        for port, (shape, dtype) in enumerate(self._made):
            result = self._kept.get(port)
            if result is None:
                result = torch.empty(shape, dtype=dtype)
                self._request.set_output_tensor(port, _shared(result))
            results.append(result)
        # Without `share_outputs` all results are copied once more, for a dictionary of arrays.
        self._request.infer(share_outputs=True)
        return [x.clone() if n in self._kept else x for n, x in enumerate(results)]


def _shared(x: torch.Tensor) -> Any:
    """The plugin's tensor over torch's memory."""
    import openvino

    return openvino.Tensor(x.numpy(), shared_memory=True)


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _is_taken(term: Tensor) -> bool:
    """Whether the plugin computes a term in the dtypes that it has."""
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
    """Whether a term is one finite number throughout, not the least one or the largest."""
    if not isinstance(term, Op) or term.name != "Full" or term.dtype != "float32":
        return False
    return abs(float(str(term.attrs[1]))) < torch.finfo(torch.float32).max


def _parts(body: Scalar) -> list[Scalar]:
    return [*composites(body), *leaves(body)]


def _is_float_or_bool(part: Scalar) -> bool:
    if isinstance(part, Value):
        return False
    if isinstance(part, Sum | Prod) and dtype_of(part) == "bool":
        return False
    if isinstance(part, Call) and part.fn in _REFUSED_FUNCTIONS:
        return False
    if isinstance(part, Read | Cast | Call | Sum | Prod):
        return dtype_of(part) in (*_COMPUTED, None)
    return True
