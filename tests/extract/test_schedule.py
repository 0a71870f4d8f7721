"""Schedules as data: their names, and their saved form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eqsynth.extract.schedule import (
    Block,
    Flat,
    Fold,
    Lanes,
    Rows,
    Schedule,
    Tile,
    schedule_from_data,
    schedule_to_data,
)

SCHEDULES: list[Schedule] = [
    Rows(), Rows(order=(1, 0)), Rows(unrolled=4), Flat(16), Flat(16, tasks=4), Tile(8, 16),
    Tile(16, 8), Tile(8, 16, across=True), Lanes(64), Lanes(64, order=(2, 0, 1)), Fold(64),
    Fold(16, 4), Block(8, 32), Block(8, 32, 4), Block(8, 32, 1, 4), Block(8, 32, unrolled=4),
    Block(8, 32, order=(1, 0)), Block(8, 32, order=(10, 1)), Block(8, 32, order=(1, 0, 1)),
    Block(8, 32, packed=0), Block(8, 32, packed=1),
]  # fmt: skip


def test_names_are_as_they_were_and_tell_schedules_apart() -> None:
    points = [Rows(), Flat(16), Tile(8, 16), Lanes(64), Fold(16), Block(8, 32)]
    names = ["rows", "flat16", "tile8x16", "lanes64", "fold16", "block8x32"]
    assert list(map(str, points)) == names
    assert len({str(schedule) for schedule in SCHEDULES}) == len(set(SCHEDULES)) == len(SCHEDULES)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "2.1.0", ""], ids=str)
def test_saved_and_read(schedule: Schedule | str) -> None:
    data = json.loads(json.dumps(schedule_to_data(schedule)))
    assert schedule_from_data(data) == schedule
    assert type(schedule_from_data(data)) is type(schedule)


BLOCK: Any = schedule_to_data(Block(8, 32))


@pytest.mark.parametrize(
    "data",
    [
        None, 3, [], ["rows"], ["spiral", {}], ["block", {"rows": 8}], ["rows", {"width": 16}],
        [["rows"], {}],
        ["block", {**BLOCK[1], "more": 1}], ["block", {**BLOCK[1], "rows": "8"}],
        ["block", {**BLOCK[1], "rows": True}], ["block", {**BLOCK[1], "order": 1}],
        ["block", {**BLOCK[1], "order": [0.5]}], ["lanes", BLOCK[1]],
        ["tile", {**schedule_to_data(Tile(8, 8))[1], "across": 1}],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_schedule(data: Any) -> None:
    with pytest.raises(ValueError, match="schedule|size|order"):
        schedule_from_data(data)


def test_a_field_that_was_added_later_has_its_default() -> None:
    name, values = BLOCK
    del (older := dict(values))["packed"]
    assert schedule_from_data([name, older]) == Block(8, 32)


def test_equal_only_to_its_own_kind() -> None:
    assert Lanes(64) != Fold(64) and replace(Fold(64), unrolled=2) != Fold(64)
