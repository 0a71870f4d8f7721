"""The kernels on which tuners are compared: OpEvo's operators, and kernels from eqsynth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.schedule import Rows, Schedule
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum
from eqsynth.ir.tensor import Input, Op, Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.kernel_tuning import space_for
from eqsynth.lower.tvm_backend import TvmBackend

it = Index.iterator


def _input(position: int, *shape: int) -> Input:
    return Input(str(position), TensorType(shape, "float32"))


def _product(m: int, n: int, k: int, batch: int = 1) -> Scope:
    b, i, j, r = it(0, batch), it(1, m), it(2, n), it(3, k)
    x, y = _input(0, batch, m, k), _input(1, batch, k, n)
    return Scope((batch, m, n), (k,), Prod((Read(x, (b, i, r)), Read(y, (b, r, j)))))


def _batched(m: int, n: int, k: int, batch: int, left: bool) -> Scope:
    """A batched product of which the left, or else the right, operand is transposed first."""
    b, i, j, r = it(0, batch), it(1, m), it(2, n), it(3, k)
    x = _input(0, batch, k, m) if left else _input(0, batch, m, k)
    y = _input(1, batch, k, n) if left else _input(1, batch, n, k)
    reads = Read(x, (b, r, i) if left else (b, i, r)), Read(y, (b, r, j) if left else (b, j, r))
    return Scope((batch, m, n), (k,), Prod(reads))


def _offset_reduce(size: int, features: int) -> Scope:
    """The rest of a 3x3 convolution in EinNet's derivation: the sum of nine shifted planes."""
    shape = (size, size, 3, 3, features)
    h, w, f, r, s = (it(k, e) for k, e in enumerate((size, size, features, 3, 3)))
    read = Read(_input(0, *shape), (h + r - 1, w + s - 1, r, s, f))
    return Scope((size, size, features), (3, 3), read)


def _softmax_sum(rows: int, columns: int) -> Scope:
    """The denominators: exponentials of differences to a row's maximum, added up."""
    x, most = _input(0, rows, columns), _input(1, rows)
    i, j = it(0, rows), it(1, columns)
    below = Sum((Read(x, (i, j)), Prod((Num(-1.0), Read(most, (i,))))))
    return Scope((rows,), (columns,), Call("exp", (below,)))


def _normalized(rows: int, columns: int) -> Scope:
    """Layer norm's last step: (x - mean) * scale of the row * weight + bias."""
    x, mean, scale = _input(0, rows, columns), _input(1, rows), _input(2, rows)
    weight, bias = _input(3, columns), _input(4, columns)
    i, j = it(0, rows), it(1, columns)
    centered = Sum((Read(x, (i, j)), Prod((Num(-1.0), Read(mean, (i,))))))
    scaled = Prod((centered, Read(scale, (i,)), Read(weight, (j,))))
    return Scope((rows, columns), (), Sum((scaled, Read(bias, (j,)))))


def _moved(shape: tuple[int, ...], axes: tuple[int, ...]) -> Scope:
    index = tuple(it(axes.index(axis), shape[axis]) for axis in range(len(shape)))
    return Scope(tuple(shape[axis] for axis in axes), (), Read(_input(0, *shape), index))


def _sum(rows: int, columns: int, along: bool) -> Scope:
    x = _input(0, rows, columns)
    if along:
        return Scope((rows,), (columns,), Read(x, (it(0, rows), it(1, columns))))
    return Scope((columns,), (rows,), Read(x, (it(1, rows), it(0, columns))))


def _convolution(
    channels: int, filters: int, size: int, window: int, stride: int, padding: int
) -> Scope:
    out = (size + 2 * padding - window) // stride + 1
    x, w = _input(0, 1, channels, size, size), _input(1, filters, channels, window, window)
    extents = (1, filters, out, out, channels, window, window)
    n, f, i, j, c, r, s = (it(k, e) for k, e in enumerate(extents))
    read = Read(x, (n, c, i * stride + r - padding, j * stride + s - padding))
    return Scope(extents[:4], extents[4:], Prod((read, Read(w, (f, c, r, s)))))


