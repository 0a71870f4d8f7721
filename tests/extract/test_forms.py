"""Plans store each constant in few forms, where this is worth more than the kernels' times say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.extract.candidates import Candidate
from eqsynth.extract.forms import ROUNDS, Forms, in_few_forms
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.schedule import Block
from eqsynth.extract.select import Selection
from eqsynth.extract.target import MemoryLevel
from eqsynth.ir.tensor import ClassRef, Input, Op, Weight
from eqsynth.ir.types import TensorType
from tests.extract.egraphs import egraph, leaf, ref, unary
from tests.extract.test_cost import TARGET

CACHED = replace(
    TARGET,
    levels=tuple(
        MemoryLevel(name, size, 1e9)
        for name, size in (("L1", 1e3), ("L2", 1e4), ("L3", 1e6), ("DRAM", float("inf")))
    ),
)
"""A target whose memory moves 1 GB/s: a matrix of 64 by 64 takes 16 us."""

W = ClassRef(9, TensorType((64, 64), "float32"), True, b"w")
FORM_S = W.type.nbytes / 1e9
ROWS, COLUMNS = (0, 1), (1, 0)


def product(layout: tuple[int, int], schedule: str | Block = "") -> Kernel:
    term = Op("Matmul", (leaf_of(0), leaf_of(1)))
    return Kernel(term, (False, True), "torch", (ROWS, layout), ROWS, schedule)


def leaf_of(number: int) -> Op:
    return Op("Relu", (ref(number, (64, 64)),))


def plan_of(*kernels: Kernel) -> Plan:
    steps = [
        PlanStep(k, k.term, ((ref(n, (64, 64)), ROWS),), {1: W}, (ref(n + 1, (64, 64)), ROWS), 1e-6)
        for n, k in enumerate(kernels)
    ]
    return Plan(tuple(steps), {}, (), len(steps) * 1e-6)


def read(kernel: Kernel) -> Candidate:
    return Candidate(kernel.term, kernel, (ref(0, (64, 64)), W))


def test_steps_that_read_a_form_share_its_cost() -> None:
    forms = Forms(plan_of(product(ROWS), product(ROWS), product(COLUMNS)), CACHED)
    assert forms.total_s == pytest.approx(2 * FORM_S)
    assert forms.beside_s(read(product(ROWS))) == pytest.approx(FORM_S / 2)
    assert forms.beside_s(read(product(COLUMNS))) == pytest.approx(FORM_S)
    # A constant in panels is another form than the same constant as it is.
    panels = read(product(ROWS, Block(8, 32, packed=1)))
    assert forms.beside_s(panels) == pytest.approx(FORM_S)
    assert Forms(plan_of(), CACHED).beside_s(panels) == pytest.approx(FORM_S)
    # The same panels are one form, whichever argument they are; of other blocks they are another.
    first = Kernel(Op("Matmul", (leaf_of(0), leaf_of(1))), (True, False), "torch", (ROWS, ROWS),
                   ROWS, Block(8, 32, packed=0, order=(1, 0)))  # fmt: skip
    turned = Candidate(first.term, first, (W, ref(0, (64, 64))))
    twice = Forms(plan_of(*2 * [product(ROWS, Block(8, 32, packed=1))]), CACHED)
    assert twice.beside_s(turned) == pytest.approx(FORM_S / 2)
    others = read(product(ROWS, Block(6, 16, packed=1)))
    assert twice.beside_s(others) == pytest.approx(FORM_S)


def test_a_plan_with_fewer_forms_is_taken_if_it_costs_less_with_them() -> None:
    mixed = plan_of(product(ROWS), product(ROWS), product(COLUMNS))
    same = plan_of(*3 * [product(ROWS)])
    slower, far_slower = (replace(same, cost_s=mixed.cost_s + f * FORM_S) for f in (0.5, 1.5))
    asked: list[Forms] = []

    def offering(plan: Plan) -> Plan:
        asked.clear()

        def select(forms: Forms) -> Plan:
            asked.append(forms)
            return plan

        return in_few_forms(mixed, select, CACHED, far)

    far = 1
    assert offering(slower) is slower and len(asked) == 2 <= ROUNDS
    assert offering(far_slower) is mixed
    assert offering(mixed) is mixed
    far = 2  # The weights come from memory at each step anyway.
    assert offering(slower) is mixed and not asked


def test_a_selection_prefers_the_form_that_other_steps_read() -> None:
    """x @ w by rows of w, at 1 us, or by its columns, at 1.1 us."""
    x, a, b = (ref(n, (64, 64)) for n in range(3))
    graph = egraph({
        x: [leaf(Input, 0, (64, 64))], W: [leaf(Weight, 9, (64, 64))],
        a: [Op("Matmul", (x, W))], b: [unary("Relu", a)],
    }, b)  # fmt: skip
    by_rows, by_columns = product(ROWS), product(COLUMNS)
    member = Op("Matmul", (x, W))
    candidates = [Candidate(member, kernel, (x, W)) for kernel in (by_rows, by_columns)]
    relu = Kernel(unary("Relu", x), (False,), "torch", (ROWS,), ROWS)
    found = {x: [], W: [], a: candidates, b: [Candidate(unary("Relu", a), relu, (a,))]}
    costs = {by_rows: 1e-6, by_columns: 1.1e-6, relu: 1e-6}.__getitem__
    selection = Selection(graph, found)
    assert by_rows in selection.one_by_one(costs).kernels()
    plan = selection.with_forms(costs, Forms(plan_of(by_columns, by_columns), CACHED))
    assert by_columns in plan.kernels()
    assert plan.cost_s == pytest.approx(2.1e-6)  # without what the form costs
