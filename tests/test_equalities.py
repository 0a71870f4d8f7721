"""Programs that are equal, proved: the table of ``equalities.txt``, also with axes of extent 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import eqsynth
from eqsynth import ops
from eqsynth.prove import program_of, prove_equal
from eqsynth.testing.judging import Sides
from tests.turns import PARTS, by_turns

TABLE = Path(__file__).with_name("equalities.txt")

KINDS = ("w", "integers")


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


@by_turns
def test_equal_programs_are_proved(turn: int) -> None:
    """At three sizes each; of all that there is to prove, each turn takes as many of each kind."""
    sizes = ((2, 3), (1, 4), (1, 1))
    asked = [(row, at) for at in sizes for rows in SECTIONS.values() for row in rows][turn::PARTS]
    missed = [
        f"{row.name} at {at}: {proof.stop}"
        for row, at in asked
        if not (proof := prove_equal(*row.programs(*at), numerics=row.numerics))
    ]
    assert not missed and asked


@by_turns
def test_what_is_proved_of_neighbours_in_the_table_is_so(turn: int) -> None:
    """Each left side against the right sides of the next entries over the same tensors: mostly
    other programs."""
    pairs: list[tuple[Row, Row]] = []
    for rows in SECTIONS.values():
        for at, row in enumerate(rows):
            alike = [other for other in rows[at + 1 :] if other.tensors == row.tensors]
            pairs += [(row, other) for other in alike[:2]]
    differ = 0
    for row, other in pairs[turn::PARTS]:
        left, right = row.programs(2, 3, other.right)
        terms = [program_of(side)[0].outputs for side in (left, right)]
        if [[t.type for t in side] for side in terms][0] != [t.type for t in terms[1]]:
            continue
        if any(Sides(a, b).all_data("proof") is not None for a, b in zip(*terms, strict=True)):
            differ += 1
            assert not prove_equal(left, right, numerics="cancels", node_limit=500), row.name
    assert differ
