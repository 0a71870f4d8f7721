"""Which generated kernels have the same code, up to the names and the order of their arguments.

    L[i<1, j<512] sum[k] a[3, 0, k] * w[j, k]    and    L[j<512] sum[k] w[j, k] * b[k]

are two loops over ``w`` and a row, and take the same time. The steps of a recurrent net read other
rows of one product, some through an axis of extent 1, and multiply in either order: of 495 kernels
that were timed for an LSTM, 402 had the code of another one.

Not here: what is done with that (``extract/cost.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Block, Schedule
from eqsynth.ir.index import Atom, Index, It, number_of
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Region, Scope, args_of, is_literal
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.loop_nest import LoopNest, loop_nest, map_kept

_ALIGNED = 64
"""Bytes. Two reads that begin at other places within so many bytes may take other times."""


def code_of(kernel: Kernel) -> Hashable:
    """A key that is equal for two kernels only if they have the same code; None for a kernel that
    isn't compared: a row chain, or code of another kind than plain loops."""
    term, schedule = kernel.term, kernel.schedule
    if not isinstance(term, Scope | Region) or not isinstance(schedule, Schedule):
        return None
    if isinstance(term, Region) and map_kept(term) is None:
        return None
    if any(map(is_literal, args_of(term))):
        return None
    nest = loop_nest(term, kernel.inputs, kernel.output)
    names = {loop.slot: n for n, loop in enumerate((*nest.traversal, *nest.reduction))}
    code = _Code(nest, kernel.constants, names)
    bodies = [nest.scope.body, *([] if nest.after is None else [nest.after.body])]
    parts = tuple(code.of(body) for body in bodies)
    reads = {argument: tuple(sorted(keys)) for argument, keys in code.reads.items()}
    packed: tuple[str, ...] = ()
    if isinstance(schedule, Block) and schedule.packed != -1:
        packed, schedule = reads.get(schedule.packed, ()), replace(schedule, packed=0)
    return (
        kernel.implementation,
        schedule,
        tuple(loop.extent for loop in nest.traversal),
        tuple(loop.extent for loop in nest.reduction),
        nest.scope.reducer,
        _index(nest.output, names, 1),
        parts,
        tuple(sorted(reads.values())),
        packed,
    )


class _Code:
    """The keys of the parts of one nest's bodies.

    Attributes:
        reads: the keys of the reads of each argument, by the argument's position.
    """

    def __init__(
        self, nest: LoopNest, constants: tuple[bool, ...], names: Mapping[int, int]
    ) -> None:
        self._nest, self._constants, self._names = nest, constants, names
        self.reads: dict[int, set[str]] = {}

    def of(self, scalar: Scalar) -> str:
        """The key of a scalar. The parts of sums and products are sorted."""
        if isinstance(scalar, Sum | Prod):
            parts = scalar.terms if isinstance(scalar, Sum) else scalar.factors
            return f"{type(scalar).__name__}({', '.join(sorted(map(self.of, parts)))})"
        if isinstance(scalar, Call):
            return f"{scalar.fn}({', '.join(map(self.of, scalar.args))})"
        if isinstance(scalar, Cast):
            return f"{scalar.dtype}({self.of(scalar.arg)})"
        if isinstance(scalar, Value):
            return f"value {_index(scalar.index, self._names, 1, whole=True)}"
        if isinstance(scalar, Num):
            return repr(scalar.value)
        assert isinstance(scalar, Read)
        return self._read(scalar)

    def _read(self, read: Read) -> str:
        access = self._nest.accesses.get(read)
        if access is None:  # the result that a map reads
            return f"result {read.tensor.dtype}"
        dtype = read.tensor.dtype
        guards = [
            f"{_index(index, self._names, 1, whole=True)} < {extent} by {step}"
            for (index, extent), step in zip(access.guards, access.steps, strict=True)
        ]
        constant = access.argument < len(self._constants) and self._constants[access.argument]
        key = (
            f"{dtype}{' constant' * constant} at "
            f"{_index(access.address, self._names, ITEMSIZE[dtype])}; {', '.join(guards)}; "
            f"{read.fill!r}"
        )
        self.reads.setdefault(access.argument, set()).add(key)
        return key


def _index(index: Index, names: Mapping[int, int], itemsize: int, whole: bool = False) -> str:
    """An index with iterators named by the loops' order. Of its constant counts how it is aligned,
    unless it is used as a ``whole``."""
    const = index.const if whole else index.const * itemsize % _ALIGNED
    terms = sorted(f"{factor} {_atom(atom, names)}" for atom, factor in index.terms)
    return f"{const} + {' + '.join(terms)}"


def _atom(atom: Atom, names: Mapping[int, int]) -> str:
    if isinstance(atom, It):
        return f"i{names.get(atom.slot, -1)}"
    value = _index(atom.value, names, 1, whole=True)
    return f"{type(atom).__name__}({value}, {number_of(atom)})"
