"""All rows, and which operators have none."""

from __future__ import annotations

from typing import Final

from eqsynth.frontend import aten, ops
from eqsynth.testing.differential import fills, pointwise
from eqsynth.testing.differential.row import Row

ROWS: Final[tuple[Row, ...]] = (*pointwise.ROWS, *fills.ROWS)

# Entries whose rows aren't written yet; `tests/differential` holds that there are no others, and
# that none of these has rows.
AWAITED_SHAPES: Final = frozenset(
    """
    aten::one_hot ops.one_hot
    aten::matmul aten::linear aten::addmm aten::conv1d aten::conv2d aten::conv_transpose1d
    aten::conv_transpose2d aten::scaled_dot_product_attention aten::sum aten::prod aten::mean
    aten::amax aten::amin aten::any aten::all aten::softmax aten::log_softmax aten::logsumexp
    aten::max_pool2d aten::adaptive_avg_pool2d aten::permute aten::transpose aten::t aten::movedim
    aten::flatten aten::unflatten aten::unsqueeze aten::expand aten::repeat aten::narrow
    aten::slice aten::select aten::unbind aten::split aten::chunk aten::cat aten::stack aten::roll
    aten::flip aten::diagonal aten::tril aten::triu aten::index_select aten::unfold aten::im2col
    aten::col2im aten::tile aten::pad aten::pixel_shuffle aten::pixel_unshuffle aten::mm aten::bmm
    aten::mv aten::dot aten::baddbmm aten::addmv aten::convolution
    aten::_native_batch_norm_legit_no_training aten::batch_norm aten::native_layer_norm
    aten::layer_norm aten::group_norm aten::instance_norm aten::max_pool2d_with_indices
    aten::avg_pool2d aten::_adaptive_avg_pool2d aten::adaptive_max_pool2d
    aten::upsample_bilinear2d.vec aten::upsample_bilinear2d aten::upsample_nearest1d.vec
    aten::upsample_nearest2d.vec aten::upsample_nearest3d.vec aten::upsample_nearest1d
    aten::upsample_nearest2d aten::upsample_nearest3d aten::_upsample_nearest_exact1d.vec
    aten::_upsample_nearest_exact2d.vec aten::_upsample_nearest_exact3d.vec
    aten::_upsample_nearest_exact1d aten::_upsample_nearest_exact2d
    aten::_upsample_nearest_exact3d aten::max.dim aten::min.dim aten::max aten::min
    aten::var.correction aten::var.dim aten::var aten::std.correction aten::std.dim aten::std
    aten::var_mean.correction aten::var_mean.dim aten::var_mean aten::linalg_vector_norm
    aten::_softmax aten::_log_softmax aten::view aten::reshape aten::_unsafe_view aten::view.dtype
    aten::view_as aten::reshape_as aten::expand_as aten::broadcast_to aten::numpy_T aten::mT
    aten::squeeze aten::as_strided aten::split_with_sizes aten::concat aten::constant_pad_nd
    aten::index.Tensor aten::_unsafe_index.Tensor aten::gather aten::embedding
    ops.adaptive_avg_pool2d ops.adaptive_max_pool2d ops.addmm ops.all ops.amax ops.amin ops.any
    ops.avg_pool2d ops.batch_norm ops.cat ops.chunk ops.col2im ops.conv1d ops.conv2d
    ops.conv_transpose1d ops.conv_transpose2d ops.diagonal ops.einsum ops.embedding ops.expand
    ops.flatten ops.flip ops.g2bmm ops.gather ops.gbmm ops.group_norm ops.im2col ops.index_select
    ops.instance_norm ops.layer_norm ops.linear ops.log_softmax ops.logsumexp ops.matmul
    ops.max_pool2d ops.mean ops.movedim ops.narrow ops.pad ops.permute ops.pixel_shuffle
    ops.pixel_unshuffle ops.prod ops.repeat ops.reshape ops.roll ops.scaled_dot_product_attention
    ops.select ops.slice ops.softmax ops.split ops.squeeze ops.stack ops.std ops.sum ops.t
    ops.tile ops.transpose ops.tril ops.triu ops.unbind ops.unflatten ops.unfold ops.unsqueeze
    ops.upsample_bilinear2d ops.upsample_nearest ops.var ops.var_mean ops.syno.expand
    ops.syno.merge ops.syno.pad ops.syno.permute ops.syno.shift ops.syno.slice ops.syno.split
    ops.syno.stride ops.syno.unfold
    """.split()
)


def without_rows(rows: tuple[Row, ...] = ROWS) -> list[str]:
    """Entries of the ATen table, and functions of ``eqsynth.ops``, that no row is for.

    A function that is an entry as it stands needs no row of its own.
    """
    keys = {_key(row.entry) for row in rows}
    covered = {id(aten.TABLE[key]) for key in keys if key in aten.TABLE}
    functions = {f"ops.{name}": getattr(ops, name) for name in ops.__all__ if name != "syno"}
    functions |= {f"ops.syno.{name}": getattr(ops.syno, name) for name in ops.syno.__all__}
    missing = [key for key in aten.TABLE if key not in keys]
    missing += [n for n, f in functions.items() if n not in keys and id(f) not in covered]
    return missing


def _key(entry: str) -> str:
    return entry if entry in aten.TABLE else entry.partition(".")[0] if "::" in entry else entry
