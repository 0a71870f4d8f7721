"""Commands that the documents name: they exist with their options, and README's run in a row."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from eqsynth.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "rules" / "README.md",
         ROOT / "tests" / "README.md"]  # fmt: skip
# What follows a command in a sentence or a listing: a remark, its output, or what it may be given.
_REMARK = re.compile(r"\s(#|->|>|\|).*$|\[.*?\]|…|\.\.\.")


def commands(text: str, start: str) -> Iterator[str]:
    """Commands that begin so: lines of code, and whole spans in backticks."""
    lines = re.findall(rf"^(?: {{4}}|\$ )({start} .+)$", text, re.MULTILINE)
    for found in [*lines, *re.findall(rf"`({start} [^`\n]+)`", text)]:
        yield _REMARK.sub("", found.split(f", {start.split()[0]} ")[0].split(", rules ")[0]).strip()


def refused(command: str) -> str:
    """Why the command line doesn't take a command; empty if it does. Nothing runs."""
    args = shlex.split(command)[1:]
    found: Any = typer.main.get_command(app)
    name = "eqsynth"
    try:
        while True:
            context = found.make_context(name, list(args))
            if not hasattr(found, "resolve_command"):
                return ""
            name, found, args = found.resolve_command(context, [*context._protected_args,
                                                                *context.args])  # fmt: skip
    except Exception as error:  # of the parser, whichever it is
        # `eqsynth optimize` in a sentence is the name of a command, not a call of it.
        named = type(error).__name__ == "MissingParameter" and len(shlex.split(command)) <= 3
        return "" if named or type(error).__name__ == "Exit" else f"{command}: {error}"


def test_commands_of_the_documents_are_taken() -> None:
    named = {page: list(commands(page.read_text(encoding="utf-8"), "eqsynth")) for page in PAGES}
    assert sum(map(len, named.values())) > 15
    wrong = [f"{p.name}: {w}" for p, found in named.items() for c in found if (w := refused(c))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "command", ["eqsynth opt model.pt2 -o x", "eqsynth run x.eqsynth --input x.pt",
                "eqsynth rules chek my.egg", "eqsynth optimize model.pt2 -o x --objective"]
)  # fmt: skip
def test_a_command_that_does_not_exist_is_seen(command: str) -> None:
    assert refused(command)


def test_benchmarks_and_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for command in commands(text, "python -m"):
            module, *args = shlex.split(command)[2:]
            path = ROOT / (module.replace(".", "/") + ".py")
            if not module.startswith("benchmarks."):
                continue
            source = path.read_text(encoding="utf-8") if path.is_file() else ""
            options = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
            wrong += [f"{page.name}: {command}" for o in options or [""] if o not in source]
            wrong += [] if source else [f"{page.name}: {command}"]
        for target in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE):
            if not re.search(rf"^{target}:", makefile, re.MULTILINE):
                wrong.append(f"{page.name}: make {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return (q @ k.transpose(-1, -2)) @ v

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = tuple(torch.randn(256, 8) for _ in range(3))
    torch.export.save(torch.export.export(Attention(), x), "model.pt2")
    torch.save(x, "x.pt")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    run = [c for c in commands(text, "eqsynth") if "model.pt2" in c or "fast.eqsynth" in c]
    assert {c.split()[1] for c in run} >= {"optimize", "explain", "profile", "run", "bench"}
    for command in sorted(run, key=lambda c: "optimize" not in c):
        result = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "200"})
        original = "this program is the original" in result.output  # where nothing is faster
        assert result.exit_code == 0 or (command.split()[1] == "profile" and original), (
            command + result.output
        )
    torch.testing.assert_close(torch.load("y.pt"), Attention()(*x), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_the_installed_command_is_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eqsynth.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name in ("optimize", "explain", "bench", "rules"))
