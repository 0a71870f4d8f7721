"""Softmaxes whose parts agree to the last bit: a plan must subtract from scores the maximum of the
same scores, not of scores that another kernel has computed.

    s = q @ k.T,  s' = band of q, k,  w = exp(s - max(s'))    ->    w = exp(s - max(s))

In real arithmetic ``max(s)`` and ``max(s')`` are equal if the band holds all scores that count, so
they are one e-class, and either may be subtracted. But s and s' are sums of products in different
orders. With scores around 4e12 they differ by 3e5, and the weight of the largest score is
``exp(3e5)`` instead of 1. (LongformerMasked with inputs around 1e6: all results were nan.)

:func:`loose` lists the exponents of a plan of which this is so; ``select.py`` then bars one of the
two members. Products and sums of the same values agree already: ``lower/scalar_code.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.prices import Costs
from eqsynth.ir.functions import STEEP
from eqsynth.ir.scalar import Call, Read, Scalar, Sum, children
from eqsynth.ir.tensor import ClassRef, Input, Op, Region, Scope, Tensor, args_of, over, topological

_EXTREMA = frozenset({"max", "min"})
_PASSING = frozenset({"elementwise", "view", "data"})
"""Kinds of operators whose results are made of their arguments' elements, one by one."""

TRIES = 8
"""The most times that kernels are barred in one selection."""

Bar = frozenset[Tensor]
"""Members of classes that a plan mustn't compute these by."""


class Loose(NamedTuple):
    """An exponent that subtracts an extremum of other scores.

    Attributes:
        extrema: the steps' members that compute the extremum.
        exponent: the step's member that computes the exponent.
    """

    extrema: Bar
    exponent: Bar


class _Facts(NamedTuple):
    """What is known of a value.

    Attributes:
        sums: the sums and inputs whose elements the value's elements are made of, each by maps,
            views and extrema.
        behind: these, and those behind them.
        extrema: the steps' members that compute an extremum of which the value is made.
        unequal: the extrema that are subtracted from other scores or added to them, each with the
            sums of these scores that aren't behind the extremum.
    """

    sums: frozenset[bytes] = frozenset()
    behind: frozenset[bytes] = frozenset()
    extrema: Bar = frozenset()
    unequal: frozenset[tuple[Bar, frozenset[bytes]]] = frozenset()


def _joined(parts: Iterable[_Facts]) -> _Facts:
    return _Facts(*(frozenset().union(*each) for each in zip(*parts, strict=True)))


def loose(plan: Plan) -> list[Loose]:
    """Return the exponents of a plan that subtract the extremum of scores which other kernels
    compute."""
    if not any(map(_has_extremum, (step.kernel.term for step in plan.steps))):
        return []
    known = {ref: _given(ref.digest) for ref, _ in plan.inputs.values()}
    found: dict[Loose, None] = {}
    for step in plan.steps:
        found |= dict.fromkeys(_Step(step, known).results())
    return list(found)


def _given(name: bytes) -> _Facts:
    return _Facts(frozenset({name}), frozenset({name}))


@lru_cache(maxsize=1 << 14)
def _has_extremum(term: Tensor) -> bool:
    """Whether a kernel of this term computes an extremum over elements."""
    return any(map(_is_extremum, _inside(term)))


def _inside(term: Tensor) -> Sequence[Tensor]:
    roots = term.outputs if isinstance(term, Region) else (term,)
    return [each for each in topological(roots) if args_of(each)]


def _is_extremum(term: Tensor) -> bool:
    if isinstance(term, Scope):
        return bool(term.reduction) and term.reducer in _EXTREMA
    return isinstance(term, Op) and term.row.reducer in _EXTREMA


def _unequal(terms: Sequence[_Facts]) -> frozenset[tuple[Bar, frozenset[bytes]]]:
    """The extrema in a sum, each with the sums of other terms that aren't behind it.

    What stood beside an extremum before is equal now if another term contains it as well: b in
    ``(s + b) - (max(s) + b)``.
    """
    others = [term for term in terms if not term.extrema]
    scores = frozenset().union(*(other.sums for other in others))
    found = {pair for other in others for pair in other.unequal}
    for term in terms:
        if term.extrema:
            found |= {(extrema, beside - scores) for extrema, beside in term.unequal}
            found |= {(term.extrema, scores - term.behind)}
    return frozenset(pair for pair in found if pair[1])


