"""Reading a model: a path, bytes or a ``ModelProto``, and refusing what can't be used.

A file may be damaged or hostile. It is checked here and in ``graphs.py`` before any operator runs,
and data outside of the model's own folder are never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import onnx

from eqsynth.errors import CaptureError
from eqsynth.frontend.onnx.graphs import OWN
from eqsynth.lower.onnx_operator import messages_in, tensors_in

# The oldest opset of ONNX's own operators that is taken.
_OLDEST: Final = 13
# A domain that the checker doesn't know.
_UNKNOWN: Final = "eqsynth.withdrawn"


def read(source: Any) -> onnx.ModelProto:
    """Read and check a model; the data of its external files are in the result.

    Args:
        source: a path, the bytes of a file, a ``ModelProto``, or a model of ``onnx_ir``.

    Raises:
        CaptureError: ``source`` is no model, or the model is damaged or older than opset 13.
    """
    folder: Path | None = None
    where = ""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        where, folder = str(path), path.parent
        try:
            if path.exists() and not path.is_file():
                raise OSError("not a plain file")
            data = path.read_bytes()
        except OSError as error:
            raise CaptureError(
                "the model's file can't be read",
                where=where,
                got=f"{type(error).__name__}: {error.strerror or error}",
                expected="a file",
                hint="give the path of an ONNX file",
            ) from error
        model = _parsed(data, where)
    elif isinstance(source, bytes | bytearray | memoryview):
        model = _parsed(bytes(source), "bytes")
    elif isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    else:
        from onnx_ir import to_proto  # a model of onnx_ir: the caller has it then

        model = to_proto(source)
    outside = [_taken_out(tensor, folder, where) for tensor in _external(model)]
    _check(model, where)
    for tensor, dims, data in outside:
        tensor.dims[:] = dims
        tensor.raw_data = data
    return model


def _parsed(data: bytes, where: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own errors, which differ from version to version
        raise _no_model(where, f"{type(error).__name__}: {error}") from error
    if not model.HasField("graph"):
        raise _no_model(where, f"{len(data)} bytes without a graph")
    return model


def _no_model(where: str, got: str) -> CaptureError:
    return CaptureError(
        "this is no ONNX model", where=where, got=got[:300], expected="a ModelProto with a graph",
        hint="the file may be truncated: write it anew from where it came from",
    )  # fmt: skip


def _check(model: onnx.ModelProto, where: str) -> None:
    opsets = {o.domain: o.version for o in model.opset_import}
    own = opsets.get("", opsets.get("ai.onnx"))
    newest = onnx.defs.onnx_opset_version()
    if own is not None and not _OLDEST <= own <= newest:
        raise CaptureError(
            "the model is of an opset that eqsynth doesn't take",
            where=where,
            got=f"opset {own}",
            expected=f"opset {_OLDEST} to {newest}",
            hint="convert it by onnx.version_converter, or install a newer onnx",
        )
    # The checker refuses a tensor type without a shape, which models have in practice. Such types
    # get an empty shape while it runs.
    untold = [
        message for message in messages_in(model)
        if isinstance(message, onnx.TypeProto.Tensor) and not message.HasField("shape")
    ]  # fmt: skip
    for kind in untold:
        kind.shape.SetInParent()
    for message in messages_in(model):
        _check_text(message, where)
    try:
        with _withdrawn(model):
            onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, or an error of the checker's own code
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise CaptureError(
            "the model is damaged",
            where=where,
            got=" ".join(lines)[:500],
            expected="a model that onnx.checker takes",
            hint="write the file anew from where it came from",
        ) from error
    for kind in untold:
        kind.ClearField("shape")


@contextmanager
def _withdrawn(model: onnx.ModelProto) -> Iterator[None]:
    """Take operators that ONNX has withdrawn for some opsets for those of a domain that the checker
    doesn't know. It refuses them as errors, though they have a meaning: ``GroupNormalization`` of
    opset 18 to 20 has one scale a group."""
    renamed: list[tuple[onnx.NodeProto, str]] = []
    scopes: list[Any] = []
    for scope in (model, *model.functions):
        opsets = {o.version for o in scope.opset_import if o.domain in OWN}
        if opsets & {18, 19, 20}:
            inside = scope.graph if isinstance(scope, onnx.ModelProto) else scope
            scopes.append(scope)
            renamed += [
                (message, message.domain)
                for message in messages_in(inside)
                if isinstance(message, onnx.NodeProto)
                and message.op_type == "GroupNormalization"
                and message.domain in OWN
            ]
    for scope in scopes:
        scope.opset_import.add(domain=_UNKNOWN, version=1)
    for node, _ in renamed:
        node.domain = _UNKNOWN
    try:
        yield
    finally:
        for scope in scopes:
            del scope.opset_import[-1]
        for node, domain in renamed:
            node.domain = domain


def _check_text(message: Any, where: str) -> None:
    """Refuse a text that isn't UTF-8; protobuf gives it as bytes.

    Raises:
        CaptureError: there is such a text.
    """
    for field, value in message.ListFields():
        if field.type != field.TYPE_STRING:
            continue
        for text in (value,) if isinstance(value, str | bytes) else value:
            if isinstance(text, bytes):
                raise CaptureError(
                    "the model is damaged",
                    where=where,
                    got=f"{text!r} as {field.full_name}"[:500],
                    expected="text in UTF-8",
                    hint="write the file anew from where it came from",
                )


# ---- data in files of its own --------------------------------------------------------------------


def _external(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor whose data lie in a file of their own."""
    external = onnx.TensorProto.EXTERNAL
    return (tensor for tensor in tensors_in(model) if tensor.data_location == external)


