"""Convolutions and poolings on images of symbolic extents: windows over the last two axes.

    conv2d(x, w).at((n, f, i, j))   ->   sum over (c, k, l) of x[n, c, s*i + d*k - p, ...] * w[...]

The other operators are in ``operators.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import z3

from eqsynth.verify.integers import Integers, number
from eqsynth.verify.symbolic import (
    Extents,
    IllTyped,
    Require,
    Symbolic,
    computed,
    reciprocal,
    same,
    size_of,
)  # fmt: skip
from eqsynth.verify.values import Call, Reduce, Value


class Windows:
    """The operators that slide a window over an image, for one rule at known ranks."""

    def __init__(self, ints: Integers, require: Require) -> None:
        self.ints = ints
        self.require = require

    def needs(self, holds: bool) -> None:
        """Check a condition on ranks or axes, which are known numbers.

        Raises:
            IllTyped: it doesn't hold.
        """
        if not holds:
            raise IllTyped

    def _windows(self, x: Symbolic, kernel: Extents, stride: Extents, padding: Extents,
                 dilation: Extents) -> Extents:  # fmt: skip
        """The extents (height, width) of the result of sliding a window over the last two axes."""
        self.needs(x.rank == 4 and all(len(v) == 2 for v in (kernel, stride, padding, dilation)))
        result = []
        for n, k, s, p, d in zip(x.extents[2:], kernel, stride, padding, dilation, strict=True):
            self.require(z3.And(number(k) >= 1, number(s) >= 1, number(p) >= 0, number(d) >= 1))
            span = number(n) + 2 * number(p) - number(d) * (number(k) - 1) - 1
            count = self.ints.floor(span, s)[0] + 1
            self.require(count >= 1)
            result.append(count)
        return tuple(result)

    def _taps(self, i: Extents, k: Sequence[Any], stride: Extents, padding: Extents,
              dilation: Extents) -> Extents:  # fmt: skip
        axes = zip(stride, i, dilation, k, padding, strict=True)
        return tuple(number(s) * at + number(d) * tap - p for s, at, d, tap, p in axes)

    def _conv2d(self, x: Symbolic, w: Symbolic, stride: Extents, padding: Extents,
                dilation: Extents, groups: Any) -> Symbolic:  # fmt: skip
        self.needs(w.rank == 4)
        channels, filters = x.extents[1] if x.rank == 4 else -1, w.extents[0]
        alone = same(number(groups), 1)
        each: Any = filters if alone else 1
        if not alone and not same(number(groups), filters):
            self.require(number(groups) >= 1)
            each, left = self.ints.floor(filters, groups)
            self.require(left == 0)
        self.require(number(channels) == number(groups) * w.extents[1])
        spatial = self._windows(x, w.extents[2:], stride, padding, dilation)

        def at(index: Extents) -> Value:
            n, f, *i = index
            c, *k = (z3.FreshInt("k") for _ in range(3))
            taps = self._taps(tuple(i), k, stride, padding, dilation)
            # Z3's own quotient: iterators in it are substituted with the rest of the index.
            first = 0 if alone else (number(f) / each) * w.extents[1]
            body = Call("mul", (x.read((n, first + c, *taps)), w.at((f, c, *k))))
            bound = tuple(zip((c, *k), w.extents[1:], strict=True))
            return Reduce("sum", bound, body)

        return computed((x.extents[0], w.extents[0], *spatial), at)

    def _fusedconv2d(self, x: Symbolic, w: Symbolic, b: Symbolic, *rest: Any) -> Symbolic:
        *window, function = rest
        whole = self._conv2d(x, w, *window)
        self.needs(b.rank == 1)
        self.require(number(b.extents[0]) == whole.extents[1])

        def at(index: Extents) -> Value:
            found = Call("add", (whole.at(index), b.at((index[1],))))
            return found if function == "none" else Call(function, (found,))

        return computed(whole.extents, at)

    def _pool(
        self, x: Symbolic, fill: float, kernel: Extents, stride: Extents, padding: Extents,
        dilation: Extents,
    ) -> tuple[Extents, Callable[[Extents], Reduce]]:  # fmt: skip
        spatial = self._windows(x, kernel, stride, padding, dilation)

        def at(index: Extents) -> Reduce:
            n, c, *i = index
            k = [z3.FreshInt("k") for _ in range(2)]
            taps = self._taps(tuple(i), k, stride, padding, dilation)
            bound = tuple(zip(k, kernel, strict=True))
            return Reduce("max" if fill else "sum", bound, x.read((n, c, *taps), fill))

        return (*x.extents[:2], *spatial), at

    def _maxpool2d(self, x: Symbolic, *window: Extents) -> Symbolic:
        shape, at = self._pool(x, -math.inf, *window)
        return computed(shape, at)

    def _avgpool2d(self, x: Symbolic, *window: Extents) -> Symbolic:
        shape, at = self._pool(x, 0.0, *window)
        count = reciprocal(size_of(window[0]))
        return computed(shape, lambda index: Call("mul", (count, at(index))))
