"""Every operator of the ATen table, alone: same shape, dtype and values as torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eqsynth.frontend.aten import TABLE
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op, topological
from eqsynth.ir.tensor import Tensor as TermOf


def _operands() -> dict[str, Tensor]:
    """What the cases are made of, by the names of their parameters."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    return {
        "x": normal(2, 3, 4),
        "y": normal(2, 3, 4),
        "p": normal(2, 3, 4).abs() + 0.1,
        "row": normal(4),
        "m": normal(3, 4),
        "k": normal(4, 5),
        "img": normal(2, 4, 7, 6),
        "w": normal(6, 4, 3, 3),
        "wg": normal(6, 2, 3, 3),
        "wt": normal(4, 3, 3, 3),
        "sig": normal(2, 4, 9),
        "w1": normal(6, 4, 3),
        "c": normal(4).abs() + 0.2,
        "f": normal(6),
        "i": torch.randint(-5, 6, (2, 3, 4), generator=g),
        "i32": torch.randint(1, 6, (2, 3, 4), generator=g, dtype=torch.int32),
        "u8": torch.randint(0, 9, (2, 3, 4), generator=g, dtype=torch.uint8),
        "b": torch.randint(0, 2, (2, 3, 4), generator=g) > 0,
        "h": normal(2, 3, 4).half(),
        "bf": normal(3, 4).bfloat16(),
        "d": normal(3, 4).double(),
        "s": torch.tensor(1.5),
        "sd": torch.tensor(1.5, dtype=torch.float64),
        "ids": torch.tensor([[0, 2], [1, 1]]),
        "neg": torch.tensor([0, -1, 1]),
        "at": torch.randint(0, 3, (2, 2, 4), generator=g),
        "q": normal(2, 2, 5, 4),
        "mask": torch.tensor([[True, False, True, True, False]] * 4 + [[False] * 5]),
    }


