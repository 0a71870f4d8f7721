"""The body of a scope: a scalar expression that reads closed tensors.

Sums and products are n-ary. A :class:`Read` outside its tensor gives its ``fill``. Terms are
immutable and know their digest, so equality and hashing cost the same for a large term as for a
small one; what is asked of a node again and again it knows too, so a shared subterm is never walked
twice. Not here: the order of operands and of iterators (``normal.py``), values
(``interpret.py``).
"""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.types import is_float, promote

if TYPE_CHECKING:
    from eqsynth.ir.tensor import Tensor


V = TypeVar("V")


def digest_of(*parts: object) -> bytes:
    """A structural hash; parts are digests or have a faithful ``repr``."""
    return hashlib.blake2b(b"".join(map(_part, parts)), digest_size=16).digest()


def _part(part: object) -> bytes:
    """A part of what is hashed, behind its length."""
    data = part if isinstance(part, bytes) else repr(part).encode()
    return len(data).to_bytes(4, "little") + data


# Indices and names are few and are hashed by the thousand, as part of the terms they stand in.
_known_part = lru_cache(maxsize=1 << 15)(_part)


@lru_cache(maxsize=1 << 15)
def _iterators_in(index: tuple[Index, ...]) -> frozenset[It]:
    return frozenset(it for part in index for it in part.iterators())


class Scalar:
    """Base of scalar expressions: compares and hashes by digest."""

    __slots__ = ()
    digest: bytes
    _iterators: frozenset[It]
    _tensors: tuple[Tensor, ...]
    _size: int
    _dtype: str | None
    _flat: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _seal(term: Scalar, *parts: bytes) -> None:
    """Gives a node its digest, and what is asked of it again and again: bodies share subterms, and
    a walk over the tree of them would take time exponential in its depth."""
    own = children(term)
    its: frozenset[It] = frozenset()
    tensors: tuple[Tensor, ...] = ()
    if isinstance(term, Read):
        its, tensors = _iterators_in(term.index), (term.tensor,)
    elif isinstance(term, Value):
        its = _iterators_in((term.index,))
    elif own:
        its = its.union(*(part._iterators for part in own))
        tensors = tuple(dict.fromkeys(t for part in own for t in part._tensors))
    # Into the dictionary of the instance, which is frozen for everybody else.
    known = term.__dict__
    data = b"".join((_known_part(type(term).__name__), *parts))
    known["digest"] = hashlib.blake2b(data, digest_size=16).digest()
    known["_iterators"] = its
    known["_tensors"] = tensors
    known["_size"] = sum([part._size for part in own]) if own else 1
    known |= {"_dtype": _inferred(term), "_flat": _is_flat(term, own)}


def _is_flat(term: Scalar, own: Sequence[Scalar]) -> bool:
    """Whether :func:`rebuild` changes neither it nor what is below: no product stands in a product,
    no sum in a sum, and of numbers there is one at most, in the first place."""
    below = all([part._flat for part in own])
    if not below or not isinstance(term, Prod | Sum):
        return below
    if len(own) < 2 or any(isinstance(part, type(term)) for part in own):
        return False
    if any(isinstance(part, Num) for part in own[1:]):
        return False
    neutral = 1.0 if isinstance(term, Prod) else 0.0
    return not isinstance(own[0], Num) or own[0].value != neutral


@dataclass(frozen=True, eq=False)
class Num(Scalar):
    """A number. It takes the dtype of what it meets, as a Python number does in torch."""

    value: float
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))
        _seal(self, _part(self.value))


@dataclass(frozen=True, eq=False)
class Read(Scalar):
    """``tensor[index]``, or ``fill`` where the index lies outside."""

    tensor: Tensor
    index: tuple[Index, ...]
    fill: float = 0.0
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.index) != len(self.tensor.shape):
            raise ShapeError(
                what="a read has the wrong number of indices",
                where=str(self.tensor.label),
                got=f"{len(self.index)} indices",
                expected=f"{len(self.tensor.shape)}, one an axis of {self.tensor.type}",
                hint="index every axis of the tensor",
            )
        object.__setattr__(self, "fill", float(self.fill))
        _seal(self, _part(self.tensor.digest), _known_part(self.index), _part(self.fill))

    def in_range(self) -> bool:
        """True if no value of the iterators lies outside the tensor (sound, not complete)."""
        return all(
            low >= 0 and high < extent
            for (low, high), extent in zip(
                (i.range() for i in self.index), self.tensor.shape, strict=True
            )
        )


