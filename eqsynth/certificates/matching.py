"""Show that two sums of products are equal, by an invertible map between their iterators.

    sum_{k<4608} a[k // 9, k % 9]      k = 9*p + q      sum_{p<512, q<9} a[p, q]
    sum_{k<7} a[k - 1], 0 <= k - 1     k = p + 1        sum_{p<6} a[p]

1. The products of both sums are paired, and so are the factors of two products. Two elements are
   paired only if they are of the same tensor; their indices then have to be equal, which gives
   equations between the iterators of both sides.
2. The equations are solved: each iterator of the right side is plus or minus one iterator of the
   left side, plus a rest that depends on neither. So the map has an inverse.
3. After substitution, all equations have to hold identically, and the boxes have to be the same.

If a step fails, nothing follows: the sums may be equal for another reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import Final

from eqsynth.certificates.digits import simple, to_split
from eqsynth.certificates.elements import Elements
from eqsynth.certificates.forms import (
    Apply,
    At,
    Box,
    Factor,
    Fold,
    Form,
    NotClosed,
    Padded,
    Place,
    Product,
)
from eqsynth.certificates.rewriting import Rewriting, all_indices, alone
from eqsynth.ir.functions import COMMUTATIVE
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import digest_of

# The most ways of pairing that are tried, the most splits of iterators, and the most pieces into
# which the shared iterators' ranges are cut.
_WAYS: Final = 64
_SPLITS: Final = 48
_PIECES: Final = 32
# The relative difference that the numbers of two paired products may have: a number of one side may
# have been computed, with rounding, from those of the other side.
_CLOSE: Final = 1e-12


class _Split(Exception):
    """Raised if an iterator has to be split in two: ``it = block * p + q``."""

    def __init__(self, it: It, block: int) -> None:
        super().__init__()
        self.it, self.block = it, block


@dataclass(frozen=True)
class _Level:
    """The iterators and boxes of a pair of products (left, right), and the levels around it."""

    bound: tuple[tuple[It, ...], tuple[It, ...]]
    box: tuple[Box, Box]
    around: tuple[_Level, ...]


@dataclass
class _Pairing:
    """Equations between indices of both sides, and the levels of their iterators."""

    equations: list[tuple[Index, Index]] = field(default_factory=list)
    levels: list[_Level] = field(default_factory=list)

    def __add__(self, other: _Pairing) -> _Pairing:
        return _Pairing(self.equations + other.equations, self.levels + other.levels)


# ---- the comparison ----------------------------------------------------------------------------


def are_equal(elements: Elements, a: Form, b: Form, traversal: Sequence[It]) -> bool:
    """Whether two forms are shown to be equal at all values of the iterators that they share.

    Args:
        traversal: the shared iterators.

    Raises:
        NotClosed: it takes too many steps.
    """
    apart = Rewriting(elements, {}, apart=True)
    pieces = [(apart.form(a), apart.form(b), tuple(traversal))]
    for _ in range(_PIECES):
        if not pieces:
            return True
        left, right, its = pieces.pop()
        for _ in range(_SPLITS):
            try:
                left, right, its = _rewritten(elements, {}, left, right, its)
                found = to_split([*all_indices(left), *all_indices(right)])
                if found is not None:
                    raise _Split(*found)
                same = any(_is_map(p, its) for p in islice(_forms(left, right, ()), _WAYS))
            except _Split as split:
                first, second = elements.split(split.it, split.block)
                image = (Index.iterator(first.slot, first.extent) * split.block
                         + Index.iterator(second.slot, second.extent))  # fmt: skip
                left, right, its = _rewritten(elements, {split.it: image}, left, right, its)
                continue
            break
        else:
            raise NotClosed
        if same:
            continue
        cut = _cut([*left, *right], its)
        if cut is None:
            return False
        it, at = cut
        for low, high in ((0, at), (at, it.extent)):
            new = elements.narrowed(high - low)
            image = Index.iterator(new.slot, new.extent) + low
            pieces.append(_rewritten(elements, {it: image}, left, right, its))
    raise NotClosed


def _rewritten(
    elements: Elements, images: Mapping[It, Index], a: Form, b: Form, its: Sequence[It]
) -> tuple[Form, Form, tuple[It, ...]]:
    rewriting = Rewriting(elements, images)
    return rewriting.form(a), rewriting.form(b), rewriting.bound(its)


def _cut(form: Sequence[Product], its: Sequence[It]) -> tuple[It, int] | None:
    """A shared iterator, and a value inside its range at which the box of a product begins or ends;
    the range can be cut there. None if there is none."""
    for product in form:
        for index, extent in product.box:
            match index.terms:
                case ((It() as it, 1 | -1 as c),) if it in its:
                    ends = sorted((-c * index.const, c * (extent - 1 - index.const)))
                    for at in (ends[0], ends[1] + 1):
                        if 0 < at < it.extent:
                            return it, at
    return None


# ---- pairing -----------------------------------------------------------------------------------


def _signature(part: Factor | Product) -> bytes:
    """The digest that two parts must share in order to be paired."""
    match part:
        case At(tensor, _):
            return tensor.digest
        case Place():
            return b"place"
        case Apply(name, args):
            each = [_signatures(form) for form in args]
            return digest_of(name, *(sorted(each) if name in COMMUTATIVE else each))
        case Fold(reducer, _, _, form):
            return digest_of("fold", reducer, _signatures(form))
        case Padded(_, fill, form):
            return digest_of("padded", fill, _signatures(form))
    assert isinstance(part, Product)
    return digest_of("product", *sorted(map(_signature, part.factors)))


def _signatures(form: Form) -> bytes:
    return digest_of("form", *sorted(map(_signature, form)))


def _forms(a: Form, b: Form, around: tuple[_Level, ...]) -> Iterator[_Pairing]:
    """The ways to pair the products of two sums."""
    if len(a) != len(b) or _signatures(a) != _signatures(b):
        return
    if not a:
        yield _Pairing()
        return
    first, *rest = a
    kind = _signature(first)
    for at, other in enumerate(b):
        apart = abs(first.number - other.number)
        close = first.number == other.number or apart <= _CLOSE * abs(first.number)
        if _signature(other) == kind and close:
            level = _Level((first.bound, other.bound), (first.box, other.box), around)
            for inner in _factors(first.factors, other.factors, (*around, level)):
                for outer in _forms(tuple(rest), b[:at] + b[at + 1 :], around):
                    yield _Pairing([], [level]) + inner + outer


def _factors(
    a: Sequence[Factor], b: Sequence[Factor], around: tuple[_Level, ...]
) -> Iterator[_Pairing]:
    """The ways to pair the factors of two products."""
    if len(a) != len(b):
        return
    if not a:
        yield _Pairing()
        return
    kind = _signature(a[0])
    for at, other in enumerate(b):
        if _signature(other) == kind:
            for inner in _pair(a[0], other, around):
                for outer in _factors(a[1:], [*b[:at], *b[at + 1 :]], around):
                    yield inner + outer


def _pair(a: Factor, b: Factor, around: tuple[_Level, ...]) -> Iterator[_Pairing]:
    match a, b:
        case At(_, first), At(_, second):
            yield _Pairing(list(zip(first, second, strict=True)))
        case Place(first), Place(second):
            yield _Pairing([(first, second)])
        case Apply(name, first), Apply(_, second):
            orders = permutations(second) if name in COMMUTATIVE else [second]
            for order in orders:
                yield from _each(first, order, around)
        case (Fold(box=first, form=p), Fold(box=second, form=q)):
            level = _Level((a.bound, b.bound), (first, second), around)
            for inner in _forms(p, q, (*around, level)):
                yield _Pairing([], [level]) + inner
        case Padded(first, _, p), Padded(second, _, q):
            level = _Level(((), ()), (first, second), around)
            for inner in _forms(p, q, (*around, level)):
                yield _Pairing([], [level]) + inner


def _each(a: Sequence[Form], b: Sequence[Form], around: tuple[_Level, ...]) -> Iterator[_Pairing]:
    if not a:
        yield _Pairing()
        return
    for inner in _forms(a[0], b[0], around):
        for outer in _each(a[1:], b[1:], around):
            yield inner + outer


# ---- the map -----------------------------------------------------------------------------------


def _is_map(pairing: _Pairing, traversal: Sequence[It]) -> bool:
    """Whether the equations have a solution that maps the boxes of one side to the other's."""
    images = _solved(pairing)
    if images is None:
        return False
    return all(
        _is_scoped(level, images, traversal) and _same_box(level, images)
        for level in pairing.levels
    )


