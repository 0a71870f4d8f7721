"""The derivation of an optimized program: a chain of whole programs, or a list of lemmas.

    (q @ k.T) @ v   =>   q @ (k.T @ v)     by one instance of the rule matmul-assoc

Each program of the chain differs from the one before by one instance of a rule. Not here: the
derivation on the e-graph's own terms (``egraph/explanation.py``), its text in short (``told.py``).
"""

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
    """One instance of a rule, used on a whole program.

    Attributes:
        rule: its name; or ``affine-form``, by which Python brings an index into a normal form.
        forward: whether the rule was used from left to right.
        position: the term that is replaced, wherever it occurs in ``before``, and its replacement.
        before, after: the outputs of the program before and after the step.
    """

    rule: str
    forward: bool
    position: tuple[Value, Value]
    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    @property
    def changes_tensors(self) -> bool:
        """Whether the step replaces a tensor; else it rewrites a scalar or an index in a body."""
        return isinstance(self.position[0], Tensor)

    def __str__(self) -> str:
        arrow = "=>" if self.forward else "<="
        left, right = (_text(value) for value in self.position)
        return f"{arrow} {self.rule}\n{_indent(left)}\n  is\n{_indent(right)}"


@dataclass(frozen=True)
class Lemma:
    """A proof that ``terms[0]`` equals ``terms[-1]``: ``links[n]`` says why ``terms[n]`` equals
    ``terms[n + 1]``: by one instance of a rule at the root, or since their arguments are equal."""

    terms: tuple[Value, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Link:
    """Why two terms are equal.

    Attributes:
        rule: the rule that turns one into the other; empty if their arguments are equal.
        forward: whether the rule was used from left to right.
        lemmas: if ``rule`` is empty, the numbers of the lemmas that make the arguments equal.
    """

    rule: str = ""
    forward: bool = True
    lemmas: tuple[int, ...] = ()


class Explanation:
    """A derivation of the optimized program from the original.

    It has two forms: ``steps``, a chain of whole programs, and ``lemmas``, where the equality of
    two subterms is proved once, even if the chain would need it several times. The chain of an
    unrolled recurrent network is exponential in its length; its lemmas are linear.

    As text, an explanation has a headline for each region that was changed, and the lines that its
    steps changed. The full text has the steps, or the lemmas if there are more than
    ``longest_text`` steps.

    Attributes:
        longest: the most steps that ``steps`` gives.
        longest_text: the most steps that the full text has.

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
            note: the first line of the text, for example which part of the program wasn't
                searched to the end, and why; empty for none.
            times: the times of operators, as far as they are known.
        """
        self._derivation, self._before, self._after = derivation, before, after
        self.note, self.times = note, times

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The regions of the program that were changed; several equal regions are one change.

        Raises:
            EquivalenceError: the log has no derivation from one program to the other.
        """
        return changes(self._derivation, self._before, self._after, self.times)

    @property
    def kept(self) -> tuple[Side, Side]:
        """The operators outside of all changes, of the original and of the optimized program. They
        are the same operators; their times may differ."""
        return kept(self._derivation, self._before, self._after, self.times, self.changes)

    @property
    def wholes(self) -> tuple[Side, Side]:
        """The original and the optimized program as formulas; equal values have one name."""
        return wholes(self._derivation, self._before, self._after, self.times)

    @cached_property
    def steps(self) -> tuple[RewriteStep, ...]:
        """The chain from the original to the optimized program. Each step's ``before`` is the
        ``after`` of the step before it.

        Raises:
            EquivalenceError: the log has no derivation from one program to the other.
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
        """The lemmas, in order: each uses the log and lemmas before it. The last one proves that
        the two whole programs are equal.

        Raises:
            EquivalenceError: the log has no derivation from one program to the other.
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
        """The names of the rules that were used, each once, in the order of the lemmas."""
        used = (link.rule for lemma in self.lemmas for link in lemma.links if link.rule)
        return tuple(dict.fromkeys(used))

    @property
    def found(self) -> Program:
        """The optimized program. Unlike ``steps``, this needs no search for a derivation."""
        return Program((), self._derivation.outputs_of(self._after))

    def programs(self, longest: int | None = None) -> Iterator[tuple[str, Program]]:
        """The whole programs of the chain, each with the rule that leads to it. The original comes
        first, under the name ``original``.

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
        """The full text: both programs and every step between them, or the lemmas if there are too
        many steps."""
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
    """The reason why there is no explanation, in place of an :class:`Explanation`."""

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
        segments: the segments that the program was cut into.
        logs: for each segment, by its key, the log of its saturation; None without one.
        cut_short: for segments that weren't searched to the end, by their key, the reason. Such a
            segment may have no log; it wasn't rewritten then.
        times: gives the times of operators that are known when it is called.
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
    """The values of a plan as terms over the inputs and weights: its constants by their e-class,
    and its values at run time by their state."""
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
    """The lemmas as text: first a list of named terms, then the lemmas over these names.

    A lemma about scalars or indices isn't written by itself. A lemma about tensors that uses it
    lists the rules of its proof instead.
    """
    spoken = [part for lemma in lemmas for value in lemma.terms for part in _tensors(value)]
    terms = [term for term in topological(spoken) if args_of(term)]
    names = {term: f"t{n}" for n, term in enumerate(terms)}
    told: list[tuple[str, ...]] = []  # for each lemma, the reasons that a use of it shows
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
    # An index is a tuple, too, but not of tensors.
    return value if isinstance(value, tuple) and not isinstance(value, Index) else ()


def _text(value: Value) -> str:
    if isinstance(value, Tensor):
        return render(value)
    if isinstance(value, Index | Scalar):
        return str(value)
    return ", ".join(render(part) for part in value)


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
