"""Reading a manifest. Anybody may have written this JSON, so each field is checked before its use.

Each function takes a piece of JSON and returns it as the expected value, or raises ``ValueError``:
``below(3)(2)`` is 2, ``below(3)(3)`` raises. Not here: files (``bundle.py``), kernels as data
(``kernel_data.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from eqsynth.extract.kernel import Kernel, Layout, strides
from eqsynth.extract.layout import view_kernel
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, Weight, args_of
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.lower.kernel_data import term_from_data, term_to_data
from eqsynth.lower.memory_reads import Memory
from eqsynth.lower.steps import Parameter, Step
from eqsynth.lower.torch_backend import conversion, lies_in

Data = Any
T = TypeVar("T")

# A number of elements larger than any memory.
_HUGE: Final = 1 << 62


def fields(data: Data, names: Sequence[str]) -> list[Data]:
    """The values of an object that has exactly these fields."""
    if type(data) is not dict or data.keys() != set(names):
        got = ", ".join(map(str, data)) if type(data) is dict else type(data).__name__
        raise ValueError(f"fields {got[:200]} instead of {', '.join(names)}")
    return [data[name] for name in names]


def row(data: Data, length: int) -> list[Data]:
    """A list of exactly this length."""
    if type(data) is not list or len(data) != length:
        raise ValueError(f"no list of {length}: {str(data)[:100]}")
    return data


def rows(data: Data, of: Callable[[Data], T]) -> list[T]:
    """A list, each of whose elements is read by ``of``."""
    if type(data) is not list:
        raise ValueError(f"no list: {str(data)[:100]}")
    return [of(part) for part in data]


def text(data: Data) -> str:
    """A string."""
    if type(data) is not str:
        raise ValueError(f"no text: {str(data)[:100]}")
    return data


def truth(data: Data) -> bool:
    """A bool."""
    if type(data) is not bool:
        raise ValueError(f"neither true nor false: {str(data)[:100]}")
    return data


def below(limit: int) -> Callable[[Data], int]:
    """A reader of integers from 0 to ``limit - 1``."""

    def read(data: Data) -> int:
        if type(data) is not int or not 0 <= data < limit:
            raise ValueError(f"no number below {limit}: {str(data)[:100]}")
        return data

    return read


def texts(data: Data) -> dict[str, str]:
    """An object whose values are strings."""
    if type(data) is not dict:
        raise ValueError(f"no object: {str(data)[:100]}")
    return {text(name): text(value) for name, value in data.items()}


def shape(data: Data) -> tuple[int, ...]:
    """A shape, whose number of elements is bounded."""
    result = tuple(rows(data, below(_HUGE)))
    size = 1
    for extent in result:
        size *= max(extent, 1)
    if size >= _HUGE or len(result) > 64:
        raise ValueError(f"no shape: {str(data)[:100]}")
    return result


def type_of(data: Data) -> TensorType:
    """The type of a tensor: shape and dtype."""
    extents, dtype = row(data, 2)
    if text(dtype) not in DTYPES:
        raise ValueError(f"no dtype: {dtype[:100]}")
    return TensorType(shape(extents), dtype)


def layout(data: Data, rank: int) -> Layout:
    """A layout: a permutation of so many axes."""
    axes = tuple(rows(data, below(rank)))
    if sorted(axes) != list(range(rank)):
        raise ValueError(f"no order of {rank} axes: {data}")
    return axes


def parameter(data: Data) -> Parameter:
    """An input with its layout, and with how it has to lie in memory."""
    name, extents, dtype, axes, told = row(data, 5)
    kind = type_of([extents, dtype])
    placed = memory(told, len(kind.shape))
    return Parameter(Input(text(name), kind), layout(axes, len(kind.shape)), placed)


def memory_to_data(memory: Memory | None) -> Data:
    """Write how an input of a program has to lie in memory."""
    return None if memory is None else [list(memory.strides), memory.offset]


def memory(data: Data, rank: int) -> Memory | None:
    """Read what ``memory_to_data`` wrote."""
    if data is None:
        return None
    steps, offset = row(data, 2)
    found = Memory(tuple(rows(steps, _step)), _step(offset))
    if len(found.strides) != rank:
        raise ValueError(f"{len(found.strides)} strides for {rank} axes")
    return found


def _step(data: Data) -> int | None:
    if data is not None and (type(data) is not int or not 0 <= data < _HUGE):
        raise ValueError(f"no stride: {str(data)[:100]}")
    return data


# ---- terms of constants ----------------------------------------------------------------------


def terms_to_data(terms: Mapping[str, Tensor]) -> Data:
    """Write terms over weights as lines: ``["weight", name, shape, dtype]``, or a term over earlier
    lines. With them the line number of each named term."""
    from eqsynth.ir.tensor import topological

    lines: list[Data] = []
    numbers: dict[Tensor, int] = {}
    for term in topological(list(terms.values())):
        numbers[term] = len(lines)
        if isinstance(term, Weight):
            lines.append(["weight", term.name, list(term.shape), term.dtype])
        else:
            args = args_of(term)
            lines.append([[numbers[arg] for arg in args], term_to_data(term, args)])
    return [lines, [[name, numbers[term]] for name, term in terms.items()]]


def terms_from_data(data: Data) -> dict[str, Tensor]:
    """Read what :func:`terms_to_data` wrote."""
    lines, wanted = row(data, 2)
    terms: list[Tensor] = []
    for line in rows(lines, lambda part: part):
        if type(line) is list and len(line) == 4 and line[0] == "weight":
            terms.append(Weight(text(line[1]), type_of(line[2:])))
        else:
            numbers, term = row(line, 2)
            args = [terms[n] for n in rows(numbers, below(len(terms)))]
            terms.append(term_from_data(term, args))
            if not terms[-1].constant or args_of(terms[-1]) != tuple(args):
                raise ValueError("a constant is no term over weights")
    pairs = [row(pair, 2) for pair in rows(wanted, lambda part: part)]
    return {text(name): terms[below(len(terms))(n)] for name, n in pairs}


# ---- programs as a whole ---------------------------------------------------------------------


def check_kernel(kernel: Kernel, offered: Callable[[Tensor, tuple[bool, ...]], Any] | None) -> None:
    """Check that a backend has this kernel.

    Args:
        offered: gives the backend's kernels for a term; None if the backend generates kernels.

    Raises:
        ValueError: the backend doesn't have it.
    """
    args = args_of(kernel.term)
    if not isinstance(kernel.term, Op | Scope | Region) or len(args) != len(kernel.inputs):
        raise ValueError(f"{kernel.implementation} with {len(kernel.inputs)} inputs")
    for arg, axes in zip((*args, kernel.term), (*kernel.inputs, kernel.output), strict=True):
        layout(list(axes), len(shape(list(arg.shape))))
    if len(kernel.constants) != len(args):
        raise ValueError(f"{kernel.implementation} has {len(args)} arguments")
    moved = len(args) == 1 and args[0].type == kernel.term.type
    if moved and kernel == conversion(args[0].type, kernel.inputs[0], kernel.output):
        return
    if len(args) == 1 and kernel == view_kernel(kernel.term, kernel.inputs[0]):
        return
    if offered is not None and all(k != kernel for k in offered(kernel.term, kernel.constants)):
        raise ValueError(f"there is no kernel {kernel.implementation} {kernel.term.type}")


def check_steps(
    parameters: Sequence[Parameter],
    constants: Mapping[str, TensorType],
    steps: Sequence[tuple[str, Kernel, Sequence[str]]],
    outputs: Sequence[str],
) -> None:
    """Check that each step reads values that exist, with the types and layouts that its kernel
    takes.

    Raises:
        ValueError: a step or an output reads another value.
    """
    known: dict[str, tuple[TensorType, Layout | None]] = {}

    def add(name: str, kind: TensorType, axes: Layout | None) -> None:
        if name in known:
            raise ValueError(f"two values of the name {name[:100]!r}")
        known[name] = kind, axes

    for parameter_ in parameters:
        add(parameter_.input.name, parameter_.input.type, parameter_.layout)
    for name, kind in constants.items():
        add(name, kind, None)
    for name, kernel, args in steps:
        wanted = zip(args_of(kernel.term), kernel.inputs, kernel.constants, strict=True)
        for given, (arg, axes, constant) in zip(args, wanted, strict=True):
            kind, found = known[given]
            if kind != arg.type or constant != (found is None):
                raise ValueError(f"{name[:100]} takes {arg.type}, and {given[:100]} is {kind}")
            if found is not None and not lies_in(kind.shape, strides(kind.shape, found), axes):
                raise ValueError(f"{name[:100]} takes {given[:100]} in another layout")
        parts = kernel.term.outputs if isinstance(kernel.term, Region) else (kernel.term,)
        for result, part in zip(Step(name, kernel, _never, ()).results, parts, strict=True):
            axes = kernel.output if part is parts[0] else tuple(range(len(part.shape)))
            add(result, part.type, axes)
    for name in outputs:
        if name not in known:
            raise ValueError(f"no value {name[:100]!r} to give")


def _never(*_: Any) -> Any:
    raise AssertionError("this is no runner")
