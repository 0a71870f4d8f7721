"""Limits on how many equal scopes an e-class takes from one law, and which scopes count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from eqsynth.ir.scalar import reads
from eqsynth.ir.tensor import Scope, Tensor


@dataclass(frozen=True)
class Variants:
    """The limit on the scopes that one e-class takes from one law; without it its answers would
    multiply. Answers with small bodies are taken first.

    Attributes:
        most: the law is no longer asked about an e-class that has more scopes than this.
        counts: whether a scope counts against ``most``; an answer that doesn't count is always
            taken. If None, every scope counts.
    """

    most: int
    counts: Callable[[Tensor], bool] | None = None


def is_map_of_several(scope: Tensor) -> bool:
    """Whether ``scope`` computes each element from several different reads, without a reduction.

    If it reads three tensors, each of which is a view in eight ways, there are 8 * 8 * 8 = 512
    equal maps; ``view-merge`` limits how many of them an e-class takes. Products under a sum aren't
    limited: operators are matched by means of their views.
    """
    return isinstance(scope, Scope) and not scope.reduction and len(set(reads(scope.body))) > 1


# The limit for e-classes that are elementwise products (``sigmoid(o) * tanh(c)``): only the fully
# fused map is usually worth a kernel. (E-nodes of LSTM with limits of 16, 8 and 4: 12,093, 7,439
# and 5,482.)
GATE_VARIANTS: Final = 4
