"""Which law answers which request relation of the rule files.

A law gets a view of the e-graph and the row that the rule filed, and returns answers equal to the
row's first e-class, mostly as steps of the calculus. What a law looks up in the view decides only
which derivations are worth trying (the normal form). That an answer is an equality doesn't depend
on the view: the laws of the calculus check its steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from eqsynth.calculus import conditions
from eqsynth.calculus.define import Comprehension, Define, Meanings
from eqsynth.calculus.deriving import Match, Steps
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.scope_rules.matching import is_delta
from eqsynth.egraph.tactics import (
    algebra,
    converging,
    correlating,
    derivation,
    epilogue,
    expanding,
    matching,
    merging,
    phases,
    reductions,
    sharing,
    stacking,
    substitution,
    transposed,
    windows,
)
from eqsynth.egraph.tactics.opening import matched
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import (
    Later,
    Law,
    flat,
    inlinable,
    is_gate,
    normalized,
    scope_of,
    settled,
    some,
    underived,
    without_constants,
)
from eqsynth.egraph.tactics.variants import is_map_of_several
from eqsynth.egraph.tactics.view_chains import view_chain
from eqsynth.egraph.view import View
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.outline import outline
from eqsynth.ir.scalar import (
    Read,
    Sum,
    reads,
    terms_of,
)
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight, topological

# In a sum of more terms than this, all maps that can be fused are fused at once, as one answer. One
# answer for each map would lead to an e-node for every subset of the terms.
MAX_TERMS_APART = 4


def _definition(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, tensors, numbers, text = row
    if view.eclass(e) in view.instantiated or e in tensors:
        return []  # a tensor among its own arguments isn't defined by them
    return [(Define(Comprehension(text, tensors, numbers)),)]


def _view(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, name, args = row
    if view.eclass(e) in view.instantiated:
        return []
    return _operators(view, e, name, args)


def _reduction(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, x, axes, keepdim, reducer = row
    name = f"Reduce{reducer.capitalize()}"
    return _operators(view, e, name, (x,), (axes, keepdim))


def _operators(
    view: View, e: ClassRef, name: str, args: Sequence[Tensor], *attrs: tuple[Any, ...]
) -> list[Steps]:
    """Definitions of the e-class by its members that are this operator of these arguments."""
    return [
        (Define(op),)
        for op in view.operators(e)
        if op.name == name and op.args == args and (not attrs or op.attrs == attrs[0])
    ]


def _canonical_form(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = scope_of(row)
    form = canonical(scope)
    return [] if form == scope or scope in view.derived else [Path(form)]


def _derived_form(_view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = scope_of(row)
    form = canonical(scope)
    return [] if form == scope else [Path(form)]


def _identity_view(_view: View, row: Sequence[Any]) -> Iterable[Steps]:
    scope = scope_of(row)
    body = scope.body
    if not isinstance(body, Read) or body.tensor.shape != scope.traversal:
        return []
    own = tuple(Index.iterator(slot, extent) for slot, extent in enumerate(scope.traversal))
    return [(Match(body.tensor),)] if body.index == own else []


def _traversal_merge(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = settled(view, row)
    if scope is None or scope in view.derived or not conditions.is_product(scope):
        raise Later
    if without_constants(view, scope) is not None:
        raise Later
    merged = inlinable(view, scope) or _seen_through(view, scope)
    if merged is None:
        raise Later
    return [merged]


def _reduction_merge(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = underived(view, row)
    (read,) = reads(scope.body)
    assert isinstance(read.tensor, ClassRef)
    for inner in view.scopes(read.tensor):
        if inner.reducer != scope.reducer or inner in view.derived or canonical(inner) != inner:
            continue
        merged = merging.merge(scope, read, inner)
        if merged is not None and merged != scope:
            return some(path(scope, Inline(read, inner)))
    raise Later


def _seen_through(view: View, scope: Scope) -> Path | None:
    """The view ``scope`` with a scope of the e-class that it reads inlined, whatever it computes.

    So a view of a part of a tensor computes only that part. The first scope that can be inlined is
    taken; what the others would give follows from it.
    """
    if not conditions.is_view(scope):
        return None
    (read,) = reads(scope.body)
    ref = read.tensor
    assert isinstance(ref, ClassRef)
    if any(isinstance(member, Input | Weight) for member in view.members(ref)):
        return None
    # Scopes that only scale and shift a LayerNorm come last, after those that compute it.
    for inner in sorted(view.scopes(ref), key=lambda s: _scales_a_normal(view, s)):
        if inner in view.derived or canonical(inner) != inner:
            continue
        itself = any(r.tensor == ref for r in reads(inner.body))
        if not itself and without_constants(view, inner) is None:
            merged = merging.merge(scope, read, inner)
            if merged is not None and merged != scope:
                return path(scope, Inline(read, inner))
    return None


def _scales_a_normal(view: View, scope: Scope) -> bool:
    tensors = (read.tensor for read in reads(scope.body))
    return any(isinstance(tensor, ClassRef) and normalized(view, tensor) for tensor in tensors)


def _view_merge(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = settled(view, row)
    if scope is None or scope not in view.derived:
        raise Later
    found: list[Path] = []
    for read in reads(scope.body):
        assert isinstance(read.tensor, ClassRef)
        merged: list[Path] = []
        for inner in view.scopes(read.tensor):
            if any(r.tensor == read.tensor for r in reads(inner.body)):
                continue
            if inner not in view.derived and not (
                conditions.is_view(scope) and conditions.is_view(inner)
            ):
                continue  # a scope that isn't derived is inlined only in one that isn't
            if conditions.is_view(inner) or merging.is_permutation(scope):
                one = merging.merge(scope, read, inner)
                if one is not None and one != scope:
                    merged += some(path(scope, Inline(read, inner)))
        if merged and is_map_of_several(scope):
            merged = [min(merged, key=lambda m: (len(str(m.scope)), m.scope.digest))]
        found += merged
    if not found:
        raise Later
    return found


def _expression_fusion(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Inline maps in maps and in reductions of one operand.

    A sum of products keeps its operands as reads. A product without a sum is a map:
    ``sigmoid(o) * tanh(c)`` becomes one kernel.
    """
    scope = settled(view, row)
    if scope is None or scope in view.derived:
        raise Later
    gate = is_gate(scope)
    summed = conditions.is_product(scope) and not gate
    if summed and not merging.sums_each_once(scope):
        raise Later
    if without_constants(view, scope) is not None:
        return []  # the scope with the numbers is fused; not both, and not each subset of them
    opened = algebra.opened_sum(view, scope)
    found = [] if opened is None else [opened]
    steps = opened.steps if opened is not None else ()
    members = {step.read.tensor for step in steps if isinstance(step, Inline)}
    whole, fused = Path(scope), set[Tensor]()
    apart = len(terms_of(scope.body)) <= MAX_TERMS_APART
    for read in dict.fromkeys(reads(scope.body)):
        assert isinstance(read.tensor, ClassRef)
        if normalized(view, read.tensor) and not normalized(view, row[0]):
            continue
        if gate and read.tensor.type.size < math.prod(scope.extents):
            continue  # x * sigmoid(s)[row]: what is read many times would be computed each time
        for inner in view.scopes(read.tensor):
            if inner.reduction or canonical(inner) != inner:
                continue
            if summed and (conditions.is_product(inner) or isinstance(inner.body, Sum)):
                continue  # traversal merging and the laws of sums put these in
            if inner in view.derived and not merging.is_permutation(inner):
                continue
            if without_constants(view, inner) is not None:
                continue
            if any(r.tensor == read.tensor for r in reads(inner.body)):
                continue
            if read.tensor in members and isinstance(inner.body, Sum):
                continue
            if row[0].constant and any(True for _ in reads(inner.body)):
                # Constants are fused only with maps that read nothing, such as an identity matrix
                # or a mask.
                continue
            if (
                read.tensor.constant
                and not row[0].constant
                and not conditions.is_view(inner)
                and not is_delta(inner.body)
            ):
                # Computed once as it is; fused, it would be computed for every element. Where two
                # indices are equal has to be seen, since little may be left to compute.
                continue
            merged = merging.merge(scope, read, inner)
            if merged is not None and merged != scope:
                if conditions.is_view(inner):
                    # Views first, and one at a time: which views are inlined makes no difference
                    # to a kernel, and all subsets of them would be many.
                    return some(path(scope, Inline(read, inner)))
                if apart:
                    found += some(path(scope, Inline(read, inner)))
                elif read.tensor not in fused and merging.merge(whole.scope, read, inner):
                    whole = whole.then(Inline(read, inner)) or whole
                    fused.add(read.tensor)
    found += [whole] if fused else []
    if not found:
        raise Later
    return found


