"""One rule fired on samples in an e-graph of its own: the terms that it unites, as pairs.

The session runs the rule, the answer to its law, and the analyses, and no other rule. Every class
that the rule didn't change therefore has one member, and each pair is an instance of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from eqsynth.egraph.answers import grounded
from eqsynth.egraph.encode import decode_index, decode_scalar, decode_tensor, encode_scalar
from eqsynth.egraph.session import Session
from eqsynth.egraph.snapshot import Handle, smallest_terms
from eqsynth.errors import DtypeError, EqsynthError, SaturationError
from eqsynth.ir.index import It
from eqsynth.ir.scalar import iterators
from eqsynth.ir.tensor import ClassRef, Scope, Tensor, args_of, over, topological
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.scope_rules.syntax import Has
from eqsynth.testing.templates import Sample

BUDGET: Final = 100_000
"""The most matches that one round unites, enough for all matches on a few samples."""

MAX_PAIRS: Final = 2000


@dataclass(frozen=True)
class Pair:
    """Two terms that the rule says are equal.

    Attributes:
        left, right: the terms. Of sort ``Idx`` they are raw terms (``("IDiv", …)``), since the
            IR's own indices are always in canonical form.
        sort: the sort of the terms in the rule: ``Tensor``, ``Scalar`` or ``Idx``.
        problem: if one side isn't a valid term, the kind of problem and a text; else None.
    """

    left: Any
    right: Any
    sort: str = "Tensor"
    problem: tuple[str, str] | None = None


def alone(rules: RuleSet, rule: Rule) -> RuleSet:
    """The rule set with this rule, the rules that apply its law, and the analyses alone.

    A condition that says where a rule is worth asking (``summed F``) is left out: the rule is true
    without it, or it is no rule."""
    kept = tuple(
        _anywhere(r)
        for r in rules.rules
        if r.kind == "analysis" or r is rule or (rule.law and r.kind == "law-apply" and
                                                 r.law == rule.law)
    )  # fmt: skip
    return replace(rules, rules=kept)


def _anywhere(rule: Rule) -> Rule:
    told = rule.scopes
    if told is None:
        return rule
    kept = tuple(c for c in told.conditions if not (isinstance(c, Has) and c.what == "summed"))
    return rule if kept == told.conditions else replace(rule, scopes=replace(told, conditions=kept))


def fire(rules: RuleSet, rule: Rule, samples: Sequence[Sample]) -> list[Pair]:
    """Fire a rule on samples and return the pairs that it unites.

    Args:
        rules: as `alone` gives them.

    Raises:
        SaturationError: a class got two shapes or dtypes, or the engine failed.
    """
    with closing(Session(rules, log_matches=False)) as session:
        return _fired(session, rule, samples)


def _fired(session: Session, rule: Rule, samples: Sequence[Sample]) -> list[Pair]:
    roots = [term for sample in samples for term in sample.tensors]
    loose = [raw for sample in samples for _, raw in sample.raw]
    roots += [tensor for raw in loose for tensor in _tensors_of(raw)]
    session.add(roots)
    terms = {session.handle(term): term for term in topological(roots)}
    handles = {term: Handle(number) for number, term in terms.items()}
    wrapped: list[Any] = [
        ("Scope", list(sample.slots), [], "sum", _with_handles(_body(sort, raw), handles))
        for sample in samples
        for sort, raw in sample.raw
    ]
    session.engine.insert(wrapped, facts=_facts(samples, handles))
    session.engine.analyse()
    if rule.kind == "law-request":
        return _answered(session, rule, terms)
    return _matched(session, rule, terms)


def _body(sort: str, raw: Any) -> Any:
    return raw if sort == "Scalar" else ("Value", raw)


def _facts(samples: Sequence[Sample], handles: Mapping[Tensor, Handle]) -> list[tuple[Any, ...]]:
    scopes = dict.fromkeys(scope for sample in samples for scope in sample.derived)
    return [
        ("derived", list(s.traversal), list(s.reduction), s.reducer, encode_scalar(s.body, handles))
        for s in scopes
    ]


def _tensors_of(raw: Any) -> Iterable[Tensor]:
    if isinstance(raw, Tensor):
        yield raw
    elif isinstance(raw, tuple | list):
        for part in raw:
            yield from _tensors_of(part)


def _with_handles(raw: Any, handles: Mapping[Tensor, Handle]) -> Any:
    if isinstance(raw, Tensor):
        return handles[raw]
    if isinstance(raw, tuple):
        return tuple(_with_handles(part, handles) for part in raw)
    return [_with_handles(part, handles) for part in raw] if isinstance(raw, list) else raw


def fired_alone(rules: RuleSet, rule: Rule, sample: Sample) -> list[Pair]:
    """The pairs of one sample; if the engine fails on it, a pair with the failure as problem."""
    try:
        return fire(rules, rule, [sample])
    except SaturationError as error:
        kind = "engine"
        if "of shape" in error.what or "of dtype" in error.what:
            kind = "shape" if "of shape" in error.what else "dtype"
        elif "two types" in error.what:
            kind = "dtype"
        problem = (kind, str(error))
    except EqsynthError as error:
        problem = ("dtype" if isinstance(error, DtypeError) else "shape", str(error))
    terms: list[Any] = [*sample.tensors, *(raw for _, raw in sample.raw)]
    return [Pair(terms[0], "no term", problem=problem)]


# ---- rewrites -------------------------------------------------------------------


def _matched(session: Session, rule: Rule, terms: Mapping[int, Tensor]) -> list[Pair]:
    rows = session.engine.match(rule)
    if not rows:
        return []
    raw = smallest_terms(session.view().snapshot)
    sort = _sort(session, rule)
    pairs = []
    for row in rows[:MAX_PAIRS]:
        left, right = (grounded(side, raw) for side in rule.instance(row))
        pairs.append(_pair(session, left, right, sort, terms))
    if not any(pair.problem for pair in pairs):
        session.engine.apply(rule)
        session.engine.analyse()
    return pairs


def _sort(session: Session, rule: Rule) -> str:
    assert rule.equality is not None
    known = session.rules.known
    for side in rule.equality:
        if isinstance(side, tuple) and side[0] in known.signatures:
            return known.signatures[side[0]].output
    left = rule.equality[0]
    return dict(rule.columns)[left.name]


def _pair(session: Session, left: Any, right: Any, sort: str, terms: Mapping[int, Tensor]) -> Pair:
    if sort == "Idx":
        return Pair(left, right, sort)
    read: list[Any] = []
    for side in (left, right):
        try:
            read.append(_read_back(session, side, terms))
        except EqsynthError as error:
            kind = "dtype" if isinstance(error, DtypeError) else "shape"
            known = read[0] if read else left
            return Pair(known, side, sort, (kind, str(error)))
        except (ValueError, TypeError) as error:
            return Pair(left, right, sort, ("shape", str(error)))
    if sort == "Scalar":
        extents = _extents({it for scalar in read for it in iterators(scalar)})
        read = [Scope(extents, (), scalar) for scalar in read]
    return Pair(read[0], read[1], sort)


def _extents(its: Iterable[It]) -> tuple[int, ...]:
    """The extents of the scope around a scalar that stands alone, from its iterators."""
    found = {it.slot: it.extent for it in its}
    return tuple(found.get(slot, 1) for slot in range(max(found, default=-1) + 1))


def _read_back(session: Session, tree: Any, terms: Mapping[int, Tensor]) -> Any:
    """Decode a ground tree, whose leaves are handles of known terms, into a term of the IR."""
    if isinstance(tree, Handle):
        return terms[tree.n]
    if not isinstance(tree, tuple):
        return tree
    if not tree or not isinstance(tree[0], str):
        return tuple(_read_back(session, part, terms) for part in tree)
    args = [_read_back(session, part, terms) for part in tree[1:]]
    output = session.rules.known.signatures[tree[0]].output
    if output == "Tensor":
        return decode_tensor(tree[0], args, session.defined)
    return (decode_index if output == "Idx" else decode_scalar)(tree[0], args)


# ---- laws -----------------------------------------------------------------------


def _answered(session: Session, rule: Rule, terms: Mapping[int, Tensor]) -> list[Pair]:
    session.round(rule.ruleset, BUDGET)
    # A law may be requested in another ruleset than the one where its answer is united.
    for apply in session.rules.rules:
        if apply.kind == "law-apply" and apply.ruleset != rule.ruleset:
            session.engine.apply(apply)
    session.engine.analyse()
    view = session.fresh_view()
    known: dict[Tensor, Tensor] = {}
    original: dict[ClassRef, list[Tensor]] = {}
    for number, term in terms.items():
        ref = view.refs[view.by_handle(number)]
        known.setdefault(ref, term)
        original.setdefault(ref, []).append(term)
    members = {ref: view.members(ref) for ref in view.refs.values()}
    _complete(known, members)
    pairs = []
    for ref, nodes in members.items():
        left = known.get(ref)
        if left is None:
            continue
        # The original terms as they are, and rebuilt: rebuilding flattens sums of sums, and such a
        # term isn't news.
        given = {t for o in original.get(ref, [left]) for t in (o, over(o, _Same()))}
        for other in original.get(ref, [])[1:]:
            pairs.append(Pair(left, other))
        for node in nodes:
            if any(arg not in known for arg in args_of(node)):
                continue
            right = over(node, known)
            if right not in given:
                pairs.append(Pair(left, right))
    return pairs[:MAX_PAIRS]


class _Same(dict[Tensor, Tensor]):
    """A map in which every term is its own image."""

    def __missing__(self, term: Tensor) -> Tensor:
        return term


def _complete(known: dict[Tensor, Tensor], members: Mapping[ClassRef, Sequence[Tensor]]) -> None:
    """Add a term for each class that the law has made, built from the terms of its arguments."""
    changed = True
    while changed:
        changed = False
        for ref, nodes in members.items():
            if ref in known:
                continue
            for node in nodes:
                if all(arg in known for arg in args_of(node)):
                    known[ref] = over(node, known)
                    changed = True
                    break
