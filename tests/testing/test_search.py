"""Whole searches on random programs: sound, no dearer than the original, idempotent.

What random search found wrong once stands below, shrunk. The faults that are planted for it stand
in ``test_planted_faults.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing import assert_search_sound
from eqsynth.testing.strategies import environments, operator_programs, scopes
from tests.egraph.programs import RULES
from tests.terms import it, leaf, op, times
from tests.turns import in_rare_turns, in_turns

DTYPES = ("float32", "float32", "int64", "uint8", "bool")


@in_rare_turns
@settings(max_examples=times(0.24))
@given(operator_programs(steps=4, dtypes=DTYPES), st.data())
def test_random_programs_are_sound_and_idempotent(root: Tensor, data: st.DataObject) -> None:
    env = data.draw(environments(root, kinds=("normal", "ties", "negative", "sparse", "zeros")))
    # The equalities hold for finite numbers: log(0) * 0, of a place that padding added, is NaN.
    values = evaluate_all([root], env).values()
    assume(all(np.isfinite(value).all() for value in values))
    search = assert_search_sound([root], rules=RULES, phases=PROVE_PHASES, env=env)
    again = assert_search_sound(search.found["flops"], rules=RULES, objectives=("flops",), env=env)
    assert again.costs["flops"][1] <= search.costs["flops"][1] * (1 + 1e-9)


@in_turns
@settings(max_examples=times(0.3))
@given(scopes(empty=False))
def test_random_scopes_are_sound(root: Scope) -> None:
    assert_search_sound([root], rules=RULES, phases=PROVE_PHASES)


@in_turns
@settings(max_examples=times(0.1))
@given(st.lists(operator_programs(steps=4), min_size=2, max_size=4))
def test_programs_that_share_an_e_graph_are_sound(roots: list[Tensor]) -> None:
    assert_search_sound(roots, rules=RULES)


# ---- what was wrong once ---------------------------------------------------------


def shared_inner() -> list[Tensor]:
    """Four scopes over one small product: choosing the best for each lost what they share."""
    w, a = leaf("w", 2, constant=True), leaf("a", 1)
    read = Read(a, (Index(0),))
    inner = Scope((1,), (), Prod((Read(w, (Index(1),)), read, read)))
    spread = Scope((2,), (), Read(inner, (it(0, 2),)))
    first = Scope((2,), (1,), Read(inner, (Index(0),)))
    return [spread, first]


FOUND = {
    "sum-of-bools-over-no-axis": [op("ReduceSum", leaf("b", 3, dtype="bool"), attrs=((), 0))],
    "product-of-bools-over-no-axis": [op("ReduceProd", leaf("b", 3, dtype="bool"), attrs=((), 0))],
    "shared-inner-scope": shared_inner(),
    "sign-of-bools": [op("Sign", op("LogicalNot", leaf("b", 3, dtype="bool")))],
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", FOUND)
def test_what_random_search_found_stays_right(name: str) -> None:
    assert_search_sound(FOUND[name], phases=PROVE_PHASES)