def _is_scoped(level: _Level, images: Mapping[It, Index], traversal: Sequence[It]) -> bool:
    """Whether the right iterators of a level are expressed only by left iterators of this level and
    of the levels around it, and by shared iterators."""
    known = {it for one in (level, *level.around) for it in one.bound[0]} | set(traversal)
    return all(known >= set(images[it].iterators()) for it in level.bound[1])


def _solved(pairing: _Pairing) -> dict[It, Index] | None:
    """Each iterator of the right side -> its image, by an iterator of the left side at the same
    level; None if the equations don't determine it, or don't hold after substitution."""
    level_of: dict[It, int] = {}
    for number, level in enumerate(pairing.levels):
        level_of |= dict.fromkeys((*level.bound[0], *level.bound[1]), number)
    left = {it for level in pairing.levels for it in level.bound[0]}
    right = {it for level in pairing.levels for it in level.bound[1]}
    images: dict[It, Index] = {}

    def difference(a: Index, b: Index) -> Index:
        return simple(a - b.substitute(
            lambda it: images.get(it, Index.iterator(it.slot, it.extent))
        ))  # fmt: skip

    pending = list(pairing.equations)
    while right:
        rows = [difference(a, b) for a, b in pending]
        found = _single(rows, left, right, level_of) or _several(rows, left, right, level_of)
        if found is None:
            return None
        it, own, image = found
        images[it] = image
        left.discard(own)
        right.discard(it)
    if left or any(difference(a, b) != Index(0) for a, b in pending):
        return None
    return images


