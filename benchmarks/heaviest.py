"""The kernels that weigh most over all nets, and what each achieves of the machine's measured peak.

    python -m benchmarks.heaviest [--workload NAME ...] [--most 30] [--reduced] [--json FILE]

Each workload is optimized without engines, by a process of its own, and the kernels are timed in
their places in the program. A kernel weighs what it takes of its workload's time, so that VGG-16 of
100 ms and an LSTM of half a millisecond count the same. A rate is in FLOP/s where arithmetic bounds
the kernel by the roofline, and in bytes/s where memory does.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.about import about
from benchmarks.spending import optimized
from benchmarks.workloads import WORKLOADS
from eqsynth.executor import Worker
from eqsynth.report import KernelTime


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of this module, without the program's name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--most", type=int, default=30, help="rows of the table")
    parser.add_argument("--reduced", action="store_true", help="the small sizes of the tests")
    parser.add_argument("--json", type=Path, help="where all kernels are written")
    options = parser.parse_args(argv)
    os.environ["EQSYNTH_ENGINES"] = ""  # the workers inherit it
    threads = torch.get_num_threads()
    found: list[tuple[str, KernelTime]] = []
    for name in options.workload or WORKLOADS:
        with Worker(threads=threads) as worker:
            (run,) = worker.run(optimized, name, options.reduced, threads, 1)
        print(f"{name}: {len(run.kernels) or 'no'} kernels", flush=True)
        found += [(name, kernel) for kernel in run.kernels]
    found.sort(key=lambda each: -each[1].share)
    if options.json:
        rows = [{"workload": name, **asdict(kernel)} for name, kernel in found]
        options.json.write_text(json.dumps({"about": about(), "kernels": rows}, indent=1))
    print("| workload | of its time | ms | steps | achieved | kernel | result |")
    print("|---|---|---|---|---|---|---|")
    for name, kernel in found[: options.most]:
        print(
            f"| {name} | {kernel.share:.0%} | {kernel.time_s * 1e3:.3f} | {kernel.steps} "
            f"| {kernel.achieved} | {kernel.kernel} | {kernel.result} |"
        )


if __name__ == "__main__":
    main()
