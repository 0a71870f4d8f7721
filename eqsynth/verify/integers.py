"""Integers in Z3: hypotheses, floored and truncated quotients, and questions about them.

Each quotient becomes a new variable with a remainder and the inequalities that define both::

    q = x // m   ->   x = m*q + r,  0 <= r < m        (m > 0)

so that Z3 gets polynomials only. Z3 decides linear formulas; with products of variables it often
gives up. The question is then asked again with lemmas that hold for all integers::

    a >= 0, b >= 0  ->  a*b >= 0            a: a divisor;  b: a remainder r, or m - 1 - r
    m > 0  ->  z = 0  or  m*(z - 1) >= 0  or  m*(-z - 1) >= 0
                                            m: a divisor;  z: q1 - q2, or q1 - (q2 + q3)

With the lemmas, most questions become linear in the products.

Z3's work is bounded by its own count of steps and not by time, so a question has the same answer
on a busy machine. Integers have 64 bits in the engine and are unbounded here: where a computation
overflows in the engine, a rule doesn't match (``tests/verify`` checks that it doesn't).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any, Final

import z3

from eqsynth.verify.verdict import Left

WORK: Final = 1_500_000
"""The most work for one question, in Z3's units (``rlimit``); about a second."""

# The tactics of the second attempt. Variables that an equality defines are eliminated first, which
# leaves fewer products.
_ELIMINATING: Final = ("simplify", "propagate-values", "solve-eqs", "simplify", "smt")

# Lemmas are added for each pair of quotients, so only the last quotients get any: 8 for lemmas
# about differences of two, 5 for lemmas about three.
_MOST_QUOTIENTS: Final = 8
_MOST_SUMS: Final = 5


_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """A context in which a question raises `Left` after ``limit_s`` seconds of processor time."""
    token = _deadline.set(time.process_time() + limit_s)
    try:
        yield
    finally:
        _deadline.reset(token)


@dataclass(frozen=True)
class Answer:
    """The answer to a question: true, false with a model that shows it, or neither (unknown)."""

    true: bool
    model: Any = None

    @property
    def false(self) -> bool:
        return self.model is not None


