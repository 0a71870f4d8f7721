"""The table from ATen operators to eqsynth's operators: one entry per operator or overload.

An entry is a function. It takes the operator's arguments in the order of ATen's schema, with
tensors as :class:`Expr` and dtypes as names, and returns the result as an :class:`Expr`. It may
refuse a case by an error; the operator is then decomposed by torch, or stays opaque. A key is
``namespace::operator``, which holds for all overloads, or ``namespace::operator.overload`` for one
of them. An operator that torch defines by other operators (``layer_norm``) has an entry only if
the rules gain from seeing it as a whole.
"""

from __future__ import annotations

from typing import Final

from eqsynth.frontend import aten_entries as entries
from eqsynth.frontend import ops
from eqsynth.frontend.aten_entries import Entry
from eqsynth.frontend.ops import views
from eqsynth.frontend.ops.einsum_pairs import bilinear, einsum_in_pairs
from eqsynth.ir.functions import FUNCTIONS

# ATen operators whose entry is the function of the same name in ``ops``: the arguments agree.
_SAME: Final = (
    "relu6 neg logical_xor add sub rsub mul pow square where masked_fill clamp hardtanh "
    "hardsigmoid hardswish gelu leaky_relu prelu elu softplus "
    "mish threshold addcmul addcdiv lerp isnan isinf "
    "matmul linear addmm cumsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d "
    "scaled_dot_product_attention sum prod mean amax amin any all softmax log_softmax logsumexp "
    "max_pool2d max_pool3d avg_pool3d adaptive_avg_pool3d "
    "adaptive_avg_pool2d permute transpose t movedim flatten unflatten unsqueeze "
    "expand repeat narrow slice select unbind split chunk cat stack roll flip diagonal tril triu "
    "index_select one_hot unfold im2col col2im tile pad pixel_shuffle pixel_unshuffle "
    "slice_scatter select_scatter diagonal_scatter"
).split()

# ATen's second name of an operator -> the name of the function in ``ops``.
_ALIASES: Final = {
    "subtract": "sub", "multiply": "mul", "true_divide": "div", "log_sigmoid": "logsigmoid",
    "fix": "trunc",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "not_equal": "ne", "absolute": "abs", "negative": "neg", "sgn": "sign",
    # On bools these are the logical operators. On integers torch's result is an integer and the
    # entry's a bool; capture compares the two dtypes, and leaves the operator opaque.
    "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
    "bitwise_not": "logical_not",
}  # fmt: skip

# Operators that change how a tensor is stored, but not its elements.
_IDENTITIES: Final = "clone contiguous detach alias lift lift_fresh lift_fresh_copy".split()

