"""A scope's reads in NumPy's notation: a whole tensor, a slice, a permutation, a broadcast.

``x[i, j + 32]``, where j < 32 and x has 64 columns, is ``x[:, 32:64]``.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsynth.ir.formulas.parts import ATOM, Formula, permuted, tight
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope


def slots_of(read: Read) -> list[int] | None:
    """Return the slots of the iterators that index the axes, if the whole tensor is read with a
    different iterator on each axis; None otherwise. Axes of extent 1 are left out."""
    if not read.in_range():
        return None
    slots = []
    for index, extent in zip(read.index, read.tensor.shape, strict=True):
        it = index.bare()
        if it is None and not index.terms and extent == 1:
            continue
        if it is None or it.extent != extent or it.slot in slots:
            return None
        slots.append(it.slot)
    return slots


def cut(read: Read) -> list[tuple[str, int | None]] | None:
    """Return for each axis its slice or number as text, and the slot of its iterator or None:
    ``x[3, i + 1]`` with i < 4 is ``[("3", None), ("1:5", 0)]``. None if the read isn't a slice."""
    if not read.in_range():
        return None
    found = list[tuple[str, int | None]]()
    for index, extent in zip(read.index, read.tensor.shape, strict=True):
        if not index.terms:
            found.append((str(index.const), None))
            continue
        atom, step = index.terms[0]
        if len(index.terms) > 1 or not isinstance(atom, It) or step < 1:
            return None
        if any(slot == atom.slot for _, slot in found):
            return None
        stop = index.const + step * (atom.extent - 1) + 1
        whole = not index.const and step == 1 and atom.extent == extent
        part = f"{index.const}:{stop}" + (f":{step}" if step != 1 else "")
        found.append((":" if whole else part, atom.slot))
    return found


def cut_out(read: Read, source: Formula) -> tuple[Formula, list[int]] | None:
    """Return the part of the tensor that is read, and the slots of its axes: ``x[0]`` and
    ``[0, 1]`` for ``x[0, i, j]``; None if the read isn't a slice."""
    if (slots := slots_of(read)) is not None:
        return source, slots
    if (found := cut(read)) is None:
        return None
    return _at(source, [text for text, _ in found]), [s for _, s in found if s is not None]


def broadcast(scope: Scope, read: Read, source: Formula) -> Formula | None:
    """Return a read as an operand that NumPy broadcasts to the scope's traversal; None if it can't
    be written so."""
    slots = slots_of(read)
    if slots is None:
        return _cut_and_broadcast(scope, read, source)
    ahead = len(scope.traversal) - len(read.index)
    its = [index.bare() for index in read.index]
    if ahead >= 0 and all(it is None or it.slot == ahead + n for n, it in enumerate(its)):
        return source
    axes = _axes(scope)
    if sorted(slots) != slots:
        return (
            permuted(source, read.tensor.shape, _order(slots))
            if len(slots) == len(axes) and (len(slots) == len(read.tensor.shape))
            else None
        )
    if len(slots) < len(read.tensor.shape):
        return _cut_and_broadcast(scope, read, source)
    first = axes.index(slots[0])
    if slots == axes[first:]:
        return source  # the tensor's other axes have extent 1
    at = ", ".join(":" if slot in slots else "None" for slot in axes[first:])
    return f"{tight(source, ATOM)}[{at}]", ATOM


def _cut_and_broadcast(scope: Scope, read: Read, source: Formula) -> Formula | None:
    """Return a slice as an operand of a broadcast: ``x[i, 1]`` in a result over i and j is
    ``x[:, 1:2]``, where the slice of one element keeps the axis."""
    found = cut(read)
    slots = [slot for _, slot in found or () if slot is not None]
    if found is None or slots != sorted(slots):
        return None
    axes = _axes(scope)
    left = axes[axes.index(slots[0]) :] if slots else []
    at = list[str]()
    for text, slot in found:
        if slot is not None:
            place = left.index(slot)
            at += ["None"] * place
            left = left[place + 1 :]
        at.append(text)
    return _at(source, _merged([*at, *("None" for _ in left)]))


def _merged(at: Sequence[str]) -> list[str]:
    """Merge a number and a neighbouring new axis into a slice of one element: ``1, None`` ->
    ``1:2``."""
    found = list[str]()
    for text in at:
        before = found[-1] if found else ""
        number = text if before == "None" else before if text == "None" else ""
        if number.isdecimal():
            found[-1] = f"{number}:{int(number) + 1}"
        else:
            found.append(text)
    return found


def _at(source: Formula, at: Sequence[str]) -> Formula:
    """Return the tensor indexed by the texts of ``at``, without whole axes at the end."""
    end = len(at)
    while end and at[end - 1] == ":":
        end -= 1
    return (f"{tight(source, ATOM)}[{', '.join(at[:end])}]", ATOM) if end else source


def _axes(scope: Scope) -> list[int]:
    return [slot for slot, extent in enumerate(scope.traversal) if extent != 1]


def _order(slots: Sequence[int]) -> list[int]:
    """Return the permutation of a tensor's axes that puts them into the result's order."""
    return sorted(range(len(slots)), key=lambda axis: slots[axis])


def view(scope: Scope, read: Read, source: Formula) -> Formula | None:
    """Return a scope whose body is this read as a slice, a permutation or a broadcast; None if it
    is none of these."""
    slots, axes = slots_of(read), _axes(scope)
    if slots is None:
        found = cut_out(read, source)
        return found[0] if found is not None and found[1] == axes else None
    if slots == axes:
        return source
    if sorted(slots) == axes and len(slots) == len(read.tensor.shape):
        return permuted(source, read.tensor.shape, _order(slots))
    if sorted(slots) == slots and slots == axes[len(axes) - len(slots) :]:
        return f"expand({source[0]}, {list(scope.traversal)})", ATOM
    return None
