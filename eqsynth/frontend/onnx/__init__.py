"""ONNX models as torch modules, which then go the way of every torch module.

``reading.py`` takes a file apart and refuses what is damaged, ``graphs.py`` makes bodies of its
graphs, ``module.py`` is the module that a model becomes, ``running.py`` runs its operators one by
one; an operator is what the table (``table.py``) and the files that fill it say, or what ONNX
defines it to be, or a foreign one (``foreign.py``). Not here: anything of the IR.

``onnx`` is imported when a model comes, so that whoever has none needs no ``onnx``.
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
    """Whether this is an ONNX model: a path, the bytes of a file, a ``ModelProto``, or a model of
    ``onnx_ir``."""
    if isinstance(value, str | os.PathLike | bytes | bytearray | memoryview):
        return True
    return type(value).__module__.partition(".")[0] in ("onnx", "onnx_ir")


def module_of(
    model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """The module of a model, and arguments to try it with.

    Args:
        model: see :func:`is_model`.
        args, kwargs: example arguments. Without any, they are random tensors of the shapes in the
            model.

    Raises:
        CaptureError: ``onnx`` isn't installed, or the model is damaged.
        UnsupportedOperatorError: nothing here can run an operator of it.
        ShapeError, DtypeError: the inputs don't fit, or a size is open and there are no inputs.
        EqsynthError: an operator fails on the inputs.
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
