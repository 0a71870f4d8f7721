"""The command line ``eqsynth``: it calls the library, and prints results and errors.

Here all commands are put together. They are defined in ``programs.py``, ``bench.py``,
``tuning.py``, ``rules.py`` and ``error_reference.py``, and print by ``output.py``. Not here:
anything that decides what a program computes or which one is chosen.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from eqsynth.cli import programs, tuning
from eqsynth.cli.bench import bench
from eqsynth.cli.error_reference import print_errors
from eqsynth.cli.rules import rules_app

EXIT_CODES = """
Exit codes: 0, done; 1, a rule was refused by the checker, or bench has no right result of eqsynth;
2, a model, file, name or argument can't be used; 130, Ctrl-C before there was a result.
"""

app = typer.Typer(no_args_is_help=True, epilog=EXIT_CODES, rich_markup_mode=None)
app.add_typer(rules_app, name="rules")
for command in (programs.optimize, programs.run, programs.explain, programs.profile, bench):
    app.command()(command)
app.command()(tuning.tune)
app.command("errors")(print_errors)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"eqsynth {metadata.version('eqsynth')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Makes tensor programs faster without changing what they compute.

    \b
    eqsynth optimize model.pt2 -o fast.eqsynth   searches, checks, and writes
    eqsynth explain fast.eqsynth                 what was changed, by which rules
    eqsynth run fast.eqsynth --inputs x.pt       runs it, and tells the time
    """
