"""The body of a scope: a scalar expression over reads of tensors, ``x[i, k] * w[k, j] + 1``.

Sums and products are n-ary. A :class:`Read` outside of its tensor has the value ``fill``. Scalars
are immutable, and each stores its digest, iterators, tensors, size and dtype when it is built. So
equality and hashing take constant time, and no walk visits a shared subterm twice. Not here: the
order of operands and of iterators (``normal.py``), values (``interpret.py``).
"""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.types import is_float, promote

if TYPE_CHECKING:
    from eqsynth.ir.tensor import Tensor


V = TypeVar("V")


def digest_of(*parts: object) -> bytes:
    """Return a hash of the parts; a part is a digest, or an object whose ``repr`` identifies it."""
    return hashlib.blake2b(b"".join(map(_part, parts)), digest_size=16).digest()


def _part(part: object) -> bytes:
    """Encode a part for hashing, with its length in front, so that parts can't run together."""
    data = part if isinstance(part, bytes) else repr(part).encode()
    return len(data).to_bytes(4, "little") + data


# There are few different indices and names, and each is hashed thousands of times.
_known_part = lru_cache(maxsize=1 << 15)(_part)


@lru_cache(maxsize=1 << 15)
def _iterators_in(index: tuple[Index, ...]) -> frozenset[It]:
    return frozenset(it for part in index for it in part.iterators())


class Scalar:
    """The base class of scalar expressions, which compare and hash by digest."""

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
    """Store the digest, iterators, tensors, size and dtype of a new scalar in it.

    They are combined from the children's. Bodies share subterms, so a walk over the expression as a
    tree could take time exponential in its depth."""
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
    # Written to the instance's dictionary, since the dataclass is frozen.
    known = term.__dict__
    data = b"".join((_known_part(type(term).__name__), *parts))
    known["digest"] = hashlib.blake2b(data, digest_size=16).digest()
    known["_iterators"] = its
    known["_tensors"] = tensors
    known["_size"] = sum([part._size for part in own]) if own else 1
    known |= {"_dtype": _inferred(term), "_flat": _is_flat(term, own)}


def _is_flat(term: Scalar, own: Sequence[Scalar]) -> bool:
    """Whether :func:`rebuild` would change neither the term nor its subterms: no product is a
    factor of a product, no sum a term of a sum, only the first operand may be a number, and none is
    divided by a number."""
    below = all([part._flat for part in own])
    if not below or not isinstance(term, Prod | Sum):
        divides = isinstance(term, Call) and term.fn == "div" and isinstance(own[1], Num)
        return below and not divides
    if len(own) < 2 or any(isinstance(part, type(term)) for part in own):
        return False
    if any(isinstance(part, Num) for part in own[1:]):
        return False
    neutral = 1.0 if isinstance(term, Prod) else 0.0
    return not isinstance(own[0], Num) or own[0].value != neutral


@dataclass(frozen=True, eq=False)
class Num(Scalar):
    """A number. It takes the dtype of its neighbours, as a Python number does in torch."""

    value: float
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))
        _seal(self, _part(self.value))


