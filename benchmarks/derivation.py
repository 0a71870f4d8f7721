"""Which rules a result rests on, read off its explanation."""

from __future__ import annotations

from collections import Counter

from eqsynth.ir.tensor import Tensor
from eqsynth.lower.program import CompiledProgram

# Steps that every derivation has: what a term means, and its canonical form.
_EVERYDAY = frozenset({"definition", "view", "reduction", "canonical-form", "derived-form"})


def rules_by_use(program: CompiledProgram) -> tuple[str, ...]:
    """The rules of the derivation of the result, most used first, everyday ones aside."""
    # Of the lemmas, not of the chain: an unrolled network's chain is too long to be written out.
    lemmas = getattr(program.explain(), "lemmas", ())
    tensors = (lemma for lemma in lemmas if isinstance(lemma.terms[0], Tensor))
    used = Counter(link.rule for lemma in tensors for link in lemma.links if link.rule)
    return tuple(rule for rule, _ in used.most_common() if rule not in _EVERYDAY)
