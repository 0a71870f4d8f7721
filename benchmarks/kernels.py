"""Single kernels that libraries run badly or not at all, as plain torch modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class OffsetReduce(nn.Module):
    """The rest of a 3x3 convolution after its Matmul, in EinNet's derivation: the sum of nine
    shifted partial products. (n, h, w, 3, 3, f) -> (n, h, w, f), zero outside.
    """

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[1:3]
        padded = F.pad(x, (0, 0, 0, 0, 0, 0, 1, 1, 1, 1))
        result = padded[:, :h, :w, 0, 0]
        for r, s in ((r, s) for r in range(3) for s in range(3) if (r, s) != (0, 0)):
            result = result + padded[:, r : r + h, s : s + w, r, s]
        return result


class Im2col(nn.Module):
    """The patches of a 3x3 convolution: (n, c, h, w) -> (n, 9 c, h w)"""

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, 3, padding=1)


class Col2im(nn.Module):
    """The rest of a transposed convolution (4x4, stride 2, pad 1) after its Matmul: the sum of
    overlapping patches. (n, 16 c, h w) -> (n, c, 2 h, 2 w)
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (2 * height, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return F.fold(x, self.size, 4, padding=1, stride=2)


class Permute(nn.Module):
    """Another order of axes, in memory"""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order).contiguous()


class BiasRelu(nn.Module):
    """relu(x + bias), the bias along one axis"""

    def __init__(self, channels: int, axis: int) -> None:
        super().__init__()
        shape = [1, 1, 1, 1]
        shape[axis] = channels
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bias)


class ResidualRelu(nn.Module):
    """relu(x + y)"""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.relu(x + y)


class G2bmm(nn.Module):
    """The band of q kᵀ: products of each position with ``window`` positions on each side,
    ``dilation`` apart, zero outside. (b, n, d) twice -> (b, n, 2 window + 1)
    """

    def __init__(self, window: int, dilation: int) -> None:
        super().__init__()
        self.window, self.dilation = window, dilation

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        reach = self.window * self.dilation
        offsets = self.dilation * torch.arange(2 * self.window + 1)
        position = torch.arange(q.shape[1])[:, None] + offsets[None, :]
        keys = F.pad(k, (0, 0, reach, reach))[:, position]
        return (q[:, :, None, :] @ keys.transpose(-1, -2))[:, :, 0]
