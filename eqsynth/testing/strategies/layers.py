"""The lines of random torch modules, by the shape and dtype of the value that they read.

A builder takes the module so far and the name of a value, and returns code: ``"v0"`` ->
``"self.l1(v0)"``. If torch refuses the code, for an empty tensor or a dtype, the line isn't added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from eqsynth.testing.strategies.growing import Growing, Line

# Elementwise lines on floats. A function that isn't defined everywhere gets arguments on which it
# is (``log(x^2 + 1)``).
POINTWISE = (
    "F.relu({x})", "-{x}", "torch.abs({x})", "{x} + 0.5", "{x} * 2", "1 - {x}", "{x} / 3",
    "torch.tanh({x})", "torch.sigmoid({x})", "F.gelu({x})", "F.gelu({x}, approximate='tanh')",
    "F.silu({x})", "F.elu({x})", "F.leaky_relu({x}, 0.1)", "F.softplus({x})", "F.mish({x})",
    "F.hardswish({x})", "F.hardsigmoid({x})", "F.hardtanh({x})", "F.relu6({x})", "F.selu({x})",
    "F.celu({x})", "F.logsigmoid({x})", "F.softsign({x})", "F.threshold({x}, 0.1, 0.0)",
    "torch.sign({x})", "torch.square({x})", "torch.pow({x}, 3)", "torch.exp(-torch.abs({x}))",
    "torch.sqrt(torch.abs({x}))", "torch.log(torch.square({x}) + 1)",
    "torch.rsqrt(torch.square({x}) + 1)", "1 / (1 + torch.abs({x}))", "torch.erf({x})",
    "torch.sin({x})", "torch.cos({x})", "torch.floor({x})", "torch.ceil({x})",
    "torch.clamp({x}, -1.0, 1.0)", "torch.clamp({x}, min=0.0)", "torch.where({x} > 0, {x}, 0.5)",
    "{x}.masked_fill({x} < 0, 0.0)", "F.dropout({x}, 0.5, self.training)", "{x}.clone()",
    "torch.isnan({x})", "{x} > 0", "{x} == {x}", "torch.zeros_like({x})", "{x}.to(torch.int64)",
    "{x}.to(torch.float32)", "{x}.to(torch.float64)", "torch.full_like({x}, 0.5) * {x}",
)  # fmt: skip

# Lines on integers.
INTEGRAL = (
    "{x} + 1", "{x} * 2", "-{x}", "{x} * {x}", "{x} // 2", "{x} % 3", "{x} > 1", "{x} == 0",
    "{x}.to(torch.float32)", "{x}.to(torch.int32)", "{x}.bool()", "torch.clamp({x}, 0, 2)",
    "torch.maximum({x}, {x} * 2)", "torch.abs({x})", "{x} & 1", "{x} / 2",
)  # fmt: skip

# Lines on bools.
LOGICAL = (
    "~{x}", "{x} & ~{x}", "{x} | {x}", "{x} ^ True", "{x}.to(torch.float32)", "{x}.to(torch.int64)",
    "torch.where({x}, 1.0, -1.0)", "torch.any({x})", "torch.all({x}, {axis})",
)  # fmt: skip

# Operators without an entry in eqsynth: they stay opaque, or torch decomposes them.
OPAQUE = (
    "torch.cumsum({x}, {axis})", "torch.sort({x}, {axis}).values", "torch.atan({x})",
    "torch.topk({x}, 1, {axis}).values", "torch.median({x}, {axis}).values",
    "torch.fft.rfft({x}, dim={axis}).abs()", "torch.cummax({x}, {axis})[0]", "torch.asinh({x})",
    "torch.logcumsumexp({x}, {axis})", "torch.special.i0e({x})", "torch.erfc({x})",
    "torch.argmax({x}, {axis})", "torch.expm1(-torch.abs({x}))", "torch.log1p(torch.abs({x}))",
    "F.normalize({x}, dim={axis})", "torch.cumprod({x}, {axis})", "torch.round({x})",
    "torch.atan2({x}, {x} + 1)", "torch.trapezoid({x}, dim={axis})", "torch.fmod({x}, 2)",
)  # fmt: skip

REDUCTIONS = (
    "{x}.sum({axis})", "{x}.sum()", "{x}.mean({axis}, keepdim=True)", "{x}.mean()",
    "{x}.amax({axis})", "{x}.amin({axis}, keepdim=True)", "{x}.max({axis}).values", "{x}.min()",
    "{x}.prod({axis})", "{x}.var({axis}, unbiased=False)", "{x}.std({axis}, unbiased=False)",
    "torch.logsumexp({x}, {axis})", "torch.linalg.vector_norm({x}, dim={axis})",
    "torch.softmax({x}, {axis})", "F.log_softmax({x}, {axis})", "torch.any({x} > 0, {axis})",
    "{x}.abs().sum({axis}, keepdim=True)", "{x}.norm(1, {axis})", "F.softmin({x}, {axis})",
)  # fmt: skip

SHAPES = (
    "{x}.flatten()", "{x}.unsqueeze({axis})", "{x}.squeeze()", "{x}.squeeze({axis})",
    "{x}.transpose({axis}, {axis})", "{x}.flip({axis})", "torch.roll({x}, 1, {axis})",
    "{x}.narrow({axis}, 0, 1)", "torch.cat([{x}, {x}], {axis})", "torch.stack([{x}, {x}], {axis})",
    "{x}[..., ::2]", "{x}[..., 1:]", "{x}[0]", "{x}[..., -1]", "{x}[None]", "F.pad({x}, (1, 0))",
    "F.pad({x}, (0, 1), value=1.0)", "F.pad({x}, (-1, 1))", "{x}.repeat_interleave(2, {axis})",
    "{x}.unfold({axis}, 1, 1)", "{x}.unfold({axis}, 2, 1)", "{x}.expand(2, *{x}.shape)",
    "torch.tile({x}, (2,))", "torch.diff({x}, dim={axis})", "{x}.reshape(-1)",
    "{x}.index_select({axis}, torch.tensor([0, 0]))", "{x}[torch.tensor([0])]",
    "F.pad({x}, (1, 1), mode='replicate')", "F.pad({x}, (1, 1), mode='reflect')",
)  # fmt: skip

MATRICES = (
    "{x} @ {x}.mT", "{x}.mT @ {x}", "torch.tril({x})", "torch.triu({x}, 1)", "{x}.mT",
    "torch.diagonal({x}, 0, -2, -1)", "torch.softmax({x} @ {x}.mT, -1) @ {x}",
    "F.scaled_dot_product_attention({x}, {x}, {x})", "torch.einsum('...ij,...kj->...ik', {x}, {x})",
    "({x} @ {x}.mT) @ {x}", "torch.einsum('...ij->...j', {x})",
)  # fmt: skip

IMAGES = (
    "F.interpolate({x}, scale_factor=2.0)", "F.adaptive_avg_pool2d({x}, 1)",
    "F.adaptive_max_pool2d({x}, 1)", "F.adaptive_avg_pool2d({x}, (2, 1))",
    "F.interpolate({x}, scale_factor=2.0, mode='bilinear')", "F.unfold({x}, 2, padding=1)",
    "F.pixel_unshuffle({x}, 2)", "F.lp_pool2d({x}.abs(), 2, 1)", "{x}.mean((2, 3))",
    "{x}.flatten(1)", "{x}.flatten(2).transpose(1, 2)", "F.pad({x}, (1, 0, 0, 1))",
    "F.interpolate({x}, size=(3, 2), mode='bicubic')", "F.instance_norm({x})",
    "F.local_response_norm({x}, 2)", "F.pad({x}, (1, 1, 1, 1), mode='circular')",
)  # fmt: skip


# Lines on integers and bools of rank 0.
_NUMBERS = ("{x} + {x}", "{x} == 0", "{x}.to(torch.float32)", "torch.maximum({x}, {x})")


def of(templates: Sequence[str]) -> Line:
    """A builder that fills in one of the templates: ``{x}`` is the value, ``{axis}`` an axis."""

    def build(g: Growing, x: str) -> str:
        code: str = g.pick(templates)
        while "{axis}" in code:
            code = code.replace("{axis}", str(g.axis(x)), 1)
        return code.replace("{x}", x)

    return build


def _shape(g: Growing, x: str) -> list[int]:
    return list(g.values[x].shape)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, max(n, 1) + 1) if n % d == 0]


def linear(g: Growing, x: str) -> str:
    bias = ", bias=False" if g.coin() else ""
    return g.layer(f"nn.Linear({_shape(g, x)[-1]}, {g.number(1, 4)}{bias})") + f"({x})"


def same_linear(g: Growing, x: str) -> str:
    """A layer whose result has the shape of its argument, so that it may be applied again."""
    return g.layer(f"nn.Linear({(n := _shape(g, x)[-1])}, {n})") + f"({x})"


def tied_linear(g: Growing, x: str) -> str:
    """A weight that is used twice, once transposed."""
    weight = g.parameter(g.number(1, 4), _shape(g, x)[-1])
    return f"F.linear(F.linear({x}, {weight}), {weight}.T)"


def layer_norm(g: Growing, x: str) -> str:
    axes = g.number(1, len(_shape(g, x)))
    plain = ", elementwise_affine=False" if g.coin() else ""
    shape = tuple(_shape(g, x)[-axes:])
    return g.layer(f"nn.LayerNorm({shape if axes > 1 else shape[0]}{plain})") + f"({x})"


def rms_norm(g: Growing, x: str) -> str:
    return f"F.rms_norm({x}, ({_shape(g, x)[-1]},), {g.parameter(_shape(g, x)[-1])})"


def batch_norm(g: Growing, x: str) -> str:
    rank, channels = len(_shape(g, x)), _shape(g, x)[1]
    return g.layer(f"nn.BatchNorm{2 if rank == 4 else 1}d({channels})") + f"({x})"


def group_norm(g: Growing, x: str) -> str:
    channels = _shape(g, x)[1]
    groups = g.pick(_divisors(channels))
    return g.layer(f"nn.GroupNorm({groups}, {channels})") + f"({x})"


def _options(g: Growing, most: int, *names: str) -> str:
    """Code of keyword arguments, without those that have their default: 0 for padding, else 1."""
    found = [(name, g.number(0, most) + (name != "padding")) for name in names]
    given = [f", {name}={n}" for name, n in found if n != (name != "padding")]
    return "".join(given)


def convolution(g: Growing, x: str) -> str:
    shape = _shape(g, x)
    channels, axes = shape[1], len(shape) - 2
    groups = g.pick(_divisors(channels))
    kernel = g.number(1, 3)
    options = _options(g, 1, "padding", "stride", "dilation")
    options += f", groups={groups}" if groups > 1 else ""
    options += ", bias=False" if g.coin() else ""
    filters = groups * g.number(1, 3)
    return g.layer(f"nn.Conv{axes}d({channels}, {filters}, {kernel}{options})") + f"({x})"


def rectangular_convolution(g: Growing, x: str) -> str:
    channels, (high, wide) = _shape(g, x)[1], (g.number(1, 3), g.number(1, 3))
    padding = "'same'" if g.coin() else f"({high // 2}, {wide // 2})"
    code = f"nn.Conv2d({channels}, {g.number(1, 3)}, ({high}, {wide}), padding={padding})"
    return g.layer(code) + f"({x})"


def up_convolution(g: Growing, x: str) -> str:
    shape = _shape(g, x)
    kernel, options = g.number(1, 3), _options(g, 1, "stride", "padding")
    code = f"nn.ConvTranspose{len(shape) - 2}d({shape[1]}, {g.number(1, 2)}, {kernel}{options})"
    return g.layer(code) + f"({x})"


def pooling(g: Growing, x: str) -> str:
    kind, axes = g.pick(["max", "avg"]), len(_shape(g, x)) - 2
    kernel = g.number(1, 3)
    options = f", stride={g.number(1, 2)}" if g.coin() else ""
    options += ", padding=1" if kernel > 1 and g.coin() else ""
    options += ", ceil_mode=True" if g.coin() else ""
    return f"F.{kind}_pool{axes}d({x}, {kernel}{options})"


def reshape(g: Growing, x: str) -> str:
    size, shape = g.values[x].numel(), list[int]()
    while size > 1 and len(shape) < 3:
        shape.append(g.pick(_divisors(size)))
        size //= shape[-1]
    return f"{x}.reshape{(*shape, size)}".replace(",)", ")")


def permute(g: Growing, x: str) -> str:
    order = tuple(g.draw(st.permutations(range(len(_shape(g, x))))))
    return f"{x}.permute({', '.join(map(str, order))})"


def chunks(g: Growing, x: str) -> str:
    """The two halves of a tensor, added, multiplied or subtracted, as in a gated unit."""
    shape, axis = _shape(g, x), g.axis(x)
    even = [a for a, extent in enumerate(shape) if extent % 2 == 0 and extent]
    if not even:
        return f"torch.cat([{x}, -{x}], {axis})"
    first, second = (f"{x}.chunk(2, {(a := g.pick(even))})[0]", f"{x}.chunk(2, {a})[1]")
    return f"{first} {g.pick(['+', '*', '-'])} {second}"


def scaled(g: Growing, x: str) -> str:
    """A sum or product with a parameter of the shape of the last axes, some of extent 1."""
    shape = _shape(g, x)[-g.number(1, len(_shape(g, x))) :]
    shape = [extent if g.coin() else 1 for extent in shape]
    return f"{x} {g.pick(['+', '*', '-'])} {g.parameter(*shape)}"


def projected(g: Growing, x: str) -> str:
    """A matrix product with a parameter, on the right or on the left."""
    shape = _shape(g, x)
    if g.coin():
        return f"{x} @ {g.parameter(shape[-1], g.number(1, 3))}"
    return f"{g.parameter(g.number(1, 3), shape[-2])} @ {x}"


def attention(g: Growing, x: str) -> str:
    """Attention between three linear layers of one value, by torch's operator or written out."""
    n, m = _shape(g, x)[-1], g.number(1, 3)
    q, k, v = (g.layer(f"nn.Linear({n}, {m}, bias=False)") + f"({x})" for _ in range(3))
    if g.coin():
        return f"F.scaled_dot_product_attention({q}, {k}, {v})"
    scores = f"{q} @ {k}.mT" + (f" / {math.sqrt(m):.6g}" if g.coin() else "")
    return f"{f'torch.softmax({scores}, -1)' if g.coin() else f'({scores})'} @ {v}"


