"""The whole e-graph is the test: all members of an e-class must have one value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import EquivalenceError
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.data import agree, sample
from eqsynth.ir.interpret import evaluate_one, evaluate_scope, is_contraction
from eqsynth.ir.program import positions
from eqsynth.ir.scalar import (
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    factors_of,
    iterators,
    rebuild,
)
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight, args_of
from eqsynth.ir.types import is_float

LARGE = 1 << 22
"""Points of an iteration space beyond which a scope is compared at sampled output points."""


@dataclass(frozen=True)
class Consistency:
    """What was compared: classes with a value, members evaluated, members that have no value here
    (opaque operators and what depends on them)."""

    classes: int
    members: int
    without_value: int


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
    given = _leaf_values(graph, rng) | dict(env or {})
    values: dict[Tensor, Array] = {}
    chosen: dict[ClassRef, Tensor] = {}
    # A class's value comes from a small member, if it has one.
    for large in (False, True):
        changed = True
        while changed:
            changed = False
            for ref, members in graph.classes.items():
                if ref in values:
                    continue
                for member in members:
                    value = None
                    if large or not _is_large(member):
                        value = _value(member, values, given)
                    if value is not None:
                        values[ref], chosen[ref] = value, member
                        changed = True
                        break
    compared = missing = 0
    for ref, members in graph.classes.items():
        for member in members:
            if ref not in values:
                missing += 1
                continue
            expected = values[ref]
            if isinstance(member, Scope) and _is_large(member):
                points = _points(member, rng)
                value = None
                if all(arg in values for arg in args_of(member)):
                    value = evaluate_scope(member, values, points)
                    expected = expected[tuple(points)]
            else:
                value = _value(member, values, given)
            if value is None:
                missing += 1
                continue
            compared += 1
            if agree(value, expected, rtol if is_float(ref.dtype) else 0.0):
                continue
            if not _cancels(value, expected, rtol, ref, members, values):
                raise _differs(ref, chosen[ref], expected, member, value)
    return Consistency(len(values), compared, missing)


def _is_large(member: Tensor) -> bool:
    if not isinstance(member, Scope):
        return False
    if is_contraction(member):
        parts = [iterators(factor) for factor in factors_of(member.body)]
        sizes = [math.prod(it.extent for it in part) for part in parts]
        return max(*sizes, member.type.size) > LARGE
    return math.prod(member.extents) > LARGE


def _points(scope: Scope, rng: np.random.Generator) -> list[Array]:
    """Output points to sample of a large scope, as many as its reduction leaves room for."""
    count = min(64, max(1, LARGE // max(1, math.prod(scope.reduction))))
    return [rng.integers(0, extent, size=count) for extent in scope.traversal]


def _leaf_values(graph: EGraph, rng: np.random.Generator) -> dict[str, Any]:
    """Random values of the inputs and weights: normal floats, small integers.

    Integers that are positions lie in range. Where positions are computed, all integers are 0 or
    1, which are positions in anything that has two entries.
    """
    classes = [(ref, member) for ref, members in graph.classes.items() for member in members]
    bounds = positions(member for _, member in classes)
    # Pairs: a rule that is wrong may unite two inputs.
    leaves = [(ref, m) for ref, m in classes if isinstance(m, Input | Weight)]
    computed = bool(set(bounds) - {ref for ref, _ in leaves})
    env: dict[str, Any] = {}
    for ref, leaf in leaves:
        if ref in bounds:
            env[leaf.label] = rng.integers(0, max(1, bounds[ref]), size=leaf.shape)
        elif is_float(leaf.dtype):
            env[leaf.label] = sample("normal", leaf.type, rng)
        elif computed:
            env[leaf.label] = rng.integers(0, 2, size=leaf.shape)
        else:
            env[leaf.label] = sample("small", leaf.type, rng)
    return env


def _value(member: Tensor, values: Mapping[Tensor, Array], env: dict[str, Any]) -> Array | None:
    if isinstance(member, Op) and member.name == "Opaque":
        return None
    if any(arg not in values for arg in args_of(member)):
        return None
    return evaluate_one(member, values, env)


def _cancels(
    value: Array,
    expected: Array,
    rtol: float,
    ref: ClassRef,
    members: Sequence[Tensor],
    values: Mapping[Tensor, Array],
) -> bool:
    """Whether the difference is rounding: small at each element beside what a member of the class
    sums up there, such as the values of a normalized row, of which nothing is left."""
    if not is_float(ref.dtype) or value.shape != ref.shape or expected.shape != ref.shape:
        return False
    rounding = np.zeros(ref.shape)
    for member in members:
        sizes = {arg: np.abs(values[arg]) for arg in args_of(member) if arg in values}
        whole = None if _is_large(member) else _absolute_sum(member)
        if whole is not None and len(sizes) == len(set(args_of(member))):
            rounding = np.maximum(rounding, rtol * evaluate_one(whole, sizes, {}))
    with np.errstate(invalid="ignore"):
        return bool(np.all((value == expected) | (np.abs(value - expected) <= rounding)))


def _absolute_sum(member: Tensor) -> Tensor | None:
    """What gives the sum of absolute values where a member sums up products of reads."""
    if isinstance(member, Op):
        row = member.row
        return member if row.kind == "contraction" and not row.vendor else None
    if not isinstance(member, Scope) or member.reducer != "sum":
        return None
    terms = _absolute(member.body)
    return None if terms is None else Scope(member.traversal, member.reduction, terms)


def _absolute(body: Scalar) -> Scalar | None:
    """A polynomial of reads with the absolute values of its numbers; None if it is none."""
    match body:
        case Read():
            return body
        case Num(value=number):
            return Num(abs(number))
        case Sum() | Prod():
            parts = [_absolute(part) for part in children(body)]
            known = [part for part in parts if part is not None]
            return rebuild(body, known) if len(known) == len(parts) else None
    return None


def _differs(
    ref: ClassRef, first: Tensor, expected: Array, member: Tensor, value: Array
) -> EquivalenceError:
    worst = float("inf")
    if expected.shape == value.shape:
        with np.errstate(all="ignore"):
            worst = float(np.nanmax(np.abs(value - expected)))
    return EquivalenceError(
        "two members of one e-class have different values: some rule is unsound",
        where=f"class {ref.label}: {ref.type}",
        got=f"{member}\ndiffers by {worst:.3g}",
        expected=str(first),
        hint="explain() of the program, or the rules that fired last, tell which rule united them",
    )
