"""Each program of ``programs.py`` is saturated: all members of an e-class are equal, and the rules
that ``fires.py`` lists for the program fire."""

from __future__ import annotations

import pytest

from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.fires import FIRES
from tests.egraph.programs import PROGRAMS, saturated


@pytest.mark.rotating(table="programs")
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_members_of_every_class_agree_and_the_rules_fire(name: str) -> None:
    graph = saturated(name)
    assert graph.stop == "saturated"
    checked = assert_egraph_consistent(graph, seed=7)
    assert checked.classes == len(graph.classes) and checked.without_value == 0
    idle = [rule for rule in FIRES.get(name, "").split() if not graph.matches.get(rule)]
    assert not idle, f"fires.py: {idle} fire no more in {name}"
