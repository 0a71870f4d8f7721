"""Make mutants of rules: copies of the forms in eqsynth's rule files, each changed in one place.

A mutant changes a number, swaps two arguments, drops a condition, or replaces a head by a related
one (``IDiv`` by ``IMod``, ``<`` by ``<=``). Facts that only steer the search (weights) aren't
changed. In the text of a comprehension or of a rule of scopes, a word is changed:

    sum(k) a[^n, i, k] * b[^n, k, j]  ->  max(k) a[^n, i, k] * b[^n, k, j]
                                          sum(k) a[^n, k, k] * b[^n, k, j]
                                          sum(k) a[^n, i, k]

Most mutants are wrong, and the checker and the verifier should refuse them. Not here: the judging
of mutants of ``define``, ``ask`` and ``rule-of-scopes`` (``benchmarks/mutants.py``) and of rewrites
(``tests/verify``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, rules_dir
from eqsynth.rules.define import FUNCTIONS_HEAD, functions, kebab
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
    """An S-expression as nested lists of its tokens: ``(Add x 1)`` -> ``["Add", "x", "1"]``."""
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
    """The text of an S-expression; the inverse of :func:`parse`."""
    return sexp if isinstance(sexp, str) else "(" + " ".join(map(text_of, sexp)) + ")"


def mutants(sexp: Sexp, *, top: bool = True) -> Iterator[Sexp]:
    """The mutants of a form, each with one change.

    Args:
        top: the form is a whole rule: its head, name and ruleset stay, and its conditions may be
            dropped.
    """
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
    """The name and the form of each rule in one of eqsynth's rule files."""
    for form in split_forms((rules_dir() / file).read_text(encoding="utf-8"), file):
        if form.head in ("rewrite", "birewrite", "rule"):
            yield re.search(r':name\s+"([^"]*)"', form.text)[1], form  # type: ignore[index]


def mutated(
    file: str, numerics: str, folder: Path, names: tuple[str, ...] = (),
    needs: tuple[Path, ...] = (),
) -> tuple[RuleSet, dict[str, str]]:  # fmt: skip
    """Make the mutants of a file's rules, and keep those that load.

    Args:
        file: the name of one of eqsynth's rule files, or the path of another.
        needs: files to load before the mutants, which declare what these use.
        numerics: the ``Numerics`` that the file of mutants states.
        folder: where that file is written.
        names: the rules to change; all rules of the file if empty.

    Returns:
        The rules with the mutants among them, and the texts of the mutants by name.
    """
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
        refused = _refused(path, texts, needs)
        if refused is None:
            return load_rules([*DEFAULT_FILES, *needs, path]), texts
        del texts[refused]


def _refused(path: Path, texts: dict[str, str], needs: tuple[Path, ...]) -> str | None:
    """The name of the first mutant that doesn't load; None if all do."""
    from eqsynth.errors import RuleError

    try:
        load_rules([*DEFAULT_FILES, *needs, path])
    except RuleError as error:
        line = int(error.where.rsplit(":", 2)[1])
        return list(texts)[line - 6]
    return None


# ---- definitions, requests of laws, rules of scopes ---------------------------------------------

HEADS: Final = ("define", "ask", "rule-of-scopes")
"""The heads of the forms, other than rules, that state or request an equality."""

