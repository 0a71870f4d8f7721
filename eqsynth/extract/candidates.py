"""Candidates: every kernel for every member of an e-graph's classes, and copies between layouts.

    Matmul(a, b)    ->    onednn.linear, tvm block8x32, torch.mm, …

Not here: which candidates a plan takes (``select.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.kernel import Backend, Copying, Fusing, Kernel, Layout, copied
from eqsynth.extract.laws_only import LawsOnly
from eqsynth.extract.row_chains import RowChains
from eqsynth.ir.indices import is_whole
from eqsynth.ir.scalar import Read, leaves
from eqsynth.ir.tensor import (
    ClassRef,
    Input,
    Op,
    Region,
    Scope,
    Tensor,
    args_of,
    is_literal,
    over,
)
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import operations

VIEW_S = 1e-7
"""Seconds that a view costs at run time. No data is moved, and most views are of values in the
program's workspace, where they are made once. A view of an input or of what a library has allocated
is a call of torch (1.2 us), and a chain of such views is one call (``lower/steps.py``)."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute a member, or a region of members: a kernel whose arguments are classes."""

    member: Tensor
    kernel: Kernel
    args: tuple[ClassRef, ...]


def placeholder(
    member: Tensor, literals: Mapping[ClassRef, Tensor]
) -> tuple[Tensor, tuple[ClassRef, ...]]:
    """Return the member over ``Input("0")``, ``Input("1")``, …, so that equal computations have
    equal terms, and the classes of its arguments.

    Literals aren't replaced by inputs, since their numbers become part of the code.
    """
    args = args_of(member)
    images: dict[Tensor, Tensor] = {
        a: literals.get(a) or Input(str(n), a.type)  # type: ignore[call-overload]
        for n, a in enumerate(args)
    }
    return over(member, images), tuple(a for a in args if isinstance(a, ClassRef))


def literals_of(graph: EGraph) -> dict[ClassRef, Tensor]:
    """The literals of an e-graph, by their classes."""
    return {
        ref: member
        for ref, members in graph.classes.items()
        for member in members
        if is_literal(member)
    }


def candidates(
    graph: EGraph,
    backends: Sequence[Backend],
    until: float = math.inf,
    limit_bytes: float = math.inf,
) -> dict[ClassRef, list[Candidate]]:
    """Return the kernels of every member that isn't constant, by class; kernels of the original's
    operators come first.

    Args:
        until: the monotonic clock from which on only kernels of the original's operators are
            listed.
        limit_bytes: the most bytes of a value; a class with a larger value has no kernels. The
            result of a kernel is dense, so ``x.expand(1 << 30, 3)`` would take 12 GiB, though torch
            makes a view of it.
    """
    found: dict[ClassRef, list[Candidate]] = {ref: [] for ref in graph.classes}
    literals = literals_of(graph)
    laws_only = LawsOnly(graph)
    cache: dict[tuple[Tensor, tuple[bool, ...]], list[Kernel]] = {}
    for original in (True, False):
        for ref, members in graph.classes.items():
            if ref.constant or ref.type.nbytes > limit_bytes:
                continue
            own = graph.original.get(ref, ())
            for member in members:
                if not isinstance(member, Op | Scope) or ref in args_of(member):
                    continue
                if (member in own) is not original:
                    continue
                if laws_only.serves(ref, member):
                    continue
                if not original and time.monotonic() >= until:
                    return found
                term, args = placeholder(member, literals)
                constants = tuple(arg.constant for arg in args)
                key = (term, constants)
                if key not in cache:
                    cache[key] = [k for b in backends for k in b.kernels(term, constants)]
                found[ref] += [Candidate(member, kernel, args) for kernel in cache[key]]
    chains = RowChains(graph)
    fusing = [backend for backend in backends if isinstance(backend, Fusing)]
    known: dict[tuple[Region, tuple[bool, ...]], list[Kernel]] = {}
    for ref in graph.classes:
        if ref.constant or ref.type.nbytes > limit_bytes:
            continue
        if time.monotonic() >= until:
            break
        for region in fused(graph, ref, literals, chains):
            args = tuple(arg for arg in region.args if isinstance(arg, ClassRef))
            asked = unplaced(region), tuple(arg.constant for arg in args)
            if asked not in known:
                known[asked] = [kernel for b in fusing for kernel in b.fused(*asked)]
            found[ref] += [Candidate(region, kernel, args) for kernel in known[asked]]
    return found


def unplaced(region: Region) -> Region:
    """Return the region over ``Input("0")``, ``Input("1")``, …, so that equal computations have
    equal terms."""
    inputs = tuple(Input(str(n), arg.type) for n, arg in enumerate(region.args))
    return Region(region.outputs, inputs)


