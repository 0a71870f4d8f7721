"""Rules that write themselves: ``eqsynth rules generate`` [TASO §2, §4].

Operator graphs over typed inputs are enumerated up to a number of operators. Graphs with the same
values are a candidate; what renaming of inputs and common subgraphs make redundant is left out.
What saturation doesn't derive of the rest is the remainder: the measure of how complete the rules
are, and what a new rule may be written from.

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
