"""What an optimization costs: seconds cold and with a warm profile, memory of all processes, and
what calling a compiled program costs over calling its operators by hand.

    python -m benchmarks.bench_optimize [--workload resnet18] [--json FILE]

Printed, not asserted. The cold run uses a profile of its own, which is empty.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

import eqsynth
from benchmarks.about import about
from benchmarks.workloads import WORKLOADS
from eqsynth.extract.timing import time_interleaved
from eqsynth.lower.program import CompiledProgram


class PeakMemory:
    """Largest resident memory of this process and its children together, sampled."""

    def __init__(self, period_s: float = 0.05) -> None:
        self.peak_bytes = 0
        self._period_s, self._stop = period_s, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(self._period_s):
            total = 0
            for each in (process, *process.children(recursive=True)):
                try:
                    total += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def optimize_once(name: str) -> tuple[CompiledProgram, dict[str, Any]]:
    """One optimization: the program, seconds by stage, peak memory."""
    module, inputs = WORKLOADS[name].build(1)
    begin = time.perf_counter()
    with PeakMemory() as memory:
        program = eqsynth.optimize(module, inputs)
    report = program.report
    return program, {
        "seconds": time.perf_counter() - begin,
        "stages_s": dict(report.stages_s),
        "peak_bytes": memory.peak_bytes,
        "kernels_timed": report.kernels_timed,
        "time_before_s": report.time_before_s,
        "time_after_s": report.time_after_s,
    }


def call_overhead() -> dict[str, Any]:
    """What a compiled program adds to the same operators called in a plain function."""
    layers = 16
    module = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers))).eval()
    x = torch.randn(4, 16)
    captured = eqsynth.optimize(module, (x,), objective="flops", check=False)
    runners = [(s.runner, s) for s in captured.steps]
    straight = straight_function(captured)
    times = time_interleaved(
        {"program": lambda: captured(x), "straight": lambda: straight(x)}, repeats=15, block=200
    )
    return {
        "operators": len(runners),
        "program_s": times["program"].median_s,
        "straight_s": times["straight"].median_s,
        "overhead_s_an_operator": (times["program"].median_s - times["straight"].median_s)
        / max(len(runners), 1),
    }


def straight_function(program: CompiledProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    """The program's operators called one after the other, by hand."""
    runners = [step.runner for step in program.steps]

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for runner in runners:
                x = runner(x)
        return x

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "workload": options.workload,
        **about(),
        "threads": torch.get_num_threads(),
        "seed": WORKLOADS[options.workload].seed,
    }
    with tempfile.TemporaryDirectory() as cache:
        os.environ["EQSYNTH_CACHE"] = cache
        _, result["cold"] = optimize_once(options.workload)
        _, result["warm"] = optimize_once(options.workload)
        result["overhead"] = call_overhead()
    for kind in ("cold", "warm"):
        run = result[kind]
        print(f"{kind}: {run['seconds']:.1f} s, peak {run['peak_bytes'] / 2**30:.2f} GiB in all "
              f"processes, {run['kernels_timed']} kernels timed")  # fmt: skip
        print("   ", ", ".join(f"{k} {v:.1f} s" for k, v in run["stages_s"].items()))
        print(f"    before {run['time_before_s'] * 1e3:.2f} ms, "
              f"after {run['time_after_s'] * 1e3:.2f} ms")  # fmt: skip
    overhead = result["overhead"]
    print(f"call overhead: program {overhead['program_s'] * 1e6:.1f} us, straight Python "
          f"{overhead['straight_s'] * 1e6:.1f} us, {overhead['operators']} operators: "
          f"{overhead['overhead_s_an_operator'] * 1e6:.2f} us an operator")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
