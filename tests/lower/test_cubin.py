"""Cubins for two kinds of GPU, made and read without one. Where nvrtc isn't installed (the extra
``cuda``), only what reads them and what tells that it is missing is tested."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cuda_cases import NUMBERS, kernel_of, nest_of
from eoperator_cases import it, tensor
from test_spaces import CASES

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Grid, Schedule, Team, Tiles, Turn
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower.cuda import nvrtc
from eqsynth.lower.cuda.cubin import Resources, resources
from eqsynth.lower.cuda.source import source_of
from eqsynth.lower.cuda.spaces import Multiprocessor, offered, shared_bytes
from eqsynth.lower.loop_nest import loop_nest

compiles = pytest.mark.skipif(not nvrtc.available(), reason="nvrtc isn't installed")
ARCHES = ("sm_80", "sm_90")


def _product(m: int, n: int, k: int) -> Scope:
    x, y = tensor(0, (m, k)), tensor(1, (k, n))
    i, j, r = it(0, m), it(1, n), it(2, k)
    return Scope((m, n), (k,), Prod((Read(x, (i, r)), Read(y, (r, j)))))


PLAIN = ((0, 1), (0, 1))
TILES = Kernel(
    _product(512, 512, 256), (False, False), "cuda", PLAIN, (0, 1), Tiles(16, 16, 8, 8, 8, True)
)
KERNELS = {
    CASES["map"].kernel(Grid(256, vector=4)): 0,
    CASES["large, transposed"].kernel(Turn(32, 8)): 4 * 32 * 33,
    CASES["along"].kernel(Team(32, 8)): 8 * 256,
    TILES: 4 * 8 * (128 + 128),
}
"""Kernels, and the shared memory that each has."""


@pytest.mark.rotating
@compiles
@pytest.mark.parametrize("arch", ARCHES)
def test_symbols_and_resources(arch: str) -> None:
    source = source_of({kernel: f"k{n}" for n, kernel in enumerate(KERNELS)})
    found = resources(nvrtc.compile_cubin(source.text, arch))
    # From sm_90 on the system has 1 KiB of a block's shared memory.
    system = 1024 if arch == "sm_90" else 0
    assert set(found) == {entry.symbol for entry in source.entries.values()}
    for kernel, shared in KERNELS.items():
        told = found[source.entries[kernel].symbol]
        assert told.shared_bytes == (shared and shared + system), kernel.schedule
        assert told.stack_bytes == 0, f"{kernel.schedule} spills registers"
        threads = source.entries[kernel].launch.threads
        assert 0 < told.registers * threads <= 1 << 16, "a multiprocessor has no more registers"
    # What a thread holds of the result, at least.
    assert found[source.entries[TILES].symbol].registers > 64


@compiles
@pytest.mark.rotating
@pytest.mark.parametrize("arch", ARCHES)
def test_every_offered_kernel_can_be_launched(arch: str) -> None:
    """Of all cases and number types: its symbol is there, its shared memory is what the space
    counts, and a multiprocessor has the registers of its threads."""
    kernels = [
        case.kernel(schedule)
        for case in CASES.values()
        for schedule in offered(case.nest(), case.by_memory)
    ]
    for scope in NUMBERS:
        kernels += [kernel_of(scope, schedule) for schedule in offered(nest_of(scope), True)]
    source = source_of({kernel: f"k{n}" for n, kernel in enumerate(dict.fromkeys(kernels))})
    found = resources(nvrtc.compile_cubin(source.text, arch))
    assert set(found) == {entry.symbol for entry in source.entries.values()}
    limits, system = Multiprocessor(), 1024 if arch == "sm_90" else 0
    for kernel, entry in source.entries.items():
        told, threads = found[entry.symbol], entry.launch.threads
        assert threads <= limits.threads and told.registers * threads <= 1 << 16
        assert isinstance(kernel.schedule, Schedule) and isinstance(kernel.term, Scope)
        nest = loop_nest(kernel.term, kernel.inputs, kernel.output)
        shared = shared_bytes(nest, kernel.schedule)
        assert told.shared_bytes == (shared and shared + system), kernel.schedule
        assert told.stack_bytes <= 16, f"{kernel.schedule} spills registers"


@compiles
def test_the_same_as_the_toolkit_tells(tmp_path: Path) -> None:
    tool = _tool("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump isn't installed")
    source = source_of({kernel: f"k{n}" for n, kernel in enumerate(KERNELS)})
    cubin = nvrtc.compile_cubin(source.text, "sm_90")
    path = tmp_path / "kernels.cubin"
    path.write_bytes(cubin)
    command = [tool, "--dump-resource-usage", str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name, told in resources(cubin).items():
        line = said.partition(f"Function {name}:")[2].partition("\n")[2].partition("\n")[0]
        expected = f"REG:{told.registers} STACK:{told.stack_bytes} SHARED:{told.shared_bytes}"
        assert expected in line


def _tool(name: str) -> str | None:
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    homes = [Path(h) for h in (spec.submodule_search_locations or ())] if spec else []
    found = [str(path) for home in homes for path in home.glob(f"*/bin/{name}")]
    return next(iter(found), shutil.which(name))


@compiles
def test_a_source_that_is_wrong() -> None:
    with pytest.raises(LoweringError) as caught:
        nvrtc.compile_cubin('extern "C" __global__ void k(float* x) { x[0] = nothing; }', "sm_80")
    assert "nothing" in caught.value.got and caught.value.where == "sm_80"


@compiles
def test_an_architecture_that_is_none() -> None:
    with pytest.raises(LoweringError):
        nvrtc.compile_cubin('extern "C" __global__ void k() {}', "sm_1")


def test_the_compiler_is_that_of_torchs_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver for CUDA 12 loads no cubin that the compiler of CUDA 13 has made."""
    wheels = [
        tmp_path / "cu13/lib/libnvrtc.so.13", tmp_path / "cuda_nvrtc/lib/libnvrtc.so.12",
    ]  # fmt: skip
    for path in wheels:
        path.parent.mkdir(parents=True)
        path.touch()
    homes = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: homes)
    for version, first in ((None, wheels[0]), ("13.0", wheels[0]), ("12.8", wheels[1])):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert nvrtc._wheels()[0] == str(first)


