"""Equalities of indices, decided by evaluation at all values of their iterators."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.testing.judging import Difference


def indices_differ(left: Any, right: Any) -> Difference | None:
    """The difference of two raw indices on the ranges of their iterators; None if they are equal.

    Raw indices are terms of the engine, such as ``("IDiv", ("It", 0, 4), 2)``; the IR's own indices
    are always in canonical form. ``//`` and ``%`` floor, and a divisor must be positive.
    """
    extents: dict[int, int] = {}
    for side in (left, right):
        _iterators(side, extents)
    slots = sorted(extents)
    lines = np.meshgrid(*(np.arange(extents[s]) for s in slots), indexing="ij")
    grid = dict(zip(slots, lines, strict=True))
    try:
        a, b = _value(left, grid), _value(right, grid)
    except ZeroDivisionError as error:
        return Difference("shape", str(error), left=render(left), right=render(right))
    a, b = np.broadcast_arrays(a, b)
    if np.array_equal(a, b):
        return None
    at = tuple(int(position) for position in np.argwhere(a != b)[0])
    values = ", ".join(f"i{slot} = {grid[slot][at]}" for slot in slots)
    what = f"the indices differ at {values or 'every point'}"
    return Difference("value", what, "all values", None, a[at], b[at])


def render(raw: Any) -> str:
    """A raw index as text."""
    if not isinstance(raw, tuple):
        return str(raw)
    match raw:
        case ("It", slot, extent):
            return f"i{slot}<{extent}"
        case ("INum", value):
            return str(value)
        case ("IAdd", x, y):
            return f"({render(x)} + {render(y)})"
        case ("IMul", c, x):
            return f"{c}*{render(x)}"
        case ("IDiv", x, m):
            return f"({render(x)} // {m})"
        case ("IMod", x, m):
            return f"({render(x)} % {m})"
        case ("IMin" | "IMax" as bound, x, m):
            return f"{bound[1:].lower()}({render(x)}, {m})"
    return str(raw)


def _iterators(raw: Any, extents: dict[int, int]) -> None:
    if isinstance(raw, tuple):
        if raw[0] == "It":
            extents[raw[1]] = raw[2]
        for part in raw[1:]:
            _iterators(part, extents)


def _value(raw: Any, grid: dict[int, Array]) -> Array:
    name, *args = raw
    if name == "It":
        return grid[args[0]]
    if name == "INum":
        return np.asarray(args[0])
    if name == "IAdd":
        return np.asarray(_value(args[0], grid) + _value(args[1], grid))
    if name == "IMul":
        return np.asarray(args[0] * _value(args[1], grid))
    if name in ("IMin", "IMax"):
        return np.asarray((np.minimum if name == "IMin" else np.maximum)(
            _value(args[0], grid), args[1]))  # fmt: skip
    if args[1] <= 0:
        raise ZeroDivisionError(f"an index is divided by {args[1]}; divisors are positive")
    x = _value(args[0], grid)
    return np.asarray(x // args[1] if name == "IDiv" else x % args[1])
