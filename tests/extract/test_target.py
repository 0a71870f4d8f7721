"""The target: its key is stable, its roofline is plausible, and it can be saved as a text and read
back."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.extract.target import Device, MemoryLevel, Target

TARGET = Target(
    name="cpu",
    device=Device("a CPU", 2, ("avx512f", "fma")),
    threads=2,
    levels=(
        MemoryLevel("L1", 64e3, 200e9),
        MemoryLevel("L2", 2e6, 100e9),
        MemoryLevel("DRAM", float("inf"), 20e9),
    ),
    flops_per_s=(("float32", 400e9), ("float64", 100e9)),
    dispatch_s=1e-6,
    kernel_dispatch_s=3e-7,
)


def test_key_says_what_the_device_is_and_not_what_was_measured() -> None:
    key = TARGET.key()
    assert replace(TARGET, dispatch_s=2e-6, levels=TARGET.levels[:1]).key() == key
    others = [
        replace(TARGET, threads=1),
        replace(TARGET, name="cuda"),
        replace(TARGET, numerics="medium"),
        replace(TARGET, device=replace(TARGET.device, isa=("fma",))),
        replace(TARGET, device=replace(TARGET.device, model="another")),
    ]
    assert len({key, *(other.key() for other in others)}) == len(others) + 1


def test_weights_are_far_by_the_caches_that_are_too_small_for_them() -> None:
    assert [TARGET.far(nbytes) for nbytes in (0, 2e6, 2.1e6)] == [0, 0, 1]
    third = MemoryLevel("L3", 32e6, 50e9)
    larger = replace(TARGET, levels=(*TARGET.levels[:2], third, TARGET.levels[2]))
    assert [larger.far(nbytes) for nbytes in (2e6, 32e6, 33e6)] == [0, 1, 2]
    assert replace(TARGET, levels=TARGET.levels[:2]).far(1e9) == 0


def test_key_is_the_same_in_another_process() -> None:
    code = (
        "from eqsynth.extract.target import *; "
        "print(target_key('cpu', Device('a CPU', 2, ('avx512f', 'fma')), 2, 'highest'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == TARGET.key()


sizes = st.floats(0, 1e12)


@given(sizes, sizes, sizes, sizes)
def test_roofline_never_falls_with_more_work(
    read: float, written: float, flops: float, more: float
) -> None:
    base = TARGET.roofline_s(read, written, flops, "float32")
    assert base > 0
    assert TARGET.roofline_s(read + more, written, flops, "float32") >= base
    assert TARGET.roofline_s(read, written + more, flops, "float32") >= base
    assert TARGET.roofline_s(read, written, flops + more, "float32") >= base
    assert TARGET.roofline_s(read, written, flops, "float64") >= base


def test_roofline_takes_the_level_that_the_bytes_fit_in() -> None:
    assert TARGET.roofline_s(32e3, 32e3, 0, "float32", 0.0) == pytest.approx(64e3 / 200e9)
    assert TARGET.roofline_s(1e6, 1e6, 0, "float32", 0.0) == pytest.approx(2e6 / 100e9)
    assert TARGET.roofline_s(1e6, 2e6, 0, "float32", 0.0) == pytest.approx(3e6 / 20e9)
    assert TARGET.roofline_s(8, 8, 4e9, "float32", 0.0) == pytest.approx(1e-2)
    assert TARGET.roofline_s(0, 0, 0, "float32") == TARGET.dispatch_s
    assert TARGET.roofline_s(0, 0, 0, "float32", TARGET.kernel_dispatch_s) == 3e-7


def test_a_dtype_without_a_peak_has_that_of_float32() -> None:
    assert TARGET.peak_flops_per_s("int8") == TARGET.peak_flops_per_s("float32")
    assert TARGET.peak_flops_per_s("float64") == 100e9


def test_json_round_trip() -> None:
    assert Target.from_json(TARGET.to_json()) == TARGET


@pytest.mark.parametrize("field", [None, "device", "levels", "flops_per_s", "threads"])
def test_text_that_is_no_target_is_refused(field: str | None) -> None:
    fields = json.loads(TARGET.to_json())
    if field is not None:
        del fields[field]
    text = json.dumps([fields] if field is None else fields)
    with pytest.raises(ValueError):
        Target.from_json(text)


def test_a_peak_of_zero_is_refused() -> None:
    with pytest.raises(ValueError):
        Target.from_json(replace(TARGET, flops_per_s=(("float32", 0.0),)).to_json())