@dataclass(frozen=True, eq=False)
class Prod(Scalar):
    """The product of two or more factors."""

    factors: tuple[Scalar, ...]
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _seal(self, *[_part(f.digest) for f in self.factors])


@dataclass(frozen=True, eq=False)
class Sum(Scalar):
    """The sum of two or more terms."""

    terms: tuple[Scalar, ...]
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _seal(self, *[_part(t.digest) for t in self.terms])


@dataclass(frozen=True, eq=False)
class Call(Scalar):
    """A scalar function of ``functions.py`` by name.

    Raises:
        DtypeError: an unknown function.
    """

    fn: str
    args: tuple[Scalar, ...]
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _seal(self, _known_part(self.fn), *[_part(a.digest) for a in self.args])


@dataclass(frozen=True, eq=False)
class Value(Scalar):
    """An index as a number (int64)."""

    index: Index
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _seal(self, _part(self.index))


@dataclass(frozen=True, eq=False)
class Cast(Scalar):
    """The argument converted to ``dtype``."""

    dtype: str
    arg: Scalar
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _seal(self, _known_part(self.dtype), _part(self.arg.digest))


def product(factors: Sequence[Scalar]) -> Scalar:
    """The product, flat, with its numbers in one. A product in a dtype of its own stays a factor:
    200 * 2 is 144 in uint8, and 400 as a part of a product of floats."""
    return _joined(factors, Prod, 1.0, operator.mul)


def total(terms: Sequence[Scalar]) -> Scalar:
    """The sum, flat, with its numbers in one; one in a dtype of its own stays a term."""
    return _joined(terms, Sum, 0.0, operator.add)


def _joined(
    parts: Sequence[Scalar], kind: type[Prod | Sum], unit: float, join: Callable[..., float]
) -> Scalar:
    if any(isinstance(part, kind) for part in parts):
        # A product of truths is the truth of all: 1 or 0, whatever is multiplied by it.
        own = (None, joined_dtype(parts), *(("bool",) if kind is Prod else ()))
        opened = [isinstance(p, kind) and dtype_of(p) in own for p in parts]
        parts = [q for p, o in zip(parts, opened, strict=True) for q in (children(p) if o else [p])]
    number, rest = unit, list[Scalar]()
    for part in parts:
        if isinstance(part, Num):
            number = join(number, part.value)
        else:
            rest.append(part)
    if number != unit or not rest:
        rest.insert(0, Num(number))
    return rest[0] if len(rest) == 1 else kind(tuple(rest))


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    match scalar:
        case Prod(factors=parts) | Sum(terms=parts) | Call(args=parts):
            return parts
        case Cast(arg=arg):
            return (arg,)
    return ()


def rebuild(scalar: Scalar, parts: Sequence[Scalar]) -> Scalar:
    """The same node over other children; sums and products stay flat."""
    match scalar:
        case Prod():
            return product(parts)
        case Sum():
            return total(parts)
        case Call(fn=fn):
            return Call(fn, tuple(parts))
        case Cast(dtype=dtype):
            return Cast(dtype, parts[0])
    return scalar


def rewrite_leaves(
    scalar: Scalar,
    leaf: Callable[[Scalar], Scalar],
    composite: Callable[[Scalar], Scalar] | None = None,
) -> Scalar:
    """The expression with ``leaf`` applied to every read, number and value, and ``composite`` to
    every sum, product, function and cast of what came of its parts."""
    done: dict[Scalar, Scalar] = {}

    def rewritten(part: Scalar) -> Scalar:
        parts = children(part)
        if not parts:
            return leaf(part)
        if part not in done:
            new = [rewritten(p) for p in parts]
            same = part._flat and all(map(operator.is_, new, parts))
            made = part if same else rebuild(part, new)
            done[part] = composite(made) if composite else made
        return done[part]

    return rewritten(scalar)


def substitute(scalar: Scalar, image: Callable[[It], Index]) -> Scalar:
    """The expression with every iterator replaced by its image."""
    images = {it: image(it) for it in scalar._iterators}
    if scalar._flat and all([to == (0, ((it, 1),)) for it, to in images.items()]):
        return scalar
    known = images.__getitem__

    def leaf(part: Scalar) -> Scalar:
        if isinstance(part, Read):
            index = tuple([i.substitute(known) for i in part.index])
            return part if index == part.index else Read(part.tensor, index, part.fill)
        return Value(part.index.substitute(known)) if isinstance(part, Value) else part

    return rewrite_leaves(scalar, leaf)


def composites(scalar: Scalar) -> Iterator[Scalar]:
    """The sums, products, functions and casts, each once, with those around before those within."""
    seen: set[Scalar] = set()
    stack = [scalar]
    while stack:
        part = stack.pop()
        if children(part) and part not in seen:
            seen.add(part)
            yield part
            stack.extend(reversed(children(part)))


