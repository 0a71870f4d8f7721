"""``eqsynth::onnx_operator``: one operator of ONNX as an operator of torch.

ONNX Runtime runs it if that is installed, else ONNX's reference evaluator. A program that contains
such an operator can be saved and loaded. Not here: which operators of a model are kept this way
(``frontend/onnx/foreign.py``).
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch

Tensor = torch.Tensor
_Arrays = Callable[[Sequence[Any]], Sequence[Any]]

# ONNX's numbers of element types (TensorProto.DataType), for the dtypes that torch has.
DTYPES: Final = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16,
    6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64,
    12: torch.uint32, 13: torch.uint64, 14: torch.complex64, 15: torch.complex128,
    16: torch.bfloat16, 17: torch.float8_e4m3fn, 18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz,
}  # fmt: skip
NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}


def messages_in(message: Any) -> Iterator[Any]:
    """A message of ONNX, and all messages that it contains."""
    pending = [message]
    while pending:
        message = pending.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                pending += value if hasattr(value, "__len__") else [value]


def tensors_in(message: Any) -> Iterator[Any]:
    """Every tensor in a message."""
    import onnx

    return (m for m in messages_in(message) if isinstance(m, onnx.TensorProto))


def torch_of(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor of this dtype. NumPy may know the element type by another name than
    torch."""
    if (
        dtype.is_floating_point
        and array.dtype.kind == "V"
        or array.dtype.name.startswith(("bfloat16", "float8"))
    ):
        bits = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.reshape(-1).view(bits)).view(dtype).reshape(array.shape)
    # NumPy may have two types of one name (`ulonglong` beside `uint64`); torch knows one of them.
    flat = array.reshape(-1).view(np.dtype(array.dtype.name))
    return torch.from_numpy(flat).to(dtype).reshape(array.shape)


def session(model: bytes) -> _Arrays:
    """A function that runs a model in ONNX Runtime.

    Raises:
        Exception: ONNX Runtime's own errors, such as that it has no kernel for an operator at these
            types.
        TypeError: a result's type can't be passed to NumPy.
    """
    loaded = _loaded(model)
    unknown = [o.type for o in loaded.get_outputs() if o.type.startswith("tensor(float8")]
    if unknown:
        raise TypeError(f"ONNX Runtime gives no {unknown[0]} to NumPy")
    names = [i.name for i in loaded.get_inputs()]
    return lambda arrays: loaded.run(None, dict(zip(names, arrays, strict=True)))


def _loaded(model: bytes) -> Any:
    """A session of ONNX Runtime for a model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@functools.lru_cache(maxsize=256)
def runner(text: str) -> _Arrays:
    """A function that runs an operator's model (base64 text) on arrays.

    Raises:
        Exception: neither ONNX Runtime nor the reference evaluator can run it; their own errors.
    """
    import onnx

    model = onnx.ModelProto.FromString(base64.b64decode(text))
    if any(tensor.data_location == tensor.EXTERNAL for tensor in tensors_in(model)):
        raise ValueError("an operator whose data lie in another file")
    if find_spec("onnxruntime") is not None:
        try:
            return session(onnx.shape_inference.infer_shapes(model).SerializeToString())
        except Exception:  # it lacks the operator for these types; the evaluator may have it
            pass
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    inputs = list(evaluator.input_names)

    def evaluated(arrays: Sequence[Any]) -> Sequence[Any]:
        return list(evaluator.run(None, dict(zip(inputs, arrays, strict=True))))

    return evaluated


def array_of(x: Tensor) -> Any:
    """A tensor's elements in NumPy, without a copy if the tensor is contiguous."""
    if x.dtype == torch.bfloat16 or str(x.dtype).startswith("torch.float8"):
        import ml_dtypes

        name = str(x.dtype).removeprefix("torch.")
        bits = torch.int16 if x.dtype.itemsize == 2 else torch.uint8
        return x.contiguous().view(bits).numpy().view(getattr(ml_dtypes, name))
    return x.contiguous().numpy()


@torch.library.custom_op("eqsynth::onnx_operator", mutates_args=())
def _onnx_operator(inputs: list[Tensor], model: str) -> list[Tensor]:
    import onnx

    results = runner(model)([array_of(x) for x in inputs])
    tensors = []
    for result in results:
        array = np.array(result, order="C", copy=True)
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensors.append(torch_of(array, DTYPES[number]))
    return tensors


@_onnx_operator.register_fake
def _(inputs: list[Tensor], model: str) -> list[Tensor]:
    import onnx

    proto = onnx.ModelProto.FromString(base64.b64decode(model))
    for info, x in zip(proto.graph.input, inputs, strict=True):
        info.type.tensor_type.shape.SetInParent()
        for extent in x.shape:
            info.type.tensor_type.shape.dim.add().dim_value = int(extent)
    typed = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    results = []
    for info in typed.graph.output:
        tensor = info.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim]
        known = tensor.HasField("shape") and all(
            d.WhichOneof("value") == "dim_value" for d in tensor.shape.dim
        )
        if not known or tensor.elem_type not in DTYPES:
            return _told_by_runtime(proto)
        results.append(torch.empty(dims, dtype=DTYPES[tensor.elem_type]))
    return results


def _told_by_runtime(model: Any) -> list[Tensor]:
    """Results without data, of the shapes that ONNX Runtime infers. It knows its own operators
    (``com.microsoft``), of which the package ``onnx`` infers nothing.

    Raises:
        NotImplementedError: a shape depends on data, or ONNX Runtime isn't installed or lacks the
            operator.
    """
    outputs: Sequence[Any] = ()
    if find_spec("onnxruntime") is not None:
        with suppress(Exception):  # ONNX Runtime's own errors
            outputs = _loaded(model.SerializeToString()).get_outputs()
    dtypes = [_TOLD.get(out.type) for out in outputs]
    sizes = [size for out in outputs for size in out.shape]
    if not outputs or None in dtypes or not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError("the shape of the result depends on data")
    return [torch.empty(o.shape, dtype=dtype) for o, dtype in zip(outputs, dtypes, strict=True)]


# ONNX Runtime's names of types.
_TOLD: Final = {
    f"tensor({name})": getattr(torch, dtype)
    for name, dtype in {
        "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16",
        "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8",
        "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "bool",
    }.items()
}  # fmt: skip
