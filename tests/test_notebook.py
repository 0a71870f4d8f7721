"""What notebooks show, what is printed, and what ``dir`` shows."""

from __future__ import annotations

import subprocess
import sys

import eqsynth
from eqsynth import notebook

BAD = "<script>alert('x')</script>&"
OPTIONS = {"objective": "flops", "engines": (), "progress": False, "time_limit_s": 600.0}


def test_nothing_is_printed_unless_asked_for() -> None:
    code = "import logging, eqsynth; logging.getLogger('eqsynth.any').warning('told')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_what_users_name_is_text_in_a_notebook() -> None:
    x = eqsynth.input(BAD, (3,))
    shown = x._repr_html_()
    assert BAD not in shown and "&lt;script&gt;" in shown
    program = eqsynth.optimize(eqsynth.ops.relu(x), **OPTIONS)  # type: ignore[arg-type]
    program.report.reason = BAD
    for value in (program, program.report, program.explain()):
        assert BAD not in value._repr_html_()
    assert "&lt;script&gt;" in program.report._repr_html_()
    assert "&lt;script&gt;" in program._repr_html_()
    proof = eqsynth.prove_equal(x + x, 2 * x)
    assert proof and BAD not in proof._repr_html_() and "<details>" in proof._repr_html_()


def test_what_is_long_is_cut() -> None:
    shown = notebook.code("<" * 30_000)
    assert shown.count("&lt;") == 20_000 and "10,000 more" in shown


def test_dir_shows_what_is_public_and_no_more() -> None:
    assert set(dir(eqsynth)) == {*eqsynth.__all__, "__version__"}
    assert not {"importlib", "Any", "annotations", "errors"} & set(dir(eqsynth))
    assert all(getattr(eqsynth, name) is not None for name in dir(eqsynth))
