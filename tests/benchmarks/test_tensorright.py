"""The rewrites that TensorRight proves: what is stated is true, and what is proved stays so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tensorright import (
    EACH_AXIS,
    FOLDER,
    LACKING,
    LIST,
    NARROWER,
    Found,
    names,
    stated,
    table,
    verified,
)
from eqsynth.egraph.defined import operators_of
from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import Operator
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.testing.soundness import check_rule
from tests.turns import MOST, by_many_turns

pytest.importorskip("z3")

ROOT = Path(__file__).resolve().parents[2]

# Rules that fewer than 15 of the samples match: most of the convolutions that are drawn are too
# large, and the others ask for extents or amounts that few terms have. The rules hold on those few.
SELDOM = frozenset({"conv-00", "conv-01", "conv-03", "pad-04", "reduce-08"})


def test_the_list_is_whole_and_each_rewrite_is_stated_or_said_to_be_lacking() -> None:
    _, own = stated()
    assert len(names()) == len({*names()}) == 118 and len(LIST) == 22
    assert {*own}.isdisjoint(LACKING) and {*NARROWER} | {*EACH_AXIS} <= {*own}
    assert {*NARROWER}.isdisjoint(EACH_AXIS)
    assert {*own, *LACKING} == {*names()}


@by_many_turns
def test_what_is_proved_stays_proved(turn: int) -> None:
    _, own = stated()
    asked = [*own][turn::MOST]
    found = list(verified(asked))
    assert {one.name: one.why for one in found if one.outcome != "proved"} == {}


@by_many_turns
def test_what_is_stated_is_true_on_samples(turn: int) -> None:
    rules, own = stated()
    for name in [*own][turn::MOST]:
        error = check_rule(rules, own[name], samples=15, limit_s=2.0).error
        assert error is None or (error.kind, name in SELDOM) == ("vacuous", True), error


def test_the_table_of_the_documentation_is_that_of_these_outcomes() -> None:
    found = [
        Found(name, "not expressible" if name in LACKING else "proved", 0.0,
              "", NARROWER.get(name, ""), name in EACH_AXIS)
        for name in names()
    ]  # fmt: skip
    assert table(found) in (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def test_no_other_file_is_in_the_folder() -> None:
    rules, own = stated()
    helpers = [rules[helper] for used in EACH_AXIS.values() for helper in used]
    files = {Path(rule.file) for rule in (*own.values(), *helpers)}
    assert files == {*FOLDER.iterdir()}


# ---- along several axes --------------------------------------------------------------------------


@cache
def pad() -> Operator:
    """The folder's own operator. The folder is read by the tests that need it, not by all runs."""
    rules, _ = stated()
    return operators_of(rules.definitions)["PadAxis"]


def tensor(*shape: int) -> Input:
    return Input("x", TensorType(shape, "float32"))


def full(*shape: int) -> Op:
    return Op("Full", (), (shape, 2.0, "float32"))


def expanded(x: Tensor, *shape: int) -> Op:
    return Op("Expand", (x,), (shape,))


def sliced(x: Tensor, *slices: tuple[int, ...]) -> Tensor:
    for axis, start, stop, step in slices:
        x = Op("Slice", (x,), (axis, start, stop, step))
    return x


def padded(x: Tensor, *amounts: tuple[int, ...]) -> Tensor:
    for axis, low, high, inside in amounts:
        x = Op("PadAxis", (x,), (axis, low, high, inside, 2.0), "", pad())
    return x


X, ROWS, LINE = tensor(5, 6, 7), tensor(5, 1, 7), tensor(1, 6, 1)
FULL = full(5, 6, 7)
TWICE = sliced(X, (0, 1, 5, 1), (1, 2, 6, 1))


