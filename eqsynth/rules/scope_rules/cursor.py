"""The tokens of a rule of scopes, a cursor over them, and the parser's errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from eqsynth.rules.forms import nearest

MAX_DEPTH: Final = 24

_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<symbol>=>|==|<=|//|[][{}(),*#+<%=-])|(?P<space>\s+)|(?P<wrong>.)"
)
_FORM: Final = "[*x] = sum(k, *y) F(k) * [k == E] => [*x] = sum(*y) F(E) if 0 <= E < #k"


class TextError(Exception):
    """The text isn't a rule of scopes; the loader adds the file and line.

    Attributes:
        offset: the mistake's place in the text.
    """

    def __init__(self, what: str, offset: int, *, got: str = "", expected: str = "",
                 hint: str = "") -> None:  # fmt: skip
        super().__init__(what)
        self.what, self.offset, self.got, self.expected, self.hint = (
            what, offset, got, expected, hint or f"A rule of scopes reads {_FORM}"
        )  # fmt: skip


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    offset: int


class Cursor:
    """A text, and the parser's position in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.next
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def has(self, *texts: str) -> bool:
        return self.next.text in texts and self.next.kind != "end"

    def expect(self, text: str) -> Token:
        if not self.has(text):
            self.fail(f"{text} is missing", expected=text)
        return self.take()

    def fail(self, what: str, token: Token | None = None, expected: str = "",
             hint: str = "") -> NoReturn:  # fmt: skip
        token = token or self.next
        raise TextError(what, token.offset, got=token.text or "the end of the text",
                        expected=expected, hint=hint)  # fmt: skip

    def unknown(self, token: Token, what: str, names: Iterable[str]) -> NoReturn:
        known = sorted(set(names))
        near = nearest(token.text, known)
        hint = near if near.startswith("Did") else f"Known here: {', '.join(known) or 'none'}."
        self.fail(f"{token.text} is no {what}", token, expected=", ".join(known), hint=hint)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels", hint="Flatten it.")


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "wrong"
        if kind == "wrong":
            raise TextError("a character means nothing here", match.start(), got=match.group())
        if kind != "space":
            yield Token(kind, match.group(), match.start())
    yield Token("end", "", len(text))
