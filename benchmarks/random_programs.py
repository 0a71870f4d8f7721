"""The work of one worker of the long run: a batch of random programs, searched and checked.

Here, not in ``long_run.py``: a task has to be a function of a module that can be imported.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, TypeVar

from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.ir.printing import render
from eqsynth.ir.tensor import Input, Tensor, Weight, topological
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules

BATCH = 40
TOGETHER = 4
"""Programs in one e-graph: they share the time that a session takes, and subterms."""

SHRINK_S = 300.0
"""Time in which a failure is made smaller."""

DATA = ("normal", "ties", "sparse", "negative")

Case = TypeVar("Case")
Draw = Callable[[int, Callable[[Case], None], bool], None]
"""Calls a function with each case of a batch, by its number; True: and shrinks what fails."""


@dataclass
class Batch:
    """What one batch found.

    Attributes:
        programs: digests of its programs.
        operators: operators, scopes and views of each.
        enodes: of each e-graph.
        fired: e-graphs in which each rule united something.
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


@cache
def _rules(extra: tuple[str, ...]) -> RuleSet:
    return load_rules([*DEFAULT_FILES, *extra])


def programs(number: int, visit: Callable[[Tensor], None], shrink: bool = False) -> None:
    """Calls ``visit`` with the programs of a batch; they depend on its number only."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from eqsynth.testing import strategies

    dtypes = ("float32", "float32", "float32", "int64", "uint8", "int32", "bool", "float16")
    drawn: st.SearchStrategy[Tensor] = st.one_of(
        strategies.operator_programs(steps=6, dtypes=dtypes),
        strategies.operator_programs(
            steps=6, dtypes=("float32", "float32", "float64"), structures=True
        ),
        strategies.scopes(empty=False),
        strategies.products(factors=(2, 4), reduction=(1, 3)),
        strategies.nested_scopes(strategies.products()).map(lambda case: case[0]),
        strategies.nested_scopes(
            strategies.products(factors=(1, 2), traversal=(1, 2), kinds=strategies.BOUNDED),
            strategies.BOUNDED,
        ).map(lambda case: case[0]),
    )
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @seed(number)
    @settings(
        max_examples=BATCH, database=None, deadline=None, phases=phases, print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn)
    def each(term: Tensor) -> None:
        visit(term)

    each()


def run_batch(number: int, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The task of the worker.

    Args:
        extra: rule files that are loaded after eqsynth's own.
    """
    start, batch, drawn = time.monotonic(), Batch(number), list[Tensor]()
    programs(number, drawn.append)
    wrong: dict[Tensor, str] = {}
    for first in range(0, len(drawn), TOGETHER):
        group = drawn[first : first + TOGETHER]
        if together := _failure(group, number, extra, batch):
            alone = {term: error for term in group if (error := _failure([term], number, extra))}
            wrong |= alone or dict.fromkeys(group, together)
    batch.programs = [term.digest.hex() for term in drawn]
    batch.operators = [operators([term]) for term in drawn]
    batch.failures = [_told(number, extra, *found) for found in wrong.items()]
    batch.seconds = time.monotonic() - start
    return asdict(batch)


def _failure(
    group: Sequence[Tensor], number: int, extra: tuple[str, ...], batch: Batch | None = None
) -> str:
    """What is wrong with programs in one e-graph; nothing, most of the time."""
    from eqsynth.testing.data import sample_all
    from eqsynth.testing.search import assert_search_sound

    env = sample_all(*group, kind=DATA[number % len(DATA)], seed=number)
    try:
        found = assert_search_sound(group, rules=_rules(extra), phases=PROVE_PHASES, env=env)
    except Exception as error:  # whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    if batch is not None:
        batch.enodes.append(found.graph.enodes)
        fired = Counter(name for name, count in found.graph.matches.items() if count)
        batch.fired = dict(Counter(batch.fired) + fired)
        batch.stops = dict(Counter(batch.stops) + Counter([found.graph.stop]))
        before, after = found.costs["flops"]
        batch.cheaper += after < 0.999 * before
    return ""


def operators(roots: Sequence[Tensor]) -> int:
    """How many terms compute something."""
    return sum(not isinstance(term, Input | Weight) for term in topological(roots))


def _told(number: int, extra: tuple[str, ...], term: Tensor, error: str) -> dict[str, str]:
    """A failure as text, and as a pickle from which to replay it."""
    last, error = shrunk(programs, number, term, error, lambda t: _failure([t], number, extra))
    pickled = base64.b64encode(pickle.dumps(last)).decode()
    return {"program": render(last), "error": error, "pickle": pickled}


def shrunk(
    draw: Draw[Case], number: int, case: Case, error: str, failure: Callable[[Case], str]
) -> tuple[Case, str]:
    """The smallest case of a batch that fails as ``case`` does, and how, as far as time goes."""
    last, reached, end = case, False, time.monotonic() + SHRINK_S

    def visit(drawn: Case) -> None:
        nonlocal last, error, reached
        if time.monotonic() > end or not (reached or drawn == case):
            return
        if found := failure(drawn):
            last, error, reached = drawn, found, True
            raise AssertionError

    try:
        draw(number, visit, True)
    except Exception:  # the assertion, or hypothesis's word for a failure that came and went
        pass
    return last, error
