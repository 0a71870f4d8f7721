"""Checks rule files that load for style: the part of `rules/README.md` that a program can check.

A file needs a header; a rule needs a line of mathematics above it, an explicit status and numerics
class, a name in the common style, and lines of readable length. Not here: mistakes that prevent
loading (``loader.py``), whether a rule is true (the checker).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from eqsynth.errors import RuleError
from eqsynth.rules.ask import HEAD as ASK
from eqsynth.rules.define import FUNCTIONS_HEAD
from eqsynth.rules.define import HEAD as DEFINE
from eqsynth.rules.definitions import how_to_define
from eqsynth.rules.forms import Form, header_fields, own_fields, read_text, split_forms
from eqsynth.rules.load import load_rules
from eqsynth.rules.location import DEFAULT_FILES, rule_path
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.scope_rules.expansion import HEAD as SCOPES

MAX_LINES = 300
MAX_COLUMNS = 100
_FIRST_LINE = re.compile(r";; (\S+\.egg) -- \S")
_GENERATED = re.compile(r"^;; Generated {2,}\S", re.MULTILINE)
_FIELD = re.compile(r";; (Rulesets|Needs) {2,}(.*)")
_MORE = re.compile(r";; {4,}(\S.*)")


def lint(files: Iterable[str | Path] = DEFAULT_FILES) -> list[RuleError]:
    """Return all violations of the rules of style, in the order of the files.

    The files are loaded together in the given order, as `load_rules` does, so names must be unique
    in all of them. No error is raised: a file that doesn't load is the last finding.

    >>> lint()
    []
    """
    paths = [rule_path(name) for name in files]
    try:
        rules = load_rules(paths)
    except RuleError as error:
        return [error]
    found: list[RuleError] = []
    for number, path in enumerate(paths):
        text = read_text(path)
        before = {earlier.name for earlier in paths[:number]}
        found += _header(path, text, before, {r.ruleset for r in rules.rules if _in(r, path)})
        found += _layout(path, text)
        found += _operators(path, rules)
        for form in split_forms(text, str(path)):
            found += _rules(form, header_fields(text), rules)
    return found


def _in(rule: Rule, path: Path) -> bool:
    return rule.file == str(path)


def _header(path: Path, text: str, before: set[str], used: set[str]) -> Iterator[RuleError]:
    """Check the first line, and the rulesets and files that the header names."""
    first = _FIRST_LINE.match(text)
    if first is None or first.group(1) != path.name:
        yield RuleError(
            "file doesn't say what it is",
            file=str(path),
            line=1,
            column=1,
            got=text.split("\n", 1)[0][:80],
            expected=f";; {path.name} -- what its rules are about",
            hint="Begin the file with that line.",
        )
    fields = _fields(text)
    named = {line.split()[0].rstrip(";,") for line in fields.get("Rulesets", []) if line.split()}
    for ruleset in sorted(used - named):
        yield RuleError(
            f"header doesn't name the ruleset {ruleset}",
            file=str(path),
            line=1,
            column=1,
            got=", ".join(sorted(named)),
            expected=ruleset,
            hint="Say under Rulesets what its rules have in common, and whether it saturates.",
        )
    for ruleset in sorted(named - used - {"none"}):
        yield RuleError(
            f"header names the ruleset {ruleset}, which has no rule here",
            file=str(path),
            line=1,
            column=1,
            got=ruleset,
            expected=", ".join(sorted(used)) or "none",
            hint="Correct the name, or leave it out.",
        )
    needs = re.findall(r"[\w.-]+\.egg", " ".join(fields.get("Needs", [])))
    for name in needs:
        if name not in before:
            yield RuleError(
                f"needs {name}, which isn't loaded before it",
                file=str(path),
                line=1,
                column=1,
                got=", ".join(sorted(before)),
                expected=name,
                hint="Load it first, or correct the header.",
            )


def _fields(text: str) -> dict[str, list[str]]:
    """Return the lines of the header's `Rulesets` and `Needs`, including continuation lines."""
    fields: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.startswith(";"):
            break
        field, more = _FIELD.match(line), _MORE.match(line)
        if field:
            lines = fields.setdefault(field.group(1), [])
            lines.append(field.group(2))
        elif more:
            lines.append(more.group(1))
        else:
            lines = []
    return fields


def _layout(path: Path, text: str) -> Iterator[RuleError]:
    lines = text.split("\n")
    if len(lines) - 1 > MAX_LINES and not _GENERATED.search(text):
        yield RuleError(
            "file is too long to be read",
            file=str(path),
            line=MAX_LINES + 1,
            column=1,
            got=f"{len(lines) - 1} lines",
            expected=f"at most {MAX_LINES}",
            hint="Split it by family of rules.",
        )
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_COLUMNS:
            yield RuleError(
                "line is too long to be read",
                file=str(path),
                line=number,
                column=MAX_COLUMNS + 1,
                got=f"{len(line)} characters",
                expected=f"at most {MAX_COLUMNS}",
                hint="Break it.",
            )


def _operators(path: Path, rules: RuleSet) -> Iterator[RuleError]:
    """Find operators that the file declares and doesn't define."""
    for operator in rules.definitions.values():
        if operator.file == str(path) and not operator.cases:
            yield RuleError(
                f"{operator.name} has no definition",
                file=operator.file,
                line=operator.line,
                column=1,
                got=f"({operator.name} {' '.join(operator.sorts)})",
                expected="a rule of the status definition",
                hint=how_to_define(operator),
            )


def _rules(form: Form, header: dict[str, str], rules: RuleSet) -> Iterator[RuleError]:
    """Find what the rules of one form lack: mathematics, status, numerics class, or the error bound
    of class approx."""
    mine = [r for r in rules.rules if (r.file, r.line) == (form.file, form.line)]
    if not mine:
        return
    rule, given = mine[0], {**header, **own_fields(form)}
    mathematics = re.sub(r"\[[^\[\]]*\]|\((numerics|status):[^()]*\)", "", form.comment)
    if rule.scopes is not None:
        # The text of a rule of scopes is mathematics, so no comment is needed.
        mathematics = rule.scopes.text
    if form.head in (DEFINE, FUNCTIONS_HEAD):
        # A comprehension is mathematics too.
        mathematics, given["status"] = rule.comment, rule.status
    if form.head in (ASK, SCOPES, DEFINE):
        given |= dict(re.findall(r":(numerics)\s+(\S+)", form.text))
    if not re.search(r"\w", mathematics):
        yield form.error(
            f"rule {rule.name} has no mathematics above it",
            expected=";; left = right, condition        [source]",
            hint="Say in a comment what the rule states.",
        )
    for field in ("status", "numerics"):
        if field not in given:
            yield form.error(
                f"rule {rule.name} has no {field}",
                expected=f";; {field.capitalize()} in the header, or ({field}: ...) above the rule",
                hint="See rules/README.md for what the words mean.",
            )
    if rule.numerics.kind == "approx" and not rule.numerics.bound:
        yield form.error(
            f"rule {rule.name} is approximate without a bound",
            expected="approx (1e-3)",
            hint="Write the bound in parentheses.",
        )