TABLE: Final[dict[str, Entry]] = {
    **{f"aten::{f.aten}": getattr(ops, f.aten) for f in FUNCTIONS.values()
       if f.torch and f.aten not in ("gelu", "pow", "true_divide")},
    **{f"aten::{name}": getattr(ops, name) for name in _SAME},
    # Matrix products.
    **{f"aten::{name}": ops.matmul for name in ("mm", "bmm", "mv", "dot")},
    "aten::baddbmm": ops.addmm,
    "aten::addmv": ops.addmm,
    "aten::einsum": einsum_in_pairs,
    "aten::bilinear": bilinear,
    # Convolutions, normalization, pooling, interpolation.
    "aten::convolution": entries.convolution,
    "aten::_native_batch_norm_legit_no_training": entries.native_batch_norm,
    "aten::batch_norm": entries.batch_norm,
    "aten::native_layer_norm": entries.native_layer_norm,
    "aten::layer_norm": entries.layer_norm,
    "aten::group_norm": entries.group_norm,
    "aten::instance_norm": entries.instance_norm,
    "aten::max_pool2d_with_indices": entries.max_pool2d_with_indices,
    "aten::avg_pool2d": entries.avg_pool2d,
    "aten::max_pool3d_with_indices": lambda x, *sizes: (ops.max_pool3d(x, *sizes), None),
    "aten::_adaptive_avg_pool2d": ops.adaptive_avg_pool2d,
    "aten::_adaptive_avg_pool3d": ops.adaptive_avg_pool3d,
    "aten::adaptive_max_pool2d": lambda x, size: (ops.adaptive_max_pool2d(x, size), None),
    "aten::upsample_bilinear2d.vec": entries.upsample_bilinear2d_vec,
    "aten::upsample_bilinear2d": entries.upsample_bilinear2d,
    **entries.nearest(),
    **entries.nearest(0.5),
    # Reductions.
    "aten::max.dim": entries.max_dim,
    "aten::min.dim": entries.min_dim,
    "aten::argmax": entries.extreme_place(ops.amax),
    "aten::argmin": entries.extreme_place(ops.amin),
    "aten::max.other": ops.maximum,
    "aten::min.other": ops.minimum,
    "aten::max": ops.amax,
    "aten::min": ops.amin,
    **entries.spread(ops.var),
    **entries.spread(ops.std),
    **entries.spread(ops.var_mean),
    "aten::linalg_vector_norm": entries.vector_norm,
    "aten::_softmax": entries.softmax_half,
    "aten::_log_softmax": entries.log_softmax_half,
    # Elementwise.
    **{f"aten::{alias}": getattr(ops, name) for alias, name in _ALIASES.items()},
    "aten::clamp_min": lambda x, low: ops.clamp(x, low),
    "aten::clamp_max": lambda x, high: ops.clamp(x, None, high),
    "aten::celu": entries.celu,
    "aten::rrelu": entries.rrelu,
    "aten::glu": entries.glu,
    "aten::div": entries.div,
    "aten::divide": entries.div,
    "aten::floor_divide": entries.nonzero_divisor(ops.floor_divide),
    "aten::remainder": entries.nonzero_divisor(ops.remainder),
    # Views.
    **{f"aten::{name}": ops.reshape for name in ("view", "reshape", "_unsafe_view")},
    "aten::view.dtype": lambda x, dtype: (
        x if x.dtype == dtype else entries.refuse("bits read as another dtype", dtype, x.dtype)
    ),
    "aten::view_as": lambda x, other: ops.reshape(x, other.shape),
    "aten::reshape_as": lambda x, other: ops.reshape(x, other.shape),
    "aten::expand_as": lambda x, other: ops.expand(x, other.shape),
    "aten::broadcast_to": ops.expand,
    "aten::numpy_T": lambda x: ops.permute(x, range(x.ndim)[::-1]),
    "aten::mT": lambda x: ops.transpose(x, -2, -1),
    "aten::squeeze": entries.squeeze,
    "aten::as_strided": views.as_strided,
    "aten::as_strided_copy": views.as_strided,
    "aten::split_with_sizes": ops.split,
    "aten::concat": ops.cat,
    "aten::constant_pad_nd": entries.constant_pad,
    **{f"aten::{name}": entries.identity for name in _IDENTITIES},
    # Writes into parts of a tensor.
    "aten::copy": entries.copy,
    "aten::index_put": entries.index_put,
    # Data-dependent reads.
    "aten::index.Tensor": entries.index,
    "aten::_unsafe_index.Tensor": entries.index,
    "aten::gather": entries.gather,
    "aten::embedding": entries.embedding,
    "aten::_embedding_bag": entries.embedding_bag,
    "aten::_embedding_bag_forward_only": entries.embedding_bag,
    # Dtypes.
    "aten::_to_copy": entries.to_dtype,
    "aten::to.dtype": entries.to_dtype,
    "aten::to.dtype_layout": entries.to_dtype,
    "aten::to.device": entries.to_device,
    "aten::to.other": entries.to_other,
    "aten::type_as": entries.to_other,
    # Dropout outside of training.
    **{
        f"aten::{name}": entries.dropout for name in ("dropout", "feature_dropout", "alpha_dropout")
    },
    # Constants.
    **entries.filled(0),
    **entries.filled(1),
    "aten::full": entries.full,
    "aten::full_like": entries.full_like,
    "aten::new_full": entries.new_full,
    "aten::fill": entries.fill,
    "aten::scalar_tensor": entries.scalar_tensor,
    "aten::arange": entries.arange,
    "aten::eye": entries.eye,
}

# Arguments that say where or how a result is stored. Capture drops them before it calls an entry,
# since eqsynth chooses the storage itself.
STORAGE_ARGUMENTS: Final = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"}
)


in_memory = entries.in_memory


def entry(name: str) -> Entry | None:
    """The entry of the overload ``namespace::operator.overload``: its own, or its operator's."""
    return TABLE.get(name) or TABLE.get(name.partition(".")[0])
