"""The options of ``torch.compile(backend="eqsynth")``, checked before anything is searched.

Options are the arguments of ``optimize`` (``time_limit_s``), and ``sizes`` and ``mode``, which
belong to the backend alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eqsynth.errors import EqsynthError
from eqsynth.extract.target import CPU
from eqsynth.lower.backends import engines
from eqsynth.numerics import rule_files, rules_of
from eqsynth.pipeline import optimize
from eqsynth.settings import Settings, flags, one_of

_WHERE: Final = "torch.compile(backend='eqsynth')"
_SIZES: Final = 8

NO_OPTIONS: Final = (
    "program", "example_inputs", "example_kwargs", "target", "like", "peak_memory",
)  # fmt: skip
"""Arguments of ``optimize`` that are no options: the backend sets them itself."""

FAST_START: Final = "fast-start"
"""The mode in which Inductor's program runs until a search in the background has found a faster
one."""


@dataclass(frozen=True)
class Asked:
    """Options that have been checked.

    Attributes:
        options: arguments of ``optimize`` by name.
        sizes: the number of sizes for which a graph with symbolic sizes gets a program.
        mode: the mode of Inductor, or None.
        fast_start: whether searches run in the background.
    """

    options: Mapping[str, Any]
    sizes: int = _SIZES
    mode: str | None = None
    fast_start: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], mode: str | None) -> Asked:
        """Check the options and the mode that a user has given.

        Raises:
            EqsynthError: an option or a mode is unknown, or an option has a value that it can't
                have.
            RuleError: a rule file can't be used.
        """
        given = dict(options)
        mode = given.pop("mode", mode)
        _check_mode(mode)
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(optimize).parameters.items()
            if name not in NO_OPTIONS
        }
        known = [*defaults, "sizes", "mode"]
        one_of("option", given, known, where=_WHERE, hint="options are the arguments of optimize")
        sizes = given.pop("sizes", _SIZES)
        if isinstance(sizes, bool) or not isinstance(sizes, int) or sizes < 0:
            raise _wrong("sizes", sizes, "a number of sizes, 0 or more")
        flags(given, where=_WHERE)
        _check_values({**defaults, **given})
        fast = mode == FAST_START
        return cls(given, sizes, None if fast else mode, fast)

    @property
    def timed(self) -> bool:
        """Whether the objective is time, so that the faster of two programs is used."""
        return bool(self.options.get("objective", "time") == "time")


def _check_values(values: Mapping[str, Any]) -> None:
    """Check the values of options in the way that ``optimize`` does, before a graph is there to
    optimize."""
    rules, asked = values["rules"], values["engines"]
    for name, value in (("rules", rules), ("engines", asked)):
        listed = value if isinstance(value, list | tuple) else () if value is None else (value,)
        if not all(isinstance(part, str | Path) for part in listed):
            raise _wrong(name, value, "a list of names")
    if isinstance(asked, str | Path):
        raise _wrong("engines", asked, "a list of names")
    files = rule_files(() if rules is None else rules)
    Settings(
        CPU, files, values["objective"], values["time_limit_s"], values["node_limit"],
        values["memory_limit"], values["numerics"], values["check"], values["explain"],
        tune=values["tune"],
    )  # fmt: skip
    engines(asked)
    rules_of(files, values["numerics"], where=_WHERE)


def _check_mode(mode: str | None) -> None:
    if mode is None:
        return
    from torch._inductor import list_mode_options

    known = [FAST_START, *list_mode_options()]
    one_of("mode", [mode], known, where=_WHERE, hint="further modes are those of Inductor")


def _wrong(name: str, value: object, expected: str) -> EqsynthError:
    return EqsynthError(
        f"the option {name!r} has a value that it can't have",
        where=_WHERE,
        got=repr(value),
        expected=expected,
        hint="options are the arguments of eqsynth.optimize",
    )
