"""Ranks that suffice: the argument of ``rewrites.py``, its obligations, and rules beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rule_mutants import parse
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.operators import operator
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.rules.tree import Var
from eqsynth.verify import Verdict, verify_rule
from eqsynth.verify.forms import Form
from eqsynth.verify.operators import SPECTATORS
from eqsynth.verify.ranks import Ranks

pytest.importorskip("z3")

HEAD = ";; own.egg -- own.\n;;\n;; Numerics   real\n;; Status     validated\n\n"
FLOATS = '(= (dtype x) "float32") (= (dtype y) "float32")'


def verdict(tmp_path: Path, text: str) -> Verdict:
    path = tmp_path / "own.egg"
    path.write_text(f'{HEAD}{text} :ruleset simplify :name "own")', encoding="utf-8")
    rules = load_rules([*DEFAULT_FILES, path])
    return verify_rule(rules, rules["own"], samples=False)


def tensor(name: str, *shape: int) -> Input:
    return Input(name, TensorType(shape, "float32"))


def values(inputs: Mapping[str, Input]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {name: draw.integers(-4, 5, own.shape).astype(float) for name, own in inputs.items()}


def sliced(x: Tensor) -> Op:
    return Op("Slice", (x,), (0, 0, 1, 1))


def summed(x: Tensor, *axes: int, keep: int) -> Op:
    return Op("ReduceSum", (x,), (axes, keep))


def _batches() -> tuple[str, Tensor, Tensor]:
    x, y = tensor("x", 2, 2, 3, 3), tensor("y", 2, 3, 3)
    return (
        f"(rule ((= e (Matmul (Slice x 0 s t 1) (Slice y 0 s t 1))) (= m (Matmul x y))"
        f" (= (shape m) (shape x)) {FLOATS}) ((union e (Slice m 0 s t 1)))",
        Op("Matmul", (sliced(x), sliced(y))), sliced(Op("Matmul", (x, y))),
    )  # fmt: skip


def _sets() -> tuple[str, Tensor, Tensor]:
    x, y = tensor("x", 2, 2, 3), tensor("y", 2, 3)
    return (
        f"(rule ((= e (ReduceSum (Mul x (ReduceSum y a 1)) a 1)) (= m (Add x y))"
        f" (= (shape m) (shape x)) {FLOATS})"
        " ((union e (Mul (ReduceSum x a 1) (ReduceSum y a 1))))",
        summed(Op("Mul", (x, summed(y, 1, keep=1))), 1, keep=1),
        Op("Mul", (summed(x, 1, keep=1), summed(y, 1, keep=1))),
    )  # fmt: skip


def _orders() -> tuple[str, Tensor, Tensor]:
    x = tensor("x", 2, 3, 3)
    return (
        '(rule ((= e (ReduceSum (ReduceSum x a 0) b 0)) (= (dtype x) "float32")'
        " (= m (ReduceSum (ReduceSum x b 0) a 0))) ((union e m))",
        summed(summed(x, 1, keep=0), 0, keep=0), summed(summed(x, 0, keep=0), 1, keep=0),
    )  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("wrong", [_batches, _sets, _orders])
def test_a_rule_that_is_wrong_at_higher_ranks_only_is_not_proved(wrong, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text, left, right = wrong()
    inputs = {leaf.name: leaf for side in (left, right) for leaf in _inputs(side)}
    data = values(inputs)
    one, two = evaluate(left, data), evaluate(right, data)
    assert one.shape != two.shape or not np.array_equal(one, two)
    assert verdict(tmp_path, text).outcome == "not proved"


def _inputs(term: Tensor) -> set[Input]:
    if isinstance(term, Input):
        return {term}
    assert isinstance(term, Op)
    return set().union(*map(_inputs, term.args))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("text", "left_over"),
    [
        # A shape of any length beside a tensor of one axis.
        ('(rewrite (Neg (Neg (Expand x s))) (Expand x s) :when ((= (dtype x) "float32")'
         " (= 1 (vec-length (shape x))))", "the fact"),
        # (3, 1) and (1, 3), (3, 1, 3) and (1, 3, 1), ...: axes that differ in who is broadcast.
        (f"(rewrite (Add (Reshape x s) y) (Add y (Reshape x s)) :when ({FLOATS})", "Reshape"),
        ("(rewrite (Mul (ReduceSum x a 1) y) (Mul y (ReduceSum x a 1))"
         f" :when ({FLOATS})", "sets of axes"),
    ],
)  # fmt: skip
def test_what_the_argument_does_not_cover_is_told(
    text: str, left_over: str, tmp_path: Path
) -> None:
    found = verdict(tmp_path, text)
    assert found.outcome == "not proved" and left_over in found.why, found.why


def own_form(tmp_path: Path, text: str) -> Form:
    path = tmp_path / "own.egg"
    path.write_text(f'{HEAD};; x\n{text} :ruleset simplify :name "own")', encoding="utf-8")
    rules = load_rules([*DEFAULT_FILES, path])
    return Form(rules, rules["own"])


def test_two_axes_are_two_where_all_tensors_have_one_rank(tmp_path: Path) -> None:
    both = "(Add (Reverse {x} (vec-of a)) (Reverse {y} (vec-of b)))"
    text = f"(rewrite {both} {both} :when ((!= a b))"
    assert own_form(tmp_path, text.replace("{x}", "x").replace("{y}", "x")).limited == ""
    # One number means other places in a tensor of another rank.
    limited = own_form(tmp_path, text.replace("{x}", "x").replace("{y}", "y")).limited
    assert limited == "the fact (!= a b)"


def test_shapes_that_a_rule_writes_out_have_ranks(tmp_path: Path) -> None:
    text = '(rewrite (Expand (Iota (vec-of n) 0 "int64") {}) (Iota {} 1 "int64")'
    assert own_form(tmp_path, text.replace("{}", "(vec-of m n)")).limited == ""
    # Axis 1 is the last one of two, and not of three.
    some = text.replace("(Iota {}", "(Iota s").replace("{}", "s")
    assert verdict(tmp_path, some).outcome == "not proved"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("(rewrite (Relu (Neg x)) x", 2),
        ("(rewrite (Matmul (Neg x) y) (Neg (Matmul x y))", 3),
        # [before, a, behind]; [before, a, between, b, behind].
        ("(rewrite (Relu (Slice x a s t 1)) (Slice (Relu x) a s t 1)", 3),
        ("(rewrite (Slice (Slice x a s t 1) b s t 1) x", 5),
        # Axes 0 and 1, and what is behind; both of two operands of several ranks, of their product.
        ("(rewrite (Relu (Slice x 1 s t 1)) (Slice (Relu x) 1 s t 1)", 3),
        ("(rewrite (Add (Slice x 1 s t 1) (Slice y 1 s t 1)) (Add x y)", 2 * 2 + 2),
        ("(rewrite (Matmul (Slice x 1 s t 1) (Slice y 1 s t 1)) (Slice x 1 s t 1)", 2 * 2 + 2 + 2),
        # In a or not; in a, in b, in both, in none.
        ("(rewrite (Relu (ReduceMax x a 1)) (ReduceMax (Relu x) a 1)", 2),
        ("(rewrite (ReduceSum (ReduceSum x a 1) b 1) (ReduceSum (ReduceSum x b 1) a 1)", 4),
        ("(rewrite (Relu (Merge x a)) (Merge (Relu x) a)", 4),
    ],
)
def test_there_is_room_for_each_order_of_places(text: str, rank: int, tmp_path: Path) -> None:
    assert own_form(tmp_path, text).covering_rank() == rank


@pytest.mark.parametrize(
    ("tree", "meeting"),
    [
        ("(Add (Matmul x y) z)", 4),
        ("(Add (ReduceSum x a 1) x)", 0),
        ("(Add (ReduceSum x a 0) x)", 2),
        ("(Add (Slice x a s t 1) (Full (shape x) 0.0 d))", 0),
        ("(Add (Slice x a s t 1) (Full (vec-empty) 0.0 d))", 0),
        ("(Concat (vec-of (Split x a b) (Split x a b)) c)", 0),
        ("(Concat (vec-of (Slice (Split x a b) a s t 1) x) c)", 2),
        ("(Expand x p)", 2),
    ],
)
def test_tensors_of_several_ranks_meet(tree: str, meeting: int) -> None:
    def read(part: object) -> object:
        if isinstance(part, list):
            return (part[0], *map(read, part[1:]))
        assert isinstance(part, str)
        return float(part) if "." in part else int(part) if part.isdigit() else Var(part)

    sorts = {name: "Tensor" for name in "xyz"} | {"p": "Ints", "a": "i64", "c": "i64"}
    assert len(Ranks([read(parse(tree))], sorts).meeting) == meeting  # type: ignore[list-item]


# ---- slices: an operator at an index of an unnamed axis is the operator on slices there ----------

OF_ROWS: Mapping[str, tuple[tuple[tuple[int, ...], ...], tuple[object, ...]]] = {
    # Shapes and attributes; each operand's first two axes are unnamed, or it hasn't got them.
    "Slice": (((5, 3, 4),), (2, 1, 4, 2)), "Stride": (((5, 3, 4),), (2, 2)),
    "Reverse": (((5, 3, 4),), ((2,),)), "CumSum": (((5, 3, 4),), (2,)),
    "Shift": (((5, 3, 4),), (2, 3)), "Unfold": (((5, 3, 4),), (2, 3)),
    "Split": (((5, 3, 4),), (2, 2)), "Merge": (((5, 3, 2, 2),), (2,)),
    "Concat": (((5, 3, 1), (5, 3, 2)), (2,)), "LayerNorm": (((5, 3, 4), (4,), (4,)), (1, 1e-5)),
    "Matmul": (((5, 1, 2, 4), (1, 3, 4, 2)), ()), "Expand": (((5, 1, 4),), ((5, 3, 4),)),
    "ReduceSum": (((5, 3, 4),), ((2,), 1)), "ReduceMax": (((5, 3, 4),), ((2,), 0)),
    "ReduceMin": (((5, 3, 4),), ((2,), 0)), "ReduceProd": (((5, 3, 4),), ((2,), 1)),
    "Embedding": (((4, 2), (5, 3)), ()),
}  # fmt: skip
OF_IMAGES: Mapping[str, tuple[tuple[tuple[int, ...], ...], tuple[object, ...]]] = {
    "Conv2d": (((5, 2, 3, 3), (3, 2, 2, 2)), ((1, 1), (1, 0), (1, 1), 1)),
    "FusedConv2d": (((5, 2, 3, 3), (3, 2, 2, 2), (3,)), ((1, 1), (1, 0), (1, 1), 1, "relu")),
    "MaxPool2d": (((5, 2, 3, 3),), ((2, 2), (1, 1), (1, 0), (1, 1))),
    "AvgPool2d": (((5, 2, 3, 3),), ((2, 2), (1, 1), (1, 0), (1, 1))),
}
ELEMENTWISE = sorted(SPECTATORS - {*OF_ROWS, *OF_IMAGES, "Reshape", "Full", "Iota"})


@pytest.mark.rotating
@pytest.mark.parametrize("name", [*OF_ROWS, *OF_IMAGES, *ELEMENTWISE])
def test_an_operator_is_the_operator_on_slices(name: str) -> None:
    axes = 1 if name in OF_IMAGES else 2
    first = ((5, 1, 4), (1, 3, 4), (3, 4))[: operator(name).arity or 1]
    shapes, attrs = {**OF_ROWS, **OF_IMAGES}.get(name, (first, ()))
    dtypes = ["int64" if (name, n) == ("Embedding", 1) else "float32" for n in range(len(shapes))]
    args = [Input(f"x{n}", TensorType(s, d)) for n, (s, d) in enumerate(zip(shapes, dtypes))]  # noqa: B905
    draw = np.random.default_rng(1)
    data = {x.name: draw.integers(0, 4, x.shape).astype(x.type.dtype) for x in args}
    whole = evaluate(Op(name, tuple(args), attrs), data)
    result = len(whole.shape)
    for at in np.ndindex(*whole.shape[:axes]):
        small: list[Input] = []
        own: dict[str, np.ndarray] = {}
        for x, shape in zip(args, shapes, strict=True):
            array = data[x.name]
            aligned = _unnamed(name, shape, result, axes)
            for axis, place in enumerate(aligned):
                if place is not None:
                    n = at[place] if array.shape[axis] > 1 else 0
                    array = array[(slice(None),) * axis + (slice(n, n + 1),)]
            own[x.name] = array
            small.append(Input(x.name, TensorType(array.shape, x.type.dtype)))
        there = (((1,) * axes + (4,)),) if name == "Expand" else attrs
        part = evaluate(Op(name, tuple(small), there), own)
        cut = whole[tuple(slice(n, n + 1) for n in at)]
        np.testing.assert_array_equal(part, cut)


def _unnamed(name: str, shape: tuple[int, ...], result: int, axes: int) -> list[int | None]:
    """For each axis of an operand, the unnamed axis of the result to which it belongs, or None."""
    if name == "Embedding":
        return [0, 1] if shape == (5, 3) else [None, None]
    if name in OF_IMAGES:
        return [0 if shape[0] == 5 and n == 0 else None for n in range(len(shape))]
    if name in OF_ROWS and name not in ("Matmul", "LayerNorm"):
        return [n if n < axes else None for n in range(len(shape))]
    before = result - len(shape)
    return [n + before if n + before < axes else None for n in range(len(shape))]
