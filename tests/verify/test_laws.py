"""Laws whose answers the calculus gives: each answer in a saturation is watched."""

from __future__ import annotations

import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

import pytest

from eqsynth import calculus
from eqsynth.egraph import laws
from eqsynth.egraph.laws.requests import Using
from eqsynth.egraph.laws.table import LAWS
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.ir.normal import canonical
from eqsynth.ir.tensor import Scope
from eqsynth.rules import load_rules
from eqsynth.verify.laws import WRITTEN, behind
from tests.egraph.programs import PROGRAMS

RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))


def modules(package: Any) -> list[Any]:
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return [import_module(module.name) for module in found]


def functions() -> dict[Any, str]:
    """The laws of the calculus: functions of a term and what is given."""
    return {
        value: name
        for module in modules(calculus)
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and list(inspect.signature(value).parameters)[1:] == ["given"]
    }


class Watched:
    """Which functions made each scope, and what laws answered that none of theirs made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made: dict[bytes, set[str]] = defaultdict(set)
        self.own: dict[str, list[str]] = defaultdict(list)
        self.answers: dict[str, int] = defaultdict(int)
        wrapped = {function: self._noting(function, name) for function, name in functions().items()}
        for module in [*modules(laws), *modules(calculus)]:
            for name, value in list(vars(module).items()):
                if inspect.isfunction(value) and value in wrapped:
                    monkeypatch.setattr(module, name, wrapped[value])
        for name in list(LAWS):
            monkeypatch.setitem(LAWS, name, self._watching(name, LAWS[name]))

    def _noting(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def noted(*args: Any) -> Any:
            result = function(*args)
            if isinstance(result, Scope):
                # A canonical form is another name for the same.
                for digest in (result.digest, canonical(result).digest):
                    self._made[digest].add(name)
            return result

        return noted

    def _watching(self, name: str, law: Any) -> Any:
        def watched(view: Any, row: Sequence[Any]) -> Iterator[Any]:
            answers: Iterable[Any] = law(view, row)
            for answer in answers:
                term = answer.term if isinstance(answer, Using) else answer
                self.answers[name] += 1
                if not self._made[term.digest] & set(WRITTEN.get(name, ())):
                    self.own[name].append(str(term))
                yield answer

        return watched

    def saturate(self, program: str) -> None:
        saturate_terms([PROGRAMS[program]()], RULES, DEFAULT_PHASES, Limits(4000, 60.0), False)


def test_answers_are_results_of_the_calculus(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for program in ("attention", "residual-block", "wide-convolution"):
        watched.saturate(program)
    assert len(WRITTEN.keys() & watched.answers.keys()) >= 6
    assert {name: texts[:1] for name, texts in watched.own.items() if name in WRITTEN} == {}
    # The watch can tell: a law that computes its answers itself is seen.
    assert watched.own["match-matmul"]


@pytest.mark.slow
def test_every_law_answers_by_the_calculus_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for program in PROGRAMS:
        watched.saturate(program)
    assert {name: texts[:1] for name, texts in watched.own.items() if name in WRITTEN} == {}
    assert WRITTEN.keys() <= watched.answers.keys()


def test_what_stands_behind_a_law_is_argued() -> None:
    known = {name: function for function, name in functions().items()}
    for law, names in WRITTEN.items():
        assert law in LAWS
        for name in names:
            assert "Raises" in (known[name].__doc__ or ""), name
            assert inspect.getmodule(known[name]).__doc__, name
    assert behind("match-matmul") == ""