def _band(batch: int, rows: int, width: int, features: int, dilation: int) -> Scope:
    """G2BMM: the band of ``a @ b'``, with diagonals ``dilation`` apart on both sides."""
    a, b = _input(0, batch, rows, features), _input(1, batch, rows, features)
    extents = (batch, rows, 2 * width + 1, features)
    n, m, w, k = (it(s, e) for s, e in enumerate(extents))
    other = Read(b, (n, m + w * dilation - width * dilation, k))
    return Scope(extents[:3], extents[3:], Prod((Read(a, (n, m, k)), other)))


def _winograd_tiles(channels: int, tiles: int) -> Scope:
    """The data's transform of F(2, 3): ``B' d B`` of every tile of 4x4, with its own steps of 2."""
    matrix = Op("Literal", (), ((4, 4), (1, 0, -1, 0, 0, 1, 1, 0, 0, -1, 1, 0, 0, 1, 0, -1),
                                (1,) * 16, "float32"))  # fmt: skip
    x = _input(0, channels, 2 * tiles + 2, 2 * tiles + 2)
    extents = (4, 4, channels, tiles, tiles, 4, 4)
    p, q, c, i, j, u, v = (it(k, e) for k, e in enumerate(extents))
    read = Read(x, (c, i * 2 + u, j * 2 + v))
    return Scope(extents[:5], extents[5:], Prod((Read(matrix, (p, u)), Read(matrix, (q, v)), read)))


KERNELS: Final[Mapping[str, Callable[[], Scope]]] = {
    # The paper's, at batch 1 (Appendix B): three products and three batched products of BERT, whose
    # transposed operands are other layouts of the same, and two convolutions of AlexNet.
    "mm1": lambda: _product(512, 1024, 1024),
    "mm2": lambda: _product(512, 4096, 1024),
    "mm3": lambda: _product(512, 1024, 4096),
    "bmm1": lambda: _product(128, 64, 128, 16),
    "bmm2": lambda: _batched(128, 64, 128, 16, left=True),
    "bmm3": lambda: _batched(128, 128, 64, 16, left=False),
    "c1": lambda: _convolution(3, 64, 227, 11, 4, 0),
    "c2": lambda: _convolution(64, 192, 27, 5, 1, 2),
    "g2bmm": lambda: _band(8, 1024, 32, 64, 1),
    "winograd_tiles": lambda: _winograd_tiles(64, 14),
    "matmul_256": lambda: _product(256, 256, 256),
    "matmul_196": lambda: _product(196, 196, 512),
    "batched_64": lambda: _product(64, 64, 64, 16),
    "tall": lambda: _product(1024, 32, 1024),
    "offset_reduce_56": lambda: _offset_reduce(56, 64),
    "offset_reduce_14": lambda: _offset_reduce(14, 512),
    "softmax_sum": lambda: _softmax_sum(1024, 512),
    "layer_norm_last": lambda: _normalized(512, 768),
    "row_mean": lambda: _sum(512, 768, along=True),
    "column_sum": lambda: _sum(512, 768, along=False),
    "transpose": lambda: _moved((1024, 1024), (1, 0)),
    "permute_0213": lambda: _moved((8, 128, 12, 64), (0, 2, 1, 3)),
    "permute_3210": lambda: _moved((32, 56, 28, 16), (3, 2, 1, 0)),
}


def kernel_of(scope: Scope) -> Kernel:
    """The kernel that is contiguous in and out, with what its space begins with: large products and
    convolutions aren't offered to the search of programs, which leaves them to vendors."""
    args = args_of(scope)
    inputs = tuple(contiguous(len(arg.shape)) for arg in args)
    output = contiguous(len(scope.shape))
    kernel = Kernel(scope, (False,) * len(args), TvmBackend.name, inputs, output, Rows())
    space = space_for(kernel)
    schedule = space.made(space.starts[0])
    assert isinstance(schedule, Schedule)
    return replace(kernel, schedule=schedule)
