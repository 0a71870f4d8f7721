"""The kinds of inputs on which programs are compared with their originals.

Example: given a float tensor (2, 3) and an integer tensor of positions, the kind ``offset 1e4`` has
normal floats around 1e4 and other positions. All floats, integers and bools among the leaves of the
arguments vary, wherever they are nested.

Which integers an original takes is found by trying (`ranges`): positions in an embedding's table
may be any of its rows, and nothing else. Not here: the comparison (``check.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from eqsynth.lower.reruns import Values

Generator = torch.Generator
Draw = Callable[[torch.Size, Generator, float], torch.Tensor]
"""Draws a tensor of a shape. The last argument is a size up to which a product of four numbers is
still in the dtype's range."""


def _normal(shape: torch.Size, g: Generator) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=g, dtype=torch.float64)


def _offset(by: float) -> Draw:
    """A kind with normal numbers around ``by``, or around the largest size that the dtype
    allows."""
    return lambda shape, g, largest: _normal(shape, g) + min(by, largest)


def _mixed(shape: torch.Size, g: Generator, largest: float) -> torch.Tensor:
    """Numbers of sizes from 1e-6 to 1e6: in half of the rows each element has its own size, in the
    other half a row has one size."""
    each = torch.rand(shape, generator=g, dtype=torch.float64)
    if shape:
        rows = torch.rand((*shape[:-1], 2), generator=g, dtype=torch.float64)
        each = torch.where(rows[..., :1] < 0.5, each, rows[..., 1:])
    digits = min(6.0, float(torch.tensor(largest).log10()))
    return _normal(shape, g) * 10 ** (digits * (2 * each - 1))


def _sparse(shape: torch.Size, g: Generator, _largest: float) -> torch.Tensor:
    """Normal numbers, of which 7 of 10 are replaced by zeros."""
    kept = torch.rand(shape, generator=g) < 0.3
    return torch.where(kept, _normal(shape, g), 0.0)


FLOATS: Final[Mapping[str, Draw]] = {
    "random": lambda shape, g, _: _normal(shape, g),
    "offset 10": _offset(10.0),
    "offset 1e4": _offset(1e4),
    "offset 1e6": _offset(1e6),
    "mixed scales": _mixed,
    "near-equal": lambda shape, g, _: 1 + 1e-3 * _normal(shape, g),
    "constant": lambda shape, g, _: _normal(torch.Size(()), g).expand(shape),
    "sparse": _sparse,
}
"""The kinds besides ``given`` (the inputs as the user gave them), and how floats are drawn for
each."""

LARGE: Final = frozenset({"offset 1e4", "offset 1e6", "mixed scales"})
"""The kinds with numbers so large that an exponential of them overflows."""

KINDS: Final = ("given", *FLOATS)

_BASE: Final[Mapping[str, int]] = {"offset 10": 10, "offset 1e4": 10**4, "offset 1e6": 10**6}
_FEW = 1 << 16  # a range of up to this many integers is drawn from evenly
_TRIES = 40  # the most runs of the original for the range of one input
_TRIES_S = 2.0  # after this long for all inputs, no more runs than ten for each


@dataclass(frozen=True)
class Range:
    """A range of integers that the original takes.

    Attributes:
        low, high: its least and its greatest integer.
        bounded: whether the original refuses an integer outside of the range.
    """

    low: int
    high: int
    bounded: bool


Ranges = Mapping[int, Range | None]
"""For each integer leaf, by position, the range that the original takes. None: it doesn't even take
each given integer in every place, as where each column is a position in another table; then only
the order of the rows is changed."""


def is_integer(leaf: Any) -> bool:
    """Whether a leaf is a tensor of integers (bools don't count) with elements."""
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.dtype != torch.bool
        and not leaf.is_floating_point()
        and not leaf.is_complex()
        and leaf.numel() > 0
    )


def inputs_of(values: Values, kind: str, integers: Ranges, seed: int = 0) -> Values:
    """Inputs of a kind, of the same types as the given ones; the same for the same seed.

    An integer leaf without an entry in ``integers``, and a leaf that is no tensor, stays as given.
    """
    if kind == "given":
        return values
    leaves, tree = tree_flatten(values)
    changed = []
    for position, leaf in enumerate(leaves):
        g = torch.Generator().manual_seed(1000 * seed + 97 * KINDS.index(kind) + position)
        made = _drawn(leaf, kind, integers.get(position), position in integers, g)
        changed.append(_placed(made, leaf) if isinstance(leaf, torch.Tensor) else made)
    drawn: Values = tree_unflatten(changed, tree)
    return drawn


