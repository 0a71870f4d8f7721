"""The data of a region that a derivation changed: its two sides, and the steps between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eqsynth.ir.formulas import Line, kind_of
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.work import bytes_moved, flops


@dataclass(frozen=True)
class Side:
    """One side of a change: the region before it, or after it.

    Attributes:
        lines: the region as formulas, one per line.
        formula: the region as one formula; empty if that is too long.
        kinds: kind of operator (``conv3x3``, ``matmul``, ``view``) -> how often it occurs.
        terms: the region's terms that aren't constant.
        time_s: the time of the terms, and of those of equal regions; None if it isn't known.
        seconds, kernels: times and kernels of the terms in the lines, as far as they are known.
        where: for a whole program, the definitions of the names of constants in its lines.
        flops, bytes: the work of the terms, and the bytes that they move; views move none.
    """

    lines: tuple[Line, ...]
    formula: str
    kinds: Mapping[str, int]
    terms: tuple[Tensor, ...]
    time_s: float | None = None
    seconds: Mapping[Tensor, float] = field(default_factory=dict)
    kernels: Mapping[Tensor, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        return sum(map(flops, self.terms))

    @property
    def bytes(self) -> int:
        return sum(bytes_moved(term) for term in self.terms if kind_of(term) != "view")


@dataclass(frozen=True)
class Told:
    """A step of a derivation, as the lines that it removes and adds.

    Attributes:
        rules: the rules on tensors that the step used, in order, with repetitions.
    """

    rules: tuple[str, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A region that was changed, and its places in the user's model.

    Attributes:
        where: the definitions of the names of values and constants.
        places: the places of this region and of equal ones in the user's model.
        steps: the steps from ``before`` to ``after``; empty if the chain has more than
            ``LONGEST_CHAIN``.
        count: the number of rule instances of the chain; -1 if it is too long.
        rules: the rules that were used, each once, in order.
        alike: for each of the equal regions, this one first, its terms before and after.
    """

    before: Side
    after: Side
    where: Mapping[str, str]
    places: tuple[str, ...]
    steps: tuple[Told, ...]
    count: int
    rules: tuple[str, ...]
    alike: tuple[tuple[frozenset[Tensor], frozenset[Tensor]], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for regions that differ only in names of inputs and weights."""
        sides = (self.before, self.after)
        return tuple(
            (tuple((str(term.type), kind_of(term)) for term in side.terms), len(side.lines))
            for side in sides
        )