# A claim about rounding -> the next stronger claim, which a mutant makes instead.
_STRONGER: Final = {
    "real": "bitwise", "cancels": "real", "proof": "real", "proof-cancels": "proof",
}  # fmt: skip
_HEADER_NUMERICS: Final = re.compile(r"^;; Numerics +([\w-]+)", re.MULTILINE)
_VIEWS: Final = (
    "Permute", "Reshape", "Expand", "Slice", "Stride", "Pad", "Reverse", "Shift", "Unfold",
    "Split", "Merge", "Cast",
)  # fmt: skip
_REDUCERS: Final = {"sum": "max", "max": "min", "min": "max", "prod": "sum", "mean": "sum"}
_WORDS: Final = re.compile(r"\d+(?:\.\d+)?|[A-Za-z_]\w*|//|=>|<=|==|\S")
_KEYWORDS: Final = frozenset({
    *_REDUCERS, *FUNCTIONS, "inf", "else", "where", "if", "not", "in", "finite", "float",
    "constant", "reduce", "over", "broadcasts", "divides",
})  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A form of one of eqsynth's rule files, changed in one place.

    Attributes:
        file: the file of the form.
        rule: the name of the changed rule.
        claims: the change is to the ``numerics``: the mutant claims more about rounding.
        text: the changed form.
        content: the whole file with the changed form.
    """

    file: str
    head: str
    rule: str
    text: str
    content: str
    claims: bool = False


def form_mutants(file: str) -> Iterator[Mutant]:
    """The mutants of the definitions, requests of laws and rules of scopes in a file."""
    content = (rules_dir() / file).read_text(encoding="utf-8")
    stated = _HEADER_NUMERICS.search(content)
    numerics = stated[1] if stated else "real"
    for form in split_forms(content, file):
        own = [form]
        if form.head == FUNCTIONS_HEAD:
            own = list(functions(form))
            content = content.replace(form.text, "\n".join(made.text for made in own))
        for one in own:
            if one.head not in HEADS:
                continue
            sexp, seen = parse(_uncommented(one.text)), set[str]()
            name = _name(sexp)
            for changed in _changes(sexp, numerics):
                text = text_of(changed)
                if text != text_of(sexp) and text not in seen:
                    seen.add(text)
                    whole = content.replace(one.text, text, 1)
                    claims = _numerics(changed) != _numerics(sexp)
                    yield Mutant(file, one.head, name, text, whole, claims)


def _uncommented(text: str) -> str:
    return re.sub(r'("(?:\\.|[^"\\])*")|;[^\n]*', lambda match: match[1] or "", text)


def _name(sexp: Sexp) -> str:
    """The name of the rule that is made of a form."""
    if ":name" in sexp:
        return str(sexp[sexp.index(":name") + 1]).strip('"')
    return f"{kebab(sexp[1][0])}-definition" if sexp[0] == "define" else str(sexp[1])


def _numerics(sexp: Sexp) -> str:
    return str(sexp[sexp.index(":numerics") + 1]) if ":numerics" in sexp else ""


def _changes(sexp: Sexp, numerics: str) -> Iterator[Sexp]:
    """Copies of a form with one change each: in its numerics, its law, its text, or its terms."""
    if ":numerics" in sexp:
        at = sexp.index(":numerics") + 1
        if sexp[at] in _STRONGER:
            yield [*sexp[:at], _STRONGER[sexp[at]], *sexp[at + 1 :]]
    elif numerics in _STRONGER:
        yield [*sexp, ":numerics", _STRONGER[numerics]]
    if sexp[0] == "ask":
        yield from _laws(sexp)
    else:
        for at, part in enumerate(sexp):
            if at and isinstance(part, str) and part.startswith('"') and sexp[at - 1] != ":name":
                for text in text_mutants(part[1:-1]):
                    yield [*sexp[:at], f'"{text}"', *sexp[at + 1 :]]
    if sexp[0] == "define":
        for other in _other_words(sexp[2]):
            yield [*sexp[:2], other, *sexp[3:]]
    for changed in mutants(sexp):
        if not _renames(sexp, changed):
            yield changed


def _renames(sexp: Sexp, changed: Sexp) -> bool:
    """Whether a change can't make the form wrong: it only permutes argument names that nothing else
    in the form uses, or it changes which terms a request asks about."""
    if sexp[0] == "ask":
        of = sexp.index(":of") + 1
        return bool(changed[of] != sexp[of])
    left, other, right = sexp[1], changed[1], sexp[2]
    says = isinstance(right, str) and ":tensors" not in sexp and ":numbers" not in sexp
    # A view's definition names its tensor only; the other arguments are read from the operator.
    says |= right[0] == "view" and left[1] == other[1]
    return says and left != other and sorted(map(str, left)) == sorted(map(str, other))


def _laws(sexp: Sexp) -> Iterator[Sexp]:
    """Copies of a request that name another law (and keep their own name), or that ask about scopes
    of another reduction.

    The answers of any law are equal to the term that is asked about. So another law makes a request
    wrong only if it claims less about rounding: the laws that state numerics of their own are
    tried, and one other law.
    """
    same = [form for form in _asks() if form[3][0] == sexp[3][0]]
    laws = [form[1] for form in same]
    following = (laws * 2)[laws.index(sexp[1]) + 1]
    other = [*(form[1] for form in same if ":numerics" in form), following]
    named = sexp if ":name" in sexp else [*sexp, ":name", f'"{sexp[1]}"']
    for law in other:
        if law != sexp[1]:
            yield [named[0], law, *named[2:]]
    of = sexp.index(":of") + 1
    if sexp[of][0] == "Scope":
        for reducer in ("r", '"sum"', '"max"'):
            yield [*sexp[:of], [*sexp[of][:3], reducer, sexp[of][4]], *sexp[of + 1 :]]


@cache
def _asks() -> list[Sexp]:
    """The requests of laws in eqsynth's rule files."""
    return [
        parse(_uncommented(form.text))
        for file in DEFAULT_FILES
        for form in split_forms((rules_dir() / file).read_text(encoding="utf-8"), file)
        if form.head == "ask"
    ]


