"""A scope as a loop nest: loops, and a linear address in memory for each read.

Each read becomes one linear address into dense memory. Neighbouring loops that every read and the
result step through alike become one loop: the bias over NHWC, ``L_nhwc x[n,h,w,c] + b[c]``, becomes
two loops, ``x[4*i + c] + b[c]`` for 4 channels, whatever the rank was. The strides that are left
tell the kind of the scope (a map, a reduction, a contraction). Not here: schedules
(``schedules.py``), TIR (``eoperators.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from eqsynth.extract.kernel import Kernel, Layout, contiguous, strides
from eqsynth.extract.schedule import Block
from eqsynth.ir.index import Atom, FloorDiv, Index, It, Mod
from eqsynth.ir.indices import axes_at, is_whole
from eqsynth.ir.scalar import Read, Value, factors_of, iterators, leaves
from eqsynth.ir.tensor import Input, Region, Scope, Tensor, args_of, is_literal, topological
from eqsynth.ir.types import ITEMSIZE
from eqsynth.ir.work import by_matrices, operations
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.padding import Pad, pad_of
from eqsynth.lower.splitting import split, split_in, split_layout

# A scope with fewer operations than this for each element that it moves is memory-bound (EinNet
# §5).
MEMORY_BOUND: Final = 4.0
# A reduction with fewer operations than this takes microseconds however it is computed.
SMALL: Final = 1 << 16


@dataclass(frozen=True)
class Loop:
    """A loop over an iterator of the scope, which is known by its slot."""

    slot: int
    extent: int


@dataclass(frozen=True)
class Access:
    """A read in memory.

    Attributes:
        argument: the position of the tensor that is read.
        address: the address in elements.
        guards: for each axis that the read may leave, its index and the axis's extent.
        steps: for each of these axes, by how many elements a step of the index moves the address.
    """

    argument: int
    address: Index
    guards: tuple[tuple[Index, int], ...]
    steps: tuple[int, ...]

    def stride(self, slot: int) -> int | None:
        """By how many elements a step of the loop moves the address; None if steps differ."""
        for atom, _ in self.address.terms:
            if not isinstance(atom, It) and slot in {it.slot for it in atom.value.iterators()}:
                return None
        return self.address.coefficient(slot)

    def guarded_by(self, slot: int) -> bool:
        """Whether it depends on this loop that the read stays in its tensor."""
        return any(slot in {it.slot for it in index.iterators()} for index, _ in self.guards)


@dataclass(frozen=True, eq=False)
class LoopNest:
    """A scope at given layouts, ready for a schedule.

    Attributes:
        layouts: the layouts of ``args``.
        result: the layout of the result.
        traversal: the loops over results, from the outermost to the innermost in the result's
            memory.
        reduction: the loops of the reduction, from the largest step in memory to the smallest.
        accesses: by read; a read of a tensor without elements has none.
        output: the address of the result's element.
        fixed: slots that are used in values or guards; their loops aren't merged.
        args: the kernel's arguments, in order.
        after: a map over the scope's result that is applied to each element before it is stored.
        before: the nests that are computed before this one in each row, in order, if this is the
            last nest of a row chain. The result of the k-th of them is the argument
            ``len(args) + k`` of those that follow.
        rows: the slots of the loops over the rows of a chain, in the same order in each of its
            nests.
        pads: padded copies of arguments. The k-th of them is read as the argument
            ``len(args) + k``.
        stored: the result and its layout as callers see them, if axes of the scope were split.
    """

    scope: Scope
    layouts: tuple[Layout, ...]
    result: Layout
    traversal: tuple[Loop, ...]
    reduction: tuple[Loop, ...]
    accesses: Mapping[Read, Access]
    output: Index
    fixed: frozenset[int]
    args: tuple[Tensor, ...]
    after: Scope | None = None
    before: tuple[LoopNest, ...] = ()
    rows: tuple[int, ...] = ()
    pads: tuple[Pad, ...] = ()
    stored: tuple[Tensor, Layout] | None = None

    @cached_property
    def for_blocks(self) -> LoopNest:
        """The nest that blocks are made of, which computes the same: loops are split where a read
        has a quotient of one (``splitting.py``), and padded copies are read, so that no read leaves
        its tensor (``padding.py``). The nest itself if nothing is to be done or can be."""
        if self.rows or self.before:
            return self
        scope, after, result = self.scope, self.after, self.result
        while found := split_in(scope):
            it, divisor = found
            scope = split(scope, it, divisor)
            if it.slot < len(result):
                after = None if after is None else split(after, it, divisor)
                result = split_layout(result, it.slot)
        nest = self if scope is self.scope else self._of(scope, after, result)
        guarded = {read: access for read, access in nest.accesses.items() if access.guards}
        pads = {r: pad_of(r, a.argument, self.layouts[a.argument]) for r, a in guarded.items()}
        made = {read: pad for read, pad in pads.items() if pad is not None}
        if not made or len(made) < len(pads):
            return nest
        return self._of(scope, after, result, made)

    def _of(
        self,
        scope: Scope,
        after: Scope | None,
        result: Layout,
        pads: Mapping[Read, Pad] = MappingProxyType({}),
    ) -> LoopNest:
        """The nest of a scope that computes the same from the same arguments."""
        steps = strides(scope.traversal, result)
        nest = _nest(scope, self.args, self.layouts, result, steps, after=after, pads=pads)
        return nest if scope is self.scope else replace(nest, stored=(self.scope, self.result))

    def itemsize(self, access: Access) -> int:
        """The bytes of an element that is read; of an argument or of a padded copy."""
        number = access.argument - len(self.args)
        tensor = self.args[access.argument] if number < 0 else self.pads[number].read.tensor
        return ITEMSIZE[tensor.dtype]

    @property
    def points(self) -> int:
        """The number of results."""
        return math.prod(loop.extent for loop in self.traversal)

    @property
    def work(self) -> int:
        """The number of evaluations of the bodies."""
        own = self.points * math.prod(loop.extent for loop in self.reduction)
        return own + sum(nest.work for nest in self.before)

    @property
    def in_a_row(self) -> tuple[Loop, ...]:
        """The loops over the results of one row."""
        return tuple(loop for loop in self.traversal if loop.slot not in self.rows)


def map_after(region: Region) -> tuple[Scope, Scope] | None:
    """The reduction and the map over its result of which a region is made: ``L_x f({L_x sum_s
    g}[x], …)``. None for other regions."""
    after = region.outputs[0]
    if len(region.outputs) != 1 or not isinstance(after, Scope) or after.reduction:
        return None
    read = [arg for arg in args_of(after) if isinstance(arg, Scope)]
    if len(read) != 1 or after.type != read[0].type:
        return None
    (reduced,) = read
    given = {*args_of(reduced), *args_of(after)} - {reduced}
    reads = [leaf for leaf in leaves(after.body) if isinstance(leaf, Read)]
    whole = all(is_whole(leaf, after) for leaf in reads if leaf.tensor == reduced)
    plain = all(isinstance(arg, Input) or is_literal(arg) for arg in given)
    return (reduced, after) if reduced.reduction and whole and plain else None


@lru_cache(maxsize=1 << 13)
def map_kept(region: Region) -> tuple[Scope, Scope] | None:
    """The reduction and the map of a region if the map can be applied to results that are still in
    registers. None for other regions, and for results that are rounded when they are stored
    (float16 is added up in float32)."""
    parts = map_after(region)
    if parts is None:
        return None
    reduced, _ = parts
    kept = reduced.dtype in ("float32", "float64") and accumulation(reduced)[0] == reduced.dtype
    return parts if kept or by_matrices(reduced) is not None else None


def is_memory_bound(term: Scope | Region) -> bool:
    """Whether memory bounds the time of a scope, so that a plain loop is as fast as any: it reuses
    little data, or is small. A region is bound by what its reduction is, if it is one with a map
    that is kept; a row chain is bound by memory."""
    if isinstance(term, Region):
        parts = map_kept(term)
        return parts is None or is_memory_bound(parts[0])
    if not term.reduction or len(factors_of(term.body)) == 1:
        return True
    if by_matrices(term) is not None:
        return True
    work = operations(term.body) * term.type.size
    for extent in term.reduction:
        work *= extent
    return work <= SMALL or flops_per_element(term) < MEMORY_BOUND


def is_reused_by_one(scope: Scope) -> bool:
    """Whether each operand of a contraction moves along all loops over results along which a
    smaller one moves, as in a depthwise convolution, ``L_chw sum_rs w[c, r, s] * x[c, h + r, w +
    s]``. No block has rows for one operand and columns for the other then, and a plain loop is as
    good as any."""
    own = set(range(len(scope.traversal)))
    moving = [{it.slot for it in iterators(f)} & own for f in factors_of(scope.body)]
    moving.sort(key=len)
    return all(small <= large for small, large in pairwise(moving))


def row_chain(region: Region) -> dict[Scope, tuple[int, ...]] | None:
    """The scopes of a row chain, arguments first, and for each of them the axes that are the rows,
    in the same order. None for a region that isn't made of scopes with common rows.

    The leading axes of the result are the rows, as many as there can be; an axis of extent 1 isn't
    among them.
    """
    scopes = [term for term in topological(region.outputs) if args_of(term)]
    if len(region.outputs) != 1 or len(scopes) < 2:
        return None
    found: list[Scope] = []
    for scope in scopes:
        if not isinstance(scope, Scope) or not scope.type.size:
            return None
        if not all(isinstance(arg, Scope | Input) for arg in args_of(scope)):
            return None
        found.append(scope)
    for count in reversed(range(len(region.shape) + 1)):
        rows = _rows_of(found, tuple(a for a in range(count) if region.shape[a] != 1))
        if rows is not None:
            return rows if count or region.shape[-1:] == (region.type.size,) else None
    return None


def _rows_of(scopes: Sequence[Scope], rows: tuple[int, ...]) -> dict[Scope, tuple[int, ...]] | None:
    """The rows of each scope if these axes are the rows of the last one."""
    found = {scopes[-1]: rows}
    for scope in reversed(scopes):
        for arg in args_of(scope):
            if isinstance(arg, Scope):
                axes = axes_at(scope, found[scope], arg)
                if axes is None or found.setdefault(arg, axes) != axes:
                    return None
    return {scope: found[scope] for scope in scopes}


def inputs_of(region: Region) -> tuple[Input, ...]:
    """The inputs that stand for a region's arguments in its outputs."""
    return tuple(Input(str(n), arg.type) for n, arg in enumerate(region.args))


