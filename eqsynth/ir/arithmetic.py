"""The arithmetic in which the interpreter computes floats.

It is float64 unless a check asks for another one: float32 to see the effect of rounding, float16 to
see overflow, Python objects (numbers of high precision, or of a finite field) to compare two terms
without rounding. Integers and bools are always computed in their own dtype. Not here: the
arithmetics of objects (``eqsynth.testing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arithmetic:
    """The storage of floats, and, if the elements are Python objects, how to compute with them.

    Attributes:
        dtype: the dtype of arrays that hold floats; ``object`` if the elements are Python objects.
        convert: turns an array of numbers into an array of elements; elements stay as they are.
        apply: applies the scalar function of the given name to arrays of elements.
        cast: converts elements to a dtype; for a float dtype it rounds, and the result holds
            elements again.
    """

    name: str
    dtype: np.dtype[Any]
    convert: Callable[[Array], Array] | None = None
    apply: Callable[[str, Sequence[Any]], Any] | None = None
    cast: Callable[[Array, str], Array] | None = None


FLOAT64: Final = Arithmetic("float64", np.dtype(np.float64))
FLOAT16: Final = Arithmetic("float16", np.dtype(np.float16))
FLOAT32: Final = Arithmetic("float32", np.dtype(np.float32))

_current: ContextVar[Arithmetic] = ContextVar("arithmetic", default=FLOAT64)


def arithmetic() -> Arithmetic:
    """Return the arithmetic that the interpreter uses now."""
    return _current.get()


@contextmanager
def computing_in(other: Arithmetic) -> Iterator[None]:
    """Let the interpreter compute in the arithmetic ``other`` inside of the ``with`` block.

    >>> from eqsynth.ir.reference import storage
    >>> with computing_in(FLOAT32):
    ...     storage("float64")
    dtype('float32')
    """
    token = _current.set(other)
    try:
        yield
    finally:
        _current.reset(token)
