"""The scopes of views, reductions and fused operators: each equals its operator by the interpreter,
which computes the two by functions that share nothing. At extents of 0 and 1, and in the dtypes in
which sums wrap or count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from eqsynth.calculus.views import defining_scope, index_map, reshaped
from eqsynth.errors import EqsynthError, UnsupportedOperatorError
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import OPERATORS, Attr
from eqsynth.ir.tensor import Input, Op, Tensor
from tests.terms import INF, it, leaf, op

SHAPES = ((), (1,), (0,), (4,), (2, 3), (1, 3), (3, 1), (0, 2), (2, 0), (2, 2, 3))
OTHERS = ((6,), (3, 2), (1, 1), (4, 3), (2, 6), (12,), (3, 1, 4), (1, 0))
KINDS = ("float32", "uint8", "int64", "bool")


def sample(tensor: Input) -> Any:
    """Values of both signs, and so many that sums of uint8 wrap."""
    rng = np.random.default_rng(len(tensor.name))
    whole = rng.integers(-200, 200, size=tensor.shape)
    return whole / 4 if tensor.dtype.startswith("float") else whole.astype(tensor.dtype)


def each(name: str) -> Iterator[Op]:
    """The operator on an input of each shape and kind, with all attributes that fit."""
    for shape, kind, attrs in product(SHAPES, KINDS, ALL[name]):
        with suppress(EqsynthError):
            yield op(name, leaf("x", *shape, dtype=kind), attrs=attrs)


AXES = range(3)
ALL: dict[str, list[tuple[Attr, ...]]] = {
    "Permute": [(order,) for rank in range(4) for order in permutations(range(rank))],
    "Reshape": [(shape,) for shape in (*SHAPES, *OTHERS)],
    "Expand": [(shape,) for shape in (*SHAPES, *OTHERS)],
    "Slice": [*product(AXES, range(3), range(5), (1, 2, 3))],
    "Stride": [*product(AXES, (1, 2, 3))],
    "Reverse": [(axes,) for axes in ((), (0,), (1,), (2,), (0, 1), (2, 0))],
    "Shift": [*product(AXES, (-1, 0, 1, 5))],
    "Split": [*product(AXES, (1, 2, 3))],
    "Merge": [(axis,) for axis in AXES],
    "Unfold": [*product(AXES, (1, 2, 3))],
    "Pad": [
        (before, after, value)
        for rank in range(3)
        for before in product((0, 2), repeat=rank)
        for after in product((0, 1), repeat=rank)
        for value in (0.0, 3.0, -INF)
    ],
    "Cast": [(dtype,) for dtype in ("float16", "float64", *KINDS)],
    **{
        f"Reduce{reducer}": [*product(((), (0,), (1,), (0, 1), (2, 0)), (0, 1))]
        for reducer in ("Sum", "Prod", "Max", "Min", "Mean")
    },
}


def test_each_view_and_reduction_has_its_row_here() -> None:
    kinds = {name for name, row in OPERATORS.items() if row.kind == "view" or row.reducer}
    assert kinds <= {*ALL, "Concat"}


def assert_is_its_scope(term: Op) -> None:
    scope = defining_scope(term)
    assert scope is not None and scope.type == term.type
    env = {arg.name: sample(arg) for arg in term.args if isinstance(arg, Input)}
    try:
        value = evaluate(term, env)
    except (ArithmeticError, ValueError, TypeError):
        return  # bools padded by -inf: no value
    np.testing.assert_allclose(evaluate(scope, env), value, rtol=1e-12, err_msg=f"{term}\n{scope}")


@pytest.mark.parametrize("name", ALL)
def test_an_operator_equals_its_scope(name: str) -> None:
    found = 0
    for term in each(name):
        # The mean of nothing is no number, and a sum over nothing is 0.
        if name == "ReduceMean" and term.args[0].type.size == 0 < term.type.size:
            assert defining_scope(term) is None
            continue
        assert_is_its_scope(term)
        found += 1
    assert found >= 10


@pytest.mark.parametrize("kinds", [*product(KINDS, repeat=2)])
def test_a_concatenation_is_a_sum_of_shifted_reads(kinds: tuple[str, str]) -> None:
    for axis, extents in product((0, 1), ((2, 1), (0, 3), (3, 0), (1, 1))):
        shapes = [(2, extent) if axis else (extent, 2) for extent in extents]
        one, two = (leaf(name, *s, dtype=k) for name, s, k in zip("ab", shapes, kinds, strict=True))
        for parts in ((one, two), (one, two, one), (one,)):
            assert_is_its_scope(op("Concat", *parts, attrs=(axis,)))


@pytest.mark.parametrize("post", ["none", "relu", "exp"])
@pytest.mark.parametrize("rest", [(), ("r",)])
def test_a_fused_operator_is_its_product_and_what_follows(post: str, rest: tuple[str, ...]) -> None:
    name = "Add" * len(rest)
    for m, k, n in ((2, 3, 4), (1, 1, 1), (2, 0, 3), (0, 2, 2)):
        residual = [leaf(r, m, n) for r in rest]
        args = leaf("x", m, k), leaf("w", k, n), leaf("b", n), *residual
        assert_is_its_scope(op(f"FusedMatmul{name}", *args, attrs=(post,)))
    for stride, padding, groups in product(((1, 1), (2, 1)), ((0, 0), (1, 0)), (1, 2)):
        attrs = (stride, padding, (1, 1), groups)
        image, kernel = leaf("x", 1, 2, 4, 5), leaf("w", 4, 2 // groups, 2, 2)
        inner = op("Conv2d", image, kernel, attrs=attrs)
        residual = [leaf(r, *inner.shape) for r in rest]
        args = image, kernel, leaf("b", 4), *residual
        assert_is_its_scope(op(f"FusedConv2d{name}", *args, attrs=(*attrs, post)))


@pytest.mark.parametrize(
    "term", [op("Matmul", leaf("a", 2, 3), leaf("b", 3, 4)), op("Relu", leaf("a", 2))]
)
def test_what_a_rule_file_defines_has_no_scope_here(term: Tensor) -> None:
    assert isinstance(term, Op) and defining_scope(term) is None


def test_an_operator_that_is_no_view_has_no_index_map() -> None:
    with pytest.raises(UnsupportedOperatorError) as refused:
        index_map("Relu", (), [it(0, 2)], (2,))
    assert refused.value.got == "Relu()"


def test_axes_are_grouped_where_products_of_extents_agree() -> None:
    i, j, k = it(0, 6), it(1, 4), it(2, 5)
    assert reshaped([i, j, k], (6, 4, 5), (2, 3, 20)) == [i // 3, i % 3, j * 5 + k]
    assert reshaped([i, j], (6, 4), (6, 1, 4)) == [i, it(0, 1), j]