def nest_of(kernel: Kernel) -> LoopNest:
    """The loop nest of a generated kernel."""
    assert isinstance(kernel.term, Scope | Region)
    return loop_nest(kernel.term, kernel.inputs, kernel.output)


def scratch_bytes(kernel: Kernel) -> int:
    """The bytes of the padded copies that a generated kernel makes while it runs."""
    if not isinstance(kernel.schedule, Block):
        return 0
    pads = nest_of(kernel).for_blocks.pads
    return sum(pad.size * ITEMSIZE[pad.read.tensor.dtype] for pad in pads)


def loop_nest(term: Scope | Region, layouts: Sequence[Layout], result: Layout) -> LoopNest:
    """The loops and addresses of a scope, with loops merged where memory allows it. For a region
    that ``map_kept`` takes: those of its reduction, with the map as ``after``. For a row
    chain: those of its last scope, with the others as ``before``.

    A nest is kept, since it is asked for when the kernels of a term are listed, when their code is
    compared, and when they are built."""
    return _loop_nest(term, tuple(layouts), result)


@lru_cache(maxsize=1 << 13)
def _loop_nest(term: Scope | Region, layouts: tuple[Layout, ...], result: Layout) -> LoopNest:
    steps = strides(term.shape, result)
    if isinstance(term, Scope):
        return _nest(term, args_of(term), layouts, result, steps)
    parts = map_kept(term)
    if parts is not None:
        return _nest(parts[0], inputs_of(term), layouts, result, steps, after=parts[1])
    chain = row_chain(term)
    assert chain is not None, "no kernel is made of other regions"
    *scopes, last = chain
    held: dict[Tensor, tuple[int, ...]] = {}
    nests: list[LoopNest] = []
    for scope in scopes:
        order, own = contiguous(len(scope.traversal)), _in_a_row(scope, chain[scope])
        nests.append(_nest(scope, inputs_of(term), layouts, order, own, held, chain[scope]))
        held = {**held, scope: own}
    nest = _nest(last, inputs_of(term), layouts, result, steps, held, chain[last])
    return replace(nest, before=tuple(nests))


