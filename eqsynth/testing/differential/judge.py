"""What a right result is: as near to the truth as torch's own, and where torch has none, none.

Integers and bools are torch's, bit by bit. A float may be as far from the truth (torch in float64
on the same data) as torch's result in the same dtype times a small factor, plus a few roundings of
the truth; NaN and infinities lie where torch's do. Zeros have no sign (see ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

# How much further from the truth than torch's own result one may be.
FACTOR: Final = 4.0


@dataclass(frozen=True)
class Wrong:
    """The first thing about a result that is wrong.

    Attributes:
        at: the position of the element; None if shape, dtype or the whole is wrong.
    """

    got: str
    expected: str
    at: tuple[int, ...] | None = None


def compare(
    got: torch.Tensor,
    expected: torch.Tensor,
    truth: torch.Tensor | None,
    roundings: float,
    scale: torch.Tensor | None = None,
    slack: torch.Tensor | None = None,
    operands: Sequence[torch.Tensor] = (),
) -> Wrong | None:
    """What is wrong with ``got``; None if it is right.

    Args:
        expected: torch's result in the same dtype.
        truth: torch's result in float64; None where only torch's own can be the measure.
        scale: the size of what is rounded on the way; that of the result, if not given.
        slack: by how much a rounding of the operands changes the truth; None for not at all.
        operands: among the wrong elements, the one whose operands are smallest is told.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return Wrong(_kind(got), _kind(expected))
    if not expected.dtype.is_floating_point:
        wrong = got != expected
    else:
        wrong = ~_close(got.double(), expected, truth, roundings, scale, slack)
    if not bool(wrong.any()):
        return None
    at = _smallest(wrong, operands)
    exact = "" if truth is None else f" (exactly {truth[at].item()!r})"
    return Wrong(repr(got[at].item()), f"{expected[at].item()!r}{exact}", at)


def _close(
    got: torch.Tensor,
    expected: torch.Tensor,
    truth: torch.Tensor | None,
    roundings: float,
    scale: torch.Tensor | None,
    slack: torch.Tensor | None,
) -> torch.Tensor:
    limits = torch.finfo(expected.dtype)
    same = expected.double()
    exact = same if truth is None else truth.double()
    finite = same.isfinite() & exact.isfinite()
    own = torch.where(finite, (same - exact).abs(), 0.0)
    size = exact.abs().nan_to_num(0.0, 0.0, 0.0)
    size = size if scale is None else torch.maximum(size, scale.nan_to_num(0.0, 0.0, 0.0))
    # Torch in float64 is no judge of itself next to the least float64.
    wide = expected.dtype == torch.float64
    least = 1e-300 if wide else roundings * limits.smallest_normal * limits.eps
    bound = FACTOR * own + roundings * limits.eps * size + least
    if slack is not None:
        bound = bound + roundings * slack
    close = (got - exact).abs() <= bound
    like_one = _same(got, same) | (_same(got, exact) & ~exact.isfinite())
    # Next to the largest number, a rounding decides between it and infinity.
    end = limits.max * (1 - roundings * limits.eps)
    at_end = (exact.abs() >= end) & (got.abs() >= end) & (got.sign() == exact.sign())
    # Where torch overflows on the way and the truth is a number, the truth is right too.
    better = exact.isfinite() & ((got - exact).abs() <= roundings * limits.eps * size)
    right = like_one | torch.where(finite, close, better) | at_end
    if scale is not None:
        # What overflows on the way may come out as another infinity, or as NaN.
        right |= ~(scale < end) & ~got.isfinite()
    return right


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _smallest(wrong: torch.Tensor, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The wrong element of smallest operands, if these are broadcast to the result."""
    size = torch.zeros(wrong.shape, dtype=torch.float64)
    for operand in operands:
        try:
            size = size + torch.broadcast_to(operand, wrong.shape).double().abs()
        except RuntimeError:
            break
    size = torch.where(wrong, torch.nan_to_num(size, nan=1e300, posinf=1e300), torch.inf)
    flat = int(size.argmin())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), wrong.shape))


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
