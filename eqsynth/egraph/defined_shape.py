"""Shape inference of an operator that a comprehension defines.

    (a, b) [*i, j] = sum(k) a[*i, k] * b[k, j]        a (2, 3, 4), b (4, 5)  ->  (2, 3, 5)

An axis of the head has the extent of a tensor's axis that it indexes by itself (``j`` indexes the
last axis of b), or the value of the integer attribute with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsynth.errors import ShapeError
from eqsynth.ir.notation import parts_of, wrong
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import Shape


@dataclass(frozen=True)
class _Names:
    """The values of the names in one comprehension."""

    text: str
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, int]


def shape_of(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Shape:
    """Return the extents of the head's axes.

    Raises:
        RuleError: the text isn't a comprehension over these arguments, or an axis of the head
            indexes no tensor's axis by itself.
        ShapeError: the tensors don't fit together.
    """
    parts = parts_of(text)
    if parts is None:
        raise wrong(text, "no (names) [head] = body")
    if len(parts.tensors) != len(tensors) or len(parts.numbers) != len(numbers):
        raise wrong(text, f"{len(tensors)} tensors and {len(numbers)} numbers are given")
    scope = _Names(
        text, dict(zip(parts.tensors, tensors, strict=True)),
        dict(zip(parts.numbers, numbers, strict=True)),
    )  # fmt: skip
    lengths = {
        item[1:].partition(":")[0]: scope.numbers[item.partition(":")[2]]
        for item in parts.head if item.startswith("*") and ":" in item
    }  # fmt: skip
    for _ in parts.reads:
        for tensor, items in parts.reads:
            stars = [item for item in items if item[0] in "*^" and item[1:] not in lengths]
            rest = sum(lengths.get(item[1:], 0) if item[0] in "*^" else 1 for item in items)
            if len(stars) == 1 and stars[0][0] == "*":
                lengths[stars[0][1:]] = len(scope.tensors[tensor].shape) - rest
    extents: dict[str, tuple[int, ...]] = {}
    for tensor, items in parts.reads:
        shape = scope.tensors[tensor].shape
        own = {item: lengths.get(item[1:], 0) for item in items if item.startswith("*")}
        fixed = sum(own.values()) + sum(item[0] not in "*^" for item in items)
        place = 0
        for item in items:
            length = own.get(item, len(shape) - fixed if item.startswith("^") else 1)
            if length < 0 or place + length > len(shape):
                raise _unfit(scope, f"{tensor} has no axes for {', '.join(items)}")
            name = item.lstrip("*^")
            known = extents.get(name, shape[place : place + length])
            extents[name] = _joined(scope, name, known, shape[place : place + length], item)
            place += length
        if place != len(shape):
            raise _unfit(scope, f"{tensor} has other axes than {', '.join(items)}")
    result: list[int] = []
    for item in parts.head:
        name = item.lstrip("*").partition(":")[0]
        if name not in extents and name not in scope.numbers:
            raise wrong(
                text,
                f"nothing is read at {name} alone, so its extent isn't known: say what the "
                "operator's shape is in an analysis, (set (shape e) ...)",
            )
        result += extents[name] if name in extents else (scope.numbers[name],)
    return tuple(result)


def _joined(scope: _Names, name: str, one: Shape, two: Shape, item: str) -> Shape:
    """Return the common extents that two tensors give to the same axes; for an axis that is
    broadcast (``^n``), one of the two may be 1."""
    if not item.startswith("^") and one == two:
        return one
    short, long = sorted((one, two), key=len)
    pairs = list(zip((1,) * (len(long) - len(short)) + short, long, strict=True))
    if not item.startswith("^") or any(a != b and 1 not in (a, b) for a, b in pairs):
        raise _unfit(scope, f"{name} would run over {list(one)} and {list(two)}")
    return tuple(b if a == 1 else a for a, b in pairs)


def _unfit(scope: _Names, what: str) -> ShapeError:
    return ShapeError(
        what="the tensors of a definition don't fit together",
        got=f"{what}: {', '.join(f'{n}: {t.type}' for n, t in scope.tensors.items())}",
        expected=scope.text,
        hint="an axis that is read by its name has one extent",
    )
