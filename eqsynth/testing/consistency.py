"""The consistency check of an e-graph: all e-nodes of an e-class must have the same value.

One saturated e-graph tests every rule that fired in it: a wrong rule unites terms of different
values, and two members of a class then differ.
"""

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
"""The most points of an iteration space for which a scope is evaluated whole. A larger scope is
compared at sampled points of its result."""


@dataclass(frozen=True)
class Consistency:
    """What was compared.

    Attributes:
        classes: the number of e-classes that have a value.
        members: the number of e-nodes that were evaluated and compared.
        without_value: the number of e-nodes that couldn't be evaluated: opaque operators, and
            e-nodes that depend on them.
    """

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
    """Evaluate every Tensor e-node by the NumPy interpreter in float64, and compare the values
    within each e-class.

    Args:
        env: values of inputs and weights by name; missing ones are random.
        rtol: the difference allowed, relative to the largest value.

    Raises:
        EquivalenceError: two members of one class differ; both are in the message.
    """
    rng = np.random.default_rng(seed)
    given = _leaf_values(graph, rng) | dict(env or {})
    values: dict[Tensor, Array] = {}
    chosen: dict[ClassRef, Tensor] = {}
    # The value of a class is computed by a small member, if the class has one.
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
    """Random points of a large scope's result, fewer for a longer reduction."""
    count = min(64, max(1, LARGE // max(1, math.prod(scope.reduction))))
    return [rng.integers(0, extent, size=count) for extent in scope.traversal]


def _leaf_values(graph: EGraph, rng: np.random.Generator) -> dict[str, Any]:
    """Random values of the inputs and weights: normally distributed floats, small integers.

    Integers that are used as positions are in range. If some positions are computed from integers,
    all integers are 0 or 1, which are valid positions in any axis of two elements.
    """
    classes = [(ref, member) for ref, members in graph.classes.items() for member in members]
    bounds = positions(member for _, member in classes)
    # A list of pairs and no dict: a wrong rule may unite two inputs in one class.
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
    """Whether the difference of two values is rounding after cancellation.

    A sum of large terms may be near 0, as the sum of a normalized row is. The difference is
    rounding if, at each element, it is small relative to the sum of absolute values that some
    member of the class adds up there.
    """
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
    """A term that computes the sum of absolute values on absolute inputs, if the member is a sum
    of products of reads; else None."""
    if isinstance(member, Op):
        row = member.row
        return member if row.kind == "contraction" and not row.vendor else None
    if not isinstance(member, Scope) or member.reducer != "sum":
        return None
    terms = _absolute(member.body)
    return None if terms is None else Scope(member.traversal, member.reduction, terms)


def _absolute(body: Scalar) -> Scalar | None:
    """A polynomial of reads with its numbers replaced by their absolute values; None if the body
    isn't a polynomial."""
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
