"""The form ``ask`` of rule files: for which scopes a law is requested, and how to use its answers.

    (ask sum-split :of (Scope t s "sum" b) :when ((>= (vec-length s) 2))
         :gives derived :ruleset derive-explore)
    ->  (law sum-split (Tensor Ints Ints String Scalar) (Tensor Ints Ints String Scalar))
        (rule ((= e (Scope t s "sum" b)) (>= (vec-length s) 2))
              ((sum-split-request e t s "sum" b))
              :ruleset derive-explore :name "sum-split")
        (rule ((sum-split-answer e t s r b)) ((union e (Scope t s r b)) (derived t s r b))
              :ruleset derive-explore :name "sum-split-apply")

For an operator, ``(Conv2d x w _ _ _ 1)``, the request holds the arguments that are variables.
Without ``:gives derived`` an answer is any tensor, which is united with the e-class. Several forms
with different names (``:name``) may request one law; the first form then determines, for all of
them, how answers are used.
"""

from __future__ import annotations

import re
from typing import Final

from eqsynth.rules.forms import Form, nearest
from eqsynth.rules.law import law_of, text_of
from eqsynth.rules.options import WORD, Piece, in_place_of, options_of, words_of
from eqsynth.rules.sorts import Declarations

HEAD: Final = "ask"
_OPTIONS: Final = (":of", ":when", ":gives", ":numerics", ":ruleset", ":name")
# The sorts of a request's columns: e-class, traversal, reduction, reducer and body of a scope.
SCOPE: Final = ("Tensor", "Ints", "Ints", "String", "Scalar")
_GIVES: Final = ("derived", "tensor")
_NUMBER = re.compile(r"[+-]?\d")


def expand_ask(form: Form, known: Declarations) -> tuple[str, list[Form]]:
    """Return the form's numerics class, or an empty text, and the forms that replace it.

    Raises:
        RuleError: something is missing or unknown, or an earlier form uses the law's answers in
            another way.
    """
    words = words_of(form)
    if not words or words[0].text.startswith((":", "(", '"')):
        expected = "(ask <law> :of (Scope ...) ...)"
        raise form.error("nothing says which law is asked", expected=expected,
                         hint="Name the law behind the word.")  # fmt: skip
    law, options = words[0], options_of(form, words[1:], _OPTIONS)
    for option in (":of", ":ruleset"):
        if option not in options:
            raise form.error(f"the law {law.text} is asked without {option}", law.offset,
                             expected=", ".join(_OPTIONS), hint=f"Add {option}.")  # fmt: skip
    columns = _columns(form, options[":of"], known)
    gives = options.get(":gives", Piece("tensor", 0))
    if gives.text not in _GIVES:
        raise form.error(f":gives {gives.text} is unknown", gives.offset,
                         expected=", ".join(_GIVES), hint=nearest(gives.text, _GIVES))  # fmt: skip
    name = options[":name"].text.strip('"') if ":name" in options else law.text
    when = options.get(":when")
    if when is not None and not when.text.startswith("("):
        raise form.error(":when has no facts", when.offset, expected=":when (<fact> ...)",
                         hint="Put parentheses around the facts.")  # fmt: skip
    own: list[str | Piece] = [" :ruleset ", options[":ruleset"], f' :name "{name}']
    facts: list[str | Piece] = [" ", Piece(when.text[1:-1], when.offset + 1)] if when else []
    own_law = known.laws.get(law.text, law_of(law.text))
    request = in_place_of(form, [
        "(rule ((= e ", options[":of"], ")", *facts, f") (({own_law.request} e ",
        " ".join(word for word, _ in columns), "))", *own, '")',
    ])  # fmt: skip
    declared, answers = _answers(own_law.answer, gives.text == "derived")
    asked = ("Tensor", *(sort for _, sort in columns))
    numerics = options[":numerics"].text.strip('"') if ":numerics" in options else ""
    if law.text in known.laws:
        before = [known.signatures[own_law.request].inputs, known.signatures[own_law.answer].inputs]
        if before[1] != declared:
            raise form.error(f"the law {law.text} gives something else", gives.offset,
                             expected=_GIVES[before[1] != SCOPE],
                             hint="Say the same as where it was asked first.")  # fmt: skip
        if before[0] != asked:
            what = f"the law {law.text} is asked of something else"
            raise form.error(what, options[":of"].offset,
                             expected=" ".join(before[0][1:]),
                             hint="Match what it was asked of first.")  # fmt: skip
        return numerics, [request]
    declares = in_place_of(form, [text_of(law.text, asked, declared)])
    apply = in_place_of(form, [answers, *own, '-apply")'])
    return numerics, [declares, request, apply]


def _answers(answer: str, derived: bool) -> tuple[tuple[str, ...], str]:
    """Return the sorts of an answer, and the rule that unites it, without the rule's options."""
    if derived:
        union = "(union e (Scope t s r b)) (derived t s r b)"
        return SCOPE, f"(rule (({answer} e t s r b)) ({union})"
    return ("Tensor", "Tensor"), f"(rule (({answer} e q)) ((union e q))"


def _columns(form: Form, of: Piece, known: Declarations) -> list[tuple[str, str]]:
    """Return the columns of a request and their sorts: the arguments of the matched term that are
    variables or strings. ``_`` and numbers only restrict the match."""
    words = [word.group() for word in WORD.finditer(of.text) if word.group()[0] != ";"]
    if words[0] != "(" or len(words) < 3 or "(" in words[1:]:
        raise form.error("a law is asked of a scope or of an operator", of.offset,
                         expected='(Scope t s "sum" b)',
                         hint="Name its arguments; conditions go to :when.")  # fmt: skip
    head, given, signature = words[1], words[2:-1], known.signatures.get(words[1])
    if signature is None or signature.output != "Tensor":
        raise form.error(f"unknown operator {head}", of.offset + 1,
                         hint=nearest(head, known.signatures))  # fmt: skip
    if len(given) != len(signature.inputs):
        expected = " ".join(signature.inputs)
        raise form.error(f"{head} has {len(signature.inputs)} arguments", of.offset,
                         expected=expected, hint="Name each, or write _.")  # fmt: skip
    return [(word, sort) for word, sort in zip(given, signature.inputs, strict=True)
            if word != "_" and not _NUMBER.match(word)]  # fmt: skip
