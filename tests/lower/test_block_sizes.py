"""The sizes of blocks, and blocks with more columns than the loop has: the last vector begins
before the others end."""

from __future__ import annotations

from random import Random

import pytest
import torch
from eoperator_cases import check_kernels, check_region, tensor

from eqsynth.extract.kernel import Kernel, held
from eqsynth.extract.schedule import Block
from eqsynth.ir.scalar import Num, Prod, Read, Sum
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.block_sizes import block_size
from eqsynth.lower.loop_nest import Loop, loop_nest
from eqsynth.lower.machine import Machine
from eqsynth.lower.schedules import block, one_row, refusal
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tvm_backend import TvmBackend, check_schedule
from tests.lower.test_mapped_blocks import mapped
from tests.lower.test_padding import convolution
from tests.lower.test_panels import contraction, packed
from tests.terms import it

WIDE, NARROW = Machine(32, 64, 1 << 20), Machine(16, 32, 1 << 18)


def test_sizes_leave_few_registers_empty() -> None:
    def size(rows: int, columns: int, machine: Machine = NARROW) -> tuple[int, int]:
        return block_size((Loop(0, rows), Loop(1, columns)), machine)

    # Whole blocks; 12 of 16 columns are filled, and 21 of 24; 7 rows by 8 are 3 whole blocks.
    whole = {(64, 64): (6, 16), (28, 32): (6, 16), (49, 512): (5, 16)}
    wide = {(4096, 12): (6, 16), (224, 21): (3, 24), (49, 24): (3, 24), (7, 24): (7, 8)}
    # One vector of columns, and more rows; 147 columns waste little in blocks of 16.
    others = {(49, 8): (7, 8), (64, 8): (8, 8), (64, 147): (6, 16), (3, 24): (3, 16)}
    for (rows, columns), found in {**whole, **wide, **others}.items():
        assert size(rows, columns) == found, (rows, columns)
    # With 32 registers of 16 elements, sizes are the usual ones.
    assert size(224, 21, WIDE) == (8, 16) and size(64, 12, WIDE) == (8, 8)


@pytest.mark.rotating
@pytest.mark.parametrize("columns", [9, 12, 15, 17, 21, 23, 31])
def test_a_last_vector_begins_before_the_others_end(columns: int) -> None:
    """As the operands lie, and with either one in panels."""
    scope = contraction(13, columns, 37)
    width = -(-columns // 8) * 8
    tried = [Block(rows, width) for rows in (1, 3, 6)] + [Block(4, width, order=(1, 0))]
    kernels = [*packed(scope, 0, tried), *packed(scope, 1, tried)]
    plain = (0, 1)
    kernels += [Kernel(scope, (False, False), "tvm.block", (plain, plain), plain, s) for s in tried]
    assert len(kernels) >= 5 * len(tried)
    check_kernels(kernels, tolerance=4)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("reducer", ["sum", "max", "prod"])
def test_it_holds_for_dtypes_and_reducers(dtype: str, reducer: str) -> None:
    rows, columns, depth = 9, 13, 21
    i, j, k = it(0, rows), it(1, columns), it(2, depth)
    a, c = tensor(0, (rows, depth), dtype), tensor(1, (depth, columns), dtype)
    near = Prod((Read(a, (i, k)), Read(c, (k, j))))
    if reducer == "prod" and dtype != "int32":
        near = Sum((Num(1.0), Prod((Num(1 / 64), near))))
    scope = Scope((rows, columns), (depth,), near, reducer)
    kernels = packed(scope, 1, [Block(5, 16), Block(6, 16, unrolled=3)])
    assert kernels
    check_kernels(kernels, tolerance=16)


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["bias residual prelu", "bias shifted"])
def test_a_map_reads_and_writes_at_the_columns_own_places(kind: str) -> None:
    """Elements that two vectors hold, as those of 10 columns, are computed and stored twice."""
    region = mapped(convolution(3, 21, (9, 10), (3, 3), (1, 1), (1, 1)), kind)
    constants = tuple(n == 1 for n in range(len(region.args)))
    kernels = check_region(region, constants)
    assert any(isinstance(k.schedule, Block) and k.schedule.columns == 16 for k in kernels)


def test_a_block_is_at_most_a_part_of_a_vector_wider_than_its_loop() -> None:
    plain = (0, 1)
    nest = loop_nest(contraction(16, 21, 8), [plain] * 2, plain)
    assert refusal(nest, Block(4, 24)) is None
    assert refusal(nest, Block(4, 32)) == "the loop is shorter than the width"
    space = space_of(nest, NARROW, by_memory=False)
    made = [space.made(point) for point in space.points()]
    assert {s.columns for s in made if isinstance(s, Block)} == {8, 16, 24}


