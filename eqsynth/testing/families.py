"""The families of random scopes on which laws of scopes are sampled, collected in one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eqsynth.ir.normal import canonical_term
from eqsynth.ir.tensor import Tensor
from eqsynth.testing.algebra_samples import ALGEBRA
from eqsynth.testing.expansion_samples import EXPANSIONS
from eqsynth.testing.mask_samples import MASKED
from eqsynth.testing.scope_samples import (
    any_product,
    any_scope,
    constants,
    elementwise_map,
    epilogue,
    flattened,
    matrix_product,
    nested,
    product_of_sum,
    reduced_twice,
    sum_of_products,
    view,
    wide_windows,
    windows,
)
from eqsynth.testing.world import World

Family = Callable[[World], Tensor]

FAMILIES: Final[tuple[Family, ...]] = (
    any_product, nested, any_scope, view, elementwise_map, product_of_sum, matrix_product,
    sum_of_products, windows, wide_windows, epilogue, constants, flattened, reduced_twice,
    *ALGEBRA, *EXPANSIONS, *MASKED,
)  # fmt: skip


def canonical_family(family: Family) -> Family:
    """The family whose scopes are those of ``family`` in canonical form, which most laws need."""

    def drawn(world: World) -> Tensor:
        return canonical_term(family(world))

    drawn.__name__ = f"canonical {family.__name__}"
    return drawn


CANONICAL_FAMILIES: Final = tuple(map(canonical_family, FAMILIES))
ALL_FAMILIES: Final = (*CANONICAL_FAMILIES, *FAMILIES)
