"""Real models through ``optimize``: whether results are equal, which operators are opaque, times.

    python -m benchmarks.models [--model NAME ...] [--size probe] [--limit-s 20] [--objective flops]
                                [--times] [--fresh] [--json FILE] [--page docs/models.md]
                                [--plot docs/models.svg]

The models are those of ``zoo.py``; nothing is downloaded. Each runs in a process of its own with a
time limit. The optimized program is compared with eager on the example inputs and on shuffled ones,
in its outputs and in changed caches. With ``--objective flops`` (the default) a found program is
used even if it isn't faster, so that equality is tested. ``--times`` times eager, frozen Inductor
and eqsynth in turns, which needs a machine that does nothing else.

``--page`` writes the rows into a document, between two comments, and ``--plot`` draws the times.

A journal has one line per model, so that an interrupted run continues where it ended; it starts
anew after a change of code or rules. The exit status is 1 if a model failed or differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import models_page, zoo
from benchmarks.about import about
from benchmarks.long_run import JOURNALS, version
from benchmarks.model_runs import Row, tried
from benchmarks.zoo import MODELS, SIZES
from eqsynth.executor import Worker


class Journal:
    """The finished rows: a file with a line for the version, then a JSON object per row."""

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
    """The row of one model as a line of text."""
    if row.error:
        return f"{row.name}: FAILED: {row.error}"
    verdict = "equal" if row.equal else f"DIFFERS by {row.differs:.1e}"
    end = f"kept: {row.reason[:200]}" if row.kept else "replaced"
    warned = "".join(f"\n  warns: {text[:200]}" for text in row.warnings)
    warned += "".join(f"\n  {name} fails: {text}" for name, text in row.untimed.items())
    times = "".join(f", {name} {s * 1e3:.3f} ms" for name, s in row.median_s.items())
    return f"{row.name}: {verdict}, {end}, {row.cpu_s:.1f} s of CPU{times}{warned}"


def table(rows: Sequence[Row]) -> Table:
    """The table of all rows. Seconds are CPU seconds; those of stages are wall-clock seconds."""
    result = Table(title="real models, built from configurations")
    heads = ("model", "equal", "end", "operators", "opaque", "of time", "CPU s", "e-nodes", "FLOPs",
             "rules used most")  # fmt: skip
    timed = [name for name in ("eager", "inductor", "eqsynth") if any(r.median_s for r in rows)]
    for head in (*heads, *(f"{name}\nms" for name in timed)):
        result.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        equal = "error" if row.error else "yes" if row.equal else f"{row.differs:.0e}"
        share = row.flops[1] / row.flops[0] if row.flops[0] else 1.0
        end = "" if row.error else "kept" if row.kept else "replaced"
        result.add_row(
            row.name, equal, end, str(row.operators),
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
    settings: tuple[str, float, str, int, bool, tuple[str, ...] | None],
) -> list[Row]:
    """The rows of these models; rows that aren't in the journal are measured.

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
    parser.add_argument("--engine", nargs="*", help="engines of optimize; by default all there are")
    parser.add_argument("--times", action="store_true", help="time eager and Inductor too")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="directory of journals")
    parser.add_argument("--fresh", action="store_true", help="forget what the journal has")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--page", type=Path, help="write the table into this document")
    parser.add_argument("--plot", type=Path, help="draw the times as an SVG file (--times)")
    options = parser.parse_args()
    if options.plot and not options.times:
        parser.error("--plot draws what --times measures")
    engines = None if options.engine is None else tuple(options.engine)
    chosen = (options.size, options.limit_s, options.objective, options.threads, options.times,
              engines)  # fmt: skip
    journal = Journal(options.journals / "models.jsonl", {"settings": chosen}, options.fresh)
    console = Console()
    console.width = max(console.width, 140)
    timeout_s = 300.0 + 10 * options.limit_s
    rows = run(options.model, journal, timeout_s, lambda text: print(text, flush=True), chosen)
    if not rows:
        parser.error("no library of these models is installed: pip install 'eqsynth[models]'")
    console.print(table(rows))
    equal = sum(row.equal for row in rows)
    replaced = sum(not row.kept and not row.error for row in rows)
    print(f"{equal} of {len(rows)} equal, {replaced} replaced")
    if options.json:
        data = {"about": about(zoo.LIBRARIES), "rows": [asdict(row) for row in rows]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(data, indent=2), encoding="utf-8")
    if options.page:
        how = " ".join(f"--{k} {v}" for k, v in (("size", options.size),
            ("limit-s", f"{options.limit_s:g}"), ("objective", options.objective),
            ("threads", options.threads)))  # fmt: skip
        how += "" if engines is None else " --engine " + " ".join(engines)
        models_page.write(options.page, rows, options.size, how.strip(), about(zoo.LIBRARIES))
    if options.plot:
        options.plot.write_text(models_page.plot(rows), encoding="utf-8")
    return int(equal < len(rows))


if __name__ == "__main__":
    sys.exit(main())
