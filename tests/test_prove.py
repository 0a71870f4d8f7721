"""prove_equal: what is proved, what is not, and the derivation from one program to the other."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import eqsynth
from eqsynth import differing, ops
from eqsynth.egraph import chains
from eqsynth.egraph.explanation import Derivation
from eqsynth.errors import EqsynthError, EquivalenceError, ShapeError
from eqsynth.explain import Explanation
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.tensor import Input, Op, Tensor, Weight, topological
from eqsynth.prove import Proof, prove_equal

A, B, C = (eqsynth.input(name, (4, 4)) for name in "ABC")


def agree(explanation: Explanation) -> int:
    """Every program of the chain has the value of the first; how many there are."""
    rng = np.random.default_rng(0)
    env: dict[str, Any] = {}
    first: list[Any] | None = None
    count = 0
    for rule, program in explanation.programs():
        for leaf in topological(program.outputs):
            if isinstance(leaf, Input | Weight) and leaf.label not in env:
                env[leaf.label] = rng.normal(size=leaf.shape)
        values = evaluate_all(program.outputs, env)
        got = [values[term] for term in program.outputs]
        first = first or got
        for y, z in zip(got, first, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-12, err_msg=rule)
        count += 1
    return count


def replay(proof: Proof) -> int:
    """Checks each step against the log alone; how many there are."""
    assert proof.meeting is not None
    derivation = Derivation()
    derivation.add_log(proof.meeting.log, {})
    before = derivation.outputs(proof.meeting.left)
    after = derivation.outputs(proof.meeting.right)
    steps = derivation.chain(before, after, 20_000)
    chains.replay(derivation.forest, steps)
    assert (steps[0].before, steps[-1].after) == (before, after)
    derivation.forest.verify(derivation.lemmas(before, after))
    with pytest.raises(EquivalenceError):
        chains.replay(derivation.forest, steps[:1] * 2)
    return len(steps)


# ---- EinNet's chain ----------------------------------------------------------------------------


H, W, CHANNELS, F = 5, 4, 3, 2


@pytest.fixture(scope="module")
def einnet() -> Proof:
    """A 3x3 convolution, and its Matmul + OffsetReduce (EinNet, §3 and its Figure 3)."""
    x, k = eqsynth.input("X", (H, W, CHANNELS)), eqsynth.weight("K", (3, 3, F, CHANNELS))
    conv = eqsynth.scope(
        lambda h, w, f: eqsynth.sum(
            lambda r, s, c: x[h + r - 1, w + s - 1, c] * k[r, s, f, c], r=3, s=3, c=CHANNELS
        ),
        h=H, w=W, f=F,
    )  # fmt: skip
    image = ops.reshape(x, (H * W, CHANNELS))
    kernel = ops.reshape(ops.permute(k, (3, 0, 1, 2)), (CHANNELS, 9 * F))
    product = ops.reshape(ops.matmul(image, kernel), (H, W, 3, 3, F))
    offset_reduce = eqsynth.scope(
        lambda h, w, f: eqsynth.sum(
            lambda r, s: product[h + r - 1, w + s - 1, r, s, f], r=3, s=3
        ),
        h=H, w=W, f=F,
    )  # fmt: skip
    return prove_equal(conv, offset_reduce, time_limit_s=60)


@pytest.mark.rotating
def test_a_convolution_is_a_product_and_an_offset_reduce(einnet: Proof) -> None:
    assert einnet and einnet.stop == "proved"
    assert einnet.seconds > 0 and einnet.meeting is not None
    # Nothing runs away: a class of zeros, in which laws of indices find ever larger factors,
    # made a hundred thousand equalities of this.
    assert 0 < einnet.enodes < 2000
    assert len(einnet.meeting.log.equalities) < 2000


@pytest.mark.rotating
def test_the_explanation_goes_through_einnets_chain(einnet: Proof) -> None:
    explanation = einnet.explain()
    assert isinstance(explanation, Explanation)
    chain = ["sum-split", "variable-substitution", "boundary-tighten"]
    places = [explanation.rules.index(rule) for rule in chain]
    assert places == sorted(places)
    assert all(step.forward for step in explanation.steps[: places[-1] + 1])
    last = explanation.steps[-1].after
    names = {term.name for term in topological(last) if isinstance(term, Op)}
    assert names == {"Matmul", "Reshape", "Permute"}
    assert all(rule in explanation.full for rule in chain)
    assert all(rule in str(explanation) for rule in chain)


def test_a_proof_is_told_as_what_its_steps_change(einnet: Proof, golden: Any) -> None:
    golden.check("explain/conv3x3_offset_reduce.txt", f"{einnet.explain()}\n")


def test_every_program_of_the_chain_has_one_value(einnet: Proof) -> None:
    explanation = einnet.explain()
    assert isinstance(explanation, Explanation)
    assert agree(explanation) == len(explanation.steps) + 1


def test_every_step_of_the_chain_replays(einnet: Proof) -> None:
    explanation = einnet.explain()
    assert isinstance(explanation, Explanation)
    assert replay(einnet) == len(explanation.steps)
    for step, following in zip(explanation.steps, explanation.steps[1:], strict=False):
        assert step.after == following.before


# ---- what is proved --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((A @ B) @ C, A @ (B @ C)),
        (A @ B + A @ C, A @ (B + C)),
        (A + B, B + A),
        (ops.relu(ops.relu(A)), ops.relu(A)),
        (ops.permute(ops.permute(A, (1, 0)), (1, 0)), A),
        (ops.permute(A @ B, (1, 0)), ops.permute(B, (1, 0)) @ ops.permute(A, (1, 0))),
        (A, A),
    ],
)  # fmt: skip
def test_equal_programs_are_proved(left: Any, right: Any) -> None:
    proof = prove_equal(left, right, time_limit_s=600)
    assert proof and proof.stop == "proved"
    explanation = proof.explain()
    assert isinstance(explanation, Explanation)
    assert agree(explanation) == len(explanation.steps) + 1


@pytest.mark.rotating(parts=4)
def test_several_outputs_are_proved_together() -> None:
    proof = prove_equal([A @ B + A @ C, A + B], [A @ (B + C), B + A], time_limit_s=600)
    assert proof
    assert not prove_equal([A + B, A @ B], [B + A, B @ A], time_limit_s=10)


# ---- what is not ---------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (A @ B, B @ A),
        (A @ B, A @ C),
        (A - B, B - A),
        (ops.relu(A + B), ops.relu(A) + ops.relu(B)),
        (ops.permute(A, (1, 0)), A),
        (ops.exp(A) @ B, ops.exp(A @ B)),
    ],
)
def test_other_programs_are_not_proved(left: Any, right: Any) -> None:
    proof = prove_equal(left, right, time_limit_s=10)
    assert not proof and proof.stop in ("saturated", "rounds", "deadline", "node_limit")
    explanation = proof.explain()
    assert not isinstance(explanation, Explanation)
    assert proof.stop in str(explanation) and explanation.steps == ()


@pytest.mark.rotating
def test_programs_that_differ_are_told_with_small_data() -> None:
    table, rows = eqsynth.input("table", (5, 2)), eqsynth.input("rows", (3,), "int64")
    twice = prove_equal(ops.embedding(table, rows), ops.embedding(table * 2.0, rows))
    found = twice.counterexample
    assert found is not None and not twice and twice.samples == 0
    assert found.values["rows"].max() < 5 and np.count_nonzero(found.values["table"]) == 1
    assert (found.output, found.left, found.right) == (0, 1.0, 2.0)
    assert found.index[1] == np.nonzero(found.values["table"])[1][0]
    assert str(twice).startswith("different") and "table = [[" in str(twice.explain())

    (second,) = (prove_equal([A, A @ B], [A, B @ A]).counterexample,)
    assert second is not None and second.output == 1


@pytest.mark.rotating
def test_programs_that_are_equal_on_samples_are_told_so() -> None:
    sine = ops.sin(A)
    proof = prove_equal(ops.sin(3.0 * A), 3.0 * sine - 4.0 * sine * sine * sine)
    assert not proof and proof.counterexample is None and proof.samples > 10
    assert f"equal on {proof.samples} samples" in str(proof)
    # A quotient that isn't defined anywhere says nothing, and a large program isn't evaluated.
    assert prove_equal(A / (A - A), B / (B - B)).counterexample is None
    large = eqsynth.input("large", (2048, 2048))
    assert prove_equal(ops.sin(large), ops.cos(large)).samples == 0
    assert str(prove_equal(A @ (B @ C), (A @ B) @ C)).startswith("proved")


def test_infinities_on_both_sides_are_no_warning() -> None:
    zeros = {"A": np.zeros((4, 4), np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs = ops.log(A * A), 2.0 * ops.log(A)  # at 0 both are -inf
        assert differing._difference([logs[0].tensor], [logs[1].tensor], zeros) is None


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
def test_integers_that_wrap_are_told_as_data(dtype: str) -> None:
    n = eqsynth.input("n", (4, 4), dtype)
    largest = np.iinfo(dtype).max
    for left, right in (
        (ops.gt(n + 1, 1), ops.gt(n, 0)),
        (ops.amax(n + 1, (1,)), ops.amax(n, (1,)) + 1),
        (ops.floor_divide(n * 2, 2), n),
    ):
        found = prove_equal(left, right, time_limit_s=10).counterexample
        assert found is not None
        assert np.abs(found.values["n"].astype(float)).max() >= largest - 1


def test_a_search_without_time_says_so() -> None:
    proof = prove_equal((A @ B) @ C, A @ (B @ C), time_limit_s=1e-3)
    assert not proof and proof.stop == "deadline"


def test_a_search_without_room_says_so() -> None:
    assert prove_equal((A @ B) @ C, A @ (B @ C), node_limit=3).stop == "node_limit"
    assert prove_equal(A @ B, B @ A, memory_limit=32 << 20).stop in (
        "worker memory", "worker killed",
    )  # fmt: skip


# ---- what is refused -----------------------------------------------------------------------------


def test_half_an_enode_is_no_limit() -> None:
    with pytest.raises(EqsynthError) as caught:
        prove_equal(A, A, node_limit=0.5)  # type: ignore[arg-type]
    assert caught.value.got == "0.5"


def test_other_types_of_outputs_are_refused() -> None:
    wide = eqsynth.input("D", (4, 5))
    with pytest.raises(ShapeError) as caught:
        prove_equal(A @ B, A @ wide)
    assert (caught.value.got, caught.value.expected) == ("float32[4, 5]", "float32[4, 4]")
    double = eqsynth.input("E", (4, 4), "float64")
    with pytest.raises(ShapeError):
        prove_equal(A, double)
    with pytest.raises(ShapeError):
        prove_equal([A, B], A)


def test_what_is_no_program_is_refused() -> None:
    x = eqsynth.input("x", (2,))
    for wrong in (None, [], [x, None], "x"):
        with pytest.raises(EqsynthError) as caught:
            prove_equal(x, wrong)  # type: ignore[arg-type]
        assert "expression" in caught.value.expected and caught.value.got


def test_unknown_numerics_are_refused() -> None:
    with pytest.raises(EqsynthError) as caught:
        prove_equal(A, A, numerics="exact")
    assert caught.value.got == "'exact'"


def test_numerics_bound_what_is_proved() -> None:
    assert not prove_equal((A @ B) @ C, A @ (B @ C), numerics="bitwise", time_limit_s=10)


def test_inputs_of_one_name_are_one_tensor() -> None:
    again: Tensor | Any = eqsynth.input("A", (4, 4))
    assert prove_equal(ops.relu(again), ops.relu(A), time_limit_s=600)
    assert not prove_equal(ops.relu(eqsynth.weight("A", (4, 4))), ops.relu(A), time_limit_s=10)
