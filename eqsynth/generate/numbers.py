"""The arithmetic in which graphs are fingerprinted: exact, ordered, and as fast as floats.

Inputs are small integers, and results of operators are multiples of 1/D, stored in float64. After
each operator every number is rounded to this grid. The distance to the grid is a rounding error
below a 32nd of a step, since numbers have fewer than 40 bits; a number farther from the grid, or
larger, is never rounded but refused (``Inexact``). An average over a 3x3 window divides by 9, so
D = 9^n suffices for graphs of n operators, 18^n if operators also halve, and 2 * 18^n for products
of n + 1 halves.

Graphs with comparisons (relu, maxima) are evaluated on more assignments, since a comparison with
zero yields only one bit. Functions with irrational values (exp, sigmoid, tanh, quotients) are
uninterpreted: their value is an integer, a keyed hash of the arguments. A finite field would
suffice for polynomials, but has no order; candidates are also checked in one
(``testing/judging.py``).
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
"""The largest number, in steps of the grid; beyond it float64 might not separate neighbours."""

_OFF: Final = 1 / 16
_INPUTS: Final = 9
FIRST: Final = (0, 1)
"""The assignments of the inputs on which every term is evaluated."""

FURTHER: Final = (2, 3, 4, 5, 6, 7)
"""Further assignments, for terms of which one compares numbers. Two assignments don't suffice: four
sums of rows under a ``relu`` are all positive on both once in 256 times. On the last ones inputs
are halves, since ``x * (x + 1)`` is negative only between two integers."""

_HALVES: Final = (4, 5, 6, 7)


class Inexact(ArithmeticError):
    """A result isn't a multiple of 1/D, or is too large to be stored exactly."""


def grid(denominator: int) -> Arithmetic:
    """Return the arithmetic of multiples of 1/denominator.

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
    """Return an integer for each element, a hash of the function's name and its arguments."""
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
    """Draw the value of an input on an assignment; it is the same in every process.

    A scalar input is positive on one assignment and negative on the next. If s were always
    negative, ``relu(s * x)`` and ``relu(s * y)`` would be equal for all positive x and y.
    """
    rng = np.random.default_rng([crc32(name.encode()), assignment])
    found = rng.integers(-_INPUTS, _INPUTS + 1, size=kind.shape).astype(np.float64)
    found = found if found.size > 1 else (np.abs(found) + 2) * (-1) ** assignment
    return found / 2 if assignment in _HALVES else found


def hashed(values: Sequence[Array]) -> int:
    """Return hash_1 of TASO §2.2: 63 bits of a tensor's shape and values on some assignments."""
    found = hashlib.blake2b(repr(values[0].shape).encode(), digest_size=8)
    for value in values:
        found.update(np.ascontiguousarray(value + 0.0).tobytes())  # + 0.0 turns -0.0 into 0.0
    return int.from_bytes(found.digest(), "little") >> 1


def symmetric(hashes: Sequence[int]) -> int:
    """Return hash_2 of TASO §2.2: a hash of a graph's outputs in any order."""
    mixed = (
        hashlib.blake2b(h.to_bytes(8, "little"), key=b"outputs", digest_size=8).digest()
        for h in hashes
    )
    return sum(int.from_bytes(m, "little") for m in mixed) % (1 << 63)


def value(term: Tensor, denominator: int, assignment: int) -> Array:
    """Return a term's value on an assignment, which draws the inputs by their names.

    Raises:
        Inexact: the value can't be stored exactly.
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
    """Return hash_1 of a term.

    Raises:
        Inexact: a value can't be kept exactly.
    """
    return hashed([value(term, denominator, n) for n in assignments])