@dataclass
class Integers:
    """Integer variables and the hypotheses about them.

    Attributes:
        known: the hypotheses, formulas of Z3.
        names: numbers that make the names of variables unique.
    """

    known: list[Any] = field(default_factory=list)
    names: count[int] = field(default_factory=count)
    # (id of the dividend, id of the divisor, kind) -> (quotient, remainder, dividend, divisor).
    # Dividend and divisor are kept so that Z3 doesn't give their ids to other terms.
    divided: dict[tuple[int, int, str], tuple[Any, ...]] = field(default_factory=dict)

    def fresh(self, stem: str) -> Any:
        """A new integer variable, named ``stem!number``."""
        return z3.Int(f"{stem}!{next(self.names)}")

    def suppose(self, *facts: Any) -> None:
        """Add hypotheses."""
        self.known += facts

    def floor(self, x: Any, m: Any) -> tuple[Any, Any]:
        """The floored quotient and remainder. The caller makes sure that m is positive."""
        q, r = self._divided(x, m, "floor")
        return q, r

    def truncated(self, x: Any, m: Any) -> tuple[Any, Any]:
        """The truncated quotient and remainder, as of the engine's ``/`` and ``%``; m isn't 0."""
        q, r = self._divided(x, m, "truncated")
        return q, r

    def _divided(self, x: Any, m: Any, kind: str) -> Any:
        x, m = number(x), number(m)
        key = (x.get_id(), m.get_id(), kind)
        if key not in self.divided:
            q, r = self.fresh("q"), self.fresh("r")
            if kind == "floor":
                self.suppose(x == m * q + r, r >= 0, r < m)
            else:
                size = z3.If(m > 0, m, -m)
                self.suppose(
                    m != 0, x == m * q + r, z3.Implies(x >= 0, z3.And(0 <= r, r < size)),
                    z3.Implies(x <= 0, z3.And(-size < r, r <= 0)),
                )  # fmt: skip
            self.divided[key] = q, r, x, m
        return self.divided[key][:2]

    def ask(self, goal: Any, given: Sequence[Any] = (), work: int = WORK) -> Answer:
        """Whether ``goal`` follows from the hypotheses and from ``given``."""
        goal = z3.simplify(goal) if z3.is_expr(goal) else z3.BoolVal(bool(goal))
        if z3.is_true(goal):
            return Answer(True)
        facts = [*self.known, *given]
        first = _checked([*facts, z3.Not(goal)], work)
        if first.true or first.false:
            return first
        facts = [*facts, z3.Not(goal)]
        return _checked([*facts, *self._lemmas(facts)], work, _ELIMINATING)

    def _lemmas(self, facts: Sequence[Any]) -> list[Any]:
        """The lemmas of the module's docstring for the quotients that are known or in ``facts``."""
        quotients = [(q, r, m) for (_, _, kind), (q, r, _, m) in self.divided.items()
                     if kind == "floor"]  # fmt: skip
        quotients += [(a / m, a % m, m) for a, m in _divisions(facts)]
        quotients = quotients[-_MOST_QUOTIENTS:]
        exact = [q for (_, _, kind), (q, *_) in self.divided.items() if kind == "truncated"]
        sizes = {m.get_id(): m for _, _, m in quotients if not z3.is_int_value(m)}
        sizes |= {q.get_id(): q for q in exact[-_MOST_QUOTIENTS:]}
        found = [
            z3.Implies(m > 0, z3.And(a == m * (a / m) + a % m, a % m >= 0, a % m < m))
            for a, m in _divisions(facts)
        ]
        found += [
            z3.Implies(z3.And(a >= 0, b >= 0), a * b >= 0)
            for a in sizes.values() for _, r, m in quotients for b in (r, m - 1 - r)
        ]  # fmt: skip
        for n, (q, _, one) in enumerate(quotients):
            for p, _, two in quotients[:n]:
                found += [_no_other_multiple(m, q - p) for m in (one, two)]
        same = [(q, m) for q, _, m in quotients[-_MOST_SUMS:]]
        for q, m in same:
            rest = [p for p, other in same if other.eq(m) and not p.eq(q)]
            found += [_no_other_multiple(m, q - a - b) for a, b in combinations(rest, 2)]
        return found

    def holds(self, goal: Any, given: Sequence[Any] = (), work: int = WORK) -> bool:
        """Whether Z3 shows that ``goal`` follows; False if it doesn't follow or Z3 gives up."""
        return self.ask(goal, given, work).true

    def consistent(self, given: Sequence[Any] = (), work: int = WORK) -> Answer:
        """Whether the hypotheses contradict each other: ``true`` if they do, ``false`` with a model
        that satisfies them if they don't. A rule whose facts never hold isn't reported as proved.
        """
        return _checked([*self.known, *given], work)


def _divisions(facts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The (dividend, divisor) of each ``div`` and ``mod`` of Z3 in ``facts`` whose divisor isn't a
    constant."""
    found: dict[tuple[int, int], tuple[Any, Any]] = {}
    seen: set[int] = set()
    waiting = list(facts)
    while waiting:
        x = waiting.pop()
        if x.get_id() in seen:
            continue
        seen.add(x.get_id())
        waiting += x.children()
        if z3.is_idiv(x) or z3.is_mod(x):
            a, m = x.children()
            if not z3.is_int_value(m):
                found[a.get_id(), m.get_id()] = a, m
    return list(found.values())


def _no_other_multiple(m: Any, z: Any) -> Any:
    """The lemma that the multiple ``m*z`` is 0 or at least ``m`` away from 0, for ``m > 0``."""
    return z3.Implies(m > 0, z3.Or(z == 0, m * (z - 1) >= 0, m * (-z - 1) >= 0))


def number(x: Any) -> Any:
    """An integer of Python as a term of Z3; terms of Z3 stay."""
    return z3.IntVal(x) if isinstance(x, int) else x


def value(model: Any, x: Any) -> int:
    """The number that a model gives for a term."""
    if isinstance(x, int):
        return x
    found = model.eval(x, model_completion=True)
    return int(found.as_long())


def _checked(facts: Sequence[Any], work: int, tactics: Sequence[str] = ()) -> Answer:
    if time.process_time() > _deadline.get():
        raise Left("the time limit ended it")
    solver = z3.Then(*tactics).solver() if tactics else z3.Solver()
    solver.set("rlimit", work)
    solver.set("random_seed", 0)
    # Else Z3 takes Ctrl-C as its own: the question has no answer, and the program goes on.
    solver.set("ctrl_c", False)
    solver.add(*facts)
    found = solver.check()
    if found == z3.unsat:
        return Answer(True)
    return Answer(False, solver.model() if found == z3.sat else None)
