"""The torch backend: kernels of torch for every term, and runners from any kernel's function.

Example: ``Permute(x)`` gets a kernel for each layout of x in which torch permutes without a copy;
``route(kernel, function, constants)`` makes a function that takes only the varying arguments and
returns its result in the kernel's layout. Also here: copies from one layout to another. Not here:
what each operator computes (``torch_ops.py``), oneDNN's operators (``vendor.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from eqsynth.extract.kernel import (
    Kernel,
    Layout,
    Runner,
    channels_last,
    contiguous,
    held,
    holding,
    matrix_layouts,
    strides,
)
from eqsynth.ir.tensor import Input, Op, Region, Tensor, args_of
from eqsynth.ir.types import Shape, TensorType
from eqsynth.lower.attention import attention
from eqsynth.lower.torch_ops import Opaque, function_of, region_function, run_term
from eqsynth.lower.torch_scalars import torch_dtype

VIEW = "torch.view"
"""Kernels of this implementation return a view of their argument; all others a new tensor."""


FUSED_ATTENTION = "torch.attention"
"""Kernels of this implementation are calls of torch's fused attention (``attention.py``)."""


class TorchBackend:
    """Every term through torch. Implements ``Backend`` of ``extract/kernel.py``."""

    name = "torch"

    def __init__(self, opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None) -> None:
        """
        Args:
            opaque: for each ``Opaque`` operator, by its name, the function that runs it.
        """
        self.opaque = dict(opaque or {})

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """One kernel with contiguous arguments and result for every term, and further layouts where
        torch's operator takes or gives them without a copy."""
        args = args_of(term)
        plain = tuple(contiguous(len(arg.shape)) for arg in args)
        if isinstance(term, Op) and term.name == "Opaque":
            if str(term.attrs[0]) in self.opaque:
                yield Kernel(term, constants, self.name, plain, contiguous(len(term.shape)))
        elif isinstance(term, Op) and len(args) == 1 and _may_view(term):
            yield from _views(term, constants)
        elif isinstance(term, Op) and (fused := _attentions(term)):
            for inputs, output in fused:
                yield Kernel(term, constants, FUSED_ATTENTION, inputs, output)
        elif isinstance(term, Op):
            for inputs, output in dict.fromkeys(_layouts(term)):
                yield Kernel(term, constants, self.name, inputs, output)
        else:
            yield Kernel(term, constants, self.name, plain, contiguous(len(term.shape)))

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        return [self._runner(kernel, constants) for kernel, constants in kernels]

    def _runner(self, kernel: Kernel, constants: Mapping[int, torch.Tensor]) -> Runner:
        if isinstance(kernel.term, Region):
            return _region_runner(kernel.term, constants, self.opaque)
        function = function_of(kernel.term, self.opaque)
        runner = route(kernel, function, _laid_out(kernel, constants))
        if kernel.implementation == VIEW or not _may_give_back(kernel.term):
            return runner
        return holding(partial(_never_an_argument, runner, tuple(constants.values())), held(runner))


def _region_runner(region: Region, constants: Mapping[int, torch.Tensor], opaque: Opaque) -> Runner:
    """A runner that gives a region's result, or a list of its results: contiguous, each with memory
    of its own."""
    function = region_function(region, opaque)
    varying = [n for n in range(len(region.args)) if n not in constants]

    def run(*given: torch.Tensor) -> Any:
        values = {**constants, **dict(zip(varying, given, strict=True))}
        results = function(*(values[n] for n in range(len(region.args))))
        own = separate(results, values.values())
        return own if len(own) > 1 else own[0]

    return holding(run, constants.values())


