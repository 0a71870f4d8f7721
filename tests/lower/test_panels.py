"""A constant operand in panels: its elements stand where a block reads them, and kernels that read
panels compute what their scopes say."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from itertools import product as places
from typing import Any

import pytest
import torch
from eoperator_cases import check_kernels, tensor
from tvm import tirx

from eqsynth.extract.kernel import Kernel, Layout, contiguous, matrix_layouts, strides
from eqsynth.extract.schedule import Block
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.eoperators import prim_func
from eqsynth.lower.loop_nest import LoopNest, loop_nest
from eqsynth.lower.machine import Machine
from eqsynth.lower.panels import Panels, pieces
from eqsynth.lower.schedules import block, block_loops, panels_of, refusal
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tvm_backend import TvmBackend, check_schedule
from eqsynth.tuning.space import Refused
from tests.terms import it

WIDE, NARROW = Machine(32, 64, 1 << 20), Machine(16, 32, 1 << 18)


def contraction(m: int, n: int, k: int, batch: int = 1, dtype: str = "float32") -> Scope:
    """``L_bmn sum_k a[b, m, k] * c[b, k, n]``; without an axis b for one batch."""
    first = () if batch == 1 else (it(0, batch),)
    slot = len(first)
    extents = (*([batch] * slot), m, n)
    i, j, s = it(slot, m), it(slot + 1, n), it(slot + 2, k)
    a = Read(tensor(0, (*([batch] * slot), m, k), dtype), (*first, i, s))
    c = Read(tensor(1, (*([batch] * slot), k, n), dtype), (*first, s, j))
    return Scope(extents, (k,), Prod((a, c)))


def layouts(scope: Scope) -> list[tuple[tuple[Layout, ...], Layout]]:
    """All mixes of plain matrices and matrices with exchanged axes."""
    each = matrix_layouts(len(scope.traversal))
    return [((a, c), result) for a, c, result in places(each, each, each)]


def packed(scope: Scope, argument: int, schedules: list[Block]) -> list[Kernel]:
    """The scope's kernels with this argument in panels, at all layouts."""
    found = []
    for inputs, result in layouts(scope):
        nest = loop_nest(scope, inputs, result)
        for schedule in schedules:
            made = replace(schedule, packed=argument)
            if refusal(nest, made) is None:
                constants = tuple(n == argument for n in range(2))
                found.append(Kernel(scope, constants, "tvm.block", inputs, result, made))
    return found


@pytest.mark.rotating
@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    # Whole blocks; a shorter block of rows; columns that overlap; both, in a batch; half a vector.
    [(16, 64, 80, 1), (21, 32, 130, 1), (17, 40, 13, 1), (9, 50, 15, 3), (40, 13, 14, 2)],
)
def test_kernels_with_panels(m: int, n: int, k: int, batch: int, argument: int) -> None:
    scope = contraction(m, n, k, batch)
    tried = [Block(4, 16), Block(6, 8, 2, 2, tasks=4), Block(5, 24, order=(1, 0))]
    kernels = packed(scope, argument, tried)
    assert {kernel.inputs[argument] for kernel in kernels} == set(matrix_layouts(len(scope.shape)))
    check_kernels(kernels, tolerance=4)


def element(nest: LoopNest, panels: Panels, line: torch.Tensor, at: dict[int, int]) -> float:
    """The operand's element at values of the loops, as it lies in its layout."""
    address = panels.access.address
    steps = (value * address.coefficient(slot) for slot, value in at.items())
    return float(line[address.const + sum(steps)])


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("size", [(4, 16), (5, 8), (7, 24)])
def test_elements_stand_where_blocks_read_them(size: tuple[int, int], falling: bool) -> None:
    """By rows and by columns; also an operand that is read from its end."""
    b, i, j, k = it(0, 2), it(1, 9), it(2, 28), it(3, 5)
    row, depth = (8 + i * -1, 4 + k * -1) if falling else (i, k)
    a, c = tensor(0, (2, 9, 5)), tensor(1, (2, 5, 28))
    scope = Scope((2, 9, 28), (5,), Prod((Read(a, (b, row, depth)), Read(c, (b, k, j)))))
    plain = (0, 1, 2)
    nest = loop_nest(scope, [plain] * 2, plain)
    for argument in range(2):
        schedule = Block(*size, packed=argument)
        panels, loops = panels_of(nest, schedule), block_loops(nest)
        assert panels is not None and loops is not None
        assert panels.cut == loops[argument]
        shape = (a, c)[argument].shape
        value = torch.arange(float((a, c)[argument].type.size))
        dense = value.as_strided(shape, strides(shape, contiguous(3)))
        stored = panels.stored(dense)
        assert stored.shape == (panels.size,)
        read = 0
        for piece in panels.pieces:
            steps = panels.strides(piece)
            around = (*panels.around, *panels.reduction)
            for values in places(*(range(loop.extent) for loop in around)):
                at = dict(zip((loop.slot for loop in around), values, strict=True))
                first = panels.begin(piece) + sum(at[slot] * steps[slot] for slot in at)
                for n, step in places(range(piece.count), range(piece.size)):
                    where = first + n * piece.size * panels.depth + step
                    own = {**at, panels.cut.slot: piece.start + n * piece.size + step}
                    assert float(stored[where]) == element(nest, panels, value, own)
                    read += 1
        assert read == panels.size  # so no place is read twice