def leaves(scalar: Scalar) -> Iterator[Scalar]:
    """Reads, numbers and values, from left to right, with repetitions: ``x * x`` has two.

    A sum, product or function that occurs again isn't entered again.
    """
    seen: set[Scalar] = set()
    stack = [scalar]
    while stack:
        part = stack.pop()
        parts = children(part)
        if not parts:
            yield part
        elif part not in seen:
            seen.add(part)
            stack.extend(reversed(parts))


def indices_of(scalar: Scalar) -> Iterator[Index]:
    """The indices of its reads and values, from left to right, with repetitions."""
    for leaf in leaves(scalar):
        if isinstance(leaf, Read):
            yield from leaf.index
        elif isinstance(leaf, Value):
            yield leaf.index


def tree_size(scalar: Scalar) -> int:
    """How many leaves the expression has as a tree: what is shared counts wherever it occurs."""
    return scalar._size


def uses(scalar: Scalar) -> Counter[Scalar]:
    """How often each subterm stands as an operand: in how many places its value is used."""
    return Counter(part for whole in composites(scalar) for part in children(whole))


class Evaluation(Generic[V]):
    """The values of a body's subterms, each computed once; what is used again is kept until its
    last use.

    Args:
        body: the whole that is evaluated, or whose operands are, each once.
    """

    def __init__(self, body: Scalar) -> None:
        self._uses = uses(body)
        self._kept: dict[Scalar, V] = {}

    def value(self, scalar: Scalar) -> V:
        if not children(scalar):
            return self.computed(scalar)
        self._uses[scalar] -= 1
        value = self._kept.pop(scalar, None)
        if value is None:
            value = self.computed(scalar)
        if self._uses[scalar] > 0:
            self._kept[scalar] = value
        return value

    def computed(self, scalar: Scalar) -> V:
        """The value, from those (:meth:`value`) of the operands."""
        raise NotImplementedError


def reads(scalar: Scalar) -> Iterator[Read]:
    """The reads among the leaves."""
    return (leaf for leaf in leaves(scalar) if isinstance(leaf, Read))


def iterators(scalar: Scalar) -> set[It]:
    """The iterators that occur."""
    return set(scalar._iterators)


def tensors(scalar: Scalar) -> tuple[Tensor, ...]:
    """The tensors that are read, each once, from left to right."""
    return scalar._tensors


def factors_of(scalar: Scalar) -> tuple[Scalar, ...]:
    """The factors of a product; anything else is a product of one."""
    return scalar.factors if isinstance(scalar, Prod) else (scalar,)


def terms_of(scalar: Scalar) -> tuple[Scalar, ...]:
    """The terms of a sum; anything else is a sum of one."""
    return scalar.terms if isinstance(scalar, Sum) else (scalar,)


def dtype_of(scalar: Scalar) -> str | None:
    """The dtype of the value; None for a number, which takes that of what it meets."""
    return scalar._dtype


def _inferred(scalar: Scalar) -> str | None:
    match scalar:
        case Num():
            return None
        case Value():
            return "int64"
        case Read(tensor=tensor):
            return tensor.dtype
        case Cast(dtype=dtype):
            return dtype
        case Call(fn=fn, args=args):
            function = FUNCTIONS.get(fn)
            if function is None or function.arity != len(args):
                raise DtypeError(
                    what=f"no scalar function {fn!r} of {len(args)} arguments",
                    got=fn,
                    expected=", ".join(sorted(FUNCTIONS)),
                    hint="see eqsynth/ir/functions.py",
                )
            if function.result == "bool":
                return "bool"
            joined = joined_dtype(args[1:] if fn == "where" else args)
            if function.result == "float" and joined is not None and not is_float(joined):
                return "float32"
            return joined
    joined, parts = joined_dtype(children(scalar)), children(scalar)
    # As in torch: a bool counts as soon as a number is in the arithmetic.
    return "int64" if joined == "bool" and any(isinstance(p, Num) for p in parts) else joined


def joined_dtype(parts: Sequence[Scalar]) -> str | None:
    """The dtype in which these are joined by arithmetic; None if they are all numbers."""
    known = [dtype for part in parts if (dtype := dtype_of(part)) is not None]
    if not known:
        return None
    joined = known[0]
    for dtype in known[1:]:
        joined = promote(joined, dtype)
    fractional = any(isinstance(p, Num) and p.value % 1 != 0 for p in parts)
    return "float32" if fractional and not is_float(joined) else joined
