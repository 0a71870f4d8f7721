"""Small programs that become faster by algebra alone, as plain torch modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Chain(nn.Module):
    """(AB)C"""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (a @ b) @ c


class Factor(nn.Module):
    """AB + AC"""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a @ b + a @ c


class Bottleneck(nn.Module):
    """(xU)V with weights U and V"""

    def __init__(self, outer: int, inner: int) -> None:
        super().__init__()
        self.u = nn.Linear(outer, inner, bias=False)
        self.v = nn.Linear(inner, outer, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.v(self.u(x))  # type: ignore[no-any-return]


class LinearMean(nn.Module):
    """The mean over the sequence of xW"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x).mean(1)  # type: ignore[no-any-return]


class ConvGap(nn.Module):
    """Global average pooling of a 1x1 convolution"""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.conv(x), 1)


class Transition(nn.Module):
    """2x2 average pooling of a 1x1 convolution of a ReLU (DenseNet's transition)"""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(x)), 2)


class Einsum4(nn.Module):
    """A((BC)D)"""

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return a @ ((b @ c) @ d)


class Gnn(nn.Module):
    """(AX)W with a weight W"""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.w = nn.Linear(width, out, bias=False)

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        return self.w(a @ x)  # type: ignore[no-any-return]


class LinearAttention(nn.Module):
    """(QKᵀ)V"""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(q @ k.transpose(-1, -2), v)
