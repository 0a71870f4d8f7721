"""Finds equalities that the rules don't derive: ``eqsynth rules generate`` [TASO §2, §4].

All operator graphs over typed inputs, up to a number of operators, are enumerated and evaluated.
Two graphs with the same values are a candidate, such as ``x + y`` and ``y + x``. Candidates that
follow from others by renaming inputs or by common subgraphs are removed. The candidates that
saturation doesn't derive are the remainder: their number measures how complete the rules are. Those
that the verifier proves can be written as rules.

Not here: proofs for all sizes (``verify/``), samples of rules (``testing/``).
"""

from __future__ import annotations

from eqsynth.generate.candidates import Candidate, Counts, reduced
from eqsynth.generate.deriving import OUTCOMES, Derived, derive
from eqsynth.generate.enumerating import Enumerated, enumerate_graphs
from eqsynth.generate.primitives import WORLDS, Primitive, World, with_own, worlds_of
from eqsynth.generate.writing import Written, write

__all__ = [
    "OUTCOMES", "WORLDS", "Candidate", "Counts", "Derived", "Enumerated", "Primitive", "World",
    "Written", "derive", "enumerate_graphs", "reduced", "with_own", "worlds_of", "write",
]  # fmt: skip
