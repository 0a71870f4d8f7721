"""The judge of a result: it must be about as near to the truth as torch's own result.

Integers and bools must equal torch's. For floats the truth is torch's result in float64 on the same
data. A float may differ from the truth by a small multiple of the error of torch's result in the
same dtype, plus a few roundings of the truth. NaN and infinities must be where torch has them.
Signs of zeros aren't compared (see ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

# The error that is allowed, as a multiple of the error of torch's own result.
FACTOR: Final = 4.0


@dataclass(frozen=True)
class Wrong:
    """What is wrong with a result.

    Attributes:
        got, expected: the element and the expected one; or the shapes and dtypes.
        at: the position of the element; None if the shape, dtype or whole result is wrong.
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
        truth: torch's result in float64; None if only ``expected`` can be compared with.
        roundings: how many roundings of its size a result may be off.
        scale: the size of the intermediate values that are rounded; by default the result's size.
        slack: the change of the truth when the operands are rounded; None for none.
        operands: of several wrong elements, the one with the smallest operands is reported.
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
    # For float64 the truth has the same precision as torch's result, so that errors next to the
    # smallest float64 can't be measured.
    wide = expected.dtype == torch.float64
    least = 1e-300 if wide else roundings * limits.smallest_normal * limits.eps
    bound = FACTOR * own + roundings * limits.eps * size + least
    if slack is not None:
        bound = bound + roundings * slack
    close = (got - exact).abs() <= bound
    like_one = _same(got, same) | (_same(got, exact) & ~exact.isfinite())
    # Next to the dtype's largest number, a rounding may give that number or infinity.
    end = limits.max * (1 - roundings * limits.eps)
    at_end = (exact.abs() >= end) & (got.abs() >= end) & (got.sign() == exact.sign())
    # Where torch's computation overflows but the truth is a finite number, the truth is right, too.
    better = exact.isfinite() & ((got - exact).abs() <= roundings * limits.eps * size)
    right = like_one | torch.where(finite, close, better) | at_end
    if scale is not None:
        # Where an intermediate value overflows, any infinity or NaN is right.
        right |= ~(scale < end) & ~got.isfinite()
    return right


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _smallest(wrong: torch.Tensor, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The position of the wrong element with the smallest operands, as far as the operands
    broadcast to the result."""
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
