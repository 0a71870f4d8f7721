"""The rewrites that TensorRight proves: what is stated is true, and what is proved stays so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tensorright import (
    FOLDER,
    LACKING,
    LIST,
    NARROWER,
    Found,
    names,
    stated,
    table,
    verified,
)
from eqsynth.testing.soundness import check_rule
from tests.turns import PARTS, by_turns

pytest.importorskip("z3")

ROOT = Path(__file__).resolve().parents[2]

# Rules that fewer than 15 of the samples match: most of the convolutions that are drawn are too
# large, and the others ask for extents or amounts that few terms have. The rules hold on those few.
SELDOM = frozenset({"conv-00", "conv-01", "conv-03", "pad-04", "reduce-08"})


def test_the_list_is_whole_and_each_rewrite_is_stated_or_said_to_be_lacking() -> None:
    _, own = stated()
    assert len(names()) == len({*names()}) == 118 and len(LIST) == 22
    assert {*own}.isdisjoint(LACKING) and {*NARROWER} <= {*own}
    assert {*own, *LACKING} == {*names()}


@by_turns
def test_what_is_proved_stays_proved(turn: int) -> None:
    _, own = stated()
    asked = [*own][turn::PARTS]
    found = list(verified(asked))
    assert {one.name: one.why for one in found if one.outcome != "proved"} == {}


@by_turns
def test_what_is_stated_is_true_on_samples(turn: int) -> None:
    rules, own = stated()
    for name in [*own][turn::PARTS]:
        error = check_rule(rules, own[name], samples=15, limit_s=2.0).error
        assert error is None or (error.kind, name in SELDOM) == ("vacuous", True), error


def test_the_table_of_the_documentation_is_that_of_these_outcomes() -> None:
    found = [
        Found(name, "not expressible" if name in LACKING else "proved", 0.0,
              "", NARROWER.get(name, ""))
        for name in names()
    ]  # fmt: skip
    assert table(found) in (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def test_no_other_file_is_in_the_folder() -> None:
    _, own = stated()
    assert {Path(rule.file) for rule in own.values()} == {*FOLDER.iterdir()}
