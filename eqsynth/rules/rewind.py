"""E-graphs of egglog that are used again: what was run first stays, what came later is forgotten.

Running all declarations and rules takes egglog 60 ms, which is more than most searches take it. An
e-graph can't be copied from Python, but put back: ``(push)`` marks a place and ``(pop)`` returns to
it. The numbers of classes and values return too, so a search on an e-graph that was put back takes
the same steps as on a new one (``tests/rules/test_rewind.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Final

from egglog import bindings as egg

MAX_KEPT: Final = 3
"""E-graphs that a thread keeps; of more, those that were used longest ago go."""


class _Kept(threading.local):
    """An e-graph belongs to the thread that made it."""

    def __init__(self) -> None:
        self.owners: list[tuple[Hashable, Any]] = []


_kept = _Kept()


def take(key: Hashable) -> Any:
    """What was kept under a key, for the caller alone; None if nothing is."""
    for place, (known, owner) in enumerate(_kept.owners):
        if known == key:
            del _kept.owners[place]
            return owner
    return None


def keep(key: Hashable, owner: Any) -> None:
    """Keeps an e-graph, or what holds one, for the next ``take`` of this thread."""
    _kept.owners = [*_kept.owners, (key, owner)][-MAX_KEPT:]


def mark(egraph: egg.EGraph) -> None:
    """The place to which ``rewind`` returns."""
    egraph.run_program(*egraph.parse_program("(push)"))


def rewind(egraph: egg.EGraph) -> None:
    """Forgets all since ``mark``. Not for an e-graph on which a step has failed half way."""
    egraph.run_program(*egraph.parse_program("(pop)"))
