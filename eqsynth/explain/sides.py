"""A region of a program that a derivation changed, as data: its two sides and what led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eqsynth.ir.formulas import Line, kind_of
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.work import bytes_moved, flops


@dataclass(frozen=True)
class Side:
    """A region as it was, or as it is.

    Attributes:
        formula: all of it in one line; empty if that is too long.
        kinds: how often each kind of operator occurs: ``conv3x3``, ``matmul``, ``view``.
        terms: what it computes that isn't constant.
        time_s: what these take, and those of equal regions; None if that isn't known.
        seconds, kernels: of terms in the lines, as far as they are known.
        where: of a whole program, what names of constants in its lines stand for.
        flops, bytes: of the terms.
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
    """A step as what it changes: lines that go, lines that come.

    Attributes:
        rules: of tensors that were used, each as often as it was.
    """

    rules: tuple[str, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A region that was changed, and where it stands.

    Attributes:
        where: what names of values and constants stand for.
        places: where it stands in the user's model, and where equal ones do.
        steps: empty where there are more than ``LONGEST_CHAIN``; ``count`` says how many, or -1.
        rules: all that were used, in order.
        alike: the terms of equal regions, this one among them, before and after.
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
        """Equal for regions that read alike but for names of inputs and weights."""
        sides = (self.before, self.after)
        return tuple(
            (tuple((str(term.type), kind_of(term)) for term in side.terms), len(side.lines))
            for side in sides
        )
