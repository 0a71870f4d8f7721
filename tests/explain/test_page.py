"""The page: its panels, what is linked, that it needs nothing else."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from shutil import which

import pytest
import torch
from torch import nn

from eqsynth.errors import EqsynthError
from eqsynth.explain import Page
from eqsynth.explain.page import page
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from eqsynth.report import Report
from tests.explain.test_told import PROGRAMS, explained

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """The elements of a page: what is open where, the text of each panel, marks, links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.panel = ""
        self.panels: list[str] = []
        self.marks: dict[str, list[set[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        self.outside: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.panel = known["id"] or ""
            self.panels.append(self.panel)
        if "data-r" in known:
            self.marks.setdefault(self.panel, []).append(set((known["data-r"] or "").split()))
        self.outside += [v or "" for k, v in attrs if k in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.panel, []).append(data)

    def text(self, panel: str) -> str:
        return " ".join(" ".join(self.texts.get(panel, [])).split())


# The page that these tests read takes five seconds to make.
TOGETHER = pytest.mark.rotating(together="page")


@pytest.fixture(scope="module")
def drawn() -> tuple[Reader, str]:
    report = Report(
        time_before_s=4e-3, time_after_s=2e-3, stop="node_limit", stages_s={"saturate": 3.0},
        growth={"define": 10, "contract": 40}, over_budget={"distribute": 2},
        law_faults={"factor": "a < b & c"},
    )  # fmt: skip
    text = page(explained(*PROGRAMS["two_layers"], timed=True), report)
    return Reader(text), text


@TOGETHER
def test_there_are_three_panels_and_the_figures(drawn: tuple[Reader, str]) -> None:
    reader, _ = drawn
    assert reader.panels[:3] == ["program", "derivation", "plan"]
    assert {"times", "growth", "stages", "cuts", "report"} <= set(reader.panels)
    assert "softmax" in reader.text("program") and "a kernel" in reader.text("plan")
    assert "match-epilogue" in reader.text("derivation")


@TOGETHER
def test_the_page_needs_nothing_else(drawn: tuple[Reader, str]) -> None:
    reader, text = drawn
    assert reader.outside == []
    assert not re.search(r"https?:|@import|url\(", text)


@TOGETHER
def test_each_region_is_linked_to_both_programs(drawn: tuple[Reader, str]) -> None:
    """Each place of each region lights up lines on both sides; so does what didn't change."""
    reader, _ = drawn
    left, right = (set().union(*reader.marks[name]) for name in ("program", "plan"))
    for marks in reader.marks["derivation"]:
        assert marks <= left and marks <= right
        assert len(marks) == 3  # the region, and its two places
    same = {mark for mark in left if mark.startswith("v-")}
    assert same and same <= right
    assert sum(marks <= same for marks in reader.marks["program"]) == len(same)


@TOGETHER
def test_bars_are_as_long_as_times(drawn: tuple[Reader, str]) -> None:
    _, text = drawn
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", text)]
    assert max(widths) == 100.0 and min(widths) > 0
    times = text[text.index('id="times"') : text.index('id="growth"')]
    assert re.findall(r"width:([\d.]+)%", times) == ["100.0", "50.0"]
    growth = text[text.index('id="growth"') : text.index('id="stages"')]
    assert re.findall(r"width:([\d.]+)%", growth) == ["25.0", "100.0"]


@TOGETHER
def test_what_was_cut_is_said(drawn: tuple[Reader, str]) -> None:
    said = drawn[0].text("cuts")
    assert "node_limit" in said and "distribute" in said and "a < b & c" in said
    cuts = drawn[1][drawn[1].index('id="cuts"') : drawn[1].index('id="report"')]
    assert "a &lt; b &amp; c" in cuts


# As much of a browser as the script uses; it tells what is lit while each line is pointed at.
BROWSER = """
const made = JSON.parse(process.argv[2]).map(([kind, r]) => ({
  dataset: { r }, on: {}, lit: false,
  classList: { toggle(_, lit) { this.owner.lit = lit; } },
  matches: wanted => wanted === kind,
  addEventListener(name, call) { this.on[name] = call; },
}));
for (const element of made) element.classList.owner = element;
globalThis.document = { querySelectorAll: () => made };
globalThis.location = { hash: '' };
eval(require('fs').readFileSync(process.argv[3], 'utf8'));
const lit = () => made.flatMap((element, n) => element.lit ? [n] : []);
const found = made.map(element => {
  element.on.mouseenter();
  const now = lit();
  element.on.mouseleave();
  return now;
});
made[0].on.click();
made[0].on.mouseleave();
console.log(JSON.stringify([found, lit()]));
"""


@TOGETHER
@pytest.mark.skipif(which("node") is None, reason="node runs the page's script")
def test_pointing_at_a_line_lights_up_what_became_of_it(
    drawn: tuple[Reader, str], tmp_path: Path
) -> None:
    reader, text = drawn
    names = ("program", "derivation", "plan")
    elements = [(name, marks) for name in names for marks in reader.marks[name]]
    (script,) = re.findall(r"<script>(.*)</script>", text, re.S)
    (tmp_path / "page.js").write_text(script)
    (tmp_path / "browser.js").write_text(BROWSER)
    kinds = [("details" if n == "derivation" else "div", " ".join(sorted(m))) for n, m in elements]
    done = subprocess.run(
        ["node", tmp_path / "browser.js", json.dumps(kinds), tmp_path / "page.js"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lit, kept = json.loads(done.stdout)
    for here, (name, marks) in zip(lit, elements, strict=True):
        places = {mark for mark in marks if "-" in mark}
        wanted = marks if name == "derivation" else places
        assert here == [n for n, (_, other) in enumerate(elements) if other & wanted]
        assert {elements[n][0] for n in here} >= {"program", "plan"}
    assert kept == lit[0]


class Product(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2)) @ v


def test_a_program_draws_itself(tmp_path: Path) -> None:
    inputs = tuple(torch.ones(32, 4) for _ in range(3))
    program = optimize(Product().eval(), inputs, objective="flops", time_limit_s=600)
    assert isinstance(program, CompiledProgram) and isinstance(program.report.page, Page)
    program.report.to_html(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    reader = Reader(text)
    assert "(q @ kᵀ) @ v" in reader.text("derivation")
    assert "e-nodes" in reader.text("growth") and "define" in reader.text("growth")
    assert "saturate" in reader.text("stages")
    assert "own end" in reader.text("cuts")
    copy.deepcopy(program).report.to_html(tmp_path / "b.html")
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == text
    assert "page" not in repr(program.report)


def test_without_a_program_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(EqsynthError) as caught:
        Report(reason="it can't be captured").to_html(tmp_path / "none.html")
    assert caught.value.got == "it can't be captured"
    assert not (tmp_path / "none.html").exists()
