"""What ``bench_generate`` prints: counts, never times."""

from __future__ import annotations

import pytest

from benchmarks.bench_generate import rows
from eqsynth.tasks import LocalExecutor


@pytest.mark.rotating
def test_counts_of_one_operator() -> None:
    found = {row["world"]: row for row in rows(1, 2, LocalExecutor(1))}
    assert found.keys() == {"matrices", "images"}
    for row in found.values():
        counts = [row[name] for name in ("graphs", "initial", "renamed", "common", "subsumed")]
        assert counts == sorted(counts, reverse=True) and counts[-1] == row["candidates"] > 0
