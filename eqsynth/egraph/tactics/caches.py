"""What functions of terms have cached over the classes of a session."""

from __future__ import annotations

from eqsynth.egraph.encode import scope_as
from eqsynth.egraph.tactics import view_chains
from eqsynth.ir import normal


def forget() -> None:
    """Clears it: the next session may number another class so, or one that isn't constant (yet),
    as the cached terms over it are."""
    normal.forget()
    scope_as.cache_clear()
    view_chains.view_chain.cache_clear()
