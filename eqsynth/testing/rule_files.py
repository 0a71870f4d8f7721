"""The check of whole rule files: loads them, and checks their rules, in several processes if asked.

Not here: the check of one rule (``soundness.py``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from os.path import realpath  # Path.resolve raises an error for a link to itself
from pathlib import Path

from eqsynth.errors import RuleError
from eqsynth.rules import DEFAULT_FILES, Rule, RuleSet, lint, load_rules, rules_dir
from eqsynth.testing.soundness import LIMIT_S, SAMPLES, Checked, check_rule, unites


def check_rules(
    rules: RuleSet, names: Sequence[str], *, samples: int = SAMPLES, processes: int = 1,
    limit_s: float = LIMIT_S,
) -> Iterator[Checked]:  # fmt: skip
    """Check the rules of these names that unite terms, in order.

    Args:
        samples: the number of instances that are judged for each rule, at least.
        processes: the number of processes, which are spawned and share the rules.
        limit_s: the CPU seconds that each rule may take.

    Yields:
        The result for each rule, once it is checked.
    """
    wanted = to_check(rules, names)
    if processes < 2 or len(wanted) < 2 * processes:
        for rule in wanted:
            yield check_rule(rules, rule, samples=samples, limit_s=limit_s)
        return
    with _deaf_to_interrupts():
        pool = multiprocessing.get_context("spawn").Pool(
            processes, _share, (rules, samples, limit_s)
        )
    # Leaving the block ends the processes, also after Ctrl-C.
    with pool:
        yield from pool.imap(_check_shared, [rule.name for rule in wanted])


def to_check(rules: RuleSet, names: Sequence[str], part: tuple[int, int] = (1, 1)) -> list[Rule]:
    """The rules of these names that unite terms, in order, or one of n parts of them.

    Args:
        part: (k, n) for the k-th part of n: every n-th rule, beginning with the k-th.
    """
    asked = set(names)
    wanted = [rule for rule in rules.rules if unites(rule) and rule.name in asked]
    first, step = part
    return wanted[first - 1 :: step]


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Start processes inside of this block that ignore Ctrl-C; this process gets it afterwards.

    The signal mask is inherited and makes the processes ignore Ctrl-C. In this process another
    thread may still receive it, and would interrupt the start of a process halfway. So a handler
    notes it, and raises it when the block ends.
    """
    resource_tracker.ensure_running()  # starting it inside of the block would unblock the signal
    heard: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda *_: heard.append(1)) if main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
            if heard:
                signal.raise_signal(signal.SIGINT)


_shared: list[tuple[RuleSet, int, float]] = []


def _share(rules: RuleSet, samples: int, limit_s: float) -> None:
    _shared.append((rules, samples, limit_s))


def _check_shared(name: str) -> Checked:
    rules, samples, limit_s = _shared[-1]
    return check_rule(rules, rules[name], samples=samples, limit_s=limit_s)


def processes_to_use() -> int:
    """The number of cores that this process may use, at most four."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))


def load_for_check(files: Sequence[str | Path]) -> tuple[RuleSet, list[str]]:
    """Load the default rules and those of the given files and directories.

    Returns:
        All rules, and the names of the given files' rules.

    Raises:
        RuleError: a file can't be used, or there is none.
    """
    paths = rule_files(files)
    rules = load_rules(_with_ours(paths))
    wanted = set(map(realpath, paths))
    return rules, [rule.name for rule in rules.rules if realpath(rule.file) in wanted]


def lint_for_check(files: Sequence[str | Path]) -> list[RuleError]:
    """The linter's findings in files and directories, which are loaded after the default rules.

    Raises:
        RuleError: there is no file.
    """
    paths = rule_files(files)
    wanted = set(map(realpath, paths))
    return [found for found in lint(_with_ours(paths)) if realpath(found.file) in wanted]


def _with_ours(paths: Sequence[Path]) -> list[str | Path]:
    own = {realpath(rules_dir() / name) for name in DEFAULT_FILES}
    return [*DEFAULT_FILES, *(path for path in paths if realpath(path) not in own)]


def further_files(files: Sequence[str | Path]) -> list[str | Path]:
    """The rule files in the given files and directories that aren't eqsynth's own.

    Raises:
        RuleError: there is no rule file in what is given.
    """
    return _with_ours(rule_files(files))[len(DEFAULT_FILES) :] if files else []


def rule_files(files: Sequence[str | Path]) -> list[Path]:
    """The given files, and the ``.egg`` files in the given directories, in order.

    Raises:
        RuleError: there is none.
    """
    found: list[Path] = []
    for name in files:
        # An absolute path, so that a user's file with the name of a default file isn't mistaken for
        # that one.
        path = Path(name).absolute() if str(name) in DEFAULT_FILES else Path(name)
        found += sorted(path.rglob("*.egg")) if path.is_dir() else [path]
    if not found:
        raise RuleError(
            "no rule files", got=" ".join(map(str, files)), expected="files that end in .egg",
            hint="Name a file, or a directory that holds some.",
        )  # fmt: skip
    return list(dict.fromkeys(found))


def assert_rule_sound(
    rules: str | Path | RuleSet, name: str | None = None, *, samples: int = SAMPLES
) -> list[Checked]:
    """Check that the rules of a file or of a rule set are sound.

    Args:
        rules: a rule file, which is loaded after eqsynth's own; or loaded rules.
        name: the only rule to check; by default all.
        samples: the number of instances that are judged for each rule, at least.

    Raises:
        UnsoundRule: a rule fails; the error has the smallest counterexample that was found.
        RuleError: a file can't be loaded, or no rule has this name.

    >>> assert_rule_sound("simplify.egg", "relu-of-relu")[0].method
    'tested'
    """
    if isinstance(rules, RuleSet):
        loaded, names = rules, list(rules.names)
    else:
        path = Path(rules)
        if path.parent == Path() and not path.is_file():
            path = rules_dir() / path
        loaded, names = load_for_check([path])
    if name is not None:
        names = [loaded[name].name]
    found = []
    for checked in check_rules(loaded, names, samples=samples):
        if checked.error is not None:
            raise checked.error
        found.append(checked)
    return found
