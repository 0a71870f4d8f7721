"""The numbers in which graphs are fingerprinted: exact, ordered, and as fast as floats.

Inputs are small integers, and what operators make of them are multiples of 1/D, kept in float64.
After each operator every number is put back on this grid. Its distance from the grid is an error
of rounding, below a 32nd of a step, since numbers have fewer than 40 bits; what lies farther away,
or is larger, is refused (``Inexact``) and never rounded. An average over a 3x3 window divides by 9,
so D = 9^n serves graphs of n operators, 18^n those that halve as well, and 2 * 18^n their products
of n + 1 halves.

Operators that compare (relu, maxima) compare exact numbers, on more assignments: which side of zero
a number lies on is one bit. Functions that leave the rationals (exp, sigmoid, tanh, quotients) are
uninterpreted: a keyed hash of their arguments, an integer. A finite field would do for polynomials
and has no order; candidates are judged in one besides (``testing/judging.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np

from eqsynth.ir.arithmetic import Arithmetic, Array, computing_in
from eqsynth.ir.data import leaves
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Tensor
from eqsynth.ir.types import TensorType

LARGEST: Final = 2.0**40
"""Numbers, in steps of the grid, from which on float64 might not tell neighbours apart."""

_OFF: Final = 1 / 16
_INPUTS: Final = 9
FIRST: Final = (0, 1)
"""The assignments of the inputs on which every term is evaluated."""

FURTHER: Final = (2, 3, 4, 5, 6, 7)
"""Those on which terms are told apart besides where one of them compares: on two assignments the
four sums of rows that ``relu`` is taken of are positive once in 256 times. On the last ones inputs
are halves: ``x * (x + 1)`` is below 0 between two whole numbers alone."""

_HALVES: Final = (4, 5, 6, 7)


class Inexact(ArithmeticError):
    """Raised for a result that is no multiple of 1/D, or too large to be one exactly."""


def grid(denominator: int) -> Arithmetic:
    """The arithmetic of the multiples of 1/denominator.

    >>> import numpy as np
    >>> x = Input("x", TensorType((1, 1, 3, 3), "float32"))
    >>> from eqsynth.ir.tensor import Op
    >>> mean = Op("AvgPool2d", (x,), ((3, 3), (1, 1), (0, 0), (1, 1)))
    >>> with computing_in(grid(9)):
    ...     float(evaluate(mean, {"x": np.arange(9.0).reshape(x.shape)}).item())
    4.0
    """

    def convert(array: Array) -> Array:
        steps = array * denominator
        whole = np.rint(steps)
        if not (np.abs(whole) < LARGEST).all() or (np.abs(steps - whole) > _OFF).any():
            raise Inexact(f"a number that is no multiple of 1/{denominator}, or a large one")
        return np.asarray(whole / denominator)

    name = f"multiples of 1/{denominator}"
    return Arithmetic(name, np.dtype(np.float64), convert, _uninterpreted)


def _uninterpreted(name: str, args: Sequence[Any]) -> Array:
    """An integer for each element, drawn by the function's name and its arguments."""
    arrays = np.broadcast_arrays(*(np.asarray(arg, np.float64) + 0.0 for arg in args))
    mixed = np.full(arrays[0].shape, crc32(name.encode()), np.uint64)
    for array in arrays:
        mixed ^= np.ascontiguousarray(array).view(np.uint64).reshape(mixed.shape)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed % np.uint64(2 * _INPUTS + 1)).astype(np.float64) - _INPUTS


def drawn(name: str, kind: TensorType, assignment: int) -> Array:
    """The value of an input on an assignment: the same in every process.

    One number is positive on one assignment and negative on the next: of two negative scalars
    ``relu(s * x)`` and ``relu(s * y)`` are equal for all x and y that are positive.
    """
    rng = np.random.default_rng([crc32(name.encode()), assignment])
    found = rng.integers(-_INPUTS, _INPUTS + 1, size=kind.shape).astype(np.float64)
    found = found if found.size > 1 else (np.abs(found) + 2) * (-1) ** assignment
    return found / 2 if assignment in _HALVES else found


def hashed(values: Sequence[Array]) -> int:
    """hash_1 of TASO §2.2: of a tensor's shape and content, on some assignments; 63 bits."""
    found = hashlib.blake2b(repr(values[0].shape).encode(), digest_size=8)
    for value in values:
        found.update(np.ascontiguousarray(value + 0.0).tobytes())  # of a zero without sign
    return int.from_bytes(found.digest(), "little") >> 1


def symmetric(hashes: Sequence[int]) -> int:
    """hash_2 of TASO §2.2: of a graph's outputs in any order."""
    mixed = (
        hashlib.blake2b(h.to_bytes(8, "little"), key=b"outputs", digest_size=8).digest()
        for h in hashes
    )
    return sum(int.from_bytes(m, "little") for m in mixed) % (1 << 63)


def value(term: Tensor, denominator: int, assignment: int) -> Array:
    """A term's value on an assignment of its inputs, which are drawn by their names.

    Raises:
        Inexact: it can't be kept exactly.
    """
    inputs = [leaf for leaf in leaves((term,)).values() if isinstance(leaf, Input)]
    with computing_in(grid(denominator)):
        return evaluate(term, {x.name: drawn(x.name, x.type, assignment) for x in inputs})


def agree(left: Tensor, right: Tensor, denominator: int) -> bool:
    """Whether two terms have the same values on all assignments.

    Raises:
        Inexact: a value can't be kept exactly.
    """
    return left.shape == right.shape and all(
        np.array_equal(value(left, denominator, n), value(right, denominator, n))
        for n in (*FIRST, *FURTHER)
    )


def fingerprint(term: Tensor, denominator: int, assignments: Sequence[int] = FIRST) -> int:
    """hash_1 of a term.

    Raises:
        Inexact: a value can't be kept exactly.
    """
    return hashed([value(term, denominator, n) for n in assignments])
