"""Why a result is equal to the original: whole programs, each one rule instance from the last."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from eqsynth import notebook
from eqsynth.egraph.chains import Step
from eqsynth.egraph.explanation import Derivation, Value
from eqsynth.egraph.graph import EGraph, Log
from eqsynth.egraph.proof import Lemma as GroundLemma
from eqsynth.egraph.proof import Pair
from eqsynth.egraph.segments import Segment, inlined
from eqsynth.egraph.terms import Term
from eqsynth.errors import ExplanationTooLong
from eqsynth.explain.changes import changes, kept, wholes
from eqsynth.explain.sides import Change, Side
from eqsynth.explain.told import summary
from eqsynth.extract.constants import constant_terms
from eqsynth.extract.plan import Plan, State
from eqsynth.extract.timing import OperatorTimes
from eqsynth.ir.index import Index
from eqsynth.ir.printing import render, render_program, render_term
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Scalar
from eqsynth.ir.tensor import ClassRef, Region, Tensor, args_of, over, topological


@dataclass(frozen=True)
class RewriteStep:
    """One rule instance: ``rule`` turns ``position[0]`` into ``position[1]``, wherever it stands in
    ``before``, which becomes ``after``. ``forward``: the rule was used from left to right. Besides
    rules there is ``affine-form``, by which Python puts the terms of an index in order."""

    rule: str
    forward: bool
    position: tuple[Value, Value]
    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    @property
    def changes_tensors(self) -> bool:
        """False for laws of indices and scalars, which change a body's spelling."""
        return isinstance(self.position[0], Tensor)

    def __str__(self) -> str:
        arrow = "=>" if self.forward else "<="
        left, right = (_text(value) for value in self.position)
        return f"{arrow} {self.rule}\n{_indent(left)}\n  is\n{_indent(right)}"


