"""Certificates: each equality that a search has united, checked without the code that found it.

A search logs whatever it unites: of a rule the instance, both sides at concrete shapes; of a law
the request (the term that was asked about, with the members that the law looked into) and the
answer. Here each of these is judged. An index has its value at every value of its iterators. A
tensor that is small is computed whole, on data of two kinds; of a large one an element is written
out as a sum of products of elements of what both sides are made of, and the sums are compared; what
isn't seen to be equal so is computed at some elements:

    factor    (a @ b) @ c  ->  a @ (b @ c)        both sides on a, b and c, element by element
    view-merge  reshape(x, (6, 4))[i, j]  =  x[i // 3, i % 3, j]        for all i and j, and any x

Every term is what its own definition says over the program's inputs, and never what its class is
taken to be. So a wrong equality is blamed on itself, and not on those that came after it; the first
one in the log is told. What computes the values is the interpreter and NumPy, and what an element
is stands in ``elements.py``: nothing of the calculus, of the tactics, or of the engine. Not here:
rules in general, at other sizes (``eqsynth.testing``, ``eqsynth.verify``).
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

# Definitions that are written out of what a large equality names.
_DEPTH: Final = 3
# Points beyond which writing an element out takes less than computing all of them.
_SMALL: Final = 1 << 12


@dataclass(frozen=True)
class Certified:
    """What became of the certificates of a search.

    Attributes:
        checked: way -> how many hold: ``same`` (both sides are read as one term, since terms are
            kept in canonical forms), ``indices`` (at all values of their iterators), ``maps`` (at
            all elements and for any data: a map takes one side's elements to the other's),
            ``whole`` (at all elements), ``sampled`` (at some, those at the borders among them),
            ``over any`` (large ones, at some elements, with any tensors in the place of those that
            the sides name),
            ``precise`` (where float64 rounds too much, with more digits).
        unchecked: reason -> how many nothing is known of.
        failures: those that don't hold, as they were united; the first one is the culprit.
        seconds: what checking took.
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


def _over_any(ground: Ground, equality: Equality, claim: str, seed: int) -> str:
    """The way in which a large equality is seen to hold over whatever it names: each tensor that
    its sides name is an input of its own. Where it holds of what they are alone, their definitions
    are written out, and those that these name.

    Raises:
        CertificateError: the sides differ, all written out.
        Unknown: it isn't seen.
    """
    rule, why = equality.rule, Unknown("too large")
    for depth in range(_DEPTH + 1):
        read = partial(ground.over, depth=depth)
        left, right = pair(read, equality.left, equality.right)
        given = [t for t in topological([left, right]) if isinstance(t, Input)]
        if any(t.type.size > LARGEST for t in given):
            continue  # written out it may be read at a few places
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
    """Whether some term takes long to be computed, or something that it is made of.

    Args:
        costs: what is known of terms, and is learned of these.
    """
    for term in terms:
        if term not in costs:
            for part in topological([term]):
                if part not in costs:
                    below = max((costs[arg] for arg in args_of(part)), default=0)
                    costs[part] = max(cost(part), below)
    return max(costs[term] for term in terms) > _SMALL


def certify(log: Log, rules: RuleSet, seed: int = 0) -> Certified:
    """Checks every equality of a log.

    Args:
        rules: those that the search ran with; what they claim of rounding counts.
        seed: of the data.
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
            elif isinstance(left, Tensor) and _is_large((left, right), costs) and holds_by_maps(
                left, right
            ):
                way = "maps"
            elif isinstance(left, Tensor):
                given = ground.given(equality.left)
                claim = claims.get(rule, "real")
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
