"""What several tests ask about is made once in a run: by one of xdist's processes, for all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def once(name: str, make: Callable[[], T]) -> T:
    """What ``make`` gives: as it made it, or read from the file where another process left it.

    Args:
        name: of what is made, for the whole run; a file's name.
    """
    path = Path(os.environ["EQSYNTH_TESTS"], f"{name}.pickle")
    try:
        found: T = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        found = make()
        own = path.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps(found))
        own.rename(path)  # whole or not at all
    return found
