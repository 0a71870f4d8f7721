"""The numbers in which the interpreter computes floats.

Float64 unless a check asks for others: float32 to see what rounding does, float16 to see what
overflows, objects (of high precision, or of a finite field) to judge an equality without rounding.
Integers and bools are computed in their own dtype everywhere. Not here: arithmetics of objects
(``eqsynth.testing``).
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
    """How floats are kept, and what an arithmetic of objects must say besides.

    Attributes:
        dtype: of the arrays that hold floats; ``object`` for elements that are Python objects.
        convert: an array of numbers as an array of elements (elements stay).
        apply: a scalar function by its name on arrays of elements.
        cast: elements converted to a dtype; floats are rounded, and are elements again.
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
    """The arithmetic in use."""
    return _current.get()


@contextmanager
def computing_in(other: Arithmetic) -> Iterator[None]:
    """Lets the interpreter compute in another arithmetic.

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
