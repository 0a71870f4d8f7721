"""Certificates: check each equality that a search united, without the code that found it.

    factor      (a @ b) @ c  =  a @ (b @ c)               both sides computed on data for a, b, c
    view-merge  reshape(x, (6, 4))[i, j]  =  x[i // 3, i % 3, j]      for all i and j, and any x

A search logs each equality that it unites: for a rule, the two sides of the instance at concrete
shapes; for a law, the request (the term that was asked about, with the members that the law looked
into) and the answer. This package checks each of them:

- Indices are compared at all values of their iterators (``grounding.py``).
- Small tensors are computed whole, on two kinds of data (``judging.py``).
- For large tensors, an element of each side is written as a sum of products of elements of the
  tensors that both sides share, and the two sums are compared (``maps.py``). If this doesn't show
  that they are equal, their elements are computed: all of them, or a sample if there are too many.

A term is evaluated by its own definition over the program's inputs, and never by another member of
its e-class. So a wrong equality doesn't make later equalities look wrong; the first failure in the
log is the culprit. Values come from the interpreter and NumPy, and ``elements.py`` defines what an
element is; nothing of the calculus, the tactics or the engine takes part. Not here: checks of rules
in general, at other sizes (``eqsynth.testing``, ``eqsynth.verify``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from eqsynth.certificates.grounding import OWN, Ground, enumerated, pair
from eqsynth.certificates.judging import judged
from eqsynth.certificates.maps import holds_by_maps
from eqsynth.certificates.values import LARGEST, OverBudget, TooLarge, Unknown, cost, draws
from eqsynth.egraph.graph import Equality, Log
from eqsynth.errors import CertificateError
from eqsynth.ir.tensor import Input, Tensor, args_of, topological
from eqsynth.rules import RuleSet
from eqsynth.rules.claim import Claim

# How many levels of definitions are unfolded in the sides of a large equality.
_DEPTH: Final = 3
# A term whose cost (in points) is larger than this is compared by maps first: that takes less time
# than computing all its elements.
_SMALL: Final = 1 << 12


@dataclass(frozen=True)
class Certified:
    """The results of checking the equalities of a search.

    Attributes:
        checked: way -> the number of equalities that hold, by the way in which that was seen:
            ``same`` (both sides decode to one term, since terms are kept in canonical forms),
            ``indices`` (at all values of the iterators), ``maps`` (at all elements and for any
            data: a map takes the elements of one side to those of the other), ``whole`` (at all
            elements, on data), ``sampled`` (at some elements, among them elements at the borders),
            ``over any`` (large tensors, at some elements, with arbitrary data for the tensors that
            the sides name), ``precise`` (with more digits, since float64 rounds too much).
        unchecked: reason -> the number of equalities of which nothing is known.
        failures: the equalities that don't hold, in the order in which they were united; the first
            one is the culprit.
        seconds: the wall time of the check.
    """

    checked: Mapping[str, int] = field(default_factory=dict)
    unchecked: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[CertificateError, ...] = ()
    seconds: float = 0.0

    def __add__(self, other: Certified) -> Certified:
        return Certified(
            dict(Counter(self.checked) + Counter(other.checked)),
            dict(Counter(self.unchecked) + Counter(other.unchecked)),
            self.failures + other.failures,
            self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        def told(counts: Mapping[str, int]) -> str:
            return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items()))

        text = f"{sum(self.checked.values()):,} hold"
        text += f" ({told(self.checked)})" if self.checked else ""
        if self.unchecked:
            text += f"; {sum(self.unchecked.values()):,} not checked ({told(self.unchecked)})"
        return text + (f"; {len(self.failures):,} FAIL" if self.failures else "")


def _over_any(ground: Ground, equality: Equality, claim: Claim, seed: int) -> str:
    """Check a large equality with arbitrary data for the tensors that its sides name; return the
    way, ``over any``.

    Each named tensor becomes a new input. The equality may hold only because of how a named tensor
    is defined; so if the check fails, it is repeated with definitions unfolded, to a depth of
    ``_DEPTH``.

    Raises:
        CertificateError: the sides differ with all definitions unfolded.
        Unknown: no check succeeded.
    """
    rule, why = equality.rule, Unknown("too large")
    for depth in range(_DEPTH + 1):
        read = partial(ground.over, depth=depth)
        left, right = pair(read, equality.left, equality.right)
        given = [t for t in topological([left, right]) if isinstance(t, Input)]
        if any(t.type.size > LARGEST for t in given):
            continue  # with its definition unfolded, only a few of its elements may be read
        try:
            judged(rule, left, right, given, claim, draws([left, right], seed), sampled=True)
            return "over any"
        except Unknown as unknown:
            why = unknown
        except CertificateError:
            if not any(t.name.startswith(OWN) for t in given):
                raise
    raise why


def _is_large(terms: Sequence[Tensor], costs: dict[Tensor, int]) -> bool:
    """Whether computing one of the terms, or one of their subterms, takes long.

    Args:
        costs: term -> the largest cost of its subterms; entries for ``terms`` are added.
    """
    for term in terms:
        if term not in costs:
            for part in topological([term]):
                if part not in costs:
                    below = max((costs[arg] for arg in args_of(part)), default=0)
                    costs[part] = max(cost(part), below)
    return max(costs[term] for term in terms) > _SMALL


def certify(log: Log, rules: RuleSet, seed: int = 0) -> Certified:
    """Check every equality of a log.

    Args:
        rules: the rules with which the search ran; their ``numerics`` say what rounding is allowed.
        seed: the seed of the data.
    """
    begin = time.monotonic()
    claims = {rule.name: rule.numerics for rule in rules.rules}
    ground = Ground(log)
    sides = [(e, *pair(ground.read, e.left, e.right)) for e in log.equalities]
    terms = [side for _, *both in sides for side in both if isinstance(side, Tensor)]
    data, costs = list(draws(terms, seed)), dict[Tensor, int]()
    checked, unchecked = Counter[str](), Counter[str]()
    failures: list[CertificateError] = []
    for equality, left, right in sides:
        rule = equality.rule
        try:
            if left == right:
                way = "same"
            elif (
                isinstance(left, Tensor)
                and _is_large((left, right), costs)
                and holds_by_maps(left, right)
            ):
                way = "maps"
            elif isinstance(left, Tensor):
                given = ground.given(equality.left)
                claim = claims.get(rule, Claim("real"))
                try:
                    way = judged(rule, left, right, given, claim, data)
                except (TooLarge, OverBudget):
                    way = _over_any(ground, equality, claim, seed)
            else:
                way = enumerated(rule, left, right)
            checked[way] += 1
        except Unknown as why:
            unchecked[str(why)] += 1
        except CertificateError as error:
            failures.append(error)
    return Certified(dict(checked), dict(unchecked), tuple(failures), time.monotonic() - begin)
