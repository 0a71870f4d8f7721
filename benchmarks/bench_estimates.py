"""How well the times of unmeasured kernels are estimated, and what a profile saves later searches.

    python -m benchmarks.bench_estimates [--draws N] [--kernels N] [--reuse [--reduced]]

Random programs of views, maps, reductions and products are drawn, with random extents. The kernels
of every second program's e-graph are timed into an empty profile. The kernels of the other programs
are estimated from that profile, and timed. Printed are the rank correlation of estimates and times
[Spearman], and the median factor by which an estimate is off, for three estimates:

* ``cost model``: the estimate that the search uses, which is optimistic on purpose;
* ``family``: the roofline time, times the median ratio of measured to roofline times in the
  kernel's family;
* ``family, distance``: the same, with families split by Syno's shape distance from a scope's
  iteration space to the tensors that it reads.

``--reuse`` shows what the profile of one search saves another one: kernels timed and seconds, with
an empty profile, and with that of another model or size, in another process.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import correlation, median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.about import about
from benchmarks.bench_optimize import empty_caches
from benchmarks.spending import optimized
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.executor import Worker
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.shape_distance import shape_distance
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.measurer import Measurer
from eqsynth.rules import load_rules

LIMITS = Limits(deadline_s=5.0)
REUSED = (("bert64", "bert128"), ("resnet18", "resnet50"), ("lstm", "nasrnn"), ("lstm", "lstm"))
"""Pairs of the model that makes the profile and the model that uses it: another size, a deeper
model, one of the same parts, and the same model."""

Predict = Callable[[Kernel], float]


class _Of(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


def drawn(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A random program; equal seeds give equal programs."""
    choose = random.Random(seed)
    a, b, c, d = (choose.choice((3, 6, 8, 12, 20, 32, 48)) for _ in range(4))
    x = torch.ones(a, b, c)
    programs: Sequence[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = (
        (lambda x: torch.relu(x.permute(2, 0, 1)) * 2.0, (x,)),
        (lambda x: torch.tanh(x.reshape(a * b, c).t()) + 1.0, (x,)),
        (lambda x, y: torch.cat((x, y), 2).transpose(0, 2) * y.sum(), (x, x)),
        (lambda x: torch.softmax(x.transpose(1, 2), -1), (x,)),
        (lambda x: nn.functional.pad(x, (1, 1, 2, 0)).unfold(2, 3, 1).amax(-1), (x,)),
        (lambda x, y: (x.transpose(1, 2) @ y).exp(), (x, torch.ones(a, b, d))),
        (lambda x, y: torch.einsum("abc,cd->dab", x, y) - 1.0, (x, torch.ones(c, d))),
        (lambda x: (x - x.mean((0, 2), keepdim=True)).square().sum(1), (x,)),
    )
    function, inputs = programs[seed % len(programs)]
    return _Of(function).eval(), inputs


def kernels_of(seed: int, most: int) -> list[Kernel]:
    """At most ``most`` kernels of the e-graph of a random program."""
    captured = capture(*drawn(seed))
    rules = load_rules().select()
    graph = saturate_terms(captured.program.outputs, rules, DEFAULT_PHASES, LIMITS, False)
    found = candidates(graph, cpu_backends(captured.opaque))
    own = list(dict.fromkeys(o.kernel for options in found.values() for o in options))
    own = [kernel for kernel in own if kernel.implementation != "torch.view"]
    return random.Random(seed).sample(own, min(most, len(own)))


def distance(kernel: Kernel) -> float:
    """The largest shape distance from the term's iteration space to a tensor that it reads."""
    term = kernel.term
    runs = (*term.traversal, *term.reduction) if isinstance(term, Scope) else term.shape
    return max((shape_distance(runs, arg.shape) for arg in args_of(term)), default=0.0)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share their mean rank.

    >>> round(rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]), 6)
    0.5
    """
    ranks = []
    for values in (one, other):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place].tolist())
    return correlation(*ranks)


@dataclass(frozen=True)
class Rated:
    """The quality of estimates.

    Attributes:
        correlation: the rank correlation with the times.
        off: the median factor by which an estimate is off.
    """

    correlation: float
    off: float


def rated(predict: Predict, times_s: dict[Kernel, float]) -> Rated:
    estimates = {kernel: predict(kernel) for kernel in times_s}
    off = median(abs(math.log(estimates[k] / s)) for k, s in times_s.items())
    return Rated(rank_correlation(list(estimates.values()), list(times_s.values())), math.exp(off))


def by_groups(
    known_s: dict[Kernel, float], costs: CostModel, group: Callable[[Kernel], object]
) -> Predict:
    """The estimate: the roofline time, times the median ratio of the kernel's group, or of all
    kernels if none of the group is known."""
    ratios: dict[object, list[float]] = {}
    for kernel, seconds in known_s.items():
        ratios.setdefault(group(kernel), []).append(seconds / costs.roofline_s(kernel))
    every = median(ratio for own in ratios.values() for ratio in own)
    middle = {key: median(own) for key, own in ratios.items()}
    return lambda kernel: costs.roofline_s(kernel) * middle.get(group(kernel), every)


def measured(draws: int, most: int) -> tuple[dict[str, Rated], int, int]:
    """Estimate -> its rating, and the numbers of kernels that were known and estimated."""
    target = measure_cpu_target()
    with tempfile.TemporaryDirectory() as home, Measurer(target.threads) as measurer:
        costs = CostModel(target, Profile(target.key(), path=Path(home) / "profile.sqlite"))
        parts: list[dict[Kernel, float]] = [{}, {}]
        for seed in range(draws):
            part = parts[seed // 8 % 2]  # each kind of program is in both
            new = [k for k in kernels_of(seed, most) if not any(k in known for known in parts)]
            times = measurer(new)
            part.update({k: timing.q1_s for k, timing in times.items() if timing is not None})
            if part is parts[0]:
                costs.record(times)
        known_s, times_s = parts
        predictions: dict[str, Predict] = {
            "cost model": costs.time_s,
            "family": by_groups(known_s, costs, costs.family),
            "family, distance": by_groups(known_s, costs, lambda k: (costs.family(k), distance(k))),
        }
        ratings = {name: rated(predict, times_s) for name, predict in predictions.items()}
    return ratings, len(known_s), len(times_s)


def reused(before: str, after: str, reduced: bool) -> dict[str, object]:
    """Measure a search with an empty profile, and with the profile of another search."""
    threads = torch.get_num_threads()
    runs = []
    for names in ((after,), (before, after)):
        with empty_caches():
            for name in names:
                with Worker(threads=threads) as worker:
                    (run,) = worker.run(optimized, name, reduced, threads, 1)
        runs.append(asdict(run))
    return {"before": before, "after": after, "cold": runs[0], "with": runs[1]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=32, help="programs, at least 16")
    parser.add_argument("--kernels", type=int, default=24, help="of a program, at most")
    parser.add_argument("--reuse", action="store_true", help="what a profile saves others")
    parser.add_argument("--reduced", action="store_true", help="nets at the sizes of tests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    result = about()
    ratings, known, estimated = measured(max(options.draws, 16), options.kernels)
    print(f"{estimated} kernels estimated by {known}: rank correlation, and off by a factor of")
    for name, rating in ratings.items():
        print(f"  {name:18} {rating.correlation:.3f}  {rating.off:.2f}")
    result["ratings"] = {name: asdict(rating) for name, rating in ratings.items()}
    result["known"], result["estimated"] = known, estimated
    if options.reuse:
        result["reuse"] = rows = [reused(*pair, options.reduced) for pair in REUSED]
        for row in rows:
            cold, warm = row["cold"], row["with"]
            assert isinstance(cold, dict) and isinstance(warm, dict)
            print(f"  {row['after']} after {row['before']}: "
                  f"{cold['timed']} -> {warm['timed']} kernels timed, "
                  f"{cold['spent']['wall_s']:.1f} -> {warm['spent']['wall_s']:.1f} s")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
