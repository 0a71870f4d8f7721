"""Reuses egglog e-graphs: an e-graph is reset to the state after its declarations and rules.

Running all declarations and rules takes egglog 60 ms, longer than most searches. Python can't copy
an e-graph, but can reset it: ``(push)`` marks a state, and ``(pop)`` returns to it. The numbers of
e-classes and values are reset too, so a search takes the same steps as on a new e-graph
(``tests/rules/test_rewind.py``).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any, Final

from eqsynth.rules.bindings import egg

MAX_KEPT: Final = 3
"""The most e-graphs that a thread keeps; beyond it the least recently used one is dropped."""


class _Kept:
    """The e-graphs that one thread keeps."""

    def __init__(self) -> None:
        self.owners: list[tuple[Hashable, Any]] = []
        _every.add(self)


class _Threads(threading.local):
    """The kept e-graphs of the current thread: only the thread that made an e-graph may use it."""

    def __init__(self) -> None:
        self.kept = _Kept()


_every: weakref.WeakSet[_Kept] = weakref.WeakSet()
_threads = _Threads()

# After a fork, the child has one thread, which would free the e-graphs of the other threads; egglog
# prints a complaint about this. So this list holds references to them.
_held: list[_Kept] = []
os.register_at_fork(before=lambda: _held.extend(_every), after_in_parent=_held.clear)


def take(key: Hashable) -> Any:
    """Remove and return the object that was kept under a key; None if there is none."""
    owners = _threads.kept.owners
    for place, (known, owner) in enumerate(owners):
        if known == key:
            del owners[place]
            return owner
    return None


def keep(key: Hashable, owner: Any) -> None:
    """Keep an e-graph, or an object that holds one, for the next ``take`` in this thread."""
    kept = _threads.kept
    kept.owners = [*kept.owners, (key, owner)][-MAX_KEPT:]


def mark(egraph: egg.EGraph) -> None:
    """Mark the current state, to which ``rewind`` returns."""
    egraph.run_program(*egraph.parse_program("(push)"))


def rewind(egraph: egg.EGraph) -> None:
    """Reset the e-graph to the state of ``mark``. Not allowed after a step that failed midway."""
    egraph.run_program(*egraph.parse_program("(pop)"))
