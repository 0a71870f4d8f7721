"""A random torch module under construction: it grows line by line.

The value of each line is computed at once, so that the next line can fit its shape and dtype. Not
here: the lines (``layers.py``), and the strategy for a whole module (``modules.py``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from eqsynth.testing.module_case import Argument, ModuleCase, torch_seed

_NAME = re.compile(r"\b(?:[vx]\d+|self\.l\d+)\b")


Line = Callable[["Growing", str], str]
"""A builder of a line: from the module so far and the name of a value, to code over the value."""


class Growing:
    """A module under construction: its arguments, layers, lines and values so far.

    Attributes:
        values: the values of arguments and lines, by name; arguments come first.
        dtype: the dtype of floats.
        size: the most elements of a value.
    """

    def __init__(self, draw: st.DrawFn, dtype: str, size: int) -> None:
        self.draw, self.dtype, self.size = draw, dtype, size
        self.values: dict[str, torch.Tensor] = {}
        self._holder = nn.Module()
        self._scope = {"torch": torch, "nn": nn, "F": F, "self": self._holder.eval()}
        self._inputs: dict[str, Argument] = {}
        self._layers: dict[str, str] = {}
        self._lines: dict[str, str] = {}

    # ---- choices ----------------------------------------------------------------

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of the choices; the first is the simplest."""
        return self.draw(st.sampled_from(list(choices)))

    def number(self, low: int, high: int) -> int:
        """A number, from ``low`` to ``high``; the lowest is the simplest."""
        return self.draw(st.integers(low, high))

    def coin(self) -> bool:
        """True or False; False is the simplest."""
        return self.draw(st.booleans())

    def axis(self, x: str) -> int:
        """An axis of a value, positive or negative."""
        rank = self.values[x].dim()
        axis = self.number(0, rank - 1)
        return axis - rank if self.coin() else axis

    # ---- growth -----------------------------------------------------------------

    def argument(self, shape: Sequence[int], dtype: str = "", below: int | None = None) -> str:
        """Add an argument to the module, and return its name."""
        name = f"x{len(self._inputs)}"
        self._inputs[name] = Argument(tuple(shape), dtype or self.dtype, below)
        self.values[name] = ModuleCase(tuple(self._inputs.values())).arguments()[-1]
        return name

    def layer(self, code: str) -> str:
        """Add a submodule or parameter, and return its name (``self.l0``). It may be one that
        exists already with the same code."""
        for name, known in self._layers.items():
            if known == code and self.coin():
                return f"self.{name}"
        name = f"l{len(self._layers)}"
        with torch_seed(0):
            made = eval(code, dict(self._scope))
            if isinstance(made, nn.Module):
                made = made.to(getattr(torch, self.dtype)).eval()
            else:
                made = nn.Parameter(made.data.to(getattr(torch, self.dtype)))
        setattr(self._holder, name, made)
        self._layers[name] = code
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        return self.layer(f"nn.Parameter(torch.ones({', '.join(map(str, shape)) or '()'}))")

    def grow(self, build: Line, x: str) -> str | None:
        """Add the line that ``build`` makes of the value ``x``, and return the name of its value;
        None if torch refuses the line, or its value is too large or complex."""
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of empty tensors and layers
                code = build(self, x)
                value = eval(code, dict(self._scope) | self.values)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            return None
        if value.numel() > self.size or value.is_complex():
            return None
        name = f"v{len(self._lines)}"
        self._lines[name], self.values[name] = code, value
        return name

    # ---- the end ----------------------------------------------------------------

    def case(self, result: str, seed: int) -> ModuleCase:
        """The module that returns ``result`` (code over the values), without unused arguments,
        layers and lines; the others are numbered anew."""
        lines, used = [f"return {result}"], set(_NAME.findall(result))
        for name in reversed(self._lines):
            if name in used:
                lines.insert(0, f"{name} = {self._lines[name]}")
                used |= set(_NAME.findall(self._lines[name]))
        inputs = [name for name in self._inputs if name in used]
        layers = [name for name in self._layers if f"self.{name}" in used]
        values = [name for name in self._lines if name in used]
        new = {old: f"x{k}" for k, old in enumerate(inputs)}
        new |= {f"self.{old}": f"self.l{k}" for k, old in enumerate(layers)}
        new |= {old: f"v{k}" for k, old in enumerate(values)}
        return ModuleCase(
            inputs=tuple(self._inputs[name] for name in inputs),
            layers=tuple(f"l{k} = {self._layers[name]}" for k, name in enumerate(layers)),
            forward=tuple(_NAME.sub(lambda name: new[name[0]], line) for line in lines),
            dtype=self.dtype,
            seed=seed,
        )
