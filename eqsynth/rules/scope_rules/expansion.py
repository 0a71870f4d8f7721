"""A rule of scopes in a rule file, as the request and the answer that it stands for.

    (rule-of-scopes "[*x] = max(*y) -F => [*x] = -{min(*y) F}"
      :numerics bitwise :ruleset contract-explore :name "max-of-negative")
    ->  (relation max-of-negative-request (Tensor Ints Ints String Scalar))
        (relation max-of-negative-answer (Tensor Tensor))
        (rule ((= e (Scope t s "max" b)) (>= (vec-length s) 1) (= b (Prod v)))
              ((max-of-negative-request e t s "max" b))
              :ruleset contract-explore :name "max-of-negative")
        (rule ((max-of-negative-answer e q)) ((union e q))
              :ruleset contract-explore :name "max-of-negative-apply")

So it is a law of its own name, asked and explained as each of them is. With ``:gives derived`` its
answers are marked as what a derivation made (ARCHITECTURE.md, the normal form); with ``:choose
first`` a scope that matches in several ways has one answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from eqsynth.rules.forms import Form, nearest
from eqsynth.rules.scope_rules.cursor import TextError
from eqsynth.rules.scope_rules.parser import parse
from eqsynth.rules.scope_rules.syntax import ANY, Plus, ScopeRule, Times

HEAD: Final = "rule-of-scopes"
_OPTIONS: Final = (":numerics", ":ruleset", ":name", ":gives", ":choose")
# What the options may say that have one word.
_WORDS: Final = {":gives": "derived", ":choose": "first"}
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|[()]|[^\s()"]+')


@dataclass(frozen=True)
class Expanded:
    """What a form says.

    Attributes:
        numerics: what it says of rounding; empty if it doesn't.
        forms: what is loaded in its place.
    """

    rule: ScopeRule
    numerics: str
    forms: tuple[Form, ...]


def expand(form: Form) -> Expanded:
    """The forms in the place of a rule of scopes.

    Raises:
        RuleError: it is none, with the place of what is wrong.
    """
    words = list(_WORD.finditer(form.text))[2:-1]
    if not words or not words[0].group().startswith('"'):
        raise form.error("a rule of scopes has no text", expected='"left => right"',
                         hint="Write the rule in quotes behind the word.")  # fmt: skip
    first, options = words[0], _options(form, words[1:])
    text = first.group()[1:-1]
    begin = len(form.text[: first.start() + 1].encode())
    if "\\" in text:
        raise form.error("a backslash means nothing in a rule of scopes", begin, hint="Remove it.")
    try:
        rule = parse(text)
    except TextError as error:
        offset = begin + len(text[: error.offset].encode())
        raise _placed(form, error, offset) from None
    name, ruleset = options.get(":name", ""), options.get(":ruleset", "")
    for option, word in _WORDS.items():
        given = options.get(option, word)
        if given != word:
            raise form.error(f"{option} {given} is unknown", form.find(given), expected=word,
                             hint="Leave it out.")  # fmt: skip
    rule = replace(rule, first=":choose" in options)
    forms = tuple(replace(form, head=text.split()[0].lstrip("("), text=text)
                  for text in _texts(rule, name, ruleset, ":gives" in options))  # fmt: skip
    return Expanded(rule, options.get(":numerics", ""), forms)


def _placed(form: Form, error: TextError, offset: int) -> Exception:
    """The error of a text at its place in the file."""
    found = form.error(error.what, offset, expected=error.expected, hint=error.hint)
    if error.got:
        found.got = error.got
    return found


def _options(form: Form, words: Iterable[re.Match[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    key = ""
    for word in words:
        text = word.group()
        offset = len(form.text[: word.start()].encode())
        if not key:
            if text not in _OPTIONS or text in found:
                known = [option for option in _OPTIONS if option not in found]
                near = nearest(text, known)
                raise form.error(f"{text} isn't expected here", offset, expected=", ".join(known),
                                 hint=near if near.startswith("Did") else "Remove it.")  # fmt: skip
            key = text
            continue
        found[key], key = text.strip('"'), ""
    if key:
        raise form.error(f"{key} has no value", expected=f"{key} and a word", hint="Say which.")
    return found


def _texts(rule: ScopeRule, name: str, ruleset: str, derived: bool) -> Iterable[str]:
    side = rule.left
    facts, reducer = [], "r"
    if side.reducer:
        reducer = "r" if side.reducer == ANY else f'"{side.reducer}"'
        named = sum(not axis.group for axis in side.axes)
        facts.append(f"(>= (vec-length s) {max(named, 1)})")
    else:
        facts.append("(= 0 (vec-length s))")
    if isinstance(side.body, Plus | Times):
        facts.append(f"(= b ({'Sum' if isinstance(side.body, Plus) else 'Prod'} v))")
    own = f':ruleset {ruleset} :name "{name}'
    yield f"(relation {name}-request (Tensor Ints Ints String Scalar))"
    yield f"(relation {name}-answer (Tensor {'Ints Ints String Scalar' if derived else 'Tensor'}))"
    yield (f"(rule ((= e (Scope t s {reducer} b)) {' '.join(facts)}) "
           f'(({name}-request e t s {reducer} b)) {own}")')  # fmt: skip
    answer = "(union e (Scope t s r b)) (derived t s r b)" if derived else "(union e q)"
    yield f"(rule (({name}-answer e {'t s r b' if derived else 'q'})) ({answer}) {own}-apply\")"
