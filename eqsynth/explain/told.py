"""The text of an explanation: a headline for each changed region, then the lines that changed.

    (q @ kᵀ) @ v -> q @ (kᵀ @ v): 16 times fewer FLOPs, 0.91 -> 0.02 ms

Not here: the search for the regions (``changes.py``), the page in HTML (``page.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from eqsynth.explain.changes import is_spelling, spelled
from eqsynth.explain.sides import Change, Side, Told
from eqsynth.ir.formulas import Line
from eqsynth.ir.work import flops

SCREEN: Final = 40
"""The most lines of the text of one region."""

_WIDTH: Final = 100
_NOUNS: Final = ("view", "transform")
# The least ratio of FLOPs or bytes that a headline mentions ("1.1 times fewer FLOPs").
_TOLD_RATIO: Final = 1.05


def headline(change: Change) -> tuple[str, str]:
    """A region's headline: ``before -> after``, and the gain in work and time."""
    gains = [gain for gain in (_work(change), _time(change)) if gain]
    return _short(change), ", ".join(gains) + _alike(change)


def row(change: Change) -> tuple[str, str]:
    """A region as a row of the report.

        ("replaced", "0.27 -> 0.095 ms; conv3x3 -> 2 transforms, einsum; in c2; by correlate")

    The first word is ``kept`` if the operators are as before and only other kernels run them.
    """
    kept = is_as_before(change)
    where = change.places[0] + (f" and {len(change.places) - 1} more" * (len(change.places) > 1))
    rules = [rule for rule in change.rules if not is_spelling(rule)]
    why = "" if kept else f"by {_names(rules) if rules else 'definitions alone'}"
    known = filter(None, (_time(change), _short(change), where and f"in {where}", why))
    return "kept" if kept else "replaced", "; ".join(known)


def _headline(change: Change) -> list[str]:
    what, gained = headline(change)
    whole = f"{what}: {gained}" if gained[:1].strip() else f"{what}{gained}"
    return [whole] if len(whole) <= _WIDTH else [f"{what}:", f"  {gained}"]


def _is_worth_a_table(change: Change) -> bool:
    if not change.before.formula or not change.after.formula or change.after.seconds:
        return True
    return len(change.before.lines) > 1 or len(change.after.lines) > 1


def _short(change: Change) -> str:
    before, after = change.before, change.after
    if is_as_before(change):
        return f"{before.formula or counted(before.kinds)} by another kernel"
    if _is_fused(change):
        return f"{before.formula or counted(before.kinds)} in one kernel"
    if before.formula and after.formula:
        return f"{before.formula} -> {after.formula}"
    return f"{counted(before.kinds)} -> {counted(after.kinds)}"


def _is_fused(change: Change) -> bool:
    """Whether the change only fuses several operators into one kernel, by the same formula."""
    one = len(change.after.lines) == sum(change.after.kinds.values()) == 1
    return one and sum(change.before.kinds.values()) > 1 and all(map(is_spelling, change.rules))


def is_as_before(change: Change) -> bool:
    """Whether both sides have the same operators, so that only the kernels differ."""
    counts = [sum(side.kinds.values()) for side in (change.before, change.after)]
    return counts[0] == counts[1] and _reads_alike(change)


def _reads_alike(change: Change) -> bool:
    """Whether both sides have the same formulas, line by line, up to how they are written."""
    sides = change.before, change.after
    old, new = ([spelled(line.text) for line in side.lines] for side in sides)
    return old == new


def counted(kinds: Mapping[str, int]) -> str:
    """Numbers of operators as text: ``conv3x3, 2 mul, add``; views come last."""
    told = [f"{n} {kind}s" if kind in _NOUNS and n > 1 else f"{n} {kind}" if n > 1 else kind
            for kind, n in sorted(kinds.items(), key=lambda item: item[0] == "view")]  # fmt: skip
    left = sum(kinds.values()) - sum(list(kinds.values())[:6])
    return ", ".join(told[:6]) + (f" and {left} more" if len(told) > 6 else "") or "nothing"


def _work(change: Change) -> str:
    before, after = change.before, change.after
    for what, old, new in (
        ("FLOPs", before.flops, after.flops),
        ("bytes moved", before.bytes, after.bytes),
    ):
        if new and old > _TOLD_RATIO * new:
            return f"{_ratio(old / new)} times fewer {what}"
        if old and not new:
            return f"no {what} any more"
    old, new = (sum(side.kinds.values()) for side in (before, after))
    if old > new:
        return f"{old} operators -> {new}"
    ratio = after.flops / before.flops if before.flops else 1.0
    return f"{_ratio(ratio)} times the FLOPs" if ratio > _TOLD_RATIO else ""


def _ratio(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}".removesuffix(".0")


def _time(change: Change) -> str:
    return timed(change.before.time_s, change.after.time_s)


def timed(before: float | None, after: float | None) -> str:
    """Two times as text: ``0.91 -> 0.02 ms``; empty if one of them isn't known."""
    if before is None or after is None:
        return ""
    return f"{milliseconds(before)} -> {milliseconds(after)} ms"


def milliseconds(seconds: float) -> str:
    """A time in ms, with one to three decimals: ``97.2``, ``0.91``, ``0.020``."""
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 0.1 else f"{ms:.3f}"


def _alike(change: Change) -> str:
    return f" (in {len(change.places)} places)" if len(change.places) > 1 else ""


# ---- a region -----------------------------------------------------------------------------------


