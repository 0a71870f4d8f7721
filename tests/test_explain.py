"""Explanations of optimized programs: chains of whole programs, each with the original's value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import eqsynth
from benchmarks.workloads import WORKLOADS
from eqsynth.errors import EquivalenceError
from eqsynth.explain import Explanation, NoExplanation
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.ir.work import flops
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from tests.test_prove import agree

NAMES = ["linear_attention", "bottleneck", "transition"]


@pytest.fixture(scope="module")
def programs() -> dict[str, CompiledProgram]:
    made = {}
    for name in NAMES:
        model, inputs = WORKLOADS[name].reduced()
        made[name] = optimize(model, inputs, objective="flops", time_limit_s=20)
    return made


def explanation_of(program: CompiledProgram) -> Explanation:
    explanation = program.explain()
    assert isinstance(explanation, Explanation)
    return explanation


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_starts_at_the_original(name: str, programs: dict[str, CompiledProgram]) -> None:
    model, inputs = WORKLOADS[name].reduced()
    rule, program = next(explanation_of(programs[name]).programs())
    assert rule == "original"
    assert program.outputs == capture(model, inputs).program.outputs


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_ends_at_what_runs(name: str, programs: dict[str, CompiledProgram]) -> None:
    program = programs[name]
    last = explanation_of(program).steps[-1].after
    work = sum(flops(term) for term in topological(last) if not term.constant)
    assert work == program.report.flops_after < program.report.flops_before
    runs = [s.kernel.term for s in program.steps if s.kernel.implementation != "torch.view"]
    planned = [t for t in topological(last) if isinstance(t, Op | Scope) and not t.constant]
    assert len(runs) <= len(planned)
    assert {t.type for t in runs} <= {t.type for t in planned}


@pytest.mark.parametrize("name", NAMES)
def test_every_program_of_the_chain_has_one_value(
    name: str, programs: dict[str, CompiledProgram]
) -> None:
    explanation = explanation_of(programs[name])
    assert len(explanation.steps) > 0
    assert agree(explanation) == len(explanation.steps) + 1


@pytest.mark.parametrize("name", NAMES)
def test_every_step_replays(name: str, programs: dict[str, CompiledProgram]) -> None:
    explanation = explanation_of(programs[name])
    forest = explanation._derivation.forest
    steps = explanation._derivation.explain(explanation._before, explanation._after)
    forest.replay(steps)
    assert len(steps) == len(explanation.steps)
    for step, following in zip(explanation.steps, explanation.steps[1:], strict=False):
        assert step.after == following.before
    with pytest.raises(EquivalenceError):
        forest.replay([steps[0], *steps])


def test_the_rules_are_those_that_fired(programs: dict[str, CompiledProgram]) -> None:
    for program in programs.values():
        assert set(explanation_of(program).rules) <= program.report.rules_fired.keys()


def test_the_text_shows_both_programs_and_every_rule(
    programs: dict[str, CompiledProgram],
) -> None:
    explanation = explanation_of(programs["linear_attention"])
    text = str(explanation)
    assert text.startswith("original program") and "optimized program" in text
    assert all(f"{n}. " in text for n in range(1, len(explanation.steps) + 1))
    assert all(rule in text for rule in explanation.rules)


def test_a_step_names_what_it_changes(programs: dict[str, CompiledProgram]) -> None:
    for step in explanation_of(programs["bottleneck"]).steps:
        old, new = step.position
        assert type(old) is type(new) or (isinstance(old, Tensor) and isinstance(new, Tensor))
        assert step.rule in str(step)


def test_equal_segments_are_explained_each() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
    program = optimize(
        nn.Sequential(*layers).eval(), (torch.ones(3, 4),), objective="flops", time_limit_s=20
    )
    assert program.report.segments > program.report.distinct_segments
    explanation = explanation_of(program)
    assert agree(explanation) == len(explanation.steps) + 1


def test_without_a_log_there_is_a_reason() -> None:
    program = optimize(
        nn.Linear(4, 4).eval(), (torch.ones(2, 4),), objective="flops", explain=False
    )
    assert isinstance(program.explain(), NoExplanation)
    assert "explain=True" in program.explain().reason
    assert program.explain().steps == ()


def test_an_expression_is_explained_too() -> None:
    a, b, c = (eqsynth.input(name, (4, 4)) for name in "abc")
    program = optimize(a @ b + a @ c, objective="flops", time_limit_s=20)
    assert agree(explanation_of(program)) > 1
