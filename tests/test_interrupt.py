"""Ctrl-C in the middle of ``optimize``: a KeyboardInterrupt, and no worker is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]

# What the user runs: it tells which processes are there when the interrupt has come out.
SCRIPT = """\
import psutil, torch, eqsynth
from benchmarks.workloads import WORKLOADS
module, inputs = WORKLOADS["resnet18"].reduced()
try:
    eqsynth.optimize(module, inputs, time_limit_s=600)
    print("done", flush=True)
except KeyboardInterrupt:
    alive = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    print("interrupted", len(alive), flush=True)
    raise
"""


def workers(parent: psutil.Process, library: str) -> list[psutil.Process]:
    """The workers of a process that have loaded a library; all of them for an empty text."""
    found = []
    for child in parent.children(recursive=True):
        try:
            if "eqsynth.executor" in child.cmdline() and (
                not library or any(library in entry.path for entry in child.memory_maps())
            ):
                found.append(child)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("library", ["", "egglog"], ids=["a worker starts", "a worker searches"])
def test_an_interrupt_leaves_no_worker(library: str) -> None:
    """It goes to all processes of a terminal; only this one may say something."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    parent = psutil.Process(process.pid)
    while process.poll() is None and not workers(parent, library):
        time.sleep(0.005)
    children = parent.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=3600)
    assert out == "interrupted 0\n", err
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
