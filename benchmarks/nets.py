"""The nets of the benchmarks as plain torch modules, every size a parameter.

Not here: the sizes and seeds that are measured (``workloads.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _conv_bn(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout))


class Residual(nn.Module):
    """A basic (two 3x3) or bottleneck (1x1, 3x3, 1x1) block of ResNet and ResNeXt."""

    def __init__(self, cin: int, width: int, cout: int, stride: int, groups: int) -> None:
        super().__init__()
        if cout > width or groups > 1:
            layers = [
                _conv_bn(cin, width, 1),
                _conv_bn(width, width, 3, stride, groups),
                _conv_bn(width, cout, 1),
            ]
        else:
            layers = [_conv_bn(cin, width, 3, stride), _conv_bn(width, cout, 3)]
        self.layers = nn.ModuleList(layers)
        same = stride == 1 and cin == cout
        self.shortcut = nn.Identity() if same else _conv_bn(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, layer in enumerate(self.layers):
            y = layer(F.relu(y) if i else y)
        return F.relu(y + self.shortcut(x))


class AlexNet(nn.Module):
    """AlexNet in one column (Krizhevsky 2014), with the convolutions of OpEvo's Appendix B.

    Args:
        width: the number of filters of the first convolution.
    """

    def __init__(self, width: int = 64, features: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        wide = 4 * width
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(3, width, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(width, 3 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(3 * width, 6 * width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(6 * width, wide, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        )
        self.head = nn.Sequential(
            *(nn.Linear(36 * wide, features), nn.ReLU()),
            *(nn.Linear(features, features), nn.ReLU()),
            nn.Linear(features, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolutions(x).flatten(1))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """ResNet (He et al. 2016) and ResNeXt (Xie et al. 2017) for images.

    Args:
        expansion: output channels of a block over its planes; 1 makes basic blocks.
        group_width: channels of a group at 64 planes, where there are groups.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        planes: int = 64,
        expansion: int = 1,
        groups: int = 1,
        group_width: int = 64,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, planes, 7, 2, 3, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        stages = []
        channels = planes
        for stage, count in enumerate(blocks):
            wide = planes << stage
            width = wide if groups == 1 else (wide // planes) * group_width * groups
            for i in range(count):
                stride = 2 if stage and not i else 1
                stages.append(Residual(channels, width, wide * expansion, stride, groups))
                channels = wide * expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))  # type: ignore[no-any-return]


def vgg16_features(width: int = 64) -> nn.Sequential:
    """The convolutional part of VGG-16: five stages, each ended by a max-pool."""
    layers: list[nn.Module] = []
    channels = 3
    for factor, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1), nn.ReLU()]
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class NasnetCell(nn.Module):
    """A normal cell of NASNet-A as TASO's evaluation builds it: no batch norms, convolutions
    grouped into as many groups as there are channels.
    """

    def __init__(self, previous: int, current: int, channels: int) -> None:
        super().__init__()
        self.fit = nn.Conv2d(previous, channels, 1, bias=False)
        self.squeeze = nn.Conv2d(current, channels, 1, bias=False)
        self.separable = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
                nn.Conv2d(channels, channels, 1, bias=False),
            )
            for _ in range(5)
        )

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        cur, prev = F.relu(self.squeeze(current)), F.relu(self.fit(previous))
        separable = self.separable
        return torch.cat(
            [
                separable[0](cur) + cur,
                separable[1](prev) + separable[2](cur),
                F.avg_pool2d(cur, 3, 1, 1) + prev,
                F.avg_pool2d(prev, 3, 1, 1) + F.avg_pool2d(prev, 3, 1, 1),
                separable[3](prev) + separable[4](prev),
            ],
            1,
        )


class NasnetA(nn.Module):
    """Normal cells in a row, each reading the two before it."""

    def __init__(self, channels: int = 128, cells: int = 2) -> None:
        super().__init__()
        wide = 5 * channels
        self.cells = nn.ModuleList(NasnetCell(wide, wide, channels) for _ in range(cells))

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        for cell in self.cells:
            previous, current = current, cell(previous, current)
        return current


class NasRnn(nn.Module):
    """The recurrent cell found by architecture search, as in TASO: eight gates, unrolled."""

    def __init__(self, hidden: int = 512) -> None:
        super().__init__()
        self.w = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(8))
        self.u = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(8))

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        t = [w(x) + u(h) for w, u in zip(self.w, self.u, strict=True)]
        a = torch.relu(t[0]) + torch.sigmoid(t[3])
        b = torch.sigmoid(t[1]) + torch.tanh(t[2])
        c = torch.sigmoid(t[4]) * torch.tanh(t[5])
        d = torch.sigmoid(t[6]) * torch.relu(t[7])
        left = torch.sigmoid(b) + torch.tanh(c)
        right = torch.tanh(a) * torch.tanh(d)
        return torch.tanh(torch.tanh(left) * torch.tanh(right))

    def forward(self, xs: Tensor, h: Tensor) -> Tensor:
        for x in xs.unbind(0):
            h = self.step(x, h)
        return h


