"""The form ``law`` of rule files: the relations of a law's requests and answers.

    (law view (Tensor String Tensors) (Tensor Tensor))
    ->  (relation view-request (Tensor String Tensors))
        (relation view-answer (Tensor Tensor))

A rule that adds to the first relation requests the law, and a rule that reads the second applies an
answer. The forms ``ask`` and ``rule-of-scopes`` declare their laws with this form. A relation that
no such form declares is of no law, also if its name ends in ``-request``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eqsynth.rules.forms import Form
from eqsynth.rules.options import in_place_of, words_of
from eqsynth.rules.sorts import Law

HEAD: Final = "law"


def law_of(name: str) -> Law:
    """Return the relations of the law of this name."""
    return Law(f"{name}-request", f"{name}-answer")


def text_of(name: str, request: Sequence[str], answer: Sequence[str]) -> str:
    """Return the form that declares a law, from the sorts of its two relations.

    >>> text_of("flip", ["Tensor", "i64"], ["Tensor", "Tensor"])
    '(law flip (Tensor i64) (Tensor Tensor))'
    """
    return f"(law {name} ({' '.join(request)}) ({' '.join(answer)}))"


def expand_law(form: Form) -> tuple[str, Law, list[Form]]:
    """Return the law's name, its relations, and the forms that declare them.

    Raises:
        RuleError: the form isn't a name and two lists of sorts.
    """
    words = words_of(form)
    shapes = ["(" if word.text.startswith("(") else "word" for word in words]
    if shapes != ["word", "(", "("]:
        raise form.error(
            "a law is a name and the sorts of a request and of an answer",
            expected="(law <name> (Tensor <sort> ...) (Tensor Tensor))",
            hint="Write both lists of sorts behind the name.",
        )
    name, request, answer = words
    law = law_of(name.text)
    return name.text, law, [
        in_place_of(form, [f"(relation {law.request} ", request, ")"]),
        in_place_of(form, [f"(relation {law.answer} ", answer, ")"]),
    ]  # fmt: skip
