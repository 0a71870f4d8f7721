"""The page in a browser: what is where, what lights up, what a click does.

A browser of Chromium's kind is named by ``EQSYNTH_BROWSER``, or found on ``PATH``; playwright
drives it. Without either the tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from eqsynth.explain.page import page
from eqsynth.report import Report
from tests.explain.test_told import PROGRAMS, explained

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser")

NAMES = ("chromium", "chromium-browser", "google-chrome", "headless_shell")
BROWSER = os.environ.get("EQSYNTH_BROWSER") or next(filter(None, map(which, NAMES)), None)
ARGS = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--single-process"]

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser: set EQSYNTH_BROWSER to a Chromium"
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = Report(
        time_before_s=4e-3, time_after_s=2e-3, stop="node_limit", stages_s={"saturate": 3.0},
        growth={"define": 10, "contract": 40}, over_budget={"distribute": 2},
        flops_before=4_000, flops_after=1_000, rules_fired={"x" * 400: 3}, segments=1,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("page") / "page.html"
    text = page(explained(*PROGRAMS["two_layers"], timed=True), report)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    """One for all tests: some builds of Chromium end with their last window."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=ARGS, timeout=60_000)
        yield browser.new_page()
        browser.close()


@pytest.fixture
def opened(window: Any, drawn: Path) -> Iterator[Any]:
    """The page, 1400 by 900; what it complains of is an error."""
    told: list[str] = []
    window.on("console", lambda message: told.append(message.text))
    window.on("pageerror", lambda error: told.append(str(error)))
    window.set_viewport_size({"width": 1400, "height": 900})
    window.goto(drawn.as_uri())
    yield window
    assert not told


def lit(shown: Any, panel: str) -> int:
    return int(shown.locator(f"#{panel} .on").count())


def boxes_of(shown: Any) -> list[dict[str, float]]:
    return [shown.locator(f"#{name}").bounding_box() for name in ("program", "derivation", "plan")]


def colour_of(line: Any) -> str:
    return str(line.evaluate("e => getComputedStyle(e).background"))


def away(shown: Any) -> None:
    shown.hover("header")


def test_the_panels_stand_side_by_side_and_nothing_is_wider_than_the_page(opened: Any) -> None:
    boxes = boxes_of(opened)
    assert len({box["y"] for box in boxes}) == 1
    for left, right in zip(boxes, boxes[1:], strict=False):
        assert left["x"] + left["width"] <= right["x"] + 1
    assert boxes[-1]["x"] + boxes[-1]["width"] <= 1400
    assert opened.evaluate("document.documentElement.scrollWidth") <= 1400
    assert "4.00 -> 2.00 ms" in opened.inner_text("header")
    assert "4,000 -> 1,000 FLOPs" in opened.inner_text("header")


def test_on_a_narrow_screen_they_stand_below_each_other(opened: Any) -> None:
    opened.set_viewport_size({"width": 420, "height": 800})
    boxes = boxes_of(opened)
    assert len({box["x"] for box in boxes}) == 1
    assert boxes[0]["y"] < boxes[1]["y"] < boxes[2]["y"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= 420


def test_the_text_of_a_bar_is_in_it(opened: Any) -> None:
    outside = opened.evaluate("""() => [...document.querySelectorAll('.bar')].filter(bar => {
        const box = bar.getBoundingClientRect();
        const text = bar.querySelector('b').getBoundingClientRect();
        return text.top < box.top - 1 || text.bottom > box.bottom + 1 || text.right > box.right;
    }).length""")
    assert opened.locator(".bar").count() > 5 and outside == 0


def test_pointing_at_a_line_lights_up_what_became_of_it(opened: Any) -> None:
    for panel in ("program", "plan"):
        opened.hover(f"#{panel} .line.changed >> nth=0")
        assert lit(opened, "program") and lit(opened, "plan") and lit(opened, "derivation")
        colour = colour_of(opened.locator("#plan .on >> nth=0"))
        away(opened)
        assert not lit(opened, "program") and not lit(opened, "plan")
        assert colour_of(opened.locator("#plan .line.changed >> nth=0")) != colour


def test_a_click_keeps_it_lit_and_another_lets_go(opened: Any) -> None:
    line = opened.locator("#program .line.changed >> nth=0")
    line.click()
    away(opened)
    kept = lit(opened, "plan")
    assert kept
    opened.hover("#program .line:not(.changed) >> nth=0")
    away(opened)
    assert lit(opened, "plan") == kept
    line.click()
    away(opened)
    assert not lit(opened, "plan")


def test_a_region_opens_and_shuts(opened: Any) -> None:
    region = opened.locator("details >> nth=0")
    steps = region.locator("pre")
    assert steps.is_visible()
    region.locator("summary").click()
    assert not steps.is_visible()
    region.locator("summary").click()
    assert steps.is_visible() and "before" in steps.inner_text()
    assert region.inner_text().count("fewer FLOPs") == 1  # what was gained stands in the headline


def test_an_address_points_at_a_region(opened: Any, drawn: Path) -> None:
    opened.goto(f"{drawn.as_uri()}#r1")
    opened.reload()
    away(opened)
    assert lit(opened, "program") and lit(opened, "plan") and lit(opened, "derivation") == 1
    assert "on" in str(opened.locator("details >> nth=1").get_attribute("class"))
