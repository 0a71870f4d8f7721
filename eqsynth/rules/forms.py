"""A rule file as text: top-level forms, with their places, and the comments above them.

Nothing here knows what a form means. Files may come from strangers, so size, depth and literals
are bounded before the text reaches egglog's parser, which overflows its stack on deep nesting.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from eqsynth.errors import RuleError

MAX_FILE_BYTES = 1 << 20
# Each span of the parser carries a copy of its text: a form costs the square of its length.
MAX_FORM_CHARS = 1 << 14
MAX_DEPTH = 200

_TOKEN = re.compile(r""";[^\n]*|"(?:\\.|[^"\\])*"|[()"]|[^\s();"]+""", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+\Z")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
_HEADER_FIELD = re.compile(r";+\s*(Numerics|Status)\s+(\w+(?:\s*\([^)]*\))?)")


@dataclass(frozen=True)
class Form:
    """One top-level form; `line` and `column` count from 1."""

    head: str
    text: str
    file: str
    line: int
    column: int
    comment: str

    def at(self, byte_offset: int) -> tuple[int, int]:
        """The place in the file of an offset into the form's UTF-8 text, as egglog reports it."""
        before = self.text.encode()[:byte_offset].decode(errors="ignore")
        newline = before.rfind("\n")
        if newline < 0:
            return self.line, self.column + len(before)
        return self.line + before.count("\n"), len(before) - newline

    def error(
        self, what: str, byte_offset: int = 0, *, expected: str = "", hint: str = ""
    ) -> RuleError:
        line, column = self.at(byte_offset)
        shown = " ".join(self.text.split())
        got = shown if len(shown) <= 200 else shown[:197] + "..."
        return RuleError(
            what, file=self.file, line=line, column=column, got=got, expected=expected, hint=hint
        )


def split_forms(text: str, file: str) -> list[Form]:
    """Cuts a rule file into its top-level forms.

    Raises:
        RuleError: unbalanced parentheses, an unclosed string, a form too deep or too long, a
            number that does not fit its sort, text outside of forms.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_FILE_BYTES:
        raise RuleError(
            "rule file is too large",
            file=file,
            got=f"{len(text)} characters",
            expected=f"at most {MAX_FILE_BYTES} bytes",
            hint="Split it by family of rules.",
        )
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    lines = text.split("\n")
    forms: list[Form] = []
    depth, begin, begin_line, head = 0, 0, 0, ""
    suspect: int | None = None
    line = 0
    for token in _TOKEN.finditer(text):
        word, offset = token.group(), token.start()
        while line + 1 < len(starts) and starts[line + 1] <= offset:
            line += 1
        column = offset - starts[line] + 1

        def fail(
            what: str,
            hint: str = "",
            *,
            at: tuple[int, int] = (line + 1, column),
            got: str = word[:80],
        ) -> RuleError:
            return RuleError(what, file=file, line=at[0], column=at[1], got=got, hint=hint)

        if word.startswith(";"):
            continue
        if word == "(":
            if depth == 0:
                begin, begin_line, head, suspect = offset, line, "", None
            elif column == 1 and suspect is None:
                suspect = line + 1
            depth += 1
            if depth > MAX_DEPTH:
                raise fail(f"form is nested deeper than {MAX_DEPTH} levels", "Flatten it.")
        elif word == ")":
            if depth == 0:
                raise fail("closing parenthesis without an opening one", "Remove it.")
            depth -= 1
            if depth == 0:
                body = text[begin : offset + 1]
                place = (begin_line + 1, begin - starts[begin_line] + 1)
                if len(body) > MAX_FORM_CHARS:
                    raise fail(
                        f"form is longer than {MAX_FORM_CHARS} characters",
                        "Split it into several.",
                        at=place,
                        got=body[:80],
                    )
                comment = _comment_above(lines, begin_line)
                forms.append(Form(head, body, file, *place, comment))
        elif word == '"':
            raise fail("string is not closed", 'Add the closing ".')
        elif depth == 0:
            raise fail("text outside of a form", "Put it in a comment (;;) or in a form.")
        else:
            if depth == 1 and not head:
                head = word
            _check_number(word, fail)
    if depth:
        hint = f"The next form begins on line {suspect} before this one ends. " if suspect else ""
        raise RuleError(
            "parenthesis is not closed",
            file=file,
            line=begin_line + 1,
            column=begin - starts[begin_line] + 1,
            got=lines[begin_line][:80],
            expected=f"{depth} more closing parentheses",
            hint=hint + "Close the form.",
        )
    return forms


def header_fields(text: str) -> dict[str, str]:
    """The `;; Numerics` and `;; Status` lines of the comment that opens a file."""
    fields: dict[str, str] = {}
    for line in text.lstrip().split("\n"):
        if not line.startswith(";"):
            break
        match = _HEADER_FIELD.match(line)
        if match:
            fields.setdefault(match.group(1).lower(), match.group(2))
    return fields


def _check_number(word: str, fail: object) -> None:
    assert callable(fail)
    if _INTEGER.match(word):
        # Length first: int() of a very long text is itself an error in Python.
        if len(word) > 20 or not -(2**63) <= int(word) < 2**63:
            raise fail("integer does not fit in 64 bits", "Use a smaller one.")
    elif _NUMBER.match(word) and not math.isfinite(float(word)):
        raise fail("number does not fit in a double", "Write inf or -inf if that is meant.")


def _comment_above(lines: list[str], form_line: int) -> str:
    """The `;;` paragraph above a form. Forms that follow each other without a blank line share
    the paragraph above the first: a law is two relations and two rules.
    """
    paragraph: list[str] = []
    for line in reversed(lines[:form_line]):
        stripped = line.strip()
        if not stripped or (paragraph and not stripped.startswith(";")):
            break
        if stripped.startswith(";"):
            content = stripped.lstrip(";").strip()
            if content.startswith("----"):
                break
            paragraph.append(content)
    return "\n".join(reversed(paragraph)).strip()
