"""What functions of terms have cached over the classes of a session."""

from __future__ import annotations

from eqsynth.egraph.laws import converging, merging, reductions, view_chains
from eqsynth.ir import normal

_CACHED = (
    normal._canonical,
    merging.merge,
    reductions.merge_iterators,
    converging._has_first,
    view_chains.view_chain,
)


def forget() -> None:
    """Clears it: the next session may number another class so, or one that isn't constant (yet),
    as the cached terms over it are."""
    for function in _CACHED:
        function.cache_clear()
