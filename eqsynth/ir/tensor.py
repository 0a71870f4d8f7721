"""Tensor terms: inputs, weights, operators (views too), scopes, and regions.

``Op("Relu", (Input("x", t),))`` is ``relu(x)``. A term has a value once its inputs and weights are
given. Terms are immutable DAGs; each stores its digest, its type and whether it is constant
(depends on weights only), so that no walk visits a shared subterm twice. Not here: the table of
operators (``operators.py``), canonical forms (``normal.py``), values (``interpret.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from eqsynth.errors import ShapeError
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.operators import Attr, Operator, operator
from eqsynth.ir.scalar import (
    Read,
    Scalar,
    digest_of,
    dtype_of,
    iterators,
    rewrite_leaves,
    tensors,
)
from eqsynth.ir.types import Shape, TensorType


class Tensor:
    """The base class of tensor terms, which compare and hash by digest."""

    __slots__ = ()
    digest: bytes
    type: TensorType
    constant: bool

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def label(self) -> str:
        """A short name for messages, such as ``Matmul``."""
        return type(self).__name__

    @property
    def order(self) -> bytes:
        """The key by which canonical forms sort operands that read this tensor."""
        return self.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        from eqsynth.ir.printing import render

        return render(self)


@lru_cache(maxsize=1 << 12)
def _digest_of_leaf(kind: str, name: str, type_: TensorType) -> bytes:
    """The digest of an input or weight. Extraction makes the inputs that stand for the arguments of
    its kernels, ``Input("0", …)``, hundred thousands of times."""
    return digest_of(kind, name, type_)


@dataclass(frozen=True, eq=False, repr=False)
class Input(Tensor):
    """A tensor that the caller of the program passes in each call."""

    name: str
    type: TensorType
    digest: bytes = field(init=False)
    constant: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", _digest_of_leaf("Input", self.name, self.type))

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Weight(Tensor):
    """A tensor known at compile time; its array is kept outside of the program, by name."""

    name: str
    type: TensorType
    digest: bytes = field(init=False)
    constant: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", _digest_of_leaf("Weight", self.name, self.type))

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Op(Tensor):
    """An operator or view applied to tensors.

    Attributes:
        origin: the operator's place in the user's model, for messages; not compared.
        defined: the row of an operator that a rule file defines; None for operators of the table.
    """

    name: str
    args: tuple[Tensor, ...]
    attrs: tuple[Attr, ...] = ()
    origin: str = ""
    defined: Operator | None = None
    digest: bytes = field(init=False)
    type: TensorType = field(init=False)
    constant: bool = field(init=False)

    def __post_init__(self) -> None:
        inferred = self.row.infer([a.type for a in self.args], self.attrs, self.origin)
        object.__setattr__(self, "type", inferred)
        parts = [a.digest for a in self.args]
        if self.defined is not None:
            parts.append(self.defined.digest)
        object.__setattr__(self, "digest", digest_of("Op", self.name, self.attrs, *parts))
        object.__setattr__(self, "constant", all(a.constant for a in self.args))

    @property
    def row(self) -> Operator:
        """The operator's row: of the table, or of the rule file that defines it."""
        return self.defined or operator(self.name)

    @property
    def label(self) -> str:
        return f"{self.origin} ({self.name})" if self.origin else self.name


@dataclass(frozen=True, eq=False, repr=False)
class Scope(Tensor):
    """``L traversal . reducer reduction . body`` (EinNet §3): for each value of the traversal's
    iterators, the body reduced over the reduction's iterators.

    Traversal iterator ``i`` is ``It(i, traversal[i])``; reduction iterator ``j`` is
    ``It(len(traversal) + j, reduction[j])``. Axis ``i`` of the result is traversal iterator ``i``.
    """

    traversal: tuple[int, ...]
    reduction: tuple[int, ...]
    body: Scalar
    reducer: str = "sum"
    digest: bytes = field(init=False)
    type: TensorType = field(init=False)
    constant: bool = field(init=False)

    def __post_init__(self) -> None:
        extents = self.traversal + self.reduction
        if any(extent < 0 for extent in extents):
            raise ShapeError(
                what="a scope has an iterator of negative extent",
                got=str(extents),
                expected="extents of 0 or more",
                hint="an iterator runs over [0, extent)",
            )
        if self.reducer not in REDUCERS:
            raise ShapeError(
                what=f"no reducer {self.reducer!r}",
                got=self.reducer,
                expected=", ".join(REDUCERS),
                hint="reduce by one of these",
            )
        for it in iterators(self.body):
            if it.slot >= len(extents) or extents[it.slot] != it.extent:
                raise ShapeError(
                    what="a scope's body uses an iterator that the scope doesn't have",
                    got=f"slot {it.slot} with extent {it.extent}",
                    expected=f"slots 0 to {len(extents) - 1} with extents {extents}",
                    hint="number traversal iterators first, then reduction iterators",
                )
        reducer = self.reducer if self.reduction else "sum"
        object.__setattr__(self, "reducer", reducer)
        dtype = dtype_of(self.body) or "float32"
        if dtype == "bool" and reducer in ("sum", "prod") and self.reduction:
            dtype = "int64"
        object.__setattr__(self, "type", TensorType(self.traversal, dtype))
        object.__setattr__(
            self,
            "digest",
            digest_of("Scope", self.traversal, self.reduction, reducer, self.body.digest),
        )
        object.__setattr__(self, "constant", all(t.constant for t in tensors(self.body)))

    @property
    def extents(self) -> tuple[int, ...]:
        return self.traversal + self.reduction


