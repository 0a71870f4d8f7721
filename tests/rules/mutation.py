"""Rule files with faults in them: our own forms, and hostile ones, changed at random.

A source of choices is `random.Random`, hypothesis' `randoms`, or `fuzz_load.py`'s, whose choices
are a fuzzer's bytes; so one mutator serves the quick test and the long runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from eqsynth.rules import DEFAULT_FILES, rules_dir
from eqsynth.rules.forms import split_forms
from eqsynth.rules.sorts import PRIMITIVES

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[()"]|[^\s();"]+|\s+', re.DOTALL)

# What the small fuzzed files are loaded after: our names, a few sorts, and nothing to wait for.
PRELUDE = """\
;; prelude.egg -- for fuzzing.
;; Numerics   real
;; Status     validated
(sort Tensor)
(sort Tensors (Vec Tensor))
(sort Ints (Vec i64))
(constructor Add (Tensor Tensor) Tensor)
(constructor Relu (Tensor) Tensor)
(constructor Full (Ints f64 String) Tensor)
(constructor Concat (Tensors i64) Tensor)
(function shape (Tensor) Ints :no-merge)
(relation constant (Tensor))
(law swap (Tensor Ints) (Tensor Tensor))
(ruleset simplify)
(ruleset analysis-shape)
(ruleset own-explore)
"""

SEEDS = (
    '(rewrite (Add a b) (Add b a) :ruleset own-explore :name "add-swap")',
    '(birewrite (Add (Relu a) b) (Relu (Add b a)) :when ((constant a))\n'
    ':ruleset simplify :name "n")',
    '(rule ((= e (Add a b)) (= s (shape a))) ((set (shape e) s))\n'
    ':ruleset analysis-shape :name "s")',
    '(rule ((= e (Relu x)) (= s (shape x))) ((swap-request e s)) :ruleset simplify :name "swap")',
    '(rule ((swap-answer e x)) ((union e x)) :ruleset simplify :name "swap-apply")',
    '(rewrite (Concat (vec-of x y) k) (Concat (vec-append (vec-of y) (vec-of x)) (- 0 k))\n'
    '  :when ((> k 0) (!= x y)) :ruleset own-explore :name "concat-swap")',
    '(rule ((= e (Full s v d)) (= n (vec-length s)) (guard (bool-< 0 n)))\n'
    '  ((let t (vec-push s n)) (union e (Full t (* v 2.0) d)))\n'
    ':ruleset simplify :name "full-grow")',
    "(function size (Tensor) i64 :merge (max old new))",
    "(relation seen (Tensor i64 String))",
    "(constructor Twice (Tensor) Tensor)",
    "(sort Pairs (Vec Ints))",
    "(ruleset mine)",
)

NASTY = (
    "0", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e400",
    "-0.0", "NaN", "inf", "-inf", "1e308", "0.0", "4294967296", "_", "()", "true", '""', '"\\""',
    '"\\\\"', '"\\n"', '"%s"', "(vec-of)", "(vec-empty)", "(/ 1 0)", "(% 1 0)", "(<< 1 64)",
    "(vec-get (vec-of 1) 9)", "(vec-set (vec-of 1) 9 1)", "(vec-remove (vec-of 1) 9)", "é", "х",
    "\x00", "\ufeff", "\u202e", "\r\n", ";", '"', "(", ")", "M_x", "@x", "Tok", "py-call",
    "(log2 0)", "(to-i64 1e300)", "(panic \"x\")", "(delete (Add a b))", "(subsume (Add a b))",
    "(extract 1)", ":cost",
    ":unextractable", ":merge", ":no-merge", ":subsume", ":when", ":name", ":ruleset",
    ":hidden", ":let-binding", ":internal", "unstable-fn", "(unstable-app f 1)",
    "set-of", "bigint",
)  # fmt: skip
_HEADS = (
    "sort", "constructor", "function", "relation", "rewrite", "birewrite", "rule", "ruleset",
    "include", "run", "let", "check", "datatype", "push", "input",
)  # fmt: skip


class Choices(Protocol):
    """Where randomness comes from."""

    def randint(self, a: int, b: int) -> int: ...


def pick(choices: Choices, options: Sequence[str]) -> str:
    return options[choices.randint(0, len(options) - 1)]


@cache
def own_forms() -> tuple[str, ...]:
    """Every form of the rule files that come with eqsynth."""
    return tuple(
        form.text
        for name in DEFAULT_FILES
        for form in split_forms((rules_dir() / name).read_text(encoding="utf-8"), name)
    )


@cache
def vocabulary() -> tuple[str, ...]:
    """Words that a rule may hold, and some that it may not."""
    words = {word for form in (*own_forms(), *SEEDS) for word in _TOKEN.findall(form)}
    return tuple(sorted({w for w in words if w.strip()} | PRIMITIVES | set(_HEADS)))


def hostile_file(choices: Choices, forms: Sequence[str]) -> str:
    """A file of a few forms, each changed a few times."""
    count = choices.randint(1, 3)
    return "\n".join(mutated(choices, pick(choices, forms), forms) for _ in range(count))


def mutated(choices: Choices, text: str, forms: Sequence[str]) -> str:
    """A form after a few changes or none; most keep its parentheses balanced."""
    tokens = _TOKEN.findall(text)
    for _ in range(max(0, choices.randint(-3, 4))):
        tokens = _change(choices, tokens, forms)
    return "".join(tokens)


def _change(choices: Choices, tokens: list[str], forms: Sequence[str]) -> list[str]:
    if not tokens:
        return [pick(choices, NASTY)]
    at = choices.randint(0, len(tokens) - 1)
    begin, end = _subtree(tokens, at)
    kind = choices.randint(0, 9)
    if kind == 0:  # another word
        return [*tokens[:at], pick(choices, vocabulary()), *tokens[at + 1 :]]
    if kind == 1:  # a nasty word for a term
        return [*tokens[:begin], pick(choices, NASTY), *tokens[end:]]
    if kind == 2:  # a term left out
        return tokens[:begin] + tokens[end:]
    if kind == 3:  # a term twice
        return [*tokens[:end], " ", *tokens[begin:end], *tokens[end:]]
    if kind == 4:  # a term of another form
        other = _TOKEN.findall(pick(choices, forms))
        a, b = _subtree(other, choices.randint(0, len(other) - 1))
        return tokens[:begin] + other[a:b] + tokens[end:]
    if kind == 5:  # a term in a call, or many
        head = pick(choices, vocabulary())
        depth = choices.randint(1, 250) if choices.randint(0, 9) == 0 else 1
        wrap = ["(", head, " "] * depth
        return tokens[:begin] + wrap + tokens[begin:end] + [")"] * depth + tokens[end:]
    if kind == 6:  # two terms of the form exchanged
        a, b = _subtree(tokens, choices.randint(0, len(tokens) - 1))
        if end <= a:
            return tokens[:begin] + tokens[a:b] + tokens[end:a] + tokens[begin:end] + tokens[b:]
        return tokens
    if kind == 7:  # many terms
        times = choices.randint(2, 60)
        return tokens[:end] + ([" "] + tokens[begin:end]) * times + tokens[end:]
    if kind == 8:  # a word left out, a parenthesis among them
        return tokens[:at] + tokens[at + 1 :]
    # a nasty word put in
    return [*tokens[:at], " ", pick(choices, NASTY), " ", *tokens[at:]]


def _subtree(tokens: list[str], at: int) -> tuple[int, int]:
    """The bounds of the term that begins at a token; the token alone if none does."""
    if tokens[at] != "(":
        return at, at + 1
    depth = 0
    for position in range(at, len(tokens)):
        depth += (tokens[position] == "(") - (tokens[position] == ")")
        if depth == 0:
            return at, position + 1
    return at, at + 1
