"""What a notebook shows of reports, expressions and programs: HTML.

Whatever a user has named is text here and never markup. Not here: the page of ``report.to_html``.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

_LONGEST: Final = 20_000  # characters; what is longer is cut, and says so


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Rows of a name and a text."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(_cut(text))}</td></tr>'
        for name, text in rows
    )
    return f"<table>{cells}</table>"


def code(text: str) -> str:
    """Lines as they are."""
    return f"<pre>{escape(_cut(text))}</pre>"


def folded(title: str, text: str) -> str:
    """Lines that a click shows."""
    return f"<details><summary>{escape(title)}</summary>{code(text)}</details>"


def _cut(text: str) -> str:
    left = len(text) - _LONGEST
    return text if left <= 0 else f"{text[:_LONGEST]}\n… {left:,} more characters"
