"""docs/write-a-rule.md runs as it stands: files, commands with their exit codes, Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from eqsynth.cli import app

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "write-a-rule.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def run(command: str) -> tuple[int, str]:
    program, *args = shlex.split(command)
    if program == "eqsynth":
        result = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
        return result.exit_code, result.output
    assert program == "pytest"
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "eqsynth.testing.pytest_plugin", *args],
        env=env, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.rotating
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    kinds = []
    for number, (language, kind, text) in enumerate(BLOCKS):
        kinds.append(language)
        if language == "egg":
            (tmp_path / text.split()[1]).write_text(text, encoding="utf-8")
        elif language == "console":
            command, *shown = text.splitlines()
            code, output = run(command.removeprefix("$ "))
            assert f"exit {code}" == kind, output
            # Counterexamples may get smaller; what is decided stays.
            assert words(shown[0]) in words(output), output
            assert words(shown[-1]) in words(output) or code, output
        else:
            assert language == "python"
            exec(compile(text, f"write-a-rule.md, block {number + 1}", "exec"), names)
    assert kinds.count("egg") == 5 and kinds.count("console") == 8 and kinds.count("python") == 3