def _taken_out(
    tensor: onnx.TensorProto, folder: Path | None, where: str
) -> tuple[onnx.TensorProto, list[int], bytes]:
    """Read the data of a tensor from its file, and leave the tensor empty.

    The tensor is empty while the checker runs, which would look for the file otherwise.

    Returns:
        The tensor, its dimensions, and its data.

    Raises:
        CaptureError: the file lies outside of ``folder``, or can't be read.
    """
    place = f"{where}: tensor {tensor.name!r}"
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    if folder is None:
        raise _outside(place, location, "a model of which the folder isn't known")
    relative = Path(location)
    root = folder.resolve()
    path = (root / relative).resolve()
    if (
        not location
        or "\0" in location
        or relative.is_absolute()
        or ".." in relative.parts
        or root not in path.parents
    ):
        raise _outside(place, location, "a file outside of the model's folder")
    try:
        offset, length = int(told.get("offset", 0)), int(told.get("length", -1))
        size = path.stat().st_size
        if not path.is_file() or offset < 0 or offset > size or length < -1:
            raise ValueError(f"offset {offset} and length {length} of a file of {size} bytes")
        length = size - offset if length == -1 else length
        if offset + length > size:
            raise ValueError(f"offset {offset} and length {length} of a file of {size} bytes")
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
    except (OSError, ValueError) as error:
        raise CaptureError(
            "the data of a tensor can't be read",
            where=place,
            got=f"{location}: {error}"[:300],
            expected="a file in the model's folder, with the tensor's bytes at its offset",
            hint="copy the data beside the model",
        ) from error
    dims = list(tensor.dims)
    del tensor.dims[:], tensor.external_data[:]
    tensor.dims.append(0)
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.raw_data = b""
    return tensor, dims, data


def _outside(place: str, location: str, got: str) -> CaptureError:
    return CaptureError(
        "the data of a tensor lie outside of the model's folder",
        where=place,
        got=f"{location!r}: {got}"[:300],
        expected="a relative path to a file beside the model",
        hint="copy the data into the model's folder, and give the model by its path",
    )


def told_opsets(model: onnx.ModelProto) -> dict[str, int]:
    return {o.domain: o.version for o in model.opset_import}


