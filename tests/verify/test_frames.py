"""Permutations in rules of any rank: where the argument holds, and where it doesn't."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.verify import verify_rule

pytest.importorskip("z3")

from eqsynth.verify.forms import Form  # noqa: E402

HEAD = ";; own.egg -- own.\n;;\n;; Numerics   bitwise\n;; Status     validated\n\n;; x\n"


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    def one(text: str):  # type: ignore[no-untyped-def]
        path = tmp_path / "own.egg"
        path.write_text(f'{HEAD}{text} :ruleset simplify :name "own")', encoding="utf-8")
        rules = load_rules([*DEFAULT_FILES, path])
        return rules, rules["own"]

    return one


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("(rewrite (Relu (Permute x o)) (Permute (Relu x) o)", 0),
        ("(rewrite (Permute (Add x y) o) (Add (Permute x o) (Permute y o))"
         " :when ((= (shape x) (shape y)) (= (dtype x) (dtype y)))", 0),
        ("(rewrite (Slice (Permute x o) a f g 1) (Permute (Slice x b f g 1) o)"
         " :when ((= b (vec-get o a)))", 1),
        ("(rewrite (Reverse (Permute x o) (vec-of a)) (Permute (Reverse x (vec-of b)) o)"
         " :when ((= b (vec-get o a)))", 1),
        ("(rewrite (Permute (Full s v d) o) (Full t v d)"
         " :when ((= e (Permute (Full s v d) o)) (= t (shape e)))", 0),
        ("(rewrite (Slice (Permute (Slice x b h k 1) o) a f g 1)"
         " (Permute (Slice (Slice x b h k 1) b f g 1) o) :when ((= b (vec-get o a)))", 1),
        # Two axes, or one: the choices of ranks have both.
        ("(rewrite (Slice (Permute (Slice (Relu x) b h k 1) o) a f g 1)"
         " (Relu (Slice (Permute (Slice x b h k 1) o) a f g 1))", 2),
    ],
)  # fmt: skip
def test_what_holds_behind_a_permutation_is_proved(read, rule: str, named: int) -> None:  # type: ignore[no-untyped-def]
    rules, own = read(rule)
    verdict = verify_rule(rules, own, samples=False)
    assert verdict.outcome == "proved", verdict.why
    frames = Form(rules, own).frames
    assert frames is not None and len(frames.named) - len(frames.followed) == named


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        # Its own inverse is a permutation of two axes; those of three are in cycles.
        "(rewrite (Permute (Permute x o) o) x",
        "(rewrite (Permute (Permute x o) p) (Permute (Permute x p) o)",
        # A tensor that is square, in two frames.
        "(rewrite (Permute (Add x (Permute x o)) o) (Add x (Permute x o))"
        " :when ((= y (Permute x o)) (= (shape x) (shape y)))",
        "(rewrite (Permute (Full s v d) o) (Full s v d)",
        # Another axis behind the permutation; the axis before it; two numbers in two frames.
        "(rewrite (Slice (Permute x o) a f g 1) (Permute (Slice x a f g 1) o)",
        "(rewrite (Slice (Permute (Slice x b h k 1) o) a f g 1)"
        " (Permute (Slice (Slice x b h k 1) b f g 1) o) :when ((= a (vec-get o b)))",
        "(rewrite (Slice (Permute (Slice x b h k 1) o) a f g 1)"
        " (Permute (Slice (Slice x b h k 1) b f g 1) o) :when ((!= a b))",
        "(rewrite (Slice (Permute (Slice x b h k 1) o) a h k 1)"
        " (Slice (Permute (Slice x b h k 1) o) a h k 1) :when ((!= a b))",
        # The axes of another tensor's rank; an axis that is dropped; a product, by its last axes.
        "(rewrite (Add (Permute x o) y) (Permute (Add x y) o)",
        "(rewrite (ReduceMax (Permute x o) (vec-of a) 0) (Permute (ReduceMax x (vec-of b) 0) o)"
        " :when ((= b (vec-get o a)))",
        "(rewrite (Permute (Matmul x y) o) (Matmul (Permute y o) (Permute x o))",
        "(rewrite (Permute (Iota s a \"int64\") o) (Iota t a \"int64\")"
        " :when ((= e (Permute (Iota s a \"int64\") o)) (= t (shape e)))",
    ],
)  # fmt: skip
def test_what_depends_on_the_permutation_is_not_proved(read, rule: str) -> None:  # type: ignore[no-untyped-def]
    rules, own = read(rule)
    assert verify_rule(rules, own, samples=False).outcome == "not proved"


@pytest.mark.parametrize(
    "rule",
    [
        "(rewrite (Add (Permute x o) x) (Add x (Permute x o))",
        "(rewrite (Permute (Full s v d) o) (Full s v d)",
        "(rewrite (Relu (Permute (Permute x o) p)) (Permute (Permute (Relu x) o) p)",
        "(rewrite (Slice (Permute x o) 0 f g 1) (Permute (Slice x 0 f g 1) o)",
        "(rewrite (ReduceMax (Permute x o) r 1) (Permute (ReduceMax x r 1) o)",
    ],
)
def test_a_tensor_in_two_frames_is_none_for_the_argument(read, rule: str) -> None:  # type: ignore[no-untyped-def]
    assert Form(*read(rule)).frames is None


def test_permutations_of_three_axes_are_not_their_own_inverses() -> None:
    x = Input("x", TensorType((2, 3, 4), "float32"))
    data = {"x": np.arange(24.0).reshape(2, 3, 4)}
    for rank in (1, 2):
        assert all(tuple(order[n] for n in order) == (*range(rank),)
                   for order in permutations(range(rank)))  # fmt: skip
    twice = Op("Permute", (Op("Permute", (x,), ((1, 2, 0),)),), ((1, 2, 0),))
    assert evaluate(twice, data).shape != x.shape


def test_an_axis_can_be_left_out_behind_a_permutation() -> None:
    """The obligation of the argument: at an index of an axis that nothing names, both sides are the
    rule's sides for slices, without the axis."""
    draw = np.random.default_rng(0)
    for order in permutations(range(4)):
        shape = (3, 2, 4, 3)
        x = Input("x", TensorType(shape, "float32"))
        array = draw.integers(0, 9, shape).astype("float32")
        named, rest = 1, [n for n in range(4) if n != 1]
        cut = Op("Slice", (Op("Permute", (x,), (order,)),), (named, 1, shape[order[named]], 1))
        whole = evaluate(cut, {"x": array})
        for out in rest:
            behind = order[out]
            smaller = [*order[:out], *order[out + 1 :]]
            own = tuple(axis - (axis > behind) for axis in smaller)
            for at in range(whole.shape[out]):
                part = array.take(at, behind)
                y = Input("y", TensorType(part.shape, "float32"))
                axis = named - (named > out)
                less = Op("Slice", (Op("Permute", (y,), (own,)),),
                          (axis, 1, part.shape[own[axis]], 1))  # fmt: skip
                np.testing.assert_array_equal(evaluate(less, {"y": part}), whole.take(at, out))
