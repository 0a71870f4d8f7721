"""Tiles that are transposed in registers."""

from __future__ import annotations

import pytest
from eoperator_cases import check_kernels, it, tensor

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Tile
from eqsynth.ir.scalar import Call, Num, Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower import eoperators
from eqsynth.lower.machine import Machine
from eqsynth.lower.turning import _rounds


@pytest.mark.parametrize("side", [2, 4, 8, 16, 32])
def test_rounds_transpose(side: int) -> None:
    lines = [[(line, place) for place in range(side)] for line in range(side)]
    for mixes in _rounds(side):
        pairs = [[element for n in pair for element in lines[n]] for pair, _ in mixes]
        lines = [[two[n] for n in order] for two, (_, order) in zip(pairs, mixes, strict=True)]
    assert lines == [[(line, place) for line in range(side)] for place in range(side)]


@pytest.mark.parametrize(
    ("side", "dtype"), [(8, "float32"), (16, "float32"), (8, "float64"), (16, "uint8")]
)
def test_tiles_of_every_machine(side: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 by 32 points are 16 lines of 16 elements each on a machine with AVX-512, and
    blocks of 8 on another; rows and columns at the end make no whole tile."""
    monkeypatch.setattr(eoperators, "this_machine", lambda: Machine(16, 4 * side, 1 << 20))
    x, y = tensor(0, (37, 50), dtype), tensor(1, (50, 37), dtype)
    i, j = it(0, 50), it(1, 37)
    twice = Prod((Read(x, (j, i)), Read(y, (i, j)), Num(2)))
    body = twice if dtype == "uint8" else Call("tanh", (twice,))
    # Other tasks for each side: what is compiled is kept by the kernel, whose code depends on both.
    tile, layouts = Tile(16, 32, tasks=side), ((0, 1), (0, 1))
    scope = Scope((50, 37), (), body)
    check_kernels([Kernel(scope, (False, False), "tvm", layouts, (0, 1), tile)])
