"""Short names for terms, and what it takes to compare them."""

from __future__ import annotations

from typing import overload

import numpy as np
from hypothesis import settings

from eqsynth.egraph.tactics.paths import Path
from eqsynth.ir.data import sample_all
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import Attr
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight
from eqsynth.ir.types import TensorType

INF = float("inf")


def times(factor: float) -> int:
    """So many times the number of examples of the hypothesis profile in use."""
    return int(settings.default.max_examples * factor)


def leaf(name: str, *shape: int, dtype: str = "float32", constant: bool = False) -> Input | Weight:
    return (Weight if constant else Input)(name, TensorType(shape, dtype))


def op(name: str, *args: Tensor, attrs: tuple[Attr, ...] = ()) -> Op:
    return Op(name, args, attrs)


def it(slot: int, extent: int) -> Index:
    return Index.iterator(slot, extent)


@overload
def end(answer: None) -> None: ...
@overload
def end(answer: Path | Tensor) -> Tensor: ...
@overload
def end(answer: Path | None) -> Scope | None: ...


def end(answer: Path | Tensor | None) -> Tensor | None:
    """Where a tactic's answer leads."""
    return answer.scope if isinstance(answer, Path) else answer


def assert_equal(left: Tensor, right: Tensor) -> None:
    """One type and, in float64, one value."""
    assert left.type == right.type, f"{left}\nis not of the type of\n{right}"
    env = sample_all(left, right)
    a, b = evaluate(left, env), evaluate(right, env)
    assert a.shape == b.shape == left.shape
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{left}\nagainst\n{right}")
