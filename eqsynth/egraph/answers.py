"""An answer of a law, as it goes into the e-graph and into the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eqsynth.calculus.checking import require
from eqsynth.calculus.define import Comprehension
from eqsynth.calculus.deriving import Equal, derive, hypotheses
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.encode import encode_tensor
from eqsynth.egraph.snapshot import EClass, Handle
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.requests import Said, Using, number_of, scope_of
from eqsynth.egraph.view import View
from eqsynth.ir.tensor import ClassRef, Op, Tensor, args_of

# Laws that are asked what a class is, and not about one of its scopes.
OF_CLASSES: Final = ("definition", "view", "reduction", "merge-matmuls", "merge-conv2ds")


def with_handles(term: Any, by_object: Mapping[int, Handle]) -> Any:
    """A term's encoding with its tensor arguments as handles; what it shares stays shared."""
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
    """A tree over e-classes as a tree over handles and structural terms."""
    if isinstance(tree, EClass):
        return terms[tree]
    if isinstance(tree, tuple):
        return tuple(grounded(part, terms) for part in tree)
    return [grounded(part, terms) for part in tree] if isinstance(tree, list) else tree


@dataclass(frozen=True)
class Answer:
    """An answer of a law to a request, with the members of read classes that it relied on."""

    law: str
    row: tuple[Any, ...]
    decoded: tuple[Any, ...]
    term: Tensor
    members: Mapping[Tensor, Tensor]


def applied(
    view: View, law: str, row: Sequence[Any], said: Said, computes: bool
) -> Using:
    """What a law's answer to a request is.

    Steps are applied by the calculus to the term that was asked about, and what they rest on has to
    stand in the e-graph: nothing of it is taken from who says them.

    Args:
        row: the request.
        computes: a law that computes its answers itself; then a term is taken as it is.

    Raises:
        LawError: a step is refused (its law says why); ``steps``: it is a term, and no steps;
            ``hypothesis``: they rest on what the e-graph doesn't say.
    """
    steps = said.steps if isinstance(said, Path) else said
    if not isinstance(steps, tuple):
        require(computes, law, "steps", "terms are no answers, only steps of the calculus")
        return steps if isinstance(steps, Using) else Using(steps, {})
    term, members = asked(law, row), dict[Tensor, Tensor]()
    for tensor, equal in hypotheses(term, steps):
        said_so = _is_known(view, tensor, equal) or (law, *row) == _requested(tensor, equal)
        require(said_so, law, "hypothesis", "the e-graph doesn't say so")
        if isinstance(equal, Tensor):
            members[tensor] = equal
    return Using(derive(term, steps), members)


def _requested(tensor: Tensor, equal: Equal) -> tuple[Any, ...]:
    """The request by which a rule file says what a tensor is."""
    if not isinstance(equal, Comprehension):
        return ()
    return ("definition", tensor, equal.tensors, equal.numbers, equal.text)


def _is_known(view: View, tensor: Tensor, equal: Equal) -> bool:
    """Whether the class has this member, or is this number everywhere, or a rule file defines the
    operator so."""
    if isinstance(equal, Comprehension):
        return isinstance(tensor, Op) and comprehension(tensor, view.meanings) == equal
    if not isinstance(tensor, ClassRef):
        return False
    if isinstance(equal, Tensor):
        return equal in view.members(tensor)
    return number_of(view, tensor) == equal


def asked(law: str, row: Sequence[Any]) -> Tensor:
    """The term that a request is about."""
    if law in ("gather-rows", "rows-by-place"):
        return Op("Embedding", tuple(row[1:]))
    if law in OF_CLASSES:
        whole: Tensor = row[0]
        return whole
    return scope_of(row)


def left_side(answer: Answer, e: Handle) -> Any:
    """The left side of a law's equality: the scope that was asked about, reading the members that
    the law looked into; for definitions the class itself."""
    if answer.law in OF_CLASSES:
        return e

    def encoded(term: Tensor, members: Mapping[Tensor, Tensor]) -> Any:
        # A member may read its own class: each class is opened once on the way down.
        parts: dict[Tensor, Any] = {}
        for arg in args_of(term):
            others = {ref: member for ref, member in members.items() if ref != arg}
            parts[arg] = encoded(members.get(arg, arg), others if arg in members else members)
        return encode_tensor(term, parts)

    return encoded(asked(answer.law, answer.decoded), answer.members)
