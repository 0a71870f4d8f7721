"""Tensor terms."""

from __future__ import annotations

import pickle

import pytest

from eqsynth.ir.scalar import Call, Read
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
