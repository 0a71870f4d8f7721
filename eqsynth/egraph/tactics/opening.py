"""The steps that prove a match: how a term of operators opens to the scope that it matched.

    matmul({.. reshape ..}, w)  =  sum_k x[i, k // 9, k % 9] * w[k, j]
                                =  sum_{q,r} x[i, q, r] * w[9*q + r, j]         k = 9*q + r

The definition of the operator (first line) uses iterators of its own. Recounted by the iterators of
the scope (second line) it has to be that scope.

    conv_transpose(x, w)  =  sum_{c,k} x[c, (i + 1 - k) // 2 + (i + 1 - k) % 2 * 20] * w[c, k]
                          =  sum_{c,q} x[c, (i + 1) // 2 - q] * w[c, 2*q + (i + 1) % 2]

Taps that read far outside of the image don't occur in the scope; there k is the tap that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

from eqsynth.calculus.define import Comprehension, Meanings, sides
from eqsynth.calculus.deriving import Match, Step, Steps, derive
from eqsynth.calculus.recount import Count, Recount
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.tactics.phases import phase_select
from eqsynth.egraph.view import View
from eqsynth.errors import LawError
from eqsynth.ir.index import FloorDiv, Index, It, Mod
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import canonical, remembered
from eqsynth.ir.scalar import indices_of, reads
from eqsynth.ir.scopes import bare, reduction_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor, topological

# At most so many iterators are tried turned round. A window has two axes that may be, and there may
# be as many channel iterators of the same extents, which can't be told apart.
MAX_TURNED = 4


def matched(tensor: Tensor, term: Tensor, meanings: Meanings = ()) -> list[Steps]:
    """Return the steps from ``tensor`` to ``term``; no list of steps if ``term`` can't be opened.

    Args:
        tensor: a scope or an e-class.
        meanings: definitions that the e-graph holds, of operators in the term and of tensors that
            the scope reads.
    """
    steps = _matched(tensor, term, meanings)
    return [] if steps is None else [(Match(term, meanings, steps),)]


def definitions(view: View, *terms: Tensor) -> Meanings:
    """Return the definitions, from rule files, of the products that occur in ``terms``."""
    found: list[tuple[Tensor, Comprehension]] = []
    for part in topological(terms):
        if isinstance(part, Op) and part.row.kind == "contraction" and not part.row.vendor:
            by = comprehension(part, view.meanings)
            found += [] if by is None else [(part, by)]
    return tuple(found)


@remembered(maxsize=1 << 14)
def _matched(tensor: Tensor, term: Tensor, meanings: Meanings) -> tuple[Step, ...] | None:
    try:
        return recounted(*sides(term, tensor, meanings))
    except LawError:
        return None


def recounted(opened: Scope, scope: Scope) -> tuple[Step, ...] | None:
    """Return steps from ``opened``, the definition of an operator, to ``scope``; None if none are
    found."""
    form = least_form(scope)
    if least_form(opened) == form:
        return ()
    for steps in chain(_recounts(opened, scope), _of_one_phase(opened, scope)):
        try:
            end = derive(opened, steps)
        except LawError:
            continue
        if isinstance(end, Scope) and least_form(end) == form:
            return steps
    return None


def _recounts(opened: Scope, scope: Scope) -> Iterator[tuple[Step, ...]]:
    """Recounts of the reduction iterators by quotients and remainders, some of these turned."""
    slot = len(opened.extents)
    found: list[tuple[It, Index, list[It]]] = []
    for it in reduction_iterators(opened):
        steps = [*_divisors(opened, it), it.extent]
        new, value = list[It](), Index(0)
        for step, following in zip(steps, steps[1:], strict=False):
            if following % step:
                return
            new.append(It(slot, following // step))
            value, slot = value + bare(new[-1]) * step, slot + 1
        found.append((it, value, new))
    backward = {
        it.extent
        for it in reduction_iterators(scope)
        for index in indices_of(scope.body)
        if index.coefficient(it.slot) < 0
    }
    options = [it for _, _, new in found for it in new if it.extent in backward]
    for turned in product((False, True), repeat=min(len(options), MAX_TURNED)):
        image = {it: it.extent - 1 - bare(it) if t else bare(it)
                 for it, t in zip(options, turned, strict=False)}  # fmt: skip
        image |= {it: bare(it) for _, _, new in found for it in new if it not in image}
        counts = [Count(it, value.substitute(image.__getitem__), tuple(new))
                  for it, value, new in found]  # fmt: skip
        yield (Recount(tuple(counts)),)


def _of_one_phase(opened: Scope, scope: Scope) -> Iterator[tuple[Step, ...]]:
    """Recounts for a scope that sums fewer taps than the operator.

    The scope sums the taps of one phase of a window, or only those that meet the pixels it reads.
    """
    phases = phase_select(canonical(opened))
    if phases is not None:
        yield phases.steps
    fresh = {it: It(len(opened.extents) + n, it.extent)
             for n, it in enumerate(reduction_iterators(scope))}  # fmt: skip
    reduced = {bare(it): it for it in reduction_iterators(opened)}
    others = {read.tensor: read.index for read in reads(scope.body)}
    for read in reads(opened.body):
        counts = []
        for own, other in zip(read.index, others.get(read.tensor, ()), strict=False):
            its = [fresh[it] for it in other.iterators() if it in fresh]
            if own in reduced and (len(other.terms) > 1 or other.const):
                value = other.substitute(lambda it: bare(fresh.get(it, it)))
                counts.append(Count(reduced[own], value, tuple(its)))
        if counts:
            yield (Recount(tuple(counts)),)


def _divisors(scope: Scope, it: It) -> list[int]:
    """1 and the divisors by which the body takes ``it`` apart, ascending.

    ``x[k // 9, k // 3 % 3]`` gives 1, 3 and 9 for ``k``.
    """
    found = {1}

    def visit(index: Index) -> None:
        for atom, _ in index.terms:
            if isinstance(atom, FloorDiv | Mod):
                inner = 1
                value = atom.value
                if len(value.terms) == 1 and isinstance(value.terms[0][0], FloorDiv):
                    inner, value = value.terms[0][0].divisor, value.terms[0][0].value
                if it in set(value.iterators()):
                    found.update((inner, inner * atom.divisor))
                visit(atom.value)

    for index in indices_of(scope.body):
        visit(index)
    return sorted(d for d in found if d < it.extent)
