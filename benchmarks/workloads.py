"""The workloads of the benchmarks: their names, sizes and seeds.

``build(batch)`` gives a module in evaluation mode and its inputs; ``reduced()`` the same program at
small sizes, at which the same rules fire, for tests. The modules are defined in ``nets.py``,
``algebra.py``, ``kernels.py`` and, for models of other libraries, ``zoo.py``. Not here: peers and
timing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks import algebra, kernels, nets, zoo

Inputs = tuple[Tensor, ...]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Workload:
    """One program to measure.

    Attributes:
        suite: ``nets``, ``algebra`` or ``kernels``.
        batches: the batch sizes that are measured.
        by_hand: the speedup of the program, rewritten by hand and run in the fastest engine, over
            the best peer on the original (2 cores, AVX-512).
    """

    name: str
    suite: str
    batches: tuple[int, ...]
    full: Callable[[int], tuple[nn.Module, Shapes]]
    small: Callable[[], tuple[nn.Module, Shapes]]
    by_hand: float | None = None

    @property
    def seed(self) -> int:
        """The seed of weights and inputs."""
        return zlib.crc32(self.name.encode())

    def build(self, batch: int = 1) -> tuple[nn.Module, Inputs]:
        """The module and its inputs at full size, the same each time."""
        return _seeded(self.seed, lambda: self.full(batch))

    def reduced(self) -> tuple[nn.Module, Inputs]:
        """The module and its inputs at a size for tests, the same each time."""
        return _seeded(self.seed, self.small)


def _seeded(seed: int, make: Callable[[], tuple[nn.Module, Shapes]]) -> tuple[nn.Module, Inputs]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, shapes = make()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
                _unsettle(part)
        return module.eval().requires_grad_(False), tuple(torch.randn(s) for s in shapes)


def _unsettle(norm: nn.BatchNorm2d | nn.LayerNorm) -> None:
    """Give a norm random statistics, scale and shift, as after training. Those of a new norm are 0
    and 1, so that an error in folding it wouldn't show."""
    with torch.no_grad():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.normal_(0.0, 0.2)
            norm.running_var.uniform_(0.5, 1.5)
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.0, 0.1)


def _longformer(kind: type[nn.Module], batch: int) -> tuple[nn.Module, Shapes]:
    return kind(), ((8 * batch, 2048, 64),) * 3


def _small_longformer(kind: type[nn.Module]) -> tuple[nn.Module, Shapes]:
    return kind(3, 2), ((2, 16, 4),) * 3


def _resnet(blocks: tuple[int, ...], **options: int) -> Callable[[int], tuple[nn.Module, Shapes]]:
    return lambda b: (nets.ResNet(blocks, **options), ((b, 3, 224, 224),))


def _small_resnet(**options: int) -> Callable[[], tuple[nn.Module, Shapes]]:
    small = {"planes": 8, "classes": 10, **options}
    return lambda: (nets.ResNet((1, 1, 1, 1), **small), ((2, 3, 32, 32),))


_GCN_MAPS: Final = ((2048, 7), (1024, 14), (512, 28), (256, 56))
_SMALL_GCN_MAPS: Final = ((8, 2), (6, 4), (4, 8))


def _gcn(b: int) -> tuple[nn.Module, Shapes]:
    return nets.GcnHead(), tuple((b, c, e, e) for c, e in _GCN_MAPS)


def _small_gcn() -> tuple[nn.Module, Shapes]:
    channels = [c for c, _ in _SMALL_GCN_MAPS]
    return nets.GcnHead(channels, 3, 3), tuple((1, c, e, e) for c, e in _SMALL_GCN_MAPS)


_INFOGAN: Final = (228, 448, 256, 128, 64, 3)
_DCGAN: Final = (100, 512, 256, 128, 64, 3)
_WIDE: Final = (1, 16)

