"""Schedule spaces: every point is a right kernel, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from eoperator_cases import check_kernels, it, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.schedule import Band, Block, Flat, Fold, Lanes, Rows, Schedule, Tile
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum, Value
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.eoperators import prim_func
from eqsynth.lower.loop_nest import LoopNest, loop_nest
from eqsynth.lower.machine import Machine
from eqsynth.lower.schedules import band, block, refusal, schedules
from eqsynth.lower.spaces import space_of
from eqsynth.tuning.space import Point, Refused, Space
from tests.turns import in_rare_turns

WIDE, NARROW = Machine(32, 64, 1 << 20), Machine(16, 32, 1 << 18)


def _shifts() -> Scope:
    source = tensor(0, (6, 7, 3, 3, 40))
    h, w, f, r, s = (it(k, e) for k, e in enumerate((6, 7, 40, 3, 3)))
    return Scope((6, 7, 40), (3, 3), Read(source, (h + r - 1, w + s - 1, r, s, f), 0.0))


def _permuted() -> Scope:
    shape, axes = (5, 33, 9, 14), (0, 3, 1, 2)
    index = tuple(it(axes.index(axis), shape[axis]) for axis in range(4))
    return Scope(tuple(shape[axis] for axis in axes), (), Read(tensor(0, shape), index))


def _few_rows() -> Scope:
    """So few that the innermost loop is shared by the threads, too."""
    return Scope((2, 3, 900), (), Read(tensor(0, (3, 2, 900)), (it(1, 3), it(0, 2), it(2, 900))))


def _product(m: int, n: int, k: int, batch: int = 1, dtype: str = "float32") -> Scope:
    b, i, j, r = it(0, batch), it(1, m), it(2, n), it(3, k)
    x, y = tensor(0, (batch, m, k), dtype), tensor(1, (batch, k, n), dtype)
    return Scope((batch, m, n), (k,), Prod((Read(x, (b, i, r)), Read(y, (b, r, j)))))


def _nearness() -> Scope:
    """A contraction that is no product, with a number and a maximum."""
    h, c, f, k = it(0, 6), it(1, 9), it(2, 40), it(3, 20)
    x, y = tensor(0, (6, 9, 20)), tensor(1, (20, 40))
    near = Call("abs", (Sum((Read(x, (h, c, k)), Prod((Num(-1.0), Read(y, (k, f)))))),))
    return Scope((6, 9, 40), (20,), Prod((near, Sum((Num(1.0), Value(f))))), "max")


def _band(along: bool, n: int, width: int, dilation: int, k: int, batch: int = 2) -> Scope:
    """A band of a product of matrices, or a band times a matrix."""
    wide = 2 * width + 1
    shape = (batch, n, k if along else wide)
    b, m, j, r = it(0, batch), it(1, n), it(2, shape[2]), it(3, wide if along else k)
    x, y = tensor(0, (batch, n, r.range()[1] + 1)), tensor(1, (batch, n, k))
    w, c = (r, j) if along else (j, r)
    moved = Read(y, (b, m + (w - width) * dilation, c), 0.0)
    return Scope(shape, (wide if along else k,), Prod((Read(x, (b, m, r)), moved)))


def _convolution() -> Scope:
    """Padded, so that it is read from a copy."""
    f, h, w = it(0, 13), it(1, 9), it(2, 19)
    c, r, s = it(3, 4), it(4, 3), it(5, 3)
    x, weight = tensor(0, (4, 9, 19)), tensor(1, (13, 4, 3, 3))
    window = Read(x, (c, h + r - 1, w + s - 1), 0.0)
    return Scope((13, 9, 19), (4, 3, 3), Prod((Read(weight, (f, c, r, s)), window)))


@dataclass(frozen=True)
class Case:
    scope: Scope
    by_memory: bool = True
    tolerance: float = 8.0

    def nest(self) -> LoopNest:
        args = args_of(self.scope)
        inputs = [contiguous(len(arg.shape)) for arg in args]
        return loop_nest(self.scope, inputs, contiguous(len(self.scope.shape)))

    def space(self, machine: Machine = WIDE) -> Space[Schedule]:
        return space_of(self.nest(), machine, self.by_memory)

    def kernel(self, schedule: Schedule) -> Kernel:
        args = args_of(self.scope)
        inputs = tuple(contiguous(len(arg.shape)) for arg in args)
        output = contiguous(len(self.scope.shape))
        return Kernel(self.scope, (False,) * len(args), "tvm", inputs, output, schedule)


X = tensor(0, (70, 150))
CASES = {
    "map": Case(Scope((70, 150), (), Call("silu", (Read(X, (it(0, 70), it(1, 150))),)))),
    "guarded map": Case(
        Scope((70, 150), (), Call("exp", (Read(X, (it(0, 70) - 1, it(1, 150) + 2), -np.inf),)))
    ),
    "transposed": Case(Scope((150, 70), (), Read(X, (it(1, 70), it(0, 150))))),
    "large, transposed": Case(
        Scope((150, 130), (), Read(tensor(0, (130, 150)), (it(1, 130), it(0, 150))))
    ),
    "permuted": Case(_permuted()),
    "few rows": Case(_few_rows()),
    "along": Case(Scope((70,), (150,), Read(X, (it(0, 70), it(1, 150))))),
    "across": Case(Scope((150,), (70,), Read(X, (it(1, 70), it(0, 150))), "max")),
    "everything": Case(Scope((), (70, 150), Read(X, (it(0, 70), it(1, 150)))), tolerance=64.0),
    "shifts": Case(_shifts()),
    "small product": Case(_product(9, 17, 24, 3)),
    "product": Case(_product(21, 56, 30), False),
    "batch of products": Case(_product(19, 40, 24, 3), False),
    "half vectors": Case(_product(40, 13, 36), False),
    "products of doubles": Case(_product(17, 33, 20, 2, "float64"), False),
    "products of integers": Case(_product(17, 33, 20, 1, "int32"), False),
    "nearness": Case(_nearness(), False),
    "convolution": Case(_convolution(), False, 16.0),
    "convolution of few uses": Case(_convolution(), True, 16.0),
    "band of a product": Case(_band(False, 53, 9, 3, 20), False),
    "band times a matrix": Case(_band(True, 53, 9, 3, 43), False),
    "band wider than the rows": Case(_band(False, 7, 10, 1, 19), False),
}


def _drawn(data: st.DataObject, space: Space[Schedule]) -> Schedule | None:
    """What a point near one that is offered means, or one anywhere; None where it is refused."""
    start: Point = data.draw(st.sampled_from(space.starts), "start")
    point = tuple(
        data.draw(st.one_of(st.just(value), st.sampled_from(list(parameter.values()))), name)
        for value, (name, parameter) in zip(start, space.parameters.items(), strict=True)
    )
    made = space.made(point)
    return None if isinstance(made, Refused) else made


def _check_points(data: st.DataObject, count: int) -> None:
    case = CASES[data.draw(st.sampled_from(sorted(CASES)), "case")]
    machine = data.draw(st.sampled_from([WIDE, NARROW]), "machine")
    space = case.space(machine)
    drawn = [_drawn(data, space) for _ in range(count)]
    kernels = [case.kernel(schedule) for schedule in dict.fromkeys(drawn) if schedule is not None]
    if kernels:
        check_kernels(kernels, tolerance=case.tolerance)


@in_rare_turns
@settings(max_examples=8)
@given(st.data())
def test_every_point_is_right_or_refused(data: st.DataObject) -> None:
    _check_points(data, 5)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_many_points_are_right_or_refused(data: st.DataObject) -> None:
    _check_points(data, 8)


# A schedule of each kind with all that it may have, for nests whose every loop has a rest.
CORNERS = {
    "permuted": [Rows(order=(1, 0)), Flat(32), Tile(9, 8, across=True, order=(1, 0, 2))],
    "large, transposed": [
        Tile(48, 12, across=True, tasks=4, order=(1, 0)), Rows(tasks=1024), Flat(256)
    ],
    "few rows": [Rows(order=(1, 0)), Rows(order=(1, 0), tasks=4)],
    "across": [Lanes(24, 7), Lanes(128, 2), Rows(unrolled=10)],
    "shifts": [Lanes(32, order=(2, 1, 0)), Rows(order=(1, 0))],
    "along": [Fold(8, 3), Fold(16, 9), Fold(32, 2), Rows(unrolled=75)],
    "everything": [Fold(64, 82)],
    "batch of products": [
        Block(4, 16, 3, 2, 4, order=(2, 0, 1)), Block(8, 24, 2, 1, 2), Block(19, 40), Lanes(16, 6),
        Block(2, 8, 9, 5, 24, 4, (1, 2, 0)),
    ],
    "band of a product": [Band(14, 48, 18), Band(5, 24, 7, 4), Band(1, 8, 1, 1024)],
    "band times a matrix": [Band(12, 40, 18), Band(5, 24, 7, 4), Band(1, 8, 1, 1024)],
    "band wider than the rows": [Band(7, 64, 7), Band(4, 16, 5)],
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    case = CASES[name]
    assert all(refusal(case.nest(), schedule) is None for schedule in CORNERS[name])
    check_kernels([case.kernel(s) for s in CORNERS[name]], tolerance=case.tolerance)


REFUSED = {
    "map": [Lanes(16), Fold(16), Block(8, 16), Tile(16, 16), Rows(unrolled=2), Flat(0)],
    "permuted": [Rows(order=(0, 2, 1)), Tile(16, 16, order=(0, 1)), Rows(order=(0, 1, 1))],
    "along": [Flat(16), Lanes(16), Fold(256), Fold(24), Fold(12), Fold(16, 2), Fold(16, 0)],
    "across": [Lanes(160), Lanes(12), Lanes(16, 4), Lanes(16, order=(1,))],
    "shifts": [Lanes(16, 3)],  # a short reduction is written out
    "product": [
        Block(22, 16), Block(8, 64), Block(8, 12), Block(8, 16, 0), Block(8, 16, unrolled=4),
        Band(8, 16, 8),
    ],
    "band of a product": [
        Block(8, 16), Band(19, 16, 18), Band(8, 12, 18), Band(8, 16, 7), Band(8, 16, 19),
        Band(0, 16, 8), Band(8, 16, 0),
    ],
    "band times a matrix": [Band(8, 48, 18), Band(8, 12, 18), Band(8, 16, 7), Band(8, 16, 54)],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_schedule_of_a_nest(name: str) -> None:
    nest = CASES[name].nest()
    for schedule in REFUSED[name]:
        assert refusal(nest, schedule) is not None, schedule
        with pytest.raises(LoweringError) as error:
            prim_func(nest, schedule, "k")
        assert error.value.got == str(schedule)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_what_is_offered_is_where_a_search_begins(name: str, machine: Machine) -> None:
    case = CASES[name]
    space, nest = case.space(machine), case.nest()
    offered: list[Schedule] = list(schedules(nest))
    if not case.by_memory:
        found = block(nest, machine)
        offered = list(band(nest, machine)) if found is None else [found]
    assert offered and [space.made(point) for point in space.starts] == offered
    assert all(point in space for point in space.starts)


@pytest.mark.rotating
@pytest.mark.parametrize("name", CASES)
def test_a_schedule_has_a_place_in_its_space(name: str) -> None:
    case, rng = CASES[name], Random(0)
    space, nest = case.space(), case.nest()
    refused = 0
    for _ in range(300):
        made = space.made(space.sample(rng))
        if isinstance(made, Refused):
            refused += 1
            continue
        place = space.place(made)
        assert refusal(nest, made) is None
        assert place is not None and place in space and space.made(place) == made
    assert refused < 300
    assert space.place(Fold(1 << 20)) is None


def test_the_machine_bounds_a_space() -> None:
    """Registers, cache and code: each refuses what another machine takes."""

    def why(machine: Machine, schedule: Schedule, case: Case) -> str:
        space = case.space(machine)
        point = case.space(Machine(1 << 20, 64, 1 << 40)).place(schedule)
        assert point is not None
        made = space.made(point)
        return made.why if isinstance(made, Refused) else ""

    product = Case(_product(96, 96, 96), False)
    assert not why(WIDE, Block(12, 32), product)
    assert "registers" in why(NARROW, Block(12, 32), product)
    assert "registers" in why(WIDE, Block(16, 32), product)
    assert not why(WIDE, Block(8, 32, 4), product)
    assert "cache" in why(Machine(32, 64, 1 << 10), Block(8, 32, 4), product)
    assert "cache" in why(Machine(32, 64, 1 << 10), Tile(48, 48), CASES["large, transposed"])
    banded = Case(_band(False, 300, 9, 1, 64), False)
    assert not why(WIDE, Band(8, 32, 150), banded)
    assert "cache" in why(Machine(32, 64, 1 << 14), Band(8, 32, 150), banded)
    assert "registers" in why(NARROW, Band(8, 32, 150), banded)
    names, point = list(product.space().parameters), product.space().starts[0]
    written = (*point[: names.index("depth")], (1, 96), *point[names.index("depth") + 1 :])
    made = product.space().made(written)
    assert isinstance(made, Refused) and "written out" in made.why
