"""Programs of ``torch.export``, or the files that ``torch.export.save`` has written, as modules.

Not here: exporting a module (``exporting.py``), and what ``to_exported`` gives
(``lower/exported.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from eqsynth.errors import CaptureError

SUFFIX: Final = ".pt2"
"""What files of ``torch.export.save`` end in."""


def is_exported(value: object) -> bool:
    """Whether this is an exported program: itself, its module, or the path of its file."""
    if isinstance(value, str | os.PathLike):
        return Path(value).suffix == SUFFIX
    return isinstance(value, torch.export.ExportedProgram) or _is_module(value)


def module_of(
    program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module of an exported program, and its example inputs where none are given.

    Its mode is evaluation: training or not was settled when it was exported, and torch refuses to
    change it afterwards.

    Raises:
        CaptureError: the file can't be read, or the program has no example inputs.
    """
    if _is_module(program):
        module = program
    else:
        where = "" if isinstance(program, torch.export.ExportedProgram) else str(program)
        exported = _read(program) if where else program
        module = exported.module()
        if not args and not kwargs:
            if exported.example_inputs is None:
                raise CaptureError(
                    "the exported program has no example inputs",
                    where=where,
                    expected="torch.export.export(model, inputs), saved",
                    hint="export the model again",
                )
            args, kwargs = exported.example_inputs
    for part in module.modules():
        part.training = False
    return module, tuple(args), dict(kwargs)


def _is_module(value: object) -> bool:
    """What ``ExportedProgram.module()`` gives has an ``eval`` of its own, which raises."""
    return isinstance(value, torch.fx.GraphModule) and "eval" in vars(value)


def _read(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    # torch logs a traceback of its own, besides the error that it raises.
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(path)
    except Exception as error:  # whatever a damaged file leads to
        raise CaptureError(
            "torch can't load this file",
            where=str(path),
            got=f"{type(error).__name__}: {error}"[:300],
            expected="what torch.export.save has written",
            hint="save it again, with this version of torch",
        ) from error
    finally:
        logger.setLevel(level)
