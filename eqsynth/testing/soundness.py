"""The checker of rules: it draws samples for a rule, fires the rule, and compares both sides.

Samples are drawn from the rule's pattern (``patterns.py``), the rule is fired on them alone in an
e-graph (``firing.py``), and each equality that it states there is judged (``judging.py``): types,
values over the reals, digits in float32, and exact equality in finite fields. A counterexample is
shrunk by hypothesis (``counterexample.py``).
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from eqsynth.egraph.tactics.table import LAWS, claims_too_much
from eqsynth.errors import EqsynthError, RuleError
from eqsynth.ir.tensor import Tensor, topological
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.claim import Claim
from eqsynth.rules.definitions import how_to_define, undefined
from eqsynth.testing.choices import RandomChoices, Rejected, chance
from eqsynth.testing.counterexample import SEARCH_S, Counterexample, smallest
from eqsynth.testing.families import ALL_FAMILIES, CANONICAL_FAMILIES, FAMILIES, Family
from eqsynth.testing.firing import Pair, alone, fire, fired_alone
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.joins import joins_blindly
from eqsynth.testing.judging import Difference, Meaningless, Sides, types_differ
from eqsynth.testing.literals import Literals
from eqsynth.testing.patterns import sample_of
from eqsynth.testing.templates import Sample, Template

SAMPLES: Final = 20
"""The least number of accepted samples; a rule with fewer counts as untested."""

EXACT: Final = 40
"""The least number of samples for the word "exact" in the result."""

LIMIT_S: Final = 30.0
"""The CPU seconds that the check of one rule may take."""

# The number of samples in one e-graph, and its maximum: setting up an e-graph costs as much time as
# some thirty samples.
_BATCH: Final = 48
_LARGEST_BATCH: Final = 160
# For patterns that the engine matches by trying all combinations of terms (``joins.py``): the
# number of samples in the first e-graph, and the seconds below which the next may be larger.
_FIRST_BATCH: Final = 6
_FAST_S: Final = 0.3
# The most samples that are drawn per wanted equality; and the most until the first sample matches.
_MOST_DRAWN: Final = 80
_HOPELESS: Final = 384
# If a rule matches often, more equalities than wanted are judged: up to this many times as many,
# until this many samples are drawn. Laws have smaller numbers, since their samples cost more.
_MORE: Final = 5
_EAGER: Final = 800
_MORE_LAWS: Final = 2
_EAGER_LAWS: Final = 160
# Factor on the numbers of samples above for rules about scopes: they are sampled on families, and
# fire on few of them.
_FAMILIES: Final = 4
# One in `_ELSEWHERE` samples is drawn from any family, also from those on which the rule hasn't
# fired yet; one in two as long as the rule fires on fewer than one in `_SELDOM` samples.
_ELSEWHERE: Final = 4
_SELDOM: Final = 40


class UnsoundRule(RuleError):
    """A rule that the checker refuses.

    Attributes:
        kind: ``value``, ``shape``, ``dtype``, ``numerics``, ``overflow``, ``vacuous`` or
            ``engine``.
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
    """The result of the check of one rule.

    Attributes:
        accepted: the number of distinct equalities that the rule stated and that were judged.
        exact: how many of them were decided in finite fields, or over all values of an index.
        seconds: the CPU time of the check.
        error: why the rule is refused; None if it isn't.
        overflows: whether the right side overflows in float16 on data of 100 and more where the
            left side doesn't. This is reported, but a rule isn't refused for it.
        timed_out: whether the time limit ended the check before it had enough samples.
    """

    rule: Rule
    accepted: int
    exact: int
    seconds: float
    error: UnsoundRule | None = None
    overflows: bool = False
    timed_out: bool = False

    @property
    def method(self) -> str:
        """``exact`` if there are many samples and each was decided exactly, at its own shapes,
        which is no proof for other shapes; else ``tested``; ``-`` without samples."""
        if not self.accepted:
            return "-"
        return "exact" if self.exact == self.accepted >= EXACT else "tested"

    @property
    def known(self) -> str:
        """The result as text: ``tested (40 samples)``, ``exact at 80 samples``."""
        if not self.accepted:
            known = "-"
        elif self.method == "exact":
            known = f"exact at {self.accepted} samples"
        else:
            known = f"tested ({self.accepted} samples)"
        return known + ", time limit" * self.timed_out + ", float16 may overflow" * self.overflows


