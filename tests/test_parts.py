"""A part of a program's result: what lies before a cut is computed in part, too."""

from __future__ import annotations

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, demanded, stitch, with_part
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.ir.tensor import Op
from eqsynth.numerics import rules_of
from eqsynth.testing import assert_egraph_consistent

RULES = rules_of((), "real", where="test")

Q, K, V = (eqsynth.input(name, (16, 8)) for name in "qkv")
W = [eqsynth.weight(f"w{n}", (8, 8)) for n in range(3)]


def scores() -> Expr:
    return ops.relu(Q @ ops.permute(K, (1, 0)))


def layers() -> Expr:
    """Three layers: two cuts, so that what is asked of the second is asked of the first."""
    x = Q
    for w in W:
        x = ops.relu(x @ w)
    return x


def residual_layers() -> Expr:
    """The last sum is an elementwise scope, which reads a part of the sum before it."""
    x = Q
    for w in W:
        x = x + ops.tanh(x @ w)
    return x


def asked(output: Expr) -> list[tuple[int | str | float, ...]]:
    """What the last segment asks of the one before it."""
    program = capture_expression(output).program
    last = cut(program)[-1]
    graph = saturate_terms(last.roots, RULES, DEFAULT_PHASES, Limits(), False)
    return [part.attrs for part in demanded(last, graph).values()]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (scores() @ V, lambda x: ops.slice(x, 0, 0, 1)),
        (scores() @ V, lambda x: ops.slice(x, 0, 3, 7)),
        (layers(), lambda x: ops.slice(x, 0, 15, 16)),
        (residual_layers(), lambda x: ops.slice(x, 0, 0, 1)),
        (residual_layers(), lambda x: ops.slice(x, 0, 3, 7)),
    ],
)
def test_a_part_of_the_result_takes_a_part_of_the_work(whole: Expr, part: object) -> None:
    assert callable(part)
    output = part(whole)
    program = eqsynth.optimize(output, objective="flops", engines=(), progress=False)
    rows = output.shape[0]
    assert program.report.segments > 1
    assert program.report.flops_after <= rows / 16 * 1.05 * program.report.flops_before
    assert "part" in str(program.explain().rules)


@pytest.mark.rotating
def test_what_is_needed_whole_is_asked_for_whole() -> None:
    x = scores()
    first = ops.slice(x @ V, 0, 0, 1)
    assert asked(first) == [(0, 0, 1, 1)]
    # The first row and the last one are one slice.
    assert asked(ops.cat([first, ops.slice(x @ V, 0, 15, 16)], 0)) == [(0, 0, 16, 15)]
    # More than a half of it; a part, and a sum over all of it.
    assert asked(ops.slice(x @ V, 0, 0, 9)) == []
    assert asked(ops.sum(x @ V, 0) + first) == []


def test_a_part_is_one_class_of_both_segments() -> None:
    program = capture_expression(ops.slice(scores() @ V, 0, 0, 1)).program
    before, last = cut(program)
    graph = saturate_terms(last.roots, RULES, DEFAULT_PHASES, Limits(), False)
    (part,) = demanded(last, graph).values()
    before = with_part(before, part)
    assert before.key != cut(program)[0].key
    graphs = [saturate_terms(before.roots, RULES, DEFAULT_PHASES, Limits(), False), graph]
    whole = stitch(program, (before, last), graphs)
    owners = [
        ref
        for ref, members in whole.classes.items()
        for member in members
        if isinstance(member, Op) and member.name == "Slice" and member.attrs == part.attrs
        and any(isinstance(m, Op) and m.name == "Relu" for m in whole.classes[member.args[0]])
    ]  # fmt: skip
    assert len(set(owners)) == 1
    assert_egraph_consistent(whole)
