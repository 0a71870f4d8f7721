"""The comparison of two callables: modules, compiled programs, functions of tensors.

The elements of their results are compared by ``eqsynth/lower/check.py``, on all kinds of inputs.
Here is compared what else a caller sees, on the given inputs: the structure of the result, what in
it is no tensor, which arguments a call writes, and whether a later call changes an earlier result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_map_only

from eqsynth.lower.check import Mismatch, check_equivalence

Call = Callable[..., Any]

_DIFFER: Final = "two programs that should be equal differ"


@dataclass(frozen=True)
class _Called:
    """One call: its result, the tensors of it as they were then, and the arguments that it wrote.

    Attributes:
        written: the numbers of these arguments among the leaves of all arguments.
    """

    leaves: list[Any]
    structure: TreeSpec
    values: list[torch.Tensor]
    written: tuple[int, ...]


def compare_calls(program: Call, reference: Call, args: Sequence[Any]) -> None:
    """Check that two callables are equal to a caller.

    Raises:
        Mismatch: they aren't; its ``inputs`` are those on which they differ.
    """
    given = (tuple(args), dict[str, Any]())
    expected = _called(reference, args)
    try:
        got = _called(program, args)
    except Exception as error:  # whatever a program raises
        raised = f"{type(error).__name__}: {error}"[:500]
        raise _differ("given inputs", raised, "a result", given) from error
    _same_structure(got, expected, given)
    if got.written != expected.written:
        told = "the arguments (leaves, by number) that a call writes"
        raise _differ(told, _numbers(got.written), _numbers(expected.written), given)
    compared = program, reference
    if expected.written:
        compared = _with_arguments(program), _with_arguments(reference)
    if any(_is_number(leaf) for leaf in expected.leaves):
        compared = _with_tensors(compared[0]), _with_tensors(compared[1])
    try:
        check_equivalence(*compared, args)
    except Mismatch as error:
        named = _differ(error.where, error.got, error.expected, error.inputs)
        named.wrong, named.losing = error.wrong, error.losing
        raise named from error
    if _kept(expected) and not _kept(got):
        raise _differ("a result, after later calls", "other values", "those it had", given)


def _called(call: Call, args: Sequence[Any]) -> _Called:
    given = tree_map_only(torch.Tensor, torch.clone, tuple(args))
    before, after = tree_flatten(tuple(args))[0], tree_flatten(given)[0]
    with torch.no_grad():
        leaves, structure = tree_flatten(call(*given))
    values = [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    written = tuple(
        number
        for number, (old, new) in enumerate(zip(before, after, strict=True))
        if isinstance(old, torch.Tensor) and not _same(old, new)
    )
    return _Called(leaves, structure, values, written)


def _same_structure(got: _Called, expected: _Called, given: Any) -> None:
    """Raise a `Mismatch` if two results are built in two ways, or differ in what is no tensor."""
    if got.structure != expected.structure:
        told = str(got.structure), str(expected.structure)
        raise _differ("the structure of the result", *told, given)
    for number, (mine, theirs) in enumerate(zip(got.leaves, expected.leaves, strict=True)):
        if type(mine) is not type(theirs) and not _both_tensors(mine, theirs):
            told = type(mine).__name__, type(theirs).__name__
            raise _differ(f"the type of output {number}", *told, given)
        if not isinstance(theirs, torch.Tensor) and not _is_number(theirs) and mine != theirs:
            raise _differ(f"output {number}", repr(mine), repr(theirs), given)


def _both_tensors(mine: Any, theirs: Any) -> bool:
    return isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)


def _is_number(leaf: Any) -> bool:
    """Whether a leaf of a result is compared as a tensor is, but for rounding."""
    return isinstance(leaf, int | float | np.ndarray | np.generic)


def _with_tensors(call: Call) -> Call:
    """A callable with tensors in the place of the numbers and NumPy arrays of its results."""

    def tensor_of(leaf: Any) -> Any:
        return torch.tensor(np.asarray(leaf)) if _is_number(leaf) else leaf

    return lambda *args: tree_map(tensor_of, call(*args))


def _with_arguments(call: Call) -> Call:
    """A callable that gives its arguments, too, as the call leaves them."""
    return lambda *args: (call(*args), args)


def _kept(called: _Called) -> bool:
    """Whether a result still has the values that it had."""
    tensors = [leaf for leaf in called.leaves if isinstance(leaf, torch.Tensor)]
    return all(map(_same, tensors, called.values))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same elements; NaN is NaN."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _numbers(written: tuple[int, ...]) -> str:
    return ", ".join(map(str, written)) or "none"


def _differ(where: str, got: str, expected: str, inputs: Any) -> Mismatch:
    hint = "the error's `inputs` are the arguments on which they differ"
    error = Mismatch(_DIFFER, where=where, got=got, expected=expected, hint=hint)
    error.inputs = inputs
    return error
