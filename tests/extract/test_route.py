"""Routes: the plan that was found for one size of a program is followed at another size."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import eqsynth
from eqsynth import ops
from eqsynth.errors import EqsynthError
from eqsynth.extract.route import form_of
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.ir.tensor import Tensor
from eqsynth.lower.program import CompiledProgram


def folded(rows: int) -> Expr:
    """Two products that fold into one: (x U) V = x (U V)."""
    u, v = eqsynth.weight("u", (12, 96)), eqsynth.weight("v", (96, 12))
    return ops.tanh((eqsynth.input("x", (rows, 12)) @ u) @ v)


def attention(length: int) -> Expr:
    """(q k') v, which is q (k' v); the latter is less work for lengths above 8."""
    q, k, v = (eqsynth.input(name, (length, 8)) for name in "qkv")
    return (q @ ops.permute(k, (1, 0))) @ v


def found(expression: Expr, like: object = None, objective: str = "flops") -> CompiledProgram:
    return eqsynth.optimize(
        expression,
        objective=objective,
        like=like,
        engines=(),
        progress=False,  # type: ignore[arg-type]
    )


def ratio(program: CompiledProgram) -> float:
    return program.report.flops_after / program.report.flops_before


def inputs_of(expression: Expr) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(i.shape) for i in capture_expression(expression).program.inputs]


def same(program: CompiledProgram, other: CompiledProgram, expression: Expr) -> None:
    given = inputs_of(expression)
    torch.testing.assert_close(program(*given), other(*given))


@pytest.mark.rotating
@pytest.mark.parametrize(("make", "sizes"), [(attention, (32, 48)), (attention, (64, 24))])
def test_the_plan_of_one_size_is_followed_at_another(
    make: object, sizes: tuple[int, int], tmp_path: Path
) -> None:
    assert callable(make)
    first, second = map(make, sizes)
    known = found(first)
    program = found(second, known)
    report = program.report
    assert report.followed and not report.kernels_timed and not report.remembered_plan
    assert "followed" in str(report)
    alone = found(second)
    assert not alone.report.followed
    assert report.flops_after == alone.report.flops_after < report.flops_before
    same(program, alone, second)
    # Two products of one form may have two kernels in the known plan, and here the same kernel.
    assert {s.kernel.implementation for s in program.steps} <= {
        s.kernel.implementation for s in known.steps
    }
    # Its equalities were derived at its own size, so it can be explained.
    assert program.explain().steps
    # The plan that followed a route has a route too, and a route can be pickled.
    again = found(make(40), pickle.loads(pickle.dumps(report.route)))
    assert again.report.followed


@pytest.mark.rotating
def test_by_time_nothing_is_timed() -> None:
    known = found(folded(20), objective="time")
    program = found(folded(28), known, objective="time")
    assert known.report.kernels_timed or known.report.remembered_plan
    assert program.report.followed and program.report.kernels_timed == 0
    assert ratio(program) == pytest.approx(ratio(known), rel=0.2)
    weights = torch.randn(12, 96), torch.randn(96, 12)
    for one in (known, program):
        one.refresh(dict(zip("uv", weights, strict=True)))
    x = torch.randn(28, 12)
    torch.testing.assert_close(program(x), torch.tanh(x @ weights[0] @ weights[1]))


@pytest.mark.rotating
def test_where_a_route_leads_nowhere_the_program_is_searched() -> None:
    known = found(folded(20))
    program = found(attention(32), known)
    assert not program.report.followed
    assert program.report.unlike and "can't be followed" in str(program.report)
    assert not known.report.unlike
    assert program.report.flops_after == found(attention(32)).report.flops_after


@pytest.mark.rotating
def test_an_equality_that_holds_at_one_size_alone_is_not_carried_over() -> None:
    """Rows 1 to rows - 2 are one row if there are 3 rows, and three rows if there are 5. So the
    equalities of the first size are derived again for the second, not taken over."""

    def middle(rows: int) -> Expr:
        inner = ops.slice(eqsynth.input("x", (rows, 8)), 0, 1, rows - 1)
        return ops.relu(ops.slice(inner, 0, 0, 1) @ eqsynth.weight("w", (8, 8)))

    known = found(middle(3))
    program = found(middle(5), known)
    w = torch.randn(8, 8)
    program.refresh({"w": w})
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), torch.relu(x[1:2] @ w))


@pytest.mark.parametrize("like", [1, "program.eqsynth", object()])
def test_what_no_search_has_found_is_refused(like: object) -> None:
    with pytest.raises(EqsynthError, match="like is no program"):
        found(folded(4), like)


@pytest.mark.rotating
def test_a_loaded_program_has_no_plan_to_follow(tmp_path: Path) -> None:
    eqsynth.save(found(folded(20)), tmp_path / "p.eqsynth")
    with pytest.raises(EqsynthError, match="like is no program"):
        found(folded(4), eqsynth.load(tmp_path / "p.eqsynth"))


# ---- forms ---------------------------------------------------------------------------------------


def term(expression: Expr) -> Tensor:
    (output,) = capture_expression(expression).program.outputs
    return output


def scope(rows: int, scale: float = 0.5) -> Tensor:
    x, y = eqsynth.input("x", (rows, 8)), eqsynth.input("y", (8, rows))
    return term(
        eqsynth.scope(
            lambda i, j: eqsynth.sum(lambda k: x[i, k] * y[k, j] * scale, k=8), i=rows, j=rows
        )
    )


def test_forms_leave_sizes_out_and_orders() -> None:
    x, y = eqsynth.input("x", (4, 8)), eqsynth.input("x", (6, 8))
    assert form_of(term(ops.relu(x))) == form_of(term(ops.relu(y)))
    assert form_of(term(ops.relu(x))) != form_of(term(ops.tanh(x)))
    assert form_of(term(ops.sum(x, 0))) == form_of(term(ops.sum(y, 0)))
    assert form_of(term(ops.sum(x, 0))) != form_of(term(ops.sum(x, (0, 1))))
    assert form_of(scope(4)) == form_of(scope(7)) == form_of(scope(9, 0.25))
    z = eqsynth.input("z", (4, 8))
    crossed = eqsynth.scope(
        lambda i, j: eqsynth.sum(lambda k: 0.5 * x[i, k] * z[j, k], k=8), i=4, j=4
    )
    taken = eqsynth.scope(lambda i, j: eqsynth.sum(lambda k: x[i, k] + z[j, k], k=8), i=4, j=4)
    assert form_of(scope(4)) == form_of(term(crossed)) != form_of(term(taken))
