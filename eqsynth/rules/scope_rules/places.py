"""Parses the indices in a rule of scopes, and records the names that they may use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from eqsynth.rules.scope_rules.cursor import Cursor, Token
from eqsynth.rules.scope_rules.syntax import Arithmetic, Extent, Named, Place, Whole

MAX_VARIABLES: Final = 8


@dataclass(frozen=True)
class Use:
    """A variable on the right side, and the iterators and groups in scope around it."""

    name: str
    offset: int
    around: frozenset[str]


@dataclass
class Names:
    """The names that were parsed so far.

    Attributes:
        left: iterator or group of the left side -> whether it is a group.
        around: the iterators and groups in scope at the parser's position.
        on_left: whether the parser is in the left side.
        any_reducer: whether the left side matches any reducer (``reduce``).
    """

    left: dict[str, bool] = field(default_factory=dict)
    bodies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    indices: list[str] = field(default_factory=list)
    around: frozenset[str] = frozenset()
    on_left: bool = True
    any_reducer: bool = False
    uses: list[Use] = field(default_factory=list)


class Places(Cursor):
    """The part of the parser that reads indices."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.names = Names()

    def index(self) -> Place:
        self.deeper()
        found = self.multiple()
        while self.has("+", "-"):
            sign = self.take().text
            found = Arithmetic(sign, found, self.multiple())  # type: ignore[arg-type]
        self.depth -= 1
        return found

    def multiple(self) -> Place:
        found = self.place()
        while self.has("*", "//", "%"):
            sign = self.take().text
            found = Arithmetic(sign, found, self.place())  # type: ignore[arg-type]
        return found

    def place(self) -> Place:
        token, names = self.take(), self.names
        if token.kind == "number":
            if not token.text.isdigit() or len(token.text) > 9:
                self.fail("no index", token, expected="an integer of nine digits at most")
            return Whole(int(token.text))
        if token.text == "-":
            self.deeper()
            negative = Arithmetic("-", Whole(0), self.place())
            self.depth -= 1
            return negative
        if token.text == "(":
            found = self.index()
            self.expect(")")
            return found
        if token.text == "#":
            token = self.take()
            if names.left.get(token.text) is not False:
                self.unknown(token, "iterator of the left side", self.iterators(names.left))
            return Extent(token.text)
        if token.kind != "name":
            self.fail("an index is missing", token, expected="k, E, #k, an integer")
        if token.text[0].isupper():
            self.index_variable(token)
        elif token.text not in names.around or names.left.get(token.text):
            if names.left.get(token.text) is False:
                hint = f"Reduce over {token.text} here, or put an index in its place."
                self.fail(f"{token.text} means nothing here", token, hint=hint)
            self.unknown(token, "iterator here", self.iterators({*names.around, *names.left}))
        return Named(token.text)

    def index_variable(self, token: Token) -> None:
        names = self.names
        if token.text in names.bodies:
            self.fail(f"{token.text} is a body, and no index", token, hint="Rename it.")
        if not names.on_left:
            self.known(token, names.indices, "variable for an index")
        elif token.text not in names.indices:
            alone = self.tokens[self.at - 2].text in ("==", "<=") and self.has("]")
            if not alone:
                self.fail(f"nothing says what {token.text} is", token,
                          expected="[k == E] or [0 <= E]")  # fmt: skip
            names.indices.append(token.text)
            self.count(token)

    def iterators(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.names.left.get(name)]

    def known(self, token: Token, names: Iterable[str], what: str) -> None:
        if token.text not in names:
            self.unknown(token, what, names)
        self.names.uses.append(Use(token.text, token.offset, self.names.around))

    def count(self, token: Token) -> None:
        if len(self.names.bodies) + len(self.names.indices) > MAX_VARIABLES:
            self.fail(f"more than {MAX_VARIABLES} variables", token)
