"""The form ``rule-of-scopes`` of rule files, which expands to a law's request and answer.

    (rule-of-scopes "[*x] = max(*y) -F => [*x] = -{min(*y) F}"
      :numerics bitwise :ruleset contract-explore :name "max-of-negative")
    ->  (law max-of-negative (Tensor Ints Ints String Scalar) (Tensor Tensor))
        (rule ((= e (Scope t s "max" b)) (>= (vec-length s) 1) (= b (Prod v)))
              ((max-of-negative-request e t s "max" b))
              :ruleset contract-explore :name "max-of-negative")
        (rule ((max-of-negative-answer e q)) ((union e q))
              :ruleset contract-explore :name "max-of-negative-apply")

So the rule is a law with the rule's name, requested and explained like any law. With ``:gives
derived`` its answers are marked as results of a derivation (ARCHITECTURE.md, the normal form). With
``:choose first`` a scope that matches in several ways gets one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from eqsynth.rules.ask import SCOPE
from eqsynth.rules.forms import Form
from eqsynth.rules.law import law_of, text_of
from eqsynth.rules.options import options_of, words_of
from eqsynth.rules.scope_rules.cursor import TextError
from eqsynth.rules.scope_rules.parser import parse
from eqsynth.rules.scope_rules.syntax import ANY, Apply, AtMost, Plus, ScopeRule, Times

HEAD: Final = "rule-of-scopes"
_OPTIONS: Final = (":numerics", ":ruleset", ":name", ":gives", ":choose")
# Option -> the only word that it may have.
_WORDS: Final = {":gives": "derived", ":choose": "first"}


@dataclass(frozen=True)
class Expanded:
    """The expansion of a form.

    Attributes:
        numerics: the numerics class that the form states; empty if it states none.
        forms: the forms that are loaded in its place.
    """

    rule: ScopeRule
    numerics: str
    forms: tuple[Form, ...]


def expand(form: Form) -> Expanded:
    """Expand a rule of scopes.

    Raises:
        RuleError: the text isn't a rule of scopes, with the mistake's place.
    """
    words = words_of(form)
    if not words or not words[0].text.startswith('"'):
        raise form.error("a rule of scopes has no text", expected='"left => right"',
                         hint="Write the rule in quotes behind the word.")  # fmt: skip
    first = words[0]
    options = {key: value.text.strip('"')
               for key, value in options_of(form, words[1:], _OPTIONS).items()}  # fmt: skip
    text = first.text[1:-1]
    begin = first.offset + 1
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
    """Return a text's error with its place in the file."""
    found = form.error(error.what, offset, expected=error.expected, hint=error.hint)
    if error.got:
        found.got = error.got
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
    elif isinstance(side.body, Apply):
        facts.append(f'(= b (Call "{side.body.fn}" v))')
    elif isinstance(side.body, AtMost):
        facts.append("(= b (Convert d c))")
    own = f':ruleset {ruleset} :name "{name}'
    law = law_of(name)
    yield text_of(name, SCOPE, SCOPE if derived else ("Tensor", "Tensor"))
    yield (f"(rule ((= e (Scope t s {reducer} b)) {' '.join(facts)}) "
           f'(({law.request} e t s {reducer} b)) {own}")')  # fmt: skip
    answer = "(union e (Scope t s r b)) (derived t s r b)" if derived else "(union e q)"
    yield f'(rule (({law.answer} e {"t s r b" if derived else "q"})) ({answer}) {own}-apply")'
