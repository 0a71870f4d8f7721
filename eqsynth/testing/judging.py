"""The judge of a rule's instance: are its two sides equal?

The sides are compared in type, over the reals, exactly, and in float32 as far as the rule claims.
`Sides.verdict` compares on one kind of data, `Sides.judge` on several. Values over the reals are
computed in 320-bit numbers, so that rounding is never mistaken for a difference, nor a difference
for rounding. Exact equality is decided in finite fields (both in ``numbers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from zlib import crc32

import numpy as np

from eqsynth.errors import EqsynthError
from eqsynth.ir.arithmetic import FLOAT16, FLOAT32, FLOAT64, Arithmetic, Array, computing_in
from eqsynth.ir.data import FLOATS, draw, leaves
from eqsynth.ir.interpret import evaluate, evaluate_one
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Tensor, args_of, topological
from eqsynth.ir.types import is_float
from eqsynth.rules.claim import Claim
from eqsynth.testing import extremes
from eqsynth.testing.extremes import EXTREMES, NOT_FINITE
from eqsynth.testing.literals import Literals
from eqsynth.testing.numbers import PRIMES, REAL, Field, TooLarge, Undecided, exact

REAL_TOLERANCE: Final = 1e-12
"""The difference that 320-bit results may have, relative to the largest: the constants in rules
have the precision of float64."""

LOST: Final = 64.0
"""The right side loses digits if its float32 error is more than this many times the error that is
allowed. Allowed is the largest of: the left side's own error; the change of the left side when its
inputs are rounded once, since real inputs are rounded, too; and `ROUNDINGS` of the result."""

ROUNDINGS: Final = 16
"""How many roundings of its largest value a result may always be off."""
_NAMES_NOTHING: Final = Literals()
# Kinds of ordinary data with numbers of about 1, on which the right side must not overflow in
# float16; and kinds with larger numbers, on which an overflow is only reported.
_OF_ORDER_ONE: Final = ("normal", "near-equal", "negative", "sparse", "ties")
_LARGER: Final = ("scaled", "offset", "far-offset")
_INTEGERS: Final = {"zeros": "zeros", "ties": "ties"}
# Kinds of data for terms without inputs of floats.
_OF_INTEGERS: Final = ("ties", "normal", "named", "edges", "mixed")
# The errors that the interpreter raises for a term that has no value on some data.
_NO_VALUE: Final = (EqsynthError, ArithmeticError, IndexError, ValueError, TypeError)
# For rules that may lose digits, values below this count as 0.
_VANISHES: Final = 1e-60
_EPS: Final = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Difference:
    """How two terms differ.

    Attributes:
        kind: ``shape``, ``dtype``, ``value``, ``numerics`` or ``overflow``.
        what: the difference, in words.
        data: the kind of data, or ``a finite field``, or ``all values`` of iterators.
        env: the values of inputs and weights at which the terms differ.
        left, right: the results of both sides.
    """

    kind: str
    what: str
    data: str = ""
    env: Mapping[str, Array] | None = None
    left: Any = None
    right: Any = None


class Meaningless(Exception):
    """The left side has no value on this data: it reads a row outside of a table, for example."""


def value(term: Tensor, env: Mapping[str, Array], arithmetic: Arithmetic) -> Array:
    """The value of a term in an arithmetic."""
    with computing_in(arithmetic), np.errstate(all="ignore"):
        return evaluate(term, env)


def types_differ(left: Tensor, right: Tensor) -> Difference | None:
    """The difference in shape or dtype, if there is one."""
    for kind, a, b in (("shape", left.shape, right.shape), ("dtype", left.dtype, right.dtype)):
        if a != b:
            return Difference(kind, f"the sides have two {kind}s", left=a, right=b)
    return None


class Sides:
    """Two terms of one type that a rule says are equal, and the data on which they are compared.

    Attributes:
        overflows: whether the right side has overflowed in float16 on larger data where the left
            side hasn't.

    >>> from eqsynth.ir.tensor import Input, Op
    >>> from eqsynth.ir.types import TensorType
    >>> x = Input("x", TensorType((3,), "float32"))
    >>> Sides(Op("Relu", (x,)), Op("Abs", (x,))).verdict("ties", Claim("real")).kind
    'value'
    """

    def __init__(
        self, left: Tensor, right: Tensor, seed: int = 0, literals: Literals = _NAMES_NOTHING
    ) -> None:
        self.left, self.right, self.seed, self.literals = left, right, seed, literals
        self.overflows = False
        # The number of the draw of extreme data, so that each pair of a rule gets different data.
        self.turn = 0
        first = list(topological([left]))
        known = set(first)
        # Terms that both sides share are computed once: they aren't in the second list.
        self._orders = (first, [term for term in topological([right]) if term not in known])
        self._leaves = leaves((left, right))
        # Bounds of positions come from the left side alone. An integer that only the right side
        # uses as a position may be any number.
        self._bounds = positions(first, views=True)
        self._environments: dict[str, dict[str, Array]] = {}

    def environment(self, kind: str) -> dict[str, Array]:
        """Values of one kind of data for the inputs and weights; each kind is drawn once."""
        found = self._environments.get(kind)
        if found is None:
            if kind in EXTREMES or kind == NOT_FINITE:
                found = extremes.draw(
                    self._leaves, self._bounds, kind, self.seed + self.turn, self.literals
                )
            else:
                integers = _INTEGERS.get(kind, "small")
                if kind == "offset" and not is_float(self.left.dtype):
                    integers = "limits"
                found = draw(self._leaves, self._bounds, kind, integers, self.seed)
            self._environments[kind] = found
        return found

    def _has(self, dtypes: Callable[[str], bool]) -> bool:
        return any(dtypes(leaf.dtype) for leaf in self._leaves.values())

    def _field_environment(self, prime: int) -> dict[str, Array]:
        """Values with random elements of the field of ``prime`` in place of all floats; integers
        are small numbers, as in other data."""
        found = dict(self.environment("ties"))
        for name, leaf in self._leaves.items():
            if is_float(leaf.dtype):
                rng = np.random.default_rng([self.seed, prime & 0xFFFFFFFF, crc32(name.encode())])
                digits = rng.integers(0, 1 << 30, size=(*leaf.shape, 4)).astype(object)
                drawn = sum(digits[..., n] << (30 * n) for n in range(4)) % prime
                found[name] = np.asarray(drawn, dtype=object).reshape(leaf.shape)
        return found

    def _values(self, env: Mapping[str, Array], arithmetic: Arithmetic) -> Iterator[Array]:
        """The left side's value, then the right side's."""
        values: dict[Tensor, Array] = {}
        for side, order in zip((self.left, self.right), self._orders, strict=True):
            with computing_in(arithmetic), np.errstate(all="ignore"):
                for term in order:
                    values[term] = evaluate_one(term, values, env)
            yield values[side]

    def judge(self, claim: Claim, turn: int) -> tuple[Difference | None, bool]:
        """Compare the sides on several kinds of data.

        Values over the reals are compared on one ordinary and one extreme kind of data, which
        change from turn to turn, and in one finite field. If the rule names infinities, every
        second extreme kind is ``named``, the only one that has them. Rounding is compared on all
        ordinary kinds, and overflow in float16 on two kinds. Terms without floats are cheap, and
        are compared on all kinds that have integers.

        Args:
            claim: the rule's claim; see :meth:`verdict`.
            turn: the number of the instance, which chooses the kinds of data.

        Returns:
            The difference, or None; and whether the sides are equal in the field.

        Raises:
            Meaningless: the left side has no value.
        """
        self.turn = turn
        kinds, extreme = list(FLOATS), list(EXTREMES)
        chosen = [kinds[turn % len(kinds)], extreme[turn % len(extreme)]]
        if self.literals.infinities and turn % 2:
            # A fault of such a rule shows only where inputs are infinite, and only one input at a
            # time has infinities.
            chosen[1] = "named"
        if not self._has(is_float):
            chosen = list(_OF_INTEGERS)
        for kind in chosen:
            differ = self.verdict(kind, claim)
            if differ is not None:
                return differ, False
        differ = self._rounding_differs(claim, [kind for kind in kinds if kind not in chosen])
        if differ is None and claim.kind == "bitwise":
            differ = self._not_finite_differs()
        if differ is None:
            differ = self._overflow(_OF_ORDER_ONE[turn % len(_OF_ORDER_ONE)], claim)
        if differ is not None:
            return differ, False
        self.overflows = self._overflow(_LARGER[turn % len(_LARGER)], claim) is not None
        exact, differ = self.exactly(PRIMES[turn % len(PRIMES) :][:1])
        return (None if claim.kind == "approx" else differ), exact

    def verdict(
        self, kind: str, claim: Claim, env: Mapping[str, Array] | None = None
    ) -> Difference | None:
        """Compare the sides on one kind of data: values over the reals, rounding, and overflow.

        On extreme data, only values over the reals are compared, if they can be computed, and bits
        if the rule claims ``bitwise``.

        Args:
            claim: the rule's claim about rounding.
            env: values to use instead of those of the kind.

        Returns:
            The difference, or None.

        Raises:
            Meaningless: the left side has no value.
        """
        env = self.environment(kind) if env is None else env
        both = self._values({name: exact(array) for name, array in env.items()}, REAL)
        try:
            a = next(both)
        except _NO_VALUE as error:
            if kind in EXTREMES:
                return None
            raise Meaningless(str(error)) from None
        try:
            b = next(both)
        except TooLarge:
            return None
        except _NO_VALUE as error:
            return Difference("shape", f"the right side has no value: {error}", kind, env)
        # A claimed bound is relative for results above 1, and absolute for smaller ones.
        least = 1.0 if claim.kind == "approx" else 0.0
        if not claim.keeps_digits:
            # 1 - sigmoid(1e4) is e^-10000. Computed as a difference it is 0, in any precision.
            least = max(least, _VANISHES)
        if claim.for_proofs:
            # Only elements at which both sides are finite are compared: x / x = 1 except at 0.
            if a.shape == b.shape:
                defined = np.isfinite(shown(a).astype(float)) & np.isfinite(shown(b).astype(float))
                a, b = a[defined], b[defined]
        if not _close(a, b, claim.bound or REAL_TOLERANCE, least):
            what = "the sides have two values"
            return Difference("value", what, kind, env, shown(a), shown(b))
        if kind not in EXTREMES:
            found = self._rounding(shown(a), kind, claim, env)
            return found or (self._overflow(kind, claim, env) if kind in _OF_ORDER_ONE else None)
        if claim.kind == "bitwise" and self._rounds(claim):
            return self._other_bits(kind, env)
        return None

    def _rounding_differs(self, claim: Claim, kinds: Sequence[str]) -> Difference | None:
        """How rounding in float32 contradicts the rule's claim on one of these kinds of data.

        Errors are first measured against float64, which is fast; a contradiction is confirmed
        against 320-bit numbers.
        """
        if not self._rounds(claim):
            return None
        for kind in kinds:
            env = self.environment(kind)
            try:
                near = next(self._values(env, FLOAT64))
            except _NO_VALUE as error:
                raise Meaningless(str(error)) from None
            differ = self._rounding(near, kind, claim, env)
            if differ is not None:
                # Confirmed, unless the values themselves differ: then that difference is returned.
                differ = self.verdict(kind, claim)
            if differ is not None:
                return differ
        return None

    def _not_finite_differs(self) -> Difference | None:
        """How the sides differ in float32 on data with NaN and infinities, if there are floats.

        What NaN is as an integer, each machine says otherwise, so such conversions aren't judged.
        """
        order = self._orders[0] + self._orders[1]
        if not self._has(is_float) or any(map(_makes_integers, order)):
            return None
        try:
            return self._other_bits(NOT_FINITE, self.environment(NOT_FINITE))
        except _NO_VALUE:
            return None

    def _rounds(self, claim: Claim) -> bool:
        """Whether the rule claims something about how the right side rounds."""
        return is_float(self.left.dtype) and claim.keeps_digits

    def _rounding(
        self, precise: Array, kind: str, claim: Claim, env: Mapping[str, Array]
    ) -> Difference | None:
        if not self._rounds(claim):
            return None
        if claim.kind == "bitwise":
            found = self._other_bits(kind, env)
            if found is not None:
                return found
        a32, b32 = self._values(env, FLOAT32)
        lost = digits_lost(precise, a32, b32)
        if lost > LOST:
            lost = digits_lost(precise, a32, b32, sensitivity(self.left, env))
        if lost > LOST:
            what = f"in float32 the right side's error is {lost:.0f} times the left's: it cancels"
            return Difference("numerics", what, kind, env, a32, b32)
        return None

    def _other_bits(self, kind: str, env: Mapping[str, Array]) -> Difference | None:
        a32, b32 = self._values(env, FLOAT32)
        if _same_bits(a32, b32):
            return None
        return Difference("numerics", "not bitwise in float32", kind, env, a32, b32)

    def _overflow(
        self, kind: str, claim: Claim, env: Mapping[str, Array] | None = None
    ) -> Difference | None:
        """The difference if the right side overflows in float16 where the left side doesn't.

        A rule that claims ``cancels`` isn't checked: when all digits of E[x^2] - E[x]^2 are lost,
        its rsqrt is infinite, although no number was too large.
        """
        claims_range = claim.keeps_digits
        if not claims_range or not self._has("float16".__eq__):
            return None
        env = self.environment(kind) if env is None else env
        try:
            a, b = self._values(env, FLOAT16)
        except _NO_VALUE:
            return None
        if a.dtype.kind != "f" or a.shape != b.shape or np.isfinite(b[np.isfinite(a)]).all():
            return None
        what = "in float16 the right side overflows where the left side doesn't"
        return Difference("overflow", what, kind, env, a, b)

    def all_data(self, claim: Claim) -> Difference | None:
        """The difference on the first kind of data that shows one, or in a finite field; else
        None."""
        differ = types_differ(self.left, self.right)
        if differ is not None:
            return differ
        for kind in (*FLOATS, *EXTREMES):
            differ = self.verdict(kind, claim)
            if differ is not None:
                return differ
        return self.exactly()[1]

    def exactly(self, primes: Sequence[int] = PRIMES) -> tuple[bool, Difference | None]:
        """Decide the equality in finite fields.

        Returns:
            (True, None) if they are equal in every field; (False, None) if the fields don't
            decide, as for functions with laws of their own; (False, difference) for polynomials
            that differ.
        """
        for prime in primes:
            field = _field(prime)
            field.polynomial = True
            try:
                a, b = self._values(self._field_environment(prime), field.arithmetic)
                polynomial = field.polynomial
                equal = a.shape == b.shape and all(
                    (x.n if hasattr(x, "n") else x) == (y.n if hasattr(y, "n") else y)
                    for x, y in zip(a.flat, b.flat, strict=True)
                )
            except (Undecided, EqsynthError, TypeError, ValueError):
                return False, None
            if not equal:
                what = f"two polynomials that differ modulo {prime}"
                found = Difference("value", what, "a finite field", None, a, b)
                return False, found if polynomial and a.dtype == b.dtype == object else None
        return True, None


def _makes_integers(term: Tensor) -> bool:
    """Whether a term converts floats into integers."""
    if is_float(term.dtype) or term.dtype == "bool":
        return False
    return any(is_float(arg.dtype) for arg in args_of(term))


@cache
def _field(prime: int) -> Field:
    return Field(prime)


def shown(array: Array) -> Array:
    """An array of numbers of another arithmetic as float64."""
    return array.astype(np.float64) if array.dtype == object else array


def _close(a: Array, b: Array, bound: float, least: float = 0.0) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype != object and b.dtype != object:
        return bool(np.array_equal(a, b))
    scale = max((abs(x) for x in a.flat if x == x and abs(x) != np.inf), default=0)
    scale = max(scale, least)
    for x, y in zip(a.flat, b.flat, strict=True):
        if x == y or (x != x and y != y):
            continue
        if not abs(x - y) <= bound * scale:
            return False
    return True


def _same_bits(a: Array, b: Array) -> bool:
    """Whether all numbers are equal. Signs of zeros, and the bits of NaNs, aren't compared."""
    return bool(np.array_equal(a, b, equal_nan=True))


