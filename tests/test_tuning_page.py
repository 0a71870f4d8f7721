"""docs/tuning.md: its Python runs as it stands, and its commands are ones that eqsynth takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from eqsynth.cli import app

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")


def test_the_page_runs() -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    group: Any = get_command(app)
    commands = 0
    for language, text in blocks:
        if language == "python":
            exec(compile(text, "tuning.md", "exec"), names)
            continue
        for line in text.splitlines():
            program, name, *args = shlex.split(line.removeprefix("$ "))
            assert program == "eqsynth"
            # Options that it doesn't have, or values that they don't take, are errors.
            group.commands[name].make_context(name, args)
            commands += 1
    assert commands == 5 and "found" in names
