"""The arguments of ``optimize`` that control the search, checked.

    Settings(..., time_limit_s=0)    ->    EqsynthError: time_limit_s isn't a positive number

Not here: the arguments of ``torch.compile`` (``compile_options.py``), their meaning
(``pipeline.py``).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Final

import torch

from eqsynth.errors import EqsynthError
from eqsynth.extract import carried
from eqsynth.extract.target import CPU, KINDS, Target
from eqsynth.lower.places import missing


@dataclass(frozen=True)
class Settings:
    """Checked arguments of :func:`eqsynth.optimize`, under the same names.

    Raises:
        EqsynthError: a value isn't one of the known ones, or a limit isn't positive.
    """

    target: str
    rules: tuple[str | Path, ...]
    objective: str
    time_limit_s: float
    node_limit: float
    memory_limit: float
    numerics: str
    check: bool
    explain: bool
    engines: tuple[str, ...] | None = None
    own_constants: bool = True
    tune: float = 0.0
    certify: bool = False
    peak_memory: float = inf

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("target", self.target, KINDS),
            ("objective", self.objective, ("time", "flops")),
        ):
            if value not in allowed:
                raise EqsynthError(
                    f"optimize: unknown {name} {value!r}",
                    got=repr(value),
                    expected=", ".join(map(repr, allowed)),
                    hint=f"choose one of the {name}s",
                )
        if lacking := missing(self.target):
            raise EqsynthError(
                f"optimize: programs for {self.target} can't be measured here",
                where=f"target={self.target!r}",
                got=lacking,
                expected="a GPU, or the profile of one",
                hint="target=FILE plans for the GPU that eqsynth profile --device has written of",
            )
        if self.target != CPU and self.engines:
            raise EqsynthError(
                "optimize: engines run programs on the CPU only",
                where=f"target={self.target!r}",
                got=", ".join(self.engines),
                expected="no engines",
                hint="leave engines out",
            )
        for name, limit in (
            ("time_limit_s", self.time_limit_s),
            ("node_limit", self.node_limit),
            ("memory_limit", self.memory_limit),
            ("peak_memory", self.peak_memory),
        ):
            positive(limit, name, where="optimize")
        whole(self.node_limit, "node_limit", where="optimize")
        if self.tune != 0:
            positive(self.tune, "tune", where="optimize")

    @property
    def logs(self) -> bool:
        """Whether saturation logs the equalities that it adds."""
        return self.explain or self.certify

    @property
    def bounded(self) -> bool:
        """Whether the user has bounded the memory of programs (``peak_memory``)."""
        return isfinite(self.peak_memory)

    @property
    def value_bytes(self) -> float:
        """The most bytes that one value of a program may take."""
        return min(self.memory_limit, self.peak_memory)

    @property
    def worker_bytes(self) -> int | None:
        """The address space of a worker in bytes; None for no limit."""
        return int(self.memory_limit) if self.memory_limit < _ALL else None

    @property
    def enodes(self) -> int:
        """The number of e-nodes of a segment at which saturation stops."""
        return int(min(self.node_limit, _ALL))


def aimed_at(
    target: str | PathLike[str] | Target | None, tensors: Iterable[torch.Tensor]
) -> str | Target:
    """Return the device that ``optimize(target=…)`` means: the kind of a device of this machine
    (``"cuda"``), or a device described by its profile.

    Args:
        target: None for the device that holds the tensors; a kind; a file that ``eqsynth profile
            --device`` has written, or its name once it was read; or a ``Target``.
        tensors: weights and example inputs.

    Raises:
        EqsynthError: there is no such kind, file or name.
    """
    if target is None:
        kinds = {tensor.device.type for tensor in tensors}
        return next((kind for kind in KINDS if kind != CPU and kind in kinds), CPU)
    if isinstance(target, Target) or target in KINDS:
        return target if isinstance(target, Target) else str(target)
    return carried.read(target)


# Bytes that stand for "no limit": more than any machine has, and a number that operating systems
# accept.
_ALL = 1 << 62


def positive(value: object, name: str, *, where: str) -> None:
    """Refuse a limit that isn't a positive number. ``float("inf")``, which means no limit, is
    allowed.

    Args:
        where: the function that the user called.

    Raises:
        EqsynthError: the value is no number, NaN, zero or negative.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise EqsynthError(
            f"{where}: {name} isn't a positive number",
            got=repr(value),
            expected='a number above 0; float("inf") for no limit',
        )


def whole(value: float, name: str, *, where: str) -> None:
    """Refuse a limit on a count that isn't a whole number: 0.5 e-nodes would be rounded down to
    none. ``1e5`` is whole, and ``float("inf")`` means no limit.

    Args:
        where: the function that the user called.

    Raises:
        EqsynthError: the value isn't whole.
    """
    if not math.isinf(value) and value != int(value):
        raise EqsynthError(
            f"{where}: {name} isn't a whole number",
            got=repr(value),
            expected='a whole number above 0; float("inf") for no limit',
        )


FLAGS: Final = ("check", "strict", "explain", "certify", "own_constants", "progress")
"""Arguments of ``optimize`` that are either True or False."""


def flags(values: Mapping[str, object], *, where: str) -> None:
    """Refuse a flag that is neither ``True`` nor ``False``: ``strict="no"`` would count as true.

    Args:
        values: arguments of ``optimize``; only those in :data:`FLAGS` are checked.
        where: the function that the user called.

    Raises:
        EqsynthError: a flag has another value. ``progress=None`` is allowed: a progress bar is then
            shown on a terminal.
    """
    for name in FLAGS:
        value = values.get(name, False)
        if not isinstance(value, bool) and not (name == "progress" and value is None):
            raise EqsynthError(
                f"{where}: {name} is neither True nor False",
                got=repr(value)[:200],
                expected="True or False",
                hint="a word or a number isn't taken for one of the two",
            )


def one_of(
    kind: str, names: Iterable[str], allowed: Sequence[str], *, where: str, hint: str
) -> None:
    """Refuse the first of ``names`` that isn't allowed, and suggest the allowed name that is most
    like it: ``time_limit`` -> ``Did you mean time_limit_s?``

    Args:
        kind: what the names are, for instance ``option``.
        where: the function that the user called.

    Raises:
        EqsynthError: a name isn't allowed.
    """
    for name in names:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            raise EqsynthError(
                f"unknown {kind} {name!r}",
                where=where,
                got=repr(name),
                expected=", ".join(allowed),
                hint=f"Did you mean {close[0]}?" if close else hint,
            )
