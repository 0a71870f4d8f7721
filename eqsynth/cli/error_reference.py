"""``eqsynth errors``: the page ``docs/errors.md``, with every error that eqsynth raises on purpose.

The page is made from the classes in ``eqsynth/errors.py``: names, docstrings and fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import typer

from eqsynth import errors

_HEAD = """\
# Errors and warnings

Made from `eqsynth/errors.py` by `eqsynth errors > docs/errors.md`; a test holds the two together.

Everything that eqsynth raises on purpose is an `EqsynthError`. A message has parts, which are
fields: `what` went wrong, `where`, what was `got`, what was `expected`, and a `hint` at what to do.
A field that says nothing is empty. `str(error)` puts them together:

    try:
        program = eqsynth.optimize(model, (x,))
    except eqsynth.EqsynthError as error:
        print(error.what, error.where, error.hint)

Where a search, a kernel or a check fails, `optimize` raises nothing: it gives the original program
back, and `program.report.reason` says why. A budget that ran out is no error either;
`program.report.stop` names it.
"""


def reference() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(_entry(kind) for kind in _kinds())])


def print_errors() -> None:
    """Prints every error and warning that eqsynth raises, with its fields.

    eqsynth errors > docs/errors.md
    """
    typer.echo(reference(), nl=False)


def _kinds() -> Iterator[type[BaseException]]:
    """Errors in the order of the file, then warnings."""
    own = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
    ]
    yield from (kind for kind in own if not issubclass(kind, Warning))
    yield from (kind for kind in own if issubclass(kind, Warning))


def _entry(kind: type[BaseException]) -> str:
    lines = [f"## {kind.__name__}", "", f"*{_parents(kind)}*", "", _said(kind), ""]
    fields = _fields(kind)
    if fields:
        lines += [f"Fields of its own: {', '.join(f'`{name}`' for name in fields)}.", ""]
    return "\n".join(lines)


def _parents(kind: type[BaseException]) -> str:
    return ", ".join(f"`{base.__name__}`" for base in kind.__bases__)


def _said(kind: type[BaseException]) -> str:
    """The docstring of an error as Markdown; its ``Attributes:`` section becomes a list."""
    text = inspect.cleandoc(kind.__doc__ or "").replace("``", "`")
    body, _, attributes = text.partition("Attributes:\n")
    items = re.split(r"\n(?=    \w+:)", attributes.rstrip()) if attributes else []
    listed = [re.sub(r"\s+", " ", item.strip()) for item in items]
    listed = [re.sub(r"^(\w+):", r"- `\1`:", item) for item in listed]
    return "\n".join([body.rstrip(), *(["", *listed] if listed else [])])


def _fields(kind: type[BaseException]) -> list[str]:
    if "__init__" not in vars(kind):
        return []
    taken = set(inspect.signature(errors.EqsynthError.__init__).parameters)
    return [
        name
        for name in inspect.signature(kind.__init__).parameters
        if kind is not errors.EqsynthError and name not in taken
    ]
