"""Terms as formulas: what they look like, and that they mean what the terms do."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import eqsynth
from eqsynth import ops
from eqsynth.frontend.expr import Expr
from eqsynth.ir.formulas import in_one, kind_of, lines
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Num, Read, product, total
from eqsynth.ir.tensor import Input, Scope, Tensor, Weight, args_of
from eqsynth.ir.types import TensorType

A, B, C = (eqsynth.input(name, (4, 4)) for name in "abc")
X, W = eqsynth.input("x", (1, 3, 8, 8)), eqsynth.weight("w", (5, 3, 3, 3))
V, U = eqsynth.input("v", (4,)), eqsynth.input("u", (4, 3))


def text(term: Tensor, longest: int = 200) -> str | None:
    return in_one((term,), lambda t: t.label if isinstance(t, Input | Weight) else None, longest)


@pytest.mark.parametrize(
    ("expr", "formula"),
    [
        ((A @ B) @ C, "(a @ b) @ c"),
        (A @ B + C, "a @ b + c"),
        (A - (B - C), "a - (b - c)"),
        ((A - B) * C, "(a - b) * c"),
        (ops.relu(A @ ops.permute(B, (1, 0)) + 1.0), "relu(a @ bᵀ + 1)"),
        (ops.permute(A + B, (1, 0)), "(a + b)ᵀ"),
        (ops.reshape(A, (2, 8)), "reshape(a, [2, 8])"),
        (ops.reshape(V, (4, 1)) * A, "v[:, None] * a"),
        (ops.reshape(V, (1, 4)) * A, "v * a"),
        (ops.conv2d(X, W, padding=1), "conv3x3(x, w)"),
        (ops.conv2d(X, W, stride=2), "conv3x3(x, w, stride 2, padding 0)"),
        (ops.softmax(A, -1), "softmax(a)"),
        (ops.softmax(A, 0), "softmax(a, axis 0)"),
        (eqsynth.scope(lambda i, j: A[j, i], i=4, j=4), "aᵀ"),
        (eqsynth.scope(lambda i, j: A[i, j] * V[i], i=4, j=4), "a * v[:, None]"),
        (eqsynth.scope(lambda i, j: A[i, j] * V[j] + 2.0, i=4, j=4), "a * v + 2"),
        (eqsynth.scope(lambda i, j: A[i, j] - V[j] * A[j, i], i=4, j=4), "a - v * aᵀ"),
        (eqsynth.scope(lambda i, j: A[i, j + 1] * A[2, j], i=4, j=3), "a[:, 1:4] * a[2, 0:3]"),
        (eqsynth.scope(lambda i, j: A[i, j] + A[i, 1], i=4, j=4), "a + a[:, 1:2]"),
        (
            eqsynth.scope(lambda i: eqsynth.sum(lambda k: A[i, k] * A[i, k] * 0.5, k=4), i=4),
            "sum(0.5 * a * a, axis 1)",
        ),
        (eqsynth.scope(lambda i, j: A[i + 1, 2 * j], i=3, j=2), "a[1:4, 0:3:2]"),
        (eqsynth.scope(lambda i: eqsynth.sum(lambda k: A[i, k], k=4), i=4), "sum(a, axis 1)"),
        (
            eqsynth.scope(lambda i, j: eqsynth.sum(lambda k: A[k, i] * B[j, k], k=4), i=4, j=4),
            "aᵀ @ bᵀ",
        ),
        (eqsynth.scope(lambda i, j: V[i] + 1.0, i=4, j=1), "v + 1"),
        (
            eqsynth.scope(
                lambda c, h: eqsynth.sum(lambda r: A[c, h + r - 1] * U[c, r], r=3), c=4, h=4
            ),
            "conv3(a, u, grouped)",
        ),
        (
            eqsynth.scope(lambda i: eqsynth.max(lambda k: A[i, k], k=4), i=4),
            "max(a, axis 1)",
        ),
    ],
)
def test_a_formula_is_what_one_would_write(expr: Expr, formula: str) -> None:
    # The operands of a sum or product in a scope are in the order of digests.
    def words(line: str | None) -> list[str]:
        return sorted((line or "").split(" "))

    assert words(text(expr.tensor)) == words(formula)


def test_what_is_no_operator_stays_in_einnets_notation() -> None:
    scope = eqsynth.scope(
        lambda i: eqsynth.sum(lambda k: A[i + k - 1, 2], k=3), i=4
    ).tensor  # fmt: skip
    assert text(scope) == "L[i<4] sum[k0<3] . a[i + k0 - 1, 2]"
    assert kind_of(scope) == "offset-reduce"
    brief = in_one((scope,), lambda t: t.label if isinstance(t, Input) else None, 99, brief=True)
    assert brief == "offset-reduce(a)"


def value_of(formula: str, values: dict[str, np.ndarray]) -> np.ndarray:
    """A formula of products, as NumPy computes it."""
    python = re.sub(r"(\w+)ᵀ", r"\1.swapaxes(-1, -2)", formula)
    return eval(python, {"einsum": np.einsum, **values})  # noqa: S307


def test_a_contraction_means_what_its_scope_does() -> None:
    """Every order of axes of two operands, with a shared axis, own axes and a summed one."""
    extents = (2, 3, 4, 5)  # b, m, n: axes of the result; k: summed
    rng = np.random.default_rng(0)
    seen = set()
    for left, right, out in itertools.product(
        itertools.permutations((0, 1, 3)), itertools.permutations((0, 2, 3)),
        itertools.permutations((0, 1, 2)),
    ):  # fmt: skip
        slot = {axis: n for n, axis in enumerate((*out, 3))}
        reads = []
        values = {}
        for name, axes in (("p", left), ("q", right)):
            shape = tuple(extents[axis] for axis in axes)
            tensor = Input(name, TensorType(shape, "float64"))
            at = tuple(Index.iterator(slot[axis], extents[axis]) for axis in axes)
            reads.append(Read(tensor, at))
            values[name] = rng.normal(size=shape)
        scope = Scope(tuple(extents[axis] for axis in out), (5,), product(reads))
        formula = text(scope)
        assert formula is not None
        seen.add(re.sub(r"\(.*", "", formula))
        np.testing.assert_allclose(value_of(formula, values), evaluate(scope, values))
    assert {"p @ q", "pᵀ @ q", "p @ qᵀ", "pᵀ @ qᵀ", "q @ p", "einsum"} <= seen


def drawn(rng: np.random.Generator) -> tuple[Scope, dict[str, np.ndarray]]:
    """A map, or a reduction of one, over two tensors that are read whole, cut or turned."""
    extents = [int(e) for e in rng.choice((2, 3, 4), size=3)]
    reduced = int(rng.integers(0, 3))
    values, parts = {}, list[Any]()
    for name in "pq":
        axes = rng.permutation(3)[: rng.integers(1, 4)]
        if rng.random() < 0.7:
            axes = np.sort(axes)
        at, shape = list[Index](), list[int]()
        numbers = (0,) if rng.random() < 0.7 else (0, 0, 0, 1, 2)
        for slot in axes:
            step, first, more = (int(n) for n in rng.choice(numbers, size=3))
            at.append(Index.iterator(int(slot), extents[slot]) * max(step, 1) + first)
            shape.append(first + max(step, 1) * (extents[slot] - 1) + 1 + more)
        if rng.random() < 0.3:
            place = int(rng.integers(0, len(at) + 1))
            shape.insert(place, int(rng.integers(2, 4)))
            at.insert(place, Index(int(rng.integers(0, shape[place]))))
        tensor = Input(name, TensorType(tuple(shape), "float64"))
        values[name] = rng.normal(size=shape)
        parts.append(Read(tensor, tuple(at)))
    body = total((parts[0], product((Num(2.0), parts[1])))) if rng.random() < 0.5 else (
        product(parts) if rng.random() < 0.5 else parts[0]
    )  # fmt: skip
    rank = 3 - reduced
    return Scope(tuple(extents[:rank]), tuple(extents[rank:]), body), values


@pytest.mark.rotating
def test_a_formula_means_what_its_scope_does() -> None:
    """Axes of extent 1, which formulas leave out, aside."""
    rng, written, cuts = np.random.default_rng(0), 0, 0
    for _ in range(3000):
        scope, values = drawn(rng)
        formula = text(scope)
        assert formula is not None
        if formula.startswith("L["):
            continue
        python = re.sub(r"ax[ei]s (\(.*?\)|\d+)\)", r"axis=\1)", formula)
        python = re.sub(r"permute\((\w+), ([\d ]+)\)",
                        lambda m: f"{m[1]}.transpose({m[2].replace(' ', ', ')})", python)
        python = python.replace("ᵀ", ".swapaxes(-1, -2)")
        names = {"einsum": np.einsum, "sum": np.sum, "expand": np.broadcast_to, **values}
        got, expected = eval(python, names), evaluate(scope, values)  # noqa: S307
        np.testing.assert_allclose(
            np.broadcast_to(got, expected.shape), expected, atol=1e-12, err_msg=formula
        )
        written += 1
        cuts += bool(re.search(r"\[.*\d", formula))
    assert written > 1000 and 300 < cuts < written - 100


def test_a_program_is_a_line_for_each_product_and_each_value_that_is_used_again() -> None:
    shared = ops.relu(A @ B + C)
    names = iter(f"t{n}" for n in range(9))
    found = lines(
        ((shared @ shared).tensor,),
        lambda _: next(names),
        lambda t: None if args_of(t) else t.label,
    )
    assert [str(line) for line in found] == [
        "t0 = a @ b", "t1 = relu(t0 + c)", "t2 = t1 @ t1",
    ]  # fmt: skip
    assert len(found[1].covers) == 2
    assert text((shared @ shared).tensor) is None
