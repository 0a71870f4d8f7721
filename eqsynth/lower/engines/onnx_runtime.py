"""The engine ONNX Runtime: its CPU kernels, with all graph optimizations.

Arguments are read from torch's memory, and results are written into torch's memory: nothing is
copied at a region's border. Operators that ONNX Runtime was seen to compute wrongly are refused: it
adds int64 as floats, its maximum of int64 along some axes is wrong (1 for 2**63 - 1 and 1), and its
sine of float64 near a multiple of pi is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.scalar import Call, composites, dtype_of
from eqsynth.ir.tensor import Op, Region, Scope, Tensor, topological
from eqsynth.lower.engines.binding import bound
from eqsynth.lower.engines.engine import installed_version
from eqsynth.lower.engines.through_onnx import call_is_said, can_be_said, model_of
from eqsynth.lower.onnx_out.model import element_type
from eqsynth.lower.torch_calls import NO_CALLS, Calls


class OnnxRuntime:
    """Implements ``Engine``."""

    name = "onnxruntime"
    slow = False

    def version(self) -> str | None:
        return installed_version("onnxruntime", "onnx")

    def refuses(self, term: Tensor, calls: Calls = NO_CALLS) -> bool:
        return not _is_taken(term) or not call_is_said(term, calls)

    def takes(self, region: Region, calls: Calls = NO_CALLS) -> bool:
        parts = topological(region.outputs)
        refused = any(self.refuses(part, calls) for part in parts)
        return not refused and can_be_said(region, calls)

    def compiled(
        self, region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = NO_CALLS
    ) -> Runner:
        varying = [n for n in range(len(region.args)) if n not in constants]
        session = _session(model_of(region, constants, calls))
        given = {f"x{n}": region.args[n] for n in varying}
        made = {f"y{n}": out for n, out in enumerate(region.outputs)}
        return bound(lambda: _Request(session, given, made), range(len(given)), region.outputs)


class _Request:
    """Implements ``Request``. A binding stores addresses, and refers to no tensors.

    Args:
        given: the session's arguments by name.
        made: the session's results by name.
    """

    def __init__(
        self, session: Any, given: Mapping[str, Tensor], made: Mapping[str, Tensor]
    ) -> None:
        self._session, self._binding = session, session.io_binding()
        self._given = [_place(name, x) for name, x in given.items()]
        self._made = [_place(name, x) for name, x in made.items()]

    def bind_input(self, n: int, x: torch.Tensor) -> None:
        self._binding.bind_input(*self._given[n], x.data_ptr())

    def bind_output(self, n: int, x: torch.Tensor) -> None:
        self._binding.bind_output(*self._made[n], x.data_ptr())

    def infer(self) -> None:
        self._session.run_with_iobinding(self._binding)


def _place(name: str, x: Tensor) -> tuple[str, str, int, int, list[int]]:
    """The arguments that bind a tensor, except for its address."""
    return name, "cpu", 0, element_type(x.dtype), list(x.shape)


def _session(model: bytes) -> Any:
    """Return a session for a model, with torch's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    # Otherwise its threads would keep spinning until the next call, and slow down the steps in
    # between.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _is_taken(term: Tensor) -> bool:
    """Whether ONNX Runtime computes a term as it is meant (see the module's docstring)."""
    if isinstance(term, Op):
        wave = term.name in ("Sin", "Cos") and term.dtype == "float64"
        reduced = term.row.kind == "reduction" and term.args[0].dtype == "int64"
        return not (wave or reduced)
    if isinstance(term, Scope):
        calls = [part for part in composites(term.body) if isinstance(part, Call)]
        wave = any(part.fn in ("sin", "cos") and dtype_of(part) == "float64" for part in calls)
        reduced = bool(term.reduction) and dtype_of(term.body) == "int64"
        return not (wave or reduced)
    return True