def _placed(drawn: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """The drawn tensor with the strides of the given one, if that is dense: a module may look at
    the strides of its inputs."""
    like = torch.empty_like(leaf, device=drawn.device)
    if like.stride() != leaf.stride() or drawn.stride() == leaf.stride():
        return drawn
    return like.copy_(drawn)


def _drawn(leaf: Any, kind: str, within: Range | None, varies: bool, g: Generator) -> Any:
    """One leaf of another kind; ``varies`` says whether an integer leaf may be changed at all."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_complex():
        return leaf
    if leaf.is_floating_point():
        largest = float(torch.finfo(leaf.dtype).max) ** 0.25
        return FLOATS[kind](leaf.shape, g, largest).to(leaf.dtype)
    if leaf.dtype == torch.bool:
        part = {"constant": 1.0, "sparse": 0.25}.get(kind, 0.5)
        return torch.rand(leaf.shape, generator=g) < part
    if not varies:
        return leaf
    if within is None:
        return leaf[torch.randperm(len(leaf), generator=g)] if leaf.ndim else leaf
    return _integers(leaf, kind, within, g)


def _integers(leaf: torch.Tensor, kind: str, within: Range, g: Generator) -> torch.Tensor:
    """Integers of a kind within a range."""
    low, high = within.low, within.high
    even = within.bounded or high - low <= _FEW
    if even and kind not in ("constant", "sparse"):
        drawn = _between(low, high, leaf.shape, g)
        # Both ends of the range occur.
        ends = torch.randint(leaf.numel(), (2,), generator=g)
        drawn.view(-1)[ends] = torch.tensor([low, high])
    elif kind == "constant":
        drawn = _between(max(low, -9), min(high, 9) if not even else high, (), g).expand(leaf.shape)
    elif kind == "mixed scales":
        size = 2.0 ** (62 * torch.rand(leaf.shape, generator=g, dtype=torch.float64))
        sign = 1 - 2 * torch.randint(2, leaf.shape, generator=g)
        drawn = size.long() * sign
    else:
        drawn = _BASE.get(kind, 0) + torch.randint(-9, 10, leaf.shape, generator=g)
        if kind == "sparse":
            drawn = drawn * (torch.rand(leaf.shape, generator=g) < 0.3)
    return drawn.clamp(low, high).to(leaf.dtype)


def _between(low: int, high: int, shape: Sequence[int], g: Generator) -> torch.Tensor:
    """Integers drawn evenly from ``low`` to ``high``; ``randint`` takes no range of 2^63."""
    span = min(high - low, (1 << 62) - 1)
    return low + torch.randint(span + 1, tuple(shape), generator=g)


# ---- which integers are taken ----------------------------------------------------------------


def ranges(
    values: Values, runs: Callable[[Values], bool], guesses: Mapping[int, int] | None = None
) -> dict[int, Range | None]:
    """For each integer input, the range around the given integers that the original takes.

    Args:
        runs: whether the original runs on these inputs.
        guesses: by the leaf's position, the number of rows of the table in which it is a position,
            where that is known. Two tries then confirm what otherwise takes a search.
    """
    leaves, tree = tree_flatten(values)
    found: dict[int, Range | None] = {}
    begin = time.monotonic()
    for position, leaf in enumerate(leaves):
        if not is_integer(leaf):
            continue

        def takes(value: int, position: int = position, leaf: torch.Tensor = leaf) -> bool:
            tried = [*leaves]
            tried[position] = torch.full_like(leaf, value)
            return runs(tree_unflatten(tried, tree))

        budget = _budget(begin)
        found[position] = _range(leaf, takes, budget, (guesses or {}).get(position))
    return found


def _budget(begin: float) -> Callable[[], bool]:
    """A function that is true so long as another try is allowed: up to ``_TRIES`` tries for an
    input, and after ``_TRIES_S`` seconds (from ``begin``) no more than ten."""
    left = iter(range(_TRIES))
    return lambda: (
        (n := next(left, None)) is not None and (n < 10 or time.monotonic() - begin < _TRIES_S)
    )


def _range(
    leaf: torch.Tensor,
    takes: Callable[[int], bool],
    budget: Callable[[], bool],
    guess: int | None,
) -> Range | None:
    """The range of one integer input; None if the original doesn't take its least and largest value
    in every place."""
    info = torch.iinfo(leaf.dtype)
    low, high = int(leaf.min()), int(leaf.max())
    if not (takes(low) and takes(high)):
        return None
    if guess is not None and guess > high and takes(guess - 1) and not takes(guess):
        top, upper = guess - 1, True
    else:
        top, upper = _farthest(high, info.max, takes, budget)
    bottom, lower = _farthest(low, info.min, takes, budget)
    return Range(bottom, top, upper or lower)


def _farthest(
    start: int, limit: int, takes: Callable[[int], bool], budget: Callable[[], bool]
) -> tuple[int, bool]:
    """The farthest number towards the limit that the original takes, and whether it refuses one
    beyond.

    If it takes the limit, it takes all numbers before. Else the number is searched by steps that
    double, and then by halving.
    """
    if start == limit or takes(limit):
        return limit, False
    sign = 1 if limit > start else -1
    good, step = start, 1
    bad = limit
    while budget():
        following = good + sign * step
        if (limit - following) * sign <= 0:
            break
        if not takes(following):
            bad = following
            break
        good, step = following, 2 * step
    while abs(bad - good) > 1 and budget():
        middle = (good + bad) // 2
        if takes(middle):
            good = middle
        else:
            bad = middle
    return good, True