NETS: Final = (
    Workload("resnet18", "nets", _WIDE, _resnet((2, 2, 2, 2)), _small_resnet()),
    Workload(
        "resnet50", "nets", _WIDE, _resnet((3, 4, 6, 3), expansion=4), _small_resnet(expansion=4)
    ),
    Workload(
        "resnext50",
        "nets",
        _WIDE,
        _resnet((3, 4, 6, 3), expansion=4, groups=32, group_width=4),
        _small_resnet(expansion=4, groups=4, group_width=4),
    ),
    Workload(
        "vgg16",
        "nets",
        _WIDE,
        lambda b: (nets.vgg16_features(), ((b, 3, 224, 224),)),
        lambda: (nets.vgg16_features(4), ((1, 3, 32, 32),)),
    ),
    Workload(
        "nasnet_a",
        "nets",
        _WIDE,
        lambda b: (nets.NasnetA(), ((b, 640, 28, 28),) * 2),
        lambda: (nets.NasnetA(4), ((1, 20, 6, 6),) * 2),
    ),
    Workload(
        "nasrnn",
        "nets",
        _WIDE,
        lambda b: (nets.NasRnn(), ((10, b, 512), (b, 512))),
        lambda: (nets.NasRnn(8), ((2, 1, 8), (1, 8))),
    ),
    Workload(
        "lstm",
        "nets",
        _WIDE,
        lambda b: (nets.Lstm(), ((10, b, 512), (b, 512), (b, 512))),
        lambda: (nets.Lstm(8), ((2, 1, 8), (1, 8), (1, 8))),
    ),
    *(
        Workload(
            f"bert{length}",
            "nets",
            _WIDE,
            lambda b, length=length: (nets.bert(), ((b, length, 768),)),  # type: ignore[misc]
            lambda length=length: (nets.bert(1, 8, 2, 16), ((1, length // 16, 8),)),  # type: ignore[misc]
        )
        for length in (128, 64)
    ),
    Workload(
        "infogan",
        "nets",
        _WIDE,
        lambda b: (nets.generator(_INFOGAN, 2, 2), ((b, 228, 1, 1),)),
        lambda: (nets.generator((12, 10, 8, 6, 4, 3), 2, 2), ((2, 12, 1, 1),)),
    ),
    Workload(
        "dcgan",
        "nets",
        _WIDE,
        lambda b: (nets.generator(_DCGAN, 4, 4), ((b, 100, 1, 1),)),
        lambda: (nets.generator((10, 12, 8, 6, 4, 3), 4, 4), ((2, 10, 1, 1),)),
    ),
    Workload(
        "fsrcnn",
        "nets",
        _WIDE,
        lambda b: (nets.fsrcnn(), ((b, 1, 64, 64),)),
        lambda: (nets.fsrcnn(8, 4, 2), ((1, 1, 8, 8),)),
    ),
    Workload("gcn", "nets", _WIDE, _gcn, _small_gcn),
    Workload(
        "csrnet",
        "nets",
        _WIDE,
        lambda b: (nets.csrnet_back_end(), ((b, 512, 28, 28),)),
        lambda: (nets.csrnet_back_end((8, 8, 6, 4)), ((1, 8, 6, 6),)),
    ),
    Workload(
        "longformer_gather",
        "nets",
        _WIDE,
        lambda b: _longformer(nets.LongformerGather, b),
        lambda: _small_longformer(nets.LongformerGather),
    ),
    Workload(
        "longformer_masked",
        "nets",
        _WIDE,
        lambda b: _longformer(nets.LongformerMasked, b),
        lambda: _small_longformer(nets.LongformerMasked),
    ),
)


Sized = tuple[tuple[int, ...], Shapes]
"""Sizes that a module is made with, and the shapes of its inputs."""


def _fixed(
    suite: str,
    name: str,
    module: Callable[..., nn.Module],
    full: Sized,
    small: Sized,
    by_hand: float | None = None,
) -> Workload:
    """A workload whose sizes are given whole, so that there is one batch size, called 1."""
    return Workload(
        name,
        suite,
        (1,),
        lambda _b: (module(*full[0]), full[1]),
        lambda: (module(*small[0]), small[1]),
        by_hand,
    )


def _algebra(
    name: str, by_hand: float, module: Callable[..., nn.Module], full: Sized, small: Sized
) -> Workload:
    return _fixed("algebra", name, module, full, small, by_hand)


ALGEBRA: Final = (
    _algebra(
        "chain",
        7.0,
        algebra.Chain,
        ((), ((512, 512), (512, 512), (512, 32))),
        ((), ((16, 16), (16, 16), (16, 2))),
    ),
    _algebra("factor", 1.9, algebra.Factor, ((), ((512, 512),) * 3), ((), ((16, 16),) * 3)),
    _algebra(
        "bottleneck",
        8.0,
        algebra.Bottleneck,
        ((768, 3072), ((128, 768),)),
        ((12, 48), ((8, 12),)),
    ),
    _algebra(
        "linear_mean",
        28.0,
        algebra.LinearMean,
        ((768,), ((4, 128, 768),)),
        ((12,), ((2, 8, 12),)),
    ),
    _algebra(
        "conv_gap",
        17.0,
        algebra.ConvGap,
        ((512, 1024), ((1, 512, 14, 14),)),
        ((6, 8), ((1, 6, 4, 4),)),
    ),
    _algebra(
        "transition",
        2.6,
        algebra.Transition,
        ((512, 256), ((1, 512, 28, 28),)),
        ((8, 4), ((1, 8, 6, 6),)),
    ),
    _algebra(
        "einsum4",
        25.0,
        algebra.Einsum4,
        ((), ((8, 1024), (1024, 1024), (1024, 1024), (1024, 8))),
        ((), ((2, 16), (16, 16), (16, 16), (16, 2))),
    ),
    _algebra(
        "gnn",
        17.0,
        algebra.Gnn,
        ((1024, 32), ((1024, 1024), (1024, 1024))),
        ((16, 2), ((16, 16), (16, 16))),
    ),
    _algebra(
        "linear_attention",
        29.0,
        algebra.LinearAttention,
        ((), ((8, 2048, 64),) * 3),
        ((), ((2, 24, 4),) * 3),
    ),
)


def _kernel(name: str, module: Callable[..., nn.Module], full: Sized, small: Sized) -> Workload:
    return _fixed("kernels", name, module, full, small)


_MAP: Final = ((8, 64, 56, 56),)
_SMALL_MAP: Final = ((2, 3, 5, 4),)

KERNELS: Final = (
    _kernel(
        "offset_reduce_56",
        kernels.OffsetReduce,
        ((), ((1, 56, 56, 3, 3, 64),)),
        ((), ((1, 5, 4, 3, 3, 2),)),
    ),
    _kernel(
        "offset_reduce_14",
        kernels.OffsetReduce,
        ((), ((8, 14, 14, 3, 3, 512),)),
        ((), ((2, 3, 4, 3, 3, 5),)),
    ),
    _kernel("im2col", kernels.Im2col, ((), ((1, 64, 56, 56),)), ((), ((1, 2, 5, 4),))),
    _kernel(
        "col2im",
        kernels.Col2im,
        ((28, 28), ((1, 128 * 16, 28 * 28),)),
        ((3, 2), ((1, 2 * 16, 3 * 2),)),
    ),
    # The same as permute_0231, under the name by which one looks for it.
    _kernel("nchw_to_nhwc", kernels.Permute, ((0, 2, 3, 1), _MAP), ((0, 2, 3, 1), _SMALL_MAP)),
    *(
        _kernel(
            f"permute_{''.join(map(str, order))}",
            kernels.Permute,
            (order, _MAP),
            (order, _SMALL_MAP),
        )
        for order in ((0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0))
    ),
    _kernel(
        "bias_relu_nhwc",
        kernels.BiasRelu,
        ((64, 3), ((8, 56, 56, 64),)),
        ((3, 3), ((2, 5, 4, 3),)),
    ),
    _kernel("bias_relu_nchw", kernels.BiasRelu, ((64, 1), _MAP), ((3, 1), _SMALL_MAP)),
    _kernel(
        "residual_relu_14",
        kernels.ResidualRelu,
        ((), ((1, 512, 14, 14),) * 2),
        ((), ((1, 5, 2, 2),) * 2),
    ),
    _kernel(
        "residual_relu_224",
        kernels.ResidualRelu,
        ((), ((8, 64, 224, 224),) * 2),
        ((), ((2, 3, 7, 5),) * 2),
    ),
    _kernel("softmax", nn.Softmax, ((-1,), ((96, 128, 128),)), ((-1,), ((3, 4, 5),))),
    _kernel("layer_norm", nn.LayerNorm, ((768,), ((2048, 768),)), ((6,), ((4, 6),))),
    *(
        _kernel(
            f"g2bmm_dilation{dilation}",
            kernels.G2bmm,
            ((128, dilation), ((16, 1024, 64),) * 2),
            ((2, dilation), ((2, 9, 4),) * 2),
        )
        for dilation in (1, 2)
    ),
)

WORKLOADS: Final[dict[str, Workload]] = {w.name: w for w in (*NETS, *ALGEBRA, *KERNELS)}

DEPTHS: Final = {
    (name := f"bert_{n}"): _fixed("depths", name, nets.bert, ((n, 256, 4, 1024), ((1, 64, 256),)),
                                     ((n, 8, 2, 16), ((1, 4, 8),))) for n in (2, 4, 8, 12)
}  # fmt: skip
"""BERT of several depths: the cost of a search when only the depth of a model grows."""


class Measured(Protocol):
    """What can be measured: a :class:`Workload`, or a model of a library."""

    @property
    def name(self) -> str: ...
    @property
    def suite(self) -> str: ...
    @property
    def batches(self) -> tuple[int, ...]: ...
    @property
    def by_hand(self) -> float | None: ...
    @property
    def seed(self) -> int: ...
    def build(self, batch: int = 1) -> tuple[nn.Module, Inputs]: ...
    def reduced(self) -> tuple[nn.Module, Inputs]: ...


@dataclass(frozen=True)
class RealModel:
    """A model of ``zoo.py`` at its size ``small``, as a module from tensors to one tensor, since
    other engines take only such modules."""

    name: str
    suite: str = "models"
    batches: tuple[int, ...] = (1,)
    by_hand: None = None

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    def build(self, batch: int = 1) -> tuple[nn.Module, Inputs]:
        return _of_tensors(self.name, replace(zoo.SIZES["small"], batch=batch))

    def reduced(self) -> tuple[nn.Module, Inputs]:
        return _of_tensors(self.name, zoo.SIZES["probe"])


def _of_tensors(name: str, size: zoo.Size) -> tuple[nn.Module, Inputs]:
    call = zoo.MODELS[name].build(size)
    inputs = tuple(x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor))
    return _First(call.module, len(call.args), call.kwargs).eval(), inputs


class _First(nn.Module):
    """A model that is called with its tensors in a row, and returns its first result."""

    def __init__(self, model: nn.Module, placed: int, named: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.placed = model, placed
        self.named = [name for name, value in named.items() if isinstance(value, Tensor)]
        self.rest = {k: v for k, v in named.items() if not isinstance(v, Tensor)}

    def forward(self, *tensors: Tensor) -> Tensor:
        named = dict(zip(self.named, tensors[self.placed :], strict=True))
        results = self.model(*tensors[: self.placed], **named, **self.rest)
        first: Tensor = tree_leaves(results)[0]
        return first


MODELS: Final = tuple(
    RealModel(name)
    for name in (
        "bert", "gpt2", "llama", "t5", "vit", "swin", "whisper", "detr", "resnext26ts",
        "efficientnet_b0", "mobilenetv3_small", "mixer",
    )
)  # fmt: skip

MEASURED: Final[Mapping[str, Measured]] = {**WORKLOADS, **DEPTHS, **{m.name: m for m in MODELS}}
"""All workloads and models; the models need their libraries (``pip install 'eqsynth[models]'``)."""

SUITES: Final = tuple(dict.fromkeys(w.suite for w in MEASURED.values()))