def _in_a_row(scope: Scope, rows: Sequence[int]) -> tuple[int, ...]:
    """The steps of a result of which one row at a time is in memory: a row begins where the row
    before began."""
    shape = tuple(1 if axis in rows else n for axis, n in enumerate(scope.traversal))
    steps = strides(shape, contiguous(len(shape)))
    return tuple(0 if axis in rows else step for axis, step in enumerate(steps))


def _nest(
    scope: Scope,
    args: Sequence[Tensor],
    layouts: Sequence[Layout],
    result: Layout,
    output_steps: Sequence[int],
    held: Mapping[Tensor, tuple[int, ...]] = MappingProxyType({}),
    rows: tuple[int, ...] = (),
    after: Scope | None = None,
    pads: Mapping[Read, Pad] = MappingProxyType({}),
) -> LoopNest:
    """The nest of one scope.

    Args:
        output_steps: the steps of the result's axes in memory.
        held: the scopes of a row chain that are computed before, with their steps in memory.
        rows: the axes that are the rows of a chain. Their loops aren't merged.
        pads: the padded copy for each read that has one.
    """
    copies = {read: len(args) + k for k, read in enumerate(pads)}
    steps = {tensor: strides(tensor.shape, layouts[k]) for k, tensor in enumerate(args)}
    places = {tensor: k for k, tensor in enumerate((*args, *held))}
    steps |= held
    accesses: dict[Read, Access] = {}
    fixed = set(rows)
    if after is not None and by_matrices(scope) is not None:
        fixed |= set(range(len(scope.extents)))  # tiles are loops of their own
    bodies = [scope.body] if after is None else [scope.body, after.body]
    for leaf in (leaf for body in bodies for leaf in leaves(body)):
        if isinstance(leaf, Value):
            fixed.update(it.slot for it in leaf.index.iterators())
        elif isinstance(leaf, Read) and 0 not in leaf.tensor.shape and leaf.tensor in steps:
            access = (
                Access(copies[leaf], pads[leaf].address, (), ())
                if leaf in pads
                else access_of(leaf, places[leaf.tensor], steps[leaf.tensor])
            )
            accesses[leaf] = access
            fixed.update(it.slot for index, _ in access.guards for it in index.iterators())
            for atom, _ in access.address.terms:
                if not isinstance(atom, It):
                    fixed.update(it.slot for it in atom.value.iterators())
    output = Index(0)
    for slot, step in enumerate(output_steps):
        output = output + Index.iterator(slot, scope.traversal[slot]) * step
    rank = len(scope.traversal)
    nest = LoopNest(
        scope,
        tuple(layouts),
        result,
        tuple(Loop(s, scope.traversal[s]) for s in result if scope.traversal[s] != 1),
        tuple(Loop(rank + j, e) for j, e in enumerate(scope.reduction) if e != 1),
        accesses,
        output,
        frozenset(fixed),
        tuple(args),
        after,
        rows=rows,
        pads=tuple(pads.values()),
    )
    largest = {
        loop.slot: max((abs(a.stride(loop.slot) or 0) for a in accesses.values()), default=0)
        for loop in nest.reduction
    }
    by_step = tuple(sorted(nest.reduction, key=lambda loop: -largest[loop.slot]))
    return _merged(replace(nest, reduction=by_step))


