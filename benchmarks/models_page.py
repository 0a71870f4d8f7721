"""The table of real models in ``docs/models.md``, and the picture of their times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.curve import bars
from benchmarks.model_runs import Row
from benchmarks.zoo import LIBRARIES, SIZES

BEGIN: Final = "<!-- models-table: begin (python -m benchmarks.models --page docs/models.md) -->"
END: Final = "<!-- models-table: end -->"

_SAID: Final = """\
{size.layers} layers of {size.hidden}, {size.length} tokens, images of {size.image} pixels: `{how}`
on {machine}, with {versions}. Difference: the largest to eager, over the largest value.
Opaque: the share of the time in operators that eqsynth doesn't know, in the program that was found.
Seconds: of `optimize`, by the clock. Times: medians in ms by turns, Inductor frozen."""


def write(
    path: Path,
    rows: Sequence[Row],
    size: str,
    how: str,
    origin: Mapping[str, Any],
) -> None:
    """Replace the text between the two comments of a document by the table.

    Args:
        how: the command-line options of the run.
        origin: the machine and the versions, from ``about``.

    Raises:
        ValueError: the document doesn't have the comments.
    """
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    made = f"{head}{BEGIN}\n{said(size, how, origin)}\n\n{table(rows)}\n{END}{tail}"
    path.write_text(made, encoding="utf-8")


def said(size: str, how: str, origin: Mapping[str, Any]) -> str:
    """What the figures are of."""
    versions, cpu = origin["versions"], origin["machine"]
    machine = f"{cpu['cores']} cores of {cpu['model']}"
    told = ", ".join(f"{n} {versions[n]}" for n in ("torch", *LIBRARIES) if n in versions)
    return _SAID.format(size=SIZES[size], how=how, machine=machine, versions=told)


def table(rows: Sequence[Row]) -> str:
    """One line a model, and the geometric means of the ratios."""
    lines = [
        "| model | difference | end | opaque | seconds | eager ms | Inductor ms | eqsynth ms | "
        "over eager | over Inductor |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        end = f"fails: {row.error[:80]}" if row.error else "kept" if row.kept else "replaced"
        times = (_ms(row, name) for name in ("eager", "inductor", "eqsynth"))
        over = (_ratio(row, name) for name in ("eager", "inductor"))
        cells = (
            row.name, "" if row.error else f"{row.differs:.0e}", end,
            "" if row.error else f"{row.opaque_share:.0%}", f"{row.wall_s:.1f}", *times,
            *("" if ratio is None else f"{ratio:.2f}" for ratio in over),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    means = [
        f"{statistics.geometric_mean(ratios):.2f} over {title} ({len(ratios)} models)"
        for name, title in (("eager", "eager"), ("inductor", "Inductor"))
        if (ratios := [r for row in rows if (r := _ratio(row, name)) is not None])
    ]
    equal = f"{sum(row.equal for row in rows)} of {len(rows)} are equal to eager."
    lines += ["", equal + (f" Geometric means: {', '.join(means)}." if means else "")]
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> str:
    """An SVG of bars: per model, how many times as fast as eager Inductor and eqsynth are.

    Raises:
        ValueError: no row has times.
    """
    return bars(
        "torch eager's time over each engine's (more is faster)",
        {
            row.name: {
                name: row.median_s["eager"] / row.median_s[name]
                for name in ("inductor", "eqsynth")
                if name in row.median_s
            }
            for row in rows
            if "eager" in row.median_s
        },
    )


def _ms(row: Row, name: str) -> str:
    return f"{row.median_s[name] * 1e3:.3f}" if name in row.median_s else ""


def _ratio(row: Row, name: str) -> float | None:
    """The engine's time over ours; None where one is missing, or ours isn't equal."""
    times = row.median_s
    if not row.equal or name not in times or "eqsynth" not in times:
        return None
    ratio = times[name] / times["eqsynth"]
    return ratio if math.isfinite(ratio) else None