def _iterator_merge(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = scope_of(row)
    merged = None if scope in view.derived else reductions.merge_iterators(canonical(scope))
    return some(merged)


def _reduction_unfold(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = scope_of(row)
    unfolded = None if scope in view.derived else substitution.reduction_unfold(canonical(scope))
    return [] if unfolded is None else [unfolded]


def _phase_select(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = scope_of(row)
    return some(None if scope in view.derived else phases.phase_select(canonical(scope)))


def _rfactor(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = settled(view, row)
    factored = reductions.rfactor(scope) if scope else None
    return [] if factored is None else [factored]


def _traversal_order(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = flat(view, row)
    ordered = derivation.traversal_order(scope)
    return [] if ordered is None else [ordered]


def _match_view(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    scope = settled(view, row)
    if scope is None or not conditions.is_view(scope):
        return []
    assert isinstance(scope.body, Read)
    source = scope.body.tensor
    if any(op.args == (source,) for op in view.operators(row[0])):
        # It is a view of this tensor already.
        return []
    chain = view_chain(scope)
    if chain is None or (scope in view.derived and not _moves_nothing(chain)):
        return []
    return matched(scope, chain)


def _moves_nothing(chain: Tensor) -> bool:
    """Whether a chain of views may need no copy; in derived scopes only such chains are matched."""
    names = {term.name for term in topological([chain]) if isinstance(term, Op)}
    return names <= {"Permute", "Reshape", "Split", "Merge"}


def _match_epilogue(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    scope = settled(view, row)
    if scope is None:
        return []

    known: dict[Op, Meanings] = {}

    def nodes(tensor: Tensor) -> list[Op]:
        """The operators in the e-class, and products that one of its reshapes reads, reshaped."""
        assert isinstance(tensor, ClassRef)
        found: list[Op] = []
        for op in view.operators(tensor):
            if op.name == "Reshape":
                (inner,) = op.args
                assert isinstance(inner, ClassRef)
                for o in view.operators(inner):
                    if o.row.kind == "contraction":
                        found.append(Op("Reshape", (o,), op.attrs))
                        known[found[-1]] = (tensor, op), (inner, o)
            else:
                found.append(op)
                known[op] = ((tensor, op),)
        return found

    found = list(epilogue.match_epilogue(scope, nodes))
    if not found:
        raise Later
    return [steps for fused, op in found for steps in matched(scope, fused, known[op])]


def _stack(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    if row[0].constant:
        return []
    scope = flat(view, row)
    parts = stacking.stacked(scope, view.places_of(outline(scope)[0]))
    return [steps for part in parts for steps in matched(scope, part)]


LAWS: Final[dict[str, Law]] = {
    "definition": _definition,
    "view": _view,
    "reduction": _reduction,
    "canonical-form": _canonical_form,
    "derived-form": _derived_form,
    "identity-view": _identity_view,
    "traversal-merge": _traversal_merge,
    "reduction-merge": _reduction_merge,
    "view-merge": _view_merge,
    "expression-fusion": _expression_fusion,
    "factor": algebra.factor,
    "fold-constants": algebra.fold_constants,
    "iterator-merge": _iterator_merge,
    "reduction-unfold": _reduction_unfold,
    "phase-select": _phase_select,
    "rfactor": _rfactor,
    "distribute": algebra.distribute,
    "expand": expanding.expand,
    "expand-cancels": expanding.expand_cancels,
    "expand-points": expanding.expand_points,
    "common-factor": algebra.common_factors,
    "expression-split": algebra.expression_split,
    "tap-merge": algebra.tap_merge,
    "like-terms": algebra.like_terms,
    "term-split": algebra.term_split,
    "fold-terms": algebra.fold_terms,
    "quotient": algebra.quotient,
    "invariants": algebra.invariants,
    "multiply-out": algebra.multiply_out,
    "read-constants": algebra.read_constants,
    "derived-constants": algebra.derived_constants,
    "gather-rows": algebra.gather_rows,
    "rows-by-place": algebra.rows_by_place,
    "ungather-rows": algebra.ungather_rows,
    "part": algebra.part,
    "restrict": algebra.restrict,
    "reach": algebra.reach,
    "extremum": algebra.extremum,
    "sum-split": converging.sum_split,
    "variable-substitution": converging.variable_substitution,
    "correlate": correlating.by_tiles(loses=False),
    "correlate-losing": correlating.by_tiles(loses=True),
    "boundary-tighten": converging.boundary_tighten,
    "traversal-order": _traversal_order,
    "iterator-split": converging.iterator_split,
    "operand-split": converging.operand_split,
    "window-split": converging.window_split,
    "match-matmul": converging.matching(matching.match_matmul),
    "match-conv2d": converging.matching(windows.match_conv2d),
    "match-conv-transpose2d": converging.matching(transposed.match_conv_transpose2d, phased=True),
    "match-g2bmm": converging.matching(windows.match_g2bmm, banded=True),
    "match-gbmm": converging.matching(windows.match_gbmm),
    "match-view": _match_view,
    "stack": _stack,
    "merge-matmuls": sharing.merging("Matmul", -1),
    "merge-conv2ds": sharing.merging("Conv2d", 1),
    "match-epilogue": _match_epilogue,
}

# Laws that still compute their answers themselves; their terms are put into the e-graph unchecked.
# All others answer with steps of the calculus, which ``answers.py`` applies.
COMPUTED: Final = frozenset({"expand", "expand-cancels", "expand-points"})
# Law -> the numerics of its answers, if not ``real``. A rule that requests the law must not claim
# better numerics. For definitions and views the rule itself states them, and its samples test them.
NUMERICS: Final = {
    "definition": "bitwise", "view": "bitwise", "reduction": "bitwise", "match-view": "bitwise",
    "multiply-out": "cancels", "correlate-losing": "cancels", "expand": "proof",
    "expand-cancels": "proof-cancels", "expand-points": "proof",
}  # fmt: skip
_WEAKER: Final = {
    "bitwise": ("real", "approx", "cancels", "proof", "proof-cancels"),
    "real": ("approx", "cancels", "proof", "proof-cancels"),
    "cancels": ("proof-cancels",), "proof": ("proof-cancels",), "proof-cancels": (),
}  # fmt: skip
# Laws that say what a term computes. Constants are asked for these only: a constant is computed
# once, so other ways to compute it aren't worth deriving.
MEANING: Final = (
    "definition", "view", "reduction", "canonical-form", "derived-form", "expression-fusion",
    "traversal-merge", "read-constants", "derived-constants", "like-terms", "expand",
    "expand-cancels", "expand-points", "rows-by-place",
)  # fmt: skip
# Laws that look at the members of the e-classes that a scope reads. They are asked again when these
# e-classes get new members.
ASKED_AGAIN: Final = (
    "canonical-form", "derived-form", "traversal-merge", "reduction-merge", "view-merge",
    "expression-fusion", "match-epilogue", "gather-rows", "ungather-rows", "common-factor",
    "term-split", "multiply-out", "fold-terms", "part", "restrict", "reach", "expression-split",
    "tap-merge", "operand-split", "expand", "expand-cancels", "expand-points", "rows-by-place",
)  # fmt: skip
# Laws that answer with operators for a scope or a product.
MAKES_OPERATORS: Final = frozenset({
    "match-matmul", "match-conv2d", "match-conv-transpose2d", "match-g2bmm", "match-gbmm",
    "match-view", "match-epilogue", "merge-matmuls", "merge-conv2ds",
})  # fmt: skip


def claims_too_much(law: str, numerics: str) -> bool:
    """Whether a rule that requests ``law`` claims better numerics than the law's answers have.

    >>> claims_too_much("multiply-out", "real"), claims_too_much("factor", "cancels")
    (True, False)
    """
    kept = NUMERICS.get(law, "real")
    return law in LAWS and numerics.split()[0] not in (kept, *_WEAKER[kept])