CASES: dict[str, Callable[..., Any]] = {
    # elementwise
    "relu": lambda x: torch.relu(x),
    "relu_int": lambda i: torch.relu(i),
    "exp": lambda x: x.exp(),
    "exp_int": lambda i: i.exp(),
    "log": lambda p: p.log(),
    "sqrt": lambda p: p.sqrt(),
    "rsqrt": lambda p: p.rsqrt(),
    "reciprocal": lambda p: p.reciprocal(),
    "reciprocal_int": lambda i32: i32.reciprocal(),
    "abs": lambda x: x.abs(),
    "sign": lambda x: x.sign(),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "erf": lambda x: x.erf(),
    "exp2": lambda x: x.exp2(),
    "log2": lambda p: p.log2(),
    "log10": lambda p: p.log10(),
    "neg": lambda x: -x,
    "sgn": lambda x: torch.sgn(x),
    "add": lambda x, row: x + row,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2),
    "add_scalar": lambda x: x + 2,
    "add_float_to_int": lambda i: i + 0.5,
    "add_int_to_bool": lambda b: b + 1,
    "sub": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub": lambda x: 1 - x,
    "mul": lambda x, s: x * s,
    "mul_rank0_double": lambda x, sd: x * sd,
    "mul_int_rank0": lambda i, s: i * s,
    "mul_half_float": lambda h, row: h * row,
    "mul_half_scalar": lambda h: h * 1.5,
    "mul_half_bfloat": lambda h, bf: h[0] * bf,
    "mul_double": lambda m, d: m * d,
    "mul_u8_i32": lambda u8, i32: u8 * i32,
    "div": lambda x, p: x / p,
    "div_int": lambda i, i32: i / i32,
    "div_scalar": lambda x: x / 3,
    "div_floor": lambda x, p: torch.div(x, p, rounding_mode="floor"),
    "div_floor_int": lambda i, i32: i // i32,
    "div_trunc": lambda x, p: torch.div(x, p, rounding_mode="trunc"),
    "div_trunc_int": lambda i, i32: torch.div(i, i32, rounding_mode="trunc"),
    "remainder": lambda x, p: x % p,
    "remainder_int": lambda i: i % 3,
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda p: p**0.5,
    "pow_minus_half": lambda p: p**-0.5,
    "pow_minus_1": lambda p: p**-1,
    "pow_other": lambda p: p**1.7,
    "pow_tensor": lambda p, x: p**x,
    "pow_base": lambda x: 2**x,
    "pow_int": lambda i: i**2,
    "pow_int_float": lambda i32: i32**2.0,
    "square": lambda x: x.square(),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "max_other": lambda x, y: torch.max(x, y),
    "min_other": lambda x, y: torch.min(x, y),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda i: i.clamp(max=2),
    "clamp_tensor": lambda x, row: torch.clamp(x, max=row),
    "where": lambda b, x, y: torch.where(b, x, y),
    "where_scalar": lambda b, x: torch.where(b, x, 0.0),
    "where_promotes": lambda b, x, i: torch.where(b, x, i),
    "masked_fill": lambda x, b: x.masked_fill(b, -math.inf),
    "masked_fill_int": lambda i, b: i.masked_fill(b, 7),
    "masked_fill_tensor": lambda x, b, s: x.masked_fill(b, s),
    **{
        f"{name}{suffix}": case
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for suffix, case in (
            ("", lambda i, i32, name=name: getattr(torch, name)(i, i32)),
            ("_scalar", lambda x, name=name: getattr(torch, name)(x, 0.5)),
        )
    },
    "logical_and": lambda b, i: torch.logical_and(b, i),
    "logical_or": lambda b, x: torch.logical_or(b, x > 0),
    "logical_xor": lambda b, x: torch.logical_xor(b, x > 0),
    "logical_not": lambda i: torch.logical_not(i),
    "bitwise": lambda b, x: (b & (x > 0)) | ~b ^ (x > 1),
    "isnan": lambda x, p: torch.isnan((x - x) / (p - p)),
    "isinf": lambda p: torch.isinf(p / (p - p)),
    # activations
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: F.silu(x),
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu6": lambda x: F.relu6(4 * x),
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.6),
    "hardsigmoid": lambda x: F.hardsigmoid(3 * x),
    "hardswish": lambda x: F.hardswish(3 * x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": lambda x: F.selu(x),
    "celu": lambda x: F.celu(x, 1.3),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4),
    "prelu": lambda img, c: F.prelu(img, c),
    "prelu_one": lambda img, s: F.prelu(img, s[None]),
    "softplus": lambda x: F.softplus(x, 2.0, 1.0),
    "softplus_large": lambda x: F.softplus(100 * x),
    "mish": lambda x: F.mish(x),
    "glu": lambda x: F.glu(x, -1),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "threshold": lambda x: F.threshold(x, 0.3, -2.0),
    "addcmul": lambda x, y, p: torch.addcmul(x, y, p, value=0.5),
    "addcdiv": lambda x, y, p: torch.addcdiv(x, y, p),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    # products
    "matmul": lambda x, k: x @ k,
    "matmul_batch": lambda q: q @ q.mT,
    "matmul_broadcast": lambda m, q: m @ q.transpose(-1, -2),
    "matvec": lambda m, row: m @ row,
    "vecmat": lambda row, k: row @ k,
    "matvec_batch": lambda x, row: x @ row,
    "vecmat_batch": lambda row, q: row @ q.mT,
    "dot": lambda row: row @ row,
    "mm": lambda m, k: torch.mm(m, k),
    "mv": lambda m, row: torch.mv(m, row),
    "bmm": lambda x, y: torch.bmm(x, y.mT),
    "outer": lambda row, f: torch.outer(row, f),
    "addmm": lambda k, m: torch.addmm(k[:1], m, k, beta=0.5, alpha=2),
    "addmm_beta0": lambda k, m: torch.addmm(k[:1] / 0, m, k, beta=0),
    "addmv": lambda m, row: torch.addmv(row[:3], m, row),
    "baddbmm": lambda x, y: torch.baddbmm(x[:, :, :3], x, y.mT),
    "linear": lambda x, m, row: F.linear(x, m, row[:3]),
    "linear_vector": lambda row, m: F.linear(row, m),
    "einsum": lambda x, k: torch.einsum("bij,jk->bki", x, k),
    "einsum_trace": lambda q: torch.einsum("...ij,...kj->...ik", q, q),
    "einsum_three": lambda x, m, k: torch.einsum("bij,ij,jk->bk", x, m, k),
    "attention": lambda q: F.scaled_dot_product_attention(q, q, q),
    "attention_causal": lambda q: F.scaled_dot_product_attention(q, q + 1, q, is_causal=True),
    "attention_scale": lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3),
    "attention_mask": lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask),
    "attention_bias": lambda q, mask: F.scaled_dot_product_attention(
        q, q, q, attn_mask=torch.where(mask, 0.5, -math.inf)
    ),
    "attention_gqa": lambda q: F.scaled_dot_product_attention(
        q.repeat(1, 2, 1, 1), q, q, enable_gqa=True
    ),
    # convolutions
    "conv2d": lambda img, w, f: F.conv2d(img, w, f, padding=1),
    "conv2d_stride": lambda img, w: F.conv2d(img, w, stride=(2, 1), dilation=(1, 2)),
    "conv2d_groups": lambda img, wg: F.conv2d(img, wg, groups=2),
    "conv2d_same": lambda img, w: F.conv2d(img, w, padding="same", dilation=2),
    "conv2d_same_even": lambda img, w: F.conv2d(img, w[:, :, :2, :2], padding="same"),
    "conv2d_valid": lambda img, w: F.conv2d(img, w, padding="valid"),
    "conv2d_unbatched": lambda img, w, f: F.conv2d(img[0], w, f),
    "conv1d": lambda sig, w1, f: F.conv1d(sig, w1, f, stride=2, padding=1),
    "conv1d_same": lambda sig, w1: F.conv1d(sig, w1, padding="same"),
    "conv1d_unbatched": lambda sig, w1: F.conv1d(sig[0], w1),
    "conv_transpose2d": lambda img, wt: F.conv_transpose2d(
        img, wt, stride=2, padding=1, output_padding=1
    ),
    "conv_transpose2d_groups": lambda img, wt, f: F.conv_transpose2d(
        img, wt, f, groups=2, dilation=2
    ),
    "conv_transpose1d": lambda sig, w1: F.conv_transpose1d(sig, w1[:4], stride=3, padding=1),
    "convolution": lambda img, w: torch.convolution(
        img, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1
    ),
    "convolution_transposed": lambda sig, w1: torch.convolution(
        sig, w1[:4], None, (2,), (1,), (1,), True, (1,), 1
    ),
    # normalization
    "softmax": lambda x: torch.softmax(x, -2),
    "softmax_dtype": lambda h: torch.softmax(h, -1, dtype=torch.float32),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x * 1000, (0, 2)),
    "logsumexp_infinite": lambda x: torch.logsumexp(x.masked_fill(x[0] > -9, -math.inf), -1),
    "layer_norm": lambda x, m: F.layer_norm(x, (3, 4), m, m, 1e-3),
    "layer_norm_plain": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda img, c: F.group_norm(img, 2, c, c),
    "instance_norm": lambda img, c: F.instance_norm(img, None, None, c, c),
    "instance_norm_running": lambda img, c: F.instance_norm(img, c, c, use_input_stats=False),
    "batch_norm": lambda img, c: F.batch_norm(img, -c, c, c / 2, c - 1, eps=1e-2),
    "batch_norm_plain": lambda img, c: F.batch_norm(img, -c, c),
    "batch_norm_1d": lambda m, row: F.batch_norm(m, row, row.abs() + 1, row, row),
    "batch_norm_over_batch": lambda img, c: F.batch_norm(img, None, None, c, c, training=True),
    # reductions
    "sum": lambda x: x.sum(),
    "sum_dims": lambda x: x.sum((0, -1), keepdim=True),
    "sum_int": lambda i32: i32.sum(1),
    "sum_bool": lambda b: b.sum(0),
    "sum_dtype": lambda x: x.sum(0, dtype=torch.float64),
    "sum_rank0": lambda s: s.sum(),
    "prod": lambda x: x.prod(1),
    "prod_int": lambda i32: i32[0, 0].prod(),
    "mean": lambda x: x.mean(),
    "mean_dims": lambda x: x.mean((-1, 0)),
    "mean_dtype": lambda i: i.mean(0, dtype=torch.float32),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1), True),
    "max": lambda x: x.max(),
    "min_int": lambda i: i.min(),
    "max_dim": lambda x: x.max(1)[0],
    "min_dim": lambda x: x.min(-1, keepdim=True).values,
    "any": lambda b: b.any(1),
    "any_all": lambda i: (i > 99).any(),
    "all": lambda i: i.all(-1),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1, unbiased=False),
    "var_correction": lambda x: x.var((0, 2), correction=2, keepdim=True),
    "std": lambda x: x.std(-1),
    "std_all": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, (0, 2), keepdim=True),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf),
    "normalize": lambda x: F.normalize(x, dim=1),
    # pooling
    "max_pool2d": lambda img: F.max_pool2d(img, 3, 2, 1),
    "max_pool2d_negative": lambda p: F.max_pool2d(-p, 3, 1, 1),
    "max_pool2d_dilation": lambda img: F.max_pool2d(img, (2, 3), 1, 0, 2),
    "max_pool2d_ceil": lambda img: F.max_pool2d(img, 2, 2, ceil_mode=True),
    "max_pool2d_ceil_pad": lambda img: F.max_pool2d(img, 3, 2, 1, ceil_mode=True),
    "max_pool2d_ceil_outside": lambda img: F.max_pool2d(img, 2, 4, 1, ceil_mode=True),
    "max_pool2d_unbatched": lambda img: F.max_pool2d(img[0], 2),
    "avg_pool2d": lambda img: F.avg_pool2d(img, 3, 1, 1),
    "avg_pool2d_exclude": lambda img: F.avg_pool2d(img, 3, 2, 1, count_include_pad=False),
    "avg_pool2d_divisor": lambda img: F.avg_pool2d(img, 3, divisor_override=5),
    "avg_pool2d_ceil_fits": lambda img: F.avg_pool2d(img[:, :, :6], 2, ceil_mode=True),
    "adaptive_avg_pool2d_1": lambda img: F.adaptive_avg_pool2d(img, 1),
    "adaptive_avg_pool2d": lambda img: F.adaptive_avg_pool2d(img[:, :, :6], (3, 2)),
    "adaptive_avg_pool2d_same": lambda img: F.adaptive_avg_pool2d(img, (7, 6)),
    "adaptive_max_pool2d": lambda img: F.adaptive_max_pool2d(img[:, :, :6], (3, 2)),
    # interpolation
    "bilinear": lambda img: F.interpolate(img, (10, 9), mode="bilinear"),
    "bilinear_corners": lambda img: F.interpolate(
        img, (10, 9), mode="bilinear", align_corners=True
    ),
    "bilinear_scale": lambda img: F.interpolate(img, scale_factor=2, mode="bilinear"),
    "bilinear_down": lambda img: F.interpolate(img, (3, 2), mode="bilinear"),
    "nearest": lambda img: F.interpolate(img, scale_factor=(2, 3)),
    "nearest_size": lambda img: F.interpolate(img, (14, 6)),
    # views
    "permute": lambda x: x.permute(2, 0, -2),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda m: m.t(),
    "mT": lambda x: x.mT,
    "T": lambda m: m.T,
    "movedim": lambda img: img.movedim((0, 1), (-1, 0)),
    "view": lambda x: x.view(6, -1),
    "reshape": lambda x: x.transpose(0, 1).reshape(3, 8),
    "flatten": lambda img: img.flatten(1, -2),
    "flatten_all": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "squeeze": lambda x: x[:1, None].squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0).squeeze(-1),
    "squeeze_dims": lambda x: x[:1, None].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "expand": lambda m: m.expand(2, -1, 4),
    "expand_as": lambda row, x: row.expand_as(x),
    "broadcast_to": lambda row: torch.broadcast_to(row, (3, 4)),
    "repeat": lambda m: m.repeat(2, 1, 3),
    "repeat_none": lambda m: m.repeat(1, 1),
    "repeat_interleave": lambda m: m.repeat_interleave(2, 1),
    "tile": lambda m: m.tile((2,)),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "slice": lambda x: x[:, -2:, ::3],
    "slice_empty": lambda x: x[:, 5:],
    "select": lambda x: x[:, -1],
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(2, -1)[1],
    "split_rest": lambda x: x.split(2, 1)[1],
    "split_sizes": lambda x: x.split([1, 3], -1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "tensor_split": lambda x: x.tensor_split(2, -1)[0],
    "cat": lambda x, y: torch.cat([x, y[:, :1]], 1),
    "cat_promotes": lambda x, i: torch.cat([x, i], -1),
    "cat_empty": lambda x: torch.cat([torch.empty(0), x], -1),
    "stack": lambda x, y: torch.stack([x, y], -1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1.5),
    "pad_negative": lambda x: F.pad(x, (-1, 2)),
    "roll": lambda x: x.roll((1, -2), (0, -1)),
    "roll_flat": lambda x: x.roll(5),
    "flip": lambda x: x.flip(0, -1),
    "diagonal": lambda x: x.diagonal(1, -2, -1),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "pixel_shuffle": lambda img: F.pixel_shuffle(img, 2),
    "clone": lambda x: x.clone().contiguous().detach(),
    "as_strided": lambda x: x.as_strided((3, 5), (4, 1), 2),
    # data-dependent reads
    "embedding": lambda m, ids: F.embedding(ids, m),
    "gather": lambda x, at: x.gather(1, at),
    "gather_small": lambda x, at: x.gather(1, at[:1, :, :2]),
    "index": lambda x, ids: x[:, ids],
    "index_negative": lambda x, neg: x[..., neg],
    "index_select": lambda x, ids: x.index_select(1, ids[0]),
    "index_arange": lambda x: x[:, torch.arange(2)[:, None] + torch.arange(2)],
    # dtypes
    "to_double": lambda x: x.double(),
    "to_int": lambda x: (3 * x).to(torch.int64),
    "to_bool": lambda i: i.bool(),
    "to_bfloat16": lambda x: x.bfloat16(),
    "type_as": lambda i, x: i.type_as(x),
    # constants
    "zeros_like": lambda x, i: torch.zeros_like(i) + torch.ones_like(x),
    "new_full": lambda h: h + h.new_full((4,), 2.5),
    "new_zeros": lambda x: x.new_zeros(3) + 1,
    "full": lambda x: x + torch.full((4,), 3),
    "full_like": lambda i: torch.full_like(i, 3),
    "fill": lambda x: x.clone().fill_(2.5),
    "scalar_tensor": lambda x: x + torch.scalar_tensor(2),
    "arange": lambda x: x + torch.arange(4),
    "arange_step": lambda x: torch.arange(7, 0, -2) + x[0, 0],
    "arange_float": lambda x: torch.arange(0.5, 2.5, 0.5) + x,
    "eye": lambda m: m + torch.eye(3, 4),
    "linspace": lambda x: x + torch.linspace(0, 1, 4),
    "tensor": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "bilinear_form": lambda x, y, w1, f: F.bilinear(x, y[..., :3], w1, f),
    "bilinear_form_of_vectors": lambda row, c, w1: F.bilinear(row, c[:3], w1),
}


