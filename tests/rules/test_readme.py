"""The examples of rules/README.md: files load, wrong rules are refused, Python blocks run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from eqsynth.errors import RuleError
from eqsynth.rules import DEFAULT_FILES, load_rules, load_text, rules_dir

_BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r";; (\S+\.egg) -- ")

BLOCKS = [
    (language, kind, text)
    for language, kind, text in _BLOCK.findall(
        (rules_dir() / "README.md").read_text(encoding="utf-8")
    )
]


def of(kind: str) -> list[str]:
    return [text for language, own, text in BLOCKS if language == "egg" and own == kind]


def file_name(text: str) -> str:
    match = _NAME.match(text)
    assert match, f"a file begins with its name: {text.splitlines()[0]}"
    return match[1]


def test_every_block_is_of_a_known_kind() -> None:
    kinds = {kind.split()[0] for language, kind, _ in BLOCKS if language == "egg"}
    assert kinds == {"file", "from", "wrong", "unsound"}
    assert len(of("file")) >= 3 and len(of("wrong")) >= 3


@pytest.mark.parametrize("text", of("file") + of("unsound"), ids=file_name)
def test_a_complete_file_loads(text: str, tmp_path: Path) -> None:
    path = tmp_path / file_name(text)
    path.write_text(text, encoding="utf-8")
    rules = load_rules([*DEFAULT_FILES, path])
    own = [rule for rule in rules.rules if rule.file == str(path)]
    assert own
    for rule in own:
        assert rule.comment, f"{rule.name} has no line of mathematics"
        assert rule.status != "unproved"
        assert re.search(rf"^;; (Rulesets|        )   {rule.ruleset} ", text, re.MULTILINE)


@pytest.mark.parametrize("text", of("wrong"))
def test_a_wrong_rule_is_refused(text: str) -> None:
    with pytest.raises(RuleError) as refused:
        load_text(text, "wrong.egg", after=DEFAULT_FILES)
    assert refused.value.file == "wrong.egg" and refused.value.line > 0


def test_excerpts_are_what_the_files_say() -> None:
    excerpts = [(kind.split()[1], text) for _, kind, text in BLOCKS if kind.startswith("from ")]
    assert excerpts
    for name, text in excerpts:
        assert text in (rules_dir() / name).read_text(encoding="utf-8")


@pytest.mark.rotating
def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in of("file") + of("unsound"):
        (tmp_path / file_name(text)).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = [text for language, _, text in BLOCKS if language == "python"]
    assert blocks
    for number, text in enumerate(blocks):
        exec(compile(text, f"rules/README.md, Python block {number + 1}", "exec"), names)
