"""Which law answers which request relation of the rule files.

A law gets a view of the e-graph and the row that the rule filed, and returns answers equal to the
row's first e-class, mostly as steps of the calculus. What a law looks up in the view decides only
which derivations are worth trying (the normal form). That an answer is an equality doesn't depend
on the view: the laws of the calculus check its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from eqsynth.calculus import conditions
from eqsynth.calculus.define import Comprehension, Define, Meanings
from eqsynth.calculus.deriving import Match, Steps
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.tactics import (
    algebra,
    converging,
    correlating,
    derivation,
    epilogue,
    expanding,
    fusing,
    matching,
    merging,
    phases,
    picking,
    prefix,
    reductions,
    sharing,
    signs,
    stacking,
    substitution,
    transposed,
    windows,
)
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.opening import matched
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import (
    Later,
    flat,
    inlinable,
    normalized,
    scope_of,
    settled,
    some,
    underived,
    without_constants,
)
from eqsynth.egraph.tactics.variants import Variants, is_map_of_several
from eqsynth.egraph.tactics.view_chains import view_chain
from eqsynth.egraph.view import View
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.outline import outline
from eqsynth.ir.scalar import (
    Read,
    reads,
)
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight, topological
from eqsynth.rules.claim import Claim, Class


def _definition(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, tensors, numbers, text = row
    if view.eclass(e) in view.instantiated or e in tensors:
        return []  # a tensor among its own arguments isn't defined by them
    return [(Define(Comprehension(text, tensors, numbers)),)]


def _view(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, name, args = row
    if view.eclass(e) in view.instantiated:
        return []
    return [(Define(op),) for op in view.operators(e) if op.name == name and op.args == args]


def _reduction(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    e, x, axes, keepdim, reducer = row
    said = (reducer, (x,), (axes, keepdim))
    return [
        (Define(op),)
        for op in view.operators(e)
        if (op.row.reducer, op.args, op.attrs) == said
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
        if any(r.tensor == read.tensor for r in reads(inner.body)):
            continue  # a constant that is its own maximum over windows has windows without end
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
            if (
                conditions.is_view(inner)
                or merging.is_permutation(scope)
                or (merging.repeats_nothing(scope) and _sums_one_operand(inner))
            ):
                one = merging.merge(scope, read, inner)
                if one is not None and one != scope:
                    merged += some(path(scope, Inline(read, inner)))
        if merged and is_map_of_several(scope):
            merged = [min(merged, key=lambda m: (len(str(m.scope)), m.scope.digest))]
        found += merged
    if not found:
        raise Later
    return found


def _sums_one_operand(scope: Scope) -> bool:
    """Whether a scope adds up elements of one tensor: not a contraction, which a view of it would
    keep from being matched."""
    return bool(scope.reduction) and isinstance(scope.body, Read)


def _clamp(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return some(reductions.clamp(underived(view, row)))


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


def _shared_places(view: View, row: Sequence[Any]) -> Iterable[Path]:
    return some(phases.shared_places(underived(view, row)))


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


LAWS: Final[dict[str, Entry]] = {
    "definition": Entry(_definition, numerics="bitwise", about="class", means=True),
    "view": Entry(_view, numerics="bitwise", about="class", means=True),
    "reduction": Entry(_reduction, numerics="bitwise", about="class", means=True),
    "canonical-form": Entry(_canonical_form, means=True, again=True),
    "derived-form": Entry(_derived_form, means=True, again=True),
    "identity-view": Entry(_identity_view),
    "traversal-merge": Entry(_traversal_merge, means=True, again=True),
    "reduction-merge": Entry(_reduction_merge, again=True),
    # A view can be merged into each read of a map, or not: attention of one token to a cache of
    # keys in two pieces, with rotary positions, had 1,444 sums in the e-class of its scores.
    "view-merge": Entry(_view_merge, again=True, variants=Variants(16, is_map_of_several)),
    # Any subset of the maps before a map can be fused: hundreds for an LSTM's gate.
    "expression-fusion": Entry(
        fusing.expression_fusion, means=True, again=True, variants=Variants(16)
    ),
    "factor": Entry(algebra.factor),
    "fold-constants": Entry(algebra.fold_constants),
    "clamp": Entry(_clamp),
    "iterator-merge": Entry(_iterator_merge),
    "reduction-unfold": Entry(_reduction_unfold),
    "phase-select": Entry(_phase_select),
    "shared-places": Entry(_shared_places),
    "rfactor": Entry(_rfactor),
    "distribute": Entry(algebra.distribute),
    "broadcast-beyond": Entry(algebra.broadcast_beyond, again=True),
    "expand": Entry(expanding.expand, numerics="proof", means=True, again=True),
    "expand-cancels": Entry(
        expanding.expand_cancels, numerics="proof-cancels", means=True, again=True
    ),
    "expand-points": Entry(expanding.expand_points, numerics="proof", means=True, again=True),
    "common-factor": Entry(algebra.common_factors, again=True),
    "expression-split": Entry(algebra.expression_split, again=True),
    "tap-merge": Entry(algebra.tap_merge, again=True),
    "like-terms": Entry(algebra.like_terms, means=True),
    "term-split": Entry(algebra.term_split, again=True),
    "fold-terms": Entry(algebra.fold_terms, again=True),
    # Of a constant it says which elements are equal: weights by phase, and not by pixel.
    "quotient": Entry(algebra.quotient, means=True),
    "invariants": Entry(algebra.invariants, means=True, again=True),
    "divided": Entry(algebra.divided, again=True),
    "multiply-out": Entry(algebra.multiply_out, numerics="cancels", again=True),
    "read-constants": Entry(algebra.read_constants, means=True),
    "derived-constants": Entry(algebra.derived_constants, means=True),
    "gather-rows": Entry(picking.gather_rows, about="rows", again=True),
    "gather-along": Entry(picking.gather_along, about="rows", again=True),
    "rows-by-place": Entry(picking.rows_by_place, about="rows", means=True, again=True),
    "ungather-rows": Entry(picking.ungather_rows, again=True),
    "part": Entry(algebra.part, again=True),
    "restrict": Entry(algebra.restrict, again=True),
    "hide": Entry(algebra.hide, about="weights", again=True, operators=True),
    "reach": Entry(algebra.reach, again=True),
    "extremum": Entry(algebra.extremum),
    "unclip": Entry(signs.unclip, again=True),
    "sum-split": Entry(converging.sum_split),
    "variable-substitution": Entry(converging.variable_substitution),
    "correlate": Entry(correlating.by_tiles(loses=False)),
    "correlate-losing": Entry(correlating.by_tiles(loses=True), numerics="cancels"),
    "boundary-tighten": Entry(converging.boundary_tighten),
    "traversal-order": Entry(_traversal_order),
    "iterator-split": Entry(converging.iterator_split),
    "operand-split": Entry(converging.operand_split, again=True),
    "window-split": Entry(converging.window_split),
    "match-matmul": Entry(converging.matching(matching.match_matmul), operators=True),
    "match-conv2d": Entry(converging.matching(windows.match_conv2d), operators=True),
    "match-conv-transpose2d": Entry(
        converging.matching(transposed.match_conv_transpose2d, phased=True), operators=True
    ),
    "match-g2bmm": Entry(converging.matching(windows.match_g2bmm, banded=True), operators=True),
    "match-gbmm": Entry(converging.matching(windows.match_gbmm), operators=True),
    "match-cumsum": Entry(prefix.match_cumsum, operators=True),
    "match-view": Entry(_match_view, numerics="bitwise", operators=True),
    "stack": Entry(_stack),
    "merge-matmuls": Entry(sharing.merging("Matmul", -1), about="class"),
    "merge-conv2ds": Entry(sharing.merging("Conv2d", 1), about="class"),
    "match-epilogue": Entry(_match_epilogue, again=True, operators=True),
}

_WEAKER: Final[Mapping[Class, tuple[Class, ...]]] = {
    "bitwise": ("real", "approx", "cancels", "proof", "proof-cancels"),
    "real": ("approx", "cancels", "proof", "proof-cancels"),
    "cancels": ("proof-cancels",), "proof": ("proof-cancels",), "proof-cancels": (),
}  # fmt: skip


def claims_too_much(law: str, claim: Claim) -> bool:
    """Whether a rule that requests ``law`` claims better numerics than the law's answers have.

    >>> claims_too_much("multiply-out", Claim("real")), claims_too_much("factor", Claim("cancels"))
    (True, False)
    """
    if law not in LAWS:
        return False
    kept = LAWS[law].numerics
    return claim.kind not in (kept, *_WEAKER[kept])
