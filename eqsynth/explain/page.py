"""An explanation as one HTML page, which loads nothing from the network and needs no library.

The page has three panels: the program, the changes, the plan. A line of the program, the change
that replaced it, and the new lines in the plan have a mark in common (``data-r="r0"``). The page
highlights all elements that share a mark with the element under the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Protocol

from eqsynth.explain.explanation import Explanation, NoExplanation
from eqsynth.explain.sides import Change, Side
from eqsynth.explain.told import (
    SCREEN,
    counted,
    headline,
    is_as_before,
    milliseconds,
    region,
    row,
    timed,
)
from eqsynth.ir.formulas import Line
from eqsynth.ir.tensor import Tensor

# The most lines of a program that the page shows.
_LONGEST = 600


class Figures(Protocol):
    """The fields of a report that a page shows."""

    time_before_s: float
    time_after_s: float
    enodes: int
    flops_before: int
    flops_after: int
    stop: str
    reason: str
    stages_s: Mapping[str, float]
    growth: Mapping[str, int]
    over_budget: Mapping[str, int]
    law_faults: Mapping[str, str]

    def rows(self) -> list[tuple[str, str]]: ...


class Page:
    """Makes the page, and rows of the report, from an explanation that is computed on demand."""

    def __init__(self, explanation: Callable[[], Explanation | NoExplanation]) -> None:
        self._explanation = explanation

    def __deepcopy__(self, _memo: object) -> Page:
        return self  # all copies of a report share the e-graph that the explanation is made from

    def __call__(self, report: Figures) -> str:
        return page(self._explanation(), report)

    def regions(self) -> list[tuple[str, str]]:
        """The report's rows for regions: ``("replaced", text)`` or ``("kept", text)``, in the order
        of the program; none if there is no explanation."""
        explanation = self._explanation()
        if isinstance(explanation, NoExplanation):
            return []
        found = [row(change) for change in explanation.changes]
        before, after = explanation.kept
        if after.kinds:
            whole = (timed(before.time_s, after.time_s), counted(after.kinds), "as before")
            found.append(("kept", "; ".join(filter(None, whole))))
        return found


def page(explanation: Explanation | NoExplanation, report: Figures) -> str:
    """The whole page as HTML."""
    if isinstance(explanation, NoExplanation):
        middle = f"<p class=cut>{escape(explanation.reason)}</p>"
        panels = _panel("program", "Your program", "") + _panel("derivation", "Derivation", middle)
        return _whole(report, panels + _panel("plan", "Plan", ""))
    before, after = explanation.wholes
    marks = _Marks(explanation.changes)
    every = [_seconds(line, side) for side in (before, after) for line in side.lines]
    longest_s = max(every, default=0.0)
    note = f"<p class=cut>{escape(explanation.note)}</p>" if explanation.note else ""
    return _whole(
        report,
        _panel("program", "Your program", _lines(before, 0, marks, longest_s))
        + _panel("derivation", "Derivation", note + _changes(explanation.changes))
        + _panel("plan", "Plan", _lines(after, 1, marks, longest_s)),
    )


class _Marks:
    """The marks of lines: those of the changes that a line belongs to, ``r0 r0-2`` for the third
    place of the first change.

    The mark of a line outside of all changes is its name, ``v-t3``. A value has one name in both
    programs, so that its lines in both are highlighted together.
    """

    def __init__(self, changes: Sequence[Change]) -> None:
        self._of: tuple[dict[Tensor, set[str]], dict[Tensor, set[str]]] = ({}, {})
        for number, change in enumerate(changes):
            for place, sides in enumerate(change.alike):
                for side, terms in enumerate(sides):
                    for term in terms:
                        own = self._of[side].setdefault(term, set())
                        own |= {f"r{number}", f"r{number}-{place}"}

    def of(self, line: Line, side: int) -> str:
        found = {mark for term in line.covers for mark in self._of[side].get(term, ())}
        return " ".join(sorted(found) or [f"v-{line.name}"])


def _panel(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{body}</section>\n'


def _lines(side: Side, number: int, marks: _Marks, longest_s: float) -> str:
    rows = []
    for line in side.lines[:_LONGEST]:
        mark = marks.of(line, number)
        changed = " changed" if mark.startswith("r") else ""
        seconds = _seconds(line, side)
        kernel = ", ".join(side.kernels[t] for t in line.covers if t in side.kernels)
        facts = " · ".join(filter(None, (str(line.term.type), kernel)))
        bar = _bar(seconds, longest_s, f"{milliseconds(seconds)} ms") if seconds else ""
        rows.append(
            f'<div class="line{changed}" data-r="{escape(mark)}"><code>{escape(str(line))}</code>'
            f"<small>{escape(facts)}</small>{bar}</div>"
        )
    if len(side.lines) > _LONGEST:
        rows.append(f"<p class=cut>{len(side.lines) - _LONGEST} lines more were cut</p>")
    if side.where:
        told = "\n".join(escape(f"{name}: {text}") for name, text in side.where.items())
        rows.append(f"<details><summary>{len(side.where)} constants</summary>"
                    f"<pre class=wrap>{told}</pre></details>")  # fmt: skip
    return "\n".join(rows)


def _seconds(line: Line, side: Side) -> float:
    return sum(side.seconds[t] for t in line.covers if t in side.seconds)


def _bar(value: float, longest: float, text: str) -> str:
    width = 100.0 * value / longest if longest else 0.0
    return f'<div class=bar><i style="width:{width:.1f}%"></i><b>{escape(text)}</b></div>'


def _changes(changes: Sequence[Change]) -> str:
    if not changes:
        return "<p>no operator was changed</p>"
    found = []
    # Changes of operators come first. Changes of kernels alone are closed at first.
    ordered = sorted(enumerate(changes), key=lambda item: is_as_before(item[1]))
    for place, (number, change) in enumerate(ordered):
        marks = [f"r{number}", *(f"r{number}-{n}" for n in range(len(change.alike)))]
        opened = " open" if place < 3 and not is_as_before(change) else ""
        what, gained = headline(change)
        told = "\n".join(map(_step_line, region(change, SCREEN, headed=False)))
        found.append(
            f'<details class=change data-r="{" ".join(marks)}"{opened}>'
            f"<summary><code>{escape(what)}</code><em>{escape(gained)}</em></summary>"
            f"<pre>{told}</pre></details>"
        )
    return "\n".join(found)


def _step_line(line: str) -> str:
    kind = {"-": "gone", "+": "new"}.get(line.strip()[:1], "")
    return f'<span class="{kind}">{escape(line)}</span>' if kind else escape(line)


# ---- the frame ----------------------------------------------------------------------------------


def _whole(report: Figures, panels: str) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in report.rows()
    )
    growth = [(phase, float(n), f"{n:,} e-nodes") for phase, n in report.growth.items()]
    stages = [(name, s, f"{s:.2f} s") for name, s in report.stages_s.items()]
    before, after = report.time_before_s, report.time_after_s
    times = [("before", before, f"{milliseconds(before)} ms"),
             ("after", after, f"{milliseconds(after)} ms")]  # fmt: skip
    figures = (
        _chart("times", "A call", times if before else [])
        + _chart("growth", "E-graph, phase by phase", growth)
        + _chart("stages", "Where the search spent its time", stages)
        + _panel(
            "cuts", "What was cut", "".join(f"<p class=cut>{escape(c)}</p>" for c in _cuts(report))
        )
    )
    return _FRAME.format(
        headline=escape(_headline(report)),
        style=_STYLE,
        script=_SCRIPT,
        panels=panels,
        figures=figures,
        report=f"<table>{rows}</table>",
    )


def _headline(report: Figures) -> str:
    """The page's first line: the times and FLOPs before and after, or why the original is used."""
    if report.reason:
        return f"the original is used: {report.reason.splitlines()[0]}"
    before, after, facts = report.time_before_s, report.time_after_s, []
    if before and after:
        facts.append(f"{milliseconds(before)} -> {milliseconds(after)} ms a call")
    if report.flops_before != report.flops_after:
        facts.append(f"{report.flops_before:,} -> {report.flops_after:,} FLOPs")
    return ", ".join(facts)


