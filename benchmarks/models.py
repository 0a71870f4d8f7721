"""Models as a user has them through ``optimize``: are they equal, what is opaque, what it takes.

    python -m benchmarks.models [--model NAME ...] [--size probe] [--limit-s 20] [--objective flops]
                                [--times] [--fresh] [--json FILE]

The models are those of ``zoo.py``; nothing is downloaded. Each runs in a process of its own with a
time limit. A model that eqsynth replaces is held against eager on its example inputs and on the
same ones shuffled, outputs and changed caches alike; with ``--objective flops`` (the default)
whatever is found is used, so that equality is tested and not speed. ``--times`` times eager, frozen
Inductor and eqsynth in turns, which a machine that does other things makes worthless.

A journal has one line a model, so a run that was interrupted goes on where it was; after a change
of code or rules it starts anew. Exit status 1 if a model failed or differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import tree_flatten, tree_map_only

import eqsynth
from benchmarks import zoo
from benchmarks.about import about
from benchmarks.long_run import JOURNALS, version
from benchmarks.spending import spending
from benchmarks.zoo import MODELS, SIZES, Call
from eqsynth.executor import Worker
from eqsynth.extract.timing import time_interleaved
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op
from eqsynth.lower.holders import Opening, holds, opened_module
from eqsynth.lower.rounding import largest_error

EQUAL: Final = 1e-4
"""The largest difference to eager over the largest value of a tensor that counts as equal."""


@dataclass(frozen=True)
class Row:
    """What became of one model.

    Attributes:
        error: why there is no result; empty if there is one.
        differs: the largest difference to eager over the largest value, of all outputs.
        kept: the original was kept, for ``reason``.
        operators, opaque: of the captured program, without what is constant; names of the opaque.
        opaque_share: of the time of the program that was found.
        warnings: what ``optimize`` warned of, and calling the model doesn't.
        cpu_s, wall_s: of ``optimize``, all processes together.
        median_s: by engine, where times were asked for.
    """

    name: str
    library: str
    error: str = ""
    differs: float = 0.0
    kept: bool = False
    reason: str = ""
    stop: str = ""
    operators: int = 0
    opaque: tuple[str, ...] = ()
    opaque_share: float = 0.0
    warnings: tuple[str, ...] = ()
    stages_s: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    enodes: int = 0
    flops: tuple[int, int] = (0, 0)
    rules: tuple[str, ...] = ()
    median_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the model runs, and as eager does."""
        return not self.error and self.differs <= EQUAL


