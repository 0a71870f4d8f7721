"""Views as scopes: the index map of each view (Syno Table 1, and Permute, Pad, Slice, Concat).

A view is ``L_x . t[map(x)]``; concatenation is a sum of shifted reads that are zero outside.
"""

from __future__ import annotations

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.index import Index, row_major
from eqsynth.ir.normal import canonical
from eqsynth.ir.operators import Attr
from eqsynth.ir.scalar import Cast, Read, Scalar, total
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import Shape


def defining_scope(view: Op) -> Scope:
    """The scope that a view is equal to, or a conversion, which changes elements in their place.

    Raises:
        UnsupportedOperatorError: the operator is no view.
    """
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(view.shape)]
    if view.name == "Cast":
        return canonical(Scope(view.shape, (), Cast(view.dtype, Read(view.args[0], tuple(at)))))
    if view.name == "Concat":
        return canonical(Scope(view.shape, (), _concat(view, at)))
    index, fill = index_map(view.name, view.attrs, at, view.args[0].shape)
    return canonical(Scope(view.shape, (), Read(view.args[0], tuple(index), fill)))


def _concat(view: Op, at: list[Index]) -> Scalar:
    (axis,) = view.attrs
    assert isinstance(axis, int)
    parts, start = [], 0
    for arg in view.args:
        index = (*at[:axis], at[axis] - start, *at[axis + 1 :])
        parts.append(Read(arg, index))
        start += arg.shape[axis]
    return total(parts)


def index_map(
    name: str, attrs: tuple[Attr, ...], at: list[Index], source: Shape
) -> tuple[list[Index], float]:
    """Where element ``at`` of the view's result stands in its argument, and the fill outside."""
    match name, attrs:
        case "Permute", (tuple() as order,):
            place = {axis: n for n, axis in enumerate(order)}
            return [at[place[axis]] for axis in range(len(order))], 0.0
        case "Reshape", (tuple() as shape,):
            return reshaped(at, shape, source), 0.0
        case "Expand", (tuple() as shape,):
            own = at[len(shape) - len(source) :]
            return [Index(0) if e == 1 else i for i, e in zip(own, source, strict=True)], 0.0
        case "Slice", (int() as axis, int() as start, int(), int() as step):
            return [*at[:axis], at[axis] * step + start, *at[axis + 1 :]], 0.0
        case "Stride", (int() as axis, int() as step):
            return [*at[:axis], at[axis] * step, *at[axis + 1 :]], 0.0
        case "Pad", (tuple() as before, tuple(), float() | int() as value):
            return [i - b for i, b in zip(at, before, strict=True)], float(value)
        case "Shift", (int() as axis, int() as amount):
            return [*at[:axis], (at[axis] + amount) % max(source[axis], 1), *at[axis + 1 :]], 0.0
        case "Split", (int() as axis, int() as block):
            return [*at[:axis], at[axis] * block + at[axis + 1], *at[axis + 2 :]], 0.0
        case "Merge", (int() as axis,):
            block = max(source[axis + 1], 1)
            return [*at[:axis], at[axis] // block, at[axis] % block, *at[axis + 1 :]], 0.0
        case "Unfold", (int() as axis, int() as size):
            return [*at[:axis], at[axis] + at[axis + 1] - size // 2, *at[axis + 2 :]], 0.0
    raise UnsupportedOperatorError(
        what=f"{name} is no view",
        got=f"{name}{attrs}",
        expected="an operator of kind view",
        hint="define it by a comprehension in rules/operators.egg",
    )


def reshaped(at: list[Index], shape: Shape, source: Shape) -> list[Index]:
    """Row-major re-indexing, one group of axes at a time where products of extents agree.

    >>> i, j = Index.iterator(0, 6), Index.iterator(1, 4)
    >>> [str(x) for x in reshaped([i, j], (6, 4), (2, 3, 4))]
    ['((i0) // 3)', '((i0) % 3)', 'i1']
    """
    result: list[Index] = []
    left = right = 0
    while right < len(source):
        start_left, start_right = left, right
        extent_left = extent_right = 1
        while True:
            if right < len(source) and (extent_right <= extent_left or left >= len(shape)):
                extent_right *= source[right]
                right += 1
            elif left < len(shape):
                extent_left *= shape[left]
                left += 1
            else:
                break
            if extent_left == extent_right and left > start_left:
                break
        group = shape[start_left:left]
        linear = Index(0)
        for index, stride in zip(at[start_left:left], row_major(group), strict=True):
            linear = linear + index * stride
        inner = source[start_right:right]
        for n, (extent, stride) in enumerate(zip(inner, row_major(inner), strict=True)):
            if extent <= 1:
                result.append(Index(0))
            elif len(group) == len(inner) == 1:
                result.append(at[start_left])
            else:
                part = linear // stride if stride > 1 else linear
                result.append(part if n == 0 or extent_right == extent * stride else part % extent)
    return result
