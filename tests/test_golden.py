"""The golden-file fixture itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest


def test_golden_writes_compares_and_rejects(golden: Any, tmp_path: Path) -> None:
    reader = replace(golden, directory=tmp_path, update=False)
    with pytest.raises(AssertionError):
        reader.check("a/b.txt", "text\n")
    replace(reader, update=True).check("a/b.txt", "text\n")
    reader.check("a/b.txt", "text\n")
    with pytest.raises(AssertionError):
        reader.check("a/b.txt", "other\n")
