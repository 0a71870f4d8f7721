"""A progress bar on the terminal, or nothing if there is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """One line on standard error: the stage, the bar, the elapsed time, and a text such as the best
    time so far.

    Args:
        show: None shows the line if standard error is a terminal.
    """

    def __init__(self, show: bool | None = None) -> None:
        self._bar: Bar | None = None
        if sys.stderr.isatty() if show is None else show:
            self._bar = Bar(
                TextColumn("{task.description:<9}"), BarColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[told]}"),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task("capture", total=None, told="")

    def stage(self, name: str) -> None:
        """Start a stage: show its name, and set the bar to 0."""
        if self._bar is not None:
            self._bar.update(self._task, description=name, completed=0, total=None, told="")

    def told(self, text: str) -> None:
        """Show a text for the present stage, such as the best time so far."""
        if self._bar is not None:
            self._bar.update(self._task, told=text)

    def total(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, total=count)

    def advance(self, steps: int = 1) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
