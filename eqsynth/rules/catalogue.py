"""The catalogue: an entry for each rule, with its mathematics and its sides, for people.

Not here: printing (the command line).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eqsynth.errors import RuleError
from eqsynth.rules.location import rules_dir
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.tree import Tree, render, replace_vars


@dataclass(frozen=True)
class Entry:
    """The catalogue's entry for a rule.

    Attributes:
        kind: ``rewrite``, ``law`` or ``analysis``.
        statement: the rule's line of mathematics, as its author wrote it.
        left, right: the sides of a rewrite; for a law, the term of the request and the law.
        tested: the test files that name the rule.
    """

    name: str
    kind: str
    ruleset: str
    numerics: str
    status: str
    source: str
    place: str
    statement: str
    left: str
    right: str
    conditions: tuple[str, ...]
    tested: tuple[str, ...]


def entry(rules: RuleSet, name: str) -> Entry:
    """Return the entry of a rule.

    Raises:
        RuleError: no rule has this name; the hint contains the nearest name.
    """
    return _entry(find(rules, name))


def find(rules: RuleSet, name: str) -> Rule:
    """Return the rule of a name.

    Raises:
        RuleError: no rule has this name; the hint contains the nearest names.
    """
    for rule in rules.rules:
        if rule.name == name:
            return rule
    close = difflib.get_close_matches(name, rules.names, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(close)}?" if close else "eqsynth rules list prints all."
    raise RuleError(f"there is no rule {name}", got=name, hint=hint)


def _entry(rule: Rule) -> Entry:
    kind, left, right = rule.kind.partition("-")[0], "", ""
    written = dict(rule.written)

    def text(tree: Tree) -> str:
        return render(replace_vars(tree, lambda var: written.get(var.name, var)))

    if rule.equality is not None:
        left, right = map(text, rule.equality)
    elif rule.scopes is not None:
        sides = rule.scopes.text.partition("=>")
        left, right = " ".join(sides[0].split()), " ".join(sides[2].split())
    elif rule.kind == "law-request":
        left = "\n".join(map(text, rule.body))
        right = f"what the law {rule.law} computes (eqsynth/egraph/tactics/table.py)"
    elif rule.kind == "law-apply":
        left, right = "\n".join(map(text, rule.body)), f"the answer of the law {rule.law}"
    conditions = rule.conditions if rule.kind == "rewrite" else ()
    return Entry(
        rule.name, kind, rule.ruleset, str(rule.numerics), rule.status, rule.source,
        f"{rule.file}:{rule.line}", statement(rule), left, right, conditions, tested_in(rule.name),
    )  # fmt: skip


def statement(rule: Rule) -> str:
    """Return the comment above a rule as one line, without the source in brackets; the text of a
    rule of scopes that has no comment."""
    comment = rule.comment or (rule.scopes.text if rule.scopes else "")
    lines = (line.strip().lstrip(";").strip() for line in comment.splitlines())
    text = " ".join(line for line in lines if line)
    return text.removesuffix(f"[{rule.source}]").strip()


def tested_in(name: str) -> tuple[str, ...]:
    """Return the test files of the checkout that name a rule; none in an installed eqsynth.

    The checker (``eqsynth rules check``) tests every rule, named here or not.
    """
    tests = rules_dir().parent / "tests"
    if not (tests / "rules").is_dir():
        return ()
    return tuple(path for path, text in _test_files(tests).items() if f'"{name}"' in text)


@cache
def _test_files(tests: Path) -> Mapping[str, str]:
    return {
        str(path.relative_to(tests.parent)): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(tests.rglob("test_*.py"))
    }
