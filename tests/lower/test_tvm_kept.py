"""Generated kernels are kept: found again without compiling, or compiled again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from eoperator_cases import relu_kernel

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Fold
from eqsynth.lower import tvm_backend, tvm_kept
from eqsynth.lower.tvm_backend import TvmBackend

KERNELS = [relu_kernel(40), relu_kernel(50)]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """What is compiled from here on, into an empty cache directory."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    tvm_kept._library.cache_clear()
    real, found = tvm_backend._compile, list[Kernel]()

    def compile_(names: Mapping[Kernel, str]) -> Any:
        found.extend(names)
        return real(names)

    monkeypatch.setattr(tvm_backend, "_compile", compile_)
    yield found
    tvm_kept._library.cache_clear()


def run(*kernels: Kernel) -> None:
    """Builds kernels as a new process would, and compares what they give."""
    tvm_kept._library.cache_clear()
    built = TvmBackend().build([(kernel, {}) for kernel in kernels])
    for kernel, runner in zip(kernels, built, strict=True):
        x = torch.randn(kernel.term.shape)
        assert runner is not None and torch.equal(runner(x), x.relu())


def test_what_was_compiled_is_not_compiled_again(compiled: list[Kernel]) -> None:
    run(*KERNELS)
    assert compiled == KERNELS
    run(*reversed(KERNELS))
    run(KERNELS[1])
    assert compiled == KERNELS
    other = relu_kernel(60)
    run(other, *KERNELS)
    assert compiled == [*KERNELS, other]


def test_two_threads_compile_and_leave_out_what_fails(
    compiled: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that compiles keeps kernels under the names by which the main thread finds them."""
    monkeypatch.setattr(tvm_backend, "usable_cpus", lambda: [0, 1])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    kernels = [relu_kernel(size) for size in range(40, 48)]
    wrong = replace(kernels[3], schedule=Fold(16))
    try:
        with pytest.warns(RuntimeWarning, match="left out"):
            *_, failed = TvmBackend().build([(kernel, {}) for kernel in (*kernels, wrong)])
        assert failed is None
        compiled.clear()
        run(*kernels)
        assert not compiled
    finally:
        torch.set_num_threads(threads)


def test_other_threads_have_other_code(
    compiled: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(KERNELS[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    run(KERNELS[0])
    assert compiled == [KERNELS[0]] * 2


@pytest.mark.rotating
@pytest.mark.parametrize("harm", ["gone", "damaged", "no library", "other symbols"])
def test_a_library_that_is_no_good_is_compiled_again(
    compiled: list[Kernel], tmp_path: Path, harm: str
) -> None:
    run(*KERNELS)
    home = tmp_path / "kernels-1"
    (library,) = (p for p in home.iterdir() if p.stat().st_size > 1000)
    if harm == "gone":
        library.unlink()
    elif harm == "damaged":
        data = bytearray(library.read_bytes())
        data[len(data) // 2] ^= 1
        library.write_bytes(data)
    elif harm == "no library":
        tvm_kept.kept.write(library, b"text")
    else:
        tvm_kept.keep({KERNELS[0]: "nothing", KERNELS[1]: "nothing"}, library_bytes(library))
    run(*KERNELS)
    assert compiled == KERNELS * 2


def library_bytes(path: Path) -> bytes:
    data = tvm_kept.kept.read(path)
    assert data is not None
    return data


def test_where_nothing_can_be_written_nothing_is_kept(
    compiled: list[Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("EQSYNTH_CACHE", os.fspath(tmp_path / "file"))
    run(KERNELS[0])
    run(KERNELS[0])
    assert compiled == [KERNELS[0]] * 2
