"""An error of saturation names the rule that is to blame, by the user's file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

import eqsynth
from eqsynth.egraph.blame import blaming, is_own
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.errors import SaturationError
from eqsynth.frontend.expression import program_of
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules

HEAD = ";; Status validated\n;; Numerics bitwise\n(ruleset mine)\n"
SOUND = '(rewrite (Relu (Relu x)) (Relu x) :ruleset mine :name "sound")\n'
UNSOUND = {
    # The inferred type of a member differs from the type of its e-class.
    "turn": '(rewrite (Relu x) (Permute x (vec-of 1 0)) :ruleset mine :name "turn")\n',
    # The engine itself finds two shapes for one e-class.
    "swap": '(rewrite (Matmul x y) (Matmul y x) :ruleset mine :name "swap")\n',
}


def rules_with(path: Path, name: str) -> RuleSet:
    path.write_text(HEAD + SOUND + UNSOUND[name])
    return load_rules([*DEFAULT_FILES, path])


@pytest.mark.rotating
@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_rule_is_named_with_file_and_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    rules = rules_with(path, name)
    x, w = eqsynth.input("x", (3, 4)), eqsynth.weight("w", (4, 5))
    roots = program_of(eqsynth.ops.relu(x @ w))[0].outputs
    with pytest.raises(SaturationError) as caught:
        saturate_terms(roots, rules, DEFAULT_PHASES, Limits(20_000, 60.0), False)
    error = caught.value
    assert error.rules == (name,)
    assert f"{path}:5" in error.where and f"{path}:5" in error.hint
    assert "%" not in str(error) and "report" not in str(error)


def test_without_rules_of_the_user_it_is_our_fault() -> None:
    rules = load_rules()
    assert all(map(is_own, rules.rules))
    with pytest.raises(SaturationError) as caught, blaming(rules, {"relu-of-relu": 3}):
        raise SaturationError("a class got two values of shape", rules=("relu-of-relu",))
    assert caught.value.rules == ("relu-of-relu",)
    assert "please report it" in caught.value.hint


def test_rules_that_have_not_fired_are_not_blamed(tmp_path: Path) -> None:
    rules = rules_with(tmp_path / "mine.egg", "turn")
    with pytest.raises(SaturationError) as caught, blaming(rules, {"sound": 1}):
        raise SaturationError("a class has no type", rules=("turn",))
    assert caught.value.rules == ("sound",)
