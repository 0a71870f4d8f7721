"""The generator: exact numbers, what is enumerated, what is pruned, what goes on after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eqsynth import kept
from eqsynth.egraph.defined import operators_of
from eqsynth.generate import (
    Candidate,
    Enumerated,
    derive,
    enumerate_graphs,
    reduced,
    with_own,
    worlds_of,
)
from eqsynth.generate.deriving import decide
from eqsynth.generate.numbers import Inexact, agree, fingerprint, grid, symmetric
from eqsynth.ir.arithmetic import computing_in
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.rules.claim import Claim
from eqsynth.tasks import LocalExecutor
from eqsynth.testing.judging import Sides

MATRICES, IMAGES = worlds_of(2)
X, Y = (Input(name, TensorType((3, 3), "float32")) for name in "xy")


# ---- numbers ------------------------------------------------------------------------------


def test_a_ninth_is_exact_and_a_seventh_is_refused() -> None:
    with computing_in(grid(9)):
        x = Input("x", TensorType((), "float32"))
        ninth = Op("Mul", (x, Op("Full", (), ((), 1 / 9, "float32"))))
        assert evaluate(ninth, {"x": np.array(18.0)}) == 2.0
        seventh = Op("Mul", (x, Op("Full", (), ((), 1 / 7, "float32"))))
        with pytest.raises(Inexact):
            evaluate(seventh, {"x": np.array(9.0)})
        with pytest.raises(Inexact):
            evaluate(ninth, {"x": np.array(2.0**50)})


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (Op("Relu", (Op("Relu", (X,)),)), Op("Relu", (X,)), True),
        (Op("Exp", (X,)), Op("Exp", (X,)), True),
        (Op("Exp", (X,)), Op("Tanh", (X,)), False),
        (Op("Exp", (Op("Add", (X, Y)),)), Op("Exp", (Op("Add", (Y, X)),)), True),
        (Op("Exp", (Op("Add", (X, Y)),)), Op("Mul", (Op("Exp", (X,)), Op("Exp", (Y,)))), False),
        (Op("Matmul", (X, Y)), Op("Matmul", (Y, X)), False),
        (Op("Relu", (X,)), Op("Abs", (X,)), False),
    ],
)
def test_equal_fingerprints_are_equal_values(left: Op, right: Op, same: bool) -> None:
    assert (fingerprint(left, 9) == fingerprint(right, 9)) == same


def test_a_graph_of_two_outputs_has_one_fingerprint_in_both_orders() -> None:
    assert symmetric((3, 5)) == symmetric((5, 3)) != symmetric((4, 4))


# ---- enumerating --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Enumerated:
    return enumerate_graphs(MATRICES, 2)


@pytest.mark.rotating
def test_every_equality_holds_and_every_first_term_is_a_value_of_its_own(
    found: Enumerated,
) -> None:
    table = found.table
    assert found.left_out == 0 and len(found.equal) > 200
    assert len(set(table.hashes)) == len(table.hashes)
    for earlier, row in found.equal[::7]:
        candidate = Candidate(table, (earlier,), (row,))
        (left,), (right,) = candidate.terms
        assert Sides(left, right).verdict("normal", Claim("cancels")) is None, str(candidate)


@pytest.mark.rotating
def test_what_has_one_sign_on_few_assignments_is_not_what_relu_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four products on a diagonal are positive on both first assignments, and on others not."""
    world = worlds_of(3)[0]
    few = tuple(p for p in world.primitives if p.name in ("ewmul", "relu"))
    world = replace(world, primitives=few)
    x0, x1 = world.leaves["x0"], world.leaves["x1"]
    product = Op("Mul", (world.leaves["I_matmul"], Op("Mul", (x1, x0))))
    rectified = Op("Relu", (product,))
    assert fingerprint(product, 1) == fingerprint(rectified, 1)
    assert not agree(product, rectified, 8)
    above = Op("Mul", (x0, Op("Add", (x0, world.leaves["I_ewmul"]))))
    assert not agree(above, Op("Relu", (above,)), 4)  # of whole numbers it is never below 0

    def said() -> set[str]:
        return {str(candidate) for candidate in reduced(enumerate_graphs(world, 3))[0]}

    wrong = "ewmul(I_matmul, ewmul(x1, x0)) = relu(ewmul(I_matmul, ewmul(x1, x0)))"
    right = "relu(x0) = relu(relu(x0))"
    assert right in said() and wrong not in said()
    # It can tell: with the first assignments alone the equality is said.
    monkeypatch.setattr("eqsynth.generate.enumerating.FURTHER", (0,))
    monkeypatch.setattr("eqsynth.generate.numbers.FURTHER", (0,))
    assert wrong in said()