def sensitivity(term: Tensor, env: Mapping[str, Array]) -> float:
    """How far the value moves if every float input moves by half a unit in the last place."""
    base, moved = value(term, env, FLOAT64), 0.0
    for seed in range(8):
        signs = np.random.default_rng(seed)
        nudged = {
            name: array * (1 + _EPS / 2 * signs.choice([-1.0, 1.0], size=array.shape))
            if array.dtype.kind == "f"
            else array
            for name, array in sorted(env.items())
        }
        with np.errstate(all="ignore"):
            change = np.abs(value(term, nudged, FLOAT64) - base)
        moved = max(moved, float(np.max(change, initial=0.0, where=np.isfinite(change))))
    return moved


def digits_lost(exact: Array, left: Array, right: Array, reach: float = 0.0) -> float:
    """The right side's float32 error, as a multiple of the error that is allowed (`LOST`).

    Errors are measured at elements where the left side is finite.

    Args:
        exact: the exact value.
        left, right: the sides' values in float32.
        reach: how far the exact value moves when the inputs are rounded.
    """
    with np.errstate(all="ignore"):
        known = np.isfinite(exact) & np.isfinite(left) & (np.abs(exact) < 1e37)
        if not known.any():
            return 0.0
        if not np.isfinite(right[known]).all():
            return float("inf")
        scale = float(np.max(np.abs(exact[known])))
        own = float(np.max(np.abs(left[known] - exact[known])))
        other = float(np.max(np.abs(right[known] - exact[known])))
        return other / max(own, reach, ROUNDINGS * _EPS * scale, 1e-37)
