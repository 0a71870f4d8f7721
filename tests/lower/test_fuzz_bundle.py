"""Damaged files: nothing but errors of eqsynth comes out, and no more memory is taken than a file
is large. ``fuzz_bundle.py`` makes them."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile

import pytest
import torch
from fuzz_bundle import archive, members, run
from programs import convolutions, program_of

from eqsynth.errors import LoweringError
from eqsynth.lower.bundle import dumps, loads
from eqsynth.lower.calling import SavedCalling


@pytest.mark.rotating
def test_hundreds_of_damaged_files() -> None:
    found = run(300, seed=0)
    assert found.escaped == []
    # Most are refused when they are loaded, some at the first call; some are as good as before.
    assert found.counts["load"] > 200 and found.counts["harmless"] < 60
    assert sum(found.counts.values()) == 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_thousands_of_damaged_files(seed: int) -> None:
    found = run(2000, seed)
    assert found.escaped == []
    assert found.counts["call"] > 0 and sum(found.counts.values()) == 2000


def test_what_is_compressed_is_not_unpacked() -> None:
    program = program_of({}, [], ["c"], {"c": torch.zeros(1 << 23)}, row=SavedCalling((), (0,)))
    data = dumps(program)
    bomb = archive(members(data), zipfile.ZIP_DEFLATED)
    assert len(bomb) < len(data) / 500
    for stated in (False, True):  # the size that the directory tells, or a smaller one
        if stated:
            bomb = bomb.replace((1 << 25).to_bytes(4, "little"), (1 << 10).to_bytes(4, "little"))
        tracemalloc.start()
        try:
            with pytest.raises(LoweringError):
                loads(bomb)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 21


@pytest.mark.parametrize("extents", [[1 << 40], [1 << 61, 4], [-1], [10**30], [2.0], "8"])
def test_an_array_is_as_large_as_its_member(extents: object) -> None:
    parts = members(dumps(convolutions(row=SavedCalling((0,), (0,)))[0]))
    manifest = json.loads(parts["manifest.json"])
    manifest["tensors"][0][0] = extents
    with pytest.raises(LoweringError):
        loads(archive({**parts, "manifest.json": json.dumps(manifest).encode()}))


def test_members_that_are_there_twice_or_overlap() -> None:
    data = dumps(convolutions(row=SavedCalling((0,), (0,)))[0])
    file = io.BytesIO(data)
    with pytest.warns(UserWarning), zipfile.ZipFile(file, "a") as bundle:
        bundle.writestr("tensors/0", bundle.read("tensors/0"))
    with pytest.raises(LoweringError):
        loads(file.getvalue())
    with pytest.raises(LoweringError):
        loads(archive({**members(data), "more": b""}))
