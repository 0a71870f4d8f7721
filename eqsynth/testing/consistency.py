"""The whole e-graph is the test: all members of an e-class must have one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import EquivalenceError
from eqsynth.ir.interpret import evaluate_one
from eqsynth.ir.reference import Array, storage
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor, Weight, args_of
from eqsynth.ir.types import TensorType, is_float


@dataclass(frozen=True)
class Consistency:
    """What was compared: classes with a value, members evaluated, members that have no value here
    (opaque operators and what depends on them)."""

    classes: int
    members: int
    without_value: int


def random_value(kind: TensorType, rng: np.random.Generator) -> Array:
    """Normal floats, integers 0 or 1 (which index anything that has two entries)."""
    if is_float(kind.dtype):
        return rng.normal(size=kind.shape)
    return rng.integers(0, 2, size=kind.shape).astype(storage(kind.dtype))


def assert_egraph_consistent(
    graph: EGraph,
    env: Mapping[str, Array] | None = None,
    *,
    seed: int = 0,
    rtol: float = 1e-7,
) -> Consistency:
    """Evaluates every Tensor e-node with the NumPy interpreter (float64) and compares in classes.

    Args:
        env: values of inputs and weights by name; random where they are missing.

    Raises:
        EquivalenceError: two members of one class differ; both are in the message.
    """
    rng = np.random.default_rng(seed)
    given = dict(env or {})
    values: dict[Tensor, Array] = {}
    chosen: dict[ClassRef, Tensor] = {}
    evaluated: dict[tuple[ClassRef, Tensor], Array] = {}
    changed = True
    while changed:
        changed = False
        for ref, members in graph.classes.items():
            if ref in values:
                continue
            for member in members:
                value = _value(member, values, given, rng)
                if value is not None:
                    values[ref], chosen[ref] = value, member
                    evaluated[ref, member] = value
                    changed = True
                    break
    missing = 0
    for ref, members in graph.classes.items():
        for member in members:
            value = evaluated.get((ref, member))
            if value is None:
                value = _value(member, values, given, rng)
            if value is None:
                missing += 1
                continue
            evaluated[ref, member] = value
            _compare(ref, chosen[ref], values[ref], member, value, rtol)
    return Consistency(len(values), len(evaluated), missing)


def _value(
    member: Tensor, values: Mapping[Tensor, Array], env: dict[str, Any], rng: np.random.Generator
) -> Array | None:
    if isinstance(member, Input | Weight) and member.label not in env:
        env[member.label] = random_value(member.type, rng)
    if isinstance(member, Op) and member.name == "Opaque":
        return None
    if any(arg not in values for arg in args_of(member)):
        return None
    return evaluate_one(member, values, env)


def _compare(
    ref: ClassRef, first: Tensor, expected: Array, member: Tensor, value: Array, rtol: float
) -> None:
    scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    if expected.shape == value.shape and np.allclose(
        value, expected, rtol=rtol, atol=rtol * max(scale, 1e-30), equal_nan=True
    ):
        return
    worst = float("inf")
    if expected.shape == value.shape:
        with np.errstate(all="ignore"):
            worst = float(np.nanmax(np.abs(value - expected)))
    raise EquivalenceError(
        "two members of one e-class have different values: some rule is unsound",
        where=f"class {ref.label}: {ref.type}",
        got=f"{member}\ndiffers by {worst:.3g}",
        expected=str(first),
        hint="explain() of the program, or the rules that fired last, tell which rule united them",
    )


