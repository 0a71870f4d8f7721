"""The regions of a program that a derivation changed, each before and after.

Two programs are compared at the values that both compute; two terms of one e-class are one value.
A shared value is computed from other shared values either by the same operator in both programs, or
by different operators. In the second case the operators form a region that was changed:

    x, w, s, b    relu(conv3x3(x, w) * s + b)   ->   conv3x3(x, w0, bias w1, relu)

Here are the search for the regions, and the steps of each region as the lines that they change. Not
here: the dataclasses of a region (``sides.py``), its text (``told.py``), the derivation itself
(``explanation.py``).
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
"""The most steps of one region that are written out."""

# Rules that change how a value is written, but not how it is computed (``x.reshape(s)`` as a
# ``Split``). A step by such a rule is shown together with the next step by another rule.
_SPELLING: Final = frozenset({
    "canonical-form", "derived-form", "identity-view", "traversal-merge", "view-merge",
    "traversal-order", "expression-fusion", "reduction-merge", "reduction-unfold",
    "iterator-merge", "number-is-full", "read-constants", "derived-constants",
    "reshape-of-reshape", "reshape-same", "split-as-reshape", "merge-as-reshape", "match-view",
    AFFINE_FORM,
})  # fmt: skip


@dataclass
class _Region:
    """A region while it is found: parts of both programs that compute the same e-classes.

    Attributes:
        outputs: the e-classes that the region computes.
        before, after: the terms of the first and of the second program, as ordered sets.
        leaves: the e-classes that the region reads.
    """

    outputs: list[Term]
    before: dict[Tensor, None] = field(default_factory=dict)
    after: dict[Tensor, None] = field(default_factory=dict)
    leaves: set[Term] = field(default_factory=set)


def changes(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes
) -> tuple[Change, ...]:
    """The regions that differ between two whole programs, in the order of the second program.

    Regions that are equal up to names of inputs and weights are one ``Change``, with all places.

    Raises:
        EquivalenceError: the log has no derivation from one program to the other.
    """
    # This adds affine forms of indices to the derivation, where its equalities need them.
    derivation.lemmas(before, after)
    return _alike(_Comparison(derivation, before, after, times).changes())


def kept(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes, found: Sequence[Change]
) -> tuple[Side, Side]:
    """The operators outside of all changes, of the first and of the second program.

    They are the same operators on the same values. The two sides have no lines and no formula.

    Args:
        found: the changes, from :func:`changes`.
    """
    compared = _Comparison(derivation, before, after, times)
    changed = [{t for change in found for one in change.alike for t in one[n]} for n in (0, 1)]
    return (
        compared.rest(compared.original, changed[0], times.before),
        compared.rest(compared.found, changed[1], times.after),
    )


def wholes(
    derivation: Derivation, before: Term, after: Term, times: OperatorTimes
) -> tuple[Side, Side]:
    """The two whole programs as sides; a value that both compute has one name in both."""
    return _Comparison(derivation, before, after, times).wholes(before, after)


class _Comparison:
    """Two programs, compared value by value.

    Attributes:
        classes: term -> its e-class.
        original, found: for the first and the second program, e-class -> the term that computes it.
        common: the e-classes that both programs compute, each by itself. One that a kernel computes
            on the way to another isn't among them: it has no time, and what it saves is in that
            other's time.
        timed: timed term -> its e-class.
        outputs: the e-classes of the outputs.
    """

    def __init__(
        self, derivation: Derivation, before: Term, after: Term, times: OperatorTimes
    ) -> None:
        self.derivation, self.forest = derivation, derivation.forest
        grounds = {t: derivation.tensor(t) for known in (times.before, times.after) for t in known}
        self.times = times
        self.classes: dict[Tensor, Term] = {}
        self.original = self._tops(before)
        self.found = self._tops(after)
        # A timed term may write its constants differently from the programs' terms, so times are
        # looked up by e-class.
        self.timed = {term: self.forest.class_of(ground) for term, ground in grounds.items()}
        self.outputs = [
            self.classes[term] for term in derivation.outputs_of(after) if not term.constant
        ]
        alone = {self.timed[term] for term in times.after} | {*self.outputs}
        within = {self.forest.class_of(derivation.tensor(term)) for term in times.within} - alone
        self.common = (self.original.keys() & self.found.keys()) - within

    def _tops(self, whole: Term) -> dict[Term, Tensor]:
        """For each e-class that a program computes, its last term of that class.

        A program may compute several terms of one class in a row, such as ``x`` and a view of it
        with the same elements.
        """
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
        """The operators of a program that are in no change, and their time in all.

        Args:
            tops: the program's e-classes and terms.
            changed: the terms that are in a change.
            seconds: the times that are known.
        """
        own = {cls: t for cls, t in tops.items() if t not in changed and not isinstance(t, Input)}
        timed = [s for t, s in seconds.items() if self.timed[t] in own]
        return Side((), "", _counted(own.values()), tuple(own.values()), sum(timed) or None)

    def _places(self) -> list[Term]:
        order = [self.classes[t] for t in topological(list(self.found.values())) if not t.constant]
        return [cls for cls in dict.fromkeys(order) if cls in self.common]

    def _cone(self, root: Tensor, leaves: set[Term]) -> tuple[dict[Tensor, None], set[Term]]:
        """The terms that compute ``root`` from given values, and the given values that they read.

        Args:
            leaves: the e-classes of the given values; inputs are given, too.
        """
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
        """The region that computes the value ``cls`` from the nearest shared values.

        None if both programs compute it by the same operator on the same values.
        """
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
        """Merge regions that have a term in common."""
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
        """The outputs of a region that are read outside of it, by another operator or as a result
        of the program; all outputs if there are none."""
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
        """Rebuild the second program's terms of a region over the first program's values.

        Both sides of the region then read the same terms, and a derivation joins them.
        """
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
        """The steps of a chain as lines that go and come.

        A step that only changes how values are written is joined with the next other step. If the
        lines return to an earlier state, the steps since then are dropped.
        """
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
                # These lines were shown before: the step changes nothing that is shown, or it ends
                # a detour, whose steps are dropped.
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
    """Kind of operator -> the number of terms of that kind, in the order of first terms."""
    return dict(Counter(map(kind_of, terms)))


def _difference(
    now: Sequence[Line], following: Sequence[Line]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that only ``now`` has, and the lines that only ``following`` has."""
    old, new = ({_meaning([line]): str(line) for line in lines} for lines in (now, following))
    return (
        tuple(text for meaning, text in old.items() if meaning not in new),
        tuple(text for meaning, text in new.items() if meaning not in old),
    )


