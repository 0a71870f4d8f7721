"""Names of values in the text of a region: a value has the same name wherever it occurs.

In ``t0 = conv3x3(x, w0)``, ``t0`` is a line of the region, ``x`` a value that the region reads, and
``w0`` a constant that is computed from weights.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from eqsynth.egraph.terms import Term
from eqsynth.ir.formulas import ATOM, Line, formula, in_one, kind_of, lines
from eqsynth.ir.tensor import Input, Op, Tensor, Weight, args_of, is_literal, topological

_LETTERS = ("x", "y", "z", "u", "v", "p", "q", "r")
# The longest definition of a constant that is written out. For a longer one, the text names the
# weights that it is computed from.
_LONGEST = 76


class Names:
    """The names of a region's values.

    Values that the region reads are ``x``, ``y``, …, or have their names as inputs of the program;
    lines are ``t0``, ``t1``, …; constants that are computed from weights are ``w0``, ``w1``, ….

    Attributes:
        classes: term -> its e-class, for all terms that are named; a name belongs to an e-class.
    """

    def __init__(
        self,
        classes: Mapping[Tensor, Term],
        leaves: Mapping[Term, Tensor],
        terms: Iterable[Tensor],
    ) -> None:
        """
        Args:
            leaves: the e-classes that the region reads, and a term of each.
            terms: the region's terms. The names of inputs and weights in them are taken.
        """
        self.classes = dict(classes)
        self._given: dict[Term, str] = {}
        self._meaning: dict[str, Tensor] = {}
        own = {t.label for t in topological(list(terms)) if isinstance(t, Input | Weight)}
        self._taken = own | {t.label for t in leaves.values() if isinstance(t, Input)}
        for cls, term in sorted(leaves.items(), key=lambda item: not isinstance(item[1], Input)):
            if isinstance(term, Input):
                self._given[cls] = term.label
            else:
                self._given[cls] = name = self._free(
                    (*_LETTERS, *(f"x{n}" for n in range(1, 1000)))
                )
                self._meaning[name] = term
        self._leaves = set(leaves)

    def _free(self, names: Iterable[str]) -> str:
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name

    def _numbered(self, term: Tensor, letter: str) -> str:
        cls = self.classes[term]
        if cls not in self._given:
            self._given[cls] = self._free(f"{letter}{n}" for n in itertools.count())
        return self._given[cls]

    def leaf(self, term: Tensor) -> str | None:
        """The name of a value that the region reads, or of a constant; None for other terms, which
        are written out."""
        if isinstance(term, Input):
            return term.label
        if term.constant:
            return self._constant(term)
        cls = self.classes.get(term)
        return self._given[cls] if cls in self._leaves and cls is not None else None

    def _constant(self, term: Tensor) -> str | None:
        if isinstance(term, Weight):
            return term.label
        if not isinstance(term, Op):
            return self._computed(term)
        row = term.row
        if is_literal(term):
            return self._computed(term)
        if row.kind == "constant":
            return formula(term, lambda arg: (arg.label, ATOM))[0]
        if row.kind == "view" and len(term.args) == 1:
            source = term.args[0]
            if isinstance(source, Weight):
                return formula(term, lambda weight: (weight.label, ATOM))[0]
            while isinstance(source, Op) and source.row.kind == "view" and source.args:
                source = source.args[0]
            if isinstance(source, Op) and source.name == "Full":
                return f"{source.attrs[1]:g}"
        return self._computed(term)

    def _computed(self, term: Tensor) -> str:
        name = self._numbered(term, "w")
        self._meaning.setdefault(name, term)
        return name

    def lines(self, outputs: Sequence[Tensor]) -> list[Line]:
        """The lines of formulas that compute the outputs."""
        return lines(outputs, lambda term: self._numbered(term, "t"), self.leaf)

    def where(self, shown: Iterable[str]) -> dict[str, str]:
        """The definitions of the names in a text: ``w0`` -> ``float32[64], once: w * s``.

        The word "once" marks a constant, which is computed once.
        """
        used, found = _words(shown), dict[str, str]()
        while names := [n for n in self._meaning if n in used and n not in found]:
            found |= {name: self._told(self._meaning[name]) for name in names}
            used |= _words(found.values())  # a definition may contain names of other constants
        return found

    def _told(self, term: Tensor) -> str:
        kind = f"{term.dtype}{list(term.shape)}"
        if isinstance(term, Op) and is_literal(term):
            return f"{kind}, {_numbers(term)}"
        if not term.constant:
            origin = term.origin.split(", ")[0] if isinstance(term, Op) else ""
            return f"{kind}, {kind_of(term)}" + (f" in {origin}" if origin else "")
        text = in_one((term,), self._part, _LONGEST)
        if text is not None:
            return f"{kind}, once: {text}"
        weights = [t.label for t in topological([term]) if isinstance(t, Weight)]
        if not weights:
            return f"{kind}, once, from numbers alone"
        more = f" and {len(weights) - 4} more" if len(weights) > 4 else ""
        return f"{kind}, once, from {', '.join(weights[:4])}{more}"

    def _part(self, term: Tensor) -> str | None:
        """The name of a part of a constant's definition: of a weight, or of a term without
        arguments; None for other terms, which are written out."""
        if isinstance(term, Weight) or not args_of(term):
            return self._constant(term)
        return None


def _words(texts: Iterable[str]) -> set[str]:
    return set(re.findall(r"\w+", " ".join(texts).replace("ᵀ", " ")))


def _numbers(literal: Op) -> str:
    """The elements of a literal, row by row: ``1 0 -1; 0 1/2 1/2``; cut if there are too many."""
    _, above, below, *_ = literal.attrs
    assert isinstance(above, tuple) and isinstance(below, tuple)
    told = [str(Fraction(a, b)) for a, b in zip(above, below, strict=True)]
    width = literal.shape[-1] if literal.shape else 1
    text = "; ".join(" ".join(told[n : n + width]) for n in range(0, len(told), width))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
