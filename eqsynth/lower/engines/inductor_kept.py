"""Regions that Inductor has compiled, in the cache directory. The measuring worker compiles a
region in order to time it; the program's process then loads it from here.

Inductor's own cache leaves out graphs with frozen weights that are packed, as nearly all are. Two
things are stored here: the code that Inductor has generated for the region as a whole (its kernels
are in Inductor's own cache, by their source), and the operators that made the constants in this
code (`permute`, `_reorder_linear_weight`). Inductor runs these operators on real tensors while it
freezes weights; when a region is loaded, they are run again, on the weights of the program. This is
needed since the worker times regions with random weights.

Generated code may depend on the values of constants: small numbers are written into it, and equal
tensors become one. So the values of all small constants are part of the file's name. Large
constants of the worker are random, and code that is right for random values is right for others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_flatten

from eqsynth import kept
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import Region

MAX_BYTES: Final = 64 << 20
"""The most bytes of all files. If there are more, the least recently used files are deleted."""

SMALL_BYTES: Final = 1 << 16
"""Constants of up to this size have the program's values when a region is timed
(``lowered.py``)."""

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Unkept(Exception):
    """A region can't be stored, or its file can't be used. It is compiled again."""


@dataclass(frozen=True)
class Compiled:
    """A compiled region.

    Attributes:
        source: the Python code that calls the kernels.
        instructions: the vector instructions that Inductor has used.
        steps: the operators that make constants, as JSON: the overload, its arguments, and the
            numbers of its results. The first numbers are those of the region's constants, in order.
        constants: the names of constants in the code, with their numbers.
    """

    source: str
    instructions: str
    steps: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]


def load(region: Region, constants: Mapping[int, torch.Tensor]) -> Call:
    """Return the function of a region that was stored.

    Raises:
        Unkept: it wasn't stored, or its constants can't be made.
    """
    found = kept.load(_path(region, constants), kept.classes(Compiled))
    if not isinstance(found, Compiled):
        raise Unkept("nothing is kept of this region")
    try:
        return _called_with(found, constants)
    except Exception as error:  # any error of torch: another version, or a damaged file
        raise Unkept(str(error)) from error


def _called_with(found: Compiled, constants: Mapping[int, torch.Tensor]) -> Call:
    values: dict[int, Any] = {n: constants[key] for n, key in enumerate(sorted(constants))}
    for step in found.steps:
        _replay(json.loads(step), values)
    return _loaded(found, {name: values[n] for name, n in found.constants})


def keep(
    region: Region,
    constants: Mapping[int, torch.Tensor],
    tape: Tape,
    examples: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> None:
    """Store the region that was compiled while the tape ran, if it can be stored as data, and if a
    function loaded from this data gives the expected results for the examples."""
    if tape.compiled is None:
        return
    try:
        got = _called_with(tape.compiled, constants)(list(examples))
        alike = all(
            a.stride() == b.stride() and a.dtype == b.dtype and bool(_same(a, b).all())
            for a, b in zip(got, expected, strict=True)
        )
    except Exception:  # any error: the region isn't stored
        alike = False
    if alike:
        kept.keep(_path(region, constants), tape.compiled, MAX_BYTES)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | ((one != one) & (other != other))


def _path(region: Region, constants: Mapping[int, torch.Tensor]) -> Path:
    """The file of a region. Its name is a digest of the region, the small constants, and all else
    that the code depends on: versions, settings, the number of threads, the processor."""
    from torch._inductor import config

    # Imported here, where a region is looked up, since loading a saved program needs no profile.
    from eqsynth.extract.measure import cpu_numerics

    small = [
        (n, hashlib.blake2b(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest())
        if value.nbytes <= SMALL_BYTES
        else (n, "")
        for n, value in sorted((n, value.detach().reshape(-1)) for n, value in constants.items())
    ]
    # The code is the same whether its instructions were tested before or not.
    with config.patch({"cpp.vec_isa_ok": None}):
        settings = config.get_hash().hex()
    made = (
        str(torch.__version__), settings, cpu_numerics(), torch.get_num_threads(), _processor(),
        kept.code_of("lower"),
    )  # fmt: skip
    outputs = [output.digest for output in region.outputs]
    args = [arg.digest for arg in region.args]
    return kept.directory("regions-1") / digest_of(*outputs, b"", *args, repr((small, made))).hex()


@lru_cache(maxsize=1)
def _processor() -> str:
    from eqsynth.extract.measure import describe_cpu

    return repr(describe_cpu())


def _loaded(found: Compiled, constants: Mapping[str, torch.Tensor]) -> Call:
    """Load the code of a region with these constants, by Inductor's own cache of code.

    Raises:
        Unkept: Inductor would use other vector instructions on this machine.
    """
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache

    # The region was compiled with these instructions, which was their test.
    with taking_instructions(), config.patch({"freezing": True, "compile_threads": 1}):
        if _instructions() != found.instructions:
            raise Unkept("Inductor would take other instructions here")
        key, path = PyCodeCache.write(found.source)
        module = PyCodeCache.load_by_key_path(key, path, None, dict(constants))
    return cast(Call, module.call)


_TEMPLATES: Final = "from torch._inductor.select_algorithm import extern_kernels\n"
_FROM_TORCH: Final = "import torch as extern_kernels\n"

_IN_LIBRARIES: Final = frozenset({"aten", "inductor", "mkl", "mkldnn", "_quantized"})
"""Namespaces of operators that importing torch registers: all that code for a CPU speaks of."""


def without_templates(source: str) -> str:
    """Code of Inductor that takes library functions from torch, where Inductor's names for them
    mean torch's own functions; the code as it is, where one doesn't.

        from torch._inductor.select_algorithm import extern_kernels    ->    import torch as ...
        extern_kernels.bmm(x, y, out=z)                                      the same: torch.bmm

    The module that has these names makes the templates of all of Inductor's kernels when it is
    imported: 0.30 s of CPU in each process that loads a region, and code that is written needs
    none. An operator that is registered while that module is imported would be missing, so the
    code may speak of those only that torch's libraries register.
    """
    from torch._inductor.select_algorithm import extern_kernels

    named = re.findall(r"\bextern_kernels\.(\w+)", source)
    theirs = all(
        hasattr(torch, name) and getattr(torch, name) is getattr(extern_kernels, name, None)
        for name in named
    )
    # Once more than it is named, in the import: nothing else is done with the object itself.
    plain = len(re.findall(r"\bextern_kernels\b", source)) == len(named) + 1
    spaces = set(re.findall(r"\btorch\.ops\.(\w+)", source))
    if theirs and plain and spaces <= _IN_LIBRARIES:
        return source.replace(_TEMPLATES, _FROM_TORCH)
    return source


def _instructions() -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return str(pick_vec_isa())


@contextmanager
def taking_instructions() -> Iterator[None]:
    """Inductor takes the vector instructions that the processor has, and tests none of them in this
    block.

    ``vec_isa_ok`` is its own setting for the base of a set of instructions. What a set adds (bf16,
    VNNI, AMX) is compiled and loaded for a test all the same, by two processes each: 8 of 23 s of
    compiling a BERT on a processor with AMX.
    """
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import VecISA

    taken = mock.patch.object(VecISA, "check_build", lambda _isa, _code: True)
    with taken, config.patch({"cpp.vec_isa_ok": True}):
        yield


def forget_instructions() -> None:
    """Make Inductor test again which vector instructions work here."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    kinds = {kind for isa in cpu_vec_isa.supported_vec_isa_list for kind in type(isa).__mro__}
    for kind in kinds:
        for remembered in vars(kind).values():
            getattr(remembered, "cache_clear", lambda: None)()


