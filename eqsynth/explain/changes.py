"""The regions of a program that a derivation changed, each before and after.

Two programs are compared at the values that both compute: values of one e-class. Between two such
places stands either the same operator on the same values, or a region that was changed:

    x, w, s, b    relu(conv3x3(x, w) * s + b)   ->   conv3x3(x, w0, bias w1, relu)

Here: which regions there are, and the steps of each as the lines that they change. Not here: what
a region is, as data (``sides.py``), the text (``told.py``), the proof itself (``explanation.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from eqsynth.egraph.chains import Step
from eqsynth.egraph.explanation import AFFINE_FORM, Derivation
from eqsynth.egraph.terms import Term
from eqsynth.errors import ExplanationTooLong
from eqsynth.explain.naming import Names
from eqsynth.explain.sides import Change, Side, Told
from eqsynth.extract.timing import OperatorTimes
from eqsynth.ir.formulas import Line, in_one, kind_of
from eqsynth.ir.tensor import Input, Op, Tensor, args_of, over, topological

LONGEST_CHAIN: Final = 300
"""Steps of one region that are written out."""

# Rules that change how a value is spelled, and not how it is computed: a step by one of them is
# told with the next step by another rule.
_SPELLING: Final = frozenset({
    "canonical-form", "derived-form", "identity-view", "traversal-merge", "view-merge",
    "traversal-order", "expression-fusion", "reduction-merge", "reduction-unfold",
    "iterator-merge", "number-is-full", "read-constants", "derived-constants",
    "reshape-of-reshape", "reshape-same", "split-as-reshape", "merge-as-reshape", "match-view",
    AFFINE_FORM,
})  # fmt: skip


@dataclass
class _Region:
    """Classes that come out, and the terms of both programs that compute them."""

    outputs: list[Term]
    before: dict[Tensor, None] = field(default_factory=dict)
    after: dict[Tensor, None] = field(default_factory=dict)
    leaves: set[Term] = field(default_factory=set)


def changes(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes
) -> tuple[Change, ...]:
    """The regions that differ between two whole programs, in the order of the second; what is equal
    up to names is told once.

    Raises:
        EquivalenceError: the log doesn't contain what makes the programs equal.
    """
    derivation.lemmas(before, after)  # indices are read as affine, where that is needed
    return _alike(_Comparison(derivation, before, after, times).changes())


def kept(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes, found: Sequence[Change]
) -> tuple[Side, Side]:
    """What stands in neither side of a change, before and after: the same operators on the same
    values. Without lines and formulas."""
    compared = _Comparison(derivation, before, after, times)
    changed = [{t for change in found for one in change.alike for t in one[n]} for n in (0, 1)]
    return (
        compared.rest(compared.original, changed[0], times.before),
        compared.rest(compared.found, changed[1], times.after),
    )


def wholes(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes
) -> tuple[Side, Side]:
    """The two programs as a whole; values of one class have one name in both."""
    return _Comparison(derivation, before, after, times).wholes(before, after)


class _Comparison:
    def __init__(
        self, derivation: Derivation, before: Term, after: Term, times: OperatorTimes
    ) -> None:
        self.derivation, self.forest = derivation, derivation.forest
        grounds = {t: derivation.tensor(t) for known in (times.before, times.after) for t in known}
        self.times = times
        self.classes: dict[Tensor, Term] = {}
        self.original = self._tops(before)
        self.found = self._tops(after)
        self.common = self.original.keys() & self.found.keys()
        # What was timed may read its constants in other words than the programs.
        self.timed = {term: self.forest.class_of(ground) for term, ground in grounds.items()}
        self.outputs = [
            self.classes[term] for term in derivation.outputs_of(after) if not term.constant
        ]

    def _tops(self, whole: Term) -> dict[Term, Tensor]:
        """The value of each class in a program: the last of those that it computes in a row."""
        found: dict[Term, Tensor] = {}
        terms = self.derivation.tensors(whole)
        self.classes |= {term: self.forest.class_of(ground) for term, ground in terms.items()}
        for term in topological(self.derivation.outputs_of(whole)):
            if not term.constant:
                found[self.classes[term]] = term
        return found

    def changes(self) -> list[Change]:
        regions = self._merged([r for r in map(self._region, self._places()) if r is not None])
        return [self._change(region) for region in regions]

    def wholes(self, before: Term, after: Term) -> tuple[Side, Side]:
        roots = [self.derivation.outputs_of(whole) for whole in (before, after)]
        terms = [tuple(t for t in topological(root) if not t.constant) for root in roots]
        names, known = Names(self.classes, {}, [*terms[0], *terms[1]]), self.times
        old = self._side(roots[0], terms[0], names, known.before, {})
        new = self._side(roots[1], terms[1], names, known.after, known.kernels)
        told = [names.where(map(str, side.lines)) for side in (old, new)]
        return replace(old, where=told[0]), replace(new, where=told[1])

    def rest(
        self, tops: Mapping[Term, Tensor], changed: set[Tensor], seconds: Mapping[Tensor, float]
    ) -> Side:
        """Operators of a program that stand in no change."""
        own = {cls: t for cls, t in tops.items() if t not in changed and not isinstance(t, Input)}
        timed = [s for t, s in seconds.items() if self.timed[t] in own]
        return Side((), "", _counted(own.values()), tuple(own.values()), sum(timed) or None)

    def _places(self) -> list[Term]:
        order = [self.classes[t] for t in topological(list(self.found.values())) if not t.constant]
        return [cls for cls in dict.fromkeys(order) if cls in self.common]

    def _cone(self, root: Tensor, leaves: set[Term]) -> tuple[dict[Tensor, None], set[Term]]:
        """What a value is computed by, down to given values; and which of these it reads."""
        inside, read = dict[Tensor, None](), set[Term]()
        stack = [root]
        while stack:
            term = stack.pop()
            if term in inside:
                continue
            inside[term] = None
            for arg in args_of(term):
                if arg.constant:
                    continue
                if self.classes[arg] in leaves or isinstance(arg, Input):
                    read.add(self.classes[arg])
                else:
                    stack.append(arg)
        return inside, read

    def _region(self, cls: Term) -> _Region | None:
        """What computes a value in the second program, against what does in the first; None if that
        is the same operator on the same values."""
        old, new = self.original[cls], self.found[cls]
        if isinstance(new, Input):
            return None
        after, leaves = self._cone(new, self.common - {cls})
        before, _ = self._cone(old, leaves)
        alike = len(before) == len(after) == 1 and self._same(old, new)
        return None if alike else _Region([cls], before, after, leaves)

    def _same(self, old: Tensor, new: Tensor) -> bool:
        if isinstance(old, Input):
            return False
        bank = self.forest.bank
        a, b = (bank[self.derivation.tensor(term)] for term in (old, new))
        pairs = zip(a.children, b.children, strict=False)
        return a.head == b.head and all(self.forest.equal(x, y) for x, y in pairs)

    def _merged(self, regions: Sequence[_Region]) -> list[_Region]:
        """Regions that share an operator are one."""
        found: list[_Region] = []
        for region in regions:
            mine = [
                other
                for other in found
                if other.after.keys() & region.after or other.before.keys() & region.before
            ]
            for other in mine:
                found.remove(other)
            merged = _Region([cls for r in (*mine, region) for cls in r.outputs])
            for r in (*mine, region):
                merged.before |= r.before
                merged.after |= r.after
                merged.leaves |= r.leaves
            merged.leaves -= set(merged.outputs)
            found.append(merged)
        return found

    def _change(self, region: _Region) -> Change:
        used = self._outside(region)
        old = tuple(self.original[cls] for cls in used)
        new = self._over_original(region, [self.found[cls] for cls in used])
        derivation = self.derivation
        start, end = derivation.outputs(old), derivation.outputs(new)
        for whole in (start, end):
            terms = derivation.tensors(whole)
            self.classes |= {term: self.forest.class_of(g) for term, g in terms.items()}
        leaves = {cls: self.original[cls] for cls in region.leaves}
        names = Names(self.classes, leaves, [*region.before, *region.after])
        known = self.times
        before = self._side(old, tuple(region.before), names, known.before, {})
        after = self._side(new, tuple(region.after), names, known.after, known.kernels)
        steps: tuple[Told, ...] = ()
        try:
            chain = derivation.chain(start, end, LONGEST_CHAIN)
            steps, count = self._told(chain, names), len(chain)
            rules = [step.rule for step in chain]
        except ExplanationTooLong:
            count = -1
            rules = [
                segment.edge.justification.rule
                for lemma in derivation.lemmas(start, end)
                for segment in lemma.path
                if segment.edge.justification
            ]
        shown = [*map(str, (*before.lines, *after.lines)), before.formula, after.formula]
        shown += [line for step in steps for line in (*step.gone, *step.new)]
        return Change(
            before=before,
            after=after,
            where=names.where(shown),
            places=(place(tuple(region.before)),),
            steps=steps,
            count=count,
            rules=tuple(dict.fromkeys(rules)),
            alike=((frozenset(region.before), frozenset(region.after)),),
        )

    def _outside(self, region: _Region) -> list[Term]:
        """Values of a region that something outside of it reads; all, if none is."""
        inside = {self.classes[t] for t in region.after}
        read = {
            self.classes[arg]
            for term in self.found.values()
            if term not in region.after
            for arg in args_of(term)
            if not arg.constant
        } | set(self.outputs)
        return [cls for cls in region.outputs if cls in read and cls in inside] or region.outputs

    def _over_original(self, region: _Region, roots: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The second program's terms of a region, over the first one's values."""
        images: dict[Tensor, Tensor] = {}
        for term in topological(roots):
            if term.constant or isinstance(term, Input):
                images[term] = term
            elif self.classes[term] in region.leaves:
                images[term] = self.original[self.classes[term]]
            else:
                images[term] = over(term, images)
        return tuple(images[root] for root in roots)

    def _side(
        self,
        outputs: tuple[Tensor, ...],
        terms: tuple[Tensor, ...],
        names: Names,
        seconds: Mapping[Tensor, float],
        kernels: Mapping[Tensor, str],
    ) -> Side:
        order = [term for term in topological(terms) if term in set(terms)]
        text = in_one(outputs, names.leaf, 60, brief=True) or ""
        own = {self.classes[term] for term in order}
        timed = {self.timed[t]: s for t, s in seconds.items() if self.timed[t] in own}
        by = {self.timed[t]: kernel for t, kernel in kernels.items() if self.timed[t] in own}
        shown = names.lines(outputs)
        parts = {self.classes[term]: term for line in shown for term in line.covers}
        return Side(
            tuple(shown),
            text,
            _counted(order),
            tuple(order),
            sum(timed.values()) if timed else None,
            {parts[cls]: s for cls, s in timed.items() if cls in parts},
            {parts[cls]: kernel for cls, kernel in by.items() if cls in parts},
        )

    def _told(self, chain: Sequence[Step], names: Names) -> tuple[Told, ...]:
        """The steps, those that only change a spelling with the next that does more."""
        if not chain:
            return ()
        derivation = self.derivation

        def written(whole: Term) -> list[Line]:
            terms = derivation.tensors(whole)
            names.classes |= {term: self.forest.class_of(ground) for term, ground in terms.items()}
            return names.lines(derivation.outputs_of(whole))

        told, waiting = list[Told](), list[str]()
        now = written(chain[0].before)
        seen = {_meaning(now): 0}
        for number, step in enumerate(chain):
            last = number == len(chain) - 1
            if self._of_tensors(step):
                waiting.append(step.rule)
            if not last and (is_spelling(step.rule) or not self._of_tensors(step)):
                continue
            following = written(step.after)
            known = seen.setdefault(_meaning(following), len(told) + 1)
            if known <= len(told):
                # It says what was said before: a spelling, or the way back from a detour.
                if known < len(told):
                    now = written(step.after)
                    del told[known:]
                continue
            told.append(Told(tuple(waiting), *_difference(now, following)))
            waiting, now = [], following
        if waiting and told:
            told[-1] = replace(told[-1], rules=(*told[-1].rules, *waiting))
        return tuple(told)

    def _of_tensors(self, step: Step) -> bool:
        return isinstance(self.derivation.decode(step.position[0]), Tensor)


