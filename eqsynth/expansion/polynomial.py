"""The expanded form of a scope's body: a polynomial, the same for bodies equal by real algebra.

    -(x - y)           ->  y - x
    (x + y) * (x + y)  ->  x*x + 2*x*y + y*y
    exp(x) / exp(y)    ->  exp(x - y)

The polynomial's indeterminates ("atoms") are reads, and functions of polynomials; their powers may
be negative. Some functions are rewritten by their identities: an exponential of a sum is a product,
a term common to all arguments moves out of a maximum, a positive factor moves out of a ReLU. A
condition ``[c]`` is an atom too, with the value 1 or 0: ``where(c, x, y)`` is
``[c] * x + (1 - [c]) * y`` if x and y are finite. All identities hold over the real numbers,
wherever all parts of both sides are defined (``x / x`` is 1 except at 0). They ignore rounding and
overflow (``exp(500) / exp(499)``), so the form serves to prove equalities, not to compute.

The identities that lose digits in floats are used with ``cancels`` only: multiplying out a product
of two differences, as ``(x - y)**2``. A product of one difference and of sums of positive terms is
always multiplied out: the result is as exact as the operands.

Not here: the order of iterators (``normal.py``), reads that leave their tensor, and reductions
(``expansion/expanded.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Final

from eqsynth.expansion import lattice, whole
from eqsynth.expansion.complements import (
    cases,
    complemented,
    doubled,
    exponent,
    larger_and_smaller,
    two_exponentials,
    two_exponents,
)
from eqsynth.expansion.made import written_out
from eqsynth.expansion.ring import (
    ONE,
    Monomial,
    NotReal,
    Polynomial,
    as_index,
    by_sign,
    collect,
    common_exponentials,
    common_factors,
    is_condition,
    is_difference,
    is_exact,
    is_exponential,
    is_never_negative,
    is_total,
    joined,
    leading_coefficient,
    near,
    number,
    of_atom,
    order,
    plus,
    rectified,
    root_of,
    scaled,
    square_part,
    times,
    without,
)
from eqsynth.expansion.truths import Truths, decided
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Scalar,
    Sum,
    Value,
    children,
    dtype_of,
    in_dtype,
    rebuild,
)
from eqsynth.ir.types import is_float

# The most terms of a product that is multiplied out, the largest power that is written as a
# product, and the most factors of a ReLU's argument that are split by their signs.
MAX_TERMS: Final = 64
MAX_POWER: Final = 16
MAX_SIGNS: Final = 3

_ONE: Final = Fraction(1)
_LN2: Final = number(math.log(2))
_LN10: Final = number(math.log(10))
_ODD: Final = frozenset({"tanh", "erf", "sin", "trunc"})
_EVEN: Final = frozenset({"cos"})


def expand(body: Scalar, cancels: bool = False, dtype: str | None = None) -> Polynomial:
    """Return the polynomial that equals the body.

    Args:
        body: computed in one dtype; a part of another dtype (a condition) is an atom.
        cancels: also use identities that lose digits: multiply out products of differences, and
            write functions as differences (``sigmoid(-x)`` as ``1 - sigmoid(x)``).
        dtype: the dtype of a body that consists of numbers only.

    Raises:
        NotReal: a number in the body is infinite or NaN.
    """
    return _Expansion(dtype_of(body) or dtype, cancels).polynomial(body)


class _Expansion:
    """Computes the polynomials of a body's parts, each once."""

    def __init__(self, dtype: str | None, cancels: bool) -> None:
        self._dtype = dtype
        self._cancels = cancels
        # Integer arithmetic wraps around: the laws of a ring hold, but x < y doesn't give
        # x + z < y + z.
        self._real = dtype is None or is_float(dtype)
        # Where no dtype is known (the body consists of numbers), conditions compare float32.
        self._truths = Truths(dtype or "float32", self._real, self.polynomial, self._inside)
        self._joined = partial(complemented, of=self.polynomial, cancels=cancels)
        self._known: dict[Scalar, dict[Monomial, Fraction]] = {}
        # Function (its name in ``functions.py``) -> the method that rewrites it by its identities.
        self._taken_apart: dict[str, Callable[..., dict[Monomial, Fraction]]] = (
            {
                "reciprocal": self._reciprocal,
                "div": lambda x, y: self._product([x, self._reciprocal(y)]),
                "pow": self._pow,
                "sqrt": self._sqrt,
                "rsqrt": lambda x: self._reciprocal(self._sqrt(x)),
                "exp": self._exp,
                "log": self._log,
                "relu": lambda x: self._max(x, {}),
                "abs": self._abs,
                "max": self._max,
                "min": self._min,
                "sigmoid": self._sigmoid,
                "tanh": self._tanh,
                "gelu": self._gelu,
                "log1p": self._log1p,
                "expm1": self._expm1,
                "sign": self._sign,
                "exp2": lambda x: self._exp({m: near(c * _LN2) for m, c in x.items()}),
                "log2": lambda x: scaled(self._log(x), 1 / _LN2),
                "log10": lambda x: scaled(self._log(x), 1 / _LN10),
            }
            if self._real
            else {"pow": self._pow, **whole.functions(dtype, self.polynomial)}
        )

    def polynomial(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        if scalar not in self._known:
            self._known[scalar] = self._expanded(scalar)
        return self._known[scalar]

    def _expanded(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        if isinstance(scalar, Num):
            value = number(scalar.value)
            return {ONE: value} if value else {}
        if dtype_of(scalar) == "bool" and self._dtype not in (None, "bool"):
            return self._truths.of(scalar)
        if not (dtype_of(scalar) in (None, self._dtype) or self._real and is_condition(scalar)):
            # A product of a number and integers alone would be one of integers, which wraps.
            return of_atom(in_dtype(scalar, self._dtype if self._real else None))
        if not self._real and (index := as_index(scalar)) is not None:
            return of_atom(Value(index))
        match scalar:
            case Sum(terms=terms):
                found = self._joined(plus(map(self.polynomial, terms)))
                return larger_and_smaller(found, self.polynomial) if self._real else found
            case Prod(factors=factors):
                return self._product([self.polynomial(f) for f in factors])
            case Call(fn=fn, args=args):
                same = all(dtype_of(arg) in (None, self._dtype) for arg in args)
                if same and fn in self._taken_apart:
                    return self._taken_apart[fn](*map(self.polynomial, args))
                if same and self._real and (written := written_out(scalar)) is not None:
                    return self.polynomial(written)
                if fn == "where":
                    return self._where(*args)
                return self._function(fn, [self._inside(arg) for arg in args])
            case Cast(arg=arg) if self._dtype and (is_condition(scalar) or is_condition(arg)):
                return self._truths.of(arg)
        return of_atom(scalar)

    def _inside(self, arg: Scalar) -> Scalar:
        """Return the expanded form of an argument of an atom's function, or of a comparison."""
        if isinstance(arg, Num):
            return arg
        if dtype_of(arg) in (None, self._dtype):
            return collect(self.polynomial(arg))
        return rebuild(arg, [self._inside(part) for part in children(arg)])

    # ---- products --------------------------------------------------------------------------

    def _product(self, factors: Sequence[Polynomial]) -> dict[Monomial, Fraction]:
        """Return the product, multiplied out if no digits are lost and the result has few terms;
        otherwise a sum that is a factor becomes an atom."""
        if not all(factors):
            return {}
        sums = [factor for factor in factors if len(factor) > 1]
        found: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        for factor in factors:
            if len(factor) == 1:
                found = times(found, factor)
        differences = [s for s in sums if is_difference(s) and not is_exact(s)]
        apart = len(differences) > 1 and not self._cancels
        for factor in sorted(sums, key=lambda s: sorted(map(order, s))):
            closed = (apart and factor in differences) or len(found) * len(factor) > MAX_TERMS
            found = times(found, self._closed(factor) if closed else factor)
        if not self._real:
            return found
        found = decided(rectified(found, self.polynomial), self.polynomial)
        return self._without_roots(self._joined(doubled(found, self.polynomial)))

    def _closed(self, polynomial: Polynomial) -> dict[Monomial, Fraction]:
        """Return a sum as a number times exponentials times one atom.

        The atom's leading coefficient is 1, and no exponential occurs in all of its terms:
        ``2 + 2*exp(-x)`` is ``2 * exp(x)**-1 * (exp(x) + 1)``."""
        common = common_exponentials(polynomial)
        rest = without(polynomial, common)
        leading = leading_coefficient(rest)
        inner = collect(scaled(rest, 1 / leading))
        return {joined(common, ((inner, Fraction(1)),)): leading}

    def _without_roots(self, polynomial: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """Replace even powers of square roots: ``sqrt(x) * sqrt(x)`` -> ``x``."""
        for monomial, coefficient in polynomial.items():
            for atom, power in monomial:
                if isinstance(atom, Call) and atom.fn == "sqrt" and abs(power) >= 2:
                    whole = int(power / 2)
                    rest = joined(monomial, ((atom, Fraction(-2 * whole)),))
                    base = self.polynomial(atom.args[0])
                    power_of = self._power(base, whole)
                    others = {m: c for m, c in polynomial.items() if m != monomial}
                    opened = self._product([{rest: coefficient}, power_of])
                    return self._without_roots(plus([others, opened]))
        return polynomial

    def _power(self, base: Polynomial, power: int) -> dict[Monomial, Fraction]:
        if power < 0:
            return self._power(self._reciprocal(base), -power)
        return self._product([base] * power) if power else {ONE: Fraction(1)}

    # ---- functions -------------------------------------------------------------------------

    def _reciprocal(self, x: Polynomial) -> dict[Monomial, Fraction]:
        if not x:
            raise NotReal
        if (two := two_exponentials(x, self.polynomial)) is not None:
            first, step = two
            inverse = {tuple((atom, -power) for atom, power in first): 1 / x[first]}
            return times(inverse, self._sigmoid(step))
        if len(x) > 1:
            x = self._closed(x)
        ((monomial, coefficient),) = x.items()
        return {tuple((atom, -power) for atom, power in monomial): 1 / coefficient}

    def _pow(self, x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
        exponent = y.get(ONE, Fraction(0)) if set(y) <= {ONE} else None
        most = MAX_POWER if len(x) == 1 else 4
        if exponent is not None and exponent.denominator == 1 and abs(exponent) <= most:
            if self._real or exponent >= 0:
                return self._power(x, int(exponent))
        if exponent is not None and abs(exponent) == Fraction(1, 2):
            root = self._sqrt(x)
            return root if exponent > 0 else self._reciprocal(root)
        return of_atom(Call("pow", (collect(x), collect(y))))

    def _sqrt(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """Move squares out of a root: ``sqrt(4*x*x)`` is ``2*abs(x)``, ``sqrt(exp(x) * y)`` is
        ``exp(x/2) * sqrt(y)``."""
        if not x:
            return {}
        common = x if len(x) == 1 else {common_exponentials(x): Fraction(1)}
        ((monomial, _),) = common.items()
        outside: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        for atom, power in monomial:
            if is_exponential((atom, power)):
                root: Polynomial = {((atom, power / 2),): Fraction(1)}
            elif power % 2 == 0:
                root = self._power(self._abs(of_atom(atom)), int(power / 2))
            else:
                continue
            outside = self._product([outside, dict(root)])
            x = times(x, {((atom, -power),): Fraction(1)})
        square = square_part(abs(leading_coefficient(x)))
        rest = scaled(x, 1 / square)
        outside = scaled(outside, root_of(square))
        if set(rest) == {ONE} and rest[ONE] == 1:
            return outside
        return times(outside, of_atom(Call("sqrt", (collect(rest),))))

    def _exp(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``exp(2*x - m)`` is ``exp(x)**2 * exp(m)**-1``, ``exp(x - log(s))`` is ``exp(x) / s``."""
        powers: list[tuple[Scalar, Fraction]] = []
        others: list[dict[Monomial, Fraction]] = []
        for m, c in x.items():
            log = m[0][0] if len(m) == 1 and m[0][1] == 1 else None
            if isinstance(log, Call) and log.fn == "log" and c.denominator == 1 and abs(c) <= 4:
                others.append(self._power(self.polynomial(log.args[0]), int(c)))
            else:
                powers.append((Call("exp", (collect({m: Fraction(1)}),)), c))
        found = {tuple(sorted(powers, key=lambda one: one[0].digest)): Fraction(1)}
        return self._product([found, *others]) if others else found

    def _log(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``log(exp(x) / s)`` is ``x - log(s)``: an exponential is positive, so s is positive
        wherever the quotient is."""
        if (split := cases(x, self.polynomial)) is not None:
            condition, above, below = split
            held = self._truths.of(Call("gt", (condition, Num(0.0))))
            one, other = self._log(above), self._log(below)
            return plus([other, self._product([held, plus([one, scaled(other, -_ONE)])])])
        if len(x) != 1:
            common = common_exponentials(x)
            inner = collect(without(x, common))
            return plus([exponent(common, self.polynomial), of_atom(Call("log", (inner,)))])
        ((monomial, coefficient),) = x.items()
        found: dict[Monomial, Fraction] = {}
        rest: list[tuple[Scalar, Fraction]] = []
        for atom, power in monomial:
            if isinstance(atom, Call) and atom.fn == "exp":
                found = plus([found, scaled(self.polynomial(atom.args[0]), power)])
            elif isinstance(atom, Call) and atom.fn == "sqrt" and len(monomial) == 1:
                half = scaled(self._log(self.polynomial(atom.args[0])), power / 2)
                return half if coefficient == 1 else of_atom(Call("log", (collect(x),)))
            else:
                rest.append((atom, power))
        sign = Fraction(1)
        if len(rest) == 1 and rest[0][1] == -1 and coefficient == 1:
            rest, sign = [(rest[0][0], Fraction(1))], Fraction(-1)
        if not rest and coefficient == 1:
            return found
        inner = collect({tuple(rest): coefficient})
        return plus([found, {((Call("log", (inner,)), Fraction(1)),): sign}])

    def _sign(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``sign(x)`` is ``[x > 0] - [-x > 0]``."""
        ways = (Call("gt", (collect(scaled(x, way)), Num(0.0))) for way in (_ONE, -_ONE))
        return plus(scaled(self._truths.of(c), n) for c, n in zip(ways, (_ONE, -_ONE), strict=True))

    def _abs(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``abs(x)`` is ``2*relu(x) - x``."""
        return plus([scaled(self._max(x, {}), Fraction(2)), scaled(x, Fraction(-1))])

    def _max(self, x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
        return self._extremum("max", lattice.largest, x, y)

    def _min(self, x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
        return self._extremum("min", lattice.least, x, y)

    def _extremum(
        self,
        fn: str,
        join: Callable[[Sequence[lattice.Form]], lattice.Form],
        x: Polynomial,
        y: Polynomial,
    ) -> dict[Monomial, Fraction]:
        """``max(x, y)`` or ``min(x, y)``; an exponential is increasing, so that
        ``max(2*exp(x), 2*exp(y))`` is ``2*exp(max(x, y))``."""
        if (split := two_exponents(x, y, self.polynomial)) is not None:
            rest, coefficient, one, other = split
            chosen = self._exp(self._extremum(fn, join, one, other))
            return plus([rest, scaled(chosen, coefficient)])
        try:
            return self._chosen(join([lattice.form_of(one, self.polynomial) for one in (x, y)]))
        except lattice.TooLarge:
            return of_atom(Call(fn, (collect(x), collect(y))))

    def _chosen(self, form: lattice.Form) -> dict[Monomial, Fraction]:
        """Return the polynomial of a maximum of minima.

        ``max(x + s, y + s)`` is ``max(x, y) + s``, ``max(x, 0)`` is ``relu(x)``, ``max(x, x/2)`` is
        ``x/2 + relu(x)/2``. With ``cancels``, ``max(x, y)`` is ``y + relu(x - y)``, which loses
        digits of the smaller argument, and ``min(max(x, -1), 1)`` is
        ``relu(x + 1) - relu(x - 1) - 1``."""
        if self._cancels and (clamp := lattice.clamped(form)) is not None:
            x, low, high = clamp
            above, over = (plus([x, scaled(end, -_ONE)]) for end in (low, high))
            return plus([low, self._rectified(above), scaled(self._rectified(over), -_ONE)])
        outside: Polynomial = lattice.common(form)
        form = lattice.moved(form, scaled(outside, Fraction(-1)))
        parts = [part for least in form for part in least]
        if len(parts) == 1:
            return plus([outside, parts[0]])
        alike = len(parts[0]) == 1 and all(part.keys() == parts[0].keys() for part in parts)
        if all(parts) and (self._cancels or alike):
            one = min(parts, key=lambda part: sorted(map(order, part)))
            outside = plus([outside, one])
            form = lattice.moved(form, scaled(one, Fraction(-1)))
            parts = [part for least in form for part in least]
        if len(parts) > 2 or all(parts):
            return plus([outside, lattice.as_atom(form)])
        part, sign = parts[0] or parts[1], Fraction(1 if len(form) == 2 else -1)
        return plus([outside, scaled(self._rectified(scaled(part, sign)), sign)])

    def _rectified(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """Move factors out of a ReLU: ``relu(2*x)`` is ``2*relu(x)``, ``relu(-x)`` is
        ``relu(x) - x``, ``relu(exp(x) * y)`` is ``exp(x) * relu(y)``, ``relu([c]*x - x)`` is
        ``(1 - [c]) * relu(-x)``."""
        outside, rest = by_sign(common_factors(x))
        if outside:
            return self._product([{outside: _ONE}, self._max(without(x, outside), {})])
        for way in (_ONE, -_ONE) if rest and len(x) > 1 else ():
            if is_never_negative(inner := scaled(without(x, rest), way)):
                return self._product([inner, self._max({rest: way}, {})])
        if len(x) == 1:
            ((monomial, coefficient),) = x.items()
            if 1 < len(monomial) <= MAX_SIGNS and all(abs(power) == 1 for _, power in monomial):
                # relu(x * y) = relu(x) * relu(y) + relu(-x) * relu(-y)
                parts: list[Polynomial] = [{monomial[:1]: _ONE}, {monomial[1:]: coefficient}]
                ways = [[self._max(scaled(p, way), {}) for p in parts] for way in (_ONE, -_ONE)]
                return plus(times(*way) for way in ways)
        leading = leading_coefficient(x)
        positive = of_atom(Call("relu", (collect(scaled(x, 1 / leading)),)))
        return plus([scaled(positive, abs(leading)), x if leading < 0 else {}])

    def _gelu(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``gelu(x)`` is ``x/2 * (1 + erf(x * sqrt(1/2)))``."""
        erf = self._function("erf", [collect(scaled(x, number(math.sqrt(0.5))))])
        return self._product([scaled(x, Fraction(1, 2)), plus([{ONE: Fraction(1)}, erf])])

    def _log1p(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """With ``cancels``, ``log1p(x)`` is ``log(1 + x)``, which loses digits of small x."""
        one = plus([{ONE: _ONE}, x])
        return self._log(one) if self._cancels else of_atom(Call("log1p", (collect(x),)))

    def _expm1(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """With ``cancels``, ``expm1(x)`` is ``exp(x) - 1``, which loses digits of small x."""
        if self._cancels:
            return plus([self._exp(x), {ONE: Fraction(-1)}])
        return of_atom(Call("expm1", (collect(x),)))

    def _sigmoid(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """``sigmoid(-x)`` is ``exp(x)**-1 * sigmoid(x)``; with ``cancels`` it is
        ``1 - sigmoid(x)``, which loses digits of small values."""
        if not x or leading_coefficient(x) > 0:
            return of_atom(Call("sigmoid", (collect(x),))) if x else {ONE: Fraction(1, 2)}
        turned = self._sigmoid(scaled(x, Fraction(-1)))
        if self._cancels:
            return plus([{ONE: Fraction(1)}, scaled(turned, Fraction(-1))])
        return times(self._exp(x), turned)

    def _where(self, condition: Scalar, x: Scalar, y: Scalar) -> dict[Monomial, Fraction]:
        """``where(c, x, x)`` is x, and ``where(x > y, x, y)`` is ``max(x, y)``."""
        yes, no = self.polynomial(x), self.polynomial(y)
        step = plus([yes, scaled(no, Fraction(-1))])
        if not step:
            return no
        if isinstance(condition, Call) and condition.fn in ("gt", "ge", "lt", "le"):
            left, right = (self.polynomial(arg) for arg in condition.args)
            above = plus([left, scaled(right, Fraction(-1))])
            if condition.fn in ("lt", "le"):
                above = scaled(above, Fraction(-1))
            slope = leading_coefficient(step) / leading_coefficient(above) if above else Fraction(0)
            if self._real and slope and step == scaled(above, slope):
                return self._max(yes, no) if slope > 0 else self._min(yes, no)
        if self._dtype and all(map(is_total, (*step, *no))):
            return plus([no, self._product([self._truths.of(condition), step])])
        parts = self._inside(condition), collect(yes), collect(no)
        return of_atom(Call("where", parts))

    def _tanh(self, x: Polynomial) -> dict[Monomial, Fraction]:
        """With ``cancels``, ``tanh(x)`` is ``2*sigmoid(2*x) - 1``, losing digits of small x."""
        if self._cancels:
            two = Fraction(2)
            return plus([scaled(self._sigmoid(scaled(x, two)), two), {ONE: -_ONE}])
        return self._function("tanh", [collect(x)])

    def _function(self, fn: str, args: list[Scalar]) -> dict[Monomial, Fraction]:
        """Return a function as an atom; a sign moves out of an odd function and vanishes in an even
        one: ``sin(-x)`` is ``-sin(x)``, ``cos(-x)`` is ``cos(x)``."""
        if self._real and fn in _ODD | _EVEN:
            x = self.polynomial(args[0])
            if x and leading_coefficient(x) < 0:
                turned = collect(scaled(x, Fraction(-1)))
                return scaled(of_atom(Call(fn, (turned,))), Fraction(-1 if fn in _ODD else 1))
            if not x and fn in _ODD:
                return {}
        return of_atom(Call(fn, tuple(args)))
