"""Fusion of maps: views go into what reads them, all at once."""

from __future__ import annotations

import pytest

from eqsynth.ir.scalar import Read, reads
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope
from tests.egraph.programs import saturate, saturated
from tests.terms import leaf, op


@pytest.mark.rotating
def test_a_sum_of_slices_reads_the_image_alone() -> None:
    """One kernel then computes it. If views went in one after the other, the subsets of the nine
    taps would fill the e-class before all of them are in."""
    graph = saturated("sum-of-slices")
    (root,) = graph.roots
    read = {
        frozenset(read.tensor for read in reads(member.body))
        for member in graph.classes[root]
        if isinstance(member, Scope)
    }
    image = next(
        ref for ref, members in graph.classes.items()
        if any(isinstance(member, Input) for member in members)
    )  # fmt: skip
    assert frozenset({image}) in read
    taps = [m for m in graph.classes[root] if isinstance(m, Scope) and len(list(reads(m.body))) > 2]
    assert len(taps) < 32  # of 2**9 subsets


def test_a_map_reads_its_operand_alone_however_often_it_uses_it() -> None:
    """A bias and a PReLU over a product are one map, which a kernel applies to results that are in
    registers. The subsets of what may be inlined would fill the e-class before."""
    x, w = leaf("x", 1, 6, 8, 8), leaf("w", 6, 6, 3, 3, constant=True)
    conv = op("Conv2d", x, w, attrs=((1, 1), (1, 1), (1, 1), 1))
    columns = [
        op("Reshape", leaf(name, 6, constant=True), attrs=((6, 1, 1),)) for name in ("b", "a")
    ]
    biased = op("Add", conv, columns[0])
    low = op("Mul", biased, columns[1])
    positive = op("Greater", biased, op("Full", attrs=((), 0.0, "float32")))
    graph = saturate(op("Where", positive, biased, low))
    (root,) = graph.roots
    convolved = {ref for ref, ms in graph.classes.items() if any(m.name == "Conv2d" for m in ms
                 if isinstance(m, Op))}  # fmt: skip
    read = [
        {read.tensor for read in reads(member.body) if not read.tensor.constant}
        for member in graph.classes[root]
        if isinstance(member, Scope)
    ]
    assert any(len(tensors) == 1 and tensors <= convolved for tensors in read)


def test_a_view_and_its_inverse_end() -> None:
    """x is a view of y, and y of x: each goes into what reads it once."""
    x = leaf("x", 3, 4)
    y = op("Permute", x, attrs=((1, 0),))
    again = op("Permute", y, attrs=((1, 0),))
    graph = saturate(op("Add", op("Permute", again, attrs=((1, 0),)), y))
    assert graph.stop == "saturated"
    (root,) = graph.roots
    assert any(
        isinstance(member, Scope)
        and all(isinstance(r.tensor, ClassRef) and _is_input(graph.classes[r.tensor])
                for r in reads(member.body))
        for member in graph.classes[root]
    )  # fmt: skip


def _is_input(members: object) -> bool:
    assert isinstance(members, tuple | list)
    return any(isinstance(member, Input) for member in members)


@pytest.mark.rotating
def test_taps_are_added_and_biased_where_the_phases_are_put_together() -> None:
    """A transposed convolution with a bias: products of pixels and taps, whose sums are the phases
    of the result. One scope adds the taps at the place of each result, and one map reads the
    phases."""
    x, w = leaf("x", 1, 6, 4, 4), leaf("w", 6, 5, 4, 4, constant=True)
    bias = op("Reshape", leaf("b", 5, constant=True), attrs=((5, 1, 1),))
    whole = op("ConvTranspose2d", x, w, attrs=((2, 2), (1, 1), (0, 0), (1, 1), 1))
    graph = saturate(op("Relu", op("Add", whole, bias)))
    (root,) = graph.roots
    convolved = next(
        ref for ref, members in graph.classes.items()
        if any(isinstance(m, Op) and m.name == "ConvTranspose2d" for m in members)
    )  # fmt: skip
    added = [
        member for member in graph.classes[convolved]
        if isinstance(member, Scope) and member.reduction == (2, 2)
        and isinstance(member.body, Read)
    ]  # fmt: skip
    assert added
    mapped = [
        member for member in graph.classes[root]
        if isinstance(member, Scope) and not member.reduction and "relu" in repr(member.body)
        and any(not index.is_affine for r in reads(member.body) for index in r.index)
    ]  # fmt: skip
    assert mapped
