"""Models and arguments that are named on the command line.

``eqsynth optimize net.py:make`` takes the module and the inputs that ``make()`` in net.py returns.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eqsynth.errors import EqsynthError


@dataclass(frozen=True)
class Model:
    """The arguments of ``eqsynth.optimize``: a model or program, and example arguments for it."""

    program: Any
    args: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def model(name: str, inputs: Path | None = None) -> Model:
    """Load a model by its name on the command line.

    Args:
        name: a file ``.pt2`` or ``.onnx``; or ``module:function`` or ``file.py:function``, where
            the function returns a module and a tuple of example inputs.
        inputs: a file of example inputs (see :func:`tensors`), in place of the model's own.

    Raises:
        EqsynthError: there is no such model, or it or the inputs can't be read.
    """
    args = () if inputs is None else tensors(inputs)
    if name.endswith(".onnx"):
        return Model(str(_existing(name)), args or None)
    if name.endswith(".pt2"):
        return _exported(_existing(name), args)
    module, colon, function = name.rpartition(":")
    if not colon:
        raise _unknown(name, "a name that says nothing of its kind")
    found = _made(name, _found(module, name), function)
    return Model(found.program, args) if args else found


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise EqsynthError(
            "there is no such file", where=name, expected="a file", hint="look for a slip in it"
        )
    return path


def _unknown(name: str, got: str) -> EqsynthError:
    return EqsynthError(
        "this names no model",
        where=name,
        got=got,
        expected="a file .pt2 or .onnx, or module:function (file.py:function)",
        hint="a function without arguments that returns the model and a tuple of example inputs",
    )


def _exported(path: Path, args: tuple[Any, ...]) -> Model:
    from eqsynth.frontend.exported import module_of

    return Model(*module_of(path, args, {}))


def _found(module: str, name: str) -> Any:
    try:
        if not module.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(Path(module).stem, _existing(module))
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
        return found
    except EqsynthError:
        raise
    except Exception as error:  # the user's own code
        raise _unknown(name, f"{type(error).__name__}: {error}"[:300]) from error


def _made(name: str, module: Any, function: str) -> Model:
    import torch

    make = getattr(module, function, None)
    if not callable(make):
        raise _unknown(name, f"no function {function!r} in {module.__name__}")
    try:
        made = make()
    except Exception as error:  # the user's own code
        raise _unknown(name, f"{type(error).__name__}: {error}"[:300]) from error
    parts = made if isinstance(made, tuple) else (made,)
    if not 2 <= len(parts) <= 3 or not isinstance(parts[0], torch.nn.Module):
        raise _unknown(name, f"a function that returns {type(made).__name__}")
    inputs = parts[1] if isinstance(parts[1], tuple | list) else (parts[1],)
    return Model(parts[0].eval(), tuple(inputs), dict(parts[2]) if len(parts) > 2 else {})


def tensors(path: Path) -> tuple[Any, ...]:
    """Read positional arguments from a file that ``torch.save`` wrote: of a tensor, or of a list or
    tuple of them.

    Raises:
        EqsynthError: the file can't be read.
    """
    import torch

    try:
        given = torch.load(_existing(str(path)), weights_only=True)
    except Exception as error:
        if isinstance(error, EqsynthError):
            raise
        raise EqsynthError(
            "torch can't load the inputs",
            where=str(path),
            got=f"{type(error).__name__}: {error}"[:300],
            expected="a tensor, or a list or tuple of them, from torch.save",
            hint="torch.save((x, y), path)",
        ) from error
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def arguments(program: Any, inputs: Path | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for a program that was loaded from a file.

    Args:
        inputs: a file of tensors (see :func:`tensors`). Without one, the arguments are random
            floats, and zeros for other dtypes, of the shapes that the program takes.

    Raises:
        EqsynthError: the file can't be read, or the program's inputs aren't known.
    """
    import torch

    if inputs is not None:
        return tensors(inputs), {}
    if program.original is not None:
        if program.examples is None:
            raise EqsynthError(
                "the program doesn't know its inputs",
                hint="give them: --inputs FILE, from torch.save",
            )
        args, kwargs = program.examples()
        return tuple(args), dict(kwargs)
    users = program.inputs[: len(program.inputs) - len(program.state())]
    torch.manual_seed(0)
    values = []
    for parameter in users:
        dtype = getattr(torch, parameter.input.dtype)
        shape = parameter.input.shape
        values.append(
            torch.randn(shape).to(dtype)
            if dtype.is_floating_point
            else torch.zeros(shape).to(dtype)
        )
    return tuple(values), {}
