"""Finds equalities that the rules don't derive: ``eqsynth rules generate`` [TASO §2, §4].

All operator graphs over typed inputs, up to a number of operators, are enumerated and evaluated.
Two graphs with the same values are a candidate, such as ``x + y`` and ``y + x``. Candidates that
follow from others by renaming inputs or by common subgraphs are removed. The candidates that
saturation doesn't derive are the remainder: their number measures how complete the rules are, and
each may become a new rule.

Not here: whether an equality holds for all sizes (``verify/``), samples of rules (``testing/``).
"""

from __future__ import annotations

from eqsynth.generate.candidates import Candidate, Counts, reduced
from eqsynth.generate.deriving import OUTCOMES, Derived, derive
from eqsynth.generate.enumerating import Enumerated, enumerate_graphs
from eqsynth.generate.primitives import WORLDS, Primitive, World, with_own, worlds_of

__all__ = [
    "OUTCOMES", "WORLDS", "Candidate", "Counts", "Derived", "Enumerated", "Primitive", "World",
    "derive", "enumerate_graphs", "reduced", "with_own", "worlds_of",
]  # fmt: skip
