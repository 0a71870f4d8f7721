"""Commands that the documents name: those of eqsynth run, page by page, in the order in which they
stand, with seconds in the place of minutes; benchmarks and targets run, on less than they would
measure (``REDUCED`` and ``TARGETS`` say on how much), and each by its whole text is parsed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from eqsynth.cli import app
from eqsynth.cli.models import model
from tests.played import a_gpu

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


@cache
def commands_of_eqsynth() -> Any:
    return typer.main.get_command(app)


def named(command: str) -> Any:
    """What `eqsynth rules check`, and nothing behind it, is the name of; else None."""
    found = commands_of_eqsynth()
    for name in shlex.split(command)[1:]:
        found = getattr(found, "commands", {}).get(name)
    return found


def is_a_name(command: str) -> bool:
    """`eqsynth optimize` in a sentence is the name of a command, not a call of it."""
    return any(p.required for p in getattr(named(command), "params", ()))


def refused(command: str) -> str:
    """Why the command line doesn't take a command; empty if it does. Nothing runs."""
    if is_a_name(command):
        return ""
    args = shlex.split(command)[1:]
    found = commands_of_eqsynth()
    name = "eqsynth"
    try:
        while True:
            context = found.make_context(name, list(args))
            if not hasattr(found, "resolve_command"):
                return ""
            name, found, args = found.resolve_command(context, [*context._protected_args,
                                                                *context.args])  # fmt: skip
    except Exception as error:  # of the parser, whichever it is
        return "" if type(error).__name__ == "Exit" else f"{command}: {error}"


def test_commands_of_the_documents_are_taken() -> None:
    told = {page: list(commands(page.read_text(encoding="utf-8"), "eqsynth")) for page in PAGES}
    assert sum(map(len, told.values())) > 15
    wrong = [f"{p.name}: {w}" for p, found in told.items() for c in found if (w := refused(c))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "command", ["eqsynth opt model.pt2 -o x", "eqsynth run x.eqsynth --input x.pt",
                "eqsynth rules chek my.egg", "eqsynth optimize model.pt2 -o x --objective"]
)  # fmt: skip
def test_a_command_that_does_not_exist_is_seen(command: str) -> None:
    assert refused(command)


class _ParsedError(Exception):
    """A benchmark has read its arguments, and would begin."""


def unread(command: str) -> str:
    """Why a benchmark doesn't take a command; empty if it does. Nothing is measured."""
    module, *args = shlex.split(command)[2:]
    read = argparse.ArgumentParser.parse_args

    def parsed(*given: Any, **named: Any) -> None:
        read(*given, **named)
        raise _ParsedError

    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(told):
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed)
        patch.setattr(sys, "argv", [module, *args])
        try:
            import_module(module).main()
        except _ParsedError:
            return ""
        except (SystemExit, ImportError, AttributeError) as error:
            if not args and "are required" in told.getvalue():
                return ""  # the name of a benchmark, in a sentence
            return f"{command}: {error} {told.getvalue()[-200:]}"
    return f"{command}: its arguments aren't read"


def test_benchmarks_of_the_documents_take_their_options() -> None:
    told = {(page, command) for page in PAGES
            for command in commands(page.read_text(encoding="utf-8"), "python -m")
            if command.split()[2].startswith("benchmarks.")}  # fmt: skip
    assert len(told) > 10
    wrong = [f"{page.name}: {why}" for page, command in told if (why := unread(command))]
    assert not wrong, "\n".join(wrong)
    for command in ("python -m benchmarks.fuzz --hours 3", "python -m benchmarks.bench_none",
                    "python -m benchmarks.onnx_backend --kind none"):  # fmt: skip
        assert unread(command)


def test_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    told = {target for page in PAGES for target in re.findall(
        r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)}  # fmt: skip
    assert {"demo", "test"} <= told <= known


MODELS = """
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.tanh((q @ k.transpose(-1, -2)) @ v).sum(-1)

def attention():
    torch.manual_seed(0)
    return Attention(), tuple(torch.randn(256, 8) for _ in range(3))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name: models, inputs, a program, a rule file."""
    found = tmp_path_factory.mktemp("commands")
    (found / "models.py").write_text(MODELS)
    (found / "rules").symlink_to(ROOT / "rules")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rules, name in re.findall(r"^```egg\n(;; (\S+).*?)^```$", text, re.MULTILINE | re.DOTALL):
        (found / name).write_text(rules)
    module, inputs = given(f"{found / 'models.py'}:attention")
    torch.export.save(torch.export.export(module, inputs), found / "model.pt2")
    torch.save(inputs, found / "x.pt")
    return found


def given(name: str) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    made = model(name)
    return made.program, made.args


def shortened(command: str) -> list[str]:
    """A command as it is run here: names in the place of NAME, seconds in that of minutes."""
    text = command.replace(" NAME", " relu-of-relu")
    return shlex.split(re.sub(r"(--(?:seconds|tune|time-limit)) \d+", r"\1 3", text))[1:]