@dataclass(frozen=True, eq=False)
class Read(Scalar):
    """``tensor[index]``, or ``fill`` where the index is outside of the tensor."""

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
        """Whether the index is known to be inside of the tensor for all values of the iterators.
        False may mean "not known"."""
        return all(
            low >= 0 and high < extent
            for (low, high), extent in zip(
                (i.range() for i in self.index), self.tensor.shape, strict=True
            )
        )

    def is_outside(self) -> bool:
        """Whether the index is known to be outside of the tensor for all values of the iterators,
        so that the read is its fill. False may mean "not known"."""
        ranges = zip((i.range() for i in self.index), self.tensor.shape, strict=True)
        return any(high < 0 or low >= extent for (low, high), extent in ranges)


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
    """A call of a scalar function of ``functions.py``, by name.

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
    """Return the product, with nested products flattened and all numbers multiplied into one.

    A nested product of another dtype stays a factor: 200 * 2 is 144 in uint8, but would be 400 as a
    part of a product of floats."""
    return _joined(factors, Prod, 1.0, operator.mul)


def total(terms: Sequence[Scalar]) -> Scalar:
    """Return the sum, with nested sums flattened and all numbers added into one. A nested sum of
    another dtype stays a term, and so does one whose number would lose digits (`LOST`)."""
    return _joined(terms, Sum, 0.0, operator.add)


def quotient(over: Scalar, under: Scalar) -> Scalar:
    """Return ``over / under``; divided by a power of two, as the product with its inverse, which is
    the same to the last bit. So ``(a + b) / 2`` and ``0.5 * (a + b)`` are one scalar. The quotient
    of two numbers is a number: a float64 is precise enough to be rounded again."""
    if isinstance(over, Num) and isinstance(under, Num) and under.value:
        value = over.value / under.value
        if math.isfinite(value):
            return Num(value)
    if isinstance(under, Num) and is_float(dtype_of(over) or ""):
        part, power = math.frexp(under.value)  # 2**k is 0.5 * 2**(k + 1)
        if abs(part) == 0.5 and abs(power - 1) <= _POWERS:
            return product([Num(1 / under.value), over])
    return Call("div", (over, under))


_POWERS: Final = 14
"""Powers of two up to this one, and their inverses, are normal numbers of every float dtype."""

LOST: Final = 2.0**-20
"""Two numbers aren't added into one if rounding their sum to float32 changes it by more than this
part of the smaller one. ``(1 - p) + 1e-6`` is 1e-6 where p is 1; ``(1 + 1e-6) - p`` is 4.6 % less.
"""


def _lose(numbers: Sequence[float]) -> bool:
    """Whether the sum of numbers, in float32, loses digits of one of them."""
    counted = [abs(n) for n in numbers if n]
    if len(counted) < 2 or not all(map(math.isfinite, counted)) or sum(counted) > _LARGEST:
        return False
    whole = math.fsum(numbers)
    (rounded,) = struct.unpack("f", struct.pack("f", whole))
    return bool(abs(rounded - whole) > LOST * min(counted))


_LARGEST: Final = 3.4e38  # of float32

WHOLE: Final = 2.0**53
"""Sums and products of whole Python floats are exact if they are less than this number."""


def _joined(
    parts: Sequence[Scalar], kind: type[Prod | Sum], unit: float, join: Callable[..., float]
) -> Scalar:
    """Return the sum or product, flattened, with its numbers joined into one.

    Numbers beside integers and bools stay apart where one number would be another value:
    ``0.5 * 2 * u`` of a uint8 is a float, and ``1 * u`` isn't; ``-1 * -1 * p`` of a bool is an
    integer, and p isn't; ``3**17 * 3**17 * i`` of an int64 has a factor that no float holds."""
    if any(isinstance(part, kind) for part in parts):
        # A product of bools is 1 or 0 in every dtype, so it may be flattened into any product. A
        # sum without a dtype, where(c, 1, 2.5) + where(d, 1, 2.5), isn't rounded term by term to
        # integers, as it would be in a sum of integers.
        joined = joined_dtype(parts)
        own = [joined, *(("bool",) if kind is Prod else ())]
        own += [None] if joined is None or is_float(joined) else []
        opened = [isinstance(p, kind) and dtype_of(p) in own for p in parts]
        if kind is Sum and (joined is None or is_float(joined)):
            own_parts = [children(p) if o else (p,) for p, o in zip(parts, opened, strict=True)]
            told = [[q.value for q in each if isinstance(q, Num)] for each in own_parts]
            if _lose([number for numbers in told for number in numbers]):
                opened = [o and not numbers for o, numbers in zip(opened, told, strict=True)]
        parts = [q for p, o in zip(parts, opened, strict=True) for q in (children(p) if o else [p])]
    number, largest, rest = unit, 0.0, list[Scalar]()
    for part in parts:
        if isinstance(part, Num):
            number = join(number, part.value)
            largest = max(largest, abs(number))
        else:
            rest.append(part)
    numbers = len(parts) - len(rest)
    if number != unit or not rest:
        rest.insert(0, Num(number))
    result = rest[0] if len(rest) == 1 else kind(tuple(rest))
    dtype = dtype_of(result)
    if numbers and dtype is not None and not is_float(dtype):
        apart, exact = kind(tuple(parts)), numbers == 1 or largest < WHOLE
        return result if exact and dtype_of(apart) == dtype else apart
    return result


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    match scalar:
        case Prod(factors=parts) | Sum(terms=parts) | Call(args=parts):
            return parts
        case Cast(arg=arg):
            return (arg,)
    return ()