def _other_words(right: Sexp) -> Iterator[Sexp]:
    """The right side of a definition by ``view`` or ``reduction``, with another view or reducer."""
    if isinstance(right, list) and right[0] == "view":
        for name in _VIEWS:
            yield ["view", f'"{name}"', *right[2:]]
    elif isinstance(right, list) and right[0] == "reduction":
        for name in ("sum", "max", "min", "prod", "mean"):
            yield [*right[:-1], f'"{name}"']


def text_mutants(text: str) -> Iterator[str]:
    """Copies of the text of a comprehension or of a rule of scopes, with one change each."""
    found = list(_WORDS.finditer(text))
    words = [match.group() for match in found]

    def changed(first: int, last: int, new: str) -> str:
        """The text in which ``new`` replaces the words ``first`` to ``last``."""
        return text[: found[first].start()] + new + text[found[last].end() :]

    condition = words.index("if") if "if" in words else len(words)
    begin = 0 if "=>" in words else words.index("=")
    names = _names(words, begin)
    for at in range(2, begin if begin else 0):
        # Swap two adjacent parameters (tensors, or integers) of the comprehension.
        if words[at] == "," and words.index(")") > at:
            yield changed(at - 1, at + 1, f"{words[at + 1]}, {words[at - 1]}")
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        operates = re.fullmatch(r"[\w)\]}]+", before) is not None and before != "else"
        if word.isdigit():
            yield changed(at, at, str(int(word) + 1))
        elif word in _REDUCERS and words[at + 1 : at + 2] == ["("]:
            yield changed(at, at, _REDUCERS[word])
        elif word in FUNCTIONS and at > begin:
            same = [n for n, f in FUNCTIONS.items() if f.arity == FUNCTIONS[word].arity]
            yield changed(at, at, same[(same.index(word) + 1) % len(same)])
        elif word == "else" and words[at + 1 : at + 3] == ["-", "inf"]:
            yield changed(at, at + 2, "")
            yield changed(at + 1, at + 2, "inf")
        elif word in ("+", "-", "*", "//", "%") and operates:
            other = {"+": "-", "-": "+", "*": "+", "//": "%", "%": "//"}[word]
            yield changed(at, at, other)
            yield changed(at, _end(words, at + 1), "")
        elif word in ("<", "<="):
            yield changed(at, at, "<=" if word == "<" else "<")
        elif word == "^":
            yield changed(at, at, "*")
        elif word == "#":
            yield changed(at, at + 1, f"#{words[at + 1]} + 1")
            yield changed(at, at + 1, f"#{words[at + 1]} - 1")
        elif at > begin and word in names and (operates or before not in ("*", "#")):
            same = [n for n in names if names[n] == names[word]]
            yield changed(at, at, same[(same.index(word) + 1) % len(same)])
    ends = [n for n in range(condition, len(words)) if words[n] == ","] + [len(words)]
    for number, end in enumerate(ends if condition < len(words) else []):
        first = condition if number == 0 else ends[number - 1]
        keeps = "if" if number == 0 and len(ends) > 1 else ""
        yield changed(first, end if keeps else end - 1, keeps)


def _end(words: list[str], at: int) -> int:
    """The last word of the operand that begins at word ``at``."""
    if at + 1 < len(words) and words[at] not in "([{" and words[at + 1] in ("(", "["):
        at += 1
    depth = 0
    while at < len(words):
        depth += (words[at] in "([{") - (words[at] in ")]}")
        if depth <= 0:
            return at
        at += 1
    return len(words) - 1


def _names(words: list[str], begin: int) -> dict[str, str]:
    """The kind of each name after the word ``begin``: ``reads`` for names of tensors and bodies,
    ``counts`` for iterators and other integers."""
    kinds: dict[str, str] = {}
    for at, word in enumerate(words):
        if at > begin and re.fullmatch(r"[A-Za-z_]\w*", word) and word not in _KEYWORDS:
            reads = word[0].isupper() or words[at + 1 : at + 2] == ["["]
            kinds.setdefault(word, "reads" if reads else "counts")
    return kinds
