"""An e-graph as plain data, which the engine returns and which can be sent to another process.

Values are ints, floats, strings, bools, tuples (of sort Vec) and `EClass`. The number of an e-class
is valid within one snapshot only, since a later union may change it. A handle, `(Tok 3)`, stays
valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


class EClass(NamedTuple):
    """An e-class: its sort and its number."""

    sort: str
    id: int


class ENode(NamedTuple):
    """A constructor applied to values."""

    function: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Handle:
    """A permanent name of an e-class of sort Tensor: the term `(Tok n)`."""

    n: int


def handles_in(term: Any) -> list[int]:
    """Return the numbers of the handles in a nested tuple; a shared object is visited once."""
    found: list[int] = []
    seen: set[int] = set()
    stack = [term]
    while stack:
        part = stack.pop()
        if isinstance(part, Handle):
            found.append(part.n)
        elif isinstance(part, list | tuple) and id(part) not in seen:
            seen.add(id(part))
            stack.extend(reversed(part))
    return found


@dataclass(frozen=True)
class Snapshot:
    """The contents of an e-graph.

    `classes`: the e-nodes of every e-class, without handles. `rows`: the rows of each relation
    (arguments) and function (arguments and value), without the relations of matches. `handles`: the
    e-class of every handle.
    """

    classes: Mapping[EClass, list[ENode]]
    rows: Mapping[str, list[tuple[Any, ...]]]
    handles: Mapping[Handle, EClass]

    @property
    def enodes(self) -> int:
        return sum(map(len, self.classes.values()))

    @cached_property
    def named(self) -> Mapping[EClass, Handle]:
        """The oldest handle of every e-class that has a handle."""
        named: dict[EClass, Handle] = {}
        for handle, eclass in sorted(self.handles.items(), key=lambda item: item[0].n):
            named.setdefault(eclass, handle)
        return named

    @cached_property
    def terms(self) -> Mapping[EClass, Any]:
        """The smallest term of every e-class, see :func:`smallest_terms`."""
        return smallest_terms(self)


def smallest_terms(snapshot: Snapshot) -> Mapping[EClass, Any]:
    """Return a term for every e-class: its handle, or the e-node of least depth with the terms of
    its children. Terms share parts. An e-class all of whose e-nodes contain it has no term.
    """
    terms: dict[EClass, Any] = dict(snapshot.named)
    parents: dict[EClass, list[tuple[EClass, ENode]]] = {}
    missing: dict[tuple[EClass, ENode], int] = {}
    ready: list[tuple[EClass, ENode]] = []
    for eclass, enodes in snapshot.classes.items():
        for enode in () if eclass in terms else enodes:
            children = {child for child in _children(enode.args) if child not in terms}
            missing[eclass, enode] = len(children)
            for child in children:
                parents.setdefault(child, []).append((eclass, enode))
            if not children:
                ready.append((eclass, enode))
    while ready:
        finished: list[EClass] = []
        for eclass, enode in ready:
            if eclass not in terms:
                terms[eclass] = (enode.function, *_map_classes(enode.args, terms.__getitem__))
                finished.append(eclass)
        ready = []
        for eclass in finished:
            for parent in parents.get(eclass, ()):
                missing[parent] -= 1
                if not missing[parent]:
                    ready.append(parent)
    return terms


def _children(values: tuple[Any, ...]) -> list[EClass]:
    found: list[EClass] = []
    for value in values:
        if isinstance(value, EClass):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(_children(value))
    return found


def _map_classes(values: tuple[Any, ...], change: Callable[[EClass], Any]) -> tuple[Any, ...]:
    return tuple(
        change(value)
        if isinstance(value, EClass)
        else _map_classes(value, change)
        if isinstance(value, tuple)
        else value
        for value in values
    )
