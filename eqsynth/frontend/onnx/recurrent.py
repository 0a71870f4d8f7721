"""``RNN``, ``GRU`` and ``LSTM``, written out step by step.

Refused are lengths of sequences that are an input, bounds on the activations' arguments (``clip``),
and, for ``GRU`` and ``LSTM``, activations other than the default ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from eqsynth.frontend.onnx.table import Refused, op

Tensor = torch.Tensor
# A step: from W x + b at this time, the state (h, or h and c), and the weights and bias of the
# state (R and Rb), to the next state.
_Step = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, ...]]

_FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Relu": torch.relu,
}  # fmt: skip


def _run(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    initial: Sequence[Tensor | None],
    steps: Sequence[_Step],
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Run the steps over a sequence, in one or two directions.

    Args:
        x: (length, batch, features), or with ``layout`` (batch, length, features).
        w, r, b: the weights of the input and of the state, and both biases in a row, each with a
            first axis of directions.
        initial: the initial states; None for zeros.
        steps: the step of each direction.

    Returns:
        The states h after each step, (length, directions, batch, hidden), and each last state,
        (directions, batch, hidden); with ``layout`` the batch comes first.
    """
    if lengths is not None:
        raise Refused("lengths of sequences")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise Refused(f"direction {direction}")
    if layout:
        x = x.transpose(0, 1)
        initial = [None if s is None else s.transpose(0, 1) for s in initial]
    turns = [False, True] if direction == "bidirectional" else [direction == "reverse"]
    length, batch, hidden = x.shape[0], x.shape[1], r.shape[-1]
    if w.shape[0] != len(turns) or not length:
        raise ValueError(f"weights for {w.shape[0]} directions, {length} steps")
    rows, lasts = [], []
    for d, backward in enumerate(turns):
        gates = r.shape[1]
        bias = torch.zeros(2 * gates, dtype=x.dtype) if b is None else b[d]
        inputs = torch.matmul(x, w[d].T) + bias[:gates]
        empty = torch.zeros(batch, hidden, dtype=x.dtype)
        state = tuple(empty if s is None else s[d] for s in initial)
        found: list[Tensor] = []
        for t in range(length)[:: -1 if backward else 1]:
            state = steps[d](inputs[t], state, r[d], bias[gates:])
            found.append(state[0])
        rows.append(torch.stack(found[:: -1 if backward else 1]))
        lasts.append(state)
    states = torch.stack(rows, 1)
    last = [torch.stack(parts) for parts in zip(*lasts, strict=True)]
    if layout:
        return states.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last)
    return states, *last


def _usual(given: Sequence[str] | None, usual: Sequence[str], others: Sequence[object]) -> None:
    directions = 0 if given is None else len(given) // len(usual)
    if given is not None and [*given] != [*usual] * directions:
        raise Refused(f"functions {', '.join(given)}")
    if any(other is not None for other in others):
        raise Refused("bounds or parameters of functions")


@op("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    _usual(None, (), (activation_alpha, activation_beta, clip))
    if any(name not in _FUNCTIONS for name in activations):
        raise Refused(f"functions {', '.join(activations)}")

    def step_of(name: str) -> _Step:
        def step(at: Tensor, state: tuple[Tensor, ...], r: Tensor, rb: Tensor) -> Any:
            return (_FUNCTIONS[name](at + torch.matmul(state[0], r.T) + rb),)

        return step

    return _run(x, w, r, b, lengths, [h], [step_of(a) for a in activations], direction, layout)


@op("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    _usual(activations, ("Sigmoid", "Tanh"), (activation_alpha, activation_beta, clip))

    def step(at: Tensor, state: tuple[Tensor, ...], r: Tensor, rb: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        rz, rr, rh = r.chunk(3)
        bz, br, bh = rb.chunk(3)
        az, ar, ah = at.chunk(3, -1)
        z = torch.sigmoid(az + torch.matmul(h, rz.T) + bz)
        gate = torch.sigmoid(ar + torch.matmul(h, rr.T) + br)
        if linear_before_reset:
            new = torch.tanh(ah + gate * (torch.matmul(h, rh.T) + bh))
        else:
            new = torch.tanh(ah + torch.matmul(gate * h, rh.T) + bh)
        return ((1 - z) * new + z * h,)

    return _run(x, w, r, b, lengths, [h], [step, step], direction, layout)


@op("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peepholes: Tensor | None = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    _usual(activations, ("Sigmoid", "Tanh", "Tanh"), (activation_alpha, activation_beta, clip))
    if input_forget:
        raise Refused("input and forget gates in one")

    def step_of(p: Tensor | None) -> _Step:
        zero = torch.zeros(3, dtype=x.dtype)
        pi, po, pf = (zero if p is None else p).chunk(3)

        def step(at: Tensor, state: tuple[Tensor, ...], r: Tensor, rb: Tensor) -> Any:
            h, c = state
            i, o, f, g = (at + torch.matmul(h, r.T) + rb).chunk(4, -1)
            if p is not None:
                i, f = i + pi * c, f + pf * c
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o if p is None else o + po * c) * torch.tanh(c), c

        return step

    steps = [step_of(None if peepholes is None else peepholes[d]) for d in range(w.shape[0])]
    return _run(x, w, r, b, lengths, [h, c], steps, direction, layout)
