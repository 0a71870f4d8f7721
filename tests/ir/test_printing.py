"""Terms as text, against a golden file."""

from __future__ import annotations

from typing import Any

from eqsynth.ir.index import Index
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Input, Scope
from tests.terms import INF, it, leaf, op

X, W = leaf("x", 3, 4), leaf("w", 4, 3, constant=True)


def test_a_program_is_printed_a_line_a_term(golden: Any) -> None:
    i, j, k = it(0, 3), it(1, 3), it(2, 4)
    product = Scope((3, 3), (4,), Prod((Num(0.5), Read(X, (i, k)), Read(W, (k, j)))))
    pooled = Scope((3,), (2,), Read(product, (it(0, 3) + it(1, 2) - 1, Index(1)), -INF), "max")
    odd = Read(X, ((4 * i + j) // 3, (4 * i + j) % 4))
    mixed = Sum((Read(product, (i, j)), Prod((Sum((odd, Num(-1))), Value(i - 2 * j)))))
    body = Call("max", (Cast("float16", mixed), Read(X, (i - 1, j))))
    assert isinstance(X, Input)
    last = op("Relu", Scope((3, 3), (), body))
    program = Program((X,), (op("Concat", last, op("Expand", pooled, attrs=((3, 3),)),
                                attrs=(0,)), pooled, X))
    golden.check("ir/program.txt", f"{program}\n")


def test_a_term_prints_what_it_needs_once() -> None:
    twice = op("Add", op("Relu", X), op("Relu", X))
    assert str(twice).splitlines() == [
        "t0 = Relu(x)  # float32[3, 4]", "t1 = Add(t0, t0)  # float32[3, 4]"
    ]  # fmt: skip
    assert str(X) == "x"


def test_names_don_t_run_out() -> None:
    wide = Scope((2,) * 20, (), Read(leaf("v", 2), (it(19, 2),)))
    names = str(wide).split("]")[0].removeprefix("t0 = L[").split(", ")
    assert len(set(names)) == 20


def test_what_a_body_shares_is_printed_once() -> None:
    body: Scalar = Read(X, (it(0, 3), it(1, 4)))
    assert " . x[i, j] * x[i, j]  #" in str(Scope((3, 4), (), Prod((body, body))))
    for _ in range(2):
        body = Call("relu", (Sum((Prod((body, body)), body)),))
    assert str(Scope((3, 4), (), body)).split(" . ")[1].split("  #")[0] == (
        "let v0 = relu(x[i, j] * x[i, j] + x[i, j]) in relu(v0 * v0 + v0)"
    )
    for _ in range(40):
        body = Call("relu", (Sum((Prod((body, body)), body)),))
    assert len(str(Scope((3, 4), (), body))) < 2000
