"""Tensor terms."""

from __future__ import annotations

import gc
import pickle

import pytest

from eqsynth.ir.scalar import Call, Prod, Read, rewrite_leaves
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, Terms
from eqsynth.ir.types import TensorType
from tests.terms import it


def test_a_region_that_is_deeper_than_pickle_goes_is_pickled() -> None:
    """A worker is given the whole of a network as one region."""
    row = TensorType((4,), "float32")
    x, y = Input("0", row), Input("1", row)
    term: Tensor = x
    for _ in range(2000):
        term = Op("Relu", (Op("Add", (term, y)),))
    scope = Scope((4,), (), Call("exp", (Read(term, (it(0, 4),), 0.0),)))
    region = Region((term, scope), (Input("a", row), Input("b", row)))
    again = pickle.loads(pickle.dumps(region))
    assert again == region and again.type == region.type and len(again.outputs) == 2
    assert again.args == region.args and again.outputs == region.outputs


@pytest.mark.rotating
def test_terms_that_are_deeper_than_pickle_goes_are_pickled() -> None:
    deep: Tensor = Input("x", TensorType((2,), "float32"))
    for _ in range(4_000):
        deep = Op("Relu", (deep,))
    terms = Terms((deep, deep.args[0] if isinstance(deep, Op) else deep))
    assert pickle.loads(pickle.dumps(terms)) == terms


def test_a_body_that_was_rewritten_leaves_no_cycles() -> None:
    """A cycle would keep all terms of the body until Python collects cyclic garbage."""
    read = Read(Input("x", TensorType((4,), "float32")), (it(0, 4),), 0.0)
    body = Call("exp", (Prod((read, Call("tanh", (read,)))),))
    gc.collect()
    gc.disable()
    try:
        other = rewrite_leaves(body, lambda part: Call("abs", (part,)), lambda part: part)
        assert other != body
        assert gc.collect() == 0
    finally:
        gc.enable()