class _Cases(torch.nn.Module):
    """One export for many cases takes a fiftieth of the time of one for each."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, operands: dict[str, Tensor]) -> dict[str, Any]:
        return {name: _apply(name, operands) for name in self.names}


def _apply(name: str, operands: dict[str, Tensor]) -> Any:
    code = CASES[name].__code__
    names = code.co_varnames[: code.co_argcount]
    return CASES[name](*(operands[n] for n in names if n in operands))


QUARTERS = 4


@dataclass(frozen=True)
class Quarter:
    """Every fourth case, and what its capture is."""

    names: list[str]
    captured: Captured

    def roots(self) -> dict[str, TermOf]:
        """The last term of each case."""
        leaves = [name for name in self.names for _ in range(2 if name == "var_mean" else 1)]
        return dict(zip(leaves, self.captured.program.outputs, strict=True))


def _quarter(number: int) -> Any:
    """One of them is in each part."""
    return pytest.param(number, marks=pytest.mark.rotating(parts=QUARTERS, together=number))


@pytest.fixture(scope="module", params=map(_quarter, range(QUARTERS)))
def quarter(request: pytest.FixtureRequest) -> Quarter:
    names = [*CASES][request.param :: QUARTERS]
    return Quarter(names, capture(_Cases(names).eval(), (_operands(),)))


def _wrong(computed: dict[str, Any]) -> dict[str, str]:
    """What isn't torch's result, by operator."""
    found = {}
    for name, result in computed.items():
        expected = _apply(name, _operands())
        try:
            torch.testing.assert_close(result, expected, rtol=2e-4, atol=2e-5, equal_nan=True)
        except AssertionError as error:
            found[name] = str(error)
    return found


def test_operators_compute_what_torch_computes(
    quarter: Quarter, run_outputs: Callable[..., list[Tensor]]
) -> None:
    computed = quarter.captured.unflatten(run_outputs(quarter.captured, _operands()))
    assert [*computed] == quarter.names and not _wrong(computed)
    one = next(n for n in quarter.names if computed[n].dtype == torch.float32)
    assert _wrong({**computed, one: computed[one] + 1e-3}).keys() == {one}


# torch raises where an integer is divided by 0, so divisions by a tensor of integers stay torch's.
LEFT_TO_TORCH = {"div_floor_int", "div_trunc_int"}


def test_no_other_case_leaves_an_opaque_operator(quarter: Quarter) -> None:
    opaque = {
        name
        for name, root in quarter.roots().items()
        if any(isinstance(term, Op) and term.name == "Opaque" for term in topological([root]))
    }
    assert opaque == LEFT_TO_TORCH.intersection(quarter.names)
    assert len(quarter.captured.opaque) == len(opaque)


def test_an_index_that_may_be_negative_counts_from_the_end(quarter: Quarter) -> None:
    """The oracle's indexing does so itself, so the values alone don't show it."""
    roots = quarter.roots()
    wanted = {"index_negative": True, "index_arange": False}
    for name in wanted.keys() & roots.keys():
        found = any(isinstance(t, Op) and t.name == "Where" for t in topological([roots[name]]))
        assert found == wanted[name], name


def test_every_operator_of_the_table_is_an_operator_of_torch() -> None:
    for key in TABLE:
        name, _, overload = key.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name)
        assert not overload or overload in packet.overloads(), key