def region(change: Change, longest: int = SCREEN, headed: bool = True) -> list[str]:
    """The text of a region, line by line.

    Args:
        longest: the most lines.
        headed: whether the headline is among them.
    """
    found = [*(_headline(change) if headed else ()), *_places(change)]
    found += [f"  {name}: {told}" for name, told in list(change.where.items())[:8]]
    if len(change.where) > 8:
        found.append(f"  and {len(change.where) - 8} more names")
    if _is_fused(change) and _reads_alike(change):
        found += _table(change.after, 4, indent=2)
    elif _is_worth_a_table(change):
        half = max(4, (longest - len(found)) // 4)
        found += ["  before", *_table(change.before, half)]
        found += ["  after", *_table(change.after, half)]
    found += _steps(change, longest - len(found))
    return [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]} …" for line in found]


def _places(change: Change) -> list[str]:
    known = Counter(place for place in change.places if place)
    told = [f"{place} ({count} times)" if count > 1 else place for place, count in known.items()]
    more = f" and {len(told) - 4} more places" if len(told) > 4 else ""
    return [f"  in {'; '.join(told[:4])}{more}"] if told else []


def _table(side: Side, longest: int, indent: int = 4) -> list[str]:
    """The formulas of a side as a table, each with its shape, work, time and kernel.

    Args:
        longest: the most lines; some in the middle are left out if there are more.
        indent: the number of spaces before each line.
    """
    ahead = " " * indent
    rows = [(str(line), *_facts(line, side)) for line in side.lines]
    shown = rows if len(rows) <= longest else [*rows[: longest - 2], *rows[-1:]]
    widths = [max((len(row[n]) for row in shown), default=0) for n in range(len(rows[0]))]
    widths[0] = min(widths[0], _WIDTH - sum(widths[1:]) - 12)
    found = []
    for text, *facts in shown:
        if len(text) > widths[0]:
            found.append(f"{ahead}{text}")
            text = ""
        found.append(ahead + "  ".join(map(str.ljust, (text, *facts), widths)).rstrip())
    if len(rows) > len(shown):
        found.insert(-1, f"    … {len(rows) - len(shown)} lines more")
    return found


def _facts(line: Line, side: Side) -> tuple[str, ...]:
    """The shape, the work, the time and the kernel of a line; empty text for unknown ones."""
    work = sum(flops(term) for term in line.covers if not term.constant)
    known = [side.seconds[term] for term in line.covers if term in side.seconds]
    return (
        f"{list(line.term.shape)}",
        f"{_count(work)}FLOP" if work else "",
        f"{milliseconds(sum(known))} ms" if known else "",
        ", ".join(side.kernels[term] for term in line.covers if term in side.kernels),
    )


def _count(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} "


def _steps(change: Change, room: int) -> list[str]:
    if change.count < 0:
        return [f"  by {_names(change.rules)}", '  too many steps to show: explain("full")']
    if len(change.steps) == 1 and _is_worth_a_table(change):
        # The tables before it show what this step changed. Rules that only change how a value is
        # written aren't named.
        rules = [rule for rule in change.steps[0].rules if not is_spelling(rule)]
        found = [f"  by {_names(rules)}"] if rules else []
    else:
        found = [line for n, step in enumerate(change.steps, 1) for line in _step(n, step)]
    room = max(room - 1, 4)
    if len(found) > room:
        room -= 1  # room for the line with the number of lines that are left out
        left = len(found) - room
        end = room // 3
        found = [*found[: room - end], f"  … {left} lines more", *found[-end:]]
    left = change.count - len(change.steps)
    if left > 0:
        plural = "steps" if left > 1 else "step"
        found.append(f'  {left} more {plural} of spelling: explain("full")')
    return found


def _step(number: int, step: Told) -> Iterable[str]:
    yield f"  {number}. {_names(step.rules)}"
    yield from (f"     - {line}" for line in step.gone)
    yield from (f"     + {line}" for line in step.new)


def _names(rules: Sequence[str]) -> str:
    """The names of the rules, each once, at most four. Rules that only change how a value is
    written are left out, unless there are no others."""
    plain = dict.fromkeys(rules)
    names = [rule for rule in plain if not is_spelling(rule)] or list(plain)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# ---- the whole ----------------------------------------------------------------------------------


def summary(found: Sequence[Change], notes: Sequence[str] = ()) -> str:
    """The text of all regions.

    A region whose operators are as before, with other kernels, is one line. All regions in which
    only views changed are one line together.

    Args:
        notes: lines that come first.
    """
    moving = [c for c in found if {*c.before.kinds, *c.after.kinds} - {"view"}]
    worth = [c for c in moving if not is_as_before(c)]
    views = len(found) - len(moving)
    parts = [*notes]
    if not found:
        parts.append("no operator was changed")
    blocks = ["\n".join(region(change)) for change in worth]
    if len(worth) < len(moving):
        blocks.append("\n".join(_as_before([c for c in moving if is_as_before(c)])))
    if views:
        regions = "regions" if views > 1 else "region"
        blocks.append(f'{views} {regions} of views alone changed: explain("full")')
    return "\n\n".join(["\n".join(parts), *blocks] if parts else blocks)


def _as_before(found: Sequence[Change]) -> list[str]:
    """Regions whose operators are as before: one line each, with the time and the new kernels."""
    lines = ["as before, by other kernels:"]
    for change in found[: SCREEN - 2]:
        what = change.before.formula or counted(change.before.kinds)
        where = f" in {change.places[0]}" if change.places[0] else ""
        kernels = ", ".join(dict.fromkeys(change.after.kernels.values()))
        facts = [f"{what}{where}{_alike(change)}", _time(change), kernels]
        lines.append("  " + "  ".join(filter(None, facts)))
    left = len(found) - (SCREEN - 2)
    lines = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]} …" for line in lines]
    return [*lines, f"  and {left} more"] if left > 0 else lines
