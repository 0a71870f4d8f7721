"""A program as a list of formulas, one line each (``h = relu(x @ w)``), or as a single formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqsynth.ir.formulas.parts import ATOM, Formula
from eqsynth.ir.formulas.scopes import is_written_out
from eqsynth.ir.formulas.terms import formula, is_heavy, kind_of
from eqsynth.ir.scalar import Read
from eqsynth.ir.scalar import uses as uses_of
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of


@dataclass(frozen=True)
class Line:
    """One value of a program, and the formula that computes it from the values of other lines.

    Attributes:
        term: the value.
        covers: the terms that the formula computes, ``term`` last.
    """

    name: str
    text: str
    term: Tensor
    covers: tuple[Tensor, ...]

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"


def lines(
    outputs: Sequence[Tensor],
    name: Callable[[Tensor], str],
    leaf: Callable[[Tensor], str | None],
) -> list[Line]:
    """Return the lines of a program. A contraction, a reduction, a value that is used more than
    once and an output each get a line; other terms are written inside of their user's formula.

    Args:
        name: names a value that gets a line.
        leaf: returns the name of a term that is given; None for a term that has a formula.
    """
    uses: dict[Tensor, int] = dict.fromkeys(outputs, 2)
    order: list[Tensor] = []
    seen: set[Tensor] = set()
    stack: list[tuple[Tensor, bool]] = [(root, False) for root in reversed(outputs)]
    while stack:
        term, done = stack.pop()
        if done:
            order.append(term)
            continue
        if term in seen or leaf(term) is not None:
            continue
        seen.add(term)
        stack.append((term, True))
        indexed = isinstance(term, Scope) and is_written_out(term)
        for arg, count in _read(term).items():
            # A scope that is written in full reads its arguments at indices, so they need names.
            uses[arg] = uses.get(arg, 0) + (2 if indexed else count)
        stack += [(arg, False) for arg in reversed(args_of(term))]
    texts: dict[Tensor, Formula] = {}
    parts: dict[Tensor, tuple[Tensor, ...]] = {}
    found: list[Line] = []

    def operand(arg: Tensor) -> Formula:
        return texts[arg] if arg in texts else (leaf(arg) or arg.label, ATOM)

    for term in order:
        text = formula(term, operand)
        covers = (*(t for arg in args_of(term) for t in parts.get(arg, ())), term)
        alone = is_heavy(term) or uses[term] > 1 or len(text[0]) > 120
        view = kind_of(term) == "view" and uses[term] == 1
        if (alone and args_of(term) and not view) or term in outputs:
            own = name(term)
            found.append(Line(own, text[0], term, tuple(dict.fromkeys(covers))))
            texts[term], parts[term] = (own, ATOM), ()
        else:
            texts[term], parts[term] = text, covers
    return found


def _read(term: Tensor) -> Counter[Tensor]:
    """Count how often a term reads each of its arguments."""
    if isinstance(term, Scope):
        parts = Counter([term.body]) + uses_of(term.body)
        found = Counter[Tensor]()
        for part, count in parts.items():
            if isinstance(part, Read):
                found[part.tensor] += count
        return found
    return Counter(term.args if isinstance(term, Op) else args_of(term))


def in_one(
    outputs: Sequence[Tensor],
    leaf: Callable[[Tensor], str | None],
    longest: int,
    brief: bool = False,
) -> str | None:
    """Return a program with one output as one formula; None if the formula would be longer than
    ``longest`` characters, or would read a computed value twice."""
    if len(outputs) != 1:
        return None
    texts: dict[Tensor, Formula] = {}
    used: set[Tensor] = set()
    stack: list[tuple[Tensor, bool]] = [(outputs[0], False)]
    while stack:
        term, done = stack.pop()
        known = leaf(term)
        if known is not None:
            texts[term] = known, ATOM
        elif done:
            texts[term] = formula(term, texts.__getitem__, brief)
            if len(texts[term][0]) > longest:
                return None
        else:
            inner = {arg: count for arg, count in _read(term).items() if leaf(arg) is None}
            if used & inner.keys() or any(count > 1 for count in inner.values()):
                return None
            used |= inner.keys()
            stack.append((term, True))
            stack += [(arg, False) for arg in args_of(term)]
    return texts[outputs[0]][0]
