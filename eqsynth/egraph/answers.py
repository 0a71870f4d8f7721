"""Answers of laws to requests: their check by the calculus, and the equality that is logged.

A rule requests a law for a scope; the law's tactic proposes steps; ``applied`` turns the steps into
the equal term. So no term that a tactic builds gets into an e-graph. Not here: which requests are
asked when (``asking.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqsynth.calculus.checking import require
from eqsynth.calculus.define import Comprehension
from eqsynth.calculus.deriving import Equal, derive, hypotheses
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.encode import encode_tensor
from eqsynth.egraph.scope_rules.building import answers
from eqsynth.egraph.snapshot import EClass, Handle
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.requests import Said, Stated, Using, number_of, scope_of
from eqsynth.egraph.tactics.selection import inside
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.egraph.view import View
from eqsynth.errors import LawError
from eqsynth.expansion.expanded import Expand, expanded
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of


def _about(law: str) -> str:
    """Which term a law's requests are about (``Entry.about``); rules of scopes are about scopes."""
    return LAWS[law].about if law in LAWS else "scope"


def with_handles(term: Any, by_object: Mapping[int, Handle]) -> Any:
    """Return a term's encoding with its tensor arguments replaced by handles (found by ``id``);
    parts that are one object stay one object."""
    done: dict[int, Any] = dict(by_object)

    def whole(value: tuple[Any, ...]) -> tuple[Any, ...]:
        return (value[0], *(part(child) for child in value[1:]))

    def part(value: Any) -> Any:
        if isinstance(value, list):
            return [part(child) for child in value]
        if not isinstance(value, tuple):
            return value
        if id(value) not in done:
            done[id(value)] = whole(value)
        return done[id(value)]

    return whole(term) if isinstance(term, tuple) else term


def grounded(tree: Any, terms: Any) -> Any:
    """Replace each e-class in a tree by its handle or structural term, given in ``terms``."""
    if isinstance(tree, EClass):
        return terms[tree]
    if isinstance(tree, tuple):
        return tuple(grounded(part, terms) for part in tree)
    return [grounded(part, terms) for part in tree] if isinstance(tree, list) else tree


@dataclass(frozen=True)
class Answer:
    """An answer of a law to a request.

    Attributes:
        row: the request, as rows of the e-graph.
        decoded: the request, as terms.
        term: the term that equals the term of the request.
        members: e-class -> the member of it that the derivation took the e-class to equal.
    """

    law: str
    row: tuple[Any, ...]
    decoded: tuple[Any, ...]
    term: Tensor
    members: Mapping[Tensor, Tensor]


def applied(view: View, law: str, row: Sequence[Any], said: Said, entry: Entry) -> list[Using]:
    """Return the terms that equal the term of a request, by what a law's tactic proposes.

    The calculus applies steps and checks their conditions; each hypothesis of the steps must be an
    equality of the e-graph, and so must each map that an expanded form is made by. So nothing is
    trusted because a tactic says it.

    Args:
        row: the request.
        entry: what the engine knows of the law.

    Returns:
        One term for steps. None or one for an expanded form, and as many as the rule matches for a
        rule of scopes.

    Raises:
        LawError: a law refuses a step; ``steps``: the proposal is a term, or a rule of scopes where
            the law stands for none; ``hypothesis``: the e-graph doesn't contain a hypothesis;
            ``numerics``: an expanded form, for a law whose answers may be computed.
    """
    term = asked(law, row)
    if isinstance(said, Expand):
        forms = ("proof-cancels",) if said.cancels else ("proof", "proof-cancels")
        require(entry.numerics in forms, law, "numerics", "the form serves only in proofs")
        return _expanded(view, law, term, said)
    if isinstance(said, Stated) and entry.stated is not None and isinstance(term, Scope):
        return [Using(found, {}) for found in answers(entry.stated, term)]
    steps = inside(said).steps if isinstance(said, Path) else said
    if not isinstance(steps, tuple):
        raise LawError("terms are no answers, only steps of a law", law=law, condition="steps")
    members = dict[Tensor, Tensor]()
    for tensor, equal in hypotheses(term, steps):
        said_so = _is_known(view, tensor, equal) or (law, *row) == _requested(tensor, equal)
        require(said_so, law, "hypothesis", "the e-graph doesn't say so")
        if isinstance(equal, Tensor):
            members[tensor] = equal
    return [Using(derive(term, steps), members)]


def _expanded(view: View, law: str, term: Tensor, said: Expand) -> list[Using]:
    """Return the expanded form of a scope, by maps that the e-graph knows."""
    taken: dict[Tensor, Scope | float | None] = {}

    def known(tensor: Tensor) -> Scope | float | None:
        if tensor not in taken:
            found = said.maps(tensor)
            said_so = found is None or _is_known(view, tensor, found)
            require(said_so, law, "hypothesis", "the e-graph doesn't say so")
            taken[tensor] = found
        return taken[tensor]

    if not isinstance(term, Scope):
        raise LawError("only scopes have an expanded form", law=law, condition="type")
    form = expanded(term, replace(said, maps=known))
    members = {tensor: found for tensor, found in taken.items() if isinstance(found, Tensor)}
    return [] if form is None else [Using(form, members)]


def _requested(tensor: Tensor, equal: Equal) -> tuple[Any, ...]:
    """Return the request by which a rule file states that a comprehension defines ``tensor``."""
    if not isinstance(equal, Comprehension):
        return ()
    return ("definition", tensor, equal.tensors, equal.numbers, equal.text)


def _is_known(view: View, tensor: Tensor, equal: Equal) -> bool:
    """Whether the e-graph says that ``tensor`` equals ``equal``: a member of the e-class, a number
    that all elements are, or the definition of an operator."""
    if isinstance(equal, Comprehension):
        return isinstance(tensor, Op) and comprehension(tensor, view.meanings) == equal
    if not isinstance(tensor, ClassRef):
        return False
    if isinstance(equal, Tensor):
        return equal in view.members(tensor)
    return number_of(view, tensor) == equal


def asked(law: str, row: Sequence[Any]) -> Tensor:
    """Return the term that a request is about."""
    about = _about(law)
    if about == "rows":
        _, table, ids, *axis = row
        return Op("Gather" if axis else "Embedding", (table, ids), tuple(axis))
    if about == "weights":
        _, scores, axis = row
        return Op("Softmax", (scores,), (axis,))
    if about == "class":
        whole: Tensor = row[0]
        return whole
    return scope_of(row)


def left_side(answer: Answer, e: Handle) -> Any:
    """Return the left side of a law's equality: the requested scope, in which each e-class that the
    law relied on is replaced by the member; for laws of e-classes the e-class itself."""
    if _about(answer.law) == "class":
        return e

    def encoded(term: Tensor, members: Mapping[Tensor, Tensor]) -> Any:
        # A member may read its own e-class, so each e-class is replaced only once on a path.
        parts: dict[Tensor, Any] = {}
        for arg in args_of(term):
            others = {ref: member for ref, member in members.items() if ref != arg}
            parts[arg] = encoded(members.get(arg, arg), others if arg in members else members)
        return encode_tensor(term, parts)

    return encoded(asked(answer.law, answer.decoded), answer.members)
