"""Shape and dtype inference: it agrees with what is computed, and refuses what doesn't fit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from eqsynth.errors import DtypeError, EqsynthError, ShapeError, UnsupportedOperatorError
from eqsynth.ir.data import sample_all
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.operators import OPERATORS, POST_FUNCTIONS, Attr, operator
from eqsynth.ir.reference import storage
from eqsynth.ir.tensor import Input, Op, Tensor, topological
from eqsynth.testing.choices import RandomChoices
from eqsynth.testing.fitting import fit
from eqsynth.testing.strategies import operator_programs
from eqsynth.testing.world import draw_world
from tests.terms import leaf, op, times

DTYPES = ("float32", "float16", "int64", "int32", "uint8", "bool")


@pytest.mark.rotating
@settings(max_examples=times(6))
@given(operator_programs(steps=4, dtypes=DTYPES, empty=True))
def test_inference_agrees_with_the_interpreter(root: Tensor) -> None:
    values = evaluate_all([root], sample_all(root))
    for term in topological([root]):
        assert values[term].shape == term.shape, term
        assert values[term].dtype == storage(term.dtype), term


SAMPLES = 60


@pytest.mark.parametrize("name", OPERATORS)
def test_inference_of_every_operator_agrees_with_the_interpreter(name: str) -> None:
    """Types and attributes of all kinds, for each row of the table."""
    row, choices = OPERATORS[name], RandomChoices(7)
    accepted: Counter[str] = Counter()
    for _ in range(8 * SAMPLES):
        if accepted.total() >= SAMPLES // 4:
            break
        world = draw_world(choices, DTYPES)
        arity = choices.pick((2, 1, 3)) if row.arity is None else row.arity
        try:
            types, attrs = fit(row, world, None, [None] * arity, [None] * len(row.attrs))
            args = (Input(f"x{n}", t) for n, t in enumerate(types))
            term = Op(name, tuple(args), tuple(attrs))
        except EqsynthError:
            continue
        if name == "Opaque":
            # What it computes only torch knows; its type is an attribute.
            assert (term.attrs[1:]) == (term.shape, term.dtype)
            with pytest.raises(UnsupportedOperatorError):
                evaluate_all([term], sample_all(term))
            accepted[term.dtype] += 1
            continue
        value = evaluate_all([term], sample_all(term))[term]
        assert value.shape == term.shape and value.dtype == storage(term.dtype), term
        accepted[term.dtype] += 1
    assert accepted.total() >= SAMPLES // 4, accepted


X, I64 = leaf("x", 2, 3), leaf("i", 2, 3, dtype="int64")
IMAGE, W = leaf("image", 1, 4, 5, 5), leaf("w", 6, 4, 3, 3)
CONV: tuple[Attr, ...] = ((1, 1), (0, 0), (1, 1))
REFUSED: list[tuple[str, tuple[Tensor, ...], tuple[Attr, ...], type[EqsynthError]]] = [
    ("Add", (X, leaf("y", 2)), (), ShapeError),
    ("Add", (X,), (), ShapeError),
    ("Matmul", (X, X), (), ShapeError),
    ("Matmul", (X, leaf("v", 3)), (), ShapeError),
    ("Matmul", (X, leaf("y", 3, 2, dtype="float16")), (), DtypeError),
    ("Matmul", (leaf("m", 2, 2, dtype="bool"), leaf("n", 2, 2, dtype="bool")), (), DtypeError),
    ("Conv2d", (IMAGE, W), (*CONV, 2), ShapeError),
    ("Conv2d", (X, W), (*CONV, 1), ShapeError),
    ("Conv2d", (IMAGE, W), ((1, 1), (0, 0), (3, 1), 1), ShapeError),
    ("ConvTranspose2d", (IMAGE, W), ((1, 1), (0, 0), (0, 0), (1, 1), 1), ShapeError),
    ("G2BMM", (leaf("q", 1, 4, 3), leaf("k", 1, 4, 2)), (1, 1), ShapeError),
    ("G2BMM", (X, X), (1, 1), ShapeError),
    ("G2BMM", (leaf("q", 1, 4, 3),) * 2, (-1, 1), ShapeError),
    ("G2BMM", (leaf("q", 1, 4, 3),) * 2, (1, 0), ShapeError),
    ("GBMM", (leaf("p", 1, 4, 4), leaf("v", 1, 4, 2)), (1,), ShapeError),
    ("GBMM", (leaf("p", 1, 4, 3), leaf("v", 1, 5, 2)), (1,), ShapeError),
    ("FusedConv2d", (IMAGE, W, leaf("b", 5)), (*CONV, 1, "relu"), ShapeError),
    ("FusedMatmul", (X, leaf("m", 3, 4), leaf("b", 3)), ("none",), ShapeError),
    ("FusedMatmulAdd", (X, leaf("m", 3, 4), leaf("b", 4), leaf("r", 4)), ("none",), ShapeError),
    ("MaxPool2d", (X,), ((1, 1), (1, 1), (0, 0), (1, 1)), ShapeError),
    ("AvgPool2d", (leaf("n", 1, 1, 4, 4, dtype="int64"),), ((2, 2), *CONV), DtypeError),
    ("ReduceMean", (I64,), ((0,), 0), DtypeError),
    ("ReduceMax", (leaf("e", 0, 2),), ((0,), 0), ShapeError),
    ("ReduceSum", (X,), ((-1,), 0), ShapeError),
    ("Softmax", (X,), (2,), ShapeError),
    ("Softmax", (I64,), (1,), DtypeError),
    ("CumSum", (X,), (2,), ShapeError),
    ("CumSum", (leaf("s"),), (0,), ShapeError),
    ("CumSum", (I64,), (1,), DtypeError),
    ("Sub", (leaf("m", 3, dtype="bool"), I64), (), DtypeError),
    ("Neg", (leaf("m", 3, dtype="bool"),), (), DtypeError),
    ("LayerNorm", (X, X, X), (1, 1e-5), ShapeError),
    ("Permute", (X,), ((0, 0),), ShapeError),
    ("Reshape", (X,), ((2, 2),), ShapeError),
    ("Reshape", (X,), ((-1, 6),), ShapeError),
    ("Expand", (X,), ((2, 1),), ShapeError),
    ("Slice", (X,), (1, 2, 4, 1), ShapeError),
    ("Slice", (X,), (1, 0, 3, 0), ShapeError),
    ("Pad", (X,), ((0,), (0,), 0.0), ShapeError),
    ("Pad", (X,), ((0, -1), (0, 0), 0.0), ShapeError),
    ("Concat", (X, leaf("y", 3, 3)), (1,), ShapeError),
    ("Concat", (X, leaf("v", 2)), (1,), ShapeError),
    ("Stride", (X,), (1, 2), ShapeError),
    ("Split", (X,), (1, 2), ShapeError),
    ("Split", (X,), (2, 1), ShapeError),
    ("Merge", (X,), (1,), ShapeError),
    ("Reverse", (X,), ((2,),), ShapeError),
    ("Reverse", (X,), ((1, 1),), ShapeError),
    ("Unfold", (X,), (1, 0), ShapeError),
    ("Embedding", (X, X), (), DtypeError),
    ("Gather", (X, leaf("j", 2, dtype="int64")), (0,), ShapeError),
]


@pytest.mark.parametrize(("name", "args", "attrs", "error"), REFUSED)
def test_what_does_not_fit_is_refused_at_its_place(
    name: str, args: tuple[Tensor, ...], attrs: tuple[Attr, ...], error: type[EqsynthError]
) -> None:
    with pytest.raises(error) as caught:
        Op(name, args, attrs, origin="model.py:12")
    assert caught.value.where == "model.py:12" and caught.value.got and caught.value.expected


def test_an_operator_outside_the_table_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        operator("Cumsum")
    assert caught.value.got == "Cumsum"


def test_a_window_over_an_empty_image_is_empty() -> None:
    empty = leaf("image", 1, 4, 0, 5)
    assert op("Conv2d", empty, W, attrs=((1, 1), (0, 0), (1, 1), 1)).shape == (1, 6, 0, 3)


def test_constness_and_origin() -> None:
    a, w = leaf("a", 3, 3), leaf("w", 3, 3, constant=True)
    assert op("Matmul", w, w).constant and not op("Matmul", a, w).constant
    assert op("Opaque", w, attrs=("f", (3,), "float32")).constant
    assert not op("Opaque", a, attrs=("f", (3,), "float32")).constant
    here, there = Op("Relu", (a,), (), "here"), Op("Relu", (a,), (), "there")
    assert here == there and here.label == "here (Relu)"


def test_post_functions_are_operators_too() -> None:
    rows = {row.function for row in OPERATORS.values()}
    assert set(POST_FUNCTIONS) - {"none"} <= rows


def test_arrays_come_with_their_input() -> None:
    """The helper of these tests itself: one name and type, one array."""
    one, other = sample_all(X), sample_all(op("Relu", X))
    np.testing.assert_array_equal(one["x"], other["x"])
    assert isinstance(X, Input)
