"""Decode the sides of logged equalities to terms over the program's inputs, and compare indices.

    ("Add", Handle(3), Handle(4))   ->   Add(x @ w, b), if handle 3 is x @ w and handle 4 is b

Indices aren't decoded: they are compared as they were logged, since constructing an ``Index``
applies Python's own laws of indices (``ir/index.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from eqsynth.certificates.values import POINTS, TooLarge
from eqsynth.egraph.encode import decode_index, decode_scalar, decode_tensor
from eqsynth.egraph.graph import Log
from eqsynth.egraph.snapshot import Handle, handles_in
from eqsynth.errors import CertificateError
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.scalar import Scalar, iterators
from eqsynth.ir.tensor import Input, Scope, Tensor

_INDICES: Final = frozenset({"It", "INum", "IAdd", "IMul", "IDiv", "IMod", "IMin", "IMax"})
_SCALARS: Final = frozenset({"Num", "Read", "Prod", "Sum", "Call", "Value", "Convert"})

OWN: Final = "any "
"""The prefix of the names of inputs that stand for any tensor (``Ground.over``). No input of a
program has it."""


class Ground:
    """Decodes the sides of a log's equalities to terms over the program's inputs."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tensors: dict[int, Tensor] = {}
        # The id of a logged tree -> its term: a subtree that sides share is decoded once. The log
        # keeps the trees alive.
        self._read: dict[int, Any] = {}

    def read(self, tree: Any) -> Any:
        """The term of a side, with all definitions unfolded."""
        for number in handles_in(tree):
            self._define(number)
        return self._part(tree)

    def over(self, tree: Any, depth: int) -> Any:
        """The term of a side with ``depth`` levels of definitions unfolded. A tensor that is named
        below them becomes a new input, unless its definition names no tensor (a constant)."""
        if isinstance(tree, Handle):
            if not depth and handles_in(self._log.definitions[tree.n]):
                self._define(tree.n)
                return Input(f"{OWN}{tree.n}", self._tensors[tree.n].type)
            return self.over(self._log.definitions[tree.n], max(depth - 1, 0))
        return self._composed(tree, lambda part: self.over(part, depth))

    def given(self, tree: Any) -> list[Tensor]:
        """The tensors that a side names; if the side is a name itself, those that its definition
        names."""
        if isinstance(tree, Handle):
            tree = self._log.definitions[tree.n]
        for number in handles_in(tree):
            self._define(number)
        return [self._tensors[number] for number in handles_in(tree)]

    def _define(self, number: int) -> None:
        # Iterative: definitions form a DAG that may be deep.
        stack = [number]
        while stack:
            top = stack[-1]
            if top not in self._tensors:
                definition = self._log.definitions[top]
                missing = [n for n in handles_in(definition) if n not in self._tensors]
                if missing:
                    stack += missing
                    continue
                self._tensors[top] = self._part(definition)
            stack.pop()

    def _part(self, value: Any) -> Any:
        if isinstance(value, Handle):
            return self._tensors[value.n]
        if not isinstance(value, list | tuple):
            return value
        if id(value) not in self._read:
            self._read[id(value)] = self._composed(value, self._part)
        return self._read[id(value)]

    def _composed(self, value: Any, read: Callable[[Any], Any]) -> Any:
        """Decode a term whose parts are decoded with ``read``; a value without parts stays."""
        if not isinstance(value, list | tuple):
            return value
        if not value or not isinstance(value[0], str):
            return [read(part) for part in value]
        name, *parts = value
        decode: Any = partial(decode_tensor, defined=self._log.defined)
        if name in _INDICES:
            decode = decode_index
        elif name in _SCALARS:
            decode = decode_scalar
        return decode(name, [read(part) for part in parts])


def pair(read: Callable[[Any], Any], left: Any, right: Any) -> tuple[Any, Any]:
    """Both sides in the form in which they are compared: indices as they were logged, scalars as
    tensors over all their iterators, tensors as terms.

    Args:
        read: gives the term of a side.
    """
    if not isinstance(left, Handle) and left[0] in _INDICES:
        return left, right
    a, b = read(left), read(right)
    if not isinstance(a, Scalar):
        return a, b
    extents = {it.slot: it.extent for it in iterators(a) | iterators(b)}
    box = tuple(extents.get(slot, 1) for slot in range(max(extents, default=-1) + 1))
    return Scope(box, (), a), Scope(box, (), b)


def enumerated(rule: str, left: Any, right: Any) -> str:
    """Compare two indices at all values of their iterators; return the way, ``indices``.

    Raises:
        CertificateError: they differ at some values.
        TooLarge: there are too many values.
    """
    extents = dict(sorted({**_iterators(left), **_iterators(right)}.items()))
    if math.prod(extents.values()) > POINTS:
        raise TooLarge
    grid = dict(zip(extents, np.indices(tuple(extents.values())), strict=True))
    a, b = np.broadcast_arrays(_index(left, grid), _index(right, grid))
    if (a != b).any():
        at = tuple(np.argwhere(a != b)[0].tolist())
        box = ", ".join(f"i{slot}<{extent}" for slot, extent in extents.items())
        raise CertificateError(
            rule,
            index=at,
            where=f"{left} over [{box}]",
            got=f"{b[at]} at {list(at)}: {right}",
            expected=str(a[at]),
        )
    return "indices"


def _iterators(tree: Any) -> dict[int, int]:
    if tree[0] == "It":
        return {tree[1]: tree[2]}
    parts = [part for part in tree[1:] if isinstance(part, tuple)]
    return {slot: extent for part in parts for slot, extent in _iterators(part).items()}


def _index(tree: Any, grid: Mapping[int, Array]) -> Any:
    """The values of a logged index on a grid: slot of an iterator -> its values."""
    name, *args = tree
    if name == "It":
        return grid[args[0]]
    if name == "INum":
        return np.asarray(args[0])
    if name == "IAdd":
        return _index(args[0], grid) + _index(args[1], grid)
    if name == "IMul":
        return args[0] * _index(args[1], grid)
    number = args[1]
    operation = {"IDiv": np.floor_divide, "IMod": np.mod, "IMin": np.minimum, "IMax": np.maximum}
    return operation[name](_index(args[0], grid), number)
