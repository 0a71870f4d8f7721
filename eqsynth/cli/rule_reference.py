"""``eqsynth rules reference``: the page ``docs/rules.md``, with every rule of eqsynth's own.

The page is made from the rule files: from the comment before each rule, which states it, and from
the head of each file, which holds for all of its rules.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Final

from eqsynth.ir.operators import OPERATORS
from eqsynth.rules import RuleSet
from eqsynth.rules.catalogue import Entry, entry
from eqsynth.rules.define import sorts_of

_HEAD: Final = """\
# Rules

Made from `rules/*.egg` by `eqsynth rules reference > docs/rules.md`; a test holds the two together.

What rewrites or computes, file by file, in the order in which the files are loaded. *Numerics* is
what a rule does to rounding: `bitwise` nothing, `real` another order of operations, `cancels` may
lose digits (only where asked for), `proof` holds over the reals and is never computed. *Status*:
a `definition` says what an operator means; `validated` rules are tested by `eqsynth rules check`.
`eqsynth rules show NAME` has both sides, conditions and places. How rules are written:
`rules/README.md`; how to write one of your own: `docs/write-a-rule.md`.
"""

def reference(rules: RuleSet) -> str:
    """The page as Markdown."""
    # A form that asks a law makes two rules, the request and the answer. The page lists the
    # request, since both state the same.
    asked = {(rule.file, rule.line) for rule in rules.rules if rule.kind == "law-request"}
    found = [
        entry(rules, rule.name) for rule in rules.rules
        if rule.kind != "analysis"
        and not (rule.kind == "law-apply" and (rule.file, rule.line) in asked)
    ]  # fmt: skip
    parts = [_HEAD, *_operators()]
    for file, entries in groupby(found, lambda e: Path(e.place.rpartition(":")[0]).name):
        columns = "| rule | says | numerics | status | source |"
        parts += [f"## {file}", "", columns, "|---" * 5 + "|", *map(_row, entries), ""]
    return "\n".join([*parts, f"{len(found)} rules."]) + "\n"


def _operators() -> list[str]:
    """The page's section on the IR's operators and their attributes, as rules write them."""
    rows = [
        f"| `{row.name}` | {' '.join(sorts_of(row)) or 'none'} | {names} | {row.kind} |"
        for row in OPERATORS.values()
        for names in [", ".join(name for name, _ in row.attrs)]
    ]
    about = "As rules write them: tensors, then attributes. What they are, is said below."
    columns = ["| operator | arguments | attributes | kind |", "|---" * 4 + "|"]
    return ["## Operators", "", about, "", *columns, *rows, ""]


def _row(e: Entry) -> str:
    says = e.statement or f"`{e.left}` = `{e.right}`"
    cells = (f"`{e.name}`", says, e.numerics, e.status, e.source)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    r"""Escape ``text`` for a cell of a Markdown table: ``a|b`` -> ``a\|b``.

    In a cell that begins with code, only ``|`` is escaped.
    """
    plain = " ".join(text.split())
    if plain.startswith("`"):
        return plain.replace("|", "\\|")
    for sign in "\\*_<[":
        plain = plain.replace(sign, f"\\{sign}")
    return plain.replace("|", "\\|")
