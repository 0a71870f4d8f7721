"""Search for data on which two programs differ, and make it small.

``prove_equal`` uses it if it has found no proof: data on which the programs differ disproves them.
Programs are evaluated by the interpreter in float64, so that a difference is larger than the
rounding of the programs' own dtype. Not here: the proof (``prove.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.data import EXTREMES, INTEGERS, draw, leaves
from eqsynth.ir.interpret import evaluate_all
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Tensor, topological
from eqsynth.ir.types import INTEGERS as DTYPES_OF_INTEGERS
from eqsynth.ir.types import is_float

# Kinds of data, the simplest first. Near-equal and far-apart numbers aren't among them: they lose
# digits even in float64.
_KINDS: Final = ("zeros", "ties", "normal", "negative", "sparse", "scaled")
_SEEDS: Final = 4
_RTOL: Final = 1e-7
# Evaluations for making a counterexample smaller, at most.
_TRIES: Final = 200
# Programs whose values have more elements in all aren't evaluated.
_LARGEST: Final = 1 << 20


@dataclass(frozen=True)
class Counterexample:
    """Values of inputs and weights for which two programs differ.

    Attributes:
        values: the inputs and weights by name.
        output, index: the output, and the index of its element, that differ most.
        left, right: the value of this element in the two programs, in float64.
    """

    values: Mapping[str, Array]
    output: int
    index: tuple[int, ...]
    left: float
    right: float

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        lines = [f"{name} = {_shown(array)}" for name, array in self.values.items()]
        return "\n".join([*lines, f"output {self.output}{at}: {self.left:g} and {self.right:g}"])


def _shown(array: Array) -> str:
    text = np.array2string(np.asarray(array), threshold=24, edgeitems=2, separator=", ")
    return " ".join(text.split())


def compare(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], limit_s: float = 10.0
) -> Counterexample | int:
    """Return data on which the outputs differ, or the number of samples on which they are equal.

    Elements that are infinite or NaN in one of the programs aren't compared.
    """
    end, equal = time.monotonic() + limit_s, 0
    terms = list(topological([*lefts, *rights]))
    if sum(term.type.size for term in terms) > _LARGEST:
        return 0
    for env in _samples(terms):
        if time.monotonic() > end:
            break
        found = _difference(lefts, rights, env)
        if found is not None:
            return _simplified(lefts, rights, found, end)
        equal += 1
    return equal


def _samples(terms: Sequence[Tensor]) -> Iterator[dict[str, Array]]:
    given, bounds = leaves(terms), positions(terms, views=True)
    for seed in range(_SEEDS):
        for n, kind in enumerate(_KINDS):
            integers = INTEGERS[min(n, len(INTEGERS) - 2)]
            yield draw(given, bounds, kind, integers, seed)
    # Integers that wrap. Beside floats only those of 8 bits: of larger ones, as a term of a sum,
    # float64 would lose digits.
    whole = {leaf.dtype for leaf in given.values() if leaf.dtype in DTYPES_OF_INTEGERS}
    if whole and (whole <= {"int8", "uint8"} or not any(is_float(t.dtype) for t in terms)):
        for seed in range(_SEEDS):
            for integers in (EXTREMES, "limits"):
                yield draw(given, bounds, "normal", integers, seed)


def _difference(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], env: Mapping[str, Any]
) -> Counterexample | None:
    """The element at which the programs differ most on this data; None if all elements are nearly
    equal."""
    with np.errstate(all="ignore"):
        values = evaluate_all([*lefts, *rights], env)
    for output, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        a, b = (np.asarray(values[side], np.float64) for side in (left, right))
        known = np.isfinite(a) & np.isfinite(b)
        with np.errstate(all="ignore"):  # infinities from each other, where they aren't known
            far = np.where(known, np.abs(a - b), 0.0)
        size = np.maximum(np.abs(np.where(known, a, 0.0)), np.abs(np.where(known, b, 0.0)))
        if far.size and far.max() > _RTOL * max(float(size.max()), 1e-30):
            at = tuple(int(i) for i in np.unravel_index(int(far.argmax()), far.shape))
            return Counterexample(dict(env), output, at, float(a[at]), float(b[at]))
    return None


def _simplified(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], found: Counterexample, end: float
) -> Counterexample:
    """Make a counterexample smaller: set as many of its numbers to 0, else to 1, as can be set
    while the programs still differ."""
    tries = 0
    for name, array in found.values.items():
        for at in np.ndindex(array.shape):
            for simple in (0, 1):
                before = found.values[name][at]
                if before == simple or tries >= _TRIES or time.monotonic() > end:
                    break
                tries += 1
                changed = np.array(found.values[name])
                changed[at] = simple
                smaller = _difference(lefts, rights, {**found.values, name: changed})
                if smaller is not None:
                    found = smaller
                    break
    return found
