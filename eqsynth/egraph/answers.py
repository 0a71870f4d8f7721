"""An answer of a law, as it goes into the e-graph and into the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqsynth.egraph.encode import encode_tensor
from eqsynth.egraph.laws.requests import Using, scope_of
from eqsynth.egraph.snapshot import EClass, Handle
from eqsynth.ir.tensor import Op, Tensor, args_of


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


def using(answer: Tensor | Using) -> Using:
    return answer if isinstance(answer, Using) else Using(answer, {})


def left_side(answer: Answer, e: Handle) -> Any:
    """The left side of a law's equality: the scope that was asked about, reading the members that
    the law looked into; for definitions the class itself."""
    if answer.law in ("definition", "view", "reduction", "merge-matmuls", "merge-conv2ds"):
        return e
    asked: Tensor
    if answer.law in ("gather-rows", "rows-by-place"):
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
