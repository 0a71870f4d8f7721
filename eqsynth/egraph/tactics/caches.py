"""The caches of functions of terms, whose keys are e-classes of one session."""

from __future__ import annotations

from eqsynth.egraph.encode import scope_as
from eqsynth.egraph.tactics import view_chains
from eqsynth.ir import normal


def forget() -> None:
    """Clear these caches before the next session.

    The next session may give the same number to another e-class, or to an e-class that isn't known
    to be constant, while the cached terms still call it constant.
    """
    normal.forget()
    scope_as.cache_clear()
    view_chains.view_chain.cache_clear()
