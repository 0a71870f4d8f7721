"""The form that asks a law: what it stands for, and where what is wrong in it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqsynth.errors import RuleError
from eqsynth.rules import DEFAULT_FILES, load_rules

HEADER = ";; own.egg -- own.\n"


def loaded(tmp_path: Path, text: str) -> tuple[Path, list[str]]:
    """The file, and the programs of its rules."""
    path = tmp_path / "own.egg"
    path.write_text(HEADER + text)
    rules = load_rules([*DEFAULT_FILES, str(path)])
    return path, [" ".join(rule.program) for rule in rules.rules if rule.file == str(path)]


def test_it_stands_for_a_request_and_an_answer(tmp_path: Path) -> None:
    asked = '(ask own :of (Scope t s "sum" b) :when ((>= (vec-length s) 2)) :ruleset match)'
    written = """\
(law own (Tensor Ints Ints String Scalar) (Tensor Tensor))
(rule ((= e (Scope t s "sum" b)) (>= (vec-length s) 2)) ((own-request e t s "sum" b))
      :ruleset match :name "own")
(rule ((own-answer e q)) ((union e q)) :ruleset match :name "own-apply")
"""
    assert loaded(tmp_path, asked)[1] == loaded(tmp_path, written)[1]


def test_what_it_derives_is_marked(tmp_path: Path) -> None:
    asked = "(ask own :of (Scope t s r b) :gives derived :ruleset match)"
    written = """\
(law own (Tensor Ints Ints String Scalar) (Tensor Ints Ints String Scalar))
(rule ((= e (Scope t s r b))) ((own-request e t s r b)) :ruleset match :name "own")
(rule ((own-answer e t s r b)) ((union e (Scope t s r b)) (derived t s r b))
      :ruleset match :name "own-apply")
"""
    assert loaded(tmp_path, asked)[1] == loaded(tmp_path, written)[1]


def test_of_an_operator_what_has_a_name_is_filed(tmp_path: Path) -> None:
    asked = "(ask own :of (Conv2d x w _ p _ 1) :when ((constant w)) :ruleset match)"
    request = loaded(tmp_path, asked)[1][0]
    assert "(own-request e x w p)" in request


def test_a_law_is_asked_again_under_another_name(tmp_path: Path) -> None:
    again = '(ask factor :of (Scope t s "sum" b) :gives derived :ruleset normal :name "early")'
    path, programs = loaded(tmp_path, again)
    (rule,) = [r for r in load_rules([*DEFAULT_FILES, str(path)]).rules if r.file == str(path)]
    assert (rule.name, rule.law, rule.kind, len(programs)) == ("early", "factor", "law-request", 1)


def test_its_numerics_are_both_rules(tmp_path: Path) -> None:
    asked = "(ask own :of (Scope t s r b) :numerics cancels :ruleset match)"
    path, _ = loaded(tmp_path, asked)
    own = [r for r in load_rules([*DEFAULT_FILES, str(path)]).rules if r.file == str(path)]
    assert [rule.numerics.kind for rule in own] == ["cancels", "cancels"]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("(ask)", 1, "nothing says which law"),
        ("(ask :of (Scope t s r b) :ruleset match)", 1, "nothing says which law"),
        ("(ask own :ruleset match)", 6, "without :of"),
        ("(ask own :of (Scope t s r b))", 6, "without :ruleset"),
        ("(ask own :of (Scope t s r b) :rulset match)", 30, ":ruleset"),
        ("(ask own :of (Scope t s r b) :ruleset mach)", 39, "Did you mean match"),
        ("(ask own :of (Scop t s r b) :ruleset match)", 15, "Did you mean Scope"),
        ("(ask own :of Scope :ruleset match)", 14, "of a scope or of an operator"),
        ("(ask own :of (Scope t s r) :ruleset match)", 14, "4 arguments"),
        ("(ask own :of (Scope t s r (Sum v)) :ruleset match)", 14, ":when"),
        ("(ask own :of (Scope t s r b) :when ((>= (vec-lenth s) 2)) :ruleset match)", 41,
         "Did you mean vec-length"),
        ("(ask own :of (Scope t s r b) :when s :ruleset match)", 36, "no facts"),
        ("(ask own :of (Scope t s r b) :gives derive :ruleset match)", 37, "Did you mean derived"),
        ("(ask own :of (Scope t s r b) :gives :ruleset match)", 30, ":gives has no value"),
        ("(ask own :of (Scope t s r b) :ruleset match :name x/y)", 1, "not a name for a rule"),
        ("(ask factor :of (Scope t s r b) :gives derived :ruleset match)", 1, "exists already"),
        ('(ask factor :of (Scope t s r b) :ruleset match :name "own")', 1, "something else"),
        ('(ask factor :of (Relu x) :gives derived :ruleset match :name "own")', 17,
         "of something else"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_its_place(
    tmp_path: Path, text: str, column: int, said: str
) -> None:
    with pytest.raises(RuleError) as refused:
        loaded(tmp_path, "\n" + text)
    error = refused.value
    assert said in str(error)
    assert (Path(error.file).name, error.line, error.column) == ("own.egg", 3, column)
