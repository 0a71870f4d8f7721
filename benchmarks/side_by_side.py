"""One workload in all engines as a row of the table (``bench_peers.py``).

How the engines take turns is in ``eqsynth/side_by_side.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers import ENGINES, NATIVE, OURS, Engine, building, takes
from benchmarks.workloads import Measured
from eqsynth.side_by_side import side_by_side


@dataclass(frozen=True)
class Row:
    """A workload at a batch size, as a row of the JSON file. Times are seconds per call.

    Attributes:
        median_s, quartiles_s: engine -> median and quartiles of the samples of all its turns.
        best_peer: the fastest engine besides eqsynth.
        ratio_over_best_peer: its median over eqsynth's; None if eqsynth's result is wrong, or if a
            required engine or the reference has failed.
        ratio_native: its median over that of eqsynth without engines (``--native``).
        foreign_share: the share of other engines in the time of eqsynth's program.
        by_hand: the ratio when the program was rewritten by hand.
        error_rel: eqsynth's largest difference to torch eager in float64, over the largest value.
        errors_rel: engine -> the same difference.
        optimize_s, flops_before, flops_after: seconds and FLOPs of eqsynth's optimization.
        rules: the rules that it used, most used first.
        unexplained: why there are no rules, if the explanation failed.
        failed: engine -> why it has no times.
    """

    workload: str
    batch: int
    suite: str
    reduced: bool
    seed: int
    median_s: Mapping[str, float]
    quartiles_s: Mapping[str, tuple[float, float]]
    samples: Mapping[str, int]
    best_peer: str | None
    ratio_over_best_peer: float | None
    ratio_native: float | None
    foreign_share: float | None
    by_hand: float | None
    error_rel: float | None
    errors_rel: Mapping[str, float]
    optimize_s: float | None
    flops_before: int | None
    flops_after: int | None
    rules: Sequence[str]
    unexplained: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


def measure(
    workload: Measured,
    batch: int,
    engines: Sequence[Engine] = ENGINES,
    *,
    threads: int,
    rounds: int = 11,
    reduced: bool = False,
    allow_missing: bool = False,
    show: bool | None = None,
) -> Row:
    """Time a workload in all engines, each in a process of its own.

    Args:
        rounds: the number of turns of each engine.
        reduced: whether to use the workload's size for tests, which ignores the batch size.
        allow_missing: whether to give a ratio over the other peers if a peer has failed.
        show: whether to show progress; by default on a terminal.
    """
    run = side_by_side(
        f"{workload.name} {batch}",
        building(workload.name, batch, reduced),
        [engine for engine in engines if takes(engine, workload, batch)],
        threads=threads, rounds=rounds, explain=True, show=show,
    )  # fmt: skip
    median = {name: t.median_s for name, t in run.times.items()}
    others = (name for name in median if name not in (OURS, NATIVE))
    best = min(others, key=median.__getitem__, default=None)

    def ratio(ours: str) -> float | None:
        comparable = ours in median and ours in run.errors and (allow_missing or not run.failed)
        return median[best] / median[ours] if best and comparable else None

    facts = run.facts
    return Row(
        workload=workload.name,
        batch=batch,
        suite=workload.suite,
        reduced=reduced,
        seed=workload.seed,
        median_s=median,
        quartiles_s={name: (t.q1_s, t.q3_s) for name, t in run.times.items()},
        samples={name: t.samples for name, t in run.times.items()},
        best_peer=best,
        ratio_over_best_peer=ratio(OURS),
        ratio_native=ratio(NATIVE),
        foreign_share=facts.get("foreign_share"),
        by_hand=None if reduced else workload.by_hand,
        error_rel=run.errors.get(OURS),
        errors_rel=run.errors,
        optimize_s=facts.get("optimize_s"),
        flops_before=facts.get("flops_before"),
        flops_after=facts.get("flops_after"),
        rules=run.rules,
        unexplained=run.unexplained,
        failed=run.failed,
    )
