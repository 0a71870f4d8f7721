"""How a term of operators opens to a scope: what a match proposes besides the term.

    matmul({.. reshape ..}, w)  =  sum_k x[i, k // 9, k % 9] * w[k, j]
                                =  sum_{q,r} x[i, q, r] * w[9*q + r, j]         k = 9*q + r

The operator counts by its own iterators; recounted by those of the scope it has to be the scope.

    conv_transpose(x, w)  =  sum_{c,k} x[c, (i + 1 - k) // 2 + (i + 1 - k) % 2 * 20] * w[c, k]
                          =  sum_{c,q} x[c, (i + 1) // 2 - q] * w[c, 2*q + (i + 1) % 2]

What it reads far outside of its image has no place in the scope: k is the tap that the scope reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

from eqsynth.calculus.define import Comprehension, Meanings, sides
from eqsynth.calculus.deriving import Match, Step, Steps, derive
from eqsynth.calculus.recount import Count, Recount
from eqsynth.calculus.scopes import bare, reduction_iterators
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.tactics.phases import phase_select
from eqsynth.egraph.view import View
from eqsynth.errors import LawError
from eqsynth.ir.index import FloorDiv, Index, It, Mod
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import canonical, remembered
from eqsynth.ir.scalar import indices_of, reads
from eqsynth.ir.tensor import Op, Scope, Tensor, topological

# A window has two axes, which may be turned round; as many channels may be as long.
MAX_TURNED = 4


def matched(tensor: Tensor, term: Tensor, meanings: Meanings = ()) -> list[Steps]:
    """The steps from a scope, or a class, to the term that it is; none if the term can't be opened
    to it.

    Args:
        meanings: what operators in the term are defined as, and what tensors that the scope reads
            are, as the e-graph says.
    """
    steps = _matched(tensor, term, meanings)
    return [] if steps is None else [(Match(term, meanings, steps),)]


def definitions(view: View, *terms: Tensor) -> Meanings:
    """What rule files define the products in some terms as."""
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
    """Steps from what an operator opens to, to the scope that it is; None if none are found."""
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
    """The iterators of a reduction by their quotients and remainders, some of them turned round."""
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
    """The taps that the scope sums, where the operator sums all of them: one phase of a window, or
    the taps that meet the pixels which the scope goes through."""
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
    """1, and what divides the iterator where it stands by quotient and remainder, in order."""
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
