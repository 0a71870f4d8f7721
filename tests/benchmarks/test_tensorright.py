"""The rewrites that TensorRight proves: what is stated is true, and what is proved stays so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tensorright import FOLDER, LACKING, LIST, NARROWER, names, stated, verified
from eqsynth.testing.soundness import check_rule
from tests.turns import PARTS, by_turns

pytest.importorskip("z3")

UNPROVED: dict[str, str] = {}


def test_the_list_is_whole_and_each_rewrite_is_stated_or_said_to_be_lacking() -> None:
    _, own = stated()
    assert len(names()) == len({*names()}) == 118 and len(LIST) == 22
    assert {*own}.isdisjoint(LACKING) and {*NARROWER} | {*UNPROVED} <= {*own}


@by_turns
def test_what_is_proved_stays_proved(turn: int) -> None:
    _, own = stated()
    asked = [*own][turn::PARTS]
    found = [one for name in asked for one in verified(name)]
    wanted = {name: UNPROVED.get(name, "proved") for name in asked}
    assert {one.name: one.outcome for one in found} == wanted, [one.why for one in found]


@by_turns
def test_what_is_stated_is_true_on_samples(turn: int) -> None:
    rules, own = stated()
    for name in [*own][turn::PARTS]:
        error = check_rule(rules, own[name], samples=24, limit_s=4.0).error
        assert error is None, f"{name}: {error}"


def test_no_other_file_is_in_the_folder() -> None:
    _, own = stated()
    assert {Path(rule.file) for rule in own.values()} == {*FOLDER.iterdir()}
