"""Parts: groups of e-classes whose kernels are chosen together, once for equal parts.

A large program is a chain of layers, and few values pass from one layer to the next. The order of
the e-classes (arguments first) is cut at every place where the e-classes behind the place read only
one e-class before it:

    h = f(x), y = f(h)   ->   two parts, {.., h} and {.., y}; the second reads h alone

h is the *border* of the second part. The choices in a part depend on the rest of the program only
through the border: through the costs of the border's states, and through the choices that these
states have in common (``greedy.py`` passes both on). So choosing part by part gives the same plan
as choosing in the whole program. Parts that are equal up to the names of their classes are solved
once if their borders are equal too.

Each class of a part needs the border in all plans that compute the class, or in none. The work
below the border is then no reason to prefer one way of the class to another, and the costs of ways
don't include it.

Not here: blocks (``blocks.py``), which are solved while the choices in other blocks stay.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from eqsynth.extract.prices import Ways
from eqsynth.extract.states import States, Viewing
from eqsynth.ir.tensor import Input

LEAST_CLASSES = 16
"""The fewest classes of a part; the last part may have fewer. Passing on a border takes as long as
choosing for a few classes, and a program without alternatives could be cut at almost every class
(the original operators of GCN: 630 parts)."""


@dataclass(frozen=True)
class Part:
    """Classes whose kernels are chosen together.

    Attributes:
        places: the places of the part's classes in ``States.order``, without constants, arguments
            first.
        border: the place of the one class of other parts that the part reads; None for the first
            part.
        like: the number of the first part that equals this part up to the names of classes; the
            part's own number if there is none before it.
    """

    places: tuple[int, ...]
    border: int | None
    like: int

    @cached_property
    def _numbers(self) -> dict[int, int]:
        every = self.places if self.border is None else (self.border, *self.places)
        return {place: n for n, place in enumerate(every)}

    @cached_property
    def _every(self) -> tuple[int, ...]:
        return tuple(self._numbers)

    def place_in(self, other: Part, place: int) -> int:
        """Return the place in an equal part that corresponds to ``place``, a class of this part or
        its border."""
        return place if other is self else other._every[self._numbers[place]]


Views = Sequence[Sequence[Viewing]]


def parts_of(table: States, ways: Ways, views: Views) -> list[Part]:
    """Divide the classes that aren't constant into parts. A part stands behind the part it reads.

    Args:
        views: the views of each class, by its place.
    """
    below = _below(table, ways, views)
    inputs = {p for p in below if any(isinstance(m, Input) for m in _members(table, p))}
    cut: list[_Piece] = []
    for piece in _pieces(below):
        cut.append(piece)
        while cut[-1][0] is not None and not _is_whole(*cut[-1], below, inputs):
            _, more = cut.pop()
            cut[-1][1].extend(more)
    found: list[Part] = []
    first: dict[Hashable, int] = {}
    for number, (border, places) in enumerate(cut):
        key = _up_to_names(table, ways, views, border, places)
        found.append(Part(tuple(places), border, first.setdefault(key, number)))
    return found


_Needs = list[set[int]]
_Piece = tuple[int | None, list[int]]


def _below(table: States, ways: Ways, views: Views) -> dict[int, _Needs]:
    """Return for each class that isn't constant the classes that each of its ways and views
    reads."""
    return {
        place: [{table.places[need] for need in way.needs} for way in ways[ref]]
        + [{viewing.source} for viewing in views[place]]
        for place, ref in enumerate(table.order)
        if not ref.constant
    }


def _members(table: States, place: int) -> Iterable[object]:
    return table.graph.classes[table.order[place]]


def _pieces(below: dict[int, _Needs]) -> list[_Piece]:
    """Cut the classes at the places where the classes behind the cut read only one class before it,
    and no class before the cut reads a class behind it."""
    last = {place: place for place in below}  # class -> the last class that reads it
    open_until = -1  # the last class that a class visited so far reads
    for place, needs in below.items():
        for need in set[int]().union(*needs):
            last[need] = max(last[need], place)
    ends: dict[int, list[int]] = {}
    for place, end in last.items():
        ends.setdefault(end, []).append(place)
    found: list[_Piece] = [(None, [])]
    live: set[int] = set()
    for place, needs in below.items():
        if len(live) == 1 and place > open_until and len(found[-1][1]) >= LEAST_CLASSES:
            found.append((min(live), []))
        found[-1][1].append(place)
        live.add(place)
        live.difference_update(ends.get(place, ()))
        open_until = max(open_until, *(need for needed in needs for need in needed), -1)
    return found


def _is_whole(
    border: int | None, places: Sequence[int], below: dict[int, _Needs], inputs: set[int]
) -> bool:
    """Whether each class of a part needs the border in all of its ways and views, or in none of
    them. An input of the program never needs it."""
    users: dict[int | None, list[int]] = {}
    for place in places:
        for need in set[int]().union(*below[place]):
            users.setdefault(need, []).append(place)
    above, work = {border}, [border]
    while work:
        for user in users.get(work.pop(), ()):
            if user not in above:
                above.add(user)
                work.append(user)
    above.discard(border)
    return not above & inputs and all(
        needs & above or border in needs
        for place in above
        if place is not None
        for needs in below[place]
    )


def _up_to_names(
    table: States,
    ways: Ways,
    views: Views,
    border: int | None,
    places: Sequence[int],
) -> Hashable:
    """Return a key of a part: everything that its choices depend on, with classes numbered within
    the part. Parts with equal keys are equal up to names."""
    number: dict[int | None, int] = {place: n for n, place in enumerate(places)}
    number[border] = -1
    states, at = table.states, table.places

    def of(place: int) -> Hashable:
        ref = table.order[place]
        given = any(isinstance(member, Input) for member in _members(table, place))
        made = tuple(
            (
                states[way.state][1],
                tuple((number[at[need]], states[need][1]) for need in way.needs),
                way.kernels,
            )
            for way in ways[ref]
        )
        viewed = tuple((v.term, number[v.source]) for v in views[place])
        return ref.type, given, table.readers[place], made, viewed

    below = None if border is None else (table.order[border].type, table.readers[border])
    return below, tuple(map(of, places))
