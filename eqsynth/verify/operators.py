"""Operators on tensors of symbolic extents: their conditions, result shapes and elements.

    Slice(x, axis=0, start, stop, step=1)   ->   requires 0 <= start <= stop <= n
                                                 shape (stop - start,), at(i) = x.at(i + start)

A tensor of a known rank is given by its extents and by a function from indices in range to
elements. The conditions of an operator on its arguments are passed to ``require``. For the terms
that a rule matches they are hypotheses, since only well-typed terms exist; for the terms that a
rule makes they have to be proved.

``tests/verify/test_operators.py`` compares each operator with the interpreter at random shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import z3

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.operators import OPERATORS
from eqsynth.verify.integers import Integers, number
from eqsynth.verify.symbolic import (
    Extents,
    Require,
    Symbolic,
    as_value,
    computed,
    same,
    size_of,
)
from eqsynth.verify.values import Call, Guard, Number, Read, Reduce, Value, numbers, row_major
from eqsynth.verify.verdict import Left
from eqsynth.verify.windows import Windows


def broadcast(shapes: Sequence[Extents], require: Require) -> Extents:
    """The shape to which ``shapes`` are broadcast, aligned at the right: (3, 1), (4) -> (3, 4)."""
    rank, result = max(map(len, shapes), default=0), []
    for axis in range(-rank, 0):
        joined: Any = 1
        for shape in shapes:
            if len(shape) >= -axis:
                extent = shape[axis]
                if same(joined, extent):
                    continue
                if same(joined, 1):
                    joined = extent
                    continue
                require(z3.Or(number(joined) == extent, number(joined) == 1, number(extent) == 1))
                joined = z3.If(number(joined) == 1, number(extent), number(joined))
        result.append(joined)
    return tuple(result)


def projected(index: Sequence[Any], shape: Extents, result: Extents) -> Extents:
    """The index at which a tensor of ``shape`` that is broadcast to ``result`` is read."""
    own = list(index)[len(index) - len(shape) :]
    there = result[len(result) - len(shape) :]
    return tuple(
        i if same(e, r) else z3.If(number(e) == 1, 0, number(i))
        for i, e, r in zip(own, shape, there, strict=True)
    )


class Operators(Windows):
    """The operators, for one rule at known ranks."""

    def __init__(self, ints: Integers, require: Require) -> None:
        super().__init__(ints, require)
        # Name of a function that :meth:`_as_place` made -> the element which it stands for.
        self._tensors: dict[str, Read] = {}

    def apply(self, name: str, args: list[Any]) -> Symbolic:
        """Apply an operator of the schema to tensors and attributes in the schema's order.

        Raises:
            IllTyped: the ranks don't fit.
            Left: the operator isn't known here.
        """
        row = OPERATORS.get(name)
        if row is None:
            raise Left(f"the operator {name}")
        if row.kind == "elementwise" and name != "Cast":
            return self.elementwise(row.function.lower() or name.lower(), args)
        method: Callable[..., Symbolic] | None = getattr(self, "_" + name.lower(), None)
        if method is None:
            raise Left(f"the operator {name}")
        return method(*args)

    def elementwise(self, function: str, args: Sequence[Symbolic]) -> Symbolic:
        shape = broadcast([arg.extents for arg in args], self.require)

        def at(index: Extents) -> Value:
            values = tuple(arg.at(projected(index, arg.extents, shape)) for arg in args)
            return _places_equal(*values) if function == "eq" else Call(function, values)

        return computed(shape, at)

    def _cast(self, x: Symbolic, dtype: Any) -> Symbolic:
        """Convert elements that are 0 or 1: every dtype can represent these two numbers.

        Raises:
            Left: an element that is read may be another number.
        """

        def at(index: Extents) -> Value:
            value = x.at(index)
            if isinstance(value, Guard) and {0.0, 1.0}.issuperset(numbers(value)):
                return value
            raise Left(f"what is converted to {dtype}")

        return computed(x.extents, at)

    def _iota(self, shape: Extents, axis: Any, dtype: Any) -> Symbolic:
        if dtype != "int64":
            raise Left("places that a small integer holds")
        self.require(z3.And(*(number(e) >= 0 for e in shape), True))
        self.needs(isinstance(axis, int) and 0 <= axis < len(shape))
        return computed(shape, lambda index: self._as_data(index[axis]))

    def _embedding(self, table: Symbolic, ids: Symbolic) -> Symbolic:
        """Rows of ``table`` selected by ``ids``. Each id is taken to be in range: an embedding
        whose ids are out of range has no value, so no rule has to hold for it."""
        self.needs(table.rank == 2)

        def at(index: Extents) -> Value:
            return table.at((self._as_place(ids.at(index[: ids.rank])), *index[ids.rank :]))

        return computed((*ids.extents, *table.extents[1:]), at)

    def _as_place(self, data: Value) -> Any:
        """An element of a tensor of integers as an index: ``ids[i]`` -> an unknown function of i.

        Raises:
            Left: the element isn't read from a tensor at an index.
        """
        if isinstance(data, Read) and data.name == "integer":
            return data.index[0]
        if not isinstance(data, Read) or data.flat:
            raise Left("which row a computed number names")
        integers = [z3.IntSort()] * (len(data.index) + 1)
        place = z3.Function(f"{data.name} as a place", *integers)
        self._tensors[place.name()] = data
        return place(*map(number, data.index))

    def _as_data(self, index: Any) -> Value:
        """An index as an element. If :meth:`_as_place` made the index, this is the tensor's element
        from which it was made."""
        data = self._tensors.get(index.decl().name()) if z3.is_app(index) else None
        if data is None:
            return as_value(index)
        return Read(data.name, tuple(index.children()), data.extents)

    # ---- views ------------------------------------------------------------------------

    def _slice(self, x: Symbolic, axis: Any, start: Any, stop: Any, step: Any) -> Symbolic:
        n = self._axis(x, axis)
        self.require(z3.And(number(start) >= 0, number(start) <= stop, number(stop) <= n,
                            number(step) >= 1))  # fmt: skip
        length = -self.ints.floor(-(number(stop) - start), number(step))[0]
        shape = (*x.extents[:axis], length, *x.extents[axis + 1 :])
        return computed(shape, lambda i: x.at(
            (*i[:axis], number(i[axis]) * step + start, *i[axis + 1 :])))  # fmt: skip

    def _stride(self, x: Symbolic, axis: Any, step: Any) -> Symbolic:
        n = self._axis(x, axis)
        self.require(number(step) >= 1)
        q, r = self.ints.floor(n, step)
        self.require(r == 0)
        shape = (*x.extents[:axis], q, *x.extents[axis + 1 :])
        if same(number(step), 1):
            shape = x.extents
        return computed(shape, lambda i: x.at((*i[:axis], number(i[axis]) * step, *i[axis + 1 :])))

    def _reverse(self, x: Symbolic, axes: Extents) -> Symbolic:
        self.needs(all(0 <= a < x.rank for a in axes) and len({*axes}) == len(axes))
        return computed(x.extents, lambda i: x.at(tuple(
            number(e) - 1 - j if a in axes else j
            for a, (j, e) in enumerate(zip(i, x.extents, strict=True)))))  # fmt: skip

    def _shift(self, x: Symbolic, axis: Any, amount: Any) -> Symbolic:
        n = self._axis(x, axis)

        def at(i: Extents) -> Value:
            # Z3's own remainder and not ``ints.floor``: iterators in it are substituted with the
            # rest of the index, and it doesn't suppose that n is positive.
            place = (number(i[axis]) + amount) % n
            return x.at((*i[:axis], place, *i[axis + 1 :]))

        return computed(x.extents, at)

    def _cumsum(self, x: Symbolic, axis: Any) -> Symbolic:
        n = self._axis(x, axis)

        def at(i: Extents) -> Value:
            k = z3.FreshInt("k")
            return Reduce("sum", ((k, n),), x.read(
                (*i[:axis], number(i[axis]) - k, *i[axis + 1 :])))  # fmt: skip

        return computed(x.extents, at)

    def _unfold(self, x: Symbolic, axis: Any, size: Any) -> Symbolic:
        self._axis(x, axis)
        self.require(number(size) >= 1)
        half = self.ints.floor(size, 2)[0]
        shape = (*x.extents[: axis + 1], size, *x.extents[axis + 1 :])
        return computed(shape, lambda i: x.read(
            (*i[:axis], number(i[axis]) + i[axis + 1] - half, *i[axis + 2 :])))  # fmt: skip

    def _split(self, x: Symbolic, axis: Any, block: Any) -> Symbolic:
        n = self._axis(x, axis)
        self.require(number(block) >= 1)
        q, r = self.ints.floor(n, block)
        self.require(r == 0)
        shape = (*x.extents[:axis], q, block, *x.extents[axis + 1 :])

        def at(i: Extents) -> Value:
            return x.at((*i[:axis], number(i[axis]) * block + i[axis + 1], *i[axis + 2 :]))

        return Symbolic(shape, at, x.flat)

    def _merge(self, x: Symbolic, axis: Any) -> Symbolic:
        self.needs(0 <= axis < x.rank - 1)
        block = x.extents[axis + 1]
        shape = (*x.extents[:axis], number(x.extents[axis]) * block, *x.extents[axis + 2 :])

        def at(i: Extents) -> Value:
            q, r = number(i[axis]) / block, number(i[axis]) % block
            return x.at((*i[:axis], q, r, *i[axis + 1 :]))

        return Symbolic(shape, at, x.flat)

    def _reshape(self, x: Symbolic, shape: Extents) -> Symbolic:
        self.require(z3.And(*(number(e) >= 0 for e in shape), True))
        self.require(size_of(shape) == size_of(x.extents))
        long, own = ([n for n, e in enumerate(s) if not same(e, 1)] for s in (shape, x.extents))
        if len(long) == len(own) and all(
            same(shape[a], x.extents[b]) or self.ints.holds(number(shape[a]) == x.extents[b])
            for a, b in zip(long, own, strict=True)
        ):
            # The reshape only adds and removes axes of extent 1.
            place = dict(zip(own, long, strict=True))
            return Symbolic(shape, lambda i: x.at(tuple(
                i[place[b]] if b in place else 0 for b in range(x.rank))), x.flat)  # fmt: skip
        return Symbolic(shape, lambda i: x.flat(row_major(i, shape)), x.flat)

    def _expand(self, x: Symbolic, shape: Extents) -> Symbolic:
        self.needs(x.rank <= len(shape))
        self.require(z3.And(*(number(e) >= 0 for e in shape), True))
        joined = broadcast([x.extents, shape], self.require)
        self.require(z3.And(*(number(a) == b for a, b in zip(joined, shape, strict=True)), True))
        return computed(shape, lambda i: x.at(projected(i, x.extents, shape)))

    def _permute(self, x: Symbolic, order: Extents) -> Symbolic:
        self.needs(sorted(order) == list(range(x.rank)))
        place = {axis: n for n, axis in enumerate(order)}
        shape = tuple(x.extents[axis] for axis in order)
        return computed(shape, lambda i: x.at(tuple(i[place[a]] for a in range(x.rank))))

    def _pad(self, x: Symbolic, before: Extents, after: Extents, value: Any) -> Symbolic:
        self.needs(len(before) == len(after) == x.rank)
        self.require(z3.And(*(number(a) >= 0 for a in (*before, *after)), True))
        shape = tuple(number(b) + e + a
                      for b, e, a in zip(before, x.extents, after, strict=True))  # fmt: skip

        def at(i: Extents) -> Value:
            found = x.read(tuple(number(j) - b for j, b in zip(i, before, strict=True)))
            return Guard(found.condition, found.inside, Number(value)) if isinstance(
                found, Guard) else found  # fmt: skip

        return computed(shape, at)

    def _concat(self, parts: Sequence[Symbolic], axis: Any) -> Symbolic:
        self.needs(bool(parts) and all(p.rank == parts[0].rank for p in parts))
        self._axis(parts[0], axis)
        for part in parts[1:]:
            for a in range(part.rank):
                if a != axis:
                    self.require(number(part.extents[a]) == parts[0].extents[a])
        if len(parts) == 1:
            return parts[0]
        starts: list[Any] = [0]
        for part in parts:
            starts.append(starts[-1] + part.extents[axis])
        first = parts[0].extents
        shape = (*first[:axis], starts[-1], *first[axis + 1 :])

        def at(i: Extents) -> Value:
            found = parts[-1].at((*i[:axis], i[axis] - starts[-2], *i[axis + 1 :]))
            for part, start, stop in reversed(
                list(zip(parts[:-1], starts[:-2], starts[1:-1], strict=True))
            ):
                own = part.at((*i[:axis], i[axis] - start, *i[axis + 1 :]))
                found = Guard(number(i[axis]) < stop, own, found)
            return found

        return computed(shape, at)

    # ---- reductions and contractions -------------------------------------------------

    def reduce(self, x: Symbolic, axes: Extents, keep: Any, reducer: str) -> Symbolic:
        self.needs(all(0 <= a < x.rank for a in axes) and len({*axes}) == len(axes))
        gone = sorted(set(axes))
        if reducer in ("max", "min"):
            self.require(z3.And(*(number(x.extents[a]) >= 1 for a in gone), True))
        kept = [a for a in range(x.rank) if a not in gone]
        shape = tuple(1 if a in gone else x.extents[a] for a in range(x.rank)
                      if keep or a not in gone)  # fmt: skip

        def at(i: Extents) -> Value:
            own = dict(zip(range(x.rank) if keep else kept, i, strict=True))
            bound = {a: z3.FreshInt("k") for a in gone}
            body = x.at(tuple(bound.get(a, own.get(a)) for a in range(x.rank)))
            if not gone:
                return body
            return Reduce(reducer, tuple((bound[a], x.extents[a]) for a in gone), body)

        return computed(shape, at)

    def _reducesum(self, x: Symbolic, axes: Extents, keep: Any) -> Symbolic:
        return self.reduce(x, axes, keep, "sum")

    def _reducemax(self, x: Symbolic, axes: Extents, keep: Any) -> Symbolic:
        return self.reduce(x, axes, keep, "max")

    def _reducemin(self, x: Symbolic, axes: Extents, keep: Any) -> Symbolic:
        return self.reduce(x, axes, keep, "min")

    def _reduceprod(self, x: Symbolic, axes: Extents, keep: Any) -> Symbolic:
        return self.reduce(x, axes, keep, "prod")

    def _matmul(self, a: Symbolic, b: Symbolic) -> Symbolic:
        self.needs(a.rank >= 2 and b.rank >= 2)
        self.require(number(a.extents[-1]) == b.extents[-2])
        batch = broadcast([a.extents[:-2], b.extents[:-2]], self.require)

        def at(index: Extents) -> Value:
            *n, i, j = index
            k = z3.FreshInt("k")
            left = a.at((*projected(n, a.extents[:-2], batch), i, k))
            right = b.at((*projected(n, b.extents[:-2], batch), k, j))
            return Reduce("sum", ((k, a.extents[-1]),), Call("mul", (left, right)))

        return computed((*batch, a.extents[-2], b.extents[-1]), at)

    def _layernorm(self, x: Symbolic, g: Symbolic, h: Symbolic, axes: Any, eps: Any) -> Symbolic:
        """Each element is an unknown function of the row that is normalized, the scale, the shift,
        eps and the position in the row; two results are equal if all of these are."""
        self.needs(0 <= axes <= x.rank)
        keep = x.rank - axes
        for t in (g, h):
            self.needs(t.rank == axes)
            self.require(z3.And(
                *(number(a) == b for a, b in zip(t.extents, x.extents[keep:], strict=True)), True
            ))  # fmt: skip

        def row(t: Symbolic, before: Extents) -> Value:
            bound = tuple((z3.FreshInt("k"), e) for e in t.extents[len(before) :])
            return Reduce("row", bound, t.at((*before, *(k for k, _ in bound))))

        def at(i: Extents) -> Value:
            parts = (row(x, i[:keep]), row(g, ()), row(h, ()), Number(eps))
            return Call("layer_norm", (*parts, *map(as_value, i[keep:])))

        return computed(x.extents, at)

    def _full(self, shape: Extents, fill: Any, dtype: Any) -> Symbolic:
        """
        Raises:
            Left: the fill is an integer that the dtype may not represent.
        """
        self.require(z3.And(*(number(e) >= 0 for e in shape), True))
        if isinstance(fill, Read) and dtype != "int64":
            raise Left("a number that a dtype may not represent")
        value = fill if isinstance(fill, Call | Read) else Number(fill)
        return Symbolic(shape, lambda _: value, lambda _: value)

    def _axis(self, x: Symbolic, axis: Any) -> Any:
        if not isinstance(axis, int):
            raise Left("what is true at an axis that is computed")
        self.needs(0 <= axis < x.rank)
        return number(x.extents[axis])


def _places_equal(a: Value, b: Value) -> Value:
    """The element of ``eq``: for two indices, a guard that is 1 if they are equal, else 0."""
    if not all(isinstance(side, Read) and side.name == "integer" for side in (a, b)):
        return Call("eq", (a, b))
    assert isinstance(a, Read) and isinstance(b, Read)
    return Guard(number(a.index[0]) == b.index[0], Number(1.0), Number(0.0))


SPECTATORS: Final = frozenset({
    *(name for name, row in OPERATORS.items() if row.kind == "elementwise" and
      row.function in ("Add", "Sub", "Mul", "Neg", *FUNCTIONS)),
    "Slice", "Stride", "Shift", "Reverse", "Unfold", "Split", "Merge", "Concat", "LayerNorm",
    "Matmul", "Conv2d", "FusedConv2d", "MaxPool2d", "AvgPool2d", "Expand", "Reshape", "Full",
    "Iota", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "Embedding",
})  # fmt: skip
"""The operators that treat the axes which they don't name independently, and all in the same way.

The axes of an embedding's ids are unnamed in this sense; both axes of its table count as named.
"""

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(attr for attr, _ in row.attrs) for name, row in OPERATORS.items()
}