def fused(
    graph: EGraph, ref: ClassRef, literals: Mapping[ClassRef, Tensor], chains: RowChains
) -> Iterator[Region]:
    """The regions that compute a class and that one kernel may compute: maps that read a reduction,
    and row chains."""
    yield from _mapped(graph, ref, literals)
    yield from chains.regions(ref)


def _mapped(
    graph: EGraph, ref: ClassRef, literals: Mapping[ClassRef, Tensor]
) -> Iterable[Region]:
    """Regions of a map that reads a reduction, with the reduction in place of the class that the
    map reads. One kernel computes both, so the result of the reduction stays in registers and isn't
    written to memory.

        m = L_x sum_p A[x % 2, p] * v[x // 2, p],  relu(m[x] + b)   ->   one region over v and b

    Of regions that read the same data, and differ in how constants are written, the one of least
    work is taken. (ResNet-50: 2,805 kernels in blocks before, 1,213 with this.)
    """
    found: dict[Hashable, tuple[int, Region]] = {}
    known: dict[ClassRef, list[Scope]] = {}
    for member in graph.classes[ref]:
        if not isinstance(member, Scope) or member.reduction:
            continue
        taken = [leaf for leaf in leaves(member.body) if isinstance(leaf, Read)]
        work = operations(member.body)
        for arg in args_of(member):
            if not isinstance(arg, ClassRef) or arg.constant:
                continue
            if not all(is_whole(read, member) for read in taken if read.tensor == arg):
                continue
            if arg not in known:
                known[arg] = [*_reductions(graph.classes[arg], {ref, arg}, literals)]
            for reduced in known[arg]:
                alike = arg, reduced.reduction, _varying(member), _varying(reduced)
                if alike not in found or work < found[alike][0]:
                    found[alike] = work, _region(member, arg, reduced)
    return [region for _, region in found.values()]


def _reductions(
    members: Iterable[Tensor], without: set[ClassRef], literals: Mapping[ClassRef, Tensor]
) -> Iterator[Scope]:
    """The reductions among the members of a class, with literals in place of their classes.

    Args:
        without: classes that they mustn't read.
    """
    for member in members:
        if not isinstance(member, Scope) or not member.reduction or without & {*args_of(member)}:
            continue
        images = {a: literals.get(a, a) for a in args_of(member)}  # type: ignore[call-overload]
        through = over(member, images)
        if isinstance(through, Scope):
            yield through


def _varying(scope: Scope) -> frozenset[Tensor]:
    """The arguments that aren't constant."""
    return frozenset(arg for arg in args_of(scope) if not arg.constant)


def _region(member: Scope, arg: ClassRef, reduced: Scope) -> Region:
    """Return the member as a region, with a scope in place of one of its arguments."""
    both = dict.fromkeys((*args_of(reduced), *args_of(member)))
    given = [a for a in both if isinstance(a, ClassRef) and a != arg]
    images: dict[Tensor, Tensor] = {a: a for a in args_of(reduced)}
    images |= {a: Input(str(n), a.type) for n, a in enumerate(given)}
    placed = {a: images.get(a, a) for a in args_of(member)} | {arg: over(reduced, images)}
    return Region((over(member, placed),), tuple(given))


Copies = Callable[[TensorType, Layout, Layout], Sequence[Kernel]]
"""A function that lists the kernels which copy a value from one layout into another."""


def copies_by(backends: Sequence[Backend] = ()) -> Copies:
    """Return a function that lists torch's kernel for a copy, and those of backends that have some.
    (128 channels at 56x56, channels last -> row-major: torch 449 us, tiles 139; 64 at 112x112 1,798
    and 274.)"""
    copying = [backend for backend in backends if isinstance(backend, Copying)]

    @cache
    def listed(type_: TensorType, source: Layout, target: Layout) -> tuple[Kernel, ...]:
        own = (kernel for b in copying for kernel in b.copies(type_, source, target))
        return (copy_kernel(type_, source, target), *own)

    return listed


def is_copy(kernel: Kernel, type_: TensorType, source: Layout, target: Layout) -> bool:
    """Whether a kernel copies a value of this type from one layout into another."""
    plain = copy_kernel(type_, source, target)
    layouts = kernel.inputs == plain.inputs and kernel.output == plain.output
    return layouts and kernel.term in (plain.term, copied(type_))


@lru_cache(maxsize=1 << 14)
def copy_kernel(type_: TensorType, source: Layout, target: Layout) -> Kernel:
    """Return torch's kernel that copies a value into another layout."""
    identity = Op("Reshape", (Input("0", type_),), (type_.shape,))
    return Kernel(identity, (False,), "torch", (source,), target)