def tried(name: str, size: str, limit_s: float, objective: str, threads: int, times: bool) -> Row:
    """The task of a process: one model through ``optimize``."""
    torch.set_num_threads(threads)
    model = MODELS[name]
    call = model.build(size)
    operators, opaque = _captured(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _called(call.module, call)
    known = {str(warning.message) for warning in caught}
    with warnings.catch_warnings(record=True) as caught, spending() as spent:
        warnings.simplefilter("always")
        program = eqsynth.optimize(
            call.module, call.args, example_kwargs=call.kwargs, time_limit_s=limit_s,
            objective=objective, progress=False,
        )  # fmt: skip
    report = program.report
    return Row(
        name,
        model.library,
        differs=max(_difference(call, program, shuffle) for shuffle in (False, True)),
        kept=program.original is not None,
        reason=" ".join(report.reason.split()),
        stop=report.stop,
        operators=operators,
        opaque=opaque,
        opaque_share=report.opaque_share,
        warnings=tuple({str(w.message) for w in caught} - known),
        stages_s=dict(report.stages_s),
        cpu_s=spent.cpu_s,
        wall_s=spent.wall_s,
        enodes=report.enodes,
        flops=(report.flops_before, report.flops_after),
        rules=tuple(sorted(report.rules_fired, key=report.rules_fired.__getitem__)[::-1]),
        median_s=_timed(call, program) if times else {},
    )


def _captured(call: Call) -> tuple[int, tuple[str, ...]]:
    """How many operators there are that depend on inputs, and what the opaque ones call."""
    opening = Opening()
    args, kwargs = opening.opened((call.args, dict(call.kwargs)))
    module = call.module
    if opening.objects or holds(_called(module, call)):
        module = opened_module(module)
    try:
        program = capture(module, args, kwargs).program
    except eqsynth.EqsynthError:
        return 0, ()
    terms = [t for t in program.terms() if isinstance(t, Op) and not t.constant]
    return len(terms), tuple(str(t.attrs[0]) for t in terms if t.name == "Opaque")


def _copied(call: Call, shuffle: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of their own; shuffled, the elements of each tensor are in another order."""

    def copied(x: torch.Tensor) -> torch.Tensor:
        if not shuffle:
            return x.clone()
        order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(x.numel()))
        return x.flatten()[order].reshape(x.shape)

    opened = Opening().opened((call.args, dict(call.kwargs)))
    given: tuple[tuple[Any, ...], dict[str, Any]] = Opening().closed(
        tree_map_only(torch.Tensor, copied, opened)
    )
    return given


def _called(function: Callable[..., Any], call: Call, shuffle: bool = False) -> Any:
    """The result, and the arguments as they are then (a cache that has grown)."""
    args, kwargs = _copied(call, shuffle)
    with torch.no_grad():
        return function(*args, **kwargs), args, kwargs


def _difference(call: Call, program: Callable[..., Any], shuffle: bool) -> float:
    expected, got = (
        tree_flatten(Opening().opened(_called(function, call, shuffle)))
        for function in (call.module, program)
    )
    if expected[1] != got[1]:
        return float("inf")
    pairs = [
        (one, other) for one, other in zip(got[0], expected[0], strict=True)
        if isinstance(other, torch.Tensor)
    ]  # fmt: skip
    if any(one.shape != other.shape or one.dtype != other.dtype for one, other in pairs):
        return float("inf")
    return max((largest_error(one, other) for one, other in pairs if other.numel()), default=0.0)


def _timed(call: Call, program: Callable[..., Any]) -> dict[str, float]:
    """Medians of eager, frozen Inductor and eqsynth, in turns; each call has arguments of its own,
    whose making isn't counted where nothing in them can change."""
    from torch._inductor import config

    with config.patch(freezing=True), torch.no_grad():
        inductor = torch.compile(call.module, dynamic=False)
        engines: dict[str, Callable[..., Any]] = {
            "eager": call.module, "inductor": inductor, "eqsynth": program,
        }  # fmt: skip
        changing = holds((call.args, dict(call.kwargs)))

        def turn(function: Callable[..., Any]) -> Callable[[], Any]:
            if changing:
                return lambda: _called(function, call)
            return lambda: function(*call.args, **call.kwargs)

        times = time_interleaved({name: turn(f) for name, f in engines.items()}, repeats=9)
    return {name: timing.median_s for name, timing in times.items()}


# -- the journal and the table ------------------------------------------------------------------


class Journal:
    """Rows that are done, a JSON object a line, under a line that says what they belong to."""

    def __init__(self, path: Path, settings: Mapping[str, Any], fresh: bool = False) -> None:
        self.path, self.rows = path, dict[str, Row]()
        mine = json.dumps({"version": version(), **settings}, sort_keys=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if not fresh and lines and lines[0] == mine:
            for line in lines[1:]:
                try:
                    row = Row(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # the line that an interruption cut short
                self.rows[row.name] = row
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [mine, *(json.dumps(asdict(row)) for row in self.rows.values())]
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def add(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        self.rows[row.name] = row


def line(row: Row) -> str:
    """One model in a line."""
    if row.error:
        return f"{row.name}: FAILED: {row.error}"
    verdict = "equal" if row.equal else f"DIFFERS by {row.differs:.1e}"
    end = f"kept: {row.reason[:200]}" if row.kept else "replaced"
    warned = "".join(f"\n  warns: {text[:200]}" for text in row.warnings)
    return f"{row.name}: {verdict}, {end}, {row.cpu_s:.1f} s of CPU{warned}"


def table(rows: Sequence[Row]) -> Table:
    """All of them; seconds are of CPU, stages of the clock."""
    result = Table(title="real models, built from configurations")
    heads = ("model", "equal", "end", "operators", "opaque", "of time", "CPU s", "e-nodes", "FLOPs",
             "rules used most")  # fmt: skip
    timed = [name for name in ("eager", "inductor", "eqsynth") if any(r.median_s for r in rows)]
    for head in (*heads, *(f"{name}\nms" for name in timed)):
        result.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        equal = "error" if row.error else "yes" if row.equal else f"{row.differs:.0e}"
        share = row.flops[1] / row.flops[0] if row.flops[0] else 1.0
        result.add_row(
            row.name, equal, "kept" if row.kept else "replaced", str(row.operators),
            str(len(row.opaque)), f"{row.opaque_share:.0%}", f"{row.cpu_s:.1f}", str(row.enodes),
            f"{share:.3f}", ", ".join(row.rules[:3]),
            *(f"{row.median_s[n] * 1e3:.3f}" if n in row.median_s else "" for n in timed),
        )  # fmt: skip
    return result


def run(
    names: Sequence[str],
    journal: Journal,
    timeout_s: float,
    show: Callable[[str], None],
    settings: tuple[str, float, str, int, bool],
) -> list[Row]:
    """The rows of these models; those that the journal doesn't have are made.

    Args:
        settings: arguments of ``tried``, after the name.
    """
    for name in names:
        if name in journal.rows:
            continue
        if not zoo.installed(MODELS[name].library):
            show(f"{name}: {MODELS[name].library} isn't installed (pip install 'eqsynth[models]')")
            continue
        with Worker(threads=settings[3]) as worker:
            try:
                row = worker.run(tried, name, *settings, timeout_s=timeout_s)
            except Exception as error:  # of the model, of eqsynth, or of a worker that died
                text = " ".join(f"{type(error).__name__}: {error}".split())
                row = Row(name, MODELS[name].library, error=text[:1000])
        journal.add(row)
        show(line(row))
    return [journal.rows[name] for name in names if name in journal.rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--size", choices=SIZES, default="probe")
    parser.add_argument("--limit-s", type=float, default=20.0, help="time limit of a search")
    parser.add_argument("--objective", choices=("flops", "time"), default="flops")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="time eager and Inductor too")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="directory of journals")
    parser.add_argument("--fresh", action="store_true", help="forget what the journal has")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    chosen = (options.size, options.limit_s, options.objective, options.threads, options.times)
    journal = Journal(options.journals / "models.jsonl", {"settings": chosen}, options.fresh)
    console = Console()
    timeout_s = 300.0 + 10 * options.limit_s
    rows = run(options.model, journal, timeout_s, lambda text: print(text, flush=True), chosen)
    console.print(table(rows))
    equal = sum(row.equal for row in rows)
    print(f"{equal} of {len(rows)} equal, {sum(not row.kept for row in rows)} replaced")
    if options.json:
        data = {"about": about(zoo.LIBRARIES), "rows": [asdict(row) for row in rows]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(data, indent=2), encoding="utf-8")
    return int(equal < len(rows))


if __name__ == "__main__":
    sys.exit(main())
