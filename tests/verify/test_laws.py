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
from eqsynth.egraph.tactics.expansion import expanded
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.rules import RuleSet, load_rules
from eqsynth.verify.laws import ARGUED, WRITTEN, behind
from tests.egraph.programs import LIMITS, PROGRAMS, RULES

COMPUTED = {law for law, entry in LAWS.items() if entry.computed}


class Watched:
    """The functions that the steps of each law's answers are of, and the laws that said terms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: defaultdict[str, set[str]] = defaultdict(set)
        self.said: set[str] = set()
        self.terms: set[str] = set()
        apply = asking.applied

        def watched(view: Any, law: str, row: Sequence[Any], said: Any, computes: bool) -> Any:
            steps = said.steps if isinstance(said, Path) else said
            if isinstance(steps, tuple):
                self.said.add(law)
                self.steps[law] |= {CALCULUS[type(step)].__name__ for step in steps}
            else:
                self.terms.add(law)
            return apply(view, law, row, said, computes)

        monkeypatch.setattr(asking, "applied", watched)

    def saturate(
        self, program: str, phases: Sequence[Phase] = DEFAULT_PHASES, rules: RuleSet = RULES
    ) -> None:
        saturate_terms([PROGRAMS[program]()], rules, phases, LIMITS, False)

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
    # The watch can tell: a law that computes its answers itself is seen, in proofs.
    assert not watched.terms & LAWS.keys()
    watched.saturate("distributivity", PROVE_PHASES, load_rules())
    assert watched.terms & LAWS.keys() and watched.terms & LAWS.keys() <= COMPUTED


@pytest.mark.slow
def test_every_law_answers_by_the_calculus_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for program in PROGRAMS:
        # As proofs search: `like-terms`, `operand-split` and `derived-constants` are asked there
        # alone.
        watched.saturate(program, PROVE_PHASES)
    # Rules of scopes are laws of their own text.
    assert watched.unnamed() == {} and watched.terms & LAWS.keys() <= COMPUTED
    # What canonical forms are called by, `derive`, is no step.
    assert {law: {*names} for law, names in WRITTEN.items()} == {
        law: watched.steps[law] or {"derive"} for law in watched.said
    }


def test_every_law_either_says_steps_or_computes() -> None:
    assert WRITTEN.keys() | COMPUTED == LAWS.keys() and not WRITTEN.keys() & COMPUTED


def test_a_law_that_computes_has_a_written_proof_and_a_test() -> None:
    assert ARGUED.keys() == COMPUTED
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
