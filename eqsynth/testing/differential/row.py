"""Rows of the table: an operator with its arguments, and the dtypes and data of its tests.

    Row("aten::add.Tensor", (Operand(), Operand()), {"alpha": 2}, dtypes=("float32", "int64"))

A row has a :class:`Case` for each dtype. Not here: how a case is computed (``columns.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from eqsynth.frontend import aten, ops
from eqsynth.ir.types import FLOATS, INTEGERS, Shape, numpy_dtype
from eqsynth.testing import edges

# The default shape: large enough for every pair of edge values, and not a multiple of the length of
# a vector register.
LARGE: Final[Shape] = (65, 67)

ALL: Final = (*FLOATS, *INTEGERS, "bool")
NUMBERS: Final = (*FLOATS, *INTEGERS)
KINDS: Final = tuple(edges.KINDS)


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of a row.

    Attributes:
        dtype: the dtype; None for the dtype of the case.
        kind: the kind of data (``edges.KINDS``); None for the kind of the draw.
        within: integers are drawn from this range, without its end; for positions.
        nonzero: zeros are replaced by ones; for divisors.
        change: a named function that is applied to the drawn data.
    """

    shape: Shape = LARGE
    dtype: str | None = None
    kind: str | None = None
    within: tuple[int, int] | None = None
    nonzero: bool = False
    change: Callable[[torch.Tensor], torch.Tensor] | None = None

    def value(self, dtype: str, kind: str, seed: int, position: int) -> torch.Tensor:
        """The operand's data; the same for the same arguments."""
        own, rng = self.dtype or dtype, np.random.default_rng([seed, position])
        if self.within is not None:
            drawn = rng.integers(*self.within, self.shape).astype(own)
        else:
            drawn = edges.draw(self.kind or kind, self.shape, own, rng, position)
        if self.nonzero:
            drawn = np.where(drawn == 0, np.ones((), numpy_dtype(own)), drawn)
        result = to_torch(drawn, own)
        return result if self.change is None else self.change(result)


def to_torch(array: Any, dtype: str) -> torch.Tensor:
    """A NumPy array as a torch tensor of ``dtype``.

    Torch can't read NumPy's bfloat16, so it is converted by float32, which holds every bfloat16.
    """
    with np.errstate(all="ignore"):
        wide = array.astype(np.float32) if dtype == "bfloat16" else array
    return torch.from_numpy(np.array(wide)).to(getattr(torch, dtype))


@dataclass(frozen=True)
class Row:
    """An operator with operands and fixed other arguments.

    Attributes:
        entry: ``aten::name.overload`` for an operator of torch, or ``ops.name`` for a function of
            ``eqsynth.ops``.
        args: operands, and other arguments as torch takes them (dtypes are torch's).
        options: keyword arguments.
        dtypes: the dtypes of the cases.
        reference: torch's function for a row of ``eqsynth.ops``; by default the ATen operator.
        truth: a function whose result in float64 is the truth, if torch's own loses digits.
        scale: a function that gives the size of intermediate values, which are rounded, too:
            ``|x| + |y|`` for a sum.
        kinds: the kinds of data; all operands of a draw are of one kind.
        refused: whether eqsynth must leave the operator to torch, since its result would be wrong.
        raises: whether torch raises an error on all data, as eqsynth then must.
        sensitive: whether the result may also change as much as the truth does when an operand is
            rounded: sums that cancel, softmax of large numbers.
        roundings: how many roundings the result may be off, besides torch's own error.
    """

    entry: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    reference: Callable[..., Any] | None = None
    truth: Callable[..., Any] | None = None
    scale: Callable[..., Any] | None = None
    kinds: tuple[str, ...] = KINDS
    refused: bool = False
    raises: bool = False
    sensitive: bool = False
    roundings: float = 4.0

    def cases(self) -> Iterator[Case]:
        for dtype in self.dtypes:
            yield Case(self, dtype)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that computes the row in torch."""
        if self.reference is not None:
            return self.reference
        name, _, overload = self.entry.removeprefix("aten::").partition(".")
        result: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload or "default")
        return result

    @property
    def own(self) -> Callable[..., Any] | None:
        """The function that builds the row's terms in eqsynth; None if the table has no entry."""
        if self.entry.startswith("ops."):
            found: Any = ops
            for part in self.entry.split(".")[1:]:
                found = getattr(found, part)
            return found  # type: ignore[no-any-return]
        return aten.entry(self.entry)


@dataclass(frozen=True)
class Case:
    """A row at one dtype."""

    row: Row
    dtype: str

    @property
    def name(self) -> str:
        """The case's name, which is unique and the same in every run."""
        options = [f"{k}={v!r}" for k, v in self.row.options.items()]
        args = [_text(arg, self.dtype) for arg in self.row.args]
        return f"{self.row.entry}({', '.join([*args, *options])})"

    def number(self, parts: int) -> int:
        """The number of the part that the case is in, if the table has ``parts`` parts. All cases
        of one operator and dtype are in one part, since they share kernels."""
        return _hash(f"{self.row.entry} {self.dtype}") % parts

    def draws(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """For each kind of data, the operands' values. Kinds that differ for floats only are left
        out if there are no floats."""
        floats = any((o.dtype or self.dtype) in FLOATS for o in operands(self.row.args))
        seed = _hash(self.name)
        for kind in self.row.kinds:
            if floats or kind not in ("offset 1e4", "offset 1e6", "near equal"):
                yield (
                    kind,
                    [
                        o.value(self.dtype, kind, seed, k)
                        for k, o in enumerate(operands(self.row.args))
                    ],
                )

    def widened(self) -> Case:
        """The case with float64 in place of every floating-point dtype among its arguments."""

        def wide(tree: Any) -> Any:
            if isinstance(tree, torch.dtype) and tree.is_floating_point:
                return torch.float64
            if isinstance(tree, list | tuple):
                return type(tree)(wide(part) for part in tree)
            return tree

        row = self.row
        options = {key: wide(value) for key, value in row.options.items()}
        return replace(self, row=replace(row, args=wide(row.args), options=options))

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call a function on the row's arguments, with these values in place of the operands."""
        rest = iter(values)
        return function(*filled(self.row.args, rest), **filled(self.row.options, rest))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode()).digest()[:4], "big")


def _text(arg: Any, dtype: str) -> str:
    if isinstance(arg, Operand):
        kinds = [arg.kind, arg.within, "nonzero" if arg.nonzero else None]
        kinds.append(arg.change.__name__ if arg.change is not None else None)
        rest = "".join(f" {kind}" for kind in kinds if kind is not None)
        return f"{arg.dtype or dtype}[{', '.join(map(str, arg.shape))}]{rest}"
    if isinstance(arg, list | tuple):
        return f"[{', '.join(_text(part, dtype) for part in arg)}]"
    return repr(arg)


def operands(tree: Any) -> Iterator[Operand]:
    """The operands in a tree of arguments, in order."""
    if isinstance(tree, Operand):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from operands(part)


def filled(tree: Any, values: Iterator[Any]) -> Any:
    """The tree with values in place of its operands."""
    if isinstance(tree, Operand):
        return next(values)
    if isinstance(tree, list | tuple):
        return type(tree)(filled(part, values) for part in tree)
    if isinstance(tree, Mapping):
        return {key: filled(part, values) for key, part in tree.items()}
    return tree