def _meaning(lines: Sequence[Line]) -> tuple[object, ...]:
    """A key of lines. It ignores the order of operands, axes of extent 1 that are added to a
    constant, and the numbers of computed constants (``w0``, ``w1``)."""
    return tuple((line.name, spelled(line.text)) for line in lines)


def spelled(text: str) -> tuple[str, ...]:
    """The words of a formula, sorted: ``(x + w1[:, None])`` -> ``("+", "w", "x")``.

    Parentheses, added axes and numbers of constants are left out. A formula with a matrix product
    stays whole, since the order of its operands matters.
    """
    text = re.sub(r"\[[:None, ]+\]", "", text)
    text = re.sub(r"\bw\d+\b", "w", text)
    if " @ " in text:
        return (text,)
    return tuple(sorted(text.replace("(", " ").replace(")", " ").split()))


def is_spelling(rule: str) -> bool:
    """Whether a rule only changes how a value is written; definitions of operators do, too."""
    return rule in _SPELLING or rule.endswith("-definition")


def place(terms: Sequence[Tensor]) -> str:
    """The places of operators in the user's model: ``layer1.conv1, layer1.bn1``; at most four."""
    found = [term.origin for term in reversed(terms) if isinstance(term, Op) and term.origin]
    modules = list(dict.fromkeys(origin.split(", ")[0] for origin in found))
    return ", ".join(modules[:4]) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")


def _together(sides: Sequence[Side]) -> Side:
    """The first of several equal sides, with the sum of all their times."""
    known = [side.time_s for side in sides if side.time_s is not None]
    return replace(sides[0], time_s=sum(known) if known else None)


def _alike(found: Sequence[Change]) -> tuple[Change, ...]:
    """Join changes of equal key into one, with the places and the terms of all."""
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