def heads(g: Growing, x: str) -> str:
    n = _shape(g, x)[-1]
    count = g.pick(_divisors(n))
    layer = g.layer(f"nn.MultiheadAttention({n}, {count}, batch_first=True)")
    return f"{layer}({x}, {x}, {x})[0]"


def recurrent(g: Growing, x: str) -> str:
    layer = g.layer(f"nn.GRU({_shape(g, x)[-1]}, {g.number(1, 2)}, batch_first=True)")
    return f"{layer}({x})[0]"


def looked_up(g: Growing, x: str) -> str:
    """Rows of a value, at positions that are an argument."""
    extent = _shape(g, x)[0]
    at = g.argument((g.number(1, 3),), "int64", below=extent)
    forms = [f"{x}[{at}]", f"{x}.index_select(0, {at})", f"F.embedding({at}, {x})"]
    return str(g.pick(forms))


def gathered(g: Growing, x: str) -> str:
    shape, axis = _shape(g, x), g.number(0, len(_shape(g, x)) - 1)
    at = g.argument([*shape[:axis], g.number(1, 3), *shape[axis + 1 :]], "int64", below=shape[axis])
    return f"torch.gather({x}, {axis}, {at})"


def embedded(g: Growing, x: str) -> str:
    """Rows of an embedding, at positions computed from the value, modulo the number of rows."""
    rows = g.number(1, 4)
    table = g.layer(f"nn.Embedding({rows}, {g.number(1, 3)})")
    return f"{table}({x}.to(torch.int64) % {rows})"


