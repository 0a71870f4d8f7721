"""The result against the original, on several kinds of inputs.

Where float32 leaves doubt, both are held against the original in float64: the result may be as far
from it as the original is, times a factor, not further.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from eqsynth.errors import EqsynthError, EquivalenceError

# Relative differences below this many units of rounding are no matter for doubt.
_SURE_EPS = 2048
# How much further from the exact value than the original a result may be.
_FACTOR = 16.0


@dataclass(frozen=True)
class Check:
    """Attributes: error_rel: the largest difference over the largest value, of all inputs tried."""

    error_rel: float
    tried: int


def input_kinds(inputs: Sequence[Any], seed: int = 0) -> dict[str, tuple[Any, ...]]:
    """The given inputs, and random, offset, scaled and near-equal ones like them."""
    generator = torch.Generator().manual_seed(seed)

    def like(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        return tuple(
            change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for x in inputs
        )

    def normal(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=generator).to(x.dtype)

    return {
        "given": tuple(inputs),
        "random": like(normal),
        "offset": like(lambda x: normal(x) + 10),
        "scaled": like(lambda x: normal(x) * 100),
        "near-equal": like(lambda x: 1 + normal(x) * 1e-3),
    }


@contextmanager
def unchanged(state: Sequence[torch.Tensor]) -> Iterator[None]:
    """Gives tensors (the buffers that a program changes) their values back at the end."""
    saved = _copies(state)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(state, saved, strict=True):
                tensor.copy_(value)


def check_equivalence(
    program: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    state: Sequence[torch.Tensor] = (),
) -> Check:
    """Compares the two on :func:`input_kinds`.

    Args:
        state: buffers that both change: compared after a run, and as they were in the end.

    Raises:
        EquivalenceError: they differ by more than rounding explains.
    """

    def run(call: Callable[..., Any], values: Sequence[Any]) -> list[torch.Tensor]:
        with torch.no_grad(), unchanged(state):
            return [*_leaves(call(*_copies(values))), *_copies(state)]

    worst, kinds = 0.0, input_kinds(inputs)
    for kind, values in kinds.items():
        expected, got = run(reference, values), run(program, values)
        for position, (y, z) in enumerate(zip(got, expected, strict=True)):
            where = f"output {position} on {kind} inputs"
            error = _difference(y, z, where)
            if error > _SURE_EPS * _eps(z):
                _judge(position, where, y, z, run, reference, values)
            worst = max(worst, error if kind in ("given", "random") else 0.0)
    return Check(worst, len(kinds))


def _judge(
    position: int,
    where: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    run: Callable[..., list[torch.Tensor]],
    reference: Callable[..., Any],
    values: Sequence[Any],
) -> None:
    """Whether rounding explains a difference: by float64, then by what rounded inputs do."""
    wide: Callable[[Sequence[Any]], list[torch.Tensor] | None] = partial(_exact, reference)
    exact = wide(values)
    allowed = _SURE_EPS * _eps(expected)
    if exact is None or position >= len(exact):
        wide, exact, allowed = partial(run, reference), run(reference, values), 1e-2
    right = exact[position].double()
    mine = _difference(got.double(), right, where)
    allowed += _FACTOR * _difference(expected.double(), right, where)
    if mine > allowed:
        # A sum that cancels, or a tie: no order of operations is better than its inputs.
        near = wide(_nearby(values))
        if near is not None and position < len(near):
            allowed += _FACTOR * _difference(near[position].double(), right, where)
    if mine > allowed:
        raise _mismatch(where, mine, allowed)


def _nearby(values: Sequence[Any]) -> list[Any]:
    """The inputs, some roundings away."""
    generator = torch.Generator().manual_seed(1)

    def shaken(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return (x.double() * (1 + 4 * _eps(x) * noise)).to(x.dtype)

    return [
        shaken(v) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values
    ]


def _exact(reference: Callable[..., Any], values: Sequence[Any]) -> list[torch.Tensor] | None:
    """The original in float64, where it is a module that allows it."""
    if not isinstance(reference, torch.nn.Module):
        return None
    try:
        double = copy.deepcopy(reference).double()
        wide = [
            v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for v in values
        ]
        with torch.no_grad():
            return _leaves(double(*wide))
    except (RuntimeError, TypeError, EqsynthError):
        return None


def _mismatch(where: str, error: float, allowed: float) -> EquivalenceError:
    return EquivalenceError(
        "the optimized program differs from the original",
        where=where,
        got=f"relative error {error:.2e}",
        expected=f"at most {allowed:.2e}",
        hint="this is a fault in eqsynth: please report it; explain() shows the steps",
    )


def _copies(values: Sequence[Any]) -> list[Any]:
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def _leaves(result: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _eps(value: torch.Tensor) -> float:
    return torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0


def _difference(got: torch.Tensor, expected: torch.Tensor, where: str) -> float:
    """Largest difference over the largest finite value; NaN and infinity must be the same."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise EquivalenceError(
            "the optimized program's result has another type",
            where=where,
            got=f"{got.dtype} {tuple(got.shape)}",
            expected=f"{expected.dtype} {tuple(expected.shape)}",
            hint="this is a fault in eqsynth: please report it",
        )
    if not expected.numel():
        return 0.0
    a, b = got.double(), expected.double()
    finite = torch.isfinite(b)
    if not torch.equal(torch.isnan(a), torch.isnan(b)) or not torch.equal(
        a[~finite & ~torch.isnan(b)], b[~finite & ~torch.isnan(b)]
    ):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    scale = float(b[finite].abs().max())
    error = float((a[finite] - b[finite]).abs().max())
    return error / scale if scale else error
