"""Programs that are equal, proved: the table of ``equalities.txt``, also with axes of extent 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.prove import program_of, prove_equal
from eqsynth.rules.claim import Claim
from eqsynth.testing.judging import Sides
from tests.turns import MOST, by_many_turns

TABLE = Path(__file__).with_name("equalities.txt")

KINDS = ("w", "integers")
PROOF = Claim("proof")


class Row(NamedTuple):
    name: str
    tensors: str
    left: str
    right: str
    numerics: str

    def programs(self, n: int, m: int, right: str = "") -> tuple[Any, Any]:
        scope: dict[str, Any] = {"n": n, "m": m, "ops": ops, **vars(ops)}
        for group in self.tensors.split("; "):
            names, shape = group.split(": ")
            kind = shape.split()[0]
            make = eqsynth.weight if kind == "w" else eqsynth.input
            dtype = "int64" if kind == "integers" else "float32"
            extents = eval(f"({shape.removeprefix(kind) if kind in KINDS else shape},)", scope)
            scope |= {name: make(name, extents, dtype) for name in names.split()}
        return eval(self.left, scope), eval(right or self.right, scope)


def read() -> dict[str, list[Row]]:
    sections: dict[str, list[Row]] = {}
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("# ")]
    while lines:
        head = lines.pop(0)
        if head.startswith("## "):
            section = sections.setdefault(head[3:], [])
            continue
        name, tensors = head.split(" | ")
        left, right = lines.pop(0).strip(), lines.pop(0).strip()
        numerics = "cancels" if name.startswith("cancels: ") else "real"
        section.append(Row(name.removeprefix("cancels: "), tensors, left, right, numerics))
    return sections


SECTIONS = read()

# (tensors, left, right): programs that are almost equal.
ALMOST = [
    # The windows of the padded filter aren't reversed.
    ("x: n, 6; w: 3", "reshape(conv1d(reshape(x, (n, 1, 6)), reshape(w, (1, 1, 3))), (n, 4))",
     "x @ permute(unfold(pad(w, (3, 3)), 0, 6, 1), (1, 0))"),
    # The offset has the other sign.
    ("d: 4, 1; x: 4, m", "where(unsqueeze(arange(4), 1) == arange(4) + 1, d, 0.0) @ x",
     "d * pad(narrow(x, 0, 1, 3), (0, 0, 0, 1))"),
    # The places of the diagonal are counted along the other axis.
    ("d: 4, 1; x: 4, m", "where(unsqueeze(arange(4), 1) == 3 - arange(4), d, 0.0) @ x",
     "flip(d * x, (0,))"),
    # The last of the elements beside the diagonal.
    ("d: 4, 1; x: 4, m", "where(unsqueeze(arange(4), 1) + arange(4) == 4, d, 0.0) @ x",
     "d * flip(x, (0,))"),
    ("a x: 4, 4", "masked_fill(a, to(one_hot(arange(4), 4), 'bool'), 0.0) @ x",
     "unsqueeze(diagonal(a, 0, 0, 1), 1) * x"),
    ("x: n, 5, 5", "sum(diagonal(flip(x, (2,)), 0, 1, 2), 1)", "sum(diagonal(x, 0, 1, 2), 1)"),
    ("x: n, 5, 5", "sum(diagonal(flip(x, (2,)), 0, 1, 2), 1)",
     "sum(where(unsqueeze(arange(5), 1) + arange(5) == 5, x, 0.0), (1, 2))"),
    # The other axis, the other variance, a mean of squares that isn't centred.
    ("x: 2, 3", "mean(x - mean(x, 0, True), 1)", "full((2,), 0.0)"),
    ("x: n, 4", "mean(square(x - mean(x, 1, True)), 1)",
     "(sum(square(x), 1) - square(sum(x, 1)) / 4) / 3"),
    ("x y: n, 4", "mean((x - mean(x, 1, True)) * (y - mean(y, 1, True)), 1)",
     "mean(x * y, 1) - mean(x * y, 1) * mean(y, 1)"),
    ("x: n, m, 3, 3", "upsample_bilinear2d(x, (6, 6), True)",
     "upsample_bilinear2d(x, (6, 6), False)"),
]  # fmt: skip


UNFOUND = {("norm-before-conv", (2, 3))}
"""Rows that aren't proved at a size: images and a batch of two, three channels and three filters.
With any of them one more or fewer the proof is found, and so are both halves of this one."""


@by_many_turns
def test_equal_programs_are_proved(turn: int) -> None:
    """At three sizes each; of all that there is to prove, each turn takes as many of each kind."""
    sizes = ((2, 3), (1, 4), (1, 1))
    asked = [(row, at) for at in sizes for rows in SECTIONS.values() for row in rows][turn::MOST]
    missed = {
        (row.name, at): proof.stop
        for row, at in asked
        if not (proof := prove_equal(*row.programs(*at), numerics=row.numerics))
    }
    assert asked and missed.keys() == UNFOUND & {(row.name, at) for row, at in asked}, missed


@pytest.mark.rotating
@pytest.mark.parametrize("texts", ALMOST)
def test_almost_equal_programs_are_told_apart(texts: tuple[str, str, str]) -> None:
    row = Row("", *texts, "cancels")
    found = prove_equal(*row.programs(2, 3), numerics="cancels", node_limit=2000)
    assert not found and found.counterexample is not None, row


def neighbours() -> list[tuple[Row, Row]]:
    """Each row with the next two of its section over the same tensors: mostly other programs."""
    pairs: list[tuple[Row, Row]] = []
    for rows in SECTIONS.values():
        for at, row in enumerate(rows):
            alike = [other for other in rows[at + 1 :] if other.tensors == row.tensors]
            pairs += [(row, other) for other in alike[:2]]
    return pairs


def differ(row: Row, other: Row) -> bool:
    """Whether some data tell the left side of a row from the right side of another. Sides of two
    types, which nobody could prove equal, don't count."""
    sides = row.programs(2, 3, other.right)
    left, right = (program_of(side)[0].outputs for side in sides)
    return [a.type for a in left] == [b.type for b in right] and any(
        Sides(a, b).all_data(PROOF) is not None for a, b in zip(left, right, strict=True)
    )


@by_many_turns
def test_what_is_proved_of_neighbours_in_the_table_is_so(turn: int) -> None:
    for row, other in neighbours()[turn::MOST]:
        if differ(row, other):
            left, right = row.programs(2, 3, other.right)
            assert not prove_equal(left, right, numerics="cancels", node_limit=500), row.name


@pytest.mark.rotating
def test_neighbours_in_the_table_mostly_differ() -> None:
    """So the test above asks about some in each turn, or in nearly each."""
    pairs = neighbours()
    assert len(pairs) > 2 * MOST - 8 and sum(differ(*pair) for pair in pairs) > MOST
