"""Numbers of high precision: what the interpreter makes of them is what it makes of floats."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from eqsynth.ir.arithmetic import computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope
from eqsynth.testing.numbers import REAL, Field, exact
from tests.terms import it, leaf


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize("row", [(np.nan, 2.0), (2.0, np.nan), (1.0, 2.0)])
def test_an_extremum_of_nan_is_nan_wherever_it_stands(reducer: str, row: tuple[float, ...]) -> None:
    scope = Scope((), (2,), Read(leaf("x", 2, dtype="float64"), (it(0, 2),)), reducer)
    x = np.array(row)
    with computing_in(REAL):
        found = evaluate(scope, {"x": exact(x)})
    assert np.array_equal(float(found), float(evaluate(scope, {"x": x})), equal_nan=True)


def test_elements_of_a_field_go_to_another_process() -> None:
    """A counterexample holds them, and rules are checked in several processes."""
    field = Field(101)
    assert field.arithmetic.name  # made, as it is once a rule was judged
    other = pickle.loads(pickle.dumps(field.element(102)))
    assert other.n == 1 and (other * other.field.element(5)).n == 5