class _Step:
    """The facts of the values of one step.

    Args:
        known: the facts of the classes so far, to which the step's are added.
    """

    def __init__(self, step: PlanStep, known: dict[ClassRef, _Facts]) -> None:
        self._step, self._classes = step, known
        self._bar: Bar = frozenset({step.member})
        self._known: dict[Tensor, _Facts] = {}
        self._names: dict[Tensor, bytes] = {}
        self._found: list[Loose] = []

    def results(self) -> list[Loose]:
        """Add the facts of the step's results; return its exponents that are loose."""
        step, term = self._step, self._step.kernel.term
        free = [n for n, constant in enumerate(step.kernel.constants) if not constant]
        refs = {n: ref for n, (ref, _) in zip(free, step.args, strict=False)} | dict(step.constants)
        self._refs: Mapping[int, ClassRef] = refs
        outputs = term.outputs if isinstance(term, Region) else (term,)
        for each in topological(outputs):
            self._known[each] = self._facts(each)
        for (ref, _), output in zip((step.result, *step.also), outputs, strict=False):
            self._classes[ref] = self._known[output]
        return self._found

    def _facts(self, term: Tensor) -> _Facts:
        if isinstance(term, Input):
            return self._classes.get(self._refs[int(term.name)], _Facts())
        args = [self._known[arg] for arg in args_of(term)]
        if not any(arg.behind for arg in args):
            return _Facts()  # the same for every call
        if isinstance(term, Scope):
            of = self._scalar(term.body, {})
            sums = bool(term.reduction) and not _is_extremum(term)
        else:
            assert isinstance(term, Op)
            of = self._mapped(term.row.function, args)
            sums = term.row.kind not in _PASSING and not _is_extremum(term)
        if sums:
            name = self._name(term)
            return _Facts(frozenset({name}), frozenset({name}).union(*(a.behind for a in args)))
        return of._replace(extrema=self._bar, unequal=frozenset()) if _is_extremum(term) else of

    def _scalar(self, scalar: Scalar, known: dict[Scalar, _Facts]) -> _Facts:
        if scalar not in known:
            if isinstance(scalar, Read):
                known[scalar] = self._known[scalar.tensor]
            else:
                parts = [self._scalar(part, known) for part in children(scalar)]
                fn = scalar.fn if isinstance(scalar, Call) else ""
                known[scalar] = self._mapped("Add" if isinstance(scalar, Sum) else fn, parts)
        return known[scalar]

    def _mapped(self, function: str, parts: Sequence[_Facts]) -> _Facts:
        """The facts of a function's value. Exponents that are loose are noted."""
        if not parts:
            return _Facts()
        facts = _joined(parts)
        if function in ("Add", "Sub"):
            return facts._replace(unequal=_unequal(parts))
        if function in STEEP:
            self._found += [Loose(extrema, self._bar) for extrema, _ in facts.unequal]
            return facts._replace(unequal=frozenset())
        return facts

    def _name(self, term: Tensor) -> bytes:
        """The digest of a term over classes: the same for one sum in two kernels."""
        if term not in self._names:
            if isinstance(term, Input):
                name = self._refs[int(term.name)].digest
            else:
                images: dict[Tensor, Tensor] = {
                    arg: Input(self._name(arg).hex(), arg.type) for arg in args_of(term)
                }
                name = over(term, images).digest
            self._names[term] = name
        return self._names[term]


def steadily(
    select: Callable[[Bar, Costs], Plan],
    costs: Costs,
    barred: set[Tensor],
    quick: Callable[[Bar, Costs], Plan] | None = None,
) -> Plan:
    """Return the plan that ``select`` chooses by these costs, without loose exponents if there is
    such a plan. Its cost may be infinite, where the costs are.

    For each loose exponent the member that computes it or the one that computes the extremum is
    barred, whichever leaves the cheaper plan.

    Args:
        select: chooses a plan without the given members.
        barred: the members that were barred before, to which those of now are added.
        quick: chooses plans for the comparison of the two, if ``select`` takes long.
    """
    quick = quick or select
    plan = select(frozenset(barred), costs)
    for _ in range(TRIES):
        found = loose(plan)
        if not found:
            break
        ways = {bar | barred: quick(bar | barred, costs) for bar in dict.fromkeys(found[0])}
        possible = [
            (bars, other)
            for bars, other in sorted(ways.items(), key=lambda way: way[1].cost_s)
            if math.isfinite(other.cost_s) or math.isfinite(quick(bars, lambda _: 1.0).cost_s)
        ]
        if not possible:
            break  # the program itself subtracts such an extremum
        bars, plan = possible[0]
        if quick is not select:
            plan = select(bars, costs)
        barred |= bars
    return plan
