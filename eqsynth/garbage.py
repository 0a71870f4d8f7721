"""How often Python looks for cyclic garbage while what is made is kept.

Importing libraries, capturing a program, saturating, stitching and lowering make objects by the
hundred thousand that stay. A collection of garbage reads all of them and frees next to nothing. Not
here: calls of a user's program, which may leave cycles that hold large tensors (``race.py`` and
``checking.py`` call it under the thresholds that Python or the user has set).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEW_OBJECTS: Final = 200_000
"""New objects between two collections of the youngest generation."""

_lock: Final = threading.Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds that were found by as many blocks as aren't over yet, those of the first block
first. A block that ends takes the last ones away, whoever has found them."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Python looks for cyclic garbage less often than it would, in this block.

    Python's own threshold is 700 new objects. With it a fifth of the time of a saturation went into
    collections, reading an e-graph that was remembered took 0.3 s for 0.03, since torch's objects
    were read with it, and importing what ``optimize`` needs 0.3 s of 1.4. Blocks may lie in each
    other and overlap in several threads: the thresholds are as before when the last of them ends.
    """
    with _lock:
        found = gc.get_threshold()
        _before.append(found)
        if 0 < found[0] < NEW_OBJECTS:
            gc.set_threshold(NEW_OBJECTS, *found[1:])
    try:
        yield
    finally:
        with _lock:
            found = _before.pop()
            if not _before:
                gc.set_threshold(*found)
