"""A snapshot read as IR: the terms that derivations work on.

Tensor classes are leaves (:class:`ClassRef`); of each index and scalar class the smallest member is
taken. Every operator's type is inferred again and held against its class: two answers mean that
some rule is unsound.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from eqsynth.egraph.encode import (
    NONE_DEFINED,
    decode_index,
    decode_scalar,
    decode_tensor,
    scope_as,
)
from eqsynth.egraph.snapshot import EClass, ENode, Snapshot
from eqsynth.errors import SaturationError
from eqsynth.ir.index import Index
from eqsynth.ir.operators import Operator
from eqsynth.ir.outline import Outline, Places, outline
from eqsynth.ir.printing import render_alone
from eqsynth.ir.scalar import Scalar
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, over
from eqsynth.rules.definitions import Case

Members = dict[ClassRef, tuple[Tensor, ...]]
State = tuple[bytes, int, int]



class Decoded:
    """What e-nodes mean, as they were read last, for the views of one session.

    Numbers of classes change their meaning, so what the classes among an e-node's arguments mean
    says whether its term is still right. The engine gives the same object for an e-node as long as
    it is there, so e-nodes go by identity.
    """

    def __init__(self) -> None:
        self.terms: dict[int, tuple[list[Any], Any]] = {}
        self._parts: dict[int, tuple[ENode, tuple[EClass, ...]]] = {}

    def parts(self, node: ENode) -> tuple[EClass, ...]:
        """The classes among the arguments, those in vectors too."""
        known = self._parts.get(id(node))
        if known is None or known[0] is not node:
            known = self._parts[id(node)] = node, tuple(_classes_in(node.args))
        return known[1]


def _classes_in(args: tuple[Any, ...]) -> Iterator[EClass]:
    for arg in args:
        if isinstance(arg, EClass):
            yield arg
        elif isinstance(arg, tuple):
            yield from _classes_in(arg)



class View:
    """Read access to a snapshot in which every Tensor class has a handle and a type.

    Attributes:
        meanings: the comprehensions by which rule files define our operators, by name.
    """

    def __init__(
        self, snapshot: Snapshot, refs: Mapping[EClass, ClassRef], decoded: Decoded,
        defined: Mapping[str, Operator] = NONE_DEFINED,
        meanings: Mapping[str, tuple[Case, ...]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.snapshot = snapshot
        self.meanings = meanings
        self._decode_tensor = partial(decode_tensor, defined=defined)
        self.refs = refs
        self._decoded = decoded
        self._states: dict[int, State] = {}
        self._by_handle = {handle.n: eclass for handle, eclass in snapshot.handles.items()}
        self._scalars: dict[EClass, Scalar] = {}
        self._indices: dict[EClass, Index] = {}
        self._members: dict[EClass, tuple[Tensor, ...]] = {}
        self._found: dict[tuple[Any, Scope], Any] = {}

    def eclass(self, ref: ClassRef) -> EClass:
        return self._by_handle[ref.handle]

    def by_handle(self, handle: int) -> EClass:
        return self._by_handle[handle]

    def renew(self, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
        """Takes the rows of now, of an e-graph in which requests were filed since and no more."""
        self.snapshot = replace(self.snapshot, rows=rows)

    def state(self, handle: int) -> State:
        """The place of a handle's class in the order, how many e-nodes it has, and how large the
        bodies of its scopes read: with new members, or such as read smaller, it has another
        state."""
        if handle not in self._states:
            eclass = self._by_handle[handle]
            nodes = self.snapshot.classes[eclass]
            bodies = sum(
                self._sizes[node.args[-1]] for node in nodes if node.function == "Scope"
            )
            self._states[handle] = self.refs[eclass].order, len(nodes), bodies
        return self._states[handle]

    def body_size(self, row: tuple[Any, ...]) -> int:
        """The size of a request's body as it reads now: laws on indices make bodies smaller."""
        body = row[-1]
        if not isinstance(body, EClass) or body.sort == "Tensor":
            return 0
        return self._sizes[body]

    def size_of(self, body: EClass) -> int | None:
        """The size of an index or scalar class; None if it isn't one any more."""
        return self._sizes.get(body)

    def current(self, ref: ClassRef) -> ClassRef:
        """The reference by which the class goes in this view."""
        return self.refs[self.eclass(ref)]

    def members(self, ref: ClassRef) -> tuple[Tensor, ...]:
        """The e-nodes of a class, as terms over references.

        Raises:
            SaturationError: a member has another type than its class.
        """
        eclass = self.eclass(ref)
        if eclass not in self._members:
            terms = dict.fromkeys(self.term(node) for node in self.snapshot.classes[eclass])
            known = self.refs[eclass]
            for term in terms:
                if term.type != known.type:
                    raise SaturationError(
                        "a class has members of two types: some rule is unsound",
                        got=render_alone(term),
                        expected=str(known.type),
                    )
            self._members[eclass] = tuple(terms)
        return self._members[eclass]

    def classes(self, terms: Mapping[Tensor, int]) -> tuple[Members, Members]:
        """The members of every class, and those among them that came as these terms.

        Args:
            terms: terms with their subterms, arguments first -> their handles.
        """
        refs: dict[Tensor, ClassRef] = {}
        original: Members = {}
        for term, handle in terms.items():
            refs[term] = self.refs[self.by_handle(handle)]
            # As it came: a member's body is read as the smallest of its class.
            own = (*original.get(refs[term], ()), over(term, refs))
            original[refs[term]] = tuple(dict.fromkeys(own))
        everything = {
            ref: tuple(dict.fromkeys((*self.members(ref), *original.get(ref, ()))))
            for ref in self.refs.values()
        }
        return everything, original

    def scopes(self, ref: ClassRef) -> list[Scope]:
        return [term for term in self.members(ref) if isinstance(term, Scope)]

    def operators(self, ref: ClassRef) -> list[Op]:
        return [term for term in self.members(ref) if isinstance(term, Op)]

    def products_of(self, ref: ClassRef) -> list[Op]:
        """Products of two operands, the first this class, the second constant."""
        return self._products.get(ref, [])

    @cached_property
    def _products(self) -> dict[Tensor, list[Op]]:
        found: dict[Tensor, list[Op]] = {}
        for eclass, nodes in self.snapshot.classes.items():
            if any(node.function in ("Matmul", "Conv2d") for node in nodes):
                for op in self.operators(self.refs[eclass]):
                    if op.name in ("Matmul", "Conv2d") and op.args[1].constant:
                        found.setdefault(op.args[0], []).append(op)
        return found

    def places_of(self, outlined: Outline) -> Collection[Places]:
        """Where sums of products with this outline read their tensors; no derived ones."""
        return self._places.get(outlined, ())

    @cached_property
    def _places(self) -> dict[Outline, set[Places]]:
        found: dict[Outline, set[Places]] = {}
        for ref in self.refs.values():
            for scope in () if ref.constant else self.scopes(ref):
                if scope.reduction and scope.reducer == "sum" and scope not in self.derived:
                    outlined, places = outline(scope)
                    found.setdefault(outlined, set()).add(places)
        return found

    @cached_property
    def derived(self) -> frozenset[Scope]:
        """The scopes marked derived."""
        rows = self.snapshot.rows.get("derived", [])
        return frozenset(scope_as(t, s, self.scalar(b), r) for t, s, r, b in rows)

    @cached_property
    def instantiated(self) -> frozenset[EClass]:
        return frozenset(row[0] for row in self.snapshot.rows.get("instantiated", []))

    def once(self, law: Callable[[View, Scope], Any], scope: Scope) -> Any:
        """What a pure function says of a scope, found once for this view."""
        key = law, scope
        if key not in self._found:
            self._found[key] = law(self, scope)
        return self._found[key]

    # ---- decoding ----------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Any value of a row: classes become terms."""
        if isinstance(value, EClass):
            if value.sort == "Tensor":
                return self.refs[value]
            return self.scalar(value) if value.sort == "Scalar" else self.index(value)
        if not isinstance(value, tuple) or not value or not isinstance(value[0], tuple):
            return value
        return tuple([self.value(part) for part in value])

    def term(self, node: ENode) -> Tensor:
        return self._as_before(node, self._decode_tensor)  # type: ignore[no-any-return]

    def scalar(self, eclass: EClass) -> Scalar:
        if eclass not in self._scalars:
            self._scalars[eclass] = self._as_before(self._best[eclass], decode_scalar)
        return self._scalars[eclass]

    def _as_before(self, node: ENode, decode: Callable[[str, Sequence[Any]], Any]) -> Any:
        """What a node means: the term of an earlier view, if its arguments are those of then."""
        now = [self.value(part) for part in self._decoded.parts(node)]
        known = self._decoded.terms.get(id(node))
        if known is not None and all(map(operator.is_, now, known[0])):
            return known[1]
        term = decode(node.function, list(map(self.value, node.args)))
        self._decoded.terms[id(node)] = now, term
        return term

    def index(self, eclass: EClass) -> Index:
        if eclass not in self._indices:
            node = self._best[eclass]
            self._indices[eclass] = self._as_before(node, decode_index)
        return self._indices[eclass]

    @property
    def _best(self) -> dict[EClass, ENode]:
        return self._smallest[0]

    @property
    def _sizes(self) -> dict[EClass, int]:
        return self._smallest[1]

    @cached_property
    def _smallest(self) -> tuple[dict[EClass, ENode], dict[EClass, int]]:
        """The smallest member of each index and scalar class, ties by its own structure; sizes."""
        parts_of = self._decoded.parts
        work: list[tuple[EClass, ENode, list[EClass]]] = []
        users: defaultdict[EClass, list[tuple[EClass, ENode, list[EClass]]]] = defaultdict(list)
        for eclass, nodes in self.snapshot.classes.items():
            if eclass.sort == "Tensor":
                continue
            for node in nodes:
                parts = [part for part in parts_of(node) if part.sort != "Tensor"]
                entry = eclass, node, parts
                work.append(entry)
                for part in parts:
                    users[part].append(entry)
        cost: dict[EClass, tuple[int, str]] = {}
        best: dict[EClass, ENode] = {}
        while work:
            again: list[tuple[EClass, ENode, list[EClass]]] = []
            for eclass, node, parts in work:
                size = 1
                for part in parts:
                    known = cost.get(part)
                    if known is None:
                        break
                    size += known[0]
                else:
                    key = size, node.function
                    if eclass not in cost or key < cost[eclass]:
                        cost[eclass], best[eclass] = key, node
                        again.extend(users.get(eclass, ()))
            work = again
        return best, {eclass: key[0] for eclass, key in cost.items()}