@dataclass(frozen=True, eq=False, repr=False)
class Region(Tensor):
    """Terms that one engine computes together, as a whole program.

    ``Region((Relu(Matmul(Input("0"), Input("1"))),), (x, w))`` is ``Relu(Matmul(x, w))``: the
    outputs are terms over ``Input("0")``, ``Input("1")``, …, which stand for ``args``. A region
    with several outputs has several values; ``type`` is the first one's.
    """

    outputs: tuple[Tensor, ...]
    args: tuple[Tensor, ...]
    digest: bytes = field(init=False)
    type: TensorType = field(init=False)
    constant: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.outputs[0].type)
        outputs, args = ((t.digest for t in terms) for terms in (self.outputs, self.args))
        object.__setattr__(self, "digest", digest_of("Region", len(self.outputs), *outputs, *args))
        object.__setattr__(self, "constant", all(a.constant for a in self.args))

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled as a list of terms: pickle recurses into arguments, and a deep network would
        # exceed Python's recursion limit.
        rows, places = _rows(self.outputs)
        return region_of_rows, (rows, places, self.args)

    @property
    def label(self) -> str:
        inner = [term for term in topological(self.outputs) if args_of(term)]
        return f"Region of {len(inner)} operators"


@dataclass(frozen=True, eq=False, repr=False)
class ClassRef(Tensor):
    """An e-class as a leaf of the terms that derivations work on.

    Attributes:
        handle: the number of the ``Tok`` that names the e-class in the e-graph.
        digest: the digest of the e-class.
        order_digest: the digest of a term of the e-class. Operands are sorted by it, so that their
            order is the same whether the term or its e-class is read.
    """

    handle: int
    type: TensorType
    constant: bool
    digest: bytes
    order_digest: bytes = b""

    @property
    def order(self) -> bytes:
        return self.order_digest or self.digest

    @property
    def label(self) -> str:
        return f"%{self.handle}"


def is_literal(term: Tensor) -> bool:
    """Whether the term is a ``Literal``: a constant whose numbers are attributes of the term."""
    return isinstance(term, Op) and term.name == "Literal"


def args_of(term: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a term reads directly, each once, in order."""
    if isinstance(term, Op | Region):
        return tuple(dict.fromkeys(term.args))
    if isinstance(term, Scope):
        return tensors(term.body)
    return ()


def over(term: Tensor, images: Mapping[Tensor, Tensor]) -> Tensor:
    """Return the term with its arguments replaced by their images; a term without arguments itself.

    ``over(Relu(x), {x: y})`` is ``Relu(y)``.
    """
    if isinstance(term, Op):
        args = tuple(images[arg] for arg in term.args)
        return Op(term.name, args, term.attrs, term.origin, term.defined)
    if isinstance(term, Region):
        return Region(term.outputs, tuple(images[arg] for arg in term.args))
    if isinstance(term, Scope):

        def leaf(part: Scalar) -> Scalar:
            if isinstance(part, Read):
                return Read(images[part.tensor], part.index, part.fill)
            return part

        body = rewrite_leaves(term.body, leaf)
        return Scope(term.traversal, term.reduction, body, term.reducer)
    return term


def _rows(roots: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Flatten terms into a list of rows, and return the rows and the rows' numbers of the roots.

    A row is one subterm with its arguments replaced by ``Input("#n")`` for row n; arguments come
    before their users. ``relu(a + b)`` gives ``a, b, #0 + #1, relu(#2)`` and ``(3,)``."""
    place: dict[Tensor, int] = {}
    rows: list[Tensor] = []
    for term in topological(roots):
        images: dict[Tensor, Tensor] = {
            arg: Input(f"#{place[arg]}", arg.type) for arg in args_of(term)
        }
        place[term] = len(rows)
        rows.append(over(term, images) if images else term)
    return tuple(rows), tuple(place[root] for root in roots)


def region_of_rows(
    rows: Sequence[Tensor], places: Sequence[int], args: tuple[Tensor, ...]
) -> Region:
    """Return the region of which ``_rows`` returned these rows and places."""
    return Region(_of_rows(rows, places), args)


def _of_rows(rows: Sequence[Tensor], places: Sequence[int]) -> tuple[Tensor, ...]:
    terms: list[Tensor] = []
    for row in rows:
        images: dict[Tensor, Tensor] = {
            arg: terms[int(arg.name[1:])] for arg in args_of(row) if isinstance(arg, Input)
        }
        terms.append(over(row, images) if images else row)
    return tuple(terms[place] for place in places)


@dataclass(frozen=True)
class Terms:
    """Terms to send to another process, pickled as a list of rows like the terms of a region:
    pickle's recursion fails on a chain of 3,000 additions."""

    roots: tuple[Tensor, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return _terms_of_rows, _rows(self.roots)


def _terms_of_rows(rows: Sequence[Tensor], places: Sequence[int]) -> Terms:
    return Terms(_of_rows(rows, places))


def topological(roots: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield every distinct subterm once, arguments before users; the walk isn't recursive, so that
    terms may be deep."""
    seen: set[Tensor] = set()
    stack: list[tuple[Tensor, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        term, done = stack.pop()
        if done:
            yield term
        elif term not in seen:
            seen.add(term)
            stack.append((term, True))
            stack.extend((arg, False) for arg in reversed(args_of(term)) if arg not in seen)