# ---- how constants are made --------------------------------------------------------------------


class Tape:
    """Records the operators that Inductor runs on constants while it compiles, and the compiled
    code.

    Attributes:
        compiled: the data to store; None if part of it can't be expressed as data.
    """

    def __init__(self, constants: Mapping[int, torch.Tensor]) -> None:
        self.compiled: Compiled | None = None
        self._steps: list[tuple[str, set[int], set[int]]] = []
        self._numbers: dict[int, int] = {}
        # Tensors are held, so that no other tensor gets the identity of one that was freed.
        self._held: list[torch.Tensor] = []
        for key in sorted(constants):
            self._number(constants[key])

    def _number(self, value: torch.Tensor) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._held)
            self._held.append(value)
        return number

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the operators that Inductor's constant folding runs in this block."""
        from torch._inductor.constant_folding import ConstantFolder

        call = ConstantFolder.call_function

        def recorded(folder: Any, target: Any, args: Any, kwargs: Any) -> Any:
            result = call(folder, target, args, kwargs)
            self._record(target, args, kwargs, result)
            return result

        with mock.patch.object(ConstantFolder, "call_function", recorded):
            yield

    def _record(self, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator that Inductor has run, unless its results have numbers already."""
        outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        if any(id(x) in self._numbers for x in outputs):
            return
        with suppress(Unkept):  # its results get no numbers, so no code that uses them is stored
            step = [_name(target), self._as_data(args), self._as_data(kwargs)]
            flat = tree_flatten((args, kwargs))[0]
            given = {self._numbers[id(x)] for x in flat if id(x) in self._numbers}
            made = list(map(self._number, outputs))
            self._steps.append((json.dumps([*step, made]), given, set(made)))

    def _as_data(self, value: Any) -> Any:
        """An argument of an operator as JSON: tensors by their numbers, dtypes and the like by
        their names.

        Raises:
            Unkept: the argument is a tensor that isn't made of constants, or of another type.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.Tensor):
            if id(value) not in self._numbers:
                raise Unkept("a tensor that is no constant")
            return {"tensor": self._numbers[id(value)]}
        if isinstance(value, list | tuple):
            return [self._as_data(part) for part in value]
        if isinstance(value, dict):
            return {"dict": {key: self._as_data(part) for key, part in value.items()}}
        for kind in _NAMED:
            if isinstance(value, kind):
                return {"named": str(value)}
        raise Unkept(f"an argument of type {type(value).__name__}")

    def inner(self, graph: torch.fx.GraphModule, examples: Sequence[Any], **rest: Any) -> Any:
        """Compile a graph with frozen constants by Inductor, and record the code."""
        from torch._inductor.compile_fx import compile_fx_inner

        result: Any = compile_fx_inner(graph, examples, **rest)
        code, frozen = getattr(result, "source_code", ""), getattr(result, "frozen_param_names", {})
        values = {**(result.constants or {}), **{k: getattr(graph, v) for k, v in frozen.items()}}
        if code and all(id(value) in self._numbers for value in values.values()):
            named = {name: self._numbers[id(value)] for name, value in values.items()}
            steps = self._leading_to(set(named.values()))
            code = without_templates(code)
            self.compiled = Compiled(code, _instructions(), steps, tuple(named.items()))
        return result

    def _leading_to(self, wanted: set[int]) -> tuple[str, ...]:
        """The steps that make the constants with these numbers."""
        found: list[str] = []
        for step, given, made in reversed(self._steps):
            if not wanted.isdisjoint(made):
                wanted |= given
                found.append(step)
        return tuple(reversed(found))


_NAMED: Final = (torch.dtype, torch.layout, torch.memory_format, torch.device)


def _replay(step: list[Any], values: dict[int, Any]) -> None:
    """Run a recorded operator on the values with these numbers, and add its results."""
    name, args, kwargs, numbers = step
    operator = _operator(name)
    _name(operator)  # raises if the operator changes its arguments
    result = operator(*_of_data(args, values), **_of_data(kwargs, values))
    outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
    values.update(zip(numbers, outputs, strict=True))


def _name(target: Any) -> str:
    """The name of an operator that changes none of its arguments. The name of an overload includes
    the overload: ``aten::clone`` would stand for all overloads, one of which writes into an
    argument.

    Raises:
        Unkept: this is no such operator.
    """
    if isinstance(target, OpOverload) and not target._schema.is_mutable:
        return f"{target._schema.name}.{target._overloadname}"
    if isinstance(target, OpOverloadPacket):
        schemas = [getattr(target, overload)._schema for overload in target.overloads()]
        if not any(schema.is_mutable for schema in schemas):
            return str(target._qualified_op_name)
    raise Unkept(f"{target} is no operator that can be called again")


def _operator(name: str) -> Any:
    """
    >>> _operator("aten::permute"), _operator("aten::sum.dim_IntList")
    (<OpOverloadPacket(op='aten.permute')>, <OpOverload(op='aten.sum', overload='dim_IntList')>)
    """
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, space), packet)
    return getattr(found, overload) if overload else found


def _of_data(value: Any, values: Mapping[int, Any]) -> Any:
    """The inverse of :meth:`Tape._as_data`."""
    if isinstance(value, list):
        return [_of_data(part, values) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return values[value["tensor"]]
    if "named" in value:
        name = value["named"]
        return getattr(torch, name.removeprefix("torch.")) if "." in name else torch.device(name)
    return {key: _of_data(part, values) for key, part in value["dict"].items()}
