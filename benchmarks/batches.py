"""Batches of random cases of the long run: their drawing, their records, and the journal.

Here is also the shrinking of a case that fails. Not here: the cases themselves, and what is checked
on each (``random_programs.py``, ``random_modules.py``).
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
    """The result of one batch.

    Attributes:
        number: the batch's number, which determines its cases.
        programs: the digests of its programs.
        operators: the number of operators, scopes and views of each program.
        enodes: the number of e-nodes of each e-graph.
        fired: rule -> the number of e-graphs in which it united terms.
        stops: reason that ended a search -> the number of e-graphs.
        cheaper: the number of e-graphs that hold a program of fewer FLOPs than the original.
        failures: for each failure, the shrunk program and what was wrong with it.
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
        """Record a search; ``flops`` are those of the program before and after it."""
        self.enodes.append(enodes)
        self.stops = dict(Counter(self.stops) + Counter([stop]))
        fired = Counter(name for name, count in matches.items() if count)
        self.fired = dict(Counter(self.fired) + fired)
        self.cheaper += flops[1] < 0.999 * flops[0]


@dataclass(frozen=True)
class Draws(Generic[Case]):
    """The cases of all batches. The cases of a batch depend on its number only.

    Attributes:
        strategy: from a batch's number to the strategy of its cases.
        size: the number of cases in a batch.
        tries: the most smaller cases that are tried when a case is shrunk.
    """

    strategy: Callable[[int], st.SearchStrategy[Case]]
    size: int
    tries: int

    def visit(self, number: int, visit: Callable[[Case], None], shrink: bool = False) -> None:
        """Call ``visit`` with each case of a batch.

        Args:
            shrink: whether to go on with smaller cases after ``visit`` has raised an error.
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
        """Shrink a case that fails.

        Args:
            error: what is wrong with the case.
            failure: from a case to what is wrong with it; empty if nothing is.

        Returns:
            The smallest failing case that is found within ``tries``, and what is wrong with it.
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
        except Exception:  # the assertion, or hypothesis's error for a failure that isn't repeated
            pass
        return last, error


def told(error: Exception) -> str:
    """An error as the text of a finding: ``ValueError: …``."""
    return f"{type(error).__name__}: {error}"


def kept_rows(path: Path, version: str, fresh: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a journal, one per line, if its first line is ``version``; else none. A
    line that an interruption cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines[1:] if lines[:1] == [version] and not fresh else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def write_rows(path: Path, version: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write a journal with these objects; lines may be appended to it later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, *map(json.dumps, rows)]) + "\n", encoding="utf-8")


def operators(roots: Sequence[Tensor]) -> int:
    """The number of terms besides inputs and weights."""
    return sum(not isinstance(term, Input | Weight) for term in topological(roots))
