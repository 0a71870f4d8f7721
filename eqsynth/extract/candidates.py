"""Candidates: every kernel of every member of an e-graph's classes, and copies between layouts.

Not here: which of them a plan takes (``select.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.kernel import Backend, Fusing, Kernel, Layout
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
from eqsynth.ir.work import by_matrices

VIEW_S = 4e-7
"""What a view costs to make at run time: a call of torch, no data. About half of such a call, 0.9
us, since a chain of views is made by one (``lower/steps.py``)."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute a member, or a region of members: a kernel over argument classes."""

    member: Tensor
    kernel: Kernel
    args: tuple[ClassRef, ...]


def placeholder(
    member: Tensor, literals: Mapping[ClassRef, Tensor]
) -> tuple[Tensor, tuple[ClassRef, ...]]:
    """The member over ``Input("0")…``, so that equal computations are equal, and its arguments.

    Literals stay what they are: their numbers are part of the code.
    """
    args = args_of(member)
    images: dict[Tensor, Tensor] = {
        a: literals.get(a) or Input(str(n), a.type)  # type: ignore[call-overload]
        for n, a in enumerate(args)
    }
    return over(member, images), tuple(a for a in args if isinstance(a, ClassRef))


def literals_of(graph: EGraph) -> dict[ClassRef, Tensor]:
    """The classes of literals, and these."""
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
    """Every kernel of every member that isn't constant; those of the original's operators first.

    Args:
        until: when the monotonic clock says so, kernels of other members are left out.
        limit_bytes: of a larger value there are no kernels. What a kernel gives is dense:
            ``x.expand(1 << 30, 3)`` takes 12 GiB then, of which torch makes a view.
    """
    found: dict[ClassRef, list[Candidate]] = {ref: [] for ref in graph.classes}
    literals = literals_of(graph)
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
                if not original and time.monotonic() >= until:
                    return found
                term, args = placeholder(member, literals)
                constants = tuple(arg.constant for arg in args)
                key = (term, constants)
                if key not in cache:
                    cache[key] = [k for b in backends for k in b.kernels(term, constants)]
                found[ref] += [Candidate(member, kernel, args) for kernel in cache[key]]
    for ref, own_members in graph.classes.items():
        if ref.constant or ref.type.nbytes > limit_bytes:
            continue
        if time.monotonic() >= until:
            break
        for member in own_members:
            for region in fused(graph, ref, member, literals):
                found[ref] += _of_region(region, backends)
    return found


def _of_region(region: Region, backends: Sequence[Backend]) -> Iterator[Candidate]:
    args = tuple(arg for arg in region.args if isinstance(arg, ClassRef))
    for backend in backends:
        if isinstance(backend, Fusing):
            for kernel in backend.fused(unplaced(region), tuple(a.constant for a in args)):
                yield Candidate(region, kernel, args)


def unplaced(region: Region) -> Region:
    """The region over ``Input("0")``…, so that equal computations are equal."""
    inputs = tuple(Input(str(n), arg.type) for n, arg in enumerate(region.args))
    return Region(region.outputs, inputs)


def fused(
    graph: EGraph, ref: ClassRef, member: Tensor, literals: Mapping[ClassRef, Tensor]
) -> Iterator[Region]:
    """A map with a reduction through literals in the place of the class that it reads: what comes
    out of the matrices is in registers, and needn't be written to be read again.

        m = L_x sum_p A[x % 2, p] * v[x // 2, p],  relu(m[x] + b)   ->   one region over v and b
    """
    if not isinstance(member, Scope) or member.reduction:
        return
    reads = [leaf for leaf in leaves(member.body) if isinstance(leaf, Read)]
    for arg in args_of(member):
        if not isinstance(arg, ClassRef) or arg.constant:
            continue
        if not all(is_whole(read, member) for read in reads if read.tensor == arg):
            continue
        for reduced in graph.classes[arg]:
            if not isinstance(reduced, Scope) or {ref, arg} & {*args_of(reduced)}:
                continue
            images = {a: literals.get(a, a) for a in args_of(reduced)}  # type: ignore[call-overload]
            through = over(reduced, images)
            if isinstance(through, Scope) and by_matrices(through) is not None:
                yield _region(member, arg, through)


def _region(member: Scope, arg: ClassRef, reduced: Scope) -> Region:
    """The member, with a scope in the place of an argument."""
    both = dict.fromkeys((*args_of(reduced), *args_of(member)))
    given = [a for a in both if isinstance(a, ClassRef) and a != arg]
    images: dict[Tensor, Tensor] = {a: a for a in args_of(reduced)}
    images |= {a: Input(str(n), a.type) for n, a in enumerate(given)}
    placed = {a: images.get(a, a) for a in args_of(member)} | {arg: over(reduced, images)}
    return Region((over(member, placed),), tuple(given))


@lru_cache(maxsize=1 << 14)
def copy_kernel(type_: TensorType, source: Layout, target: Layout) -> Kernel:
    """The same value in another layout."""
    identity = Op("Reshape", (Input("0", type_),), (type_.shape,))
    return Kernel(identity, (False,), "torch", (source,), target)