@cache
def sides() -> dict[str, tuple[Tensor, Tensor]]:
    spread = padded(X, (0, 1, 2, 1), (1, 2, 0, 2))
    return {
        "slice-01": (sliced(X, (0, 0, 5, 1), (2, 0, 7, 1)), X),
        "slice-02": (sliced(FULL, (0, 1, 5, 2), (1, 0, 6, 4)), full(2, 2, 7)),
        "slice-03": (
            sliced(expanded(ROWS, 5, 6, 7), (0, 1, 4, 1), (1, 2, 6, 2), (2, 0, 7, 3)),
            expanded(sliced(ROWS, (0, 1, 4, 1), (2, 0, 7, 3)), 3, 2, 3),
        ),
        "slice-04": (sliced(spread, (0, 1, 10, 2), (1, 2, 18, 3)), X),
        "slice-05": (sliced(spread, (0, 0, 1, 1), (1, 0, 2, 1)), full(1, 2, 7)),
        "slice-06": (
            sliced(padded(X, (0, 1, 2, 0), (1, 2, 0, 0)), (0, 2, 5, 1), (1, 3, 7, 2)),
            sliced(X, (0, 1, 4, 1), (1, 1, 5, 2)),
        ),
        "slice-07": (sliced(TWICE, (0, 1, 3, 1), (1, 0, 2, 1)),
                     sliced(X, (0, 2, 4, 1), (1, 2, 4, 1))),
        "slice-09": (sliced(expanded(LINE, 5, 6, 7), (0, 1, 4, 1), (2, 2, 7, 2)),
                     expanded(LINE, 3, 6, 3)),
        "broadcast-05": (sliced(FULL, (0, 0, 4, 2), (1, 1, 5, 4)), full(2, 1, 7)),
        "broadcast-06": (sliced(FULL, (0, 0, 4, 1), (1, 1, 5, 1)), full(4, 4, 7)),
        "pad-01": (padded(X, (0, 0, 0, 0), (2, 0, 0, 0)), X),
        "pad-02": (padded(LINE, (0, 1, 2, 3), (2, 0, 1, 4)),
                   padded(LINE, (0, 1, 2, 0), (2, 0, 1, 0))),
        "pad-03": (padded(expanded(ROWS, 5, 6, 7), (0, 1, 0, 0), (2, 2, 1, 0)),
                   expanded(padded(ROWS, (0, 1, 0, 0), (2, 2, 1, 0)), 6, 6, 10)),
        "pad-04": (
            padded(X, (0, -1, -2, 0), (2, -2, -1, 0), (1, 1, 2, 0)),
            sliced(padded(X, (0, 0, 0, 0), (2, 0, 0, 0), (1, 1, 2, 0)), (0, 1, 3, 1), (2, 2, 6, 1)),
        ),
        "dyslice-02": (sliced(X, (1, 0, 6, 1), (2, 0, 7, 1)), X),
        "dyslice-03": (
            sliced(expanded(ROWS, 5, 6, 7), (0, 1, 4, 1), (1, 2, 6, 1), (2, 0, 6, 1)),
            expanded(sliced(ROWS, (0, 1, 4, 1), (2, 0, 6, 1)), 3, 4, 6),
        ),
        "dyslice-04": (
            sliced(Op("Permute", (X,), ((2, 0, 1),)), (0, 1, 6, 1), (1, 2, 5, 1)),
            Op("Permute", (sliced(X, (2, 1, 6, 1), (0, 2, 5, 1)),), ((2, 0, 1),)),
        ),
        "dyslice-05": (sliced(TWICE, (0, 1, 3, 1), (1, 0, 2, 1)),
                       sliced(X, (0, 2, 4, 1), (1, 2, 4, 1))),
    }  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("name", EACH_AXIS)
def test_a_rule_along_one_axis_is_the_rewrite_along_several(name: str) -> None:
    """By the rules that the benchmark names, and by none of eqsynth's own."""
    left, right = sides()[name]
    rules, _ = stated()
    data = {"x": np.random.default_rng(0).normal(size=_shape_of(left))}
    np.testing.assert_array_equal(evaluate(left, data), evaluate(right, data))

    def met(*names: str) -> bool:
        kept = tuple(r for r in rules.rules if r.kind == "analysis" or r.name in names)
        return meet((left,), (right,), replace(rules, rules=kept), Limits(20_000, 30.0)).proved

    assert met(name, *EACH_AXIS[name])
    assert not any(met(*{name, *EACH_AXIS[name]} - {needed}) for needed in (
        name, *EACH_AXIS[name]))  # fmt: skip


def _shape_of(term: Tensor) -> tuple[int, ...]:
    """The shape of the input in a term; any shape if there is none."""
    while not isinstance(term, Input):
        if not isinstance(term, Op) or not term.args:
            return (1,)
        term = term.args[0]
    return term.shape
