"""Compare two tensor elements, under hypotheses about the integers in their indices.

Both comparisons return True only if the elements are equal; False means "not shown".

``Comparison.same`` compares the structure, so it holds for any meaning of the functions:

- a guard is decided by Z3, or else both of its cases are compared;
- two reads are the same if Z3 shows that they read the same place of the same tensor;
- two calls are the same if their arguments are; operands of commutative functions may be swapped;
- two reductions are the same if their iterators can be paired by extent and the bodies are the
  same.

A few identities that keep every bit are applied first (``relu(relu(x)) -> relu(x)``). By default
(``bitwise``), elements that are the same are therefore equal in each dtype and to the last bit.

``Comparison.equal`` compares the elements as polynomials over a commutative ring, with sums split
into terms (``polynomials.py``); it may relate different iteration spaces (``relating.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from itertools import combinations, permutations
from typing import Any, Final, TypeAlias

import z3

from eqsynth.ir.functions import COMMUTATIVE, FUNCTIONS
from eqsynth.verify.integers import Integers, number
from eqsynth.verify.polynomials import Term, terms
from eqsynth.verify.relating import narrowed, pinned, replaced, thinned
from eqsynth.verify.symbolic import as_value
from eqsynth.verify.values import (
    Call,
    Iterators,
    Names,
    Number,
    Read,
    Reduce,
    Value,
    bounds,
    conditions,
    decided,
    function_of,
    numbers,
    renamed,
    substituted,
)
from eqsynth.verify.verdict import Left

_COMMUTATIVE: Final = COMMUTATIVE | {"add", "mul"}
# The most guards that Z3 doesn't decide, for which both cases are compared.
_MOST_SPLITS: Final = 64
# The integers 0 ... 127 can be represented in every integer dtype.
MOST_WHOLE: Final = 128
_Aligned: TypeAlias = tuple[Names, Names, tuple[Any, ...]]


class Comparison:
    """Compares elements (:data:`~eqsynth.verify.values.Value`) under the hypotheses of ``ints``."""

    def __init__(
        self, ints: Integers, *, bitwise: bool = True, whole: bool = False, partial: bool = False
    ) -> None:
        """
        Args:
            bitwise: ``same`` may only use identities that keep every bit.
            whole: the elements are integers that wrap, so ``equal`` accepts no constants other than
                integers that every integer dtype can represent.
            partial: the elements only have to be equal where both are finite numbers.
        """
        self.ints = ints
        self.bitwise = bitwise
        self.whole = whole
        self.partial = partial
        self.splits = 0

    # ---- whatever the functions compute ----------------------------------------------

    def same(self, a: Value, b: Value, given: tuple[Any, ...] = ()) -> bool:
        """Whether two values are the same, whatever their functions compute.

        Raises:
            Left: there are too many guards to compare all their cases.
        """
        condition = next(conditions(a), None)
        if condition is None:
            condition = next(conditions(b), None)
        if condition is not None:
            for known in (condition, z3.Not(condition)):
                if self.ints.holds(known, given):
                    taken = known is condition
                    return self.same(
                        decided(a, condition, taken), decided(b, condition, taken), given
                    )
            self.splits += 1
            if self.splits > _MOST_SPLITS:
                raise Left("more cases of guards than are looked at")
            return all(
                self.same(decided(a, condition, taken), decided(b, condition, taken),
                          (*given, condition if taken else z3.Not(condition)))
                for taken in (True, False)
            )  # fmt: skip
        a, b = self._simpler(a, given), self._simpler(b, given)
        return self._same(a, b, given)

    def _same(self, a: Value, b: Value, given: tuple[Any, ...]) -> bool:
        if isinstance(a, Read) and isinstance(b, Read):
            return self._same_place(a, b, given)
        if isinstance(a, Number) and isinstance(b, Number):
            return a.value == b.value
        for one, two in ((a, b), (b, a)):
            # An index, as ``Iota`` has them, that can only be this number.
            if isinstance(one, Read) and one.name == "integer" and isinstance(two, Number):
                place = isinstance(two.value, float) and two.value in range(MOST_WHOLE)
                return place and self.ints.holds(one.index[0] == int(two.value), given)
        if isinstance(a, Call) and isinstance(b, Call):
            if a.name != b.name or len(a.args) != len(b.args):
                return False
            pairs = [list(zip(a.args, b.args, strict=True))]
            if function_of(a.name) in _COMMUTATIVE:
                pairs.append(list(zip(a.args, reversed(b.args), strict=True)))
            return any(all(self.same(x, y, given) for x, y in pair) for pair in pairs)
        if isinstance(a, Reduce) and isinstance(b, Reduce) and a.reducer == b.reducer:
            return any(
                self.same(substituted(a.body, one), substituted(b.body, two), (*given, *ranges))
                for one, two, ranges in self._aligned(a.iterators, b.iterators, given)
            )
        return False

    def _aligned(self, a: Iterators, b: Iterators, given: tuple[Any, ...]) -> Iterator[_Aligned]:
        """Pair the iterators of ``a`` with those of ``b``, in each way in which extents are equal.

        Yields ``(names for a, names for b, bounds)``: both iterators of a pair are renamed to one
        fresh variable. The variable is fresh because a name of one side may be bound inside the
        body of the other side.
        """
        if len(a) != len(b):
            return
        for order in permutations(b):
            pairs = list(zip(a, order, strict=True))
            if all(self.ints.holds(z3.IntVal(0) + e == f, given) for (_, e), (_, f) in pairs):
                new = [z3.FreshInt("k") for _ in pairs]
                yield (
                    [(i, k) for (i, _), k in zip(a, new, strict=True)],
                    [(i, k) for (i, _), k in zip(order, new, strict=True)],
                    bounds([(k, e) for (_, e), k in zip(a, new, strict=True)]),
                )

    def _same_place(self, a: Read, b: Read, given: tuple[Any, ...]) -> bool:
        if a.name != b.name:
            return False
        if not a.flat and not b.flat and all(
            self.ints.holds(z3.IntVal(0) + i == j, given)
            for i, j in zip(a.index, b.index, strict=True)
        ):  # fmt: skip
            return True
        if not a.flat and not b.flat:
            return False
        return self.ints.holds(z3.IntVal(0) + a.position == b.position, given)

    def _simpler(self, value: Value, given: tuple[Any, ...]) -> Value:
        """Simplify nested calls: ``relu(relu(x)) -> relu(x)``, ``max(x, 0) -> relu(x)``.

        Unless ``self.bitwise`` is off, only identities that keep every bit in each dtype are used.
        """
        if not isinstance(value, Call):
            return value
        args = tuple(self._simpler(arg, given) for arg in value.args)
        name = function_of(value.name)
        if name in ("relu", "abs") and isinstance(args[0], Call):
            inner = function_of(args[0].name)
            if (name, inner) in (("relu", "relu"), ("abs", "relu"), ("abs", "abs")):
                return args[0]
        if name == "div" and isinstance(args[1], Number) and not self.bitwise:
            if args[1].value == 1:
                return args[0]
        if name == "neg" and isinstance(args[0], Call) and function_of(args[0].name) == "neg":
            return args[0].args[0]
        if name == "max" and any(isinstance(arg, Number) and arg.value == 0 for arg in args):
            zero = 0 if isinstance(args[0], Number) and args[0].value == 0 else 1
            return self._simpler(Call("relu", (args[1 - zero],)), given)
        if name == "reciprocal" and isinstance(args[0], Call) and not self.bitwise:
            if function_of(args[0].name) == "sqrt":
                return Call("rsqrt", args[0].args)
        if name == "div" and isinstance(args[1], Number) and not self.bitwise:
            # The divisor is an attribute ``c`` that the rule names: x / c -> x * (1.0 / c).
            if isinstance(args[1].value, str):
                return Call("mul", (args[0], Number(f"(/ 1.0 {args[1].value})")))
        if self.whole and name in ("add", "mod") and len(args) == 2:
            found = self._place(name, args[0], args[1], given)
            if found is not None:
                return found
        if name == "mod" and isinstance(args[0], Call) and function_of(args[0].name) == "mod":
            # (x % y) % y = x % y. As a float the remainder may be rounded up to y.
            exact = self.whole or not self.bitwise
            if exact and self.same(args[0].args[1], args[1], given):
                return args[0]
        if name in ("max", "min") and self.same(args[0], args[1], given):
            return args[0]
        increasing = len(args) == 1 and name in FUNCTIONS and FUNCTIONS[name].increasing
        if increasing and isinstance(args[0], Reduce) and args[0].reducer in ("max", "min"):
            # f(max_k g) = max_k f(g) if f increases and k has at least one value. For relu this
            # keeps every bit, since relu returns its argument or 0; other functions may round.
            inner_reduce = args[0]
            full = [self.ints.holds(z3.IntVal(0) + e >= 1, given)
                    for _, e in inner_reduce.iterators]  # fmt: skip
            if all(full) and (name == "relu" or not self.bitwise):
                body = Call(value.name, (inner_reduce.body,))
                return Reduce(inner_reduce.reducer, inner_reduce.iterators, body)
        return Call(value.name, args)

    def _place(self, name: str, a: Value, b: Value, given: tuple[Any, ...]) -> Value | None:
        """The sum or the remainder of two indices, as ``Iota`` of int64 has them, as an index; None
        if the sum may wrap, or the divisor may not be positive."""
        if not (isinstance(a, Read) and isinstance(b, Read)) or {a.name, b.name} != {"integer"}:
            return None
        i, j = a.index[0], b.index[0]
        if name == "add":
            fits = z3.And(i + j >= -(2**63), i + j < 2**63)
            return as_value(i + j) if self.ints.holds(fits, given) else None
        if self.ints.holds(z3.And(i >= 0, i < j), given):
            return a
        return as_value(i % j) if self.ints.holds(j > 0, given) else None

    # ---- as polynomials ---------------------------------------------------------------

    def equal(self, a: Value, b: Value, given: tuple[Any, ...] = ()) -> bool:
        """Whether two values are the same polynomial, with sums split into terms.

        Raises:
            Left: a part of a sum or product may be infinite, or, if ``whole``, a constant isn't one
                of every integer dtype.
        """
        if self.whole and not all(n in range(MOST_WHOLE) for v in (a, b) for n in numbers(v)):
            raise Left("a number that isn't one of each integer dtype")
        if self._cancels(self._difference(a, b, False), given):
            return True
        # A guard may split the range of a sum: sum_k [k < m] f + [k >= m] g. Compare again with
        # the two cases as separate terms, each over the part of the range where it holds.
        parts = [self._short(t, given) for t in self._difference(a, b, True)]
        if not any(term.conditions and term.iterators for term in parts):
            return self._cancels(parts, given)
        parts = [t for t in parts if not self._never(t, given)]
        return self._cancels([pinned(t, self.ints, given) for t in parts], given, related=True)

    def equal_in_cases(self, a: Value, b: Value, given: tuple[Any, ...] = ()) -> bool:
        """Whether two values are the same polynomial in each case of the guards around them:
        ``x + (i < n ? y : 0) = (i < n ? x + y : x)``.

        Raises:
            Left: there are too many guards, or as of :meth:`equal`.
        """
        condition = next((c for value in (a, b) for c in conditions(value)), None)
        if condition is None:
            return self.equal(a, b, given)
        self.splits += 1
        if self.splits > _MOST_SPLITS:
            raise Left("more cases of guards than are looked at")
        return all(
            self.ints.holds(z3.Not(known), given)
            or self.equal_in_cases(decided(a, condition, taken), decided(b, condition, taken),
                                   (*given, known))
            for taken, known in ((True, condition), (False, z3.Not(condition)))
        )  # fmt: skip

    def _short(self, term: Term, given: tuple[Any, ...]) -> Term:
        """A term without the iterators that have one value, and 0 if an iterator has none."""
        for k, extent in term.iterators:
            if self.ints.holds(number(extent) <= 0, given):
                return term.with_factor(Fraction(0))
            if self.ints.holds(number(extent) == 1, given):
                return self._short(replaced(term, k, z3.IntVal(0), None, ()), given)
        return term

    def _difference(self, a: Value, b: Value, apart: bool) -> list[Term]:
        """The terms of ``a - b``, with the powers of exp and abs in each as one factor."""
        minus = [t.times(Fraction(-1)) for t in terms(b, apart, self.partial)]
        return [self._powers(term) for term in (*terms(a, apart, self.partial), *minus)]

    def _powers(self, term: Term) -> Term:
        """Join the exponentials in a term over the reals, ``exp(u) * exp(v) -> exp(u + v)``, and
        take squares of absolute values, ``abs(u) * abs(u) -> u * u``, for an atom u."""
        exponents = [a.args[0] for a in term.atoms if isinstance(a, Call) and a.name == "exp"]
        atoms = list(term.atoms)
        if len(exponents) > 1 and not self.whole:
            atoms = [a for a in atoms if not (isinstance(a, Call) and a.name == "exp")]
            atoms.append(Call("exp", (reduce(lambda u, v: Call("add", (u, v)), exponents),)))
        sizes = [n for n, a in enumerate(atoms) if isinstance(a, Call) and a.name == "abs"]
        for n, m in combinations(sizes, 2):
            one, two = atoms[n], atoms[m]
            if not (isinstance(one, Call) and isinstance(two, Call)):
                continue  # One of the two is a part of another square.
            own = one.args[0]
            if one.name == two.name == "abs" and isinstance(own, Read) and self.same(
                own, two.args[0]
            ):  # fmt: skip
                atoms[n] = atoms[m] = own
        return Term(term.factor, term.iterators, term.conditions, tuple(atoms))

    def _cancels(self, rest: list[Term], given: tuple[Any, ...], related: bool = False) -> bool:
        """Whether it can be shown that the terms add up to 0: like terms are merged until each
        remaining factor is 0, or each remaining term's conditions never hold."""
        while rest:
            term = rest.pop()
            for n, other in enumerate(rest):
                if self._alike(term, other, given, related):
                    rest[n] = other.with_factor(term.factor + other.factor)
                    break
            else:
                if term.factor != 0 and not self._never(term, given):
                    return False
            rest = [t for t in rest if t.factor != 0]
        return True

    def _never(self, term: Term, given: tuple[Any, ...]) -> bool:
        return bool(term.conditions) and self.ints.holds(
            z3.Not(z3.And(*term.conditions)), (*given, *bounds(term.iterators))
        )

    def _alike(self, a: Term, b: Term, given: tuple[Any, ...], related: bool = False) -> bool:
        if a.names != b.names or len(a.iterators) != len(b.iterators):
            return False
        if related:
            a = narrowed(b, a, self.ints, given)
            b = narrowed(a, b, self.ints, given)
            a = thinned(b, a, self.ints, given)
            b = thinned(a, b, self.ints, given)
        for one, two, ranges in self._aligned(a.iterators, b.iterators, given):
            where, there = (
                renamed(z3.And(*term.conditions, True), names)
                for term, names in ((a, one), (b, two))
            )
            if not self.ints.holds(where == there, (*given, *ranges)):
                continue
            mine, other = ([substituted(atom, names) for atom in term.atoms]
                           for term, names in ((a, one), (b, two)))  # fmt: skip
            if self._matched(mine, other, (*given, *ranges, where)):
                return True
        return False

    def _matched(self, a: list[Value], b: list[Value], given: tuple[Any, ...]) -> bool:
        if not a:
            return not b
        for n, other in enumerate(b):
            if self._same_atom(a[0], other, given) and self._matched(
                a[1:], [*b[:n], *b[n + 1 :]], given
            ):
                return True
        return False

    def _same_atom(self, a: Value, b: Value, given: tuple[Any, ...]) -> bool:
        if isinstance(a, Call) and isinstance(b, Call) and a.name == b.name:
            if all(self.equal(x, y, given) for x, y in zip(a.args, b.args, strict=True)):
                return True
        if isinstance(a, Reduce) and isinstance(b, Reduce) and a.reducer == b.reducer:
            return any(
                self.equal(substituted(a.body, one), substituted(b.body, two), (*given, *ranges))
                for one, two, ranges in self._aligned(a.iterators, b.iterators, given)
            )
        return self.same(a, b, given)
