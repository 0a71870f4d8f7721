"""Counterexamples of a rule: the search for the smallest one by hypothesis, and its text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.printing import render
from eqsynth.ir.tensor import Input, Tensor, Weight, topological
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.claim import Claim
from eqsynth.testing.choices import DrawnChoices, Rejected
from eqsynth.testing.firing import Pair, fired_alone
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.indices import render as render_index
from eqsynth.testing.judging import Difference, Meaningless, Sides
from eqsynth.testing.literals import Literals
from eqsynth.testing.patterns import sample_of
from eqsynth.testing.templates import Sample, Template

SEARCH_S: Final = 10.0
"""The time limit of the search for a smaller counterexample, in seconds."""


@dataclass(frozen=True)
class Counterexample:
    """Two terms that a rule unites although they differ, and their difference."""

    pair: Pair
    difference: Difference

    def __str__(self) -> str:
        left, right = (_shown(side) for side in (self.pair.left, self.pair.right))
        lines = ["left side", *_indented(left), "right side", *_indented(right)]
        if self.difference.env:
            lines.append(f"values ({self.difference.data})")
            lines += [
                f"  {name} = {_array(array)}" for name, array in sorted(self.difference.env.items())
            ]
        if self.difference.left is not None:
            lines.append(f"left is {_array(self.difference.left)}")
            lines.append(f"right is {_array(self.difference.right)}")
        elif self.pair.problem:
            lines += _indented(self.difference.what)
        return "\n    ".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _shown(side: Any) -> str:
    if isinstance(side, Tensor):
        leaves = [t for t in topological([side]) if isinstance(t, Input | Weight) and t is not side]
        types = ", ".join(f"{t.label}: {t.type}" for t in leaves)
        return render(side) + (f"\nover {types}" if types else "")
    return render_index(side)


def _array(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    text = np.array2string(value, threshold=64, separator=", ", max_line_width=1000)
    return " ".join(text.split())


def smallest(
    template: Template,
    rules: RuleSet,
    rule: Rule,
    known: Counterexample,
    seed: int,
    search_s: float,
) -> Counterexample:
    """The smallest counterexample that hypothesis finds in ``search_s`` seconds.

    It differs in the same way (``Difference.kind``) as the known one.
    """
    literals = template.literals
    best = [_simplified(known, rule, seed, literals)]
    kind = known.difference.kind
    deadline = time.monotonic() + search_s

    def fails(sample: Sample | None) -> bool:
        if sample is None:
            return False
        found = _failure(rules, rule, sample, seed, kind, literals)
        if found is None:
            return False
        if _size(found.pair) <= _size(best[0].pair):
            best[0] = found
        return True

    @st.composite
    def samples(draw: st.DrawFn) -> Sample | None:
        if time.monotonic() > deadline:
            # Without any decision drawn, hypothesis has nothing to vary, and ends.
            return None
        try:
            return sample_of(template, DrawnChoices(draw))
        except Rejected:
            return None

    try:
        find(
            samples(),
            fails,
            settings=settings(
                max_examples=400, database=None, deadline=None, derandomize=True,
                phases=(Phase.generate, Phase.shrink), verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
    except HypothesisException:
        # Nothing smaller was found, or the time was up: the best one so far is returned.
        pass
    return _simplified(best[0], rule, seed, literals)


def _failure(
    rules: RuleSet, rule: Rule, sample: Sample, seed: int, kind: str, literals: Literals
) -> Counterexample | None:
    for pair in fired_alone(rules, rule, sample):
        try:
            found = difference_of(pair, rule.numerics, seed, literals)
        except Meaningless:
            continue
        if found is not None and found.kind == kind:
            return Counterexample(pair, found)
    return None


def difference_of(pair: Pair, claim: Claim, seed: int, literals: Literals) -> Difference | None:
    """The difference of the sides of a pair on the first kind of data where they differ, if any."""
    if pair.problem is not None:
        return Difference(*pair.problem)
    if pair.sort == "Idx":
        return indices_differ(pair.left, pair.right)
    return Sides(pair.left, pair.right, seed, literals).all_data(claim)


def _size(pair: Pair) -> int:
    """A measure of how hard a counterexample is to read: its text's length and its elements."""
    size = 0
    for side in (pair.left, pair.right):
        size += len(str(side))
        if isinstance(side, Tensor):
            size += 8 * sum(term.type.size + len(term.shape) for term in topological([side]))
    return size


def _simplified(found: Counterexample, rule: Rule, seed: int, literals: Literals) -> Counterexample:
    """Replace as many of the counterexample's values as possible by 0, 1 or -1."""
    difference, pair = found.difference, found.pair
    if pair.problem or pair.sort == "Idx" or not isinstance(pair.left, Tensor):
        return found
    sides = Sides(pair.left, pair.right, seed, literals)
    if difference.env is None:
        simple = sides.all_data(rule.numerics)
        if simple is None or simple.env is None:
            return found
        difference = simple
    kind = difference.kind
    env = {name: np.array(array) for name, array in (difference.env or {}).items()}
    tries = 0
    for name, array in env.items():
        for at in np.ndindex(array.shape):
            for simple_number in (0, 1, -1):
                if tries > 60 or array[at] == simple_number:
                    break
                if simple_number < 0 and array.dtype.kind in "ub":
                    continue
                tries += 1
                changed = _with(env, name, at, simple_number)
                try:
                    other = sides.verdict(difference.data, rule.numerics, changed)
                except Meaningless:
                    # The value is a position, and the simpler number is out of range.
                    continue
                if other is not None and other.kind == kind:
                    env[name][at], difference = simple_number, other
                    break
    return replace(found, difference=difference)


def _with(env: Mapping[str, Array], name: str, at: tuple[int, ...], value: int) -> dict[str, Array]:
    changed = np.array(env[name])
    changed[at] = value
    return {**env, name: changed}
