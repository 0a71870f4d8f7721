"""Contractions in which the smaller operand moves along nothing that the larger one doesn't: no
block has rows for one and columns for the other, so plain loops are offered."""

from __future__ import annotations

import pytest
from eoperator_cases import check_kernels, tensor

from eqsynth.extract.kernel import channels_last
from eqsynth.extract.schedule import Lanes
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower.loop_nest import is_memory_bound, is_reused_by_one
from eqsynth.lower.tvm_backend import TvmBackend
from tests.lower.test_padding import CONVOLUTIONS
from tests.lower.test_panels import contraction
from tests.terms import it


def depthwise(channels: int, size: int, window: int, stride: int = 1) -> Scope:
    """``L_bchw sum_rs x[b, c, h*stride + r - low, w*stride + s - low] * k[c, 0, r, s]``."""
    low, out = window // 2, (size + 2 * (window // 2) - window) // stride + 1
    b, c, h, w = (it(k, e) for k, e in enumerate((2, channels, out, out)))
    r, s = it(4, window), it(5, window)
    x, k = tensor(0, (2, channels, size, size)), tensor(1, (channels, 1, window, window))
    read = Read(x, (b, c, h * stride + r - low, w * stride + s - low), 0.0)
    body = Prod((read, Read(k, (c, Index(0), r, s))))
    return Scope((2, channels, out, out), (window, window), body)


@pytest.mark.rotating
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (5, 2), (7, 1)])
def test_depthwise_convolutions(window: int, stride: int) -> None:
    scope = depthwise(48, 20, window, stride)
    for constants in ((False, True), (False, False)):
        check_kernels([*TvmBackend().kernels(scope, constants)], tolerance=16)


def test_weights_lie_beside_the_channels_that_they_weigh() -> None:
    """So that vectors of channels are loaded, where images are channels last."""
    scope = depthwise(48, 20, 3)
    assert not is_memory_bound(scope) and is_reused_by_one(scope)
    last = channels_last(4)
    kernels = [k for k in TvmBackend().kernels(scope, (False, True)) if k.output == last]
    assert {k.inputs for k in kernels} == {(last, (1, 2, 3, 0))}
    assert any(isinstance(kernel.schedule, Lanes) for kernel in kernels)


def test_a_product_is_reused_by_both() -> None:
    assert not is_reused_by_one(contraction(8, 8, 8))
    assert not is_reused_by_one(CONVOLUTIONS["3x3"])
