"""Mutants of rules: each form changed in one place, under a new name, as one rule file.

Numbers are changed, arguments swapped, conditions dropped, and heads exchanged for their nearest
relatives (``IDiv`` for ``IMod``, ``<`` for ``<=``). What steers alone (weights) is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, rules_dir
from eqsynth.rules.forms import Form, split_forms

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[()]|[^\s()"]+')

RELATIVES = {
    "IDiv": "IMod", "IMod": "IDiv", "IMin": "IMax", "IMax": "IMin", "IAdd": "IMul",
    "+": "-", "-": "+", "*": "+", "/": "%", "%": "/", "min": "max", "max": "min",
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "low": "high", "high": "low",
    "Relu": "Abs", "Neg": "Relu", "Add": "Sub", "Sub": "Add", "Mul": "Add", "Exp": "Expm1",
    "Div": "Mul", "ReduceMax": "ReduceSum", "ReduceSum": "ReduceMax", "Split": "Merge",
    "Maximum": "Minimum", "Minimum": "Maximum", "MaxPool2d": "AvgPool2d",
    '"relu"': '"abs"', '"abs"': '"relu"', '"max"': '"min"', '"min"': '"max"', '"eq"': '"ne"',
    '"sqrt"': '"abs"', '"rsqrt"': '"sqrt"', '"reciprocal"': '"abs"', '"float32"': '"float64"',
    "sum": "max", "max_": "min",
}  # fmt: skip

Sexp = Any


def parse(text: str) -> Sexp:
    tokens = _TOKEN.findall(text)

    def read(at: int) -> tuple[Sexp, int]:
        if tokens[at] != "(":
            return tokens[at], at + 1
        parts, at = [], at + 1
        while tokens[at] != ")":
            part, at = read(at)
            parts.append(part)
        return parts, at + 1

    return read(0)[0]


def text_of(sexp: Sexp) -> str:
    return sexp if isinstance(sexp, str) else "(" + " ".join(map(text_of, sexp)) + ")"


def mutants(sexp: Sexp, *, top: bool = True) -> Iterator[Sexp]:
    """The form with one change each."""
    if isinstance(sexp, str):
        if re.fullmatch(r"-?\d+", sexp):
            yield str(int(sexp) + 1)
        elif re.fullmatch(r"-?\d+\.\d+", sexp):
            yield str(float(sexp) + 1)
        elif sexp in RELATIVES and sexp.startswith('"'):
            yield RELATIVES[sexp]
        return
    if _says(sexp, "weight"):
        if not top and sexp[0] == "=":
            return
    if not top and sexp and isinstance(sexp[0], str) and sexp[0] in RELATIVES:
        yield [RELATIVES[sexp[0]], *sexp[1:]]
    if not top:
        for n in range(1, len(sexp) - 1):
            if sexp[n] != sexp[n + 1] and sexp[0] != "=":
                yield [*sexp[:n], sexp[n + 1], sexp[n], *sexp[n + 2 :]]
    for n, part in enumerate(sexp):
        if n == 0 and isinstance(part, str):
            continue
        if top and isinstance(part, str) and part.startswith(":"):
            continue
        if top and sexp[n - 1] in (":ruleset", ":name"):
            continue
        if top and (sexp[n - 1] == ":when" or (sexp[0] == "rule" and n == 1)):
            for k, fact in enumerate(part):
                rest = [*part[:k], *part[k + 1 :]]
                if not _says(fact, "weight"):
                    yield [*sexp[:n], rest, *sexp[n + 1 :]]
                for changed in mutants(fact, top=False):
                    yield [*sexp[:n], [*part[:k], changed, *part[k + 1 :]], *sexp[n + 1 :]]
            continue
        for changed in mutants(part, top=False):
            yield [*sexp[:n], changed, *sexp[n + 1 :]]


def _says(sexp: Sexp, word: str) -> bool:
    return sexp == word or (isinstance(sexp, list) and any(_says(part, word) for part in sexp))


def rule_forms(file: str) -> Iterator[tuple[str, Form]]:
    """Name and form of each rule of one of our files."""
    for form in split_forms((rules_dir() / file).read_text(encoding="utf-8"), file):
        if form.head in ("rewrite", "birewrite", "rule"):
            yield re.search(r':name\s+"([^"]*)"', form.text)[1], form  # type: ignore[index]


def mutated(
    file: str, numerics: str, folder: Path, names: tuple[str, ...] = ()
) -> tuple[RuleSet, dict[str, str]]:
    """Rules that load, made of a file's (or of those of its rules that are named) by one change
    each, and their texts by name."""
    texts: dict[str, str] = {}
    for name, form in rule_forms(file):
        if names and name not in names:
            continue
        seen = {text_of(parse(form.text))}
        for number, changed in enumerate(mutants(parse(form.text))):
            text = text_of(changed)
            if text not in seen:
                seen.add(text)
                own = f"{name}-mutant-{number}"
                texts[own] = re.sub(r':name "[^"]*"', f':name "{own}"', text)
    head = f";; mutants.egg -- wrong.\n;;\n;; Numerics   {numerics}\n;; Status     validated\n\n"
    while True:
        path = folder / "mutants.egg"
        path.write_text(head + "\n".join(texts.values()), encoding="utf-8")
        refused = _refused(path, texts)
        if refused is None:
            return load_rules([*DEFAULT_FILES, path]), texts
        del texts[refused]


def _refused(path: Path, texts: dict[str, str]) -> str | None:
    """A mutant that doesn't load, so that there is nothing to verify."""
    from eqsynth.errors import RuleError

    try:
        load_rules([*DEFAULT_FILES, path])
    except RuleError as error:
        line = int(error.where.rsplit(":", 2)[1])
        return list(texts)[line - 6]
    return None
