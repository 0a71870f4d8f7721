"""What the tests of extraction share."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqsynth.extract.cost import CostModel
from eqsynth.extract.profile import Profile
from tests.extract.test_cost import TARGET


@pytest.fixture
def costs(tmp_path: Path) -> CostModel:
    return CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "profile.sqlite"))
