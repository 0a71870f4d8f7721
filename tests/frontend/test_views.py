"""Views: torch's functions that only move elements are captured as views, and Syno's primitives
mean what its Table 1 says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eqsynth.errors import ShapeError
from eqsynth.frontend import expression as E
from eqsynth.frontend import ops
from eqsynth.frontend.ops import syno
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import operator
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Scope
from eqsynth.ir.tensor import Tensor as Term

IMAGE = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(0))

TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(8, 3, 14),
    "view": lambda x: x.view(2, -1),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "permute": lambda x: x.permute(3, 0, 2, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "movedim": lambda x: x.movedim(1, -1),
    "mT": lambda x: x.mT,
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "broadcast_to": lambda x: x.broadcast_to(3, 2, 4, 7, 6),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "tile": lambda x: x.tile(2, 3),
    "tile_longer": lambda x: x[0, 0].tile(2, 1, 3),
    "roll": lambda x: x.roll((1, -2), (0, 3)),
    "roll_flat": lambda x: x.roll(5),
    "roll_round": lambda x: x.roll(9, 2),
    "flip": lambda x: x.flip(1, -1),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "slice": lambda x: x[:, 1:, -5:, ::2],
    "slice_strided": lambda x: x[1:, ::3, 1:6:4],
    "select": lambda x: x[:, -1],
    "newaxis": lambda x: x[None, ..., None],
    "narrow": lambda x: x.narrow(2, 1, 4),
    "chunk": lambda x: x.chunk(3, 3)[1],
    "split": lambda x: x.split([1, 3], 1)[1],
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "as_strided": lambda x: x.as_strided((3, 4), (5, 2), 7),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5),
    "pad_and_crop": lambda x: F.pad(x, (-1, 2, 3, -2)),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :6], 2),
    "pixel_shuffle_unbatched": lambda x: F.pixel_shuffle(x[0], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    **{
        f"pad_{mode}": lambda x, mode=mode: F.pad(x, (1, 2, 2, 1), mode=mode)
        for mode in ("circular", "reflect", "replicate")
    },
    **{
        f"pad_{mode}_one_axis_cut": lambda x, mode=mode: F.pad(x[0], (3, -2), mode=mode)
        for mode in ("circular", "reflect", "replicate")
    },
    **{
        f"pad_{mode}_three_axes": lambda x, mode=mode: F.pad(x[:, None], (1, 2, 0, 1, 1, 3), mode)
        for mode in ("circular", "reflect", "replicate")
    },
    "pad_circular_whole": lambda x: F.pad(x, (6, 6, 7, 7), mode="circular"),
    "pad_reflect_whole": lambda x: F.pad(x, (5, 5, 6, 6), mode="reflect"),
    "pad_replicate_wide": lambda x: F.pad(x, (9, 8, 0, 11), mode="replicate"),
    "ReflectionPad2d": torch.nn.ReflectionPad2d((2, 1, 0, 3)),
    "CircularPad1d": lambda x: torch.nn.CircularPad1d(2)(x[0]),
    "nearest": lambda x: F.interpolate(x, scale_factor=(2, 3)),
    "nearest_1d": lambda x: F.interpolate(x[0], scale_factor=4),
    "nearest_3d": lambda x: F.interpolate(x[None], scale_factor=2),
    "nearest_to_a_size": lambda x: F.interpolate(x, size=(11, 4)),
    "nearest_smaller": lambda x: F.interpolate(x, scale_factor=0.5),
    "nearest_one_and_a_half": lambda x: F.interpolate(x, scale_factor=1.5),
    "nearest_exact": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "nearest_exact_size": lambda x: F.interpolate(x, size=(5, 8), mode="nearest-exact"),
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split(3, 2)[1],
    "repeat_interleave_flat": lambda x: x.repeat_interleave(2),
    "stack": lambda x: torch.stack([x, x.flip(0)], 1),
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "tensor_unfold": lambda x: x.unfold(2, 3, 2),
    "tensor_unfold_last": lambda x: x.unfold(-1, 2, 1),
    "tensor_unfold_all": lambda x: x.unfold(1, 4, 3),
    "tensor_unfold_twice": lambda x: x.unfold(2, 3, 1).unfold(3, 2, 2),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "unfold_dilated": lambda x: F.unfold(x, (2, 3), dilation=(3, 2), padding=(2, 1), stride=(2, 3)),
    "unfold_unbatched": lambda x: F.unfold(x[0], 2),
}


class Applied(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def is_view(term: Term) -> bool:
    if isinstance(term, Scope):
        return not term.reduction and isinstance(term.body, Read)
    return isinstance(term, Input) or (isinstance(term, Op) and operator(term.name).kind == "view")


@pytest.mark.rotating
def test_torchs_views_are_captured_as_views(run: Callable[..., Any]) -> None:
    """The whole table in one module: each capture by itself takes longer than its operators."""
    captured = capture(Applied(lambda x: [view(x) for view in TORCH.values()]).eval(), (IMAGE,))
    assert not captured.opaque
    assert not [str(term) for term in captured.program.terms() if not is_view(term)]
    found = dict(zip(TORCH, run(captured, IMAGE), strict=True))
    assert not [name for name, view in TORCH.items() if not torch.equal(found[name], view(IMAGE))]


NEAREST = [(n, m) for n in range(1, 20) for m in (*range(1, 41), 64, 100, 224)]


@pytest.mark.rotating
def test_a_concatenation_has_no_parts_without_elements() -> None:
    """A cache that is still empty, or the zeros of no width beside a block of ``block_diag``."""
    x, y = E.input("x", (2, 3)), E.input("y", (2, 5))
    empty, nothing = E.input("e", (2, 0)), E.input("n", (0,))
    assert ops.cat([empty, x, empty, y], 1).tensor == ops.cat([x, y], 1).tensor
    assert ops.cat([nothing, empty, x], 1).tensor == x.tensor
    assert ops.cat([empty, empty], 1).shape == (2, 0)
    # The dtype is still that of all parts, and the other axes have to fit.
    assert ops.cat([E.input("d", (2, 0), dtype="float64"), x], 1).dtype == "float64"
    with pytest.raises(ShapeError):
        ops.cat([E.input("f", (3, 0)), x], 1)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_neighbours_are_those_of_torch(mode: str) -> None:
    """Every size and some factors: the integers that we divide are what torch's floats give."""
    offset, refused = 0.5 if mode == "nearest-exact" else 0.0, 0
    for n, m in NEAREST:
        line = torch.arange(n, dtype=torch.float32).reshape(1, 1, n)
        x = E.input("x", (1, 1, n), "float32")
        cases = [((m,), None, F.interpolate(line, size=m, mode=mode))]
        factor = m / 8
        if int(n * factor):
            resized = F.interpolate(line, scale_factor=factor, mode=mode)
            cases.append(((int(n * factor),), [factor], resized))
        for size, factors, expected in cases:
            try:
                ours = ops.upsample_nearest(x, size, factors, offset)
            except ShapeError:
                refused += 1
                continue
            found = evaluate(ours.tensor, {"x": line.numpy()})
            np.testing.assert_array_equal(found, expected.numpy(), err_msg=f"{n} {m} {factors}")
    assert refused < len(NEAREST) // 10


