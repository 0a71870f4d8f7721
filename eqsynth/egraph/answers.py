"""An answer of a law, as it goes into the e-graph and into the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqsynth.egraph.encode import encode_tensor
from eqsynth.egraph.laws.requests import Using, scope_of
from eqsynth.egraph.snapshot import EClass, Handle
from eqsynth.ir.tensor import Op, Tensor, args_of


def with_handles(term: Any, by_object: dict[int, Handle]) -> Any:
    """A term's encoding with its tensor arguments as handles."""
    if not isinstance(term, tuple):
        return term

    def part(value: Any) -> Any:
        if isinstance(value, tuple):
            handle = by_object.get(id(value))
            return handle if handle is not None else with_handles(value, by_object)
        return [part(v) for v in value] if isinstance(value, list) else value

    return (term[0], *(part(value) for value in term[1:]))


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


def using(answer: Tensor | Using) -> Using:
    return answer if isinstance(answer, Using) else Using(answer, {})


def left_side(answer: Answer, e: Handle) -> Any:
    """The left side of a law's equality: the scope that was asked about, reading the members that
    the law looked into; for definitions the class itself."""
    if answer.law in ("definition", "view", "reduction", "merge-matmuls", "merge-conv2ds"):
        return e
    asked: Tensor
    if answer.law == "gather-rows":
        asked = Op("Embedding", answer.decoded[1:])
    else:
        asked = scope_of(answer.decoded)

    def encoded(term: Tensor) -> Any:
        parts: dict[Tensor, Any] = {
            arg: encoded(answer.members[arg]) if arg in answer.members else encoded(arg)
            for arg in args_of(term)
        }
        return encode_tensor(term, parts)

    return encoded(asked)
