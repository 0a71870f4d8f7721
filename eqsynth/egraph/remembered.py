"""Saturated segments in the cache directory, so that no process saturates a segment again.

Each e-graph is a file. Its name is the digest of everything that the e-graph depends on: segment,
rules, phases, bound on e-nodes, eqsynth's code and egglog's version. An e-graph whose search was
stopped by the deadline is stored, too, and serves searches that have little more time. Not here:
reading and writing of files (``kept.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.egraph import defined, snapshot
from eqsynth.egraph import graph as graphs
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.schedule import Limits, Phase
from eqsynth.ir import index, scalar, tensor, types
from eqsynth.ir.operators import Operator
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Tensor, over, topological
from eqsynth.rules import RuleSet, definitions, tree

MAX_BYTES: Final = 256 << 20
"""The largest size of the directory; beyond it the least recently used files are deleted."""

CODE: Final = ("ir", "calculus", "expansion", "rules", "egraph")
"""The subpackages on whose code the result of a saturation depends."""

STOPPED: Final = 2.0
"""A search that the deadline stopped is done again by a search that has so many times its seconds.
(Searches of one time limit have different seconds, as a capture takes longer in a new process.)"""

_COMPLETE: Final = ("saturated", "rounds", "growth")


@dataclass(frozen=True)
class Saturated:
    """The content of a file: an e-graph, and the seconds that its search was given; infinite if the
    search ended before."""

    graph: EGraph
    seconds: float


def directory() -> Path:
    return kept.directory("saturated-1")


def key_of(
    roots: Sequence[Tensor],
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
) -> str:
    """Return the name of the file, which is equal for searches that end in the same e-graph.

    The deadline isn't part of the name: whether it was long enough is decided by :func:`load`.
    """
    programs = [
        (r.name, r.kind, r.ruleset, r.relation, r.columns, r.program, r.scopes) for r in rules.rules
    ]
    versions = metadata.version("egglog"), kept.code_of(*CODE)
    own = [root.digest for root in roots]
    rest = (rules.declarations, programs, tuple(phases), limits.enodes, log_matches, versions)
    return digest_of(len(own), *own, *rest).hex()


def is_kept(key: str) -> bool:
    """Whether there is a file of this name; it may be of a search that was stopped too early."""
    return (directory() / key).exists()


def load(key: str, roots: Sequence[Tensor], seconds: float) -> EGraph | None:
    """Return the stored e-graph, with its operators' ``origin`` taken from ``roots``. Return None
    if none is stored, or if its search was stopped by the deadline and a search of ``seconds``
    would have `STOPPED` times as long."""
    found = kept.load(directory() / key, _CLASSES)
    if not isinstance(found, Saturated):
        return None
    too_early = found.seconds < math.inf and STOPPED * found.seconds <= seconds
    return None if too_early else _placed(found.graph, roots)


def keep(key: str, graph: EGraph, seconds: float) -> None:
    """Store an e-graph whose search came to its end, or was stopped after the ``seconds`` that it
    was given; do nothing if the directory isn't writable. Seconds in which other processes had the
    processor don't count: on a quiet machine the search goes further in the same time."""
    if graph.stop in (*_COMPLETE, "deadline") and not graph.faults:
        given_s = seconds * graph.busy if graph.stop == "deadline" else math.inf
        kept.keep(directory() / key, Saturated(graph, given_s), MAX_BYTES)


def _placed(graph: EGraph, roots: Sequence[Tensor]) -> EGraph | None:
    """Return the e-graph with the operators of ``roots``, whose ``origin`` is their place in the
    user's model; None if the e-graph isn't of this program."""
    classes = {member: ref for ref, members in graph.original.items() for member in members}
    refs: dict[Tensor, ClassRef] = {}
    own: dict[Tensor, Tensor] = {}
    for term in topological(roots):
        member = over(term, refs)
        if member not in classes:
            return None
        refs[term], own[member] = classes[member], member
    if tuple(refs[root] for root in roots) != tuple(graph.roots):
        return None

    def placed(found: Mapping[ClassRef, tuple[Tensor, ...]]) -> dict[ClassRef, tuple[Tensor, ...]]:
        return {ref: tuple(own.get(m, m) for m in members) for ref, members in found.items()}

    return replace(
        graph, classes=placed(graph.classes), original=placed(graph.original), seconds=0.0
    )


TERMS: Final = (
    types.TensorType,
    tensor.Input, tensor.Weight, tensor.Op, tensor.Scope, tensor.Region, tensor.ClassRef,
    tensor.region_of_rows,
    scalar.Num, scalar.Read, scalar.Prod, scalar.Sum, scalar.Call, scalar.Value, scalar.Cast,
    index.Index, index.It, index.FloorDiv, index.Mod, index.Min, index.Max,
    Operator, defined.Meaning, defined.TypeOf, defined.Expand,
    definitions.Definition, definitions.Case, definitions.Comprehension, tree.Var,
)  # fmt: skip
"""Classes and functions that a pickled term may contain, also for operators of rule files and for
regions."""

_CLASSES: Final = kept.classes(
    Saturated, EGraph, graphs.Log, graphs.Equality, snapshot.Handle, *TERMS
)
