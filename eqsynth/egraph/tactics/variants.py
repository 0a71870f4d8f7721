"""How many ways of computing one thing a class takes, and which of them are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from eqsynth.ir.scalar import reads
from eqsynth.ir.tensor import Scope, Tensor


@dataclass(frozen=True)
class Variants:
    """How many ways of computing one thing a class takes from a law.

    Attributes:
        most: the scopes up to which it takes them.
        counts: which scopes are counted, and which answers need room; by default all.
    """

    most: int
    counts: Callable[[Tensor], bool] | None = None


def is_map_of_several(scope: Tensor) -> bool:
    """Whether it is computed element by element from several reads, without a sum.

    Of three tensors that are views in eight ways each, 512 such maps would be made, where a class
    takes few (``VARIANTS``). Products under a sum take all views: operators are found by them.
    """
    return (
        isinstance(scope, Scope)
        and not scope.reduction
        and len(set(reads(scope.body))) > 1
    )


# Laws whose answers are ways of computing one thing in more or fewer steps, and the scopes up to
# which a class takes them, those with small bodies first. Which maps are fused into a map is a
# subset of those before it: a gate of an LSTM would have hundreds. Which views a map of several
# reads takes is a choice for each read: the scores of one token against a cache of keys in two
# pieces, with rotated positions, had 1,444 sums in one class.
VARIANTS: Final[Mapping[str, Variants]] = {
    "expression-fusion": Variants(16),
    "view-merge": Variants(16, is_map_of_several),
}
# The same of classes that are products element by element (``sigmoid(o) * tanh(c)``): all but the
# whole are hardly ever worth a kernel. (LSTM, e-nodes with 16, 8 and 4: 12,093, 7,439, 5,482.)
GATE_VARIANTS: Final = 4
