"""Equalities of an enumeration are written as rules, if they are proved for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.errors import FileError
from eqsynth.generate import Candidate, Enumerated, enumerate_graphs, reduced, write
from eqsynth.generate.primitives import WORLDS
from eqsynth.generate.writing import Side, Written
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import DEFAULT_FILES, RuleSet, lint, load_rules
from eqsynth.tasks import LocalExecutor
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


@pytest.mark.rotating
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


@pytest.mark.rotating(parts=4)
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
    assert [rule[:7] for rule in one.rules] == ["(rule (", "(rule (", "(rule (", "(rule ("], one.why
    a, b, c = leaf("a", 2, 5), leaf("b", 5, 7), leaf("c", 5, 7)
    both = op("Matmul", a, b), op("Matmul", a, c)
    whole = op("Matmul", a, op("Concat", b, c, attrs=(1,)))
    parts = tuple(op("Slice", whole, attrs=(1, at, at + 7, 1)) for at in (0, 7))
    assert meet(both, parts, alone(path), Limits(1000, 10.0)).proved
    assert not meet(both[:1], parts[:1], alone(path), Limits(1000, 10.0)).proved


@pytest.mark.rotating
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


class Noted(LocalExecutor):
    """Notes the graphs that it is asked about, and their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Side] = []
        self.answers: list[Future[Any]] = []

    def submit(self, task: Callable[..., Any], *args: Any, **limits: Any) -> Future[Any]:
        self.asked.append(args[0])
        self.answers.append(super().submit(task, *args, **limits))
        return self.answers[-1]


@pytest.mark.rotating
def test_what_was_proved_before_an_interrupt_is_not_proved_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second proof was there, and nobody had taken it; the third was never asked for."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    x, y = leaf("x", 3, 3), leaf("y", 3, 3)
    sums, products, rectified = (
        said(op("Add", x, y), op("Add", y, x)),
        said(op("Mul", x, y), op("Mul", y, x)),
        said(op("Relu", op("Relu", x)), op("Relu", x)),
    )
    path = tmp_path / "found.egg"
    with pytest.raises(KeyboardInterrupt), Noted() as tasks:
        running = write([sums, products], path, executor=tasks)
        next(running)
        tasks.answers[1].result()
        running.throw(KeyboardInterrupt())
    assert not path.exists()
    everything = [sums, products, rectified]
    with Noted() as tasks:
        found = list(write(everything, path, executor=tasks))
    assert tasks.asked == [rectified.left]
    text = path.read_text(encoding="utf-8")
    assert all(one.rules and one.rules[0] in text for one in found)
    with Noted() as tasks:
        assert list(write(everything, path, executor=tasks)) == found
        assert not tasks.asked
        # It is kept for the rules that it was proved with.
        own = tmp_path / "own.egg"
        own.write_text(";; own.egg -- nothing.\n", encoding="utf-8")
        next(write([sums], path, [own], executor=tasks))
    assert tasks.asked == [sums.left]


@pytest.mark.rotating
def test_a_proof_that_had_no_time_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    x, y = leaf("x", 3, 3), leaf("y", 3, 3)
    wrong = [said(op("Add", x, y), op("Sub", x, y))]
    with Noted() as tasks:
        for limit_s, asked in ((0.0, 1), (0.0, 2), (60.0, 3), (60.0, 3)):
            (one,) = write(wrong, tmp_path / "found.egg", executor=tasks, limit_s=limit_s)
            assert not one.rules and one.why and len(tasks.asked) == asked


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


@pytest.mark.rotating
def test_what_is_written_is_what_the_linter_asks_for(tmp_path: Path) -> None:
    """Long lines are broken; an equality that is found twice, over tensors of two ranks, is a rule
    once; a file without rules is one, too."""
    path = tmp_path / "Found_It.egg"
    x, y, z = (leaf(name, 3, 3) for name in "xyz")
    turned = [op("Permute", op("Relu", one), attrs=((1, 0),)) for one in (x, y, z)]
    rows = op("Concat", *turned, attrs=(0,))
    image = leaf("x", 2, 3, 4)
    twice = [said(op("Relu", op("Relu", one)), op("Relu", one)) for one in (x, image)]
    long = said(op("Relu", rows), rows)
    found = outcomes([long, *twice], path)
    assert found[1].rules == found[2].rules != ()
    assert lint([*DEFAULT_FILES, path]) == []
    rules = [rule for rule in load_rules([*DEFAULT_FILES, path]).rules if rule.file == str(path)]
    assert len(rules) == len({rule for one in found for rule in one.rules}) > 2
    assert {rule.ruleset for rule in rules} == {"found-it-explore"}
    # What follows from a file that was written before goes to a ruleset of its own.
    again = tmp_path / "found-it.egg"
    assert all(one.rules for one in write(twice[:1], again, [path], limit_s=2.0))
    assert lint([*DEFAULT_FILES, path, again]) == []
    assert outcomes([], again) == []
    assert lint([*DEFAULT_FILES, again]) == []
