"""CUDA kernels without a GPU: their text, run on the CPU, against the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_cases import NUMBERS, check_on_cpu, kernel_of, nest_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spaces import CASES

from eqsynth.errors import LoweringError
from eqsynth.extract.schedule import Grid, Rows, Schedule, Team, Tiles, Turn
from eqsynth.lower.cuda.source import source_of
from eqsynth.lower.cuda.spaces import Multiprocessor, offered, refusal, space_of
from eqsynth.tuning.space import Refused
from tests.turns import in_rare_turns


@pytest.mark.rotating
def test_the_offered_kernels_are_right() -> None:
    check_on_cpu({
        case.kernel(schedule): case.tolerance
        for case in CASES.values()
        for schedule in offered(case.nest(), case.by_memory)
    })  # fmt: skip


# A schedule of each kind with all that it may have, for nests whose every loop has a rest.
CORNERS: dict[str, list[Schedule]] = {
    "map": [Grid(64, each=3, vector=2)],
    "guarded map": [Grid(32, each=5)],
    "permuted": [Turn(16, 4), Turn(32, 32)],
    "large, transposed": [Turn(64, 8), Turn(8, 1)],
    "along": [Team(16, 4), Team(4, 1), Team(64, 3), Grid(64, unrolled=2)],
    "everything": [Team(1024), Team(2, 5)],
    "across": [Grid(32, each=2, unrolled=7)],
    "product": [
        Tiles(1, 1, 3, 8, 4), Tiles(3, 5, 2, 3, 7), Tiles(2, 4, 1, 8, 30, True),
        Tiles(1, 1, 21, 8, 1),
    ],
    "batch of products": [Tiles(16, 2, 2, 5, 12, True), Tiles(4, 4, 4, 4, 24)],
    "nearness": [Tiles(3, 8, 1, 2, 5, True), Tiles(4, 16, 4, 1, 3)],
    "products of integers": [Tiles(2, 16, 4, 4, 6)],
}


@pytest.mark.rotating
def test_a_schedule_of_each_kind_with_all_that_it_may_have() -> None:
    check_on_cpu({
        CASES[name].kernel(schedule): CASES[name].tolerance
        for name, schedules in CORNERS.items()
        for schedule in schedules
    })  # fmt: skip


def _check_points(data: st.DataObject, count: int) -> None:
    case = CASES[data.draw(st.sampled_from(sorted(CASES)), "case")]
    space = space_of(case.nest(), case.by_memory)
    drawn: list[Schedule] = []
    for _ in range(count):
        point = tuple(
            data.draw(st.sampled_from(list(parameter.values())), name)
            for name, parameter in space.parameters.items()
        )
        made = space.made(point)
        if not isinstance(made, Refused):
            drawn.append(made)
            assert space.place(made) is None or space.made(space.place(made)) == made  # type: ignore[arg-type]
    if drawn:
        check_on_cpu({case.kernel(schedule): case.tolerance for schedule in drawn})


@in_rare_turns
@settings(max_examples=3)
@given(st.data())
def test_every_point_is_right_or_refused(data: st.DataObject) -> None:
    _check_points(data, 6)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_many_points_are_right_or_refused(data: st.DataObject) -> None:
    _check_points(data, 12)


@pytest.mark.rotating
def test_numbers_of_every_dtype() -> None:
    kernels = {}
    for scope in NUMBERS:
        kernels |= {kernel_of(scope, schedule): 8.0 for schedule in offered(nest_of(scope), True)}
    check_on_cpu(kernels)


def test_small_numbers_keep_their_digits_in_the_text() -> None:
    text = source_of({kernel_of(NUMBERS[6], Grid(64)): "k"}).text
    # TVM alone writes 1e-20 as 0.000000000000000.
    assert str(np.array(1e-20).view(np.int64)) in text


def test_products_are_rounded_before_a_steep_function() -> None:
    assert "__fadd_rn" in source_of({kernel_of(NUMBERS[7], Grid(64)): "k"}).text


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["along", "large, transposed", "product"])
def test_a_barrier_that_is_missing_is_noticed(name: str) -> None:
    case = CASES[name]
    schedule = {"along": Team(32, 8), "product": Tiles(4, 8, 4, 4, 10)}.get(name, Turn(32, 8))

    def without_the_first(text: str) -> str:
        assert "__syncthreads();" in text
        return text.replace("__syncthreads();", ";", 1)

    check_on_cpu({case.kernel(schedule): case.tolerance})
    with pytest.raises(AssertionError):
        check_on_cpu({case.kernel(schedule): case.tolerance}, without_the_first)


def test_a_schedule_of_the_cpu_has_no_threads() -> None:
    with pytest.raises(LoweringError, match="there are no threads in Rows"):
        source_of({CASES["map"].kernel(Rows()): "k"})


@pytest.mark.parametrize(
    ("name", "schedule", "why"),
    [
        ("map", Grid(2048), "more threads"),
        ("map", Grid(64, vector=3), "read at once"),
        ("guarded map", Grid(64, vector=2), "read at once"),
        ("along", Team(24), "by halves"),
        ("map", Team(32), "no reduction"),
        ("map", Turn(32, 8), "no loop reads along memory"),
        ("large, transposed", Turn(32, 5), "don't divide"),
        ("large, transposed", Turn(128, 8), "shared memory"),
        ("product", Tiles(8, 8, 16, 16, 8), "registers"),
        ("product", Tiles(8, 8, 1, 1, 31), "shorter than the depth"),
        ("product", Tiles(8, 8, 1, 1, 7, True), "doesn't divide"),
        ("permuted", Tiles(8, 8, 1, 1, 8), "no two loops"),
    ],
)
def test_what_is_refused(name: str, schedule: Schedule, why: str) -> None:
    assert why in str(refusal(CASES[name].nest(), schedule))


def test_limits_of_a_device() -> None:
    nest, small = CASES["product"].nest(), Multiprocessor(threads=64, shared_bytes=1 << 10)
    assert refusal(nest, Tiles(8, 16, 1, 1, 4)) is None
    assert "more threads" in str(refusal(nest, Tiles(8, 16, 1, 1, 4), small))
    assert "shared memory" in str(refusal(nest, Tiles(8, 8, 4, 4, 16), small))


def test_a_kernel_is_launched_with_what_it_was_made_for() -> None:
    kernel = CASES["map"].kernel(Grid(128, each=2))
    source = source_of({kernel: "k"})
    entry = source.entries[kernel]
    assert (entry.launch.threads, entry.launch.blocks) == (128, -(-70 * 150 // 256))
    bounds = re.findall(r"__launch_bounds__\((\d+)\) " + entry.symbol, source.text)
    assert set(bounds) == {"128"}
