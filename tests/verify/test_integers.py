"""Questions to Z3: a Ctrl-C while it computes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

z3 = pytest.importorskip("z3")

from eqsynth.verify.integers import Integers  # noqa: E402


@pytest.mark.rotating
def test_an_interrupt_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Z3 computes Z3 isn't the one to take it: the question would have no answer, and the
    program would go on."""
    begun, check = threading.Event(), z3.Solver.check

    def checked(solver: z3.Solver, *assumptions: Any) -> Any:
        begun.set()
        return check(solver, *assumptions)

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(z3.Solver, "check", checked)
    i = Integers()
    x, y, z = (i.fresh(name) for name in "xyz")
    interrupting = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupting.start()
        i.ask(x * x * x + y * y * y + z * z * z != 114)
        interrupting.join()
        time.sleep(0.1)
