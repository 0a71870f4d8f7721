"""Compare two tensors by their values on data, allowing for rounding.

A difference in float64 is computed again with more digits: if it shrinks, it was rounding. Not
here: how the values are computed (``values.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from eqsynth.certificates.values import WORK, Draw, TooLarge, Unknown
from eqsynth.errors import CertificateError
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.printing import render_alone
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.rules.claim import Claim

TOLERANCE: Final = 1e-11
"""The largest difference of float64 results, relative to the largest result, that isn't looked at.
A larger difference is computed again with more digits, and is a failure if it remains."""

# A difference that is due to rounding shrinks at least by this factor with more digits.
_SHRINKS: Final = 64.0
_SAMPLES: Final = 32
# The most points that the sampled elements may take if an equality is only to be sampled: there may
# be many such equalities.
_FEW: Final = WORK // 8


def judged(
    rule: str, left: Tensor, right: Tensor, given: Sequence[Tensor], claim: Claim,
    draws: Iterable[Draw], sampled: bool = False,
) -> str:  # fmt: skip
    """Compare two tensors on each kind of data; return the way: ``whole``, ``sampled``, ``precise``
    (``Certified.checked``).

    Args:
        given: the tensors that the equality names.
        claim: the rule's ``numerics``.
        draws: the values of terms, for each kind of data.
        sampled: compare a sample of the elements even if the tensors are small.

    Raises:
        CertificateError: the tensors differ.
        Unknown: they could be compared on no kind of data.
    """
    if left.type != right.type:
        raise _failure(rule, left, right, "", (), str(right.type), str(left.type))
    ways = set[str]()
    unknown: list[Unknown] = []
    for data in draws:
        try:
            try:
                if sampled:
                    raise TooLarge
                ways.add(_way(rule, left, right, given, claim, data, None))
            except TooLarge:
                points = _points(left, right, _FEW if sampled else WORK)
                ways.add(_way(rule, left, right, given, claim, data, points))
            data.learn(left, right)
        except Unknown as why:
            unknown.append(why)
    if not ways:
        raise unknown[0]
    return next(way for way in ("precise", "sampled", "whole") if way in ways)


def _points(left: Tensor, right: Tensor, work: int) -> list[Array]:
    """The indices of a sample of elements, an array for each axis; about half of the coordinates
    are at the borders of their axes.

    Raises:
        TooLarge: a single element takes too much work.
    """
    scopes = [side for side in (left, right) if isinstance(side, Scope)]
    each = max((math.prod(scope.reduction) for scope in scopes), default=1)
    count = min(_SAMPLES, work // each)
    if not count or not left.shape:
        raise TooLarge
    rng = np.random.default_rng(0)
    found = []
    for extent in left.shape:
        anywhere, border = rng.integers(0, extent, count), rng.integers(-2, 2, count) % extent
        found.append(np.where(rng.random(count) < 0.5, anywhere, border))
    return found


def _way(
    rule: str, left: Tensor, right: Tensor, given: Sequence[Tensor], claim: Claim, data: Draw,
    points: list[Array] | None,
) -> str:  # fmt: skip
    """Compare two tensors on one kind of data; return the way.

    Raises:
        CertificateError: they differ.
        Unknown: one of them has no value, or their difference may be rounding.
    """
    a, b = data.value(left, points), data.value(right, points)
    # A rule for forms in which proofs meet (``proof``) holds only where both sides are finite. So
    # does any rule if a given tensor isn't finite: a sum of pieces that are 0 elsewhere may be NaN.
    loose = claim.for_proofs or any(map(data.is_wild, given))
    bound = max(TOLERANCE, claim.bound)
    if not _differ(a, b, loose, bound).any():
        return "whole" if points is None else "sampled"
    more = data.precise()
    more.budget = data.budget
    try:
        c, d = more.value(left, points), more.value(right, points)
    finally:
        data.budget = more.budget
    places = _differ(c, d, loose, bound)
    if not places.any():
        return "precise"
    if a.dtype.kind == "f":
        few = _SHRINKS * float(np.finfo(c.dtype).eps) * more.reach((left, right), given)
        if few <= TOLERANCE and (np.abs(c - d)[places] <= few).all():
            return "precise"  # e.g. the mean of centred rows: 0 except for rounding
        places &= ~_is_rounding(a, b, c, d, few)
        if not places.any():
            raise Unknown("rounding")
    differing = [tuple(place) for place in np.argwhere(places).tolist()]
    at, first = differing[0], differing[0]
    if points is not None:
        at, first = min((tuple(int(line[n]) for line in points), n) for n in differing)
    raise _failure(rule, left, right, data.kind, at, str(d[first]), str(c[first]))


def _is_rounding(a: Array, b: Array, c: Array, d: Array, few: float) -> Array:
    """The elements whose difference may be due to rounding.

    Either the difference of ``a`` and ``b`` (float64) shrinks to that of ``c`` and ``d`` (more
    digits) as rounding does, or the latter is at most ``few``: a few roundings of the largest
    intermediate number.
    """
    with np.errstate(all="ignore"):
        apart, finite = np.abs(c - d), np.isfinite(a) & np.isfinite(b)
        return np.asarray((finite & (apart * _SHRINKS < np.abs(a - b))) | (apart <= few))


def _differ(a: Array, b: Array, loose: bool, bound: float) -> Array:
    """The elements in which two values differ by more than ``bound`` times the largest finite one.

    Args:
        loose: compare floats only where both are finite.
    """
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        sizes = np.maximum(np.abs(a), np.abs(b))
        scale = float(np.max(sizes, initial=0.0, where=finite))
        apart = finite & (np.abs(a - b) > bound * scale)
        same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(apart if loose else apart | ~same)


def _failure(
    rule: str, left: Tensor, right: Tensor, kind: str, at: tuple[int, ...], got: str, expected: str
) -> CertificateError:
    place = f" at {list(at)} on {kind} data" if kind else ""
    return CertificateError(
        rule,
        index=at,
        where=render_alone(left),
        got=f"{got}{place}: {render_alone(right)}",
        expected=expected,
    )