_Image = tuple[It, It, Index]


def _unknown(row: Index, its: set[It]) -> list[tuple[It, int]]:
    return [(atom, c) for atom, c in row.terms if isinstance(atom, It) and atom in its]


def _open(row: Index, right: set[It]) -> bool:
    """Whether an operation (``//``, ``%``) in a row contains an iterator of ``right``."""
    return any(not isinstance(atom, It) and right & set(atom.value.iterators())
               for atom, _ in row.terms)  # fmt: skip


def _single(
    rows: Sequence[Index], left: set[It], right: set[It], level_of: Mapping[It, int]
) -> _Image | None:
    """Solve an equation with one unknown of each side: ``c*a - c*b + r = 0  ->  b = a + r/c``."""
    for row in rows:
        a, b = _unknown(row, left), _unknown(row, right)
        if len(a) == len(b) == 1 and not _open(row, right | left):
            ((own, c),), ((it, d),) = a, b
            rest = row - Index(0, ((own, c),)) - Index(0, ((it, d),))
            even = all(x % d == 0 for _, x in rest.terms) and rest.const % d == 0
            if abs(c) == abs(d) and level_of[own] == level_of[it] and even:
                quotient = Index(rest.const // d, tuple((x, y // d) for x, y in rest.terms))
                return it, own, -quotient - Index(0, ((own, c // d),))
    return None


def _several(
    rows: Sequence[Index], left: set[It], right: set[It], level_of: Mapping[It, int]
) -> _Image | None:
    """Solve an equation with several unknowns: pair a left and a right one with the same factor and
    extent, the smallest factors first.

    Raises:
        _Split: no such pair has the same extent, but one extent divides the other.
    """
    split: _Split | None = None
    for row in rows:
        if _open(row, right | left):
            continue
        for own, c in sorted(_unknown(row, left), key=lambda term: abs(term[1])):
            for it, d in _unknown(row, right):
                if c != -d or level_of[own] != level_of[it]:
                    continue
                if own.extent == it.extent:
                    return it, own, Index.iterator(own.slot, own.extent)
                small, large = sorted((own, it), key=lambda one: one.extent)
                if large.extent % small.extent == 0:
                    split = split or _Split(large, small.extent)
    if split is not None:
        raise split
    return None


# ---- boxes -------------------------------------------------------------------------------------

_Bounds = tuple[Index, int, int]
"""An index, and its least and its largest value."""


def _same_box(level: _Level, images: Mapping[It, Index]) -> bool:
    """Whether the map takes the box of one side to the box of the other side, and back."""

    def placed(index: Index) -> Index:
        return simple(index.substitute(
            lambda it: images.get(it, Index.iterator(it.slot, it.extent))
        ))  # fmt: skip

    (left, right), (first, second) = level.bound, level.box
    bare = [placed(alone(it)).bare() for it in right]
    same = all(own is not None and own.extent == it.extent
               for own, it in zip(bare, right, strict=True))  # fmt: skip
    if same and {*bare} == {*left} and {(placed(i), e) for i, e in second} == set(first):
        return True
    ours = [(alone(it), 0, it.extent - 1) for it in left]
    ours += [(index, 0, extent - 1) for index, extent in first]
    theirs = [(placed(alone(it)), 0, it.extent - 1) for it in right]
    theirs += [(placed(index), 0, extent - 1) for index, extent in second]
    around = [(i, 0, e - 1) for outer in level.around for i, e in outer.box[0]]
    own = set(left)
    return all(_follows(one, ours + around, own) for one in theirs) and all(
        _follows(one, theirs + around, own) for one in ours
    )


def _follows(wanted: _Bounds, known: Sequence[_Bounds], free: set[It]) -> bool:
    """Whether bounds follow from known bounds: from one of them, and from the iterators' ranges.

    Args:
        free: iterators whose ranges are given by ``known`` and not by their extents.
    """
    ranges: dict[It, tuple[int, int]] = {}
    for index, low, high in known:
        match index.terms:
            case ((It() as it, 1 | -1 as c),) if it in free:
                ends = sorted((c * (low - index.const), c * (high - index.const)))
                before = ranges.get(it, (ends[0], ends[1]))
                ranges[it] = max(before[0], ends[0]), min(before[1], ends[1])

    def interval(index: Index) -> tuple[int, int] | None:
        low = high = index.const
        for atom, c in index.terms:
            if isinstance(atom, It):
                if atom in free and atom not in ranges:
                    return None
                ends = ranges.get(atom, (0, atom.extent - 1))
            elif free & set(atom.value.iterators()):
                return None
            else:
                ends = Index(0, ((atom, 1),)).range()
            low += min(ends[0] * c, ends[1] * c)
            high += max(ends[0] * c, ends[1] * c)
        return low, high

    index, least, largest = wanted
    for sign, base, low, high in [(1, Index(0), 0, 0), *((s, *k) for k in known for s in (1, -1))]:
        rest = interval(index - base * sign)
        ends = sorted((sign * low, sign * high))
        if rest and rest[0] + ends[0] >= least and rest[1] + ends[1] <= largest:
            return True
    return False
