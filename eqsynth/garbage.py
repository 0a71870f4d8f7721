"""Make Python's garbage collection rare while objects are made that stay.

    with collecting_seldom():
        graph = saturate(...)      # makes some 100,000 objects, and frees none of them

Importing libraries, capturing a program, saturating, stitching and lowering make hundreds of
thousands of objects that stay. Each collection would read all of them and free next to nothing. Not
here: calls of a user's program, which may leave cycles that hold large tensors (``race.py`` and
``checking.py`` call it with the thresholds that Python or the user has set).
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
"""The thresholds that each block which hasn't ended yet has found at its beginning, in order. A
block that ends removes the last entry, even if another block has added it: the first entry, which
is restored when all blocks have ended, stays."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Make garbage collection rare in this block.

    Python's own threshold is 700 new objects. With it, collections took a fifth of the time of a
    saturation. Loading an e-graph from the cache took 0.3 s instead of 0.03 s, since torch's
    objects were read by each collection, too. Of the 1.4 s for importing what ``optimize`` needs,
    0.3 s were collections. Blocks may be nested, and may overlap in several threads: the thresholds
    are restored when the last block ends.
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
