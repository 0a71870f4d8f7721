"""Explanations of optimized programs: chains of whole programs, each with the original's value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import eqsynth
from benchmarks.workloads import WORKLOADS
from eqsynth.egraph.chains import replay
from eqsynth.errors import EquivalenceError, ExplanationTooLong
from eqsynth.explain import Explanation, NoExplanation
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Read, Scalar, product, total
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, topological
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import flops
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from tests.terms import assert_equal
from tests.test_prove import agree

NAMES = ["linear_attention", "bottleneck", "transition"]


@pytest.fixture(scope="module")
def programs() -> dict[str, CompiledProgram]:
    made = {}
    for name in NAMES:
        model, inputs = WORKLOADS[name].reduced()
        made[name] = optimize(model, inputs, objective="flops", time_limit_s=600)
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
    derivation = explanation._derivation
    steps = derivation.chain(explanation._before, explanation._after, Explanation.longest)
    replay(derivation.forest, steps)
    assert len(steps) == len(explanation.steps)
    for step, following in zip(explanation.steps, explanation.steps[1:], strict=False):
        assert step.after == following.before
    with pytest.raises(EquivalenceError):
        replay(derivation.forest, [steps[0], *steps])


def test_the_rules_are_those_that_fired(programs: dict[str, CompiledProgram]) -> None:
    for program in programs.values():
        assert set(explanation_of(program).rules) <= program.report.rules_fired.keys()


def test_the_text_shows_both_programs_and_every_rule(
    programs: dict[str, CompiledProgram],
) -> None:
    explanation = explanation_of(programs["linear_attention"])
    text = programs["linear_attention"].explain("full")
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
        nn.Sequential(*layers).eval(), (torch.ones(3, 4),), objective="flops", time_limit_s=600
    )
    assert program.report.segments > program.report.distinct_segments
    explanation = explanation_of(program)
    assert agree(explanation) == len(explanation.steps) + 1


@pytest.mark.parametrize("name", NAMES)
def test_every_lemma_is_of_equal_terms(name: str, programs: dict[str, CompiledProgram]) -> None:
    """Each follows from the log and from lemmas before it, and its terms have one value."""
    explanation = explanation_of(programs[name])
    derivation = explanation._derivation
    derivation.forest.verify(derivation.lemmas(explanation._before, explanation._after))
    assert explanation.lemmas[-1].terms[-1] == explanation.steps[-1].after
    for number, lemma in enumerate(explanation.lemmas):
        assert len(lemma.links) == len(lemma.terms) - 1
        assert all(0 <= n < number for link in lemma.links for n in link.lemmas)
        assert all(bool(link.rule) != bool(link.lemmas) for link in lemma.links)
        tensors = [term for term in lemma.terms if isinstance(term, Tensor)]
        for term in tensors[1:]:
            assert_equal(tensors[0], term)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


@pytest.mark.rotating
def test_a_chain_that_is_too_long_is_told_as_lemmas(tmp_path: Path) -> None:
    """A step of a recurrence takes the one before apart: the chain of 2 has 396 steps, that of 3
    has 1,771, that of 6 has 69,221."""
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4)
    program = optimize(Recurrent().eval(), (x,), objective="flops", time_limit_s=600)
    explanation = explanation_of(program)
    explanation.longest = explanation.longest_text = 100
    with pytest.raises(ExplanationTooLong, match="too long"):
        _ = explanation.steps
    assert len(str(explanation).splitlines()) < 100
    text = explanation.full
    assert len(text.splitlines()) < 1_000
    about = [x for x in explanation.lemmas if isinstance(x.terms[0], Tensor | tuple)]
    assert all(f"\nlemma {n}: " in text for n in range(1, len(about) + 1))
    assert all(rule in text for rule in explanation.rules)
    eqsynth.save(program, tmp_path / "recurrent")
    assert torch.equal(eqsynth.load(tmp_path / "recurrent")(x), program(x))


def test_without_a_log_there_is_a_reason() -> None:
    program = optimize(
        nn.Linear(4, 4).eval(), (torch.ones(2, 4),), objective="flops", explain=False
    )
    assert isinstance(program.explain(), NoExplanation)
    assert "explain=True" in program.explain().reason
    assert program.explain().steps == ()


def test_an_expression_is_explained_too() -> None:
    a, b, c = (eqsynth.input(name, (4, 4)) for name in "abc")
    program = optimize(a @ b + a @ c, objective="flops", time_limit_s=600)
    assert agree(explanation_of(program)) > 1


@pytest.mark.rotating
@pytest.mark.parametrize("function", ["tanh", ""])
def test_a_body_takes_the_time_of_what_it_shares(function: str) -> None:
    """x = x*x + x forty times over, perhaps under a function: a tree of 3^40 leaves, or of 2^40."""
    x = Input("x", TensorType((4,), "float32"))
    body: Scalar = Read(x, (Index.iterator(0, 4),))
    for _ in range(40):
        body = total([product([body, body]), body])
        body = Call(function, (body,)) if function else body
    scope = Scope((4,), (), body)
    program = optimize(Expr(scope), objective="flops")
    assert program.report.stop == "saturated" and program.report.enodes < 1000
    value = torch.tensor([0.0, 0.001, 0.01, -0.01])
    torch.testing.assert_close(
        program(value), torch.as_tensor(evaluate(scope, {"x": value.numpy()}), dtype=torch.float32)
    )
    for form in ("summary", "full"):
        told = str(program.explain(form))
        assert told.count("L[i<4]") <= 4 and len(told) < 50_000
