"""Laws whose answers the calculus gives: each step that one says in a saturation is watched."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

import eqsynth
from eqsynth.calculus.deriving import LAWS as CALCULUS
from eqsynth.calculus.deriving import derive
from eqsynth.egraph import asking
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Phase
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.expansion.expanded import Expand, expanded
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import RuleSet, load_rules
from eqsynth.verify.laws import ARGUED, WRITTEN, behind
from tests.egraph.programs import LIMITS, PROGRAMS, RULES, leaf, op


class Watched:
    """The functions that the steps of each law's answers are of, and the laws that proposed
    arguments of the law of expanded forms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: defaultdict[str, set[str]] = defaultdict(set)
        self.said: set[str] = set()
        self.forms: set[str] = set()
        apply = asking.applied

        def watched(view: Any, law: str, row: Sequence[Any], said: Any, entry: Entry) -> Any:
            steps = said.steps if isinstance(said, Path) else said
            if isinstance(steps, tuple):
                self.said.add(law)
                self.steps[law] |= {CALCULUS[type(step)].__name__ for step in steps}
            elif isinstance(said, Expand):
                self.forms.add(law)
            return apply(view, law, row, said, entry)

        monkeypatch.setattr(asking, "applied", watched)

    def saturate(
        self,
        program: str | Tensor,
        phases: Sequence[Phase] = DEFAULT_PHASES,
        rules: RuleSet = RULES,
    ) -> None:
        term = PROGRAMS[program]() if isinstance(program, str) else program
        saturate_terms([term], rules, phases, LIMITS, False)

    def unnamed(self) -> dict[str, set[str]]:
        """Functions of steps that aren't named beside their laws."""
        found = {law: steps - {*WRITTEN.get(law, ())} for law, steps in self.steps.items()}
        return {law: steps for law, steps in found.items() if steps}


@pytest.mark.rotating
def test_answers_are_steps_of_the_calculus(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for program in ("attention", "residual-block", "wide-convolution", "taps-apart"):
        watched.saturate(program)
    assert len(watched.said) >= 10 and watched.said <= WRITTEN.keys()
    assert watched.unnamed() == {}
    # Expanded forms are asked for in proofs only.
    assert not watched.forms
    watched.saturate("distributivity", PROVE_PHASES, load_rules())
    assert watched.forms and watched.forms <= ARGUED.keys()


@pytest.mark.slow
def test_every_law_answers_by_the_calculus_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for program in PROGRAMS:
        # As proofs search: `like-terms`, `operand-split` and `derived-constants` are asked there
        # alone.
        watched.saturate(program, PROVE_PHASES)
    # `clamp` and `unclip` are of proof numerics, which RULES leaves out.
    x = leaf("x", 3, 4)
    squares = op("Relu", op("ReduceSum", op("Mul", x, x), attrs=((1,), 0)))
    for proved in ("max-pooling", squares):
        watched.saturate(proved, PROVE_PHASES, load_rules())
    # Rules of scopes are laws of their own text.
    assert watched.unnamed() == {} and watched.forms <= ARGUED.keys()
    # What canonical forms are called by, `derive`, is no step.
    assert {law: {*names} for law, names in WRITTEN.items()} == {
        law: watched.steps[law] or {"derive"} for law in watched.said
    }


def test_every_law_proposes_steps_or_expanded_forms() -> None:
    assert WRITTEN.keys() | ARGUED.keys() == LAWS.keys() and not WRITTEN.keys() & ARGUED.keys()


def test_the_law_of_expanded_forms_has_a_written_proof_and_a_test() -> None:
    root = pathlib.Path(eqsynth.__file__).parents[1]
    for law, (proof, test) in ARGUED.items():
        said = ast.get_docstring(ast.parse((root / proof).read_text(encoding="utf-8"))) or ""
        assert "Proof." in said and test in said
        # The test is of the function that the law's answers come from.
        tested = (root / test).read_text(encoding="utf-8")
        assert re.search(rf"^from .* import .*\b{expanded.__name__}$", tested, re.MULTILINE)
        assert inspect.getsourcefile(expanded) == str(root / proof) and proof in behind(law)


def test_what_stands_behind_a_law_is_argued() -> None:
    known = {function.__name__: function for function in (*CALCULUS.values(), derive)}
    for names in WRITTEN.values():
        for name in names:
            assert "Raises" in (known[name].__doc__ or ""), name
            assert inspect.getmodule(known[name]).__doc__, name
    assert behind("no-such-law") == ""
