"""A batch of random cases of the long run: how it is drawn, what it records, how a failure is
shrunk, and the file that batches are kept in. Not here: what the cases are, and what is done with
one (``random_programs.py``, ``random_modules.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from eqsynth.ir.tensor import Input, Tensor, Weight, topological

Case = TypeVar("Case")


@dataclass
class Batch:
    """What one batch found.

    Attributes:
        programs: digests of its programs.
        operators: operators, scopes and views of each.
        enodes: of each e-graph.
        fired: e-graphs in which each rule united something.
        stops: e-graphs by what ended their search.
        cheaper: e-graphs that hold fewer FLOPs than the programs they were made from.
        failures: the shrunk program and what was wrong with it.
    """

    number: int
    programs: list[str] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    enodes: list[int] = field(default_factory=list)
    fired: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    cheaper: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def searched(
        self, enodes: int, stop: str, matches: Mapping[str, int], flops: tuple[float, float]
    ) -> None:
        """Records a search; ``flops`` of the program before and after it."""
        self.enodes.append(enodes)
        self.stops = dict(Counter(self.stops) + Counter([stop]))
        fired = Counter(name for name, count in matches.items() if count)
        self.fired = dict(Counter(self.fired) + fired)
        self.cheaper += flops[1] < 0.999 * flops[0]


@dataclass(frozen=True)
class Draws(Generic[Case]):
    """The cases of every batch: they depend on its number only.

    Attributes:
        strategy: of the cases of a batch, by its number.
        size: cases in a batch.
        tries: smaller cases that are tried, at most, of one that fails.
    """

    strategy: Callable[[int], st.SearchStrategy[Case]]
    size: int
    tries: int

    def visit(self, number: int, visit: Callable[[Case], None], shrink: bool = False) -> None:
        """Calls ``visit`` with the cases of a batch.

        Args:
            shrink: when ``visit`` raises, goes on with smaller cases that do.
        """
        phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

        @seed(number)
        @settings(
            max_examples=self.size, database=None, deadline=None, phases=phases, print_blob=False,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(self.strategy(number))
        def each(case: Case) -> None:
            visit(case)

        each()

    def of(self, number: int) -> list[Case]:
        """The cases of a batch."""
        drawn = list[Case]()
        self.visit(number, drawn.append)
        return drawn

    def shrunk(
        self, number: int, case: Case, error: str, failure: Callable[[Case], str]
    ) -> tuple[Case, str]:
        """The smallest case of a batch that fails as ``case`` does, and how, as far as tries go.

        Args:
            failure: what is wrong with a case; nothing, if it is right.
        """
        last, reached, tries = case, False, self.tries

        def visit(drawn: Case) -> None:
            nonlocal last, error, reached, tries
            if not tries or not (reached or drawn == case):
                return
            tries -= 1
            if found := failure(drawn):
                last, error, reached = drawn, found, True
                raise AssertionError

        try:
            self.visit(number, visit, shrink=True)
        except Exception:  # the assertion, or hypothesis's word for a failure that came and went
            pass
        return last, error


def told(error: Exception) -> str:
    """What was wrong, whatever it was: a finding."""
    return f"{type(error).__name__}: {error}"


def kept_rows(path: Path, version: str, fresh: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a journal, a line each, if its first line is this version; without the
    line that an interruption cut short."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines[1:] if lines[:1] == [version] and not fresh else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def write_rows(path: Path, version: str, rows: Iterable[dict[str, Any]]) -> None:
    """A journal with these objects, to which others may be added."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, *map(json.dumps, rows)]) + "\n", encoding="utf-8")


def operators(roots: Sequence[Tensor]) -> int:
    """How many terms compute something."""
    return sum(not isinstance(term, Input | Weight) for term in topological(roots))
