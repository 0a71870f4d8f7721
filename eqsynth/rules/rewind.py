"""E-graphs of egglog that are used again: what was run first stays, what came later is forgotten.

Running all declarations and rules takes egglog 60 ms, which is more than most searches take it. An
e-graph can't be copied from Python, but put back: ``(push)`` marks a place and ``(pop)`` returns to
it. The numbers of classes and values return too, so a search on an e-graph that was put back takes
the same steps as on a new one (``tests/rules/test_rewind.py``).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any, Final

from eqsynth.rules.bindings import egg

MAX_KEPT: Final = 3
"""E-graphs that a thread keeps; of more, those that were used longest ago go."""


class _Kept:
    """What a thread keeps."""

    def __init__(self) -> None:
        self.owners: list[tuple[Hashable, Any]] = []
        _every.add(self)


class _Threads(threading.local):
    """An e-graph belongs to the thread that made it."""

    def __init__(self) -> None:
        self.kept = _Kept()


_every: weakref.WeakSet[_Kept] = weakref.WeakSet()
_threads = _Threads()

# A child process has one thread, the one that has forked, and what others kept is thrown away: by
# that thread, of which egglog complains on the terminal. So what they keep is held meanwhile.
_held: list[_Kept] = []
os.register_at_fork(before=lambda: _held.extend(_every), after_in_parent=_held.clear)


def take(key: Hashable) -> Any:
    """What was kept under a key, for the caller alone; None if nothing is."""
    owners = _threads.kept.owners
    for place, (known, owner) in enumerate(owners):
        if known == key:
            del owners[place]
            return owner
    return None


def keep(key: Hashable, owner: Any) -> None:
    """Keeps an e-graph, or what holds one, for the next ``take`` of this thread."""
    kept = _threads.kept
    kept.owners = [*kept.owners, (key, owner)][-MAX_KEPT:]


def mark(egraph: egg.EGraph) -> None:
    """The place to which ``rewind`` returns."""
    egraph.run_program(*egraph.parse_program("(push)"))


def rewind(egraph: egg.EGraph) -> None:
    """Forgets all since ``mark``. Not for an e-graph on which a step has failed half way."""
    egraph.run_program(*egraph.parse_program("(pop)"))
