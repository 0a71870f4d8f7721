"""Dtypes and their promotion, against torch; broadcasting, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.ir.types import (
    DTYPES,
    ITEMSIZE,
    TensorType,
    broadcast_shapes,
    is_float,
    numpy_dtype,
    promote,
)


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_promotion_is_torchs(left: str, right: str) -> None:
    expected = torch.promote_types(getattr(torch, left), getattr(torch, right))
    assert f"torch.{promote(left, right)}" == str(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_has_torchs_size_and_kind(dtype: str) -> None:
    theirs = getattr(torch, dtype)
    assert theirs.itemsize == ITEMSIZE[dtype] == numpy_dtype(dtype).itemsize
    assert theirs.is_floating_point == is_float(dtype)


def test_a_type_counts_elements_and_bytes() -> None:
    kind = TensorType((2, 3), "float16")
    assert (kind.rank, kind.size, kind.nbytes, str(kind)) == (2, 6, 12, "float16[2, 3]")
    assert TensorType((), "bool").size == 1
    assert TensorType((4, 0), "bool").nbytes == 0


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(DtypeError) as unknown:
        TensorType((2,), "float8")
    assert unknown.value.got == "float8"
    with pytest.raises(ShapeError) as negative:
        TensorType((2, -1), "float32")
    assert negative.value.got == "(2, -1)"


_SHAPES = st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=3).map(tuple)


@given(st.lists(_SHAPES, max_size=3))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError):
            broadcast_shapes("add", *shapes)
    else:
        assert broadcast_shapes("add", *shapes) == expected
