"""What Inductor has compiled, in the cache directory: what the measuring worker has compiled in
order to time it, the program loads, in whatever process.

Inductor's own cache leaves out graphs with frozen weights that are packed, as nearly all are. Kept
here is the code that it has written for the whole (its kernels are in its own cache, by their
source), and how the constants in that code are made: the operators that freezing has run on real
tensors, one after the other (`permute`, `_reorder_linear_weight`). Replayed on other weights they
give the constants of these: the worker times regions with random weights.

Code may depend on the values of constants: of small ones (numbers that are written into it, equal
tensors that become one). So all that are small are in the name of the file. The worker's large ones
are random, of which no code can know anything that doesn't hold for others.
"""

from __future__ import annotations

import hashlib
import json
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
"""Of more, the files that weren't used for longest go."""

SMALL_BYTES: Final = 1 << 16
"""Constants up to this size are those of the program when a region is timed (``lowered.py``)."""

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Unkept(Exception):
    """What was compiled can't be kept, or what was kept can't be used: it is compiled again."""


@dataclass(frozen=True)
class Compiled:
    """A region that was compiled.

    Attributes:
        source: the Python code that calls the kernels.
        instructions: the vector instructions that Inductor found to work here.
        steps: operators that make constants, as JSON: the overload, its arguments, the numbers of
            its results. The region's constants come first, in order.
        constants: the names that the code has for constants, with their numbers.
    """

    source: str
    instructions: str
    steps: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]


def load(region: Region, constants: Mapping[int, torch.Tensor]) -> Call:
    """
    Raises:
        Unkept: there is no such region, or its constants can't be made.
    """
    found = kept.load(_path(region, constants), kept.classes(Compiled))
    if not isinstance(found, Compiled):
        raise Unkept("nothing is kept of this region")
    try:
        return _called_with(found, constants)
    except Exception as error:  # whatever torch raises: another version, a cache that was damaged
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
    """Keeps what was compiled while the tape ran, if that can be told as data, and what is kept
    gives what is expected of the examples."""
    if tape.compiled is None:
        return
    try:
        got = _called_with(tape.compiled, constants)(list(examples))
        alike = all(
            a.stride() == b.stride() and a.dtype == b.dtype and bool(_same(a, b).all())
            for a, b in zip(got, expected, strict=True)
        )
    except Exception:  # whatever it raises, nobody will meet it again
        alike = False
    if alike:
        kept.keep(_path(region, constants), tape.compiled, MAX_BYTES)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | ((one != one) & (other != other))


def _path(region: Region, constants: Mapping[int, torch.Tensor]) -> Path:
    from torch._inductor import config

    # Here, and where a region is looked up alone: who loads a saved program needs no profile.
    from eqsynth.extract.measure import cpu_numerics

    small = [
        (n, hashlib.blake2b(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest())
        if value.nbytes <= SMALL_BYTES
        else (n, "")
        for n, value in sorted(
            (n, value.detach().reshape(-1)) for n, value in constants.items()
        )
    ]
    made = (
        str(torch.__version__), config.get_hash().hex(), cpu_numerics(),
        torch.get_num_threads(), _processor(), kept.code_of("lower"),
    )  # fmt: skip
    outputs = [output.digest for output in region.outputs]
    args = [arg.digest for arg in region.args]
    return kept.directory("regions-1") / digest_of(*outputs, b"", *args, repr((small, made))).hex()


@lru_cache(maxsize=1)
def _processor() -> str:
    from eqsynth.extract.measure import describe_cpu

    return repr(describe_cpu())


def _loaded(found: Compiled, constants: Mapping[str, torch.Tensor]) -> Call:
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache

    # Which instructions work was tried when it was compiled; trying takes a process for each.
    with config.patch({"cpp.vec_isa_ok": True, "freezing": True, "compile_threads": 1}):
        if _instructions() != found.instructions:
            raise Unkept("Inductor would take other instructions here")
        key, path = PyCodeCache.write(found.source)
        module = PyCodeCache.load_by_key_path(key, path, None, dict(constants))
    return cast(Call, module.call)


def _instructions() -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return str(pick_vec_isa())


def forget_instructions() -> None:
    """Has Inductor try anew which vector instructions work here."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    kinds = {kind for isa in cpu_vec_isa.supported_vec_isa_list for kind in type(isa).__mro__}
    for kind in kinds:
        for remembered in vars(kind).values():
            getattr(remembered, "cache_clear", lambda: None)()


# ---- how constants are made --------------------------------------------------------------------


class Tape:
    """Records what is computed from constants while Inductor compiles, and what it has compiled.

    Attributes:
        compiled: what can be kept; None if something of it can't be told as data.
    """

    def __init__(self, constants: Mapping[int, torch.Tensor]) -> None:
        self.compiled: Compiled | None = None
        self._steps: list[tuple[str, set[int], set[int]]] = []
        self._numbers: dict[int, int] = {}
        # Held, so that no other tensor takes the place of one that is gone.
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
        """Records the operators that Inductor's folding of constants runs."""
        from torch._inductor.constant_folding import ConstantFolder

        call = ConstantFolder.call_function

        def recorded(folder: Any, target: Any, args: Any, kwargs: Any) -> Any:
            result = call(folder, target, args, kwargs)
            self._record(target, args, kwargs, result)
            return result

        with mock.patch.object(ConstantFolder, "call_function", recorded):
            yield

    def _record(self, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        if any(id(x) in self._numbers for x in outputs):
            return
        with suppress(Unkept):  # then no constant that comes of it has a number
            step = [_name(target), self._as_data(args), self._as_data(kwargs)]
            flat = tree_flatten((args, kwargs))[0]
            given = {self._numbers[id(x)] for x in flat if id(x) in self._numbers}
            made = list(map(self._number, outputs))
            self._steps.append((json.dumps([*step, made]), given, set(made)))

    def _as_data(self, value: Any) -> Any:
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
        """Inductor's own compilation of a graph with frozen constants; takes what it has made."""
        from torch._inductor.compile_fx import compile_fx_inner

        result: Any = compile_fx_inner(graph, examples, **rest)
        code, frozen = getattr(result, "source_code", ""), getattr(result, "frozen_param_names", {})
        values = {**(result.constants or {}), **{k: getattr(graph, v) for k, v in frozen.items()}}
        if code and all(id(value) in self._numbers for value in values.values()):
            named = {name: self._numbers[id(value)] for name, value in values.items()}
            steps = self._leading_to(set(named.values()))
            self.compiled = Compiled(code, _instructions(), steps, tuple(named.items()))
        return result

    def _leading_to(self, wanted: set[int]) -> tuple[str, ...]:
        """The steps that make these numbers."""
        found: list[str] = []
        for step, given, made in reversed(self._steps):
            if not wanted.isdisjoint(made):
                wanted |= given
                found.append(step)
        return tuple(reversed(found))


_NAMED: Final = (torch.dtype, torch.layout, torch.memory_format, torch.device)


def _replay(step: list[Any], values: dict[int, Any]) -> None:
    name, args, kwargs, numbers = step
    operator = _operator(name)
    _name(operator)  # refuses one that changes its arguments
    result = operator(*_of_data(args, values), **_of_data(kwargs, values))
    outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
    values.update(zip(numbers, outputs, strict=True))


def _name(target: Any) -> str:
    """Of an operator that changes none of its arguments. An overload is named with its own name:
    ``aten::clone`` would be all overloads, of which one writes into an argument."""
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