def combined(g: Growing, x: str) -> str:
    """An elementwise operator on this value and another one: a residual, a gate, a comparison."""
    fitting = [y for y in g.values if y != x and _fits(g.values[x], g.values[y])]
    y = g.pick(fitting) if fitting else x
    form = g.pick(["{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "{} < {}",
                   "torch.minimum({}, {})", "{} / (1 + torch.abs({}))", "torch.lerp({}, {}, 0.3)",
                   "torch.where({} > 0, {}, 0.0)"])  # fmt: skip
    return str(form.format(*((y, x) if g.coin() else (x, y))))


def _fits(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = zip(a.shape[::-1], b.shape[::-1], strict=False)
    return a.dtype == b.dtype and all(m == n or 1 in (m, n) for m, n in pairs)


def joined(g: Growing, x: str) -> str:
    """A concatenation or a matrix product with another value whose shape fits."""
    mine = g.values[x]
    options = [f"torch.cat([{x}, {x}], -1)"]
    for y, other in g.values.items():
        if other.dtype != mine.dtype or other.dim() != mine.dim():
            continue
        if mine.shape[:-1] == other.shape[:-1]:
            options.append(f"torch.cat([{x}, {y}], -1)")
        if mine.dim() > 1 and mine.shape[-1] == other.shape[-2]:
            options.append(f"{x} @ {y}")
        if mine.dim() > 1 and mine.shape[-1] == other.shape[-1]:
            options.append(f"{x} @ {y}.mT")
    return str(g.pick(options))


def bilinear(g: Growing, x: str) -> str:
    n = _shape(g, x)[-1]
    return g.layer(f"nn.Bilinear({n}, {n}, {g.number(1, 2)})") + f"({x}, {x})"


_FLOAT: Sequence[Line] = (
    of(POINTWISE), linear, of(REDUCTIONS), of(SHAPES), combined, combined, same_linear, scaled,
    layer_norm, reshape, permute, chunks, joined, tied_linear, of(OPAQUE), looked_up, gathered,
    embedded, rms_norm, bilinear,
)  # fmt: skip
_MATRIX: Sequence[Line] = (of(MATRICES), projected, attention)
_SEQUENCE: Sequence[Line] = (convolution, pooling, heads, recurrent, up_convolution)
_IMAGE: Sequence[Line] = (
    convolution, pooling, of(IMAGES), convolution, rectangular_convolution, up_convolution,
)  # fmt: skip
_CHANNELS: Sequence[Line] = (batch_norm, group_norm)
_INTEGER: Sequence[Line] = (of(INTEGRAL), embedded, of(SHAPES), of(REDUCTIONS), combined, permute)
_BOOL: Sequence[Line] = (of(LOGICAL), of(SHAPES), permute, reshape)


def lines_of(value: torch.Tensor) -> Sequence[Line]:
    """The builders of lines for a value of this shape and dtype."""
    rank, dtype = value.dim(), value.dtype
    if rank == 0:
        return (of(POINTWISE if dtype.is_floating_point else _NUMBERS), combined)
    if dtype == torch.bool:
        return _BOOL
    if not dtype.is_floating_point:
        return _INTEGER
    more: list[Line] = [*_FLOAT]
    more += _MATRIX if rank >= 2 else ()
    more += _SEQUENCE if rank == 3 else ()
    more += [*_IMAGE, *_IMAGE] if rank == 4 else ()
    more += _CHANNELS if rank >= 2 else ()
    return more
