"""How commands print: text, tables, JSON, errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from eqsynth.errors import EqsynthError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Certify = Annotated[
    bool,
    typer.Option(
        "--certify", help="Check each equality of the search by itself; the report counts them."
    ),
]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()) -> None:
    """Print a table. No cell is cut; in a terminal that is wide enough the last column is wrapped.

    Args:
        red: which rows are printed in red.
    """
    console = Console()
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    if console.is_terminal and sum(widths[:-1]) + 2 * len(widths) + 20 <= console.width:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns[:-1]:
            table.add_column(column, no_wrap=True)
        table.add_column(columns[-1])
        for number, row in enumerate(rows):
            table.add_row(*map(Text, row), style="red" if red and red[number] else Style.null())
        console.print(table)
        return
    for number, row in enumerate((columns, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say(line.rstrip(), "red" if number and red and red[number - 1] else "")


def say(text: str, style: str = "") -> None:
    """Print a text unchanged: no lines are wrapped, and rich's markup isn't interpreted."""
    Console().print(Text(text, style=style), soft_wrap=True)


def say_aside(text: str) -> None:
    """Print a text on standard error, unchanged."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


def fail(error: EqsynthError) -> NoReturn:
    """Print an error on standard error and end the command with exit code 2."""
    Console(stderr=True).print(Text(str(error), style="red"), soft_wrap=True)
    raise typer.Exit(2)


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2))
