"""What the verifier takes each operator to be, held to the interpreter at small shapes."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType

z3 = pytest.importorskip("z3")

from eqsynth.verify.integers import Integers  # noqa: E402
from eqsynth.verify.operators import SPECTATORS, Operators  # noqa: E402
from eqsynth.verify.symbolic import Symbolic, leaf  # noqa: E402
from eqsynth.verify.values import Call, Guard, Number, Read, Reduce, Value  # noqa: E402


class Plain(Integers):
    """Quotients of numbers, as numbers."""

    def floor(self, x: Any, m: Any) -> tuple[Any, Any]:
        return z3.IntVal(whole(x) // whole(m)), z3.IntVal(whole(x) % whole(m))


def whole(x: Any) -> int:
    return x if isinstance(x, int) else z3.simplify(x).as_long()


def required(condition: Any) -> None:
    assert z3.is_true(z3.simplify(condition)), condition


FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "relu": lambda x: max(x, 0), "max": max, "points": lambda *ks: 1 / math.prod(ks),
    "where": lambda c, x, y: x if c else y,
}  # fmt: skip


def number_of(value: Value, env: dict[str, Any], at: tuple[tuple[Any, Any], ...] = ()) -> Any:
    """The value at numbers for its iterators."""

    def index(x: Any) -> int:
        return x if isinstance(x, int) else whole(z3.substitute(x, *at) if at else x)

    match value:
        case Number():
            return value.value
        case Read(name="integer"):
            return index(value.index[0])
        case Read():
            array = env[value.name]
            places = tuple(map(index, value.index))
            assert value.flat or all(0 <= i < n for i, n in zip(places, array.shape, strict=True))
            return array.reshape(-1)[places[0]] if value.flat else array[places]
        case Call():
            return FUNCTIONS[value.name](*(number_of(arg, env, at) for arg in value.args))
        case Guard():
            held = z3.simplify(z3.substitute(value.condition, *at) if at else value.condition)
            return number_of(value.inside if z3.is_true(held) else value.outside, env, at)
        case Reduce():
            ranges = [range(index(extent)) for _, extent in value.iterators]
            names = [k for k, _ in value.iterators]
            found = [
                number_of(value.body, env, (*at, *zip(names, map(z3.IntVal, point), strict=True)))
                for point in product(*ranges)
            ]
            fold = {"sum": math.fsum, "max": max, "min": min, "prod": math.prod}
            return fold[value.reducer](found)
    raise AssertionError(value)


CASES: list[tuple[str, list[tuple[int, ...]], tuple[Any, ...]]] = [
    ("Add", [(2, 3), (3,)], ()), ("Sub", [(2, 1), (1, 3)], ()), ("Mul", [(), (2,)], ()),
    ("Neg", [(3,)], ()), ("Relu", [(2, 2)], ()), ("Maximum", [(2, 1, 2), (3, 1)], ()),
    ("Slice", [(2, 7)], (1, 1, 6, 2)), ("Slice", [(5,)], (0, 2, 2, 1)),
    ("Reverse", [(2, 3, 4)], ((2, 0),)), ("Reverse", [(3,)], ((),)),
    ("Stride", [(6, 2)], (0, 3)), ("Shift", [(5, 2)], (0, -7)), ("Shift", [(2, 5)], (1, 3)),
    ("Unfold", [(4, 2)], (0, 3)), ("Unfold", [(3,)], (0, 4)), ("Split", [(2, 6)], (1, 3)),
    ("Merge", [(2, 3, 4)], (1,)), ("Reshape", [(2, 6)], ((3, 2, 2),)), ("Reshape", [()], ((1,),)),
    ("Expand", [(1, 3)], ((2, 4, 3),)), ("Permute", [(2, 3, 4)], ((2, 0, 1),)),
    ("Pad", [(2, 3)], ((1, 0), (0, 2), 7.0)), ("Concat", [(2, 1), (2, 3), (2, 2)], (1,)),
    ("ReduceSum", [(2, 3, 2)], ((0, 2), 0)), ("ReduceMax", [(2, 3)], ((1,), 1)),
    ("ReduceMin", [(2, 3)], ((0,), 0)), ("ReduceProd", [(2, 3)], ((), 0)),
    ("Matmul", [(2, 1, 2, 3), (3, 3, 2)], ()), ("Matmul", [(2, 3), (3, 1)], ()),
    ("Conv2d", [(1, 2, 4, 5), (2, 2, 2, 3)], ((2, 1), (1, 0), (1, 2), 1)),
    ("Conv2d", [(1, 4, 3, 3), (6, 2, 2, 1)], ((1, 2), (0, 1), (1, 1), 2)),
    ("Conv2d", [(1, 3, 3, 3), (3, 1, 2, 2)], ((1, 1), (0, 1), (1, 1), 3)),
    ("FusedConv2d", [(1, 2, 3, 4), (3, 2, 2, 2), (3,)], ((1, 2), (0, 1), (1, 1), 1, "relu")),
    ("FusedConv2d", [(1, 2, 3, 4), (3, 2, 2, 2), (3,)], ((1, 2), (0, 1), (1, 1), 1, "none")),
    ("Iota", [], ((2, 3), 1, "int64")), ("Reshape", [(1, 3, 1)], ((3, 1, 1, 1),)),
    ("MaxPool2d", [(1, 2, 4, 5)], ((2, 3), (2, 1), (1, 1), (1, 1))),
    ("AvgPool2d", [(1, 1, 4, 5)], ((2, 3), (2, 1), (1, 1), (2, 1))),
    ("Full", [], ((2, 3), 2.5, "float64")), ("CumSum", [(2, 4)], (1,)),
    ("CumSum", [(3, 2, 2)], (0,)),
]  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "shapes", "attrs"), CASES)
def test_an_operator_is_what_the_interpreter_says(
    name: str, shapes: list[tuple[int, ...]], attrs: tuple[Any, ...]
) -> None:
    rng = np.random.default_rng(0)
    inputs = tuple(Input(f"x{n}", TensorType(s, "float64")) for n, s in enumerate(shapes))
    env = {x.name: rng.integers(-9, 9, x.shape).astype(np.float64) for x in inputs}
    expected = evaluate(Op(name, inputs, attrs), env)
    tensors = [leaf(x.name, tuple(map(z3.IntVal, x.shape))) for x in inputs]
    args: list[Any] = [tensors] if name == "Concat" else [*tensors]
    found = Operators(Plain(), required).apply(name, [*args, *attrs])
    assert tuple(map(whole, found.extents)) == expected.shape
    for place in np.ndindex(expected.shape):
        here = tuple(map(z3.IntVal, place))
        assert number_of(found.at(here), env) == pytest.approx(expected[place])
        position = int(np.ravel_multi_index(place, expected.shape)) if place else 0
        if name in ("Reshape", "Split", "Merge", "Full"):
            assert number_of(found.flat(z3.IntVal(position)), env) == expected[place]


def test_an_embedding_looks_its_rows_up() -> None:
    table = Input("t", TensorType((3, 2), "float64"))
    ids = Input("ids", TensorType((2, 2), "int64"))
    env = {"t": np.arange(6.0).reshape(3, 2), "ids": np.array([[2, 0], [1, 2]])}
    found = Operators(Plain(), required).apply(
        "Embedding", [leaf(x.name, tuple(map(z3.IntVal, x.shape))) for x in (table, ids)]
    )
    expected = evaluate(Op("Embedding", (table, ids)), env)
    assert tuple(map(whole, found.extents)) == expected.shape
    for *at, column in np.ndindex(expected.shape):
        element = found.at(tuple(map(z3.IntVal, (*at, column))))
        assert isinstance(element, Read) and element.name == "t"
        row, read = element.index
        # The row is that function of the place in ids which stands for its elements.
        assert [whole(place) for place in row.children()] == at and whole(read) == column
        assert expected[*at, column] == env["t"][env["ids"][tuple(at)], column]


def test_an_identity_matrix_is_one_on_its_diagonal() -> None:
    found = Operators(Plain(), required)
    rows, columns = (found.apply("Iota", [(3, 3), axis, "int64"]) for axis in (0, 1))
    one = found.apply("Cast", [found.apply("Equal", [rows, columns]), "float32"])
    values = [[number_of(one.at((z3.IntVal(i), z3.IntVal(j))), {}) for j in range(3)]
              for i in range(3)]  # fmt: skip
    assert np.array_equal(values, np.eye(3))


def test_every_operator_whose_ranks_are_argued_is_held() -> None:
    known = {name for name, _, _ in CASES} | {"LayerNorm", "Embedding"}
    functions = {name for name in SPECTATORS if name not in known}
    # The rest are functions of the table, by their names.
    x = Symbolic((), lambda _: Number(0.0), lambda _: Number(0.0))
    for name in functions:
        arity = arity_of(name)
        value = Operators(Plain(), required).apply(name, [x] * arity).at(())
        assert isinstance(value, Call) and len(value.args) == arity


def arity_of(name: str) -> int:
    from eqsynth.ir.operators import operator

    arity = operator(name).arity
    assert arity is not None
    return arity
