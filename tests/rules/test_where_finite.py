"""Rules of ``proof`` numerics claim nothing where a part of a side is not finite. Everywhere else
the members of a class agree, also in programs that have infinite values at other places.

    sqrt(x[i - 1 else -inf]) * i     NaN at i = 0, which the form in which a proof meets isn't
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import PROVE_PHASES, Limits
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.data import sample_all
from eqsynth.ir.interpret import evaluate, evaluate_one, evaluate_scope
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    composites,
    dtype_of,
    leaves,
)
from eqsynth.ir.tensor import Scope, Tensor, args_of
from eqsynth.ir.types import is_float
from eqsynth.rules import load_rules
from eqsynth.testing import strategies
from tests.terms import INF, it, leaf, times
from tests.turns import by_turns

SIZE = 1 << 14
"""The most points of a scope that is looked at."""


def defined(member: Tensor, values: Mapping[Tensor, Array], value: Array) -> Array:
    """Where all parts of the member are finite, in each term of a reduction."""
    where = np.isfinite(value)
    if not isinstance(member, Scope):
        return where & all(np.isfinite(values[arg]).all() for arg in args_of(member))
    reduced = tuple(range(len(member.traversal), len(member.extents)))
    for part in {*leaves(member.body), *composites(member.body)}:
        if is_float(dtype_of(part) or "float32"):
            of_part = evaluate_scope(Scope(member.extents, (), part), values)
            where = where & np.isfinite(of_part).all(axis=reduced)
    return where


def assert_agree_where_finite(graph: EGraph, env: Mapping[str, Array]) -> tuple[int, int]:
    """Compare the members of each class where their parts are finite. Returns how many elements
    were compared, and at how many a member has a part that isn't finite."""
    values: dict[Tensor, Array] = {}
    changed = True
    while changed:
        changed, compared, left_out = False, 0, 0
        for ref, members in graph.classes.items():
            for member in members:
                args = [values.get(arg) for arg in args_of(member)]
                large = isinstance(member, Scope) and math.prod(member.extents) > SIZE
                if large or any(arg is None for arg in args):
                    continue
                # A bool of a comparison with NaN would look like a value.
                if not is_float(ref.dtype) and not all(np.isfinite(arg).all() for arg in args):
                    continue
                value = evaluate_one(member, values, env)
                where = defined(member, values, value)
                known = values.setdefault(ref, np.full(ref.shape, math.nan))
                both = where & np.isfinite(known)
                scale = float(np.abs(known[both]).max(initial=1e-30))
                assert np.allclose(value[both], known[both], 1e-6, 1e-6 * scale), (
                    f"{member}\nis {value}, and other members of its class\n{known}, in\n{members}"
                )
                compared, left_out = compared + both.sum(), left_out + (~where).sum()
                if (where & ~both).any():
                    changed, values[ref] = True, np.where(where, value, known)
    return compared, left_out


def checked(root: Tensor, env: Mapping[str, Array]) -> tuple[int, int]:
    graph = saturate_terms((root,), load_rules(), PROVE_PHASES, Limits(1_000, 10.0), False)
    return assert_agree_where_finite(graph, env)


PROGRAMS = st.one_of(
    strategies.scopes(empty=False, functions=("sqrt", "reciprocal")),
    strategies.scopes(empty=False, functions=("log", "exp", "div")),
)


@by_turns
def test_members_agree_where_they_are_finite(turn: int) -> None:
    compared = left_out = 0

    @seed(turn)
    @settings(max_examples=times(1))
    @given(PROGRAMS)
    def check(root: Scope) -> None:
        nonlocal compared, left_out
        env = sample_all(root)
        if not np.isfinite(evaluate(root, env)).all():
            elements = checked(root, env)
            compared, left_out = compared + elements[0], left_out + elements[1]

    check()
    assert compared >= 20 and left_out >= 20


PLACE = it(0, 3)
LOW, HIGH = (Read(leaf("x", 2), (PLACE - 1,), fill) for fill in (-INF, INF))
Y = Read(leaf("y", 3), (PLACE,))
MINUS, TWO, FOUR = map(Num, (-1, 2, 4))


@pytest.mark.parametrize(
    "body",
    [
        Prod((Call("sqrt", (LOW,)), Value(PLACE))),
        Call("sqrt", (Prod((FOUR, HIGH)),)),
        Prod((Call("sqrt", (HIGH,)), Call("sqrt", (HIGH,)))),
        Call("reciprocal", (Prod((TWO, LOW)),)),
        Call("div", (Prod((TWO, HIGH)), HIGH)),
        Call("log", (Prod((Call("exp", (HIGH,)), Y)),)),
        Call("exp", (Sum((Call("log", (Y,)), Prod((MINUS, LOW)))),)),
        Prod((Sum((HIGH, Prod((MINUS, HIGH)), Y)), Y)),
    ],
    ids=str,
)
def test_a_program_with_an_infinite_fill_is_compared_where_nothing_reads_it(body: Scalar) -> None:
    env = {"x": np.array([4.0, 9.0]), "y": np.array([2.0, 3.0, 5.0])}
    compared, left_out = checked(Scope((3,), (), body), env)
    assert left_out > 0 and compared >= 2
