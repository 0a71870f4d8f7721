"""What a rule claims about rounding: its class of numerics, read once from the text of its file.

    (numerics: approx (1e-3))   ->   Claim("approx", 0.001, "approx (1e-3)")

What each class promises is stated in ``rules/README.md``. Not here: which classes a search uses
(``eqsynth/numerics.py``), and whether a claim is true (``eqsynth/testing/judging.py``).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

Class = Literal["bitwise", "real", "cancels", "approx", "proof", "proof-cancels"]
CLASSES: tuple[Class, ...] = get_args(Class)


@dataclass(frozen=True)
class Claim:
    """A rule's claim about rounding.

    Attributes:
        kind: the class.
        bound: the largest relative error of a rule of the class ``approx`` (of results below 1, the
            largest absolute error); 0 of other classes, and where the text gives no bound.
        text: the author's text.
    """

    kind: Class
    bound: float = 0.0
    text: str = ""

    @classmethod
    def of(cls, text: str) -> Claim:
        """Read a claim: ``"real"``, ``"approx (1e-3)"``.

        Raises:
            ValueError: the text names no class, or the bound of ``approx`` is no number between 0
                and infinity. The error's text is the word or the bound.
        """
        word, *rest = text.split(maxsplit=1)
        kind = next((one for one in CLASSES if one == word), None)
        if kind is None:
            raise ValueError(word)
        bound = 0.0
        if rest and kind == "approx":
            with suppress(ValueError):
                bound = float(rest[0].strip("() "))
            if not 0 < bound < math.inf:
                raise ValueError(rest[0])
        return cls(kind, bound, text.strip())

    def __str__(self) -> str:
        return self.text or self.kind

    @property
    def for_proofs(self) -> bool:
        """Whether the rule makes a form that is used in proofs only. Such a rule claims nothing
        about rounding and range, and nothing where a part of a side has no finite value."""
        return self.kind in ("proof", "proof-cancels")

    @property
    def keeps_digits(self) -> bool:
        """Whether the right side rounds about as well as the left one, and overflows no sooner."""
        return self.kind in ("bitwise", "real")
