"""The linter: our own files have nothing to say, and each kind of fault is found at its place."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from eqsynth.rules import DEFAULT_FILES, lint, rules_dir
from eqsynth.rules.forms import read_text, split_forms

GOOD = """\
;; mine.egg -- for a test.
;;
;; Rulesets   simplify   shrinks its term; saturates
;; Needs      schema.egg
;; Numerics   bitwise
;; Status     validated

;; relu(relu(x)) = relu(x)        [folklore]
(rewrite (Relu (Relu x)) (Relu x)
         :ruleset simplify :name "mine")
"""


def found(tmp_path: Path, text: str, name: str = "mine.egg") -> list[tuple[str, int]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    findings = lint([*DEFAULT_FILES, path])
    assert all(error.file == str(path) and error.hint and error.expected for error in findings)
    return [(error.what, error.line) for error in findings]


def test_our_own_files_are_clean() -> None:
    assert [str(error) for error in lint()] == []


def test_a_clean_file(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == []


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        (";; mine.egg -- for a test.", ";; For a test.", "what it is", 1),
        (";; mine.egg", ";; other.egg", "what it is", 1),
        ("simplify   shrinks", "simplfy   shrinks", "name the ruleset simplify", 1),
        ("simplify   shrinks", "simplfy   shrinks", "ruleset simplfy, which", 1),
        ("schema.egg", "schema.egg, later.egg", "needs later.egg", 1),
        (";; Numerics   bitwise\n", "", "no numerics", 8),
        (";; Status     validated\n", "", "no status", 8),
        (";; relu(relu(x)) = relu(x)        [folklore]\n", "", "no mathematics", 8),
        ("relu(relu(x)) = relu(x)        ", "", "no mathematics", 9),
        ("[folklore]", "(numerics: approx)", "without a bound", 9),
        ("[folklore]", "x" * 100, "line is too long", 8),
        ("\n(rewrite", "\n" * 300 + ";; x = x\n(rewrite", "file is too long", 301),
        ("Relu (Relu x)", "Relo (Relu x)", "unknown operator Relo", 9),
    ],
)
def test_a_fault_is_found(tmp_path: Path, old: str, new: str, what: str, line: int) -> None:
    assert old in GOOD
    path = tmp_path / "mine.egg"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    findings = lint([*DEFAULT_FILES, path])
    assert [(what in error.what, error.line) for error in findings].count((True, line)) == 1
    assert all(error.file == str(path) and error.hint for error in findings)


def test_a_rule_may_say_what_its_header_does_not(tmp_path: Path) -> None:
    bare = GOOD.replace(";; Numerics   bitwise\n;; Status     validated\n", "")
    own = "(numerics: bitwise) (status: proved) [folklore]"
    assert found(tmp_path, bare.replace("[folklore]", own)) == []


def test_a_class_that_cannot_be_read(tmp_path: Path) -> None:
    ((what, line),) = found(tmp_path, GOOD.replace("[folklore]", "(numerics: )"))
    assert "cannot be read" in what and line == 9


def test_few_lines_of_the_rule_files_are_template() -> None:
    """Lines that state no mathematics, and would be alike for other rules: rulesets, relations,
    laws by name, and rules that file a law's request or take its answer by hand."""
    forms = [
        form for name in DEFAULT_FILES for form in split_forms(read_text(rules_dir() / name), name)
    ]
    lines = Counter[bool]()
    for form in forms:
        template = form.head in ("ruleset", "relation", "law") or bool(
            form.head == "rule" and re.search(r"\([\w-]+-(request|answer) ", form.text)
        )
        lines[template] += sum(bool(line.split(";;")[0].strip()) for line in form.text.splitlines())
    assert 20 < lines[True] < 0.1 * lines.total()


def test_a_file_that_a_program_wrote_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    text = GOOD.replace("\n(rewrite", "\n" * 300 + ";; x = x\n(rewrite")
    generated = text.replace(";; Numerics", ";; Generated  by a program\n;; Numerics")
    path.write_text(generated, encoding="utf-8")
    assert lint([*DEFAULT_FILES, path]) == []
    assert text != generated