def test_pieces_cover_a_loop() -> None:
    sizes = ((1, 1), (3, 1), (8, 8), (16, 8), (24, 8))
    for extent, (size, multiple) in places(range(8, 60), sizes):
        found = pieces(extent, size, multiple)
        steps = [piece.start + n for piece in found for n in range(piece.steps)]
        assert set(steps) == set(range(extent))


def test_what_cannot_be_in_panels() -> None:
    i, j, k = it(0, 64), it(1, 64), it(2, 64)
    a, c = tensor(0, (64, 64)), tensor(1, (64, 64))
    plain = (0, 1)

    def why(scope: Scope, argument: int) -> str | None:
        nest = loop_nest(scope, [plain] * len({a, c}), plain)
        return refusal(nest, Block(4, 16, packed=argument))

    product = contraction(64, 64, 64)
    assert why(product, 0) is None and why(product, 1) is None
    assert why(product, 2) == "the argument can't be stored in panels"
    twice = Scope((64, 64), (64,), Prod((Read(a, (i, k)), Read(c, (k, j)), Read(a, (j, k)))))
    assert why(twice, 0) is not None
    both = Scope((64, 64), (64,), Prod((Read(a, (i, k)), Read(c, (k, j)), Read(c, (i, j)))))
    assert why(both, 1) is not None
    thirds = Scope((64, 64), (64,), Prod((Read(a, (i, k // 3 * 3)), Read(c, (k, j)))))
    assert why(thirds, 1) is None and why(thirds, 0) is not None


def test_only_a_constant_can_be_in_panels() -> None:
    plain = (0, 1)
    kernel = Kernel(
        contraction(64, 64, 64), (False, True), "tvm.block", (plain, plain), plain,
        Block(4, 16, packed=1),
    )  # fmt: skip
    check_schedule(kernel)
    with pytest.raises(ValueError, match="only a constant"):
        check_schedule(replace(kernel, schedule=Block(4, 16, packed=0)))


def test_constants_are_offered_in_panels() -> None:
    """A weight that no cache holds is read once: along the columns, if all rows of a block follow
    each other."""
    plain = (0, 1)

    def offered(m: int, n: int, k: int, *constants: bool) -> Block | None:
        nest = loop_nest(contraction(m, n, k), [plain] * 2, plain)
        return block(nest, NARROW, constants)

    assert offered(64, 4096, 512) is None
    assert offered(64, 4096, 512, True, False) is None
    ahead = Block(6, 16, order=(1, 0), packed=1, ahead=True)
    assert offered(64, 4096, 512, False, True) == ahead
    assert offered(4, 4096, 512, False, True) == Block(4, 16, packed=1)
    assert offered(4096, 16, 512, True, False) == Block(6, 16, packed=0)
    assert offered(4096, 4096, 512, False, True) is None
    assert offered(4096, 64, 64, False, True) == Block(6, 16, packed=1)
    kernels = TvmBackend().kernels(contraction(16, 512, 256), (False, True))
    assert {kernel.schedule.packed for kernel in kernels} == {1}  # type: ignore[union-attr]


def test_rows_are_outside_of_products_that_lie_side_by_side() -> None:
    """``L_bmn sum_k a[b, m, k] * c[b, k, n]``, where rows of a and of the result lie m by m. Then
    memory is passed through once; if the weights of all products fit into the cache."""
    side, apart = (1, 0, 2), contiguous(3)

    def first(a: Layout, result: Layout, m: int = 512, k: int = 32, constant: bool = True) -> int:
        nest = loop_nest(contraction(m, 64, k, batch=8), (a, apart), result)
        found = block(nest, NARROW, (False, constant))
        assert found is not None
        return found.order[0] if found.order else 0

    rows, batch = 1, 0
    assert first(side, side) == first(side, side, constant=False) == rows
    assert first(side, apart) == first(apart, side) == first(apart, apart) == batch
    assert first(side, side, m=128) == batch, "the result fits into the cache"
    assert first(side, side, k=1024) == batch, "the weights don't"


@pytest.mark.parametrize("constants", [(False, True), (True, False), (False, False)])
def test_a_search_stays_within_panels(constants: tuple[bool, bool]) -> None:
    plain = (0, 1)
    nest = loop_nest(contraction(24, 64, 100), [plain] * 2, plain)
    space = space_of(nest, WIDE, False, constants)
    (start,) = space.starts
    first = space.made(start)
    assert isinstance(first, Block)
    assert first.packed == (constants.index(True) if any(constants) else -1)
    made = [space.made(point) for point in space.neighbours(start)]
    near = [schedule for schedule in made if not isinstance(schedule, Refused)]
    assert near and {schedule.packed for schedule in near} == {first.packed}  # type: ignore[attr-defined]


def fetched(statement: Any, at: dict[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """The elements that statements fetch ahead, each with the values of the loops around.

    Args:
        at: the values of the loops around the statements.
    """
    if isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from fetched(part, at)
    if isinstance(statement, tirx.For):
        for value in range(int(statement.extent)):
            yield from fetched(statement.body, {**at, statement.loop_var.name: value})
    if isinstance(statement, tirx.IfThenElse):
        low, high = (number(side, at) for side in (statement.condition.a, statement.condition.b))
        yield from fetched(statement.then_case if low < high else statement.else_case, at)
    if isinstance(statement, tirx.Evaluate):
        (address,) = (arg.args[0] for arg in statement.value.args if hasattr(arg, "args"))
        (element,) = address.indices
        yield tuple(at.values()), number(element, at)


def number(expr: Any, values: dict[str, int]) -> int:
    """The value of an index."""
    if isinstance(expr, tirx.Var):
        return values[expr.name]
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    kinds = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul, tirx.Min: min}
    return kinds[type(expr)](number(expr.a, values), number(expr.b, values))


@pytest.mark.parametrize(
    ("m", "schedule"),
    [
        (24, Block(8, 32, order=(1, 0), packed=1, ahead=True)),
        (13, Block(4, 32, order=(1, 0), packed=1, ahead=True)),
        (4, Block(2, 64, order=(1, 0), packed=1, ahead=True)),
        (60, Block(2, 16, order=(1, 0), packed=1, ahead=True)),
    ],
    ids=str,
)
def test_the_next_panel_is_fetched_whole(m: int, schedule: Block) -> None:
    """The blocks that use a panel fetch each cache line of the next one, and nothing that lies
    outside of the operand."""
    plain, k, columns = (0, 1), 5, schedule.columns
    scope = contraction(m, 3 * columns, k)
    function = prim_func(loop_nest(scope, [plain] * 2, plain), schedule, "kernel")
    found = [*fetched(function.body, {})]
    size, line = k * columns, 16
    assert {element // size for _, element in found} <= {0, 1, 2}
    for panel in (1, 2):
        lines = {element // line for (column, *_), element in found if column == panel - 1}
        assert lines >= set(range(panel * size // line, (panel + 1) * size // line))


@pytest.mark.parametrize(
    ("scope", "schedule"),
    [
        (contraction(24, 82, 5), Block(8, 32, order=(1, 0), packed=1, ahead=True)),
        (contraction(22, 64, 5), Block(4, 32, order=(0, 1), packed=0, ahead=True)),
        (contraction(13, 64, 5, 3), Block(4, 32, order=(0, 2, 1), packed=1, ahead=True)),
        (contraction(24, 96, 5, 1, "float64"), Block(12, 32, order=(1, 0), packed=1, ahead=True)),
    ],
    ids=["a rest of columns", "rows and a rest", "batches", "float64"],
)
def test_panels_after_the_first_are_fetched(scope: Scope, schedule: Block) -> None:
    """Of all panels but the first each cache line is fetched, and nothing outside of the operand.
    A rest of columns has a loop of its own, so its panel is fetched by nobody."""
    plain = tuple(range(len(scope.traversal)))
    nest = loop_nest(scope, [plain] * 2, plain)
    assert refusal(nest, schedule) is None
    made = panels_of(nest, schedule)
    assert made is not None
    function = prim_func(nest, schedule, "kernel")
    elements = {element for _, element in fetched(function.body, {})}
    assert elements and min(elements) >= 0 and max(elements) < made.size
    line = 64 // ITEMSIZE[scope.dtype]
    whole = made.pieces[0] if not made.by_rows else None
    first = made.depth * made.pieces[0].size
    last = made.size if whole is None or len(made.pieces) == 1 else made.depth * whole.steps
    assert {e // line for e in elements} >= set(range(first // line, last // line))


def test_a_last_block_of_fewer_rows_uses_the_same_panel() -> None:
    """Otherwise it would read the whole operand again: one loop, and not one for each height."""
    plain = (0, 1)
    nest = loop_nest(contraction(13, 64, 5), [plain] * 2, plain)
    schedule = Block(4, 32, order=(1, 0), packed=1, ahead=True)

    def loops(schedule: Block) -> int:
        return sum(isinstance(s, tirx.For) for s in prim_func(nest, schedule, "kernel").body.seq)

    assert loops(schedule) == 1
    assert loops(replace(schedule, rows_together=2, ahead=False)) == 2


def test_a_panel_is_fetched_only_while_another_is_used() -> None:
    plain = (0, 1)
    nest = loop_nest(contraction(24, 64, 8), [plain] * 2, plain)
    used_again = Block(8, 32, order=(1, 0), packed=1, ahead=True)
    assert refusal(nest, used_again) is None
    for schedule in (
        replace(used_again, order=()),  # each block uses another panel than the one before
        replace(used_again, packed=-1),
        replace(used_again, rows=24),
        replace(used_again, rows_together=3),
    ):
        assert refusal(nest, schedule) is not None
        assert refusal(nest, replace(schedule, ahead=False)) is None
