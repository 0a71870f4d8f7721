"""A worker's task in the long run: a batch of random programs, searched and checked.

It isn't in ``long_run.py``, since a task must be a function of a module that can be imported.
"""

from __future__ import annotations

import base64
import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from benchmarks.batches import Batch, Draws, operators, told
from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.ir.data import sample_all
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.printing import render
from eqsynth.ir.scalar import reads
from eqsynth.ir.tensor import Scope, Tensor, topological
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules
from eqsynth.testing import strategies
from eqsynth.testing.search import assert_search_sound

BATCH = 40
TOGETHER = 8
"""The number of programs in one e-graph. They share the time to set up a session, and subterms."""

DATA = ("normal", "ties", "sparse", "negative")


@cache
def _rules(extra: tuple[str, ...]) -> RuleSet:
    return load_rules([*DEFAULT_FILES, *extra])


def _programs(_number: int) -> st.SearchStrategy[Tensor]:
    dtypes = ("float32", "float32", "float32", "int64", "uint8", "int32", "bool", "float16")
    return st.one_of(
        strategies.operator_programs(steps=6, dtypes=dtypes),
        strategies.operator_programs(
            steps=6, dtypes=("float32", "float32", "float64"), structures=True
        ),
        strategies.scopes(empty=False),
        strategies.scopes(
            empty=False,
            dtypes=("float32", "float64"),
            functions=("relu", "abs", "abs", "max", "min", "one"),
        ),
        strategies.products(factors=(2, 4), reduction=(1, 3)),
        strategies.products(factors=(1, 2), traversal=(1, 3), kinds=strategies.NESTED),
        strategies.nested_scopes(strategies.products()).map(lambda case: case[0]),
        strategies.nested_scopes(
            strategies.products(factors=(1, 2), traversal=(1, 2), kinds=strategies.BOUNDED),
            strategies.BOUNDED,
        ).map(lambda case: case[0]),
    )


PROGRAMS = Draws(_programs, BATCH, tries=500)


def run_batch(number: int, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The task of the worker.

    Args:
        extra: rule files that are loaded after eqsynth's own.
    """
    start, batch, drawn = time.monotonic(), Batch(number), PROGRAMS.of(number)
    wrong, judged = dict[Tensor, str](), list[Tensor]()
    for first in range(0, len(drawn), TOGETHER):
        for group in _groups(drawn[first : first + TOGETHER], number):
            judged += group
            if together := _failure(group, number, extra, batch):
                alone = {term: e for term in group if (e := _failure([term], number, extra))}
                wrong |= alone or dict.fromkeys(group, together)
    batch.programs = [term.digest.hex() for term in judged]
    batch.operators = [operators([term]) for term in judged]
    batch.failures = [_failed(number, extra, *found) for found in wrong.items()]
    batch.seconds = time.monotonic() - start
    return asdict(batch)


def _failure(
    group: Sequence[Tensor], number: int, extra: tuple[str, ...], batch: Batch | None = None
) -> str:
    """What is wrong with programs in one e-graph; empty if nothing is."""
    env = _data(group, number)
    try:
        found = assert_search_sound(group, rules=_rules(extra), phases=PROVE_PHASES, env=env)
    except Exception as error:
        return told(error)
    if batch is not None:
        graph = found.graph
        batch.searched(graph.enodes, graph.stop, graph.matches, found.costs["flops"])
    return ""


def _groups(terms: Sequence[Tensor], number: int) -> list[Sequence[Tensor]]:
    """The programs together if there are finite data for all of them, else each alone; without
    those that no data make finite, such as the root of a negative number, in a sum."""
    if _is_finite(terms, _data(terms, number)):
        return [terms]
    return [[t] for t in terms if _has_infinite_edges(t) or _is_finite([t], _data([t], number))]


def _data(group: Sequence[Tensor], number: int) -> dict[str, Any]:
    """Inputs and weights, such that every term is finite if there are any: log(0) * 0 in one form
    of a program and 0 in another is no fault of a rule. Infinite edges are part of a program."""
    tried = [
        sample_all(*group, kind=kind, seed=number)
        for kind in (DATA[number % len(DATA)], *DATA, "near-equal")
    ]
    return next((env for env in tried if _is_finite(group, env)), tried[0])


def _is_finite(group: Sequence[Tensor], env: Mapping[str, Any]) -> bool:
    return all(np.isfinite(value).all() for value in evaluate_all(group, env).values())


def _has_infinite_edges(term: Tensor) -> bool:
    scopes = (sub for sub in topological([term]) if isinstance(sub, Scope))
    return any(math.isinf(read.fill) for scope in scopes for read in reads(scope.body))


def _failed(number: int, extra: tuple[str, ...], term: Tensor, error: str) -> dict[str, str]:
    """A failure as text, and as a pickle to replay it."""
    last, error = PROGRAMS.shrunk(number, term, error, lambda t: _failure([t], number, extra))
    pickled = base64.b64encode(pickle.dumps(last)).decode()
    return {"program": render(last), "error": error, "pickle": pickled}
