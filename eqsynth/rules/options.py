"""Options of a form, such as ``:name "x"``, and forms that another form expands to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eqsynth.errors import RuleError
from eqsynth.rules.forms import Form, nearest

WORD: Final = re.compile(r';[^\n]*|"(?:\\.|[^"\\])*"|[()]|[^\s();"]+')


@dataclass(frozen=True)
class Piece:
    """A part of a form's text.

    Attributes:
        text: the part as it is written, a group with its parentheses.
        offset: where the part begins, in bytes of the form's text.
    """

    text: str
    offset: int


@dataclass(frozen=True)
class InPlaceOf(Form):
    """A form that the author's form expands to. An error in it is reported at its place in the
    author's form.

    Attributes:
        source: the author's form.
        pieces: the parts of the author's text in this form, each with its offset here.
    """

    source: Form
    pieces: tuple[tuple[int, Piece], ...] = ()

    def error(self, what: str, byte_offset: int = 0, **more: Any) -> RuleError:
        for begin, piece in self.pieces:
            if begin <= byte_offset < begin + len(piece.text.encode()):
                return self.source.error(what, piece.offset + byte_offset - begin, **more)
        return self.source.error(what, **more)


def in_place_of(form: Form, parts: Sequence[str | Piece]) -> InPlaceOf:
    """Return a form joined from new texts and parts of the author's form."""
    text, pieces = "", list[tuple[int, Piece]]()
    for part in parts:
        if isinstance(part, Piece):
            pieces.append((len(text.encode()), part))
        text += part if isinstance(part, str) else part.text
    head = text[1:].split(None, 1)[0]
    return InPlaceOf(head, text, form.file, form.line, form.column, form.comment, form,
                     tuple(pieces))  # fmt: skip


def words_of(form: Form) -> list[Piece]:
    """Return the parts of a form after its head: words, strings, and groups in parentheses.

    >>> form = Form("ask", '(ask x :of (A b) :name "n")', "f", 1, 1, "")
    >>> [piece.text for piece in words_of(form)]
    ['x', ':of', '(A b)', ':name', '"n"']
    """
    found: list[Piece] = []
    depth = begin = 0
    tokens = [token for token in WORD.finditer(form.text) if not token.group().startswith(";")]
    for token in tokens[2:-1]:
        word = token.group()
        if depth == 0:
            begin = token.start()
        depth += (word == "(") - (word == ")")
        if depth == 0:
            offset = len(form.text[:begin].encode())
            found.append(Piece(form.text[begin : token.end()], offset))
    return found


def options_of(form: Form, words: Sequence[Piece], known: Collection[str]) -> Mapping[str, Piece]:
    """Return the options among words, by their names.

    Raises:
        RuleError: an option is unknown, is given twice, or has no value.
    """
    found: dict[str, Piece] = {}
    key: Piece | None = None
    for word in words:
        if key is None:
            if word.text not in known or word.text in found:
                left = [option for option in known if option not in found]
                near = nearest(word.text, left)
                raise form.error(f"{word.text} isn't expected here", word.offset,
                                 expected=", ".join(left),
                                 hint=near if near.startswith("Did") else "Remove it.")  # fmt: skip
            key = word
            continue
        if word.text.startswith(":"):
            break
        found[key.text], key = word, None
    if key is not None:
        raise form.error(f"{key.text} has no value", key.offset, expected=f"{key.text} and a word",
                         hint="Say which.")  # fmt: skip
    return found


def said_once(form: Form) -> None:
    """Check that no option of a form is said twice: the engine would take the last, and forget the
    condition before it.

    Raises:
        RuleError: one is.
    """
    said: set[str] = set()
    for word in words_of(form):
        if word.text in said:
            raise form.error(f"{word.text} is said twice", word.offset, hint="Say it once; :when "
                             "takes several facts, all of which have to hold.")  # fmt: skip
        if word.text.startswith(":"):
            said.add(word.text)
