"""The products, maxima, minima and truths of an expanded form: as much as possible moves out of the
reduction, as ``sums.py`` does with sums.

    prod_k 2 * x[i, k] * exp(y[k])   ->  2**n * {prod_k x}[i] * exp({sum_k y})
    max_k (c[i] - 2 * x[i, k])       ->  c[i] - 2 * {min_k x}[i]
    max_k max(x[i, k], y[k])         ->  max({max_k x}[i], {max_k y})
    any_k not (c[i, k] and d[k])     ->  not ({all_k c}[i] and {all_k d})
    any_k x[i, k] > 0                ->  {max_k x}[i] > 0

Each line is a law of its reducer. A product of products is the product of the factors' products. A
term without k, and a factor without k that isn't negative, move out of a maximum over k; a negative
number turns the maximum into a minimum. The maximum of an increasing function is the function of
the maximum. A condition holds for some k exactly if its negation doesn't hold for every k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Final

from eqsynth.expansion import lattice
from eqsynth.expansion.polynomial import MAX_POWER, expand
from eqsynth.expansion.ring import (
    ONE,
    Monomial,
    Polynomial,
    collect,
    is_condition,
    is_not_negative,
    leading_coefficient,
    of_atom,
    plus,
    scaled,
    times,
)
from eqsynth.expansion.sums import forward, summed
from eqsynth.expansion.truths import compared, is_truth
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Cast, Num, Scalar, dtype_of, iterators
from eqsynth.ir.types import is_float

_ONE: Final[Polynomial] = {ONE: Fraction(1)}
_MINUS: Final = Fraction(-1)
_OPPOSITE: Final = {"max": "min", "min": "max"}


def reduced_form(body: Scalar, kept: set[It], reducer: str, reduced: Sequence[It]) -> Scalar:
    """``reducer_y f(x, y)`` with as little as possible under the reducer.

    Args:
        kept: the iterators x of the traversal.
        reduced: the iterators y.
    """
    polynomial = expand(body)
    apart = all(dtype_of(atom) == dtype_of(body) for m in polynomial for atom, _ in m)
    if not apart or dtype_of(body) is None:
        return forward(body, kept, reducer, reduced)
    form = _Reduction(kept, tuple(reduced))
    if reducer == "prod":
        return collect(form.product(polynomial))
    if is_truth(polynomial):
        return collect(form.truth(polynomial, reducer))
    if not is_float(dtype_of(body) or "bool"):
        return forward(body, kept, reducer, reduced)
    return collect(form.extreme(polynomial, reducer))


def combined(reducer: str, parts: Sequence[Scalar]) -> Scalar:
    """Combine the results over the parts of a box: their maximum or minimum. For truths, the
    maximum is whether any of them holds, the minimum whether all of them hold."""
    polynomials = [expand(part) for part in parts]
    if all(map(is_truth, polynomials)):
        return collect(_either(polynomials) if reducer == "max" else _all(polynomials))
    return collect(expand(_of_all(reducer, parts)))


def _all(truths: Iterable[Polynomial]) -> Polynomial:
    return reduce(times, truths, _ONE)


def _not(truth: Polynomial) -> Polynomial:
    return plus([_ONE, scaled(truth, _MINUS)])


def _either(truths: Iterable[Polynomial]) -> Polynomial:
    return _not(_all(map(_not, truths)))


class _Reduction:
    """The reductions of polynomials over the iterators ``reduced``; ``kept`` are the traversal's
    iterators."""

    def __init__(self, kept: set[It], reduced: tuple[It, ...]) -> None:
        self._kept, self._reduced = kept, reduced

    def _own(self, *scalars: Scalar) -> list[It]:
        used = {it for scalar in scalars for it in iterators(scalar)}
        return [it for it in self._reduced if it in used]

    def _closed(self, body: Scalar, reducer: str) -> Scalar:
        return forward(body, self._kept, reducer, self._own(body))

    # ---- products --------------------------------------------------------------------------

    def product(self, polynomial: Polynomial) -> Polynomial:
        """``prod_k c * f * g`` is ``c**n * {prod_k f} * {prod_k g}`` for n values of k, if n is at
        most ``MAX_POWER``."""
        count = math.prod(it.extent for it in self._reduced)
        whole = of_atom(forward(collect(polynomial), self._kept, "prod", self._reduced))
        if count > MAX_POWER or not polynomial:
            return whole if polynomial else {}
        leading = leading_coefficient(polynomial)
        if len(polynomial) > 1:
            inner = collect(scaled(polynomial, 1 / leading))
            of_sum = forward(inner, self._kept, "prod", self._reduced)
            whole_number = is_float(dtype_of(inner) or "bool") or leading in (1, -1)
            return scaled(of_atom(of_sum), leading**count) if whole_number else whole
        ((monomial, _),) = polynomial.items()
        found: Polynomial = {ONE: leading**count}
        for atom, power in monomial:
            own = self._own(atom)
            if isinstance(atom, Call) and atom.fn == "exp":
                exponent = collect(scaled(expand(atom.args[0]), power))
                exponent = summed(exponent, self._kept, self._reduced)
                found = times(found, expand(Call("exp", (exponent,))))
                continue
            if own:
                atom = self._closed(atom, "prod")
            powers = power * (count // math.prod(it.extent for it in own))
            if is_condition(atom):
                powers = Fraction(1)
            found = times(found, {((atom, powers),): Fraction(1)})
        return found

    # ---- the largest and the smallest --------------------------------------------------------

    def extreme(self, polynomial: Polynomial, reducer: str) -> Polynomial:
        """``min_k f`` is ``-max_k -f``."""
        if reducer == "max":
            return self._largest(polynomial)
        return scaled(self._largest(scaled(polynomial, _MINUS)), _MINUS)

    def _largest(self, polynomial: Polynomial) -> Polynomial:
        """``max_{k,l} (c + f(k) + g(l))`` is ``c + max_k f + max_l g``."""
        outside: dict[Monomial, Fraction] = {}
        groups: list[tuple[set[It], dict[Monomial, Fraction]]] = []
        for monomial, coefficient in polynomial.items():
            own = set(self._own(*(atom for atom, _ in monomial)))
            if not own:
                outside[monomial] = coefficient
                continue
            meeting = [group for group in groups if own & group[0]]
            groups = [group for group in groups if group not in meeting]
            terms = {monomial: coefficient}
            for its, others in meeting:
                own, terms = own | its, {**terms, **others}
            groups.append((own, terms))
        return plus([outside, *(self._of_group(terms) for _, terms in groups)])

    def _of_group(self, terms: Polynomial) -> Polynomial:
        form: lattice.Form = ((terms,),)
        try:
            form = lattice.form_of(terms, expand)
        except lattice.TooLarge:
            pass
        if len(form) == 1:
            return self._of_terms(terms)
        least = (expand(_of_all("min", map(collect, parts))) for parts in form)
        return expand(_of_all("max", [collect(self._largest(part)) for part in least]))

    def _of_terms(self, terms: Polynomial) -> Polynomial:
        """``max_k -2 * c * f`` is ``-2 * c * {min_k f}`` if c isn't negative, and ``max_k exp(f)``
        is ``exp(max_k f)``."""
        leading = leading_coefficient(terms)
        outside: Monomial = ()
        inner: Polynomial = scaled(terms, 1 / leading)
        if len(terms) == 1:
            (monomial,) = terms
            outside = tuple(
                one for one in monomial if is_not_negative(one) and not self._own(one[0])
            )
            rest = tuple(one for one in monomial if one not in outside)
            inner = {rest: Fraction(1)}
        reducer = "max" if leading > 0 else "min"
        moved = self._through(inner, reducer)
        found = of_atom(self._closed(collect(inner), reducer)) if moved is None else moved
        return times({outside: leading}, found)

    def _through(self, inner: Polynomial, reducer: str) -> Polynomial | None:
        """``max_k exp(f)`` as ``exp(max_k f)``; None if the term isn't an increasing function."""
        (monomial, *more) = inner
        if more or len(monomial) != 1:
            return None
        ((atom, power),) = monomial
        if not isinstance(atom, Call) or not FUNCTIONS[atom.fn].increasing or len(atom.args) != 1:
            return None
        if dtype_of(atom.args[0]) != dtype_of(atom) or (power != 1 and atom.fn != "exp"):
            return None
        argument = self.extreme(scaled(expand(atom.args[0]), power), reducer)
        return expand(Call(atom.fn, (collect(argument),)))

    # ---- truths ------------------------------------------------------------------------------

    def truth(self, polynomial: Polynomial, reducer: str) -> Polynomial:
        """Return ``max_k [c]``, whether c holds for some k, or ``min_k [c]``, whether it holds for
        every k."""
        if polynomial.get(ONE):
            return _not(self.truth(_not(polynomial), _OPPOSITE[reducer]))
        atoms = list(dict.fromkeys(atom for monomial in polynomial for atom, _ in monomial))
        if len(polynomial) == 1:
            outside = [atom for atom in atoms if reducer == "min" or not self._own(atom)]
            inside = [atom for atom in atoms if atom not in outside]
            together = [{tuple((atom, Fraction(1)) for atom in inside): Fraction(1)}]
            parts = [*([self._held(of_atom(a), reducer) for a in outside]),
                     *(self._held(part, reducer) for part in together if inside)]  # fmt: skip
            return _all(parts)
        if reducer == "max" and polynomial == _either(map(of_atom, atoms)):
            return _either(self._held(of_atom(atom), reducer) for atom in atoms)
        return self._held(polynomial, reducer)

    def _held(self, truth: Polynomial, reducer: str) -> Polynomial:
        """Return a truth reduced, as a whole, over the iterators that occur in it."""
        body = collect(truth)
        if not self._own(body):
            return truth
        if (above := compared(body)) is not None and is_float(dtype_of(above) or "bool"):
            # max_k [f > 0] is [max_k f > 0], and min_k [f > 0] is [min_k f > 0]
            extreme = collect(self.extreme(expand(above), reducer))
            to = dtype_of(body) or "float32"
            return expand(Cast(to, Call("gt", (extreme, Num(0.0)))))
        condition = body.arg if isinstance(body, Cast) else Call("ne", (body, Num(0.0)))
        return of_atom(Cast(dtype_of(body) or "float32", self._closed(condition, reducer)))


def _of_all(fn: str, parts: Iterable[Scalar]) -> Scalar:
    return reduce(lambda one, other: Call(fn, (one, other)), parts)