class Lstm(nn.Module):
    """An LSTM with a product a gate, unrolled over the sequence."""

    def __init__(self, hidden: int = 512) -> None:
        super().__init__()
        self.w = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))
        self.u = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, xs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for x in xs.unbind(0):
            i, f, g, o = (w(x) + u(h) for w, u in zip(self.w, self.u, strict=True))
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class BertLayer(nn.Module):
    """An encoder layer of BERT with separate projections for queries, keys and values."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.final_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        split = (b, n, self.heads, width // self.heads)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(split[-1])
        context = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, width)
        x = self.norm(x + self.output(context))
        return self.final_norm(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


def bert(layers: int = 2, hidden: int = 768, heads: int = 12, inner: int = 3072) -> nn.Sequential:
    """Encoder layers of BERT, over embedded tokens."""
    return nn.Sequential(*(BertLayer(hidden, heads, inner) for _ in range(layers)))


def generator(channels: Sequence[int], first: int, norms: int) -> nn.Sequential:
    """Transposed convolutions from a 1x1 code to an image: the first makes first x first, each
    other doubles the size; batch norms after the first ``norms``, ReLU after all but the last.
    """
    layers: list[nn.Module] = []
    for i, (cin, cout) in enumerate(itertools.pairwise(channels)):
        bias = i >= norms
        if i == 0:
            layers.append(nn.ConvTranspose2d(cin, cout, first, bias=bias))
        else:
            layers.append(nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=bias))
        if i < norms:
            layers.append(nn.BatchNorm2d(cout))
        layers.append(nn.ReLU() if i < len(channels) - 2 else nn.Tanh())
    return nn.Sequential(*layers)


def fsrcnn(d: int = 56, s: int = 12, m: int = 4, scale: int = 2) -> nn.Sequential:
    """FSRCNN (Dong et al. 2016): features, shrinking, mapping, expanding, deconvolution."""
    layers: list[nn.Module] = [nn.Conv2d(1, d, 5, padding=2), nn.PReLU(d)]
    layers += [nn.Conv2d(d, s, 1), nn.PReLU(s)]
    for _ in range(m):
        layers += [nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s)]
    layers += [nn.Conv2d(s, d, 1), nn.PReLU(d)]
    layers.append(nn.ConvTranspose2d(d, 1, 9, scale, 4, output_padding=scale - 1))
    return nn.Sequential(*layers)


class GlobalConvolution(nn.Module):
    """A k x k receptive field as 1xk after kx1 plus kx1 after 1xk."""

    def __init__(self, cin: int, cout: int, k: int) -> None:
        super().__init__()
        half = k // 2
        self.left = nn.Sequential(
            nn.Conv2d(cin, cout, (k, 1), padding=(half, 0)),
            nn.Conv2d(cout, cout, (1, k), padding=(0, half)),
        )
        self.right = nn.Sequential(
            nn.Conv2d(cin, cout, (1, k), padding=(0, half)),
            nn.Conv2d(cout, cout, (k, 1), padding=(half, 0)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)  # type: ignore[no-any-return]


class BoundaryRefinement(nn.Module):
    """A residual of two 3x3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]


class GcnHead(nn.Module):
    """The head of the Global Convolutional Network (Peng et al. 2017): a GCM and a refinement a
    feature map, from the coarsest up, upsampled and added; then twice more to the image's size.
    """

    def __init__(
        self, channels: Sequence[int] = (2048, 1024, 512, 256), classes: int = 21, k: int = 7
    ) -> None:
        super().__init__()
        self.global_convolutions = nn.ModuleList(GlobalConvolution(c, classes, k) for c in channels)
        self.refinements = nn.ModuleList(BoundaryRefinement(classes) for _ in channels)
        self.merged = nn.ModuleList(BoundaryRefinement(classes) for _ in range(len(channels) + 1))

    def forward(self, *features: Tensor) -> Tensor:
        maps = [
            refine(convolve(x))
            for refine, convolve, x in zip(
                self.refinements, self.global_convolutions, features, strict=True
            )
        ]
        y = maps[0]
        for refine, level in zip(self.merged, maps[1:], strict=False):
            y = refine(_upsample(y) + level)
        for refine in list(self.merged)[len(maps) - 1 :]:
            y = refine(_upsample(y))
        return y  # type: ignore[no-any-return]


def _upsample(x: Tensor) -> Tensor:
    size = (2 * x.shape[2], 2 * x.shape[3])
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def csrnet_back_end(channels: Sequence[int] = (512, 512, 512, 512, 256, 128, 64)) -> nn.Sequential:
    """CSRNet's dilated back end (Li et al. 2018): 3x3 convolutions of dilation 2, 1x1 to one."""
    layers: list[nn.Module] = []
    for cin, cout in itertools.pairwise(channels):
        layers += [nn.Conv2d(cin, cout, 3, padding=2, dilation=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels[-1], 1, 1))


class LongformerGather(nn.Module):
    """Dilated sliding-window attention: each position attends to ``window`` positions to each
    side, ``dilation`` apart, which are gathered. (b, n, d) three times -> (b, n, d)
    """

    def __init__(self, window: int = 64, dilation: int = 4) -> None:
        super().__init__()
        self.window, self.dilation = window, dilation

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, d = q.shape[1:]
        reach = self.window * self.dilation
        offsets = self.dilation * torch.arange(2 * self.window + 1)
        position = torch.arange(n)[:, None] + offsets[None, :]
        inside = (position >= reach) & (position < n + reach)
        keys, values = (F.pad(x, (0, 0, reach, reach))[:, position] for x in (k, v))
        scores = (q[:, :, None, :] @ keys.transpose(-1, -2))[:, :, 0] / math.sqrt(d)
        weights = torch.softmax(scores.masked_fill(~inside, -math.inf), -1)
        return (weights[:, :, None, :] @ values)[:, :, 0]


class LongformerMasked(nn.Module):
    """The attention of :class:`LongformerGather`, as dense products under a mask."""

    def __init__(self, window: int = 64, dilation: int = 4) -> None:
        super().__init__()
        self.window, self.dilation = window, dilation

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, d = q.shape[1:]
        offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        near = offset.abs() <= self.window * self.dilation
        band = near & (offset % self.dilation == 0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d)
        return torch.softmax(scores.masked_fill(~band, -math.inf), -1) @ v
