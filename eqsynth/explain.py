"""Why a result is equal to the original: whole programs, each one rule instance from the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from eqsynth.egraph.explanation import Derivation, Value
from eqsynth.egraph.graph import EGraph, Log
from eqsynth.egraph.proof import Step
from eqsynth.egraph.segments import Segment, over
from eqsynth.egraph.terms import Term
from eqsynth.extract.plan import Plan, State
from eqsynth.extract.select import constant_terms
from eqsynth.ir.index import Index
from eqsynth.ir.printing import render, render_program
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Scalar
from eqsynth.ir.tensor import ClassRef, Tensor, args_of


@dataclass(frozen=True)
class RewriteStep:
    """One rule instance: ``rule`` turns ``position[0]`` into ``position[1]``, wherever it stands in
    ``before``, which becomes ``after``. ``forward``: the rule was used from left to right."""

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


class Explanation:
    """A derivation: ``steps``, and as text what each of them changed.

    >>> print(program.explain())                                          # doctest: +SKIP
    """

    def __init__(self, derivation: Derivation, before: Term, after: Term) -> None:
        self._derivation, self._before, self._after = derivation, before, after

    @cached_property
    def steps(self) -> tuple[RewriteStep, ...]:
        """Each step's ``before`` is the ``after`` of the step in front of it.

        Raises:
            EquivalenceError: the log doesn't contain what makes the programs equal.
        """
        return tuple(map(self._step, self._derivation.explain(self._before, self._after)))

    def _step(self, step: Step) -> RewriteStep:
        decode = self._derivation.decode
        return RewriteStep(
            rule=step.rule,
            forward=step.forward,
            position=(decode(step.position[0]), decode(step.position[1])),
            before=_outputs(decode(step.before)),
            after=_outputs(decode(step.after)),
        )

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules used, in order."""
        return tuple(step.rule for step in self.steps)

    @property
    def found(self) -> Program:
        """The program that was chosen; unlike the steps to it, this takes no search."""
        return Program((), _outputs(self._derivation.decode(self._after)))

    def programs(self) -> Iterator[tuple[str, Program]]:
        """(rule, whole program after it), the original first, under the name ``original``."""
        yield "original", Program((), _outputs(self._derivation.decode(self._before)))
        for step in self.steps:
            yield step.rule, Program((), step.after)

    def __str__(self) -> str:
        original = render_program(Program((), _outputs(self._derivation.decode(self._before))))
        final = render_program(self.found)
        parts = [f"original program\n{_indent(original)}"]
        parts += [f"{n}. {step}" for n, step in enumerate(self.steps, 1)]
        return "\n".join([*parts, f"optimized program\n{_indent(final)}"])


@dataclass(frozen=True)
class NoExplanation:
    """Why there is nothing to explain; as text."""

    reason: str
    steps: tuple[RewriteStep, ...] = ()

    def __str__(self) -> str:
        return self.reason


def explain_plan(
    program: Program,
    segments: tuple[Segment, ...],
    logs: Mapping[bytes, Log | None],
    graph: EGraph,
    plan: Plan,
) -> Explanation | NoExplanation:
    """The derivation of a plan from the program that it was extracted for."""
    derivation = Derivation()
    for segment in segments:
        log = logs[segment.key]
        if log is None:
            return NoExplanation("matches were not logged: optimize with explain=True")
        derivation.add_log(log, segment.names)
    before = derivation.outputs(program.outputs)
    after = derivation.outputs(planned_terms(graph, plan))
    return Explanation(derivation, before, after)


def planned_terms(graph: EGraph, plan: Plan) -> tuple[Tensor, ...]:
    """The program that a plan computes, as terms over the inputs and weights."""
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
        terms[step.result] = over(step.member, images)
    return tuple(
        constants[state[0]] if state[0].constant else terms[state] for state in plan.outputs
    )


def _outputs(value: Value) -> tuple[Tensor, ...]:
    assert isinstance(value, tuple)
    return value


def _text(value: Value) -> str:
    if isinstance(value, Tensor):
        return render(value)
    if isinstance(value, Index | Scalar):
        return str(value)
    return ", ".join(render(part) for part in value)


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


