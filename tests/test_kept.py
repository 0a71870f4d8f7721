"""Files that are kept: when there are too many."""

from __future__ import annotations

import random
from pathlib import Path

from eqsynth import kept


def test_a_directory_is_looked_through_when_enough_is_new(tmp_path: Path) -> None:
    """Not at each of many small files, which would take longer and longer."""
    limit, old = 256 * 1000, tmp_path / "old"
    kept.write(tmp_path / "first", b"", limit)
    old.write_bytes(bytes(limit))  # of another process
    kept.write(tmp_path / "second", b"", limit)
    assert old.exists()
    kept.write(tmp_path / "third", random.Random(0).randbytes(1100), limit)
    assert not old.exists() and (tmp_path / "third").exists()
