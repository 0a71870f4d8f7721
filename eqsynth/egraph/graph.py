"""A saturated e-graph as plain, picklable data: the result of the worker, and extraction's input.

``classes`` maps an e-class to its members, such as ``{%3: (Relu(%1), L[i<4] . …)}``.
"""

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
    """The data for ``explain``: every union in order, and the term behind each handle.

    Attributes:
        defined: name -> row of the operators that rule files define.
    """

    equalities: tuple[Equality, ...]
    definitions: Mapping[int, Any]
    defined: Mapping[str, Operator] = field(default_factory=dict)


@dataclass(frozen=True)
class EGraph:
    """The e-classes of tensors and their members.

    Attributes:
        classes: e-class -> its members, terms whose arguments are e-classes.
        roots: the e-classes of the terms that were added, in order.
        original: e-class -> its members in the program as it was added.
        growth: phase -> e-nodes at its end; empty if the worker ended before the search did.
        busy: the share of a processor that the search had, at most 1; less where other processes
            took the rest.
        faults: law -> its error. The request that met the error got no answer; the e-graph is
            sound all the same.
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
    busy: float = field(default=1.0, compare=False)
