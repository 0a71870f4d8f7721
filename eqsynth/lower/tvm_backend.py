"""The TVM backend: kernels that are generated for scopes, compiled, and called from torch.

A scope such as ``L_ij sum_k a[i, k] * b[k, j]`` gets one kernel for each layout and schedule that
is worth timing; the kernels of a batch are compiled together into one library.

Not here: the loop nest of a scope (``loop_nest.py``), which schedules it has (``schedules.py``),
the TIR of a schedule (``eoperators.py``, ``scalar_code.py``), threads and loading libraries
(``tvm_runtime.py``), libraries that are kept (``tvm_kept.py``).
"""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any, Final

from eqsynth.errors import LoweringError
from eqsynth.extract import tuned
from eqsynth.extract.disturbance import usable_cpus
from eqsynth.extract.kernel import (
    Kernel,
    Layout,
    Runner,
    Writing,
    channels_last,
    contiguous,
    copied,
    holding,
    matrix_layouts,
    strides,
    writing,
)
from eqsynth.extract.schedule import Band, Block, Schedule, Tile
from eqsynth.extract.target import CPU
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, leaves
from eqsynth.ir.tensor import Region, Scope, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import by_matrices
from eqsynth.lower import tvm_kept, tvm_runtime
from eqsynth.lower.loop_nest import (
    LoopNest,
    inputs_of,
    is_memory_bound,
    is_reused_by_one,
    loop_nest,
    map_kept,
    nest_of,
    row_chain,
)
from eqsynth.lower.machine import this_machine
from eqsynth.lower.matrices import tiles_of
from eqsynth.lower.schedules import band, block, one_row, panels_of, refusal, schedules
from eqsynth.lower.tvm_target import imported_tvm, target

if TYPE_CHECKING:
    import torch

_PIPELINE: Final = "eqsynth"

# The fewest kernels for a thread that compiles, since each thread links a library of its own.
_LEAST_TOGETHER: Final = 2


