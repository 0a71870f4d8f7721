"""Each row of the table of derivations finds its target."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.bench_derive import Case, cases, search
from eqsynth.rules import load_rules
from tests.turns import TURNS, by_rare_turns


def missed(case: Case, guided: bool, canonical: bool) -> str | None:
    """What the search of one row ended with, if it didn't find the target."""
    run = search(case, load_rules().select(), guided, canonical)
    return None if run.found else f"{run.case}, {guided=}, {canonical=}: {run.stop}"


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["Conv3x3", "Conv5x5"])
def test_windows_are_split_without_canonical_forms(name: str) -> None:
    """Without canonical forms, a scope that a step makes keeps the order of its iterators and
    factors. The law that checks the step must not depend on this order."""
    (case,) = (case for case in cases() if case.name.startswith(name))
    assert missed(case, guided=True, canonical=False) is None


@by_rare_turns
def test_every_row_finds_its_target(turn: int) -> None:
    rows = list(itertools.product(cases(), (True, False), (True, False)))
    own = rows[turn::TURNS]
    assert own and [found for row in own if (found := missed(*row))] == []