def separate(results: Sequence[torch.Tensor], others: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The results made contiguous, and copied where one shares memory with an earlier result or
    with one of ``others``."""
    taken = {value.untyped_storage()._cdata for value in others}
    own = []
    for result in results:
        fresh = result.contiguous()
        if fresh.untyped_storage()._cdata in taken:
            fresh = fresh.clone(memory_format=torch.contiguous_format)
        taken.add(fresh.untyped_storage()._cdata)
        own.append(fresh)
    return own


def _may_give_back(term: Tensor) -> bool:
    """Whether torch's function for the term may return one of its arguments, or a view of one."""
    if not isinstance(term, Op):
        return True
    if term.name == "Cast" or (term.row.reducer and not term.attrs[0]):
        return True
    return term.row.kind in ("view", "opaque")


def _never_an_argument(
    runner: Runner, constants: tuple[torch.Tensor, ...], *args: torch.Tensor
) -> torch.Tensor:
    """Run, and copy the result if it shares memory with an argument or a constant."""
    result = runner(*args)
    storage = result.untyped_storage().data_ptr()
    for arg in (*args, *constants):
        if arg.untyped_storage().data_ptr() == storage:
            return result.clone(memory_format=torch.preserve_format)
    return result


# ---- layouts --------------------------------------------------------------------------------


def _layouts(term: Op) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
    """The layouts of arguments and result with which torch's operator runs without a copy."""
    args, rank = args_of(term), len(term.shape)
    plain = tuple(contiguous(len(arg.shape)) for arg in args)
    yield plain, contiguous(rank)
    if term.name in ("Matmul", "FusedMatmul", "FusedMatmulAdd") and args == term.args:
        # Only the two matrices have other layouts: bias and residual are added to a contiguous
        # product.
        for matrices in matmul_layouts(term):
            yield (*matrices, *plain[2:]), contiguous(rank)
    elif term.row.reducer and len(args[0].shape) == 4:
        yield (channels_last(4),), contiguous(rank)
    elif term.name == "CumSum":
        along = tuple(sorted(range(rank), key=lambda axis: (axis == term.attrs[0], axis)))
        yield (along,), along
    elif term.row.images:
        last = tuple(channels_last(4) if len(a.shape) == 4 else contiguous(1) for a in args)
        yield last, channels_last(4)
    elif term.row.kind == "elementwise" or term.name == "Concat":
        for layout in (*matrix_layouts(rank), channels_last(rank)) if rank > 1 else ():
            same = (layout if len(a.shape) == rank else contiguous(len(a.shape)) for a in args)
            yield tuple(same), layout


def _attentions(term: Op) -> list[tuple[tuple[Layout, ...], Layout]]:
    """The layouts with which torch's fused attention runs. There are none if the term is no
    attention, or if one argument is two operands that it reads in different layouts.

    The queries of ``softmax(x xᵀ) x`` are its values, too, so the kernel has two arguments.
    """
    found, offered = attention(term), []
    for layouts, output in found.layouts(len(term.args[-1].shape)) if found else ():
        of = dict(zip(term.args, layouts, strict=True))
        if tuple(of[arg] for arg in term.args) == layouts:
            offered.append((tuple(of.values()), output))
    return offered


def matmul_layouts(term: Op) -> Iterator[tuple[Layout, Layout]]:
    """The layouts of the two operands that torch multiplies without copying them.

    Matrices may be stored by rows or by columns. For operands (b, h, m, k), as attention has them,
    the heads may also lie inside the rows: x in memory order b, m, h, k and w in b, n, h, k.
    """
    left, right = (matrix_layouts(len(arg.shape)) for arg in term.args[:2])
    if len(left[0]) == len(right[0]) == 4:
        left, right = (*left, (0, 2, 1, 3)), (*right, (0, 2, 1, 3), (0, 3, 1, 2))
    return itertools.product(left, right)


def layout_of(shape: Shape, steps: Sequence[int]) -> Layout | None:
    """The layout of a tensor with these strides; None if it isn't dense.

    The stride of an axis of extent 1 means nothing, so several layouts may fit: contiguous comes
    first, then channels last.

    >>> layout_of((2, 3), (1, 2)), layout_of((2, 3), (4, 1))
    ((1, 0), None)
    """
    rank = len(shape)
    by_stride = tuple(sorted(range(rank), key=lambda axis: (-steps[axis], axis)))
    for layout in (contiguous(rank), channels_last(rank) if rank > 2 else by_stride, by_stride):
        if lies_in(shape, steps, layout):
            return layout
    # Axes of extent 1 may have any stride: leave them out, and put them outermost.
    long = [axis for axis in by_stride if shape[axis] != 1]
    layout = (*(axis for axis in range(rank) if shape[axis] == 1), *long)
    return layout if lies_in(shape, steps, layout) else None


def lies_in(shape: Shape, steps: Sequence[int], layout: Layout) -> bool:
    """Whether strides are those of a layout; axes of extent 1 may have any stride."""
    if 0 in shape:
        return True
    wanted = strides(shape, layout)
    return all(e == 1 or s == w for e, s, w in zip(shape, steps, wanted, strict=True))


def lay_out(value: torch.Tensor, shape: Shape, layout: Layout) -> torch.Tensor:
    """The tensor dense in ``layout``: itself if it lies so, else a copy.

    An axis of extent 1 may have any stride; here it gets the layout's: shape (4, 1) with strides
    (1, 4) -> strides (1, 1). torch's products choose their algorithm by strides, so otherwise a
    program would round differently after it was saved and loaded.
    """
    wanted = strides(shape, layout)
    if lies_in(shape, value.stride(), layout):
        return value if value.stride() == wanted else value.as_strided(shape, wanted)
    dense = torch.empty_strided(shape, wanted, dtype=value.dtype, device=value.device)
    return dense.copy_(value)


# ---- views ----------------------------------------------------------------------------------


def _may_view(term: Op) -> bool:
    """Whether torch may compute the operator as a view."""
    return term.row.kind == "view" and term.name not in ("Reverse", "Shift")


def _views(term: Op, constants: tuple[bool, ...]) -> Iterator[Kernel]:
    """Kernels for an operator that rearranges its one argument: a view from each layout for which
    torch makes a dense view; from contiguous a copy, if that isn't one of these layouts."""
    (arg,) = args_of(term)
    rank = len(arg.shape)
    found: set[Layout] = set()
    for layout in dict.fromkeys((*_useful(arg.shape), *_images(term, rank))):
        output = _view_layout(term, arg.type, layout)
        if output is not None:
            found.add(layout)
            yield Kernel(term, constants, VIEW, (layout,), output)
    if contiguous(rank) not in found:
        yield Kernel(term, constants, "torch", (contiguous(rank),), contiguous(len(term.shape)))


def _useful(shape: Shape) -> Iterator[Layout]:
    """The layouts in which tensors of this shape are commonly kept: matrices by rows or by columns,
    and channels last."""
    yield from matrix_layouts(len(shape))
    if len(shape) > 2:
        yield channels_last(len(shape))


def _images(term: Op, rank: int) -> Iterator[Layout]:
    """For a permutation: the argument's layouts that give the result one of the useful layouts."""
    if term.name == "Permute":
        order: Any = term.attrs[0]
        for layout in _useful(term.shape):
            yield tuple(order[axis] for axis in layout)


@lru_cache(maxsize=4096)
def _view_layout(term: Op, kind: TensorType, layout: Layout) -> Layout | None:
    """The layout of the view that torch makes of a tensor in ``layout``; None if torch copies."""
    meta = torch.empty_strided(
        kind.shape, strides(kind.shape, layout), dtype=torch_dtype(kind.dtype), device="meta"
    )
    result = run_term(term, [meta] * len(term.args))
    if result is not meta and result._base is not meta:
        return None
    return layout_of(term.shape, result.stride())


def conversion(kind: TensorType, source: Layout, target: Layout) -> Kernel:
    """The kernel that copies a tensor from one layout to another; a view if both are the same in
    memory."""
    identity = Op("Reshape", (Input("0", kind),), (kind.shape,))
    same = lies_in(kind.shape, strides(kind.shape, source), target)
    return Kernel(identity, (False,), VIEW if same else "torch", (source,), target)


# ---- runners --------------------------------------------------------------------------------


def _laid_out(kernel: Kernel, constants: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The constants in the layouts that the kernel reads."""
    args = args_of(kernel.term)
    return {
        position: lay_out(value.detach(), args[position].shape, kernel.inputs[position])
        for position, value in constants.items()
    }


def route(
    kernel: Kernel, function: Callable[..., torch.Tensor], constants: Mapping[int, Any]
) -> Runner:
    """Make a runner from a function of the operator's arguments.

    Args:
        function: takes the arguments of an operator in their order (an argument that is used twice
            is passed twice), or those of a scope in the order of ``args_of``. If its result doesn't
            lie in the kernel's output layout, it is copied.
        constants: the values of constant arguments, by their positions in ``args_of``; the runner
            takes only the others.
    """
    term = kernel.term
    distinct = args_of(term)
    order = [distinct.index(arg) for arg in (term.args if isinstance(term, Op) else distinct)]
    names = [f"a{k}" for k in range(len(distinct))]
    free = ", ".join(name for k, name in enumerate(names) if k not in constants)
    steps = strides(term.shape, kernel.output)
    scope: dict[str, Any] = {f"a{k}": value for k, value in constants.items()}
    scope |= {
        "function": function,
        "steps": steps,
        "repair": lambda value: lay_out(value, term.shape, kernel.output),
    }
    # The call is written out as code, which costs half of a call that unpacks a list.
    call = f"function({', '.join(names[k] for k in order)})"
    source = (
        f"def runner({free}):\n"
        f"    result = {call}\n"
        f"    return result if result.stride() == steps else repair(result)\n"
    )
    exec(compile(source, "<eqsynth runner>", "exec"), scope)
    parts = (part for value in constants.values() for part in _parts(value))
    return holding(scope["runner"], parts)


def _parts(value: Any) -> Sequence[torch.Tensor]:
    """The tensors of a constant; a constant that is packed as several matrices is a list."""
    return value if isinstance(value, list) else [value]
