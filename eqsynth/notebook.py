"""HTML that a notebook shows for reports, expressions and programs.

Text that comes from the user (names, rules) is escaped, so it never becomes markup. Not here: the
page of ``report.to_html``.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

# characters; a longer text is cut, and the number of missing characters is shown
_LONGEST: Final = 20_000


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns: a name and a text."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(_cut(text))}</td></tr>'
        for name, text in rows
    )
    return f"<table>{cells}</table>"


def code(text: str) -> str:
    """Return preformatted text."""
    return f"<pre>{escape(_cut(text))}</pre>"


def folded(title: str, text: str) -> str:
    """Return a title that unfolds preformatted text at a click."""
    return f"<details><summary>{escape(title)}</summary>{code(text)}</details>"


def _cut(text: str) -> str:
    left = len(text) - _LONGEST
    return text if left <= 0 else f"{text[:_LONGEST]}\n… {left:,} more characters"
