"""Wrong rules, one a file in `unsound/`: the checker refuses each for the reason it states."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from eqsynth.rules import rules_dir
from eqsynth.testing.rule_files import load_for_check
from eqsynth.testing.soundness import check_rule

FILES = sorted((Path(__file__).parent / "unsound").glob("*.egg"))
_REASON = re.compile(r"^;; Rulesets   wrong   refused by the checker: (\w+)$", re.MULTILINE)


def reason(path: Path) -> str:
    found = _REASON.search(path.read_text(encoding="utf-8"))
    assert found, f"{path.name} doesn't say why it is refused"
    return found[1]


@pytest.mark.rotating(parts=32)
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_wrong_rule_is_refused_for_its_reason(path: Path) -> None:
    """Of the files of `unsound/`, a thirty-second each time."""
    rules, names = load_for_check([path])
    # A rule of scopes is two, of which the second unites.
    own = [rules[name] for name in names]
    *definitions, rule = (r for r in own if r.kind != "law-apply" or r.scopes is None)
    assert rule.name == path.stem, "one rule a file, of its name, behind the operators"
    assert all(r.status == "definition" or r.kind == "analysis" for r in definitions)
    assert "Counterexample: " in path.read_text(encoding="utf-8")
    # The search for a small counterexample has its own tests (tests/testing).
    error = check_rule(rules, rule, search_s=0.0).error
    assert error is not None, f"{rule.name} was accepted"
    assert (error.kind, error.rule, error.file) == (reason(path), rule.name, str(path))
    assert error.line == rule.line and error.hint
    assert (error.counterexample is None) == (error.kind == "vacuous")


def test_there_are_wrong_rules_of_every_kind() -> None:
    kinds = Counter(map(reason, FILES))
    assert len(FILES) >= 170
    assert set(kinds) == {"value", "shape", "dtype", "numerics", "overflow", "vacuous"}
    assert min(kinds.values()) >= 2


def test_none_of_them_is_a_rule_of_ours() -> None:
    ours = {path.name for path in rules_dir().rglob("*.egg")}
    assert not ours & {path.name for path in FILES}
