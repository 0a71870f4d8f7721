"""A program: named inputs, and the output terms that are computed from them.

The arrays of weights are kept elsewhere, by name, so that a program is small, picklable and
hashable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, Weight, topological


@dataclass(frozen=True)
class Program:
    """``outputs`` as functions of ``inputs``; every :class:`Input` that occurs is listed."""

    inputs: tuple[Input, ...]
    outputs: tuple[Tensor, ...]

    def terms(self) -> Iterator[Tensor]:
        """Every distinct term once, arguments before users."""
        return topological(self.outputs)

    def weights(self) -> tuple[Weight, ...]:
        return tuple(term for term in self.terms() if isinstance(term, Weight))

    def __str__(self) -> str:
        from eqsynth.ir.printing import render_program

        return render_program(self)


def positions(members: Iterable[Tensor], views: bool = False) -> dict[Tensor, int]:
    """The arguments of ``members`` that select rows of an embedding's table or elements of a
    gather's tensor, and how many rows or elements they can select from.

    ``embedding(table, ids)`` with 10 rows gives ``{ids: 10}``. An id outside of [0, 10) is an
    error, as in torch, so test data must stay in this range.

    Args:
        views: also the tensors that such an argument is a view of, for test data: of ``ids[1:]``
            all of ids.
    """
    bounds: dict[Tensor, int] = {}
    for term in members:
        if isinstance(term, Region):
            inner = positions(topological(term.outputs), views)
            for n, arg in enumerate(term.args):
                count = inner.get(Input(str(n), arg.type))
                if count is not None:
                    bounds[arg] = min(count, bounds.get(arg, count))
        elif isinstance(term, Op) and term.name in ("Embedding", "Gather"):
            source, index = term.args
            axis = term.attrs[0] if term.name == "Gather" else 0
            assert isinstance(axis, int)
            for shown in _shown(index) if views else (index,):
                bounds[shown] = min(source.shape[axis], bounds.get(shown, source.shape[axis]))
    return bounds


def _shown(term: Tensor) -> Iterator[Tensor]:
    """Yield the tensor, and the tensors that it is a view of."""
    yield term
    views: Sequence[Tensor] = ()
    if isinstance(term, Op) and term.row.kind == "view":
        views = term.args
    elif isinstance(term, Scope) and not term.reduction and isinstance(term.body, Read):
        views = (term.body.tensor,)
    for viewed in views:
        yield from _shown(viewed)
