"""Equalities of an enumeration are written as rules, if they are proved for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.errors import FileError
from eqsynth.generate import Candidate, Enumerated, enumerate_graphs, reduced, write
from eqsynth.generate.primitives import WORLDS
from eqsynth.generate.writing import Side, Written
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules
from tests.terms import leaf, op

MATRICES, _ = WORLDS


@dataclass(frozen=True)
class Said:
    """An equality of terms that a test states."""

    left: Side
    right: Side

    @property
    def terms(self) -> tuple[Side, Side]:
        return self.left, self.right

    def __str__(self) -> str:
        return "an equality"


def said(left: Tensor, right: Tensor) -> Said:
    return Said((left,), (right,))


def outcomes(equalities: Sequence[Candidate | Said], path: Path) -> list[Written]:
    return list(write(equalities, path, limit_s=2.0))


def alone(path: Path) -> RuleSet:
    """The rules of a written file, without eqsynth's own but for what says shapes and dtypes."""
    rules = load_rules([*DEFAULT_FILES, path])
    kept = tuple(r for r in rules.rules if r.file == str(path) or r.kind == "analysis")
    return replace(rules, rules=kept)


@pytest.fixture(scope="module")
def found() -> Enumerated:
    return enumerate_graphs(MATRICES, 2)


@pytest.mark.parametrize(
    ("equality", "directions", "inside"),
    [
        ("ewadd(x1, x0) = ewadd(x0, x1)", 2, "(rewrite (Add x1 x0)"),
        ("x0 = transpose(transpose(x0))", 1, "(rewrite (Permute (Permute x0"),
        ("x0 = ewmul(x0, I_ewmul)", 1, "(Full (shape x0) 1.0 (dtype x0))"),
        ("x1 = split0[0](concat0(x1, x0))", 1, "0 0 (vec-get (shape x"),
    ],
)
def test_an_equality_is_a_rule_for_all_sizes(
    equality: str, directions: int, inside: str, found: Enumerated, tmp_path: Path
) -> None:
    candidates = {str(c): c for c in reduced(found)[0]}
    path = tmp_path / "found.egg"
    (one,) = outcomes([candidates[equality]], path)
    assert len(one.rules) == directions and "for all sizes" in one.why
    assert equality in path.read_text(encoding="utf-8") and inside in one.rules[0]
    own = [rule for rule in load_rules([*DEFAULT_FILES, path]).rules if rule.file == str(path)]
    assert len(own) == directions and all(rule.status == "proved" for rule in own)


def test_what_is_written_derives_what_it_was_written_for(tmp_path: Path) -> None:
    """At another size, and by the written rules alone."""
    path = tmp_path / "found.egg"

    def sides(*shape: int) -> tuple[Tensor, Tensor]:
        x, y = leaf("x", *shape), leaf("y", *shape)
        turned = op("Permute", op("Add", x, y), attrs=((1, 0),))
        parts = (op("Permute", one, attrs=((1, 0),)) for one in (x, y))
        return turned, op("Add", *parts)

    (one,) = outcomes([said(*sides(3, 3))], path)
    assert len(one.rules) == 2
    left, right = sides(5, 7)
    assert meet((left,), (right,), alone(path), Limits(1000, 10.0)).proved
    without = replace(alone(path), rules=tuple(r for r in alone(path).rules if not r.equality))
    assert not meet((left,), (right,), without, Limits(1000, 10.0)).proved


@pytest.mark.rotating
def test_graphs_of_two_outputs_are_a_join(tmp_path: Path) -> None:
    """x y and x z are the halves of x [y z]: two rules, which apply where both products are."""
    x, y, z = (leaf(name, 3, 3) for name in "xyz")
    product = op("Matmul", x, op("Concat", y, z, attrs=(1,)))
    halves = tuple(op("Slice", product, attrs=(1, at, at + 3, 1)) for at in (0, 3))
    path = tmp_path / "found.egg"
    (one,) = outcomes([Said((op("Matmul", x, y), op("Matmul", x, z)), halves)], path)
    assert one.rules and one.rules[0].count("(rule (") == 2, one.why
    a, b, c = leaf("a", 2, 5), leaf("b", 5, 7), leaf("c", 5, 7)
    both = op("Matmul", a, b), op("Matmul", a, c)
    whole = op("Matmul", a, op("Concat", b, c, attrs=(1,)))
    parts = tuple(op("Slice", whole, attrs=(1, at, at + 7, 1)) for at in (0, 7))
    assert meet(both, parts, alone(path), Limits(1000, 10.0)).proved
    assert not meet(both[:1], parts[:1], alone(path), Limits(1000, 10.0)).proved


def test_what_is_not_proved_is_not_written(tmp_path: Path) -> None:
    """x * (1 + x) = relu(x * (1 + x)) holds where x isn't between -1 and 0; and a rule is found
    for no size but the one of the enumeration."""
    x, y = leaf("x", 3, 3), leaf("y", 3, 3)
    ones = op("Full", attrs=((3, 3), 1.0, "float32"))
    some = op("Mul", x, op("Add", ones, x))
    wrong = [
        said(op("Relu", some), some),
        said(op("Add", x, y), op("Sub", x, y)),
        said(op("Permute", x, attrs=((1, 0),)), x),
        said(op("Concat", x, y, attrs=(0,)), op("Concat", y, x, attrs=(0,))),
    ]
    path = tmp_path / "found.egg"
    path.write_text("before", encoding="utf-8")
    found = outcomes(wrong, path)
    assert all(not one.rules and one.why for one in found)
    rules = load_rules([*DEFAULT_FILES, path])
    assert not [rule for rule in rules.rules if rule.file == str(path)]


def test_a_run_that_ends_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "found.egg"
    path.write_text("before", encoding="utf-8")
    x, y = leaf("x", 3, 3), leaf("y", 3, 3)
    running = write([said(op("Add", x, y), op("Add", y, x))] * 2, path)
    next(running)
    running.close()
    assert path.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError):
        next(write([], tmp_path / "nowhere" / "found.egg"))
