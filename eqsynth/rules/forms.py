"""Splits a rule file into its top-level forms, with their places and the comments above them.

Not here: the meaning of a form (``loader.py``). Files may come from strangers, so the number of
forms, their size, depth and literals are bounded before the text reaches egglog's parser, which
overflows its stack on deep nesting. The bounds are many times larger than any real file needs (300
lines), and even the worst file loads within seconds.
"""

from __future__ import annotations

import difflib
import math
import re
import stat
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eqsynth.errors import RuleError

MAX_FILE_BYTES = 1 << 18
# The engine's cost of a declaration grows with the number of declarations.
MAX_FORMS = 1000
# Each span of the parser holds a copy of the form's text, so time grows with the square of its
# length.
MAX_FORM_CHARS = 1 << 12
MAX_WORD_CHARS = 128
MAX_DEPTH = 200

_TOKEN = re.compile(r""";[^\n]*|"(?:\\.|[^"\\])*"|[()"]|[^\s();"]+""", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+\Z")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
# The repetitions are bounded, so that matching a stranger's comment doesn't take quadratic time.
_OVERRIDE = re.compile(
    r"\((numerics|status): {0,8}([^()\s]{1,40}(?: {0,8}\([^()]{0,40}\))?) {0,8}\)"
)
_HEADER_FIELD = re.compile(r";+\s*(Numerics|Status)\s+([\w-]+(?:\s*\([^)]*\))?)")


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
        """Return line and column in the file of an offset into the form's UTF-8 text, which egglog
        reports."""
        before = self.text.encode()[:byte_offset].decode(errors="ignore")
        newline = before.rfind("\n")
        if newline < 0:
            return self.line, self.column + len(before)
        return self.line + before.count("\n"), len(before) - newline

    def find(self, word: str) -> int:
        """Return the byte offset of a word's last occurrence in the form; 0 if there is none."""
        places = [match.start() for match in _TOKEN.finditer(self.text) if match.group() == word]
        return len(self.text[: places[-1]].encode()) if places else 0

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
    """Split a rule file into its top-level forms.

    Raises:
        RuleError: unbalanced parentheses, an unclosed string, a form too deep or too long, a
            number that does not fit its sort, text outside of forms.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_FILE_BYTES:
        raise _too_large(file)
    _check_characters(text, file)
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    forms: list[Form] = []
    comments: list[tuple[int, int]] = []
    depth, begin, begin_line, end, head, comment = 0, 0, 0, 0, "", ""
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
            if depth:
                comments.append((offset - begin, token.end() - begin))
            continue
        if word == "(":
            if depth == 0:
                begin, begin_line, head, suspect = offset, line, "", None
                comments = []
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
                if len(forms) == MAX_FORMS:
                    raise fail(
                        f"file has more than {MAX_FORMS} forms",
                        "Split it by family of rules.",
                        at=place,
                        got=body[:80],
                    )
                comment = _comment_above(text[end:begin] if forms else "\n" + text[:begin], comment)
                end = offset + 1
                body = _blanked(body, comments)
                forms.append(Form(head, body, file, *place, comment))
        elif word == '"':
            raise fail("string is not closed", 'Add the closing ".')
        elif '"' in (word[0], text[token.end() : token.end() + 1]) and _runs_on(text, token):
            raise fail("string and word run into each other", "Put a space between them.")
        elif depth == 0:
            raise fail("text outside of a form", "Put it in a comment (;;) or in a form.")
        else:
            if depth == 1 and not head:
                head = word
            _check_number(word, fail)
            if len(word) > MAX_WORD_CHARS and not word.startswith('"'):
                raise fail(f"word is longer than {MAX_WORD_CHARS} characters", "Shorten it.")
    if depth:
        hint = f"The next form begins on line {suspect} before this one ends. " if suspect else ""
        raise RuleError(
            "parenthesis is not closed",
            file=file,
            line=begin_line + 1,
            column=begin - starts[begin_line] + 1,
            got=text[begin:].split("\n", 1)[0][:80],
            expected=f"{depth} more closing parentheses",
            hint=hint + "Close the form.",
        )
    return forms


def header_fields(text: str) -> dict[str, str]:
    """Return the values of the `;; Numerics` and `;; Status` lines in a file's first comment."""
    fields: dict[str, str] = {}
    for line in text.lstrip().split("\n"):
        if not line.startswith(";"):
            break
        match = _HEADER_FIELD.match(line)
        if match:
            fields.setdefault(match.group(1).lower(), match.group(2))
    return fields


def own_fields(form: Form) -> dict[str, str]:
    """Return the fields that a rule's comment sets for this rule: `(numerics: cancels)`,
    `(status: unproved)`.

    Raises:
        RuleError: a field is misspelt.
    """
    found = _OVERRIDE.findall(form.comment)
    meant = form.comment.count("(numerics:") + form.comment.count("(status:")
    if len(found) != meant:
        raise form.error(
            "comment has a numerics or status that cannot be read",
            expected="(numerics: cancels) or (status: unproved)",
            hint="Write one word, and the bound of approx in parentheses.",
        )
    return dict(found)


def _check_number(word: str, fail: object) -> None:
    assert callable(fail)
    if _INTEGER.match(word):
        # Check the length first: int() of a very long text raises an error.
        if len(word) > 20 or not -(2**63) <= int(word) < 2**63:
            raise fail("integer does not fit in 64 bits", "Use a smaller one.")
    elif _NUMBER.match(word) and not math.isfinite(float(word)):
        raise fail("number does not fit in a double", "Write inf or -inf if that is meant.")


def _blanked(body: str, comments: list[tuple[int, int]]) -> str:
    """Replace the form's comments by blanks: egglog's parser recognizes fewer of them."""
    characters = list(body)
    for begin, end in comments:
        characters[begin:end] = " " * (end - begin)
    return "".join(characters)


def _runs_on(text: str, token: re.Match[str]) -> bool:
    """Whether a word and a string touch without a space: egglog's parser would read one word,
    including the quotes."""
    before, after = text[token.start() - 1 : token.start()], text[token.end() : token.end() + 1]
    if token.group().startswith('"'):
        return bool(after and after not in " \t\r\n();")
    return after == '"' or before == '"'


def _too_large(file: str) -> RuleError:
    return RuleError(
        "rule file is too large",
        file=file,
        expected=f"at most {MAX_FILE_BYTES} bytes",
        hint="Split it by family of rules.",
    )


def _check_characters(text: str, file: str) -> None:
    """Refuses what a reader doesn't see, and could be misled by: control characters, invisible
    ones, and those that turn the direction of writing.
    """
    for offset, character in enumerate(text):
        if character.isprintable() or character in "\t\n\r":
            continue
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            line = text.count("\n", 0, offset)
            raise RuleError(
                "rule file contains an invisible character",
                file=file,
                line=line + 1,
                column=offset - (text.rfind("\n", 0, offset) + 1) + 1,
                got=f"U+{ord(character):04X}",
                expected="text",
                hint="Remove it.",
            )


def _comment_above(gap: str, shared: str) -> str:
    """The `;;` paragraph above a form, from the text between the form and the one before it.

    Forms that follow each other without a blank line share the paragraph above the first
    (`shared`): a law is two relations and two rules.
    """
    between = gap.split("\n")[1:-1] if "\n" in gap else []
    if not between:
        return shared
    paragraph: list[str] = []
    for line in reversed(between):
        content = line.strip().lstrip(";").strip()
        if not line.strip() or content.startswith("----"):
            break
        paragraph.append(content)
    return "\n".join(reversed(paragraph)).strip()


def read_text(path: Path) -> str:
    """A rule file's text, its size bounded before it is read.

    Raises:
        RuleError: no such file, no plain file, too large, or not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # Reading a pipe or a device might never end.
            raise RuleError(
                "this is no rule file", file=str(path), expected="a plain file", hint="Check it."
            )
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise _too_large(str(path))
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise RuleError(
                "rule file is not UTF-8",
                file=str(path),
                got=f"byte {data[error.start]:#x} at offset {error.start}",
                hint="Save it as UTF-8.",
            ) from error
        # A ValueError: a path that holds a NUL.
        got = (error.strerror or "") if isinstance(error, OSError) else str(error)
        raise RuleError(
            "rule file cannot be read", file=repr(str(path))[1:-1], got=got, hint="Check it."
        ) from error


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint with the name among ``names`` that was probably meant."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else "Declare it, or load its file before this."
