"""Selection, compared with brute force: shared work, cycles, constants, layouts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import (
    VIEW_S,
    Candidate,
    candidates,
    copy_kernel,
    placeholder,
)
from eqsynth.extract.constants import constant_terms
from eqsynth.extract.greedy import Greedy
from eqsynth.extract.kernel import Kernel, Layout, copied
from eqsynth.extract.one_part import OutOfTime
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Prices
from eqsynth.extract.select import Selection, _readers
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor, Weight, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.testing.choices import Choices, DrawnChoices, RandomChoices, several
from tests.extract.egraphs import (
    Given,
    best,
    check_plan,
    egraph,
    kernel,
    leaf,
    ref,
    selection,
    unary,
)

INF = float("inf")


# ---- against brute force -------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[EGraph, dict[Tensor, float]]:
    """Draw up to six classes whose members read any classes, so that there are cycles and shared
    classes, with the cost of each member."""
    count = draw(st.integers(2, 6))
    refs = [ref(n) for n in range(count)]
    classes: dict[ClassRef, list[Tensor]] = {refs[0]: [leaf(Input, 0)]}
    costs: dict[Tensor, float] = {}
    for n in range(1, count):
        members: list[Tensor] = []
        for _ in range(draw(st.integers(1, 3))):
            if draw(st.booleans()):
                name = draw(st.sampled_from(["Relu", "Neg", "Exp", "Tanh"]))
                member = Op(name, (refs[draw(st.integers(0, count - 1))],))
            else:
                name = draw(st.sampled_from(["Add", "Mul", "Sub"]))
                pair = (draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1)))
                member = Op(name, (refs[pair[0]], refs[pair[1]]))
            if refs[n] not in args_of(member) and member not in costs:
                members.append(member)
                costs[member] = float(draw(st.integers(1, 20)))
        classes[refs[n]] = members
    roots = draw(st.lists(st.sampled_from(refs[1:]), min_size=1, max_size=2, unique=True))
    return egraph(classes, *roots), costs


def choices(graph: EGraph) -> Iterator[Mapping[ClassRef, Tensor]]:
    """Every choice of one member for each class."""
    refs = [r for r, members in graph.classes.items() if members]
    for picked in itertools.product(*(graph.classes[r] for r in refs)):
        yield dict(zip(refs, picked, strict=True))


def dag_cost(graph: EGraph, chosen: Mapping[ClassRef, Tensor], costs: dict[Tensor, float]) -> float:
    """The cost of the members that the roots need, each counted once; infinite if there is a
    cycle."""
    done: set[ClassRef] = set()
    open_: set[ClassRef] = set()

    def visit(r: ClassRef) -> float:
        if r in done:
            return 0.0
        if r in open_ or r not in chosen:
            return INF
        open_.add(r)
        total = costs.get(chosen[r], 0.0)
        for arg in args_of(chosen[r]):
            assert isinstance(arg, ClassRef)
            total += visit(arg)
        open_.discard(r)
        done.add(r)
        return total

    return sum(visit(root) for root in graph.roots)


def tree_costs(graph: EGraph, costs: dict[Tensor, float]) -> dict[ClassRef, float]:
    """The least cost of each class if shared work counts at every use."""
    best: dict[ClassRef, float] = dict.fromkeys(graph.classes, INF)
    for _ in graph.classes:
        for r, members in graph.classes.items():
            for member in members:
                below = sum(best[a] for a in args_of(member) if isinstance(a, ClassRef))
                best[r] = min(best[r], below + costs.get(member, 0.0))
    return best


@given(graphs())
def test_a_plan_is_the_optimum_and_no_dearer_than_the_best_tree(
    drawn: tuple[EGraph, dict[Tensor, float]],
) -> None:
    graph, costs = drawn
    optimum = min((dag_cost(graph, chosen, costs) for chosen in choices(graph)), default=INF)
    found = [kernel(member, cost) for member, cost in costs.items()]
    if optimum == INF:
        with pytest.raises(ExtractionError):
            best(graph, *found)
        return
    plan = best(graph, *found)
    check_plan(plan)
    trees = tree_costs(graph, costs)
    assert plan.cost_s == pytest.approx(optimum)
    assert plan.cost_s <= sum(trees[root] for root in graph.roots) + 1e-9


Layered = tuple[EGraph, dict[ClassRef, list[Candidate]]]


def layered(choices: Choices) -> Layered:
    """Make up to 25 classes with cycles, whose kernels read and write different layouts."""
    count = choices.pick(range(3, 26))
    refs = [ref(n) for n in range(count)]
    classes: dict[ClassRef, list[Tensor]] = {refs[0]: [leaf(Input, 0)]}
    found: dict[ClassRef, list[Candidate]] = {refs[0]: []}
    layouts = ((0, 1), (1, 0))
    for n in range(1, count):
        # One member reads only earlier classes, so that there is a plan.
        members: list[Tensor] = [Op("Add", (choices.pick(refs[:n]), refs[n - 1]))]
        for _ in range(choices.pick(range(4))):
            pair = choices.pick(refs), choices.pick(refs)
            members.append(Op(choices.pick(["Mul", "Sub"]), pair))
        classes[refs[n]] = [m for m in dict.fromkeys(members) if refs[n] not in args_of(m)]
        found[refs[n]] = [
            kernel(
                m,
                float(choices.pick(range(1, 51))),
                [choices.pick(layouts) for _ in args_of(m)],
                choices.pick(layouts),
            )
            for m in classes[refs[n]]
            for _ in range(choices.pick((1, 2)))
        ]
    roots = dict.fromkeys(several(choices, refs[1:], 1, 3))
    return egraph(classes, *roots), found


def choose_jointly(drawn: Layered, copy_s: float, share: float = 1.0) -> None:
    selection = Selection(*drawn)
    greedy = selection.one_by_one(Given(copy_s))
    jointly = selection.best(Given(copy_s), share=share)
    check_plan(greedy)
    check_plan(jointly)
    assert jointly.cost_s <= greedy.cost_s + 1e-9


COPIES_S = (0.0, 3.0, 40.0)


@pytest.mark.rotating
@given(st.composite(lambda draw: layered(DrawnChoices(draw)))(), st.sampled_from(COPIES_S))
@settings(max_examples=30, deadline=None)
def test_choices_at_once_are_valid_and_no_dearer(drawn: Layered, copy_s: float) -> None:
    choose_jointly(drawn, copy_s)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(10))
def test_choices_at_once_are_valid_and_no_dearer_ten_thousand_times(thousand: int) -> None:
    """The solver does a tenth of its usual work, since the problems whose best plan it can't prove
    took most of the time."""
    for seed in range(1000 * thousand, 1000 * (thousand + 1)):
        choices = RandomChoices(seed)
        drawn = layered(choices)
        try:
            choose_jointly(drawn, choices.pick(COPIES_S), share=0.1)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@given(graphs())
def test_without_sharing_a_plan_is_the_optimum(
    drawn: tuple[EGraph, dict[Tensor, float]],
) -> None:
    graph, costs = drawn
    unary_only = {
        r: [m for m in members if len(args_of(m)) < 2] for r, members in graph.classes.items()
    }
    graph = egraph(unary_only, graph.roots[0])
    optimum = min((dag_cost(graph, chosen, costs) for chosen in choices(graph)), default=INF)
    found = [kernel(m, costs[m]) for members in unary_only.values() for m in members if m in costs]
    if optimum == INF:
        with pytest.raises(ExtractionError):
            best(graph, *found)
    else:
        assert best(graph, *found).cost_s == pytest.approx(optimum)


def test_shared_work_counts_once() -> None:
    x, a, b, c, root = (ref(n) for n in range(5))
    sum_, other = Op("Add", (b, c)), unary("Neg", x)
    graph = egraph(
        {
            x: [leaf(Input, 0)],
            a: [unary("Exp", x)],
            b: [unary("Relu", a)],
            c: [unary("Tanh", a)],
            root: [sum_, other],
        },
        root,
    )
    parts = [
        kernel(unary("Exp", x), 10.0),
        kernel(unary("Relu", a), 1.0),
        kernel(unary("Tanh", a), 1.0),
        kernel(sum_, 1.0),
    ]
    # 10 + 1 + 1 + 1 = 13; counted as a tree, with the exponential twice, 23.
    plan = best(graph, *parts, kernel(other, 15.0))
    assert plan.cost_s == 13.0
    assert [s.member.label for s in plan.steps].count("Exp") == 1
    assert best(graph, *parts, kernel(other, 12.0)).cost_s == 12.0


@pytest.mark.parametrize(("whole_s", "cost_s"), [(10.0, 12.0), (13.0, 15.0), (15.0, 16.0)])
def test_slices_of_one_whole_are_taken_together(whole_s: float, cost_s: float) -> None:
    """A piece by itself costs 8, less than the whole and a slice of it. Both pieces cost 16, which
    may be more than the whole and two slices."""
    x, whole = ref(0), ref(1)
    pieces = [ref(2, (1, 3)), ref(3, (1, 3))]
    halves = [Op("Slice", (whole,), (0, n, n + 1, 1)) for n in range(2)]
    alone = [Op("Slice", (x,), (0, n, n + 1, 1)) for n in range(2)]
    graph = egraph(
        {
            x: [leaf(Input, 0)],
            whole: [unary("Exp", x)],
            **{piece: [a, h] for piece, a, h in zip(pieces, alone, halves, strict=True)},
        },
        *pieces,
    )
    found = [*(kernel(a, 8.0) for a in alone), *(kernel(h, 1.0) for h in halves)]
    plan = best(graph, kernel(unary("Exp", x), whole_s), *found)
    check_plan(plan)
    assert plan.cost_s == cost_s


def test_greedy_choices_share_what_many_may_read() -> None:
    """Ten slices of one product. Each piece by itself costs less than the product, but all ten
    cost more. Greedy choices find the product without the solver."""
    inputs = [ref(n, (1, 3)) for n in range(10)]
    whole, pieces = ref(10, (10, 3)), [ref(11 + n, (1, 3)) for n in range(10)]
    alone, product = [unary("Exp", x) for x in inputs], Op("Concat", tuple(inputs), (0,))
    slices = [Op("Slice", (whole,), (0, n, n + 1, 1)) for n in range(10)]
    graph = egraph(
        {
            **{x: [leaf(Input, n, (1, 3))] for n, x in enumerate(inputs)},
            whole: [product],
            **{piece: [a, s] for piece, a, s in zip(pieces, alone, slices, strict=True)},
        },
        *pieces,
    )
    found = [*(kernel(a, 8.0) for a in alone), *(kernel(s, 1.0) for s in slices)]
    plan = selection(graph, kernel(product, 30.0), *found).one_by_one(Given())
    check_plan(plan)
    assert plan.cost_s < 30.0 + 10 * 1.0 + 1e-3 and len(plan.steps) == 11
    dear = selection(graph, kernel(product, 90.0), *found).one_by_one(Given())
    assert dear.cost_s == 10 * 8.0


def test_costs_are_divided_among_those_that_read_and_not_that_may_read() -> None:
    """Ten slices of one product (30), or pieces by themselves (8). Four classes may read a piece,
    so divided among all of them it costs 2, less than a tenth of the product. But one reads it."""
    inputs = [ref(n, (1, 3)) for n in range(10)]
    whole, pieces = ref(10, (10, 3)), [ref(11 + n, (1, 3)) for n in range(10)]
    outs = [ref(21 + n, (1, 3)) for n in range(10)]
    others = [[ref(31 + 3 * n + k, (1, 3)) for k in range(3)] for n in range(10)]
    alone, product = [unary("Exp", x) for x in inputs], Op("Concat", tuple(inputs), (0,))
    slices = [Op("Slice", (whole,), (0, n, n + 1, 1)) for n in range(10)]
    classes: dict[ClassRef, list[Tensor]] = {
        **{x: [leaf(Input, n, (1, 3))] for n, x in enumerate(inputs)},
        whole: [product],
    }
    found = [kernel(product, 30.0)]
    for piece, a, s, out, own in zip(pieces, alone, slices, outs, others, strict=True):
        classes[piece], classes[out] = [a, s], [unary("Neg", piece)]
        found += [kernel(a, 8.0), kernel(s, 1.0), kernel(unary("Neg", piece), 1.0)]
        for name, other in zip(("Relu", "Tanh", "Abs"), own, strict=True):
            classes[other] = [unary(name, piece)]
            classes[out].append(unary("Neg", other))
            found += [kernel(unary(name, piece), 50.0), kernel(unary("Neg", other), 50.0)]
    chosen = selection(egraph(classes, *outs), *found)
    plan = chosen.one_by_one(Given())
    check_plan(plan)
    assert plan.cost_s == 30.0 + 10 * 2.0
    assert chosen.one_by_one(Given()).cost_s == plan.cost_s, "what was found isn't forgotten"


def test_who_reads_a_view_reads_what_it_is_a_view_of() -> None:
    x, whole, rows = ref(0), ref(1), ref(2, (3, 2))
    outs = [ref(3 + n, (3, 2)) for n in range(3)]
    view = Op("Reshape", (whole,), ((3, 2),))
    members = [unary(name, rows) for name in ("Neg", "Relu", "Tanh")]
    graph = egraph(
        {
            x: [leaf(Input, 0)],
            whole: [unary("Exp", x)],
            rows: [view],
            **{out: [member] for out, member in zip(outs, members, strict=True)},
        },
        *outs,
    )
    chosen = selection(graph, *(kernel(m, 1.0) for m in (unary("Exp", x), *members)))
    plan = chosen.one_by_one(Given())
    assert "torch.view" in {step.kernel.implementation for step in plan.steps}
    table = chosen._states
    counted = _readers(table, plan)
    assert {r: counted[table.rank[r]] for r in (whole, rows, *outs)} == {
        whole: 3, rows: 3, **dict.fromkeys(outs, 1)
    }  # fmt: skip


def test_a_deadline_after_the_first_plan_leaves_that_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = ref(0), ref(1)
    chosen = selection(
        egraph({x: [leaf(Input, 0)], y: [unary("Exp", x)]}, y), kernel(unary("Exp", x), 2.0)
    )
    plan = Greedy.plan

    def late(
        self: Greedy, prices: Prices, until: float, readers: Sequence[int] | None = None
    ) -> Plan:
        if readers is not None:
            raise OutOfTime
        return plan(self, prices, until)

    monkeypatch.setattr(Greedy, "plan", late)
    assert chosen.one_by_one(Given()).cost_s == 2.0


def test_a_selection_asks_for_each_price_once() -> None:
    """A selection compares several plans but asks once for the cost of a kernel that no plan takes.
    (The costs of a plan's own kernels are asked for again when its steps are made.)"""
    x, classes = ref(0), [ref(n) for n in range(1, 4)]
    members = {r: [unary(name, below) for name in ("Relu", "Neg", "Exp")]
               for below, r in itertools.pairwise([x, *classes])}  # fmt: skip
    graph = egraph({x: [leaf(Input, 0)], **members}, classes[-1])
    costs_s = itertools.count(1.0)
    found = [kernel(m, next(costs_s)) for own in members.values() for m in own]
    for how in (Selection.one_by_one, Selection.best):
        costs = Given()
        taken = how(selection(graph, *found), costs).kernels()
        asked = Counter(costs.asked)
        assert [asked[c.kernel] for c in found if c.kernel not in taken] == [1] * 6


def test_copies_that_cost_next_to_nothing_are_not_made_for_nothing() -> None:
    """If costs are FLOPs, a copy costs almost nothing: its time only breaks ties."""
    x, whole = ref(0), ref(1)
    pieces = [ref(2, (1, 3)), ref(3, (1, 3))]
    halves = [Op("Slice", (whole,), (0, n, n + 1, 1)) for n in range(2)]
    alone = [Op("Slice", (x,), (0, n, n + 1, 1)) for n in range(2)]
    graph = egraph(
        {
            x: [leaf(Input, 0)],
            whole: [unary("Exp", x)],
            **{piece: [a, h] for piece, a, h in zip(pieces, alone, halves, strict=True)},
        },
        *pieces,
    )
    layouts: list[Layout] = [(0, 1), (1, 0)]
    found = [kernel(h, 0.5e9, [at]) for h in halves for at in layouts]
    found += [kernel(unary("Exp", x), 1e9, [at], out) for at in layouts for out in layouts]
    plan = best(graph, *found, *(kernel(a, 1.2e9) for a in alone), copy_s=1e-9)
    check_plan(plan)
    assert len(plan.steps) == 3


def test_roots_share_work() -> None:
    x, a, b, c = (ref(n) for n in range(4))
    graph = egraph(
        {
            x: [leaf(Input, 0)],
            a: [unary("Exp", x)],
            b: [unary("Relu", a)],
            c: [unary("Tanh", a)],
        },
        b, c, b,
    )  # fmt: skip
    plan = best(graph, *(kernel(m[0], 1.0) for r, m in graph.classes.items() if r != x))
    assert len(plan.steps) == 3 and plan.cost_s == 3.0
    assert plan.outputs[0] == plan.outputs[2]


def test_a_cycle_is_never_chosen() -> None:
    x, a, b = (ref(n) for n in range(3))
    around, back, out = unary("Neg", b), unary("Neg", a), unary("Exp", x)
    graph = egraph({x: [leaf(Input, 0)], a: [around, out], b: [back]}, b)
    plan = best(graph, kernel(around, 0.0), kernel(back, 0.0), kernel(out, 50.0))
    assert [s.member for s in plan.steps] == [out, back]
    with pytest.raises(ExtractionError) as caught:
        best(graph, kernel(around, 0.0), kernel(back, 0.0))
    assert caught.value.where == "output 0"


def test_a_view_of_its_own_class_makes_no_circle() -> None:
    """A view of a class is a member of that class, in another layout. Two users of the class pay
    only together."""
    x, a, b, c = ref(0, (3, 3)), ref(1, (3, 3)), ref(2, (3, 3)), ref(3, (3, 3))
    turned = Op("Permute", (a,), ((1, 0),))
    graph = egraph(
        {
            x: [leaf(Input, 0, (3, 3))],
            a: [unary("Exp", x), turned],
            b: [unary("Relu", a), unary("Neg", x)],
            c: [unary("Tanh", a), unary("Sigmoid", x)],
        },
        b, c,
    )  # fmt: skip
    plan = best(
        graph,
        kernel(unary("Exp", x), 5.0, output=(0, 1)),
        kernel(unary("Relu", a), 1.0, [(1, 0)]), kernel(unary("Tanh", a), 1.0, [(1, 0)]),
        kernel(unary("Neg", x), 4.0), kernel(unary("Sigmoid", x), 4.0),
        copy_s=0.5,
    )  # fmt: skip
    check_plan(plan)
    assert plan.cost_s <= 7.5


def test_a_member_that_reads_its_own_class_is_no_candidate() -> None:
    x, a = ref(0), ref(1)
    graph = egraph({x: [leaf(Input, 0)], a: [unary("Relu", a), unary("Relu", x)]}, a)
    found = candidates(graph, [TorchBackend()])
    assert {c.member for c in found[a]} == {unary("Relu", x)}


# ---- constants ---------------------------------------------------------------------------------


def test_constants_cost_nothing_and_come_in_any_layout() -> None:
    x, w, v, y = ref(0), ref(1, constant=True), ref(2, constant=True), ref(3)
    product = Op("Mul", (x, v))
    graph = egraph(
        {x: [leaf(Input, 0)], w: [leaf(Weight, 1)], v: [unary("Exp", w)], y: [product]}, y
    )
    plan = best(graph, kernel(product, 1.0, inputs=[(0, 1), (1, 0)]))
    (step,) = plan.steps
    assert step.constants == {1: v} and [a[0] for a in step.args] == [x]
    assert plan.cost_s == 1.0
    assert candidates(graph, [TorchBackend()])[v] == []


def test_a_constant_output_needs_no_step() -> None:
    w, v = ref(0, constant=True), ref(1, constant=True)
    graph = egraph({w: [leaf(Weight, 0)], v: [unary("Exp", w)]}, v)
    plan = best(graph)
    assert plan.steps == () and plan.outputs[0][0] == v


def test_a_constant_is_computed_in_the_cheapest_way() -> None:
    w, a, b = (ref(n, (4, 4), constant=True) for n in range(3))
    graph = egraph(
        {
            w: [leaf(Weight, 0, (4, 4))],
            a: [Op("Matmul", (w, w)), unary("Relu", b)],
            b: [unary("Neg", w), unary("Exp", a)],
        },
        a,
    )
    terms = constant_terms(graph, [a, b])
    weight = leaf(Weight, 0, (4, 4))
    assert terms == {a: Op("Relu", (Op("Neg", (weight,)),)), b: Op("Neg", (weight,))}


def test_a_constant_without_a_term_is_an_error() -> None:
    a, b = (ref(n, constant=True) for n in range(2))
    graph = egraph({a: [unary("Relu", b)], b: [unary("Relu", a)]}, a)
    with pytest.raises(ExtractionError) as caught:
        constant_terms(graph, [a])
    assert caught.value.where == "float32[2, 3]"


# ---- layouts -----------------------------------------------------------------------------------


def chain() -> tuple[EGraph, Op, Op]:
    """The e-graph of relu(exp(x)), and its two members Exp and Relu."""
    x, a, b = (ref(n) for n in range(3))
    first, second = unary("Exp", x), unary("Relu", a)
    return egraph({x: [leaf(Input, 0)], a: [first], b: [second]}, b), first, second


def transposed(member: Op, cost_s: float, give: bool = True, take: bool = True) -> Candidate:
    return kernel(
        member, cost_s, [(1, 0) if take else (0, 1)], (1, 0) if give else (0, 1)
    )  # fmt: skip


def test_a_copy_is_inserted_where_layouts_differ() -> None:
    graph, first, second = chain()
    plan = best(
        graph, kernel(first, 1.0), transposed(second, 1.0, give=False), copy_s=5.0
    )  # fmt: skip
    check_plan(plan)
    assert [s.result[1] for s in plan.steps] == [(0, 1), (1, 0), (0, 1)]
    copy = plan.steps[1]
    assert (copy.kernel.inputs, copy.kernel.output) == (((0, 1),), (1, 0))
    assert isinstance(copy.member, ClassRef) and copy.args[0][0] == copy.result[0]
    assert plan.cost_s == 7.0


@pytest.mark.parametrize(("own_s", "taken"), [(2.0, "given"), (6.0, "torch")])
def test_the_cheapest_copy_is_taken(own_s: float, taken: str) -> None:
    graph, first, second = chain()

    def copies(type_: TensorType, source: Layout, target: Layout) -> tuple[Kernel, ...]:
        own = Kernel(copied(type_), (False,), "given", (source,), target, repr(own_s))
        return copy_kernel(type_, source, target), own

    options = [kernel(first, 1.0), transposed(second, 1.0, give=False)]
    found = {r: [c for c in options if c.member in m] for r, m in graph.classes.items()}
    for share in (0.0, 1.0):
        plan = Selection(graph, found, copies=copies).best(Given(5.0), share=share)
        check_plan(plan)
        assert plan.steps[1].kernel.implementation == taken
        assert plan.cost_s == 2.0 + min(own_s, 5.0)


def test_a_chain_in_one_layout_is_copied_at_its_ends_only() -> None:
    graph, first, second = chain()
    plan = best(
        graph,
        kernel(first, 20.0), kernel(second, 20.0), transposed(first, 1.0), transposed(second, 1.0),
        copy_s=5.0,
    )  # fmt: skip
    check_plan(plan)
    assert plan.cost_s == 12.0
    assert [s.kernel.implementation for s in plan.steps] == ["torch", "given", "given", "torch"]


def test_a_copy_that_costs_more_than_it_gains_is_not_made() -> None:
    graph, first, second = chain()
    plan = best(
        graph,
        kernel(first, 4.0), kernel(second, 4.0), transposed(first, 1.0), transposed(second, 1.0),
        copy_s=5.0,
    )  # fmt: skip
    assert plan.cost_s == 8.0


def test_inputs_and_outputs_are_contiguous() -> None:
    graph, first, second = chain()
    plan = best(graph, transposed(first, 1.0), transposed(second, 1.0), copy_s=5.0)
    assert list(plan.inputs.values()) == [(ref(0), (0, 1))]
    assert plan.outputs == ((ref(2), (0, 1)),)
    assert plan.steps[-1].result == plan.outputs[0]


def test_a_permutation_is_free_if_the_consumer_takes_its_strides() -> None:
    x, t, y = ref(0), ref(1, (3, 2)), ref(2, (3, 2))
    view, relu = Op("Permute", (x,), ((1, 0),)), unary("Relu", t)
    graph = egraph({x: [leaf(Input, 0)], t: [view], y: [relu]}, y)
    taking = kernel(relu, 3.0, [(1, 0)], (0, 1))
    plan = best(graph, kernel(view, 2.0), kernel(relu, 3.0), taking)
    assert [s.kernel.implementation for s in plan.steps] == ["torch.view", "given"]
    assert plan.cost_s == pytest.approx(3.0 + VIEW_S)
    assert plan.steps[1].args == ((t, (1, 0)),)
    # No kernel reads the view's strides. The permutation's own kernel costs less than a copy.
    plan = best(graph, kernel(view, 2.0), kernel(relu, 3.0))
    assert plan.cost_s == 5.0


def test_a_kernel_without_an_end_is_never_chosen() -> None:
    graph, first, second = chain()
    plan = best(graph, kernel(first, INF), kernel(first, 7.0), kernel(second, 1.0))
    assert plan.cost_s == 8.0


def test_equal_computations_have_equal_kernels() -> None:
    one, two = unary("Relu", ref(0)), unary("Relu", ref(7))
    assert placeholder(one, {})[0] == placeholder(two, {})[0]
    assert (
        placeholder(Op("Add", (ref(0), ref(1))), {})[0]
        != placeholder(Op("Add", (ref(0), ref(0))), {})[0]
    )


def test_every_backend_is_asked_for_every_member() -> None:
    x, w, y = ref(0, (4, 8)), ref(1, (8, 16), constant=True), ref(2, (4, 16))
    graph = egraph(
        {
            x: [leaf(Input, 0, (4, 8))],
            w: [leaf(Weight, 1, (8, 16))],
            y: [Op("Matmul", (x, w))],
        },
        y,
    )
    found = candidates(graph, cpu_backends())
    families = {c.kernel.implementation.partition(".")[0] for c in found[y]}
    assert families == {"onednn", "torch"}
    assert all(c.kernel.constants == (False, True) for c in found[y])
