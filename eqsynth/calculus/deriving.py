"""Deriving: a sequence of laws. Every equality that a tactic proposes goes through here.

A step is the arguments of one law; the class of the arguments names the law. A tactic proposes
steps, never a term: ``derive`` applies the laws, each of which checks its conditions, and returns
the term that they lead to. So each proposal is either a proved equality or refused.

    L_x sum_y a * {b + c}[p]
      -> Inline     L_x sum_y a * (b + c)
      -> Rearrange  L_x sum_y a * b + a * c
      -> Same       L_x {L_x sum_y a * b}[x] + {L_x sum_y a * c}[x]

A step may state the hypothesis that a tensor equals a term (or one number in all its elements). The
caller of ``derive`` must know that the hypotheses hold (:func:`hypotheses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eqsynth.calculus import checking
from eqsynth.calculus.close import Close, close
from eqsynth.calculus.commute import Commute, commute
from eqsynth.calculus.define import Comprehension, Define, Meanings, define, sides
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.pick import Pick, pick
from eqsynth.calculus.rearrange import Rearrange, rearrange
from eqsynth.calculus.recount import Cover, Recount, cover, recount
from eqsynth.calculus.restrict import Hide, Reach, Restrict, guarded, hide, reach, restrict
from eqsynth.calculus.same import Same, same
from eqsynth.calculus.select import Numbers, number
from eqsynth.calculus.sign import Unclip, unclip
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import canonical, remembered
from eqsynth.ir.scalar import Read, leaves, rewrite_leaves
from eqsynth.ir.scopes import reduction_iterators, same_scope
from eqsynth.ir.tensor import Op, Scope, Tensor


@dataclass(frozen=True)
class Inside:
    """Apply ``steps`` to the scope ``inner``, which the body of the outer scope reads."""

    inner: Scope
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Match:
    """A term that opens to the scope: ``matmul(a, b)``, a tensor that the scope copies, a scope
    whose recount is the given scope, an embedding of a table computed before.

    Attributes:
        term: a term of operators and scopes.
        meanings: hypotheses: the definitions of operators in the term, and terms that tensors read
            by the scope equal.
        steps: lead from the scope that the term opens to, to the wanted scope.
    """

    term: Tensor
    meanings: Meanings = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Least:
    """Bring the indices to their least form."""


Step = (
    Close | Commute | Cover | Define | Hide | Inline | Inside | Least | Match | Numbers | Pick
    | Reach | Rearrange | Recount | Restrict | Same | Unclip
)  # fmt: skip

Steps = tuple[Step, ...]


def least(scope: Scope, given: Least) -> Scope:
    """The scope with its indices in least form, ``x[i // 4 * 4 + i % 4] = x[i]``.

    Raises:
        LawError: never.
    """
    return least_form(scope)


def inside(scope: Scope, given: Inside) -> Scope:
    """``L_x f({g}[p]) = L_x f({h}[p])`` where the steps lead from g to h.

    Raises:
        LawError: ``reads``: the body doesn't read g; what the laws of the steps raise.
    """
    read = any(isinstance(leaf, Read) and leaf.tensor == given.inner for leaf in leaves(scope.body))
    checking.require(read, "inside", condition="reads", what="the scope isn't read")
    other = derive(given.inner, given.steps)
    body = rewrite_leaves(
        scope.body,
        lambda leaf: (
            Read(other, leaf.index, leaf.fill)
            if isinstance(leaf, Read) and leaf.tensor == given.inner
            else leaf
        ),
    )
    return same_scope(scope, body, reduction_iterators(scope))


def match(tensor: Tensor, given: Match) -> Tensor:
    """``L_x sum_k a[x, k] * b[k] = matmul(a, b)``: the term in ``given``, if it opens to the scope.

    The law is the inverse of the laws that open a term, and of the laws of the steps:

        L_x t[x]              =  t                                 ``t`` as a scope is its own copy
        R_{q,r} f(d*q + r)    =  R_k f(k)                          whose recount is the left side
        L_{i,j} R_k t[ids[i], k] f(k, j)  =  embedding({L_{v,j} R_k t[v, k] f(k, j)}, ids)

    Raises:
        LawError: ``match``: the term opens to another scope; what ``sides`` and the laws of the
            steps raise.
    """
    found, wanted = sides(given.term, tensor, given.meanings)
    end = derive(found, given.steps)
    same = isinstance(end, Scope) and least_form(end) == wanted
    checking.require(same, "match", condition="match", what="the term is another scope")
    return given.term


LAWS: Final[Mapping[type[Any], Callable[[Any, Any], Tensor]]] = {
    Close: close, Commute: commute, Cover: cover, Define: define, Hide: hide, Inline: inline,
    Inside: inside, Least: least, Match: match, Numbers: number, Pick: pick, Reach: reach,
    Rearrange: rearrange, Recount: recount, Restrict: restrict, Same: same, Unclip: unclip,
}  # fmt: skip
"""Each class of arguments, and the law that takes it."""


@remembered(maxsize=1 << 15)
def apply(term: Tensor, step: Step) -> Tensor:
    """Apply one law to ``term``; the class of ``step`` names the law.

    Raises:
        LawError: the law refuses the arguments, or takes no such term.
    """
    fits = isinstance(step, Define | Hide | Match) or isinstance(term, Scope)
    checking.require(fits, type(step).__name__.lower(), "type", "no law of such a term")
    result = LAWS[type(step)](term, step)
    checking.require(result.type == term.type, type(step).__name__.lower(), condition="type",
                     what="the result is of another type")  # fmt: skip
    return result


def derive(term: Tensor, steps: Sequence[Step]) -> Tensor:
    """Apply the steps to ``term`` in order, and return the last term in canonical form.

    Raises:
        LawError: a law refuses its arguments; ``first``: a Define isn't the first step.
    """
    for n, step in enumerate(steps):
        # The hypothesis of `define` is about `term` as given, not about a later result.
        first = n == 0 or not isinstance(step, Define)
        checking.require(first, "define", "first", "no first step")
        term = apply(term, step)
    return canonical(term) if isinstance(term, Scope) else term


Equal = Tensor | float | Comprehension


def hypotheses(term: Tensor, steps: Sequence[Step]) -> Iterator[tuple[Tensor, Equal]]:
    """The hypotheses of the steps: pairs of a tensor and what the steps take it to equal, without
    pairs of equal terms. Only the first step can have a hypothesis about ``term`` itself."""
    found: list[tuple[Tensor, Equal]] = []
    for step in steps:
        match step:
            case Inline(read=read, inner=inner):
                found.append((read.tensor, inner))
            case Numbers(numbers=numbers):
                found += numbers
            case Reach(guard=guard, peak=peak, mask=mask):
                asked = guarded(guard)
                found += [(asked.tensor, peak)] if asked else []
                found.append((mask.read.tensor, mask.holds))
            case Hide(scores=scores, mask=mask) if isinstance(term, Op):
                found += [(term.args[0], scores), (mask.read.tensor, mask.holds)]
            case Restrict(weights=read, softmax=softmax, scores=scores, mask=mask):
                found += [(read.tensor, softmax or scores), (mask.read.tensor, mask.holds)]
                found += [(softmax.args[0], scores)] if softmax else []
            case Define(by=Op() as by) if isinstance(term, Op) and _is_alike(term, by):
                found += zip(term.args, by.args, strict=True)
            case Define(by=by):
                found.append((term, by))
            case Match(term=by, meanings=meanings, steps=further):
                found += meanings
                found += hypotheses(by, further)
            case Same(meanings=known) | Unclip(known=known):
                found += known
            case Inside(inner=inner, steps=further):
                found += hypotheses(inner, further)
    return ((tensor, equal) for tensor, equal in found if tensor != equal)


def _is_alike(op: Op, other: Op) -> bool:
    """Whether the operators are equal if their arguments are."""
    same = (op.name, op.attrs, op.defined) == (other.name, other.attrs, other.defined)
    return same and len(op.args) == len(other.args)
