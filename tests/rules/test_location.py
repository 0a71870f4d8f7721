"""Where rule files are looked for, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqsynth.errors import RuleError
from eqsynth.numerics import rule_files, rules_of
from eqsynth.rules.location import rule_path, rules_dir

MINE = """\
;; Status validated
;; Numerics bitwise
(ruleset mine)
(rewrite (Relu (Relu x)) (Relu x) :ruleset mine :name "relu-of-mine")
"""


def test_a_file_is_looked_for_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for missing in ("none.egg", "sub/none.egg", str(tmp_path / "none.egg")):
        with pytest.raises(RuleError) as caught:
            rule_path(missing)
        assert str(tmp_path / Path(missing).name) in caught.value.got or "sub" in missing
        assert str(tmp_path) in caught.value.got
        assert caught.value.file == missing and caught.value.expected and caught.value.hint
    (tmp_path / "mine.egg").write_text(MINE)
    assert rule_path("mine.egg").absolute() == tmp_path / "mine.egg"
    for name in ("mine.egg", "./mine.egg", Path("mine.egg"), tmp_path / "mine.egg"):
        rules = rules_of(name, "real", where="a test")
        # By this the report and the check know whose rule it is.
        assert [rules["relu-of-mine"].file] == [str(path) for path in rule_files(name)]


def test_a_file_with_the_name_of_one_of_ours_takes_no_place_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "simplify.egg").write_text(MINE)
    assert rule_path("simplify.egg") == rules_dir() / "simplify.egg"
    rules = rules_of((), "real", where="a test")
    assert "relu-of-relu" in rules.names and "relu-of-mine" not in rules.names
    assert rule_files("simplify.egg") == (tmp_path / "simplify.egg",)
    both = rules_of("simplify.egg", "real", where="a test")
    assert "relu-of-relu" in both.names and "relu-of-mine" in both.names
    assert both["relu-of-mine"].file == str(tmp_path / "simplify.egg")
