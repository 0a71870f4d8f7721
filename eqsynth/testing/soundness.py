"""The checker of rules: every rule instantiated, fired, and its two sides compared.

A rule is drawn samples for (``patterns.py``), fired alone in an e-graph (``firing.py``), and each
equality that it states there is judged (``judging.py``): types, values over the reals, digits in
float32, and exact equality in finite fields. What fails is made as small as hypothesis can.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from eqsynth.errors import EqsynthError, RuleError
from eqsynth.rules import Rule, RuleSet
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.counterexample import SEARCH_S, Counterexample, smallest
from eqsynth.testing.data import FLOATS
from eqsynth.testing.families import CANONICAL_FAMILIES, FAMILIES, Family
from eqsynth.testing.firing import Pair, alone, fire, fired_alone
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.judging import (
    Difference,
    Meaningless,
    exactly,
    rounding_differs,
    types_differ,
    verdict,
)
from eqsynth.testing.numbers import PRIMES
from eqsynth.testing.patterns import Sample, Template

SAMPLES: Final = 20
"""Accepted samples below which a rule counts as untested."""

_BATCH: Final = 24
_MOST_BATCHES: Final = 60
_HOPELESS: Final = 16
# Batches in which twice as many samples as needed are taken, where they come easily.
_EAGER: Final = 4
_PROBES: Final = 10
_PROBE_ROUNDS: Final = 4


class UnsoundRule(RuleError):
    """A rule that the checker refuses.

    Attributes:
        kind: ``value``, ``shape``, ``dtype``, ``numerics``, ``vacuous`` or ``engine``.
        rule: its name.
        counterexample: the smallest one that was found, if there is one.
    """

    def __init__(self, kind: str, rule: Rule, what: str, hint: str,
                 counterexample: Counterexample | None = None) -> None:  # fmt: skip
        self.kind = kind
        self.rule = rule.name
        self.counterexample = counterexample
        super().__init__(
            f"{rule.name} is refused ({kind}): {what}", file=rule.file, line=rule.line, column=1,
            got=str(counterexample) if counterexample else "", hint=hint,
        )  # fmt: skip



@dataclass(frozen=True)
class Checked:
    """What the check of one rule found.

    Attributes:
        accepted: distinct equalities that the rule stated and that were judged.
        exact: how many of them were decided in finite fields, or over all values of an index.
        error: why the rule is refused; None if it is not.
    """

    rule: Rule
    accepted: int
    exact: int
    seconds: float
    error: UnsoundRule | None = None

    @property
    def method(self) -> str:
        """``exact`` if every accepted sample was decided so."""
        if not self.accepted:
            return "-"
        return "exact" if self.exact == self.accepted else "sampled"


def unites(rule: Rule) -> bool:
    """Whether a rule states an equality of its own: a law's answer belongs to its request."""
    return rule.kind in ("rewrite", "law-request")


def check_rule(
    rules: RuleSet, rule: Rule, *, samples: int = SAMPLES, search_s: float = SEARCH_S
) -> Checked:
    """Checks one rule on at least so many samples that it accepts.

    Args:
        search_s: seconds after which no smaller counterexample is looked for.
    """
    return _Check(rules, rule, samples, search_s).run()


