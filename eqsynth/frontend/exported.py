"""Exported programs as torch modules, so that they are captured as every module is.

An exported program is a ``torch.export.ExportedProgram``, the module that its ``module()`` gives,
or the path of a ``.pt2`` file. Not here: the export of a module (``exporting.py``), and
``to_exported``, the way from a compiled program back to torch (``lower/exported.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from eqsynth.errors import CaptureError
from eqsynth.lower.functional import specs_copied

SUFFIX: Final = ".pt2"
"""The suffix of files that ``torch.export.save`` writes."""


def is_exported(value: object) -> bool:
    """Whether ``value`` is an exported program, its module, or the path of its file."""
    if isinstance(value, str | os.PathLike):
        return Path(value).suffix == SUFFIX
    return isinstance(value, torch.export.ExportedProgram) or _is_module(value)


def module_of(
    program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the module of an exported program, and its own example inputs if none are given.

    All parts of the module are marked as being in evaluation mode by their attribute: the export
    has settled the mode, and the module's method ``eval`` raises an error.

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
    """Whether ``ExportedProgram.module()`` made this module: it then has its own ``eval``, which
    raises an error."""
    return isinstance(value, torch.fx.GraphModule) and "eval" in vars(value)


def _read(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    # torch logs a traceback besides the error that it raises; the error says enough.
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with specs_copied():
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