@pytest.mark.rotating(parts=4)
def test_candidates_are_the_most_general(found: Enumerated) -> None:
    candidates, counts = reduced(found)
    said = {str(candidate) for candidate in candidates}
    assert {
        "x0 = transpose(transpose(x0))",
        "x1 = split0[0](concat0(x1, x0))",
        "ewadd(x1, x0) = ewadd(x0, x1)",
        "smul(matmul(x0, x1), s) = matmul(smul(x0, s), x1)",
        "x0 = matmul(x0, I_matmul)",
    } <= said
    # Instances, by one name for two inputs, by a common subgraph, by a constant.
    assert not {
        "ewadd(x0, x0) = ewadd(x0, x0)",
        "x0 = split0[0](concat0(x0, x0))",
        "x0 = split0[0](concat0(x0, I_ewmul))",
        "relu(x0) = transpose(transpose(relu(x0)))",
    } & said
    assert counts.initial > counts.renamed > counts.common > counts.subsumed == len(candidates)
    assert not [text for text in said if "transpose(transpose(relu" in text]


@pytest.mark.rotating
def test_a_level_that_was_ended_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "ended"))
    monkeypatch.setattr("eqsynth.generate.enumerating.CHUNK", 200)

    class Ended(BaseException):
        pass

    def end(_stage: str, done: int) -> None:
        if done >= 600:
            raise Ended

    with pytest.raises(Ended):
        enumerate_graphs(MATRICES, 2, told=end)
    chunks = sorted(kept.directory("generated").iterdir())
    assert len(chunks) >= 3
    chunks[0].write_bytes(chunks[0].read_bytes()[:-1])
    again = enumerate_graphs(MATRICES, 2, executor=LocalExecutor(2))
    assert again.from_cache >= len(chunks) - 1
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "fresh"))
    fresh = enumerate_graphs(MATRICES, 2)
    assert fresh.from_cache == 0
    assert (again.equal, again.table.rows) == (fresh.equal, fresh.table.rows)


@pytest.mark.rotating
def test_an_operator_of_a_rule_file_is_enumerated(tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text(OWN, encoding="utf-8")
    own = operators_of(load_rules([*DEFAULT_FILES, path]).definitions)
    matrices, _ = with_own((MATRICES, IMAGES), own)
    found = enumerate_graphs(matrices, 1)
    said = {str(candidate) for candidate in reduced(found)[0]}
    assert "Midpoint(x1, x0) = Midpoint(x0, x1)" in said
    assert "x0 = Midpoint(x0, x0)" in said


OWN = """\
;; own.egg -- the middle of two tensors.
;;
;; Rulesets   own
;; Needs      schema.egg
;; Numerics   real
;; Status     definition

(ruleset own)

;; midpoint(a, b) = (a + b) / 2
(define (Midpoint a b) (Mul (Add a b) (Full (vec-empty) 0.5 (dtype a))) :ruleset own)
"""


# ---- deriving -----------------------------------------------------------------------------


@pytest.mark.rotating
def test_what_is_derived_what_is_not_and_what_is_wrong(found: Enumerated) -> None:
    table = found.table
    candidates = {str(c): c for c in reduced(found)[0]}
    wrong = Candidate(table, (table.levels[1][0],), (table.levels[1][1],))
    asked = [
        candidates["x0 = transpose(transpose(x0))"],
        candidates["smul(matmul(x0, x1), s) = matmul(smul(x0, s), x1)"],
        wrong,
    ]
    first = list(derive(asked))
    assert [one.outcome for one in first] == ["derived", "derived", "refuted"]
    assert first[1].is_exact
    assert [one.seconds for one in derive(asked)] == [one.seconds for one in first]


def test_data_of_one_sign_tells_maxima_of_products_from_those_of_their_relu() -> None:
    """Nine products of mixed signs are seldom all negative. Without data of one sign for each input
    the candidate stayed as "not derived", like an equality without a rule."""
    x = Input("x", TensorType((1, 2, 5, 4), "float32"))
    k = Input("k", TensorType((2, 2, 1, 1), "float32"))
    found = Op("Conv2d", (x, k), ((1, 1), (0, 0), (1, 1), 1))
    left, right = (Op("MaxPool2d", (t,), ((3, 3), (1, 1), (0, 0), (1, 1)))
                   for t in (found, Op("Relu", (found,))))  # fmt: skip
    outcome, why, is_exact, _ = decide((left,), (right,), (), 100, 1.0)
    assert (outcome, is_exact) == ("refuted", False)
    assert "negative" in why


@pytest.mark.slow
def test_graphs_of_two_outputs_share_work() -> None:
    """Two products with one matrix are one product and a split [TASO, Fig. 2b]."""
    found = enumerate_graphs(MATRICES, 3, executor=LocalExecutor(2))
    said = {str(candidate) for candidate in reduced(found)[0]}
    assert [text for text in said if text.count("split") == 2 and text.count("matmul") == 4]
