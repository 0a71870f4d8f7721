"""Operators over three spatial axes: none stays a call of torch, and bad arguments are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import eqsynth
from eqsynth import ops
from eqsynth.errors import ShapeError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import capture


class Net(nn.Module):
    """Two blocks as in networks for video, and a way back up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1)),
                                   nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2))  # fmt: skip
        self.second = nn.Conv3d(4, 6, 3, padding="same", groups=2)
        self.up = nn.ConvTranspose3d(6, 2, 2, 2, dilation=(2, 1, 1))
        self.pool = nn.AvgPool3d((1, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.pool(self.up(self.second(self.first(x))))
        return result


def volume() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 4 * 6 * 8).reshape(1, 2, 4, 6, 8)


def test_a_network_for_volumes_has_no_opaque_operator() -> None:
    assert not capture(Net().eval(), (volume(),)).opaque


@pytest.mark.rotating(parts=4)
def test_a_network_for_volumes_keeps_its_values() -> None:
    net, x = Net().eval(), volume()
    program = eqsynth.optimize(net, (x,), objective="flops", progress=False, time_limit_s=20)
    torch.testing.assert_close(program(x), net(x).detach(), rtol=1e-4, atol=1e-5)
    assert program.original is None


X, W = eqsynth.input("x", (1, 2, 4, 6, 8)), eqsynth.input("w", (3, 2, 3, 3, 3))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ops.conv3d(ops.flatten(X, 0, 2), W), "another rank"),
        (lambda: ops.conv3d(X, ops.flatten(W, 0, 1)), "another rank"),
        (lambda: ops.conv_transpose3d(X, ops.flatten(W, 0, 1)), "another rank"),
        (lambda: ops.max_pool3d(ops.flatten(X, 0, 2), 2), "another rank"),
        (lambda: ops.conv3d(X, W, dilation=2), "larger than the volume"),
        (lambda: ops.conv3d(X, W, padding="full"), "no such padding"),
        (lambda: ops.conv3d(X, W, stride=2, padding="same"), "no such padding"),
        (lambda: ops.avg_pool3d(X, 2, divisor_override=3), "a divisor of its own"),
        (lambda: ops.slice_scatter(X, X, 2, 1, 3), "another shape"),
        (lambda: ops.select_scatter(X, X, 2, 1), "another shape"),
        (lambda: ops.diagonal_scatter(X, X, 0, 1, 2), "another shape"),
        (lambda: ops.select_scatter(X, ops.select(X, 2, 0), 2, 4), ""),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], Expr], said: str) -> None:
    with pytest.raises(ShapeError) as refused:
        call()
    assert said in str(refused.value)