def _chart(name: str, title: str, values: Sequence[tuple[str, float, str]]) -> str:
    longest = max((value for _, value, _ in values), default=0.0)
    bars = "".join(
        f"<div class=row><span>{escape(label)}</span>{_bar(value, longest, text)}</div>"
        for label, value, text in values
    )
    return _panel(name, title, bars or "<p>not known</p>")


def _cuts(report: Figures) -> Iterable[str]:
    """What stopped the search early, and what it left out: budgets, and laws that failed."""
    if report.reason:
        yield f"the original is used: {report.reason}"
    if report.stop not in ("", "saturated"):
        yield f"the search ended by: {report.stop}"
    for rule, rounds in report.over_budget.items():
        yield f"{rule}: over its budget of matches in {rounds} rounds"
    for law, why in report.law_faults.items():
        yield f"{law} failed: {why}"
    if report.stop in ("", "saturated") and not report.over_budget and not report.law_faults:
        yield "nothing: the search came to its own end"


_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>eqsynth</title>
<style>{style}</style>
</head>
<body>
<header><h1>eqsynth</h1><p>{headline}</p></header>
<main id="panels">
{panels}</main>
<footer id="figures">
{figures}<section id="report"><h2>Report</h2>{report}</section>
</footer>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --on: #f5c54266; --bar: #4a90d9; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0; }
header { display: flex; gap: 1em; align-items: baseline; padding: .5em 1em; }
header { border-bottom: 1px solid var(--line); }
h1, header p { font-size: 1em; margin: 0; }
#panels { display: grid; grid-template-columns: 1fr 2.05fr 1fr; height: 70vh; }
#panels section { overflow: auto; padding: 0 1em 1em; border-right: 1px solid var(--line); }
#panels section { min-width: 0; }
h2 { font-size: 1em; position: sticky; top: 0; background: Canvas; padding: .6em 0; margin: 0; }
code, pre { font: 12px/1.5 ui-monospace, monospace; white-space: pre-wrap; }
code { overflow-wrap: anywhere; }
pre { font-size: 11px; white-space: pre; overflow-x: auto; margin: .5em 0; }
.line { padding: .25em .4em; border-left: 3px solid transparent; }
.changed { border-left-color: var(--bar); }
.line small { display: block; opacity: .65; }
.on { background: var(--on); }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 4px; margin: 0 0 .6em; padding: .4em; }
summary { cursor: pointer; }
summary em { display: block; opacity: .8; }
.gone { color: #c0392b; } .new { color: #27ae60; }
.bar { position: relative; height: 17px; line-height: 17px; background: #8882; flex: 1; }
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--bar); opacity: .6; }
.bar b { position: absolute; font-weight: normal; font-size: 11px; padding-left: .4em; }
.row { display: flex; gap: .6em; margin: .15em 0; } .row span { width: 6em; }
#figures { display: grid; grid-template-columns: 1fr 1fr; border-top: 1px solid var(--line); }
#figures section { padding: 0 1em 1em; }
#report { grid-column: 1 / -1; } th { text-align: left; padding-right: 1em; vertical-align: top; }
th { white-space: nowrap; } td { overflow-wrap: anywhere; }
@media (max-width: 900px) {
  #panels, #figures { grid-template-columns: minmax(0, 1fr); }
  #panels { height: auto; } #panels section { max-height: 70vh; border-right: none; }
}
"""

# Highlights the elements that share a mark with the element under the pointer. A click keeps the
# highlight; so does an address such as page.html#r0, which opens the first change.
_SCRIPT = """
const marked = [...document.querySelectorAll('[data-r]')];
const marksOf = element => element.dataset.r.split(' ');
let kept = null;
function light(element) {
  const wanted = element ? new Set(most(element)) : new Set();
  for (const other of marked)
    other.classList.toggle('on', marksOf(other).some(mark => wanted.has(mark)));
}
function most(element) {
  const all = marksOf(element), places = all.filter(mark => mark.includes('-'));
  return element.matches('details') || !places.length ? all : places;
}
for (const element of marked) {
  element.addEventListener('mouseenter', () => light(element));
  element.addEventListener('mouseleave', () => light(kept));
  element.addEventListener('click', () => {
    kept = kept === element ? null : element;
    light(kept);
  });
}
const named = marked.find(e => e.matches('details') && '#' + marksOf(e)[0] === location.hash);
if (named) {
  named.open = true;
  light(kept = named);
}
"""
