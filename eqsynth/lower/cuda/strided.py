"""Products of parts of tensors, which cuBLAS can read in place: leading dimensions and offsets are
computed from the index functions of a scope.

    (5, 6) [i, j] = sum(k) x[i + 3, k + 1] w[k, j]   ->   a matrix from x[3, 1] on, with x's rows
    (5, 6) [i, j] = sum(k) x[i, 2 * k] w[k, j]       ->   none: no elements are neighbours

Not here: products of whole tensors, which are operators (``libraries.py``).

Source: EinNet (OSDI 2023), Fig. 8.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from eqsynth.extract.kernel import Layout, contiguous, matrix_layouts
from eqsynth.ir.scalar import Read, factors_of
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.loop_nest import Access, Loop, loop_nest


@dataclass(frozen=True)
class Part:
    """A stack of matrices in the memory of an argument: its offset, and the strides of the batch,
    of rows and of columns, in elements."""

    argument: int
    offset: int
    strides: tuple[int, int, int]

    def of(self, value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return value.as_strided(shape, self.strides, value.storage_offset() + self.offset)


@dataclass(frozen=True)
class Product:
    """``(batch, rows, depth) @ (batch, depth, columns)``. The result is dense in this order of
    axes."""

    batch: int
    rows: int
    depth: int
    columns: int
    left: Part
    right: Part

    def __call__(self, *values: torch.Tensor) -> torch.Tensor:
        left, right = self.left, self.right
        return torch.bmm(
            left.of(values[left.argument], (self.batch, self.rows, self.depth)),
            right.of(values[right.argument], (self.batch, self.depth, self.columns)),
        )


def layouts(scope: Scope) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
    """The layouts of arguments with which a scope is a product of which at least one operand is
    only a part of its argument."""
    output = contiguous(len(scope.traversal))
    for inputs in itertools.product(*(matrix_layouts(len(a.shape)) for a in args_of(scope))):
        found = product_of(scope, inputs)
        if found is not None and _is_part(scope, found):
            yield inputs, output


def _is_part(scope: Scope, found: Product) -> bool:
    """Whether at least one operand is only a part of its argument."""
    args = args_of(scope)
    sizes = (
        (found.left, found.batch * found.rows * found.depth),
        (found.right, found.batch * found.depth * found.columns),
    )
    return any(size < args[part.argument].type.size for part, size in sizes)


def product_of(scope: Scope, inputs: Sequence[Layout]) -> Product | None:
    """Return a scope as a product, with its arguments in these layouts; None if it isn't one."""
    reads = factors_of(scope.body)
    kinds = {scope.dtype, *(arg.dtype for arg in args_of(scope))}
    if scope.reducer != "sum" or len(reads) != 2 or len(kinds) != 1 or 0 in scope.extents:
        return None
    nest = loop_nest(scope, inputs, contiguous(len(scope.traversal)))
    if not all(isinstance(read, Read) and read in nest.accesses for read in reads):
        return None
    left, right = (nest.accesses[read] for read in reads if isinstance(read, Read))
    if left.guards or right.guards or len(nest.reduction) != 1:
        return None
    kinds_of = [_kind(loop, left, right) for loop in nest.traversal]
    if "row" in kinds_of and kinds_of[-1] == "row" and "column" in kinds_of:
        # The result is stored by columns: it is the product of the transposed operands.
        left, right = right, left
        kinds_of = [_kind(loop, left, right) for loop in nest.traversal]
    order = [kind for kind in ("batch", "row", "column") if kind in kinds_of]
    if kinds_of != order:
        return None
    loops = dict(zip(kinds_of, nest.traversal, strict=True)) | {"depth": nest.reduction[0]}
    one, other = _part(left, loops, "row", "depth"), _part(right, loops, "depth", "column")
    if one is None or other is None:
        return None
    batch, rows, depth, columns = (_extent(loops, n) for n in ("batch", "row", "depth", "column"))
    return Product(batch, rows, depth, columns, one, other)


def _kind(loop: Loop, left: Access, right: Access) -> str:
    """The axis of a batched product that a loop over the result is: ``batch``, ``row`` or
    ``column``; empty if it is none of them."""
    moves = bool(left.stride(loop.slot)), bool(right.stride(loop.slot))
    return {(True, True): "batch", (True, False): "row", (False, True): "column"}.get(moves, "")


def _extent(loops: dict[str, Loop], kind: str) -> int:
    return loops[kind].extent if kind in loops else 1


def _part(access: Access, loops: dict[str, Loop], down: str, along: str) -> Part | None:
    """Return an operand as a stack of matrices, if cuBLAS can step through it: elements of a row
    (or of a column) are neighbours, and rows (or columns) don't overlap. None otherwise."""
    steps = {kind: access.stride(loop.slot) for kind, loop in loops.items()}
    if any(step is None or step < 0 for step in steps.values()) or access.address.const < 0:
        return None
    if loops["depth"].slot not in {it.slot for it in access.address.iterators()}:
        return None
    rows, columns = _extent(loops, down), _extent(loops, along)
    high, wide = steps.get(down), steps.get(along)
    if high is None:  # a single row, which may also be seen as columns of one element
        high = columns if wide == 1 else 1
    if wide is None:
        wide = rows if high == 1 else 1
    if not (wide == 1 and high >= columns) and not (high == 1 and wide >= rows):
        return None
    return Part(access.argument, access.address.const, (steps.get("batch") or 0, high, wide))


def function_of(scope: Scope, inputs: Sequence[Layout]) -> Callable[..., torch.Tensor]:
    """Return a function that computes the scope from its arguments, in the order of ``args_of``."""
    found = product_of(scope, inputs)
    assert found is not None, "what is no product isn't offered"
    assert found.batch * found.rows * found.columns == math.prod(scope.traversal)

    def product(*values: torch.Tensor) -> torch.Tensor:
        return found(*values).view(scope.traversal)

    return product