@dataclass(frozen=True)
class Lemma:
    """``terms[0]`` equals ``terms[-1]``: ``links[n]`` says why ``terms[n]`` equals
    ``terms[n + 1]``, one rule instance at the root, or replaced arguments."""

    terms: tuple[Value, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Link:
    """Why two terms are equal: ``rule``, and whether it was used from left to right; or, where it
    is empty, the numbers of the ``lemmas`` that make their arguments equal."""

    rule: str = ""
    forward: bool = True
    lemmas: tuple[int, ...] = ()


class Explanation:
    """A derivation, in two forms: ``steps``, a chain of whole programs, and ``lemmas``, where a
    pair of subterms is proved once however often the chain would need it again.

    As text it is a headline for each region that was changed, and what its steps changed; in full
    it is the steps, or the lemmas if there are more than ``longest_text`` steps: the chain of an
    unrolled recurrent network is exponential in its length, its lemmas are linear.

    >>> print(program.explain())                                          # doctest: +SKIP
    >>> print(program.explain("full"))                                    # doctest: +SKIP
    """

    longest = 20_000
    longest_text = 1_000

    def __init__(
        self,
        derivation: Derivation,
        before: Term,
        after: Term,
        note: str = "",
        times: OperatorTimes = OperatorTimes(),  # noqa: B008  (frozen)
    ) -> None:
        """
        Args:
            note: what the text begins with: that a part of the program wasn't rewritten, and why.
            times: of operators, as far as they are known.
        """
        self._derivation, self._before, self._after = derivation, before, after
        self.note, self.times = note, times

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The regions of the program that were changed, equal ones once.

        Raises:
            EquivalenceError: the log doesn't contain what makes the programs equal.
        """
        return changes(self._derivation, self._before, self._after, self.times)

    @property
    def kept(self) -> tuple[Side, Side]:
        """What stands outside of all changes, before and after: the same operators."""
        return kept(self._derivation, self._before, self._after, self.times, self.changes)

    @property
    def wholes(self) -> tuple[Side, Side]:
        """The original and what was chosen, as formulas; equal values have one name."""
        return wholes(self._derivation, self._before, self._after, self.times)

    @cached_property
    def steps(self) -> tuple[RewriteStep, ...]:
        """Each step's ``before`` is the ``after`` of the step in front of it.

        Raises:
            EquivalenceError: the log doesn't contain what makes the programs equal.
            ExplanationTooLong: there are more than ``longest`` steps; ``lemmas`` has no limit.
        """
        return self._chain(self.longest)

    def _chain(self, longest: int) -> tuple[RewriteStep, ...]:
        return tuple(map(self._step, self._derivation.chain(self._before, self._after, longest)))

    def _step(self, step: Step) -> RewriteStep:
        decode = self._derivation.decode
        return RewriteStep(
            rule=step.rule,
            forward=step.forward,
            position=(decode(step.position[0]), decode(step.position[1])),
            before=self._derivation.outputs_of(step.before),
            after=self._derivation.outputs_of(step.after),
        )

    @cached_property
    def lemmas(self) -> tuple[Lemma, ...]:
        """Each lemma rests on the log and on lemmas before it; the last is about whole programs.

        Raises:
            EquivalenceError: the log doesn't contain what makes the programs equal.
        """
        ground = self._derivation.lemmas(self._before, self._after)
        numbers = {lemma.pair: number for number, lemma in enumerate(ground)}
        return tuple(self._lemma(lemma, numbers) for lemma in ground)

    def _lemma(self, lemma: GroundLemma, numbers: Mapping[Pair, int]) -> Lemma:
        here = lemma.pair[0]
        terms, links = [self._derivation.decode(here)], list[Link]()
        for segment in lemma.path:
            why = segment.edge.justification
            if why is None:
                pairs = self._derivation.forest.arguments((here, segment.to))
                needed = dict.fromkeys(numbers[pair] for pair in pairs if pair[0] != pair[1])
                links.append(Link(lemmas=tuple(needed)))
            else:
                links.append(Link(why.rule, segment.edge.forward))
            here = segment.to
            terms.append(self._derivation.decode(here))
        return Lemma(tuple(terms), tuple(links))

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules used, in the order of the lemmas; a name once."""
        used = (link.rule for lemma in self.lemmas for link in lemma.links if link.rule)
        return tuple(dict.fromkeys(used))

    @property
    def found(self) -> Program:
        """The program that was chosen; unlike the steps to it, this takes no search."""
        return Program((), self._derivation.outputs_of(self._after))

    def programs(self, longest: int | None = None) -> Iterator[tuple[str, Program]]:
        """(rule, whole program after it), the original first, under the name ``original``.

        Raises:
            ExplanationTooLong: there are more than ``longest`` steps.
        """
        yield "original", Program((), self._derivation.outputs_of(self._before))
        for step in self.steps if longest is None else self._chain(longest):
            yield step.rule, Program((), step.after)

    def __str__(self) -> str:
        return summary(self.changes, [self.note] if self.note else [])

    def _repr_html_(self) -> str:
        return notebook.code(str(self))

    @property
    def full(self) -> str:
        """Every step with all that stands around it, or the lemmas if the steps are too many."""
        original = render_program(Program((), self._derivation.outputs_of(self._before)))
        final = render_program(self.found)
        try:
            steps = self._chain(self.longest_text)
            parts = [f"{n}. {step}" for n, step in enumerate(steps, 1)]
        except ExplanationTooLong:
            parts = [_lemmas_text(self.lemmas)]
        before, after = f"original program\n{_indent(original)}", "optimized program"
        notes = [self.note] if self.note else []
        return "\n".join([*notes, before, *parts, f"{after}\n{_indent(final)}"])


@dataclass(frozen=True)
class NoExplanation:
    """Why there is nothing to explain; as text."""

    reason: str
    steps: tuple[RewriteStep, ...] = ()

    def __str__(self) -> str:
        return self.reason

    def _repr_html_(self) -> str:
        return notebook.code(self.reason)

    @property
    def full(self) -> str:
        return self.reason


def explain_plan(
    program: Program,
    segments: tuple[Segment, ...],
    logs: Mapping[bytes, Log | None],
    graph: EGraph,
    plan: Plan,
    cut_short: Mapping[bytes, str] | None = None,
    times: Callable[[], OperatorTimes] = OperatorTimes,
) -> Explanation | NoExplanation:
    """The derivation of a plan from the program that it was extracted for.

    Args:
        cut_short: segments that weren't searched to the end, and why. One of them that has no log
            stays as it was.
        times: of operators, as far as they are known when the explanation is asked for.
    """
    derivation = Derivation()
    stops = [(cut_short or {}).get(segment.key, "") for segment in segments]
    for segment, stop in zip(segments, stops, strict=True):
        log = logs[segment.key]
        if log is not None:
            derivation.add_log(log, segment.names)
        elif not stop:
            return NoExplanation("matches were not logged: optimize with explain=True")
    why = ", ".join(dict.fromkeys(filter(None, stops)))
    if why and all(logs[segment.key] is None for segment in segments):
        return NoExplanation(f"nothing was rewritten: {why}")
    count = sum(map(bool, stops))
    note = f"{count} of {len(segments)} segments weren't searched to the end: {why}" if why else ""
    before = derivation.outputs(program.outputs)
    after = derivation.outputs(planned_terms(graph, plan))
    return Explanation(derivation, before, after, note, times())


def planned_terms(graph: EGraph, plan: Plan) -> tuple[Tensor, ...]:
    """The program that a plan computes, as terms over the inputs and weights."""
    constants, terms = planned_values(graph, plan)
    return tuple(
        constants[state[0]] if state[0].constant else terms[state] for state in plan.outputs
    )


def planned_values(
    graph: EGraph, plan: Plan
) -> tuple[Mapping[ClassRef, Tensor], Mapping[State, Tensor]]:
    """What a plan computes, constants and values at run time, over the inputs and weights."""
    constants = constant_terms(
        graph,
        list(
            dict.fromkeys(
                [ref for step in plan.steps for ref in step.constants.values()]
                + [state[0] for state in plan.outputs if state[0].constant]
            )
        ),
    )
    terms: dict[State, Tensor] = {}
    for state in plan.inputs.values():
        leaf = next(m for m in graph.classes[state[0]] if not args_of(m) and m.label in plan.inputs)
        terms[state] = leaf
    for step in plan.steps:
        if isinstance(step.member, ClassRef):
            terms[step.result] = terms[step.args[0]]
            continue
        images: dict[Tensor, Tensor] = {}
        given = iter(step.args)
        for n, arg in enumerate(args_of(step.member)):
            known = step.constants.get(n)
            images[arg] = terms[next(given)] if known is None else constants[known]
        if isinstance(step.member, Region):
            found = inlined(step.member, [images[arg] for arg in step.member.args])
            terms.update(zip((step.result, *step.also), found, strict=True))
        else:
            terms[step.result] = over(step.member, images)
    return constants, terms


def _lemmas_text(lemmas: Sequence[Lemma]) -> str:
    """The terms that the lemmas speak of, each named once, and the lemmas over these names.

    Lemmas about scalars and indices are told where a lemma about tensors rests on them: by the
    laws that they used.
    """
    spoken = [part for lemma in lemmas for value in lemma.terms for part in _tensors(value)]
    terms = [term for term in topological(spoken) if args_of(term)]
    names = {term: f"t{n}" for n, term in enumerate(terms)}
    told: list[tuple[str, ...]] = []  # for each lemma, what a link to it says
    numbers = itertools.count(1)
    lines = ["terms", *(f"    {names[term]} = {render_term(term, names)}" for term in terms)]
    for lemma in lemmas:
        reasons = [
            (f"{'=>' if link.forward else '<='} {link.rule}",)
            if link.rule
            else tuple(dict.fromkeys(why for n in link.lemmas for why in told[n]))
            for link in lemma.links
        ]
        if not _tensors(lemma.terms[0]):
            told.append(tuple(dict.fromkeys(why for reason in reasons for why in reason)))
            continue
        told.append((f"lemma {next(numbers)}",))
        first, *others = (
            ", ".join(names.get(term, term.label) for term in _tensors(value))
            for value in lemma.terms
        )
        lines += ["", f"{told[-1][0]}: {first}"]
        for reason, other in zip(reasons, others, strict=True):
            lines.append(f"    = {other}  ({', '.join(reason)})")
    return "\n".join(lines)


def _tensors(value: Value) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    # An index is a tuple too, of its own parts.
    return value if isinstance(value, tuple) and not isinstance(value, Index) else ()


def _text(value: Value) -> str:
    if isinstance(value, Tensor):
        return render(value)
    if isinstance(value, Index | Scalar):
        return str(value)
    return ", ".join(render(part) for part in value)


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