def operands(scalar: Scalar) -> tuple[Scalar, ...]:
    """Return the children whose dtypes are promoted to one dtype: of ``where`` both cases, not the
    condition; of other scalars all children."""
    chooses = isinstance(scalar, Call) and scalar.fn == "where"
    return children(scalar)[1:] if chooses else children(scalar)


def rebuild(scalar: Scalar, parts: Sequence[Scalar]) -> Scalar:
    """Return the same operation on other children; sums and products are flattened."""
    match scalar:
        case Prod():
            return product(parts)
        case Sum():
            return total(parts)
        case Call(fn="div"):
            return quotient(*parts)
        case Call(fn=fn):
            return Call(fn, tuple(parts))
        case Cast(dtype=dtype):
            return Cast(dtype, parts[0])
    return scalar


def rebuild_in_dtype(scalar: Scalar, parts: Sequence[Scalar]) -> Scalar:
    """Return the same operation on other children, some of which have become numbers, in the dtype
    of before: ``u + x`` of a uint8 u and a float32 x becomes ``float32(u) + 300`` for x = 300,
    since ``u + 300`` is a number modulo 256."""
    to, found = joined_dtype(operands(scalar)), rebuild(scalar, parts)
    if to is not None and joined_dtype(operands(found)) not in (None, to):
        first = len(parts) - len(operands(scalar))
        found = rebuild(scalar, [*parts[:first], *(in_dtype(p, to) for p in parts[first:])])
    return in_dtype(found, dtype_of(scalar))


def in_dtype(scalar: Scalar, dtype: str | None) -> Scalar:
    """Return the scalar, as a cast if it is neither of this dtype nor of numbers alone."""
    return scalar if dtype is None or dtype_of(scalar) in (None, dtype) else Cast(dtype, scalar)


def rewrite_leaves(
    scalar: Scalar,
    leaf: Callable[[Scalar], Scalar],
    composite: Callable[[Scalar], Scalar] | None = None,
) -> Scalar:
    """Rewrite an expression from its leaves up: apply ``leaf`` to each read, number and index
    value, and ``composite`` to each sum, product, function and cast with rewritten children."""
    return _rewritten(scalar, leaf, composite, {})


def _rewritten(
    part: Scalar,
    leaf: Callable[[Scalar], Scalar],
    composite: Callable[[Scalar], Scalar] | None,
    done: dict[Scalar, Scalar],
) -> Scalar:
    """Do the work of ``rewrite_leaves``, which has rewritten the parts in ``done``.

    This isn't a function inside of ``rewrite_leaves``: such a function that calls itself refers to
    itself, and would keep ``done`` with all terms in it until Python collects cyclic garbage.
    """
    parts = children(part)
    if not parts:
        return leaf(part)
    if part not in done:
        new = [_rewritten(p, leaf, composite, done) for p in parts]
        same = part._flat and all(map(operator.is_, new, parts))
        made = part if same else rebuild(part, new)
        done[part] = composite(made) if composite else made
    return done[part]


def substitute(scalar: Scalar, image: Callable[[It], Index]) -> Scalar:
    """Return the expression with every iterator replaced by its image."""
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
    """Yield each sum, product, function and cast once, outer expressions first."""
    seen: set[Scalar] = set()
    stack = [scalar]
    while stack:
        part = stack.pop()
        if children(part) and part not in seen:
            seen.add(part)
            yield part
            stack.extend(reversed(children(part)))


