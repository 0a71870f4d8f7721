"""Raw indices and scalars: terms of the schema in the engine's form, such as
``("IDiv", ("It", 0, 4), 2)``.

The IR brings each of its indices into canonical form. Rules also match other forms, so samples of
rules need raw terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from eqsynth.egraph.encode import decode_index, decode_scalar
from eqsynth.rules.sorts import Declarations
from eqsynth.testing.world import World

NUMBERS: Final = (2, 1, 3, 0, -1, 4, 6, -2, 12, -3, 8, -6)
DIVISORS: Final = (2, 3, 1, 4, 6, 12)


def any_raw_index(world: World, slots: Sequence[int], depth: int) -> Any:
    """A random raw index over iterators.

    Args:
        slots: the extents of the iterators.
        depth: how many operations may be nested.
    """
    choices = world.choices
    kinds = ("it", "it", "number", "mul", "sum", "div", "mod", "min", "max")
    kind = choices.pick(kinds[:4] if depth <= 0 else kinds)
    slot = choices.pick(range(len(slots))) if slots else 0
    if kind == "number" or not slots:
        return ("INum", world.number(NUMBERS))
    iterator = ("It", slot, slots[slot])
    if kind == "it":
        return iterator
    if kind == "mul":
        return ("IMul", world.number(NUMBERS), iterator)
    parts = [any_raw_index(world, slots, depth - 1) for _ in range(1 + (kind == "sum"))]
    if kind == "sum":
        return ("IAdd", *parts)
    if kind in ("min", "max"):
        return ("IMin" if kind == "min" else "IMax", parts[0], world.number(NUMBERS))
    return ("IDiv" if kind == "div" else "IMod", parts[0], world.number(DIVISORS, least=1))


def read_back(raw: Any, known: Declarations) -> Any:
    """Decode a raw scalar or index into the IR; its tensors are terms of the IR already."""
    if isinstance(raw, list):
        return tuple(read_back(part, known) for part in raw)
    if not isinstance(raw, tuple):
        return raw
    args = [read_back(part, known) for part in raw[1:]]
    decode = decode_index if known.signatures[raw[0]].output == "Idx" else decode_scalar
    return decode(raw[0], args)
