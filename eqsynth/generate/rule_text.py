"""The text of a rule file that is written by a program: names, header, lines of readable length.

    found.egg  ->  the ruleset found-explore, the rules found-1f3a9c0b7e, ...

A rule's name is a digest of what the rule says, so that a rule that is found twice, over matrices
and over images, is written once. Not here: what the rules say (``writing.py``).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from eqsynth.rules import RuleSet

WIDTH: Final = 100

_TOKEN: Final = re.compile(r'"[^"]*"|[()]|[^\s()"]+')

Form = str | list["Form"]


@dataclass(frozen=True)
class Family:
    """The names in a file."""

    stem: str

    @staticmethod
    def of(path: str | Path, rules: RuleSet) -> Family:
        """Return the names for a file that is loaded after these rules."""
        stem = re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-") or "generated"
        while f"{stem}-explore" in rules.rulesets:
            stem += "-generated"
        return Family(stem)

    @property
    def ruleset(self) -> str:
        return f"{self.stem}-explore"

    def rule(self, form: str) -> str:
        """Return a rule of this file.

            (rewrite a b)  ->  (rewrite a
                                        b
                                 :ruleset found-explore :name "found-1f3a9c0b7e")
        """
        digest = blake2b(form.encode(), digest_size=5).hexdigest()
        head, *parts = _parsed(form)
        assert isinstance(head, str)
        indent = " " * (len(head) + 2)
        lines = [f"({head} {_laid_out(parts[0], len(indent))}"]
        for before, part in zip(parts, parts[1:], strict=False):
            if part == ":when":
                continue
            start = f"{indent}{':when ' * (before == ':when')}"
            lines.append(start + _laid_out(part, len(start)))
        lines.append(f'{indent}:ruleset {self.ruleset} :name "{self.stem}-{digest}")')
        return "\n".join(lines)


def file_of(
    name: str, family: Family, rules: Iterable[tuple[str, str]], files: Sequence[str]
) -> str:
    """Return the text of a file.

    Args:
        rules: the mathematics of each rule, and its text.
        files: the files that it needs besides eqsynth's own.
    """
    needs = ", ".join(["schema.egg", "operators.egg", *(Path(file).name for file in files)])
    texts = {text: _comment(mathematics) for mathematics, text in rules}
    ruleset = f";; Rulesets   {family.ruleset}   one answer a match; runs under a budget\n"
    header = f"""\
;; {name} -- equalities that an enumeration found and the other rules don't derive.
;;
{ruleset if texts else ""}\
;; Needs      {needs}
;; Numerics   real
;; Status     proved
;; Generated  by `eqsynth rules generate`: each rule is proved for all sizes
"""
    if not texts:
        return f"{header};;\n;; No rule: nothing was proved that the other rules don't derive.\n"
    body = "\n\n".join(f"{comment}\n{text}" for text, comment in texts.items())
    return f"{header}\n(ruleset {family.ruleset})\n\n{body}\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=";; ", subsequent_indent=";;     ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


# ---- lines --------------------------------------------------------------------------------


def _parsed(text: str) -> list[Form]:
    stack: list[list[Form]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    ((form,),) = stack
    assert isinstance(form, list)
    return form


def _flat(form: Form) -> str:
    return form if isinstance(form, str) else f"({' '.join(map(_flat, form))})"


def _laid_out(form: Form, column: int, behind: int = 1) -> str:
    """Return the text of a form that begins in a column, over several lines if it needs them.

    Args:
        behind: the number of parentheses that follow it.
    """
    flat = _flat(form)
    if isinstance(form, str) or column + len(flat) + behind <= WIDTH:
        return flat
    head, rest = form[0], form[1:]
    start = f"({head} " if isinstance(head, str) else "("
    parts = rest if isinstance(head, str) else form
    inner = column + len(start)
    laid = [
        _laid_out(part, inner, behind + 1 if part is parts[-1] else 0) for part in parts
    ]
    return start + f"\n{' ' * inner}".join(laid) + ")"