def unites(rule: Rule) -> bool:
    """Whether a rule states an equality that is checked. The rule that applies a law's answer
    isn't checked by itself, but with the rule that requests the law."""
    return rule.kind in ("rewrite", "law-request")


def check_rule(
    rules: RuleSet, rule: Rule, *, samples: int = SAMPLES, search_s: float = SEARCH_S,
    limit_s: float = LIMIT_S,
) -> Checked:  # fmt: skip
    """Check one rule.

    Args:
        rules: the rule set that the rule belongs to.
        samples: the number of equalities that are judged, at least.
        search_s: the time limit of the search for a smaller counterexample, in seconds.
        limit_s: the CPU seconds after which no further samples are drawn. A rule that has fewer
            samples than wanted by then isn't refused, but `timed_out`.
    """
    return _Check(rules, rule, samples, search_s, limit_s).run()


class _Check:
    """The state of the check of one rule."""

    def __init__(
        self, rules: RuleSet, rule: Rule, samples: int, search_s: float, limit_s: float
    ) -> None:
        self.rule = rule
        self.search_s = search_s
        self.all = rules
        self.rules = alone(rules, rule)
        self.wanted = samples
        self.template = Template(rule, rules)
        self.seed = crc32(rule.name.encode())
        self.drawn = 0
        self.rejections: Counter[str] = Counter()
        self.seen: set[Any] = set()
        self.exact = 0
        # The families on which the rule has fired; a family is in it once for each firing.
        self.fired_on: list[Family] = []
        self.drawn_from: dict[Tensor, Family] = {}
        self.overflows = False
        self.start = time.process_time()
        self.deadline = self.start + limit_s
        self.blind = joins_blindly(rule, rules.known)
        more = 1 if self.blind else _MORE if rule.kind == "rewrite" else _MORE_LAWS
        self.aim = self.wanted * more

    def run(self) -> Checked:
        """Draw samples, fire the rule and judge its equalities, until there are enough.

        Python's garbage collector is off meanwhile: there are many terms, they have no cycles, and
        the collector would take a third of the time.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if collects:
                gc.enable()

    def _run(self) -> Checked:
        sides = self.rule.equality or ()
        unknown = undefined((*self.rule.body, *sides), self.all.definitions)
        if unknown is not None:
            what = f"{unknown.name} has no definition, so nothing says what its values are"
            error = UnsoundRule("vacuous", self.rule, what, how_to_define(unknown))
            return self._checked(error)
        if self.rule.kind == "law-request" and claims_too_much(self.rule.law, self.rule.numerics):
            # Samples seldom show this fault: digits are lost only where terms nearly cancel.
            what = f"the law {self.rule.law} isn't {self.rule.numerics}"
            hint = f"Say :numerics {LAWS[self.rule.law].numerics}."
            return self._checked(UnsoundRule("numerics", self.rule, what, hint))
        scopes = self.template.has_scopes
        longer = _FAMILIES if scopes else 1
        eager = _EAGER if self.rule.kind == "rewrite" else longer * _EAGER_LAWS
        hopeless, most = longer * _HOPELESS, longer * _MOST_DRAWN * self.wanted
        size = _LARGEST_BATCH if scopes else _BATCH
        if self.blind:
            size = _FIRST_BATCH
        try:
            while len(self.seen) < (self.aim if self.drawn < eager else self.wanted):
                if self._late():
                    if not self.seen:
                        raise self._vacuous()
                    return self._checked(None, timed_out=True)
                if self.drawn >= (most if self.seen else hopeless):
                    raise self._vacuous()
                before, aimed = len(self.seen), bool(self.fired_on) or longer == 1
                batch, start = self._batch(size), time.process_time()
                pairs = self._fired(batch)
                fired_s = time.process_time() - start
                self._judge(pairs)
                if self.blind:
                    # The time grows with a high power of the number of samples. So the next e-graph
                    # is 1.5 times as large if this one was fast, else half as large.
                    size = 3 * size // 2 if fired_s < _FAST_S else max(1, size // 2)
                    size = min(size, _LARGEST_BATCH)
                    continue
                # The number of samples that would give the missing equalities, if they match as
                # often as the last ones did.
                rate, missing = (len(self.seen) - before) / size, self.aim - len(self.seen)
                if self.seen:
                    size = int(missing / max(rate, 1e-3)) if aimed else _BATCH
                    size = max(_BATCH, min(_LARGEST_BATCH, size))
        except UnsoundRule as error:
            return self._checked(error)
        return self._checked(None)

    def _late(self) -> bool:
        return time.process_time() > self.deadline

    def _checked(self, error: UnsoundRule | None, timed_out: bool = False) -> Checked:
        seconds = time.process_time() - self.start
        return Checked(
            self.rule, len(self.seen), self.exact, seconds, error, self.overflows, timed_out
        )

    def _batch(self, size: int) -> list[Sample]:
        found: list[Sample] = []
        for _ in range(size):
            self.drawn += 1
            choices = RandomChoices(self.seed + self.drawn)
            if self.template.has_scopes:
                self.template.families = (self._family(choices),)
            try:
                sample = sample_of(self.template, choices)
            except Rejected as rejected:
                self.rejections[str(rejected).split("\n")[0]] += 1
                continue
            found.append(sample)
            for term in topological(sample.tensors):
                self.drawn_from.setdefault(term, self.template.families[0])
        return found

    def _family(self, choices: RandomChoices) -> Family:
        """A family for the next sample: mostly one on which the rule has fired before; else mostly
        one in canonical form, which most laws need."""
        if self.template.own_families and not chance(choices, _ELSEWHERE):
            return choices.pick(self.template.own_families)
        # A rule that seldom fires may fire often on a family that hasn't been tried yet.
        elsewhere = 2 if len(self.fired_on) * _SELDOM < self.drawn else _ELSEWHERE
        if self.fired_on and not chance(choices, elsewhere):
            return choices.pick(self.fired_on)
        return choices.pick(FAMILIES if chance(choices, 3) else CANONICAL_FAMILIES)

    # ---- firing and judging ---------------------------------------------------

    def _fired(self, samples: Sequence[Sample]) -> list[Pair]:
        """The pairs that the rule unites on a batch, in random order. If the engine fails on the
        batch, the samples are fired one by one, up to the one on which it fails."""
        try:
            pairs = fire(self.rules, self.rule, samples)
        except EqsynthError:
            pairs = []
            for sample in samples:
                pairs += fired_alone(self.rules, self.rule, sample)
                if pairs and pairs[-1].problem:
                    return pairs
        if self.template.has_scopes:
            lefts = dict.fromkeys(pair.left for pair in pairs)
            self.fired_on += [self.drawn_from[t] for t in lefts if t in self.drawn_from]
        # Shuffled, so that the pairs that are judged come from all samples.
        random.Random(self.seed).shuffle(pairs)
        return pairs

    def _judge(self, pairs: Sequence[Pair]) -> None:
        """Judge equalities, as long as more of them are wanted.

        Raises:
            UnsoundRule: the sides of one differ.
        """
        for pair in pairs:
            # A side that isn't a valid term may contain lists, which have no hash.
            key = (pair.left, pair.right) if pair.problem is None else str(pair)
            if key in self.seen:
                continue
            if len(self.seen) >= self.aim or (self.seen and self._late()):
                break
            self.seen.add(key)
            try:
                difference, exact, overflows = judged(
                    pair, self.rule.numerics, self.seed, len(self.seen), self.template.literals
                )
            except Meaningless:
                self.seen.discard(key)
                continue
            self.exact += exact
            self.overflows |= overflows
            if difference is not None:
                raise self._refused(difference, pair)

    def _refused(self, difference: Difference, pair: Pair) -> UnsoundRule:
        known = Counterexample(pair, difference)
        self.template.families = tuple(self.fired_on) or ALL_FAMILIES
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
    "overflow": "On data of about 1 it overflows in float16: condition the dtype, or scale less.",
    "engine": "The rule's terms break the e-graph; see what it computes.",
}


def judged(
    pair: Pair, claim: Claim, seed: int, turn: int, literals: Literals
) -> tuple[Difference | None, bool, bool]:
    """Judge a pair.

    Args:
        claim: the rule's claim about rounding.
        turn: the number of the pair, which chooses the kinds of data.

    Returns:
        The difference of the sides, or None; whether they are equal exactly; and whether the right
        side overflows in float16 on larger data.
    """
    if pair.problem is not None:
        return Difference(*pair.problem), False, False
    if pair.sort == "Idx":
        differ = indices_differ(pair.left, pair.right)
        return differ, differ is None, False
    differ = types_differ(pair.left, pair.right)
    if differ is not None:
        return differ, False, False
    sides = Sides(pair.left, pair.right, seed, literals)
    return *sides.judge(claim, turn), sides.overflows
