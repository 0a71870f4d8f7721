"""Names of values in a region of a program: the same name wherever the same value stands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from eqsynth.egraph.terms import Term
from eqsynth.ir.formulas import ATOM, Line, formula, in_one, kind_of, lines
from eqsynth.ir.tensor import Input, Op, Tensor, Weight, args_of, is_literal, topological

_LETTERS = ("x", "y", "z", "u", "v", "p", "q", "r")
# A name's definition that is longer is told by what it is made of.
_LONGEST = 76


class Names:
    """Values that the region reads are ``x``, ``y``, …, or have their names as inputs; lines are
    ``t0``, ``t1``, …; constants that were computed from weights are ``w0``, ``w1``, ….

    Attributes:
        classes: of all terms that are asked for; equal values have one name.
    """

    def __init__(
        self,
        classes: Mapping[Tensor, Term],
        leaves: Mapping[Term, Tensor],
        terms: Iterable[Tensor],
    ) -> None:
        """
        Args:
            leaves: what the region reads.
            terms: the region; names of inputs and weights in it aren't given again.
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
        """The name of what isn't written out: a value that the region reads, or a constant."""
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
        return lines(outputs, lambda term: self._numbered(term, "t"), self.leaf)

    def where(self, shown: Iterable[str]) -> dict[str, str]:
        """What the names in a text stand for."""
        used, found = _words(shown), dict[str, str]()
        while names := [n for n in self._meaning if n in used and n not in found]:
            found |= {name: self._told(self._meaning[name]) for name in names}
            used |= _words(found.values())  # a constant may be made of others
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
        """A part of a constant's definition: weights have names, and so have constants of lines."""
        if isinstance(term, Weight) or not args_of(term):
            return self._constant(term)
        return None


def _words(texts: Iterable[str]) -> set[str]:
    return set(re.findall(r"\w+", " ".join(texts).replace("ᵀ", " ")))


def _numbers(literal: Op) -> str:
    """``1 0 -1; 0 1/2 1/2``, row by row, as far as there is room."""
    _, above, below, *_ = literal.attrs
    assert isinstance(above, tuple) and isinstance(below, tuple)
    told = [str(Fraction(a, b)) for a, b in zip(above, below, strict=True)]
    width = literal.shape[-1] if literal.shape else 1
    text = "; ".join(" ".join(told[n : n + width]) for n in range(0, len(told), width))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