def test_less_of_the_columns_operand_is_read_again() -> None:
    """Channels of an image into NCHW: panels of channels inside, so that the image is read
    once."""
    plain = (0, 1, 2, 3)
    scope = convolution(12, 12, (32, 32), (3, 3), (1, 1), (1, 1))
    found = block(loop_nest(scope, [plain] * 2, plain), NARROW, (False, True))
    assert found == Block(6, 16, unrolled=3, packed=1)


def test_panels_in_the_cache_are_not_fetched_ahead() -> None:
    plain = (0, 1)

    def offered(n: int, k: int) -> Block | None:
        nest = loop_nest(contraction(64, n, k), [plain] * 2, plain)
        return block(nest, NARROW, (False, True))

    near, far = offered(64, 512), offered(128, 1024)
    assert near is not None and near.order == (1, 0) and not near.ahead
    assert far is not None and far.order == (1, 0) and far.ahead


def test_what_only_the_map_reads_is_not_in_panels() -> None:
    """A constant bias beside operands that vary."""
    region = mapped(contraction(16, 64, 80), "bias")
    plain = tuple(tuple(range(len(arg.shape))) for arg in region.args)
    constants = tuple(len(arg.shape) == 1 for arg in region.args)
    found = block(loop_nest(region, plain, (0, 1)), NARROW, constants)
    assert sum(constants) == 1 and found is not None and found.packed == -1


@pytest.mark.rotating
@pytest.mark.parametrize("columns", [64, 100, 127, 200])
@pytest.mark.parametrize("turned", [False, True])
def test_one_row_by_a_constant_matrix(columns: int, turned: bool) -> None:
    """In panels, however the matrix lies; the vector is of any rank."""
    depth = 300
    i, j, k = it(0, 1), it(1, columns), it(2, depth)
    w = tensor(1, (columns, depth) if turned else (depth, columns))
    for shape, index in (((1, depth), (i, k)), ((depth,), (k,)), ((3, depth), (i + 2, k))):
        x = Read(tensor(0, shape), index)
        scope = Scope((1, columns), (depth,), Prod((x, Read(w, (j, k) if turned else (k, j)))))
        kernels = [*TvmBackend().kernels(scope, (False, True))]
        assert {k.schedule.packed for k in kernels if isinstance(k.schedule, Block)} == {1}
        check_kernels(kernels, tolerance=4)
        as_it_lies = [*TvmBackend().kernels(scope, (False, False))]
        assert as_it_lies and not any(isinstance(k.schedule, Block) for k in as_it_lies)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_rows_of_one_for_dtypes_reducers_and_batches(dtype: str, reducer: str) -> None:
    """Each of two vectors meets a matrix of its own."""
    b, j, k = it(0, 2), it(1, 83), it(2, 120)
    x, w = tensor(0, (2, 120), dtype), tensor(1, (83, 2, 120), dtype)
    scope = Scope((2, 83), (120,), Prod((Read(x, (b, k)), Read(w, (j, b, k)))), reducer)
    plain = ((0, 1), (0, 1, 2)), (0, 1)
    made = [Block(1, 32, packed=1), Block(1, 64, packed=1, unrolled=4), Block(1, 88, packed=1)]
    kernels = [Kernel(scope, (False, True), "tvm", *plain, schedule) for schedule in made]
    for kernel in kernels:
        check_schedule(kernel)
    check_kernels(kernels, tolerance=16)


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["bias residual prelu", "sigmoid"])
def test_a_map_over_one_row(kind: str) -> None:
    region = mapped(contraction(1, 100, 256), kind)
    constants = tuple(arg.shape == (256, 100) for arg in region.args)
    assert sum(constants) == 1
    kernels = check_region(region, constants)
    packed_ones = [k.schedule.packed for k in kernels if isinstance(k.schedule, Block)]
    assert packed_ones == [constants.index(True)] * len(kernels)