FOLDS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "plain": ((2, 3 * 6, 20), lambda x: F.fold(x, (5, 7), (2, 3))),
    "strided": ((2, 3 * 16, 12), lambda x: F.fold(x, (6, 8), 4, padding=1, stride=2)),
    "dilated": ((1, 6, 36), lambda x: F.fold(x, (7, 11), (2, 3), (3, 2), (1, 2), (1, 2))),
    "apart": ((1, 4, 4), lambda x: F.fold(x, (5, 6), (1, 2), stride=(4, 3))),
    "unbatched": ((4, 6), lambda x: F.fold(x, (3, 4), 2)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_fold_adds_overlapping_windows(name: str, run: Callable[..., Any]) -> None:
    shape, function = FOLDS[name]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    captured = capture(Applied(function).eval(), (x,))
    assert not captured.opaque
    torch.testing.assert_close(run(captured, x), function(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.pad(x, (1, 1), "mirror"),
        lambda x: ops.pad(x, (0, 7), "circular"),
        lambda x: ops.pad(x, (6, 0), "reflect"),
        lambda x: ops.unfold(x, 1, 7),
        lambda x: ops.unfold(x, 1, 2, 0),
        lambda x: ops.im2col(x, 2),
        lambda x: ops.im2col(ops.reshape(x, (1, 1, 4, 6)), 5, padding=0),
        lambda x: ops.im2col(ops.reshape(x, (1, 1, 4, 6)), 2, stride=0),
        lambda x: ops.col2im(x, (3, 3), 2),  # 4 windows
        lambda x: ops.col2im(x, (3, 4), (3, 1)),
        lambda x: ops.col2im(x, (3, 4), 2, stride=0),
        lambda x: ops.col2im(ops.reshape(x, (1, 1, 4, 6)), (3, 4), 2),
        lambda x: ops.pixel_shuffle(x, 2),
        lambda x: ops.pixel_shuffle(ops.reshape(x, (6, 2, 2)), 2),
        lambda x: ops.pixel_unshuffle(ops.reshape(x, (1, 4, 6)), 4),
        lambda x: ops.pixel_unshuffle(ops.reshape(x, (1, 4, 6)), 0),
        lambda x: syno.split(x, 1, 4),
        lambda x: syno.split(x, 2, 1),
        lambda x: syno.merge(x, 1),
        lambda x: syno.stride(x, 1, 4),
        lambda x: syno.unfold(x, 1, 0),
    ],
)
def test_what_does_not_fit_is_a_shape_error(build: Callable[[E.Expr], E.Expr]) -> None:
    with pytest.raises(ShapeError) as caught:
        build(E.input("x", (4, 6)))
    assert caught.value.what and caught.value.got and caught.value.expected


# ---- Syno's primitives: Table 1, from the top down ---------------------------------------------

X = np.random.default_rng(0).standard_normal((4, 6))


def value(expr: E.Expr) -> np.ndarray:
    return np.asarray(evaluate(expr.tensor, {"x": X}))


def by_points(shape: tuple[int, ...], read: Callable[..., float]) -> np.ndarray:
    result = np.zeros(shape)
    for point in itertools.product(*map(range, shape)):
        result[point] = read(*point)
    return result


PRIMITIVES: dict[str, tuple[Callable[[E.Expr], E.Expr], tuple[int, ...], Callable[..., float]]] = {
    "split": (lambda x: syno.split(x, 1, 2), (4, 3, 2), lambda n, i, j: X[n, 2 * i + j]),
    "merge": (lambda x: syno.merge(x, 0), (24,), lambda i: X[i // 6, i % 6]),
    "shift": (lambda x: syno.shift(x, 1), (4, 6), lambda n, i: X[n, (i + 1) % 6]),
    "shift_back": (lambda x: syno.shift(x, -2, -3), (4, 6), lambda n, i: X[(n - 3) % 4, i]),
    "shift_round": (lambda x: syno.shift(x, 0, 6), (4, 6), lambda n, i: X[(n + 6) % 4, i]),
    "expand": (lambda x: syno.expand(x, 1, 3), (4, 3, 6), lambda n, _, i: X[n, i]),
    "expand_last": (lambda x: syno.expand(x, -1, 2), (4, 6, 2), lambda n, i, _: X[n, i]),
    "stride": (lambda x: syno.stride(x, 1, 3), (4, 2), lambda n, i: X[n, 3 * i]),
    **{
        f"unfold_{k}": (
            lambda x, k=k: syno.unfold(x, 1, k),
            (4, 6, k),
            # 0 outside: an index below 0 would count from the end in NumPy.
            lambda n, i, j, k=k: X[n, i + j - k // 2] if 0 <= i + j - k // 2 < 6 else 0.0,
        )
        for k in (1, 2, 3, 4, 9)
    },
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_is_what_table_1_says(name: str) -> None:
    build, shape, read = PRIMITIVES[name]
    expr = build(E.input("x", X.shape, "float64"))
    assert expr.shape == shape
    np.testing.assert_array_equal(value(expr), by_points(shape, read))


def test_primitives_beside_torchs_functions_of_other_names() -> None:
    """The table in the docstring of ``ops.syno``."""
    x = E.input("x", X.shape, "float64")
    t = torch.as_tensor(X)
    for ours, theirs in (
        (syno.split(x, 1, 2), t.unflatten(1, (-1, 2))),
        (syno.merge(x, 0), t.flatten(0, 1)),
        (syno.shift(x, 1, 2), t.roll(-2, 1)),
        (syno.expand(x, 1, 3), t.unsqueeze(1).expand(4, 3, 6)),
        (syno.unfold(x, 0, 3), F.pad(t, (0, 0, 1, 1)).unfold(0, 3, 1).transpose(1, 2)),
        (syno.unfold(x, 0, 4), F.pad(t, (0, 0, 2, 1)).unfold(0, 4, 1).transpose(1, 2)),
        (syno.stride(x, 1, 2), t[:, ::2]),
    ):
        np.testing.assert_array_equal(value(ours), theirs.numpy())


@pytest.mark.parametrize("name", syno.__all__)
def test_every_primitive_has_a_line_in_the_table_of_names(name: str) -> None:
    assert f"``{name}" in (syno.__doc__ or "")