def access_of(read: Read, argument: int, steps: tuple[int, ...]) -> Access:
    """The read of an argument whose axes have these steps in memory."""
    address = Index(0)
    guards, guarded = [], []
    for index, step, extent in zip(read.index, steps, read.tensor.shape, strict=True):
        address = address + index * step
        low, high = index.range()
        if low < 0 or high >= extent:
            guards.append((index, extent))
            guarded.append(step)
    return Access(argument, _recombined(address), tuple(guards), tuple(guarded))


def _recombined(address: Index) -> Index:
    """The address with ``d*(e // d) + e % d`` replaced by ``e``, as a reshape leaves it."""
    terms: dict[Atom, int] = dict(address.terms)
    for atom, coefficient in address.terms:
        if isinstance(atom, Mod):
            quotient = FloorDiv(atom.value, atom.divisor)
            if terms.get(quotient) == coefficient * atom.divisor:
                rest = {a: c for a, c in terms.items() if a not in (atom, quotient)}
                # Adding terms one by one keeps the index canonical.
                result = Index(address.const) + atom.value * coefficient
                for other, c in rest.items():
                    result = result + Index(0, ((other, c),))
                return _recombined(result)
    return address


def _merged(nest: LoopNest) -> LoopNest:
    """The nest with neighbouring loops merged, in the traversal and in the reduction."""
    for kind, loops in (("traversal", nest.traversal), ("reduction", nest.reduction)):
        for k, (outer, inner) in enumerate(pairwise(loops)):
            if _alike(nest, outer, inner):
                merged = Loop(inner.slot, outer.extent * inner.extent)
                remaining = (*loops[:k], merged, *loops[k + 2 :])
                smaller = _renamed(nest, outer, merged)
                if kind == "traversal":
                    return _merged(replace(smaller, traversal=remaining))
                return _merged(replace(smaller, reduction=remaining))
    return nest


def _alike(nest: LoopNest, outer: Loop, inner: Loop) -> bool:
    """Whether, in each address, a step of ``outer`` is as long as all steps of ``inner``, so that
    the two are one loop."""
    addresses = (nest.output, *(access.address for access in nest.accesses.values()))
    return not nest.fixed & {outer.slot, inner.slot} and all(
        address.coefficient(outer.slot) == address.coefficient(inner.slot) * inner.extent
        for address in addresses
    )


def _renamed(nest: LoopNest, outer: Loop, merged: Loop) -> LoopNest:
    """The nest's addresses with ``merged`` in place of both loops."""

    def image(it: It) -> Index:
        if it.slot == outer.slot:
            return Index(0)
        return Index.iterator(it.slot, merged.extent if it.slot == merged.slot else it.extent)

    accesses = {
        read: replace(access, address=access.address.substitute(image))
        for read, access in nest.accesses.items()
    }
    return replace(nest, accesses=accesses, output=nest.output.substitute(image))


def flops_per_element(scope: Scope) -> float:
    """Operations for each element that is moved: what EinNet calls a scope's arithmetic intensity
    (§5)."""
    per_point = operations(scope.body) + bool(scope.reduction)
    points = math.prod(scope.extents)
    moved = scope.type.size + sum(arg.type.size for arg in args_of(scope))
    return per_point * points / max(moved, 1)
