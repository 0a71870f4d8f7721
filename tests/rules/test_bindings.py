"""egglog's engine is loaded without egglog's language for Python, and gets along with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LANGUAGE = ("egglog", "egglog.builtins", "black", "graphviz")
SEARCH = """
from eqsynth.egraph import saturation
from eqsynth.rules import load_text
from eqsynth.rules.bindings import egg as alone
load_text("(sort Colour)")
"""
BOTH = """
import egglog, egglog.bindings
from egglog import *
from egglog import bindings as same
assert egglog.bindings.EGraph is same.EGraph is alone.EGraph

class Number(Expr):
    def __init__(self, value: i64Like) -> None: ...

graph = EGraph()
graph.check(eq(graph.let("x", Number(1))).to(Number(1)))
load_text("(sort Colour)")
"""


def after(code: str) -> list[str]:
    """The modules of egglog's language that a new process has, once it has run some code."""
    shown = f"import sys\nprint(*(m for m in {LANGUAGE} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{shown}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_search_loads_the_engine_alone() -> None:
    assert after(SEARCH) == []


@pytest.mark.rotating
@pytest.mark.parametrize("code", [SEARCH + BOTH, "import egglog\n" + SEARCH + BOTH])
def test_a_program_may_use_egglog_too(code: str) -> None:
    """Before or after it used eqsynth, with one engine for both."""
    assert "egglog.builtins" in after(code)


def test_where_the_engine_lies_elsewhere_egglog_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "egglog"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bindings.py").write_text("LAID_OUT = 'as Python'")
    bindings = ROOT / "eqsynth" / "rules" / "bindings.py"
    code = (
        f"import runpy, sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"assert runpy.run_path({str(bindings)!r})['egg'].LAID_OUT == 'as Python'"
    )
    assert after(code) == ["egglog"]