def leaves(scalar: Scalar) -> Iterator[Scalar]:
    """Yield reads, numbers and index values from left to right; ``x * x`` yields x twice.

    A sum, product, function or cast that occurs several times is entered once.
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
    """Yield the indices of reads and index values, from left to right, with repetitions."""
    for leaf in leaves(scalar):
        if isinstance(leaf, Read):
            yield from leaf.index
        elif isinstance(leaf, Value):
            yield leaf.index


def tree_size(scalar: Scalar) -> int:
    """Return the number of leaves of the expression as a tree: a shared part counts at each use."""
    return scalar._size


def uses(scalar: Scalar) -> Counter[Scalar]:
    """Count how often each subterm is an operand: ``{f: 2, …}`` for ``f * f``."""
    return Counter(part for whole in composites(scalar) for part in children(whole))


class Evaluation(Generic[V]):
    """Evaluates a body: each subterm is computed once, and its value is kept until its last use.

    Args:
        body: the body; :meth:`value` is called once on it, or once on each of its operands.
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
        """Compute the value of a scalar from the values of its operands (:meth:`value`)."""
        raise NotImplementedError


def reads(scalar: Scalar) -> Iterator[Read]:
    """Yield the reads of the expression, with repetitions."""
    return (leaf for leaf in leaves(scalar) if isinstance(leaf, Read))


def mixed_reads(scalar: Scalar, dtype: str) -> set[Read]:
    """Return the reads inside of a sum, product, function or cast with an operand of another dtype.

    A number takes the dtype of its neighbours, so it can't stand for such a read: ``u + x`` of a
    uint8 and a float is a float, ``u + 1`` a number modulo 256."""
    return {
        read
        for part in composites(scalar)
        if any(dtype_of(operand) not in (None, dtype) for operand in operands(part))
        for read in reads(part)
    }


def iterators(scalar: Scalar) -> set[It]:
    """Return the iterators that the expression uses."""
    return set(scalar._iterators)


def tensors(scalar: Scalar) -> tuple[Tensor, ...]:
    """Return the tensors that the expression reads, each once, from left to right."""
    return scalar._tensors


def factors_of(scalar: Scalar) -> tuple[Scalar, ...]:
    """Return the factors of a product; any other scalar is its own single factor."""
    return scalar.factors if isinstance(scalar, Prod) else (scalar,)


def terms_of(scalar: Scalar) -> tuple[Scalar, ...]:
    """Return the terms of a sum; any other scalar is its own single term."""
    return scalar.terms if isinstance(scalar, Sum) else (scalar,)


def dtype_of(scalar: Scalar) -> str | None:
    """Return the dtype of the value; None for a number, which takes the dtype of its neighbours."""
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
            joined = joined_dtype(operands(scalar))
            if function.result == "float" and joined is not None and not is_float(joined):
                return "float32"
            return joined
    joined, parts = joined_dtype(children(scalar)), children(scalar)
    # As in torch, arithmetic of bools and a number is done in int64.
    return "int64" if joined == "bool" and any(dtype_of(p) is None for p in parts) else joined


def joined_dtype(parts: Sequence[Scalar]) -> str | None:
    """Return the dtype of arithmetic on ``parts``; None if all of them are numbers."""
    known = [dtype for part in parts if (dtype := dtype_of(part)) is not None]
    if not known:
        return None
    joined = known[0]
    for dtype in known[1:]:
        joined = promote(joined, dtype)
    fractional = any(dtype_of(part) is None and not _is_whole(part) for part in parts)
    return "float32" if fractional and not is_float(joined) else joined


def _is_whole(number: Scalar) -> bool:
    """Whether an expression of numbers alone has a whole number for its value, as far as this is
    plain: ``sqrt(0.5) * i`` and ``sqrt(4) * i`` are floats, as in torch, and ``max(2, 3) * i`` an
    integer."""
    if isinstance(number, Num):
        return number.value % 1 == 0
    of_floats = isinstance(number, Call) and FUNCTIONS[number.fn].result == "float"
    return not of_floats and all(map(_is_whole, children(number)))
