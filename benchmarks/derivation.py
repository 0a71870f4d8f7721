"""Which rules a result rests on, read off its explanation."""

from __future__ import annotations

from collections import Counter

from eqsynth.lower.program import CompiledProgram

# Steps that every derivation has: what a term means, and its canonical form.
_EVERYDAY = frozenset({"definition", "view", "reduction", "canonical-form", "derived-form"})


def rules_by_use(program: CompiledProgram) -> tuple[str, ...]:
    """The rules of the derivation of the result, most used first, everyday ones aside."""
    steps = getattr(program.explain(), "steps", ())
    used = Counter(s.rule for s in steps if s.rule not in _EVERYDAY and s.changes_tensors)
    return tuple(rule for rule, _ in used.most_common())
