"""ONNX models as torch modules, which are then captured as every torch module is.

``reading.py`` reads a file and refuses a damaged one. ``graphs.py`` turns its graphs into bodies:
lists of operators. ``module.py`` is the torch module of a model, and ``running.py`` runs its
operators one by one. An operator runs by its entry in the table (``table.py``; ``elementwise.py``,
``linear.py`` and others fill it), else by ONNX's own definition of it (``definitions.py``), else as
a foreign operator through ONNX Runtime or ONNX's evaluator (``foreign.py``). Not here: the IR.

The package ``onnx`` is imported only when a model is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from eqsynth.errors import CaptureError

if TYPE_CHECKING:
    import torch


def is_model(value: object) -> bool:
    """Whether ``value`` may be an ONNX model: a path, the bytes of a file, a ``ModelProto``, or a
    model of ``onnx_ir``. Files and bytes aren't looked into."""
    if isinstance(value, str | os.PathLike | bytes | bytearray | memoryview):
        return True
    return type(value).__module__.partition(".")[0] in ("onnx", "onnx_ir")


def module_of(
    model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """Return the module of a model, and positional example arguments for it.

    Args:
        model: see :func:`is_model`.
        args, kwargs: example arguments. If both are empty, random tensors are made, in the shapes
            that the model gives.

    Raises:
        CaptureError: ``onnx`` isn't installed, or the model is damaged.
        UnsupportedOperatorError: nothing here can run one of its operators.
        ShapeError, DtypeError: the arguments don't fit, or there are none and the model leaves a
            size open.
        EqsynthError: an operator fails on the arguments.
    """
    if find_spec("onnx") is None:
        raise CaptureError(
            "the package onnx isn't installed",
            got="an ONNX model",
            expected="a torch.nn.Module, or onnx",
            hint="pip install 'eqsynth[onnx]'",
        )
    from eqsynth.frontend.examples import validate
    from eqsynth.frontend.onnx.module import OnnxModule, inputs_for

    module = OnnxModule(model)
    if not args and not kwargs:
        args = inputs_for(module)
    validate(module, args, kwargs)
    module.try_out(args, kwargs)
    return module, args
