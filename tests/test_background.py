"""``torch.compile(backend="eqsynth", mode="fast-start")``: a program now, a better one later."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from eqsynth import background, compile_backend, sizes
from eqsynth.errors import CompileWarning
from tests.compiled import Bottleneck, Watched

LATER = {"time_limit_s": 60.0, "objective": "flops", "mode": "fast-start"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert background.wait(300)
    torch._dynamo.reset()


class Held:
    """A job before all others, which ends when the block does."""

    def __enter__(self) -> None:
        self.go = threading.Event()
        background.submit(lambda: self.go.wait(300) and None)

    def __exit__(self, *_: object) -> None:
        self.go.set()


@pytest.mark.rotating
def test_inductors_program_runs_until_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, model, x = Watched(), Bottleneck().eval(), torch.randn(5, 12)
    search = background.found_elsewhere

    def changed_meanwhile(*args: Any) -> Any:
        found = search(*args)
        with torch.no_grad():
            model.up.weight.mul_(2.0)
        return found

    monkeypatch.setattr(background, "found_elsewhere", changed_meanwhile)
    compiled = torch.compile(model, backend=watched, options=LATER)
    with torch.no_grad():
        with Held():
            torch.testing.assert_close(compiled(x), model(x))
            (swapped,) = watched.made
            first = swapped.current
            assert not isinstance(first, compile_backend.Program)
            model.up.weight.mul_(2.0)  # while the search waits
            torch.testing.assert_close(compiled(x), model(x))
        state = torch.get_rng_state()
        assert background.wait(300)
        assert torch.equal(torch.get_rng_state(), state)
        assert isinstance(swapped.current, compile_backend.Program)
        torch.testing.assert_close(compiled(x), model(x))
        model.down.weight.mul_(3.0)
        torch.testing.assert_close(compiled(x), model(x))
        model.down.bias = torch.nn.Parameter(torch.randn(12))
        torch.testing.assert_close(compiled(x), model(x))
    assert len(watched.made) == 1
    assert swapped.current.instead is None


def test_calls_go_on_while_a_program_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, model, x = Watched(), Bottleneck().eval(), torch.randn(5, 12)
    search, found, end = background.found_elsewhere, threading.Event(), threading.Event()

    def told(*args: Any) -> Any:
        program = search(*args)
        found.set()
        return program

    monkeypatch.setattr(background, "found_elsewhere", told)
    compiled = torch.compile(model, backend=watched, options=LATER)
    wrong: list[str] = []

    def calls() -> None:
        with torch.no_grad():
            expected = model(x)
            # The search has the processor; when it has found something, calls come one on another.
            while not end.wait(0.002 if found.is_set() else 0.1):
                try:
                    torch.testing.assert_close(compiled(x), expected)
                except Exception as error:
                    wrong.append(str(error))
                    return

    with torch.no_grad():
        compiled(x)
    threads = [threading.Thread(target=calls) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert background.wait(300)
    end.set()
    for thread in threads:
        thread.join()
    assert not wrong and found.is_set()
    assert isinstance(watched.made[0].current, compile_backend.Program)


@pytest.mark.rotating
def test_a_size_that_comes_again_is_searched_for_in_the_background() -> None:
    watched, model = Watched(), Bottleneck().eval()
    compiled = torch.compile(
        model, backend=watched, options={**LATER, "sizes": 1}, dynamic=True
    )
    with torch.no_grad():
        with Held():
            for rows in (5, 7, 7, 9, 9):
                x = torch.randn(rows, 12)
                torch.testing.assert_close(compiled(x), model(x))
        (by_size,) = (made for made in watched.made if isinstance(made, sizes.BySize))
        assert background.wait(300)
        (swapped,) = by_size.programs.values()
        assert isinstance(swapped, compile_backend.Swapped)
        assert isinstance(swapped.current, compile_backend.Program)
        x = torch.randn(7, 12)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.slow
def test_what_torch_computes_by_is_the_same_elsewhere() -> None:
    watched, model, x = Watched(), Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options=LATER)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        compiled(x)
        assert background.wait(300)
        got = compiled(x)
    assert isinstance(watched.made[0].current, compile_backend.Program)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.01)


@pytest.mark.rotating
def test_an_error_is_told_once_and_the_program_stays(tmp_path: Path) -> None:
    """The rule file is there when the option is checked, and gone when the search reads it."""
    rules = tmp_path / "mine.egg"
    rules.write_text(";; Status validated\n;; Numerics bitwise\n(ruleset mine)\n")
    watched, model, x = Watched(), Bottleneck().eval(), torch.randn(5, 12)
    compiled = torch.compile(model, backend=watched, options={**LATER, "rules": [rules]})
    with torch.no_grad(), pytest.warns(CompileWarning, match="RuleError") as caught:
        with Held():
            torch.testing.assert_close(compiled(x), model(x))
            rules.unlink()
        assert background.wait(300)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    assert len([w for w in caught if w.category is CompileWarning]) == 1
    assert not isinstance(watched.made[0].current, compile_backend.Program)


def test_nobody_searches_for_a_program_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Any] = []
    monkeypatch.setattr(background, "found_elsewhere", lambda *args: searches.append(args) or "")
    model, x = Bottleneck().eval(), torch.randn(5, 12)
    watched = Watched()
    compiled = torch.compile(copy.deepcopy(model), backend=watched, options=LATER)
    with torch.no_grad(), Held():
        compiled(x)
        del compiled
        watched.made.clear()
        torch._dynamo.reset()
        gc.collect()
    assert background.wait(300)
    assert not searches


def runs(script: str) -> tuple[int, str, list[psutil.Process]]:
    """Exit status, what was printed, and the processes that a script has left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, "EQSYNTH_LEFT": str(os.getpid())},
    )  # fmt: skip
    out, _ = process.communicate(timeout=300)

    def left() -> list[psutil.Process]:
        found = []
        for other in psutil.process_iter():
            with suppress(psutil.Error):
                if other.environ().get("EQSYNTH_LEFT") == str(os.getpid()):
                    found.append(other)
        return found

    psutil.wait_procs(left(), timeout=60)
    return process.returncode, out, left()


@pytest.mark.rotating
def test_the_exit_of_the_interpreter_gives_searches_up() -> None:
    """In the middle of one, with another that waits."""
    status, out, left = runs("""
        import torch
        from eqsynth import background
        from tests.compiled import Bottleneck
        from tests.test_background import LATER
        compiled = torch.compile(
            Bottleneck().eval(), backend="eqsynth", options={**LATER, "time_limit_s": 600.0})
        with torch.no_grad():
            compiled(torch.randn(5, 12))
            compiled(torch.randn(6, 12))
            compiled(torch.randn(6, 12))
        print("end", background.wait(0.5))
    """)
    assert (status, out.split()) == (0, ["end", "False"])
    assert not left
