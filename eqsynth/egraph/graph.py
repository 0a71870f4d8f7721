"""A saturated e-graph as plain, picklable data: what leaves the worker and goes to extraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eqsynth.ir.operators import Operator
from eqsynth.ir.tensor import ClassRef, Tensor


@dataclass(frozen=True)
class Equality:
    """One logged union: both sides as nested tuples over handles, and the rule's name."""

    left: Any
    right: Any
    rule: str


@dataclass(frozen=True)
class Log:
    """From which ``explain`` is made: every union in order, and the term behind each handle.

    Attributes:
        defined: the operators that rule files define.
    """

    equalities: tuple[Equality, ...]
    definitions: Mapping[int, Any]
    defined: Mapping[str, Operator] = field(default_factory=dict)


@dataclass(frozen=True)
class EGraph:
    """Tensor classes and their members.

    Attributes:
        classes: class -> its members, terms whose arguments are classes.
        roots: the classes of the terms that were added, in order.
        original: class -> the members that were added: the program as it came.
        growth: phase -> e-nodes at its end; empty where a worker ended before the search.
        faults: law -> what went wrong in it. What was asked got no answer, all else stands.
    """

    classes: Mapping[ClassRef, tuple[Tensor, ...]]
    roots: tuple[ClassRef, ...]
    enodes: int
    eclasses: int
    matches: Mapping[str, int]
    stop: str
    seconds: float
    log: Log | None
    over_budget: Mapping[str, int] = field(default_factory=dict)
    original: Mapping[ClassRef, tuple[Tensor, ...]] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    growth: Mapping[str, int] = field(default_factory=dict)
