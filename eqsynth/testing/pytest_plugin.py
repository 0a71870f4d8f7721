"""The pytest plugin: every rule of an ``.egg`` file is a test.

    pytest rules/            # a test for each rule that unites terms, and one for the linter
    pytest mine.egg -k name

A file is collected if its first line is that of a rule file (``;; name.egg -- …``), or if it is
named on the command line. A ``conftest.py`` can exclude files by ``collect_ignore_glob``, as for
any plugin. Checker and linter are imported only when a rule file is collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from eqsynth.rules import RuleSet

_HEADER = re.compile(rb";; [\w.-]+\.egg -- ")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("eqsynth")
    group.addoption(
        "--rule-samples", type=int, default=0, metavar="N",
        help="equalities of a rule that are judged at least (default: the checker's)",
    )  # fmt: skip


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> RuleFile | None:
    if file_path.suffix != ".egg":
        return None
    named = any(Path(str(arg).split("::")[0]).resolve() == file_path.resolve()
                for arg in parent.config.args)  # fmt: skip
    if not named and not _has_header(file_path):
        return None
    return RuleFile.from_parent(parent, path=file_path)


def _has_header(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return _HEADER.match(stream.read(200)) is not None
    except OSError:
        return False


class RuleFile(pytest.File):
    """A rule file: one item for the linter, and one for each rule that unites terms."""

    def collect(self) -> Iterator[pytest.Item]:
        from eqsynth.errors import RuleError
        from eqsynth.testing.rule_files import load_for_check
        from eqsynth.testing.soundness import unites

        try:
            rules, names = load_for_check([self.path])
        except RuleError as error:
            raise self.CollectError(str(error)) from None
        yield LintItem.from_parent(self, name="lint")
        for name in names:
            if unites(rules[name]):
                yield RuleItem.from_parent(self, name=name, rules=rules)


class LintItem(pytest.Item):
    """The linter's findings in a file."""

    def runtest(self) -> None:
        from eqsynth.testing.rule_files import lint_for_check

        found = lint_for_check([self.path])
        if found:
            raise LintFailure("\n".join(map(str, found)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        if isinstance(excinfo.value, LintFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"lint {self.path.name}"


class LintFailure(AssertionError):
    """The linter's findings in a file, as text."""


class RuleItem(pytest.Item):
    """The check of one rule."""

    def __init__(self, *, rules: RuleSet, **options: Any) -> None:
        super().__init__(**options)
        self.rules = rules

    def runtest(self) -> None:
        from eqsynth.testing.soundness import SAMPLES, check_rule

        samples = self.config.getoption("--rule-samples") or SAMPLES
        checked = check_rule(self.rules, self.rules[self.name], samples=samples)
        self.add_report_section("call", "rule", f"{checked.accepted} equalities {checked.method}")
        if checked.error is not None:
            raise checked.error

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        from eqsynth.errors import EqsynthError

        if isinstance(excinfo.value, EqsynthError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.rules[self.name].line - 1, f"rule {self.name}"
