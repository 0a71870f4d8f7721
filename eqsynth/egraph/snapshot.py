"""An e-graph as plain data: what leaves the engine, and what can leave its process.

Values are ints, floats, strings, bools, tuples (Vec) and `EClass`. An e-class's number is only
good within one snapshot: a later union may give the class another one. Handles last.
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
    """A lasting name for a class of sort Tensor: the term `(Tok n)`."""

    n: int


def handles_in(term: Any) -> list[int]:
    """The handles in a nested tuple, each object looked into once."""
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
    """`classes`: the e-nodes of every e-class, handles left out. `rows`: relations as rows of
    arguments, functions as rows of arguments and value; match relations left out. `handles`: the
    class of every handle.
    """

    classes: Mapping[EClass, list[ENode]]
    rows: Mapping[str, list[tuple[Any, ...]]]
    handles: Mapping[Handle, EClass]

    @property
    def enodes(self) -> int:
        return sum(map(len, self.classes.values()))

    @cached_property
    def named(self) -> Mapping[EClass, Handle]:
        """A handle, the oldest, of every class that has one."""
        named: dict[EClass, Handle] = {}
        for handle, eclass in sorted(self.handles.items(), key=lambda item: item[0].n):
            named.setdefault(eclass, handle)
        return named

    @cached_property
    def terms(self) -> Mapping[EClass, Any]:
        """The smallest terms, see :func:`smallest_terms`."""
        return smallest_terms(self)


def smallest_terms(snapshot: Snapshot) -> Mapping[EClass, Any]:
    """A term for every class: its handle, or else an e-node of least depth over terms of its
    children. Terms share their parts. Classes that only contain themselves have none.
    """
    terms: dict[EClass, Any] = dict(snapshot.named)
    parents: dict[EClass, list[tuple[EClass, ENode]]] = {}
    missing: dict[tuple[EClass, ENode], int] = {}
    ready: list[tuple[EClass, ENode]] = []
    for eclass, enodes in snapshot.classes.items():
        for enode in enodes:
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