def to_run(page: Path) -> list[str]:
    """The calls among the commands of a page, that which writes a program first."""
    text = page.read_text(encoding="utf-8")
    found = dict.fromkeys(commands(text, "eqsynth"))
    # Without arguments it is a call in a line of code, and a name in a sentence.
    code = set(commands(text.replace("`", ""), "eqsynth"))
    calls = [c for c in found if named(c) is None or (c in code and not is_a_name(c))]
    return sorted(calls, key=lambda c: "-o fast.eqsynth" not in c)


# docs/write-a-rule.md runs in test_tutorial.py, with the files that it writes.
RUN = [page for page in PAGES if page.name != "write-a-rule.md" and to_run(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    runner, asked = CliRunner(), to_run(page)
    if not (folder / "fast.eqsynth").exists() and "fast.eqsynth" in " ".join(asked):
        first = ["optimize", "model.pt2", "-o", "fast.eqsynth", "--objective", "flops"]
        assert runner.invoke(app, first).exit_code == 0
    for command in asked:
        with a_gpu() if "--device cuda" in command else nullcontext():
            result = runner.invoke(app, shortened(command), env={"COLUMNS": "200"})
        # What the machine decides: whether anything was faster, and by a kernel that can be tuned.
        excused = ("this program is the original", "there is nothing to tune")
        fine = result.exit_code == 0 or any(text in result.output for text in excused)
        assert fine, f"{command}: {result.output}"
    if page.name == "README.md":
        expected = given("models.py:attention")[0](*torch.load(folder / "x.pt"))
        torch.testing.assert_close(torch.load(folder / "y.pt"), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_the_installed_command_is_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eqsynth", "--help"], capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name in ("optimize", "explain", "bench", "rules"))


# ---- benchmarks and targets ------------------------------------------------------------------


@dataclass(frozen=True)
class Reduced:
    """What is run in the place of a benchmark that takes minutes to hours.

    Attributes:
        more: arguments that are added; the last of two that contradict each other counts.
        tells: what it prints when it has come to its end.
        quick: a second or two; else it is a slow test.
        lacking: what it prints, with exit code 2, where this machine lacks what it needs.
        exit_codes: 1 where times decide it.
    """

    more: str
    tells: str
    quick: bool = False
    lacking: str = ""
    exit_codes: tuple[int, ...] = (0,)


_ONE_ROW = "--reduced --rounds 1 --allow-missing --workload"
# By the beginnings of commands, the longest that fits. None of these is what the documents say is
# measured: one workload at the size of tests instead of a suite, one model, one fault, seconds
# instead of half an hour.
REDUCED = {
    "models": Reduced("--model bert --limit-s 1 --journals .", "1 of 1 equal",
                      lacking="eqsynth[models]"),
    "onnx_backend": Reduced("--only test_relu --no-capture", "runs"),
    "bench_peers": Reduced(f"{_ONE_ROW} factor", "geometric mean of 1 ratios"),
    "bench_peers --suite nets": Reduced(f"{_ONE_ROW} lstm", "geometric mean of 1 ratios"),
    "bench_peers --suite models": Reduced(f"{_ONE_ROW} bert", "geometric mean of 1 ratios",
                                          lacking="eqsynth[models]"),
    "bench_peers --device cuda": Reduced(f"{_ONE_ROW} factor", "geometric mean of 1 ratios",
                                         lacking="run this where a GPU is"),
    "bench_deadlines": Reduced("--program transformer_layer --limit 0.5", "1 runs",
                               exit_codes=(0, 1)),
    "bench_optimize": Reduced("--reduced --only fsrcnn --part search", "call overhead"),
    "heaviest": Reduced("--reduced --workload fsrcnn", "| workload | of its time |"),
    "bench_estimates": Reduced("--reduced --draws 16 --kernels 2", "family, distance"),
    "bench_tune": Reduced("tune.jsonl --minutes 0.02 --kernel transpose --tuner random --trials 2 "
                          "--seeds 1", "2 trials of every search"),
    "bench_tune tune.jsonl": Reduced("--minutes 0.02 --kernel transpose --tuner random --trials 2 "
                                     "--seeds 1", "2 trials of every search"),
    "bench_tune_nets": Reduced("--net alexnet --seconds 1 --limit-s 3 --rounds 2 --reduced",
                               "| alexnet |"),
    "tuning_tables": Reduced("", "| random |", quick=True),
    "pictures": Reduced("--only convolution --seconds 5 --folder .", "convolution.png",
                        lacking="no browser: set EQSYNTH_BROWSER"),
    "long_run": Reduced("--programs 1 --modules 0 --jobs 1 --journals .", "failures: 0"),
    "fuzz": Reduced("--minutes 0.01 --kinds onnx --journal fuzz.json", "together"),
    "hunt": Reduced("--minutes 0.01 --engines inductor --size 1 --journal hunt.jsonl",
                    "1 programs in"),
    "substitutions": Reduced("--reduced --limit 5 --model bert_1", "bert_1"),
    "joint": Reduced("--reduced --limit 2 --model bert64", "in sequence"),
    "planted": Reduced('"maximum of NaN"', "caught"),
    "tensorright": Reduced("--only divmod-01", "proved"),
    "mutants": Reduced("--head rule-of-scopes --part 1/16", "rule-of-scopes: 5 mutants"),
    "law_mutants": Reduced("--only 'in_range()'", "mutants, 0 on which no test fails"),
    "differential": Reduced("--columns interpreter", "0 fail"),
}  # fmt: skip


def documented(start: str) -> list[str]:
    """The distinct commands of all pages that begin so."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return [*dict.fromkeys(command for text in texts for command in commands(text, start))]


BENCHMARKS = [command.removeprefix("python -m benchmarks.") for command in documented("python -m")
              if command.startswith("python -m benchmarks.")]  # fmt: skip


def reduced(command: str) -> Reduced:
    """
    Raises:
        ValueError: nobody has said yet how a benchmark of the documents is run here.
    """
    return REDUCED[max((name for name in REDUCED if f"{command} ".startswith(f"{name} ")), key=len)]


def _marked(command: str) -> Any:
    mark = pytest.mark.rotating if reduced(command).quick else pytest.mark.slow
    return pytest.param(command, marks=mark, id=command)


def own_environment() -> dict[str, str]:
    """Without what says to a pytest in another process that it is a part of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    kept.pop("EQSYNTH_TESTS", None)
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("command", [*map(_marked, BENCHMARKS)])
def test_a_benchmark_of_the_documents_runs(command: str, tmp_path: Path) -> None:
    """In a folder with the documents' texts, into which it may write pictures and tables."""
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    how = reduced(command)
    name, *given = shlex.split(f"{command} {how.more}")
    if name == "tuning_tables":
        (tmp_path / "tune.jsonl").write_text("\n".join(map(json.dumps, TUNED)) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *given], cwd=tmp_path, env=own_environment(),
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    if how.lacking and how.lacking in told:
        assert done.returncode in (1, 2) and "Traceback" not in told
        pytest.skip(f"{command}: {how.lacking}")
    assert done.returncode in how.exit_codes and how.tells in told, told[-3000:]
    for option in ("--plot", "--page", "--svg"):
        if option in given:
            assert (tmp_path / given[given.index(option) + 1]).stat().st_size


# Searches of one kernel with two trials, as `bench_tune` writes them.
TUNED = [{"machine": {"model": "a machine", "cores": 2}, "versions": {}, "threads": 1, "far": 0}, *(
    {"kernel": "transpose", "tuner": "random", "seed": 0, "time_s": time_s, "cost_s": 1.0,
     "outside_s": 1e-3, "measuring_s": 2.0,
     "schedule": ["rows", {"tasks": 64, "order": [], "unrolled": unrolled}], "giga": 0.0084,
     "unit": "GB/s", "share": 1e-3} for unrolled, time_s in ((0, 0.007), (1, 0.002))
)]  # fmt: skip

# What stands behind a target as it is run here; None where it would install packages, or run all
# tests from within one: then make says what it would do (-n), and that is all that is seen.
TARGETS = {
    "help": "",
    "demo": "factor",
    "test": "tests/test_golden.py",
    "bench": "--help",
    "peers": None, "venv": None, "browser": None, "test-all": None,
}  # fmt: skip


def _target(command: str) -> Any:
    marks = pytest.mark.rotating if command == "make help" else pytest.mark.slow
    return pytest.param(command, marks=marks, id=command)


@pytest.mark.parametrize("command", [*map(_target, documented("make"))])
def test_a_target_of_the_documents_runs(command: str, tmp_path: Path) -> None:
    """With what is installed here, whatever the dates of files say: tests install nothing."""
    target, *given = shlex.split(command)[1:]
    arguments = [word.removeprefix("ARGS=") for word in given]
    more = TARGETS[target]
    stamps = [f"{name}={tmp_path / name}" for name in ("STAMP", "PEERS")]
    for stamp in () if more is None else stamps:
        Path(stamp.partition("=")[2]).touch()
    asked = " ".join([*arguments, *filter(None, [more])])
    done = subprocess.run(
        ["make", *(["-n"] if more is None else []), *stamps, f"VENV={sys.prefix}", target,
         f"ARGS={asked}"],
        cwd=ROOT, env=own_environment(), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    # Of the tests that it was narrowed down to, `-k profile` selects none.
    assert done.returncode == 0 or "no tests ran" in told, told[-3000:]
    assert "pip" in told if more is None else not re.search(r"pip.* install", told), told


def test_every_benchmark_and_target_of_the_documents_is_run() -> None:
    assert len(BENCHMARKS) > 15 and all(map(reduced, BENCHMARKS))
    names = {shlex.split(command)[1] for command in documented("make")}
    assert {"demo", "test", "bench"} <= names <= set(TARGETS)
    with pytest.raises(ValueError):
        reduced("bench_none --suite nets")