def test_what_is_no_row_by_a_constant_matrix() -> None:
    plain = (0, 1)

    def why(scope: Scope, schedule: Block) -> str | None:
        inputs = [tuple(range(len(arg.shape))) for arg in args_of(scope)]
        return refusal(loop_nest(scope, inputs, plain), schedule)

    row = contraction(1, 128, 256)
    assert why(row, Block(1, 64, packed=1)) is None
    # The matrix as it lies, the vector in panels, two rows.
    assert why(row, Block(1, 64)) is not None and why(row, Block(1, 64, packed=0)) is not None
    assert why(row, Block(2, 64, packed=1)) == "a block has more rows than there are"
    # Both move along the columns; a read that may leave its tensor.
    j, k = it(1, 128), it(2, 256)
    x, w = tensor(0, (128, 256)), tensor(1, (256, 128))
    both = Scope((1, 128), (256,), Prod((Read(x, (j, k)), Read(w, (k, j)))))
    assert why(both, Block(1, 64, packed=1)) is not None
    beside = Scope((1, 128), (256,), Prod((Read(tensor(0, (256, 128)), (k, j)), Read(w, (k, j)))))
    assert why(beside, Block(1, 64, packed=1)) is not None
    beyond = Scope((1, 128), (256,), Prod((Read(tensor(0, (255,)), (k,)), Read(w, (k, j)))))
    assert why(beyond, Block(1, 64, packed=1)) is None  # it reads a padded copy
    apart = Scope((1, 128), (256,), Prod((Read(tensor(0, (255,)), (k * 7,)), Read(w, (k, j)))))
    assert why(apart, Block(1, 64, packed=1)) is not None
    # A small one is computed as its matrix lies.
    nest = loop_nest(contraction(1, 64, 100), [plain] * 2, plain)
    assert one_row(nest, NARROW, (False, True)) is None
    assert one_row(loop_nest(row, [plain] * 2, plain), NARROW, (False, True)) == Block(
        1, 64, packed=1
    )
    assert one_row(loop_nest(row, [plain] * 2, plain), WIDE, (False, True)) == Block(
        1, 128, packed=1
    )
    short = contraction(1, 127, 256)
    assert one_row(loop_nest(short, [plain] * 2, plain), WIDE, (False, True)) is None


def test_a_long_row_is_added_up_in_runs() -> None:
    """8,192 equal terms: fewer roundings than one after the other (661)."""
    depth, columns = 8192, 64
    x, w = tensor(0, (1, depth)), tensor(1, (depth, columns))
    j, k = it(1, columns), it(2, depth)
    scope = Scope((1, columns), (depth,), Prod((Read(x, (it(0, 1), k)), Read(w, (k, j)))))
    kernel = next(iter(TvmBackend().kernels(scope, (False, True))))
    row, matrix = torch.full((1, depth), 1 / 3), torch.full((depth, columns), 0.7)
    (run,) = TvmBackend().build([(kernel, {1: matrix})])
    assert run is not None
    exact = row.double() @ matrix.double()
    assert float((run(row) - exact).abs().max() / exact.max()) < 64 * 2**-24


def test_products_by_one_matrix_share_its_panels() -> None:
    """One reads the matrix as its first argument, another as its second; a third has other
    blocks."""
    x, w = tensor(0, (1, 256)), tensor(1, (256, 128))
    v, y = tensor(0, (256, 128)), tensor(1, (256,))
    i, j, k = it(0, 1), it(1, 128), it(2, 256)
    first = Scope((1, 128), (256,), Prod((Read(x, (i, k)), Read(w, (k, j)))))
    second = Scope((1, 128), (256,), Prod((Read(v, (k, j)), Read(y, (k,)))))
    plain = (0, 1)
    kernels = [
        Kernel(first, (False, True), "tvm", (plain, plain), plain, Block(1, 64, packed=1)),
        Kernel(second, (True, False), "tvm", (plain, (0,)), plain, Block(1, 64, packed=0)),
        Kernel(first, (False, True), "tvm", (plain, plain), plain, Block(1, 32, packed=1)),
    ]
    matrix, other, row = torch.randn(256, 128), torch.randn(256, 128), torch.randn(1, 256)
    jobs = [(kernel, {kernel.constants.index(True): matrix}) for kernel in kernels]
    runners = TvmBackend().build([*jobs, (kernels[0], {1: other})])
    places = [held(runner)[0].data_ptr() for runner in runners if runner is not None]
    assert len(places) == 4 and places[0] == places[1] and len(set(places)) == 3
    given, by = (row, row[0], row, row), (matrix, matrix, matrix, other)
    for runner, vector, own in zip(runners, given, by, strict=True):
        assert runner is not None
        torch.testing.assert_close(runner(vector), row @ own)


@pytest.mark.rotating
def test_the_space_of_one_row() -> None:
    """Tuning begins with the offered block, and finds others that are right."""
    scope, plain = contraction(1, 200, 300), (0, 1)
    nest = loop_nest(scope, [plain] * 2, plain)
    space = space_of(nest, NARROW, True, (False, True))
    assert [space.made(start) for start in space.starts] == [Block(1, 64, packed=1)]
    rng = Random(0)
    made = {space.made(space.sample(rng)) for _ in range(2000)}
    blocks = [schedule for schedule in made if isinstance(schedule, Block)]
    assert {(s.rows, s.packed) for s in blocks} == {(1, 1)} and len({s.columns for s in blocks}) > 3
    kernels = [Kernel(scope, (False, True), "tvm", (plain, plain), plain, s) for s in blocks[:8]]
    check_kernels(kernels, tolerance=4)
    as_it_lies = space_of(nest, NARROW, True, (False, False))
    assert not any(isinstance(as_it_lies.made(start), Block) for start in as_it_lies.starts)