class _Check:
    """The check of one rule, as it goes on."""

    def __init__(self, rules: RuleSet, rule: Rule, samples: int, search_s: float) -> None:
        self.rule = rule
        self.search_s = search_s
        self.rules = alone(rules, rule)
        self.wanted = samples
        self.template = Template(rule, rules.known)
        self.seed = crc32(rule.name.encode())
        self.drawn = 0
        self.rejections: Counter[str] = Counter()
        self.seen: set[Any] = set()
        self.exact = 0
        self.start = time.monotonic()

    def run(self) -> Checked:
        try:
            if self.template.has_scopes:
                self._probe()
            for batch in range(_MOST_BATCHES):
                enough = self.wanted * (2 if batch < _EAGER else 1)
                if len(self.seen) >= enough or (batch >= _HOPELESS and not self.seen):
                    break
                self._judge(self._batch(_BATCH))
            if len(self.seen) < self.wanted:
                raise self._vacuous()
        except UnsoundRule as error:
            return self._checked(error)
        return self._checked(None)

    def _checked(self, error: UnsoundRule | None) -> Checked:
        seconds = time.monotonic() - self.start
        return Checked(self.rule, len(self.seen), self.exact, seconds, error)

    def _batch(self, size: int) -> list[Sample]:
        found: list[Sample] = []
        for _ in range(size):
            self.drawn += 1
            try:
                found.append(self.template.sample(RandomChoices(self.seed + self.drawn)))
            except Rejected as rejected:
                self.rejections[str(rejected).split("\n")[0]] += 1
        return found

    def _probe(self) -> None:
        """Keeps the families of scopes on which the rule fires."""
        families = self.template.families
        fires: list[Family] = []
        # Most laws wait for the canonical form; the others never fire there.
        for tried in (CANONICAL_FAMILIES, FAMILIES) * _PROBE_ROUNDS:
            for family in tried:
                self.template.families = (family,)
                before = len(self.seen)
                self._judge(self._batch(_PROBES))
                # The more often it fires, the more often it is drawn.
                fires += [family] * min(len(self.seen) - before, 6)
            if len(fires) > 2:
                break
        self.template.families = tuple(fires) or families

    # ---- firing and judging ---------------------------------------------------

    def _fired(self, samples: Sequence[Sample]) -> list[tuple[Sample | None, Pair]]:
        """The pairs of a batch; where the engine fails, the sample on which it does."""
        try:
            return [(None, pair) for pair in fire(self.rules, self.rule, samples)]
        except EqsynthError:
            pairs: list[tuple[Sample | None, Pair]] = []
            for sample in samples:
                pairs += [(sample, pair) for pair in fired_alone(self.rules, self.rule, sample)]
            return pairs

    def _judge(self, samples: Sequence[Sample]) -> None:
        for _, pair in self._fired(samples):
            key = (pair.left, pair.right)
            if key in self.seen:
                continue
            self.seen.add(key)
            try:
                difference, exact = judged(pair, self.rule.numerics, self.seed, len(self.seen))
            except Meaningless:
                self.seen.discard(key)
                continue
            self.exact += exact
            if difference is not None:
                raise self._refused(difference, pair)

    def _refused(self, difference: Difference, pair: Pair) -> UnsoundRule:
        known = Counterexample(pair, difference)
        found = smallest(self.template, self.rules, self.rule, known, self.seed, self.search_s)
        return UnsoundRule(
            difference.kind, self.rule, found.difference.what, _HINTS[difference.kind], found
        )

    def _vacuous(self) -> UnsoundRule:
        never = [
            text for text, asked in self.template.asked.items()
            if asked and not self.template.true[text]
        ]  # fmt: skip
        what = f"only {len(self.seen)} of {self.drawn} samples match it, {self.wanted} are needed"
        hint = "The checker has no samples of its pattern; test it with assert_egraph_consistent."
        if never:
            hint = f"This condition was never satisfied: {', '.join(never)}"
        elif self.rejections.total() > self.drawn // 2:
            often = self.rejections.most_common(1)[0][0]
            hint = f"Most terms drawn for its pattern don't fit: {often}"
        elif self.rule.conditions:
            hint = f"Its conditions seldom hold together: {', '.join(self.rule.conditions)}"
        return UnsoundRule("vacuous", self.rule, what, hint)


_HINTS: Final = {
    "value": "The sides differ as real numbers: a condition is missing, or the law is wrong.",
    "shape": "Both sides must be well-shaped, and of one shape, whenever the condition holds.",
    "dtype": "Both sides must have one dtype: state it as a condition, or convert.",
    "numerics": "Say what the rule does to rounding: Numerics real, or cancels if digits are lost.",
    "engine": "The rule's terms break the e-graph; see what it computes.",
}


def judged(
    pair: Pair, numerics: str, seed: int, turn: int
) -> tuple[Difference | None, bool]:
    """How the sides of a pair differ, if they do, and whether they are equal exactly.

    Values over the reals are compared on two kinds of data, in turn; rounding on all kinds.
    """
    if pair.problem is not None:
        return Difference(*pair.problem), False
    if pair.sort == "Idx":
        differ = indices_differ(pair.left, pair.right)
        return differ, differ is None
    differ = types_differ(pair.left, pair.right)
    if differ is not None:
        return differ, False
    kinds = list(FLOATS)
    for kind in (kinds[(2 * turn) % len(kinds)], kinds[(2 * turn + 1) % len(kinds)]):
        differ = verdict(pair.left, pair.right, kind, seed, numerics)
        if differ is not None:
            return differ, False
    differ = rounding_differs(pair.left, pair.right, seed, numerics)
    if differ is not None:
        return differ, False
    exact, differ = exactly(pair.left, pair.right, seed, PRIMES[turn % len(PRIMES) :][:1])
    return (None if numerics.startswith("approx") else differ), exact
