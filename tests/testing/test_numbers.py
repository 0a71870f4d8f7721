"""Numbers of high precision: what the interpreter makes of them is what it makes of floats."""

from __future__ import annotations

import numpy as np
import pytest

from eqsynth.ir.arithmetic import computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope
from eqsynth.testing.numbers import REAL, exact
from tests.terms import it, leaf


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize("row", [(np.nan, 2.0), (2.0, np.nan), (1.0, 2.0)])
def test_an_extremum_of_nan_is_nan_wherever_it_stands(reducer: str, row: tuple[float, ...]) -> None:
    scope = Scope((), (2,), Read(leaf("x", 2, dtype="float64"), (it(0, 2),)), reducer)
    x = np.array(row)
    with computing_in(REAL):
        found = evaluate(scope, {"x": exact(x)})
    assert np.array_equal(float(found), float(evaluate(scope, {"x": x})), equal_nan=True)
