"""Scripts that reproduce failures, and the tensors that they need, in the cache directory.

    reproducers/3f2a….py    the graph as Python text, the arguments of ``optimize``, torch's state
    reproducers/3f2a….pt    weights and inputs, read as data (never as code)

torch's state (autocast, default dtype, …: ``ambient.py``) is that of the thread that failed. Only
the most recent failures are kept. Not here: which errors count as failures
(``compile_backend.py``).
"""

from __future__ import annotations

import ast
import hashlib
import os
import textwrap
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from eqsynth import kept
from eqsynth.ambient import Ambient
from eqsynth.written import written

_KEPT: Final = 20  # failures that are kept
_MOST_BYTES: Final = 512 << 20
"""The most bytes of tensors that are saved for one failure. Tensors beyond it are drawn at random
by the script."""

_HEAD: Final = '''\
"""What eqsynth fails on. The tensors lie beside this file.

{error}
"""

from pathlib import Path

import torch
{imports}

import eqsynth

OPTIONS = {options}


{classes}


def restored(value):
    if not isinstance(value, tuple):
        return value
    shape, dtype = value  # too large to be kept
    return torch.randn(shape).to(dtype)


{ambient}
torch.manual_seed(0)
kept = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)
module = Graph({{name: restored(value) for name, value in kept["weights"].items()}}).eval()
inputs = tuple(map(restored, kept["inputs"]))
with torch.no_grad(), {autocast}:
    expected = module(*inputs)
    # Held against the module as always: by what rounding explains, on several kinds of inputs.
    program = eqsynth.optimize(module, inputs, **{{**OPTIONS, "strict": True}})
    found = program(*inputs)
print(program.report)
'''

_CLASS: Final = """\
class {name}(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)
{children}
{forward}"""


def write(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, Any],
    error: BaseException,
) -> Path | None:
    """Save a failure. Return the script's path, or None if no script can express the failure."""
    try:
        return _written(module, inputs, _script(module, options, error))
    except (_UntoldError, OSError, RuntimeError):  # a full disk is a RuntimeError of torch's
        return None


def _written(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], text: str) -> Path:
    """Write the script and its tensors to the cache directory."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    left = _MOST_BYTES
    tensors: dict[str, Any] = {"weights": {}, "inputs": []}
    for name, value in weights.items():
        tensors["weights"][name], left = _plain(value, left)
    for value in inputs:
        plain, left = _plain(value, left)
        tensors["inputs"].append(plain)
    home = kept.directory("reproducers")
    path = home / f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.py"
    home.mkdir(parents=True, exist_ok=True)
    with written(path.with_suffix(".pt")) as place:
        torch.save(tensors, place)
    with written(path) as place:
        place.write_text(text, encoding="utf-8")
    _forget_old(home)
    return path


class _UntoldError(Exception):
    """The graph can't be written as text."""


def _script(module: torch.fx.GraphModule, options: Mapping[str, Any], error: BaseException) -> str:
    """The text of the script.

    Raises:
        _UntoldError: the graph can't be written as text.
    """
    imports: dict[str, str] = {}
    classes = _classes("Graph", module, imports)
    told = f"{type(error).__name__}: {error}".replace("\\", "/").replace('"""', "'''")
    said = {name: _literal(value) for name, value in options.items()}
    ambient = Ambient.now()
    text = _HEAD.format(
        error=told[:2000],
        ambient=ambient.statements(),
        autocast=ambient.block(),
        imports="\n".join(dict.fromkeys(imports.values())),
        options=repr({name: value for name, value in said.items() if value is not _UntoldError}),
        classes="\n\n\n".join(classes),
    )
    try:
        compile(text, "reproducer", "exec")
    except (SyntaxError, ValueError) as wrong:
        raise _UntoldError from wrong
    return text


def _literal(value: object) -> object:
    """Return an option's value in a form that its ``repr`` restores (a path becomes a string), or
    the class ``_UntoldError`` if there is no such form."""
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, list | tuple):
        return tuple(map(_literal, value))
    with suppress(ValueError, SyntaxError, TypeError):
        if ast.literal_eval(repr(value)) == value:
            return value
    return _UntoldError


def _classes(name: str, module: torch.nn.Module, imports: dict[str, str]) -> list[str]:
    """The class of a graph as Python text, after the classes of the graphs inside it."""
    if not isinstance(module, torch.fx.GraphModule):
        raise _UntoldError
    found, lines = [], []
    for child, part in module.named_children():
        found += _classes(f"{name}_{child}", part, imports)
        lines.append(f"        self.{child} = {name}_{child}({{}})")
        if any(True for _ in (*part.parameters(), *part.buffers())):
            raise _UntoldError
    code = module.graph.python_code("self")
    for known, value in code.globals.items():
        imports[known] = _import(known, value)
    forward = textwrap.indent(code.src.strip(), "    ")
    found.append(_CLASS.format(name=name, children="\n".join(lines), forward=forward))
    return found


def _import(name: str, value: object) -> str:
    """The statement that defines a global name that a graph's code uses: ``import torch``."""
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if value is type(None):
        return f"{name} = type(None)"
    home, known = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(known, str) or not known.isidentifier():
        raise _UntoldError
    return f"from {home} import {known} as {name}"


def _plain(value: torch.Tensor, left: int) -> tuple[Any, int]:
    """Return a tensor to save, and how many bytes are left after it. For a tensor that is too
    large, return its shape and dtype instead."""
    size = value.numel() * value.element_size()
    if size > left:
        return (tuple(value.shape), value.dtype), left
    if value.untyped_storage().nbytes() > 2 * size + 4096:
        # A view of a small part of a large tensor: saving it would save the whole.
        value = value.detach().clone()
    if isinstance(value, torch.nn.Parameter):
        return value, left - size
    return value.detach(), left - size


def _forget_old(home: Path) -> None:
    with suppress(OSError):
        scripts = sorted(home.glob("*.py"), key=lambda path: path.stat().st_mtime_ns)
        for path in scripts[:-_KEPT]:
            kept.forget(path)
            kept.forget(path.with_suffix(".pt"))