class TvmBackend:
    """Generated kernels for scopes (eOperators). Implements ``Backend`` of
    ``extract/kernel.py``."""

    name = "tvm"

    def __init__(
        self, functions: Mapping[Kernel, Any] | None = None, compiles: bool = True
    ) -> None:
        """
        Args:
            functions: kernels that are compiled already, such as those of a library.
            compiles: whether other kernels may be compiled, which needs the whole of TVM.
        """
        self._functions, self._compiles = dict(functions or {}), compiles

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """The kernels for a scope: at each layout the schedules that its loop nest is offered, and
        the schedule that tuning has found for it. For a term that is no scope there are none."""
        if not isinstance(term, Scope):
            return
        by_memory = is_memory_bound(term)
        found = [*self._at_layouts(term, constants, by_memory)]
        if not found and not by_memory and is_reused_by_one(term):
            found = [*self._at_layouts(term, constants, by_memory=True)]
        yield from found

    def _at_layouts(
        self, term: Scope, constants: tuple[bool, ...], by_memory: bool
    ) -> Iterator[Kernel]:
        """The kernels of ``kernels``, for a scope that memory bounds or that arithmetic bounds."""
        layouts = layouts_of(term, constants, by_memory)
        name = self.name if by_memory else f"{self.name}.block"
        if by_matrices(term) is not None:
            # If there are layouts in which the loop over results runs along memory, only these are
            # offered; for the others a copy before is faster than slow loops.
            every = list(_layouts(term, constants))
            taken = [at for at in every if tiles_of(loop_nest(term, *at)) is not None]
            layouts = iter(taken or every)
            name = f"{name}.matrices" if taken else name
        for inputs, output in layouts:
            nest = loop_nest(term, inputs, output)
            offered = offered_schedules(nest, by_memory, constants)
            for schedule in offered:
                own = f"{self.name}.band" if isinstance(schedule, Band) else name
                yield Kernel(term, constants, own, inputs, output, schedule)
            if offered:
                kernel = Kernel(term, constants, name, inputs, output, offered[0])
                yield from _tuned(kernel, nest, offered)

    def fused(self, region: Region, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """Kernels for a region that is a reduction and a map over its result (bias, residual,
        activation), if the map can run before the result is stored. And for a row chain. No kernels
        for other regions."""
        parts = map_kept(region)
        if parts is None:
            if row_chain(region) is not None:
                yield from self._chains(region, constants)
            return
        reduced, _ = parts
        given: dict[Tensor, int] = {arg: n for n, arg in enumerate(inputs_of(region))}
        own = tuple(constants[given[a]] if a in given else True for a in args_of(reduced))
        by_memory, matrices = is_memory_bound(reduced), by_matrices(reduced) is not None
        kind = "matrices" if matrices else "mapped" if by_memory else "block"
        name = f"{self.name}.{kind}"
        for inputs, output in layouts_of(reduced, own, by_memory):
            at = dict(zip(args_of(reduced), inputs, strict=True))
            # An argument of the result's rank, such as a residual, has the result's layout.
            ranks = {arg: len(arg.shape) for arg in given}
            plain = {a: output if r == len(output) else contiguous(r) for a, r in ranks.items()}
            layouts = tuple(at.get(arg, plain[arg]) for arg in given)
            nest = loop_nest(region, layouts, output)
            offered = offered_schedules(nest, by_memory, constants)
            if kind == "mapped":
                # The widest of them. A region is offered for each way of writing its map, and with
                # all schedules LSTM had three times as many kernels as without these regions.
                offered = offered[-1:]
            for schedule in offered:
                yield Kernel(region, constants, name, layouts, output, schedule)
            if offered and not by_memory:
                kernel = Kernel(region, constants, name, layouts, output, offered[0])
                yield from _tuned(kernel, nest, offered)

    def _chains(self, region: Region, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        layouts = tuple(contiguous(len(arg.shape)) for arg in region.args)
        output = contiguous(len(region.shape))
        nest = loop_nest(region, layouts, output)
        offered = schedules(nest)
        for schedule in offered:
            kernel = Kernel(region, constants, f"{self.name}.chain", layouts, output, schedule)
            yield kernel
            yield from _tuned(kernel, nest, offered)

    def copies(self, type_: TensorType, source: Layout, target: Layout) -> Iterator[Kernel]:
        """The kernel that copies a value into another layout: by tiles that are transposed in
        registers, if neighbours lie apart; else row by row."""
        scope = copied(type_)
        offered = schedules(loop_nest(scope, (source,), target))
        tiles = (schedule for schedule in offered if isinstance(schedule, Tile))
        schedule = next(tiles, offered[0])
        yield Kernel(scope, (False,), self.name, (source,), target, schedule)

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        """Runners for kernels, from one compilation; None for a kernel that doesn't compile.
        Compiled functions are kept, so building the same kernel with other constants compiles
        nothing."""
        wanted = dict.fromkeys(kernel for kernel, _ in kernels if kernel.term.type.size)
        if self._compiles:
            self._functions |= _functions([k for k in wanted if k not in self._functions])
        panels: dict[Hashable, torch.Tensor] = {}
        return [
            runner(kernel, self._functions.get(kernel), packed, panels)
            if kernel in self._functions or not kernel.term.type.size
            else None
            for kernel, packed in kernels
        ]


def _tuned(kernel: Kernel, nest: LoopNest, offered: Sequence[Schedule]) -> Iterator[Kernel]:
    """The kernel under the schedule that tuning has found for it, if that is another one than those
    that are offered and fits the nest."""
    found = found_by_tuning(kernel)
    if found is not None and found not in offered and refusal(nest, found) is None:
        yield replace(kernel, schedule=found)


def offered_schedules(
    nest: LoopNest, by_memory: bool, constants: Sequence[bool] = ()
) -> tuple[Schedule, ...]:
    """The schedules of a nest that are worth timing without a search.

    Args:
        constants: for each argument, whether it is known when the kernel is built.
    """
    if by_memory:
        alone = one_row(nest, this_machine(), constants)
        return schedules(nest) if alone is None else (alone,)
    found = block(nest, this_machine(), constants)
    if found is not None:
        return (found,)
    return band(nest, this_machine()) if nest.after is None else ()


def check_schedule(kernel: Kernel) -> None:
    """Check a kernel that was read from a file.

    Raises:
        ValueError: the kernel's schedule isn't a schedule of its loop nest.
    """
    if not isinstance(kernel.term, Scope | Region) or not isinstance(kernel.schedule, Schedule):
        raise ValueError(f"{kernel.implementation} has no schedule")
    nest = loop_nest(kernel.term, kernel.inputs, kernel.output)
    why = refusal(nest, kernel.schedule)
    packed = getattr(kernel.schedule, "packed", -1)
    if why is None and packed != -1 and not kernel.constants[packed]:
        why = "only a constant can be stored in panels"
    if why is not None:
        raise ValueError(f"{kernel.implementation} {kernel.schedule}: {why}")


def layouts_of(
    scope: Scope, constants: tuple[bool, ...], by_memory: bool
) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
    """The layouts of arguments and result for which kernels of a scope are generated."""
    return (_layouts if by_memory else _contraction_layouts)(scope, constants)


def found_by_tuning(kernel: Kernel) -> Schedule | None:
    """The schedule that tuning has found on this machine for a kernel's term and layouts; None if
    it wasn't tuned."""
    return tuned.best(kernel, tuned_for())


def tuned_for() -> str:
    """The machine that tuned schedules belong to, as text: the processor and the number of
    threads."""
    import torch

    return _tuned_for(torch.get_num_threads())


@lru_cache(maxsize=8)
def _tuned_for(threads: int) -> str:
    from eqsynth.extract.measure import describe_cpu

    return f"{describe_cpu()} {threads}"


def _layouts(
    scope: Scope, constants: tuple[bool, ...]
) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
    """Everything contiguous; contiguous arguments with the result in the order in which the largest
    argument is read; and, if there are images (rank 4), everything channels last. The largest
    argument may also have its last two axes exchanged, as contractions give their results, unless
    it is an image. Beside images that are channels last, a constant has its channels last, too: the
    weights of a depthwise convolution, which has an axis of one channel in their place."""
    args = args_of(scope)
    ranks = [len(arg.shape) for arg in args]
    rank = len(scope.traversal)
    plain = tuple(map(contiguous, ranks))
    for output in dict.fromkeys((contiguous(rank), _order_read(scope))):
        yield plain, output
    if args:
        largest = max(range(len(args)), key=lambda n: args[n].type.size)
        for layout in matrix_layouts(ranks[largest])[1:] if 2 < ranks[largest] != 4 else ():
            yield (*plain[:largest], layout, *plain[largest + 1 :]), contiguous(rank)
    if 4 in (rank, *ranks):
        *last, output = (channels_last(r) if r == 4 else contiguous(r) for r in (*ranks, rank))
        for n, constant in enumerate(constants):
            axis = _axis_along(scope, args[n], output) if constant else None
            if axis is not None:
                last[n] = (*(a for a in range(ranks[n]) if a != axis), axis)
        yield tuple(last), output


def _axis_along(scope: Scope, arg: Tensor, output: Layout) -> int | None:
    """The axis of an argument that is read along the innermost axis of the result's memory; None if
    there isn't one."""
    long = [axis for axis in output if scope.traversal[axis] != 1]
    if not long:
        return None
    inner = Index.iterator(long[-1], scope.traversal[long[-1]])
    reads = [leaf for leaf in leaves(scope.body) if isinstance(leaf, Read) and leaf.tensor == arg]
    axes = {read.index.index(inner) for read in reads if inner in read.index}
    return axes.pop() if len(axes) == 1 else None


def _order_read(scope: Scope) -> Layout:
    """The order of the result's axes in which the largest argument holds them, so that nothing is
    transposed. Contiguous if one of the axes has no step of its own in that argument, or if the
    scope only copies."""
    plain = contiguous(len(scope.traversal))
    reads = [leaf for leaf in leaves(scope.body) if isinstance(leaf, Read)]
    if not reads or isinstance(scope.body, Read) and not scope.reduction:
        return plain
    largest = max(reads, key=lambda read: read.tensor.type.size)
    shape = largest.tensor.shape
    steps = [0] * len(plain)
    for index, step in zip(largest.index, strides(shape, contiguous(len(shape))), strict=True):
        steps = [s + step * index.coefficient(axis) for axis, s in enumerate(steps)]
    if any(step == 0 and scope.traversal[axis] > 1 for axis, step in enumerate(steps)):
        return plain
    return tuple(sorted(plain, key=lambda axis: (steps[axis] == 0, -abs(steps[axis]))))


def _contraction_layouts(
    scope: Scope, constants: tuple[bool, ...]
) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
    """Layouts of a contraction in which the axis that is innermost in the result is innermost in
    each argument that has it.

    Only for contractions of two arguments: those of more arguments are cheaper as several
    contractions of two, and have too many layouts to time.
    """
    if len(args_of(scope)) > 2:
        return
    for output in _orders(len(scope.traversal)):
        if all(extent == 1 for extent in scope.traversal):
            return
        options = []
        for arg, constant in zip(args_of(scope), constants, strict=True):
            axis, rank = _axis_along(scope, arg, output), len(arg.shape)
            if axis is not None:
                options.append([(*(a for a in range(rank) if a != axis), axis)])
            else:
                options.append([contiguous(rank)] if constant else list(_orders(rank)))
        yield from ((inputs, output) for inputs in itertools.product(*options))


def _orders(rank: int) -> tuple[Layout, ...]:
    """The layouts that a contraction's argument or result of this rank may have."""
    return (contiguous(4), channels_last(4)) if rank == 4 else matrix_layouts(rank)


def runner(
    kernel: Kernel,
    function: Any,
    packed: Mapping[int, torch.Tensor],
    panels: dict[Hashable, torch.Tensor] | None = None,
) -> Runner:
    """A runner that calls a compiled function with torch tensors, constants bound, on a new result.

    Args:
        function: the compiled function; unused if the result has no elements.
        packed: constant arguments by position; they are copied into the kernel's layout here, or
            into panels.
        panels: the panels of the kernels that are built together, to be shared and added to: the
            products of two vectors by one matrix, of which one reads the matrix as its first
            argument and one as its second.
    """
    import torch
    import tvm_ffi

    shape, dtype = kernel.term.shape, getattr(torch, kernel.term.dtype)
    steps = strides(shape, kernel.output)
    # The device is named, since torch.set_default_device may set another one.
    empty, host = torch.empty_strided, torch.device(CPU)
    if not kernel.term.type.size:
        return lambda *_: empty(shape, steps, dtype=dtype, device=host)
    slots: list[Any] = []
    kept: list[torch.Tensor] = []
    position, schedule = 0, kernel.schedule
    by_panels = panels_of(nest_of(kernel), schedule) if isinstance(schedule, Block) else None
    for k, arg in enumerate(args_of(kernel.term)):
        used = arg.type.size > 0
        if k in packed:
            if used:
                laid_out = _laid_out(packed[k], arg, kernel.inputs[k])
                if by_panels is not None and by_panels.access.argument == k:
                    way = replace(by_panels, access=replace(by_panels.access, argument=0))
                    key = way, kernel.inputs[k], id(packed[k])
                    known = {} if panels is None else panels
                    if key not in known:
                        known[key] = by_panels.stored(laid_out)
                    laid_out = known[key]
                kept.append(laid_out)
                slots.append(tvm_ffi.from_dlpack(kept[-1]))  # keeps the memory alive
        else:
            if used:
                slots.append(position)
            position += 1
    how = Writing(function, tuple(slots), shape, steps, dtype)
    if slots == list(range(position)):

        def direct(*args: torch.Tensor) -> torch.Tensor:
            result = empty(shape, steps, dtype=dtype, device=host)
            function(*args, result)
            return result

        return writing(direct, how)
    varying = [(hole, slot) for hole, slot in enumerate(slots) if isinstance(slot, int)]

    def bound(*args: torch.Tensor) -> torch.Tensor:
        result = empty(shape, steps, dtype=dtype, device=host)
        values = slots.copy()
        for hole, source in varying:
            values[hole] = args[source]
        function(*values, result)
        return result

    return writing(holding(bound, kept), how)


def _laid_out(value: torch.Tensor, arg: Tensor, layout: Layout) -> torch.Tensor:
    """A constant in the layout that the kernel reads: the tensor itself if it lies so, else a
    copy."""
    import torch

    steps = strides(arg.shape, layout)
    if value.stride() == steps:
        return value.detach()
    dense = torch.empty_strided(arg.shape, steps, dtype=value.dtype, device=CPU)
    return dense.copy_(value.detach())


def export_library(kernels: Sequence[Kernel]) -> tuple[bytes, dict[Kernel, str]]:
    """A shared library with all kernels, and each kernel's name in it.

    ``tvm_runtime.load_library`` loads the library without the compiler.

    Raises:
        LoweringError: a kernel doesn't compile, or there is no C compiler to link with.
    """
    names = _names(kernels)
    return _linked(_compile(names), len(names)), names


def _linked(executable: Any, kernels: int) -> bytes:
    """Link what TVM compiled into a shared library; return the library's bytes.

    Raises:
        LoweringError: there is no C compiler to link with, or no room on the disk.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        tvm_runtime.check_room(path, (4 << 20) + kernels * (256 << 10))

        def linked(target: str, units: Sequence[str], **_: Any) -> None:
            tvm_runtime.link([Path(unit) for unit in units], Path(target))

        try:
            executable.export_library(str(path), fcompile=linked)
        except (OSError, CalledProcessError, RuntimeError) as error:
            raise LoweringError(
                what="the kernels could not be linked into a library",
                got=str(error)[:500],
                expected="a working C compiler",
                hint="install a C compiler, or set CC",
            ) from error
        return path.read_bytes()


def _names(kernels: Sequence[Kernel]) -> dict[Kernel, str]:
    """A name for each kernel in its library; kernels with an empty result have no code and no
    name."""
    return {
        kernel: f"eoperator_{k}_{kernel.term.digest.hex()[:12]}"
        for k, kernel in enumerate(dict.fromkeys(kernels))
        if kernel.term.type.size
    }


def compile_and_keep(kernels: Sequence[Kernel], threads: int) -> None:
    """Compile kernels for other processes, which load them (``tvm_kept.py``); a task of the
    measuring worker."""
    import torch

    torch.set_num_threads(threads)
    _compiled(kernels)


def not_kept(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Those of these kernels that are to be compiled before they can run."""
    generated = [k for k in kernels if k.backend == TvmBackend.name and k.term.type.size]
    return tvm_kept.missing(generated)


def _functions(kernels: Sequence[Kernel]) -> dict[Kernel, Any]:
    """The functions of kernels: from libraries that were kept, or compiled now."""
    known = tvm_kept.load(kernels)
    return known | _compiled([kernel for kernel in kernels if kernel not in known])


def _compiled(kernels: Sequence[Kernel]) -> dict[Kernel, Any]:
    """Compile kernels, as many at once as torch has threads; those that fail are left out.

    LLVM takes nearly all of the time, and Python's lock is free meanwhile. (100 kernels of
    ResNet-18 on two cores: 5.1 s by one thread, 2.8 by two.)
    """
    import torch

    parts = min(torch.get_num_threads(), len(usable_cpus()), len(kernels) // _LEAST_TOGETHER)
    if parts < 2:
        return _library_of(kernels)
    # Both are set up here, before two threads do so.
    tvm_runtime.ensure_runtime()
    _pipeline()
    with ThreadPoolExecutor(parts) as pool:
        found = pool.map(_library_of, [kernels[n::parts] for n in range(parts)])
    return {k: f for part in found for k, f in part.items()}


def _library_of(kernels: Sequence[Kernel]) -> dict[Kernel, Any]:
    """Compile kernels together. If that fails, each is compiled by itself, and the kernels that
    fail are left out with a warning."""
    if not kernels:
        return {}
    names = _names(kernels)
    try:
        module = executable = _compile(names)
        # Linking a library takes as long as loading the code into memory, and a library can be
        # kept. Without a C compiler the code stays in memory.
        with suppress(LoweringError):
            library = _linked(executable, len(names))
            module = tvm_runtime.load_library(library)
            tvm_kept.keep(names, library)
        return {kernel: module[name] for kernel, name in names.items()}
    except LoweringError as error:
        if len(kernels) == 1:
            warnings.warn(f"a kernel was left out: {error}", RuntimeWarning, stacklevel=2)
            return {}
    return {k: f for kernel in kernels for k, f in _library_of([kernel]).items()}


def _compile(names: Mapping[Kernel, str]) -> Any:
    tvm = imported_tvm()

    from eqsynth.lower.eoperators import prim_func

    tvm_runtime.ensure_runtime()
    functions = {}
    with tvm_runtime.compiling(names, "TVM could not compile a kernel", "code for this machine"):
        for kernel, name in names.items():
            functions[name] = prim_func(nest_of(kernel), kernel.schedule, name)
        return tvm.compile(tvm.IRModule(functions), target(), tir_pipeline=_pipeline())


@lru_cache(maxsize=1)
def _pipeline() -> str:
    """Registers the passes that flat loop nests need, and returns their name.

    TVM's own pipeline also simplifies statements, which inlines bindings until the code of an
    activation is exponential, and eliminates common subexpressions, which takes divisions and
    loads out of the conditions that guard them. LLVM does both jobs, and does them soundly.
    Buffers are lines already: flattening would only simplify their indices, and TVM 0.27 takes
    ``i // 8 % 6 * 16 + (i % 8 + 1) % 2`` for ``(i + 1) % 48 // 8 * 16 + (i + 1) % 2``.
    """
    import tvm
    from tvm import tirx
    from tvm.tirx import compilation_pipeline, transform

    from eqsynth.lower.packed_api import packed_api

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower(module: Any, _: Any) -> Any:
        passes = [
            transform.BF16ComputeLegalize(),
            transform.VectorizeLoop(True),
            transform.UnrollLoop(),
            transform.AnnotateEntryFunc(),
            transform.SplitHostDevice(),
            packed_api,
            transform.BF16StorageLegalize(),
        ]
        return tvm.ir.transform.Sequential(passes)(module)

    def factory() -> Any:
        host = compilation_pipeline.finalize_host_passes
        return lower, host, compilation_pipeline.finalize_device_passes

    tirx.register_tir_pipeline(_PIPELINE, factory)
    return _PIPELINE
