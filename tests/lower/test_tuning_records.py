"""What tuning keeps: documents that are read back, nearest shapes, and what is told of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from eoperator_cases import it, tensor

from eqsynth.executor import Worker, borrowed
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Lanes, Rows, Schedule, Tile
from eqsynth.extract.target import CPU, Device, MemoryLevel, Target
from eqsynth.extract.timing import Timing, alone
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower.kernel_tuning import TunedKernel, space_for, tune_kernel
from eqsynth.lower.tuning_records import Record, keep, load, nearest, records
from eqsynth.lower.tuning_told import rate_of, told
from eqsynth.tuning.search import Budget, Trial, Tuned
from eqsynth.tuning.tuners import opevo

TARGET = Target(CPU, Device("test", 1, ()), 1, (MemoryLevel("all", math.inf, 1e10),),
                (("float32", 1e11),), 1e-6, 1e-7)  # fmt: skip


def transposed(rows: int, columns: int) -> Kernel:
    read = Read(tensor(0, (rows, columns)), (it(1, rows), it(0, columns)))
    scope = Scope((columns, rows), (), read)
    return Kernel(scope, (False,), "tvm", ((0, 1),), (0, 1), Tile(16, 16))


def product(m: int, n: int, k: int) -> Kernel:
    left = Read(tensor(0, (m, k)), (it(0, m), it(2, k)))
    right = Read(tensor(1, (k, n)), (it(2, k), it(1, n)))
    scope = Scope((m, n), (k,), Prod((left, right)))
    return Kernel(scope, (False, False), "tvm", ((0, 1),) * 2, (0, 1), Rows())


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Profile]:
    with closing(Profile(TARGET.key(), path=tmp_path / "own.sqlite")) as found:
        yield found


def record(kernel: Kernel, **times: float | None) -> Record:
    names: dict[str, Schedule] = {"rows": Rows(), "tile": Tile(8, 24), "square": Tile(32, 32)}
    return Record(kernel, 0, (Tile(4, 4),), {names[n]: time_s for n, time_s in times.items()})


def test_a_record_is_read_back(profile: Profile) -> None:
    first = record(transposed(40, 48), rows=1e-3, tile=None, square=5e-4)
    keep(profile, first)
    assert load(profile, replace(first.kernel, schedule=Rows()), 0) == first
    assert records(profile) == [first] and first.best == (Tile(32, 32), 5e-4)
    assert load(profile, first.kernel, 1) is None and load(profile, transposed(48, 40), 0) is None
    assert record(first.kernel, rows=None).best is None
    # A damaged one is as none; the others stay.
    (kind,) = profile.documents("tuning-3 ")
    whole = profile.load_document(kind) or ""
    for body in ("", "[]", whole[:-9], whole.replace("scope", "region"), '{"kernel": 1}'):
        profile.store_document(kind, body, replace=True)
        assert records(profile) == [] and load(profile, first.kernel, 0) is None
    for time_s in ("0.0", "-1.0", "Infinity", "NaN", '"x"'):
        profile.store_document(kind, whole.replace("0.0005", time_s), replace=True)
        (found,) = records(profile)
        assert found.times == {Rows(): 1e-3, Tile(8, 24): None}


def test_the_nearest_shapes() -> None:
    known = [
        record(transposed(4000, 4000), square=1.0, rows=2.0),
        record(transposed(40, 50), tile=1.0, rows=2.0),
        record(transposed(41, 50), tile=1.0),
        record(transposed(40, 51), rows=None),
        record(product(40, 50, 8), rows=1.0),
    ]
    assert nearest(transposed(40, 48), known) == (Tile(8, 24), Tile(32, 32))
    assert nearest(transposed(4000, 3000), known) == (Tile(32, 32), Tile(8, 24))
    assert nearest(product(64, 64, 64), known) == (Rows(),)
    assert nearest(transposed(40, 48), []) == ()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with borrowed(threads=1) as found:
        yield found


@pytest.mark.rotating
def test_a_search_begins_with_what_it_is_given(
    profile: Profile, worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After what is offered; a search that goes on keeps to what it began with."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    kernel, seen = transposed(40, 48), list[int]()
    offered = [space_for(kernel).made(point) for point in space_for(kernel).starts]
    for starts in ((Tile(8, 24, across=True), Lanes(16)), ()):
        found = tune_kernel(
            kernel, worker, profile, Budget(trials=len(offered) + 1), opevo, 1, starts=starts,
            watch=lambda search: seen.append(len(search.trials)),
        )  # fmt: skip
        assert [t.made for t in found.found.trials] == [*offered, Tile(8, 24, across=True)]
    assert seen == [len(offered) + 1] * 2


def test_what_is_told() -> None:
    kernel = transposed(40, 48)
    space, best = space_for(kernel), Tile(8, 24)
    point = space.place(best)
    assert point is not None
    near = [space.made(p) for p in space.neighbours(point)]
    tried: list[Schedule] = [best, *(m for m in near if isinstance(m, Schedule) and m != best)]
    times = [1e-6, 2e-6, None, *(3e-6 for _ in tried[3:-1])]
    trials = tuple(Trial(m, t, 0.0) for m, t in zip(tried[:-1], times, strict=True))
    timing = Timing(1e-6, 1e-6, 1e-6, 3)
    one = TunedKernel(
        replace(kernel, schedule=Rows()), replace(kernel, schedule=best),
        Timing(2e-6, 2e-6, 2e-6, 3), timing, Tuned(trials, "seconds", 4.0, 3.0),
    )  # fmt: skip
    found = told(one, TARGET)
    ratios = [ratio for values in found.around.values() for ratio in values.values()]
    assert len(ratios) == len(tried) - 1
    assert sorted(r for r in ratios if r is not None) == [2.0, *[3.0] * len(tried[3:-1]), math.inf]
    assert ratios.count(None) == 1 and found.outside_s == 1.0
    text = "\n".join(found.lines())
    assert "rows 0.0020 ms -> tile8x24 0.0010 ms" in text
    assert "2.00" in text and "fails" in text and "1 not tried" in text
    none = replace(one, before=None, after=None, found=Tuned[Schedule]((), "trials", 1.0, 1.0))
    (line,) = told(none, TARGET).lines()
    assert line == "float32[40, 48] -> float32[48, 40]: nothing runs (0 tried)"


def test_rates_are_of_what_bounds_a_kernel() -> None:
    """1e11 operations and 1e10 bytes a second are the peaks."""
    product_rate = rate_of(product(128, 128, 128), 2 * 128**3 / 5e10, TARGET)
    assert product_rate.unit == "GFLOP/s" and product_rate.value == pytest.approx(50.0)
    assert product_rate.share == pytest.approx(0.5)
    moved = rate_of(transposed(100, 100), 8e4 / 2.5e9, TARGET)
    assert moved.unit == "GB/s" and moved.value == pytest.approx(2.5)
    assert moved.share == pytest.approx(0.25)


@pytest.mark.rotating(parts=4)
def test_two_processes_do_not_time_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
    code += "from eqsynth.extract.timing import alone\nwith alone(): print('in', flush=True)"
    with alone():
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
    out, _ = process.communicate(timeout=60)
    assert out == "in\n" and process.returncode == 0
