"""Expands functions composed of others: ``silu(x)`` -> ``x * sigmoid(x)``."""

from __future__ import annotations

from dataclasses import dataclass

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.scalar import Call, Num, Scalar, product, total


@dataclass(frozen=True)
class _Part:
    scalar: Scalar

    def __add__(self, other: _Part) -> _Part:
        return _Part(total((self.scalar, other.scalar)))

    def __mul__(self, other: _Part) -> _Part:
        return _Part(product((self.scalar, other.scalar)))


def written_out(call: Call) -> Scalar | None:
    """Return the definition of a composed function, for the call's argument; None for a basic
    function."""
    made = FUNCTIONS[call.fn].made
    if made is None:
        return None
    whole: _Part = made.of(
        _Part(call.args[0]),
        lambda name, part: _Part(Call(name, (part.scalar,))),
        lambda value: _Part(Num(value)),
    )
    return whole.scalar
