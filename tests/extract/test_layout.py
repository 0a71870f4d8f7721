"""Views that move no data, compared with torch's strides."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.extract.kernel import Layout, strides
from eqsynth.extract.layout import free_view, normalized
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Scope, Tensor
from eqsynth.ir.types import Shape, TensorType

Drawn = tuple[Shape, Layout]


@st.composite
def dense(draw: st.DrawFn) -> Drawn:
    """A shape, and a layout in which a tensor of it is dense."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    return shape, tuple(draw(st.permutations(range(len(shape)))))


def tensor(shape: Shape, layout: Layout) -> torch.Tensor:
    """A tensor, dense in the layout, whose elements are numbered in the order of memory."""
    memory = torch.arange(math.prod(shape))
    return memory.as_strided(shape, strides(shape, layout))


def leaf(shape: Shape) -> Input:
    return Input("0", TensorType(shape, "float32"))


def lies_in(view: torch.Tensor, layout: Layout) -> bool:
    """Whether the view's elements lie in memory in the order of the layout, without a copy."""
    return torch.equal(view, tensor(tuple(view.shape), layout))


@given(dense(), st.data())
def test_a_permutation_is_free_in_every_layout(drawn: Drawn, data: st.DataObject) -> None:
    shape, layout = drawn
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    out = free_view(Op("Permute", (leaf(shape),), (order,)), layout)
    assert out is not None
    assert lies_in(tensor(shape, layout).permute(order), out)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Drawn, Shape]:
    """A dense tensor, and a shape with as many elements: axes merged, split, and axes of 1."""
    shape, layout = draw(dense())
    left, target = math.prod(shape), []
    while left > 1:
        factor = draw(st.sampled_from([d for d in range(2, left + 1) if left % d == 0]))
        target.append(factor)
        left //= factor
    for _ in range(draw(st.integers(0, 2))):
        target.insert(draw(st.integers(0, len(target))), 1)
    return (shape, layout), tuple(target) or (1,)


@given(reshapes())
def test_a_reshape_is_free_where_torch_can_view(drawn: tuple[Drawn, Shape]) -> None:
    (shape, layout), target = drawn
    out = free_view(Op("Reshape", (leaf(shape),), (target,)), layout)
    value = tensor(shape, layout)
    if out is not None:
        assert lies_in(value.view(target), out)
        assert out == normalized(out, target)  # one state, one name
    else:
        with pytest.raises(RuntimeError):
            value.view(target)


def scope_of(shape: Shape, order: tuple[int, ...]) -> Tensor:
    """``x.permute(order)`` as a scope."""
    its = {axis: It(slot, shape[axis]) for slot, axis in enumerate(order)}
    index = tuple(Index.iterator(its[axis].slot, its[axis].extent) for axis in range(len(shape)))
    return Scope(tuple(shape[axis] for axis in order), (), Read(leaf(shape), index, 0.0))


@given(dense(), st.data())
def test_a_scope_that_permutes_is_a_view_too(drawn: Drawn, data: st.DataObject) -> None:
    shape, layout = drawn
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    out = free_view(scope_of(shape, order), layout)
    assert out is not None
    assert lies_in(tensor(shape, layout).permute(order), out)


@given(dense())
def test_normalized_layouts_have_the_same_strides(drawn: Drawn) -> None:
    shape, layout = drawn
    one = normalized(layout, shape)
    assert sorted(one) == list(range(len(shape)))
    assert lies_in(tensor(shape, layout), one)
    assert normalized(one, shape) == one
    moved = sorted(layout, key=lambda axis: shape[axis] == 1)  # axes of 1 innermost
    assert normalized(tuple(moved), shape) == one


@pytest.mark.parametrize(
    "term",
    [
        Op("Relu", (leaf((2, 3)),)),
        Op("Slice", (leaf((2, 3)),), (0, 0, 1, 1)),
        leaf((2, 3)),
    ],
)
def test_what_is_no_view_is_not_free(term: Tensor) -> None:
    assert free_view(term, (0, 1)) is None


def test_a_reshape_across_a_transpose_is_not_free() -> None:
    merged = Op("Reshape", (leaf((2, 3)),), ((6,),))
    assert free_view(merged, (0, 1)) == (0,)
    assert free_view(merged, (1, 0)) is None


def test_a_shifted_or_repeated_read_is_not_free() -> None:
    x, i = leaf((4,)), Index.iterator(0, 4)
    assert free_view(Scope((4,), (), Read(x, (i,), 0.0)), (0,)) == (0,)
    assert free_view(Scope((4,), (), Read(x, (i + 1,), 0.0)), (0,)) is None
    three = Scope((3,), (), Read(x, (Index.iterator(0, 3),), 0.0))
    assert free_view(three, (0,)) is None
    both = Scope((4, 4), (), Read(x, (i,), 0.0))
    assert free_view(both, (0,)) is None