def test_without_nvrtc_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_library", lambda: None)
    with pytest.raises(LoweringError) as caught:
        nvrtc.compile_cubin("", "sm_80")
    assert "eqsynth[cuda]" in caught.value.hint
    assert not nvrtc.available() and nvrtc.version() == ""


def _file(machine: int = 190, registers: int = 40) -> bytes:
    """A cubin with one kernel ``k``, its sections and nothing else."""
    names = b"\0.strtab\0.symtab\0.nv.info\0.text.k\0.nv.shared.k\0"
    told = struct.pack("<BBH", 3, 0x1B, 128)  # an attribute whose value stands in its head
    told += struct.pack("<BBHII", 4, 0x2F, 8, 1, registers)
    told += struct.pack("<BBHII", 4, 0x12, 8, 1, 16)
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 18, 0, 4, 0, 0)
    # Where the name is, the kind, the data, the size where there is no data.
    parts = [
        (0, 0, b"", 0), (1, 3, b"\0k\0" + names, 0), (9, 2, symbols, 0), (17, 1, told, 0),
        (26, 1, b"code", 0), (34, 8, b"", 2048),
    ]  # fmt: skip
    body, rows = b"", []
    for name, kind, data, size in parts:
        rows.append((name, kind, 0, 0, 64 + len(body), size or len(data), 0, 0, 1, 0))
        body += data
    # The names of sections lie in the table of strings, too, past the two of symbols.
    rows = [(3 + row[0], *row[1:]) for row in rows]
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(rows), 1
    )  # fmt: skip
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    return head + body + table


def test_a_cubin_is_read() -> None:
    assert resources(_file()) == {"k": Resources(40, 2048, 16)}


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", _file(machine=62), _file()[:-40], _file()[:70]]
)
def test_what_is_no_cubin(data: bytes) -> None:
    with pytest.raises(ValueError, match="no cubin"):
        resources(data)