def _counted(terms: Iterable[Tensor]) -> dict[str, int]:
    """Kind of operator -> how many of them there are, in the order of the first ones."""
    return dict(Counter(map(kind_of, terms)))


def _difference(
    now: Sequence[Line], following: Sequence[Line]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that go, and those that come."""
    old, new = ({_meaning([line]): str(line) for line in lines} for lines in (now, following))
    return (
        tuple(text for meaning, text in old.items() if meaning not in new),
        tuple(text for meaning, text in new.items() if meaning not in old),
    )


def _meaning(lines: Sequence[Line]) -> tuple[object, ...]:
    """Equal for lines that differ in the order of operands, in a constant's axes of extent 1, or in
    which computed constant is read."""
    return tuple((line.name, spelled(line.text)) for line in lines)


def spelled(text: str) -> tuple[str, ...]:
    """The words of a formula, without what only spells it otherwise; sorted, where the order of
    operands doesn't matter."""
    text = re.sub(r"\[[:None, ]+\]", "", text)
    text = re.sub(r"\bw\d+\b", "w", text)
    if " @ " in text:
        return (text,)
    return tuple(sorted(text.replace("(", " ").replace(")", " ").split()))


def is_spelling(rule: str) -> bool:
    """Whether a rule only says in other words what is computed."""
    return rule in _SPELLING or rule.endswith("-definition")


def place(terms: Sequence[Tensor]) -> str:
    """Where operators stand in the user's model: modules, else lines of code."""
    found = [term.origin for term in reversed(terms) if isinstance(term, Op) and term.origin]
    modules = list(dict.fromkeys(origin.split(", ")[0] for origin in found))
    return ", ".join(modules[:4]) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")


def _together(sides: Sequence[Side]) -> Side:
    """The first of equal sides, with the time of all."""
    known = [side.time_s for side in sides if side.time_s is not None]
    return replace(sides[0], time_s=sum(known) if known else None)


def _alike(found: Sequence[Change]) -> tuple[Change, ...]:
    groups: dict[object, list[Change]] = {}
    for change in found:
        groups.setdefault(change.key, []).append(change)
    return tuple(
        replace(
            group[0],
            places=tuple(change.places[0] for change in group),
            alike=tuple(side for change in group for side in change.alike),
            before=_together([change.before for change in group]),
            after=_together([change.after for change in group]),
        )
        for group in groups.values()
    )
